#include "process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>

#include "file_descriptor.h"

namespace kvferry::plugins {
namespace {

constexpr std::size_t kProcFileMax = 16 * 1024;

std::size_t page_bytes() noexcept { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::uint8_t* make_page() {
  void* page = mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (madvise(page, page_bytes(), MADV_WIPEONFORK) != 0) {
    (void)munmap(page, page_bytes());  // a mapping of ours: it cannot be refused
    return nullptr;
  }
  *static_cast<std::uint8_t*>(page) = 1;
  return static_cast<std::uint8_t*>(page);
}

}  // namespace

kvferry_peer next_peer_id() {
  static std::atomic<kvferry_peer> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t random_number() {
  std::random_device device;
  std::uint64_t number = 0;
  while (number == 0) number = (std::uint64_t{device()} << 32) | device();
  return number;
}

ForkMark::ForkMark() : process_(static_cast<std::uint32_t>(getpid())), page_(make_page()) {}

ForkMark::~ForkMark() {
  if (page_ != nullptr) (void)munmap(page_, page_bytes());  // a mapping of ours: it cannot be refused
}

bool ForkMark::forked() const noexcept {
  return page_ != nullptr ? *static_cast<volatile std::uint8_t*>(page_) == 0 : process_ != static_cast<std::uint32_t>(getpid());
}

std::string read_small_file(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(kProcFileMax, '\0');
  std::size_t used = 0;
  while (file.valid() && used < text.size()) {
    const ssize_t got = read(file.get(), text.data() + used, text.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    used += static_cast<std::size_t>(got);
  }
  text.resize(used);
  return text;
}

std::string errno_text(int error_number) {
  char buffer[128];
  return std::string(strerror_r(error_number, buffer, sizeof(buffer))) + " (errno " + std::to_string(error_number) + ")";
}

std::string json_string(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace kvferry::plugins
