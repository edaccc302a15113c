#include "mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string_view>

namespace kvferry::ucx {
namespace {

constexpr unsigned kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Unexpected system_failure(ErrorCode code, const std::string& what, const char* call, int error_number) {
  Error error(code, what + ": " + call + ": " + errno_text(error_number));
  error.sys_errno = error_number;
  return fail(std::move(error));
}

/// The number behind `key` in a text of lines, or the whole text as a number with an empty key.
std::optional<std::uint64_t> number_in(const std::string& text, std::string_view key) {
  std::size_t at = text.find(key);
  if (at == std::string::npos) return std::nullopt;
  at = text.find_first_not_of(" \t", at + key.size());
  std::uint64_t number = 0;
  if (at == std::string::npos || std::from_chars(text.data() + at, text.data() + text.size(), number).ec != std::errc()) return std::nullopt;
  return number;
}

/// What can be committed without waking the OOM killer: the host's free memory, and what the control group leaves.
std::uint64_t memory_available() {
  std::uint64_t available = ~std::uint64_t{0};
  if (const auto kib = number_in(read_small_file("/proc/meminfo"), "MemAvailable:")) available = *kib * 1024;
  const std::string groups = read_small_file("/proc/self/cgroup");
  std::string path;
  if (const std::size_t at = groups.find("0::"); at != std::string::npos) path = groups.substr(at + 3, groups.find('\n', at) - at - 3);
  for (const std::string& folder : {std::string("/sys/fs/cgroup"), "/sys/fs/cgroup" + path}) {
    const auto most = number_in(read_small_file(folder + "/memory.max"), ""), now = number_in(read_small_file(folder + "/memory.current"), "");
    if (most && now) available = std::min(available, *most > *now ? *most - *now : 0);
  }
  return available;
}

}  // namespace

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    address_ = std::exchange(other.address_, nullptr);
    length_ = std::exchange(other.length_, 0);
  }
  return *this;
}

void Mapping::reset() noexcept {
  if (address_ != nullptr) (void)munmap(std::exchange(address_, nullptr), length_);  // a mapping of ours: it cannot be refused
}

bool Mapping::populate(std::uint64_t offset, std::uint64_t length) const noexcept {
#ifdef MADV_POPULATE_WRITE
  return madvise(address_ + offset, length, MADV_POPULATE_WRITE) == 0;
#else
  (void)offset, (void)length;  // an old C library; the copies will fault
  return false;
#endif
}

Result<Mapping> Mapping::map(int fd, std::uint64_t length, const std::string& what) {
  void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return system_failure(ErrorCode::no_memory, what, "mmap", errno);
  Mapping mapping;
  mapping.address_ = static_cast<std::uint8_t*>(memory);
  mapping.length_ = length;
  return mapping;
}

Result<SharedMemory> SharedMemory::create(const char* name, std::uint64_t length_bytes) {
  const std::string what = "share " + std::to_string(length_bytes) + " bytes of memory";
  SharedMemory memory;
  memory.descriptor = FileDescriptor(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = memory.descriptor.get();
  if (fd < 0) return system_failure(ErrorCode::limit, what, "memfd_create", errno);
  if (const std::uint64_t available = memory_available(); length_bytes > available) {
    return fail(ErrorCode::no_memory, what + ": " + std::to_string(available) + " bytes are available on this host or in its control group");
  }
  // Committed now: a host or a control group that is out of memory shows here, not as a fault in the middle of a transfer.
  int error_number = 0;
  do {
    error_number = posix_fallocate(fd, 0, static_cast<off_t>(length_bytes));
  } while (error_number == EINTR);
  if (error_number != 0) return system_failure(ErrorCode::no_memory, what, "posix_fallocate", error_number);
  if (fcntl(fd, F_ADD_SEALS, kSeals) != 0) return system_failure(ErrorCode::unavailable, what, "fcntl(F_ADD_SEALS)", errno);
  auto mapping = Mapping::map(fd, length_bytes, what);
  if (!mapping) return fail(std::move(mapping.error()));
  memory.mapping = std::move(*mapping);
  struct stat status {};
  if (fstat(fd, &status) != 0) return system_failure(ErrorCode::io, what, "fstat", errno);
  memory.file.device = status.st_dev;
  memory.file.inode = status.st_ino;
  memory.file.length_bytes = length_bytes;
  memory.file.descriptor = static_cast<std::uint32_t>(fd);
  memory.file.present = 1;
  return memory;
}

Result<Mapping> attach(std::uint32_t process, const SharedFile& file) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file.descriptor);
  const std::string what = "map " + std::to_string(file.length_bytes) + " bytes of " + path;
  const FileDescriptor descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!descriptor.valid()) return system_failure(ErrorCode::unavailable, what, "open", errno);
  struct stat status {};
  if (fstat(descriptor.get(), &status) != 0) return system_failure(ErrorCode::io, what, "fstat", errno);
  if (status.st_dev != file.device || status.st_ino != file.inode || static_cast<std::uint64_t>(status.st_size) != file.length_bytes) {
    return fail(ErrorCode::stale, what + ": it is another file by now");
  }
  // Without the seals the owner could cut the file while we write, which would kill this process.
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (static_cast<unsigned>(seals) & (F_SEAL_SHRINK | F_SEAL_SEAL)) != (F_SEAL_SHRINK | F_SEAL_SEAL)) {
    return fail(ErrorCode::refused, what + ": its size is not sealed");
  }
  return Mapping::map(descriptor.get(), file.length_bytes, what);
}

}  // namespace kvferry::ucx
