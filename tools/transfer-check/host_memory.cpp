#include "host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "report.h"

namespace kvferry::transfer_check {
namespace {

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream stream(path);
  std::uint64_t value = 0;
  if (stream >> value) return value;
  return std::nullopt;  // "max", or no such file: no limit from here.
}

std::uint64_t kernel_available() {
  std::ifstream stream("/proc/meminfo");
  std::string key, unit;
  std::uint64_t kib = 0;
  while (stream >> key >> kib) {
    std::getline(stream, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return UINT64_MAX;
}

/// Page cache of the control group, which counts as used and is given back when asked for.
std::uint64_t group_cache(const std::string& stat_file, std::string_view prefix) {
  std::ifstream stream(stat_file);
  std::string key;
  std::uint64_t bytes = 0, value = 0;
  while (stream >> key >> value) {
    if (key == std::string(prefix) + "inactive_file" || key == std::string(prefix) + "active_file") bytes += value;
  }
  return bytes;
}

/// What the control group leaves; version 2, then version 1.
std::uint64_t group_available() {
  struct Files {
    std::string folder, limit, usage;
    std::string_view prefix;
  };
  for (const auto& files : {Files{"/sys/fs/cgroup/", "memory.max", "memory.current", ""},
                            Files{"/sys/fs/cgroup/memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"}}) {
    const auto limit = number_in(files.folder + files.limit);
    auto usage = number_in(files.folder + files.usage);
    if (!limit || !usage) continue;
    const std::uint64_t cache = group_cache(files.folder + "memory.stat", files.prefix);
    const std::uint64_t used = *usage - std::min(*usage, cache);
    return *limit - std::min(*limit, used);
  }
  return UINT64_MAX;
}

}  // namespace

std::uint64_t available_memory_bytes() { return std::min(kernel_available(), group_available()); }

Outcome<void> check_memory(std::uint64_t wanted_bytes, std::string_view what) {
  const std::uint64_t available = available_memory_bytes();
  if (wanted_bytes <= available) return {};
  return because(Error(ErrorCode::no_memory, std::string(what) + " needs " + bytes_text(wanted_bytes) + " of memory, this host has " +
                                                 bytes_text(available) + " available"),
                 {}, "use fewer --tokens or --layers, or fewer ranks");
}

Outcome<Mapping> Mapping::make(std::uint64_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    Error error(ErrorCode::no_memory, "map " + std::to_string(bytes) + " bytes: mmap: " + std::strerror(errno));
    error.sys_errno = errno;
    return because(error);
  }
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(address);
  mapping.size_ = bytes;
  return mapping;
}

Mapping::~Mapping() {
  if (data_ != nullptr) (void)::munmap(data_, size_);  // Our own range: it cannot fail in a way that anybody could mend.
}

Mapping::Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace kvferry::transfer_check
