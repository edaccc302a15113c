#include "link.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace loopback {

Answer<std::shared_ptr<Doorbell>> Doorbell::open() {
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) return refuse_errno(KVFERRY_ERROR_LIMIT, "open an event fd", "eventfd", errno);
  return std::shared_ptr<Doorbell>(new Doorbell(fd));
}

Doorbell::~Doorbell() { (void)close(fd_); }  // an event fd holds nothing that a failed close could lose

void Doorbell::ring() noexcept {
  if (!armed_.exchange(false)) return;
  rung_.store(true);
  const std::uint64_t one = 1;
  (void)!write(fd_, &one, sizeof(one));  // fails only when the counter is full, and then the fd is readable
}

void Doorbell::answer() noexcept {
  armed_.store(false);
  if (!rung_.exchange(false)) return;
  std::uint64_t count = 0;
  (void)!read(fd_, &count, sizeof(count));  // nothing to read means that the ring is still under way; it comes again
}

Window::~Window() {
  if (memory_ != nullptr) (void)munmap(memory_, bytes_);  // our own mapping: it cannot be refused
}

Answer<void> Window::open() {
  if (memory_ != nullptr) return {};
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return refuse_errno(KVFERRY_ERROR_NO_MEMORY, "map a window of " + std::to_string(bytes_) + " bytes", "mmap", errno);
  memory_ = static_cast<std::uint8_t*>(memory);
  return {};
}

void Window::write(std::uint64_t position, const std::uint8_t* source, std::uint64_t length) noexcept {
  const std::uint64_t begin = position % bytes_;
  const std::uint64_t first = std::min(length, bytes_ - begin);
  std::memcpy(memory_ + begin, source, first);
  std::memcpy(memory_, source + first, length - first);
}

void Window::read(std::uint64_t position, std::uint8_t* target, std::uint64_t length) const noexcept {
  const std::uint64_t begin = position % bytes_;
  const std::uint64_t first = std::min(length, bytes_ - begin);
  std::memcpy(target, memory_ + begin, first);
  std::memcpy(target + first, memory_, length - first);
}

End::End(const EndOptions& options, std::shared_ptr<Doorbell> owner_bell)
    : bell(std::move(owner_bell)), slots(options.batches_in_flight_max), window(options.window_bytes) {
  for (Slot& slot : slots) {
    slot.writes.resize(options.writes_per_batch_max);
    slot.pieces.resize(options.pieces_per_batch_max);
  }
}

void End::reclaim() noexcept {
  while (oldest != next && slot(oldest).reusable()) ++oldest;
}

std::uint64_t End::arrival(std::uint64_t now_ns, std::uint64_t delay_ns) noexcept {
  fifo_ns = std::max(fifo_ns, now_ns + delay_ns);
  return fifo_ns;
}

void End::fail(Slot& failed, Failure failure) {
  for (std::uint64_t sequence = failed.sequence + 1; sequence < next; ++sequence) {
    Slot& later = slot(sequence);
    if (later.same_room(failed) && later.inherited_code == 0) later.inherited_code = failure.code;
  }
  if (!failed.failure) failed.failure = std::move(failure);
}

}  // namespace loopback
