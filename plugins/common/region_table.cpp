#include "region_table.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <memory>

namespace kvferry::plugins {
namespace {

constexpr std::uint32_t kAccessBits = KVFERRY_ACCESS_REMOTE_WRITE | KVFERRY_ACCESS_REMOTE_READ;

}  // namespace

Result<void> check_region_desc(const kvferry_region_desc& desc, bool device_memory) {
  const std::string what = "register " + range_text(desc.address, desc.length);
  if (desc.address == 0) return fail(ErrorCode::invalid_argument, what + ": the address is null");
  if (desc.length == 0) return fail(ErrorCode::invalid_argument, what + ": the length is zero");
  std::uint64_t end = 0;
  if (!checked_add(desc.address, desc.length, end)) return fail(ErrorCode::invalid_argument, what + ": the range wraps around the end of the address space");
  if (desc.purpose > KVFERRY_PURPOSE_STAGING) return fail(ErrorCode::invalid_argument, what + ": purpose " + std::to_string(desc.purpose) + " is not known");
  if (desc.memory_kind == KVFERRY_MEMORY_DEVICE && !device_memory) {
    return fail(ErrorCode::unsupported, what + ": this backend moves host memory only");
  }
  if (desc.memory_kind != KVFERRY_MEMORY_HOST && desc.memory_kind != KVFERRY_MEMORY_DEVICE) {
    return fail(ErrorCode::invalid_argument, what + ": memory kind " + std::to_string(desc.memory_kind) + " is not known");
  }
  if ((desc.access & ~kAccessBits) != 0) return fail(ErrorCode::invalid_argument, what + ": access bits " + std::to_string(desc.access) + " are not known");
  return {};
}

std::string range_text(std::uint64_t address, std::uint64_t length) {
  char text[64];
  (void)std::snprintf(text, sizeof(text), "%" PRIu64 " bytes at 0x%" PRIx64, length, address);
  return text;
}

Result<void> check_mapped(std::uint64_t address, std::uint64_t length, bool writable) {
  struct Closer {
    void operator()(FILE* file) const noexcept { (void)std::fclose(file); }  // read only: nothing to lose
  };
  const std::unique_ptr<FILE, Closer> maps(std::fopen("/proc/self/maps", "re"));
  if (!maps) return {};
  const std::uint64_t end = address + length;
  std::uint64_t covered = address;  // everything below is fine
  char line[512];
  while (covered < end && std::fgets(line, sizeof(line), maps.get()) != nullptr) {
    std::uint64_t from = 0, to = 0;
    char rights[5] = {};
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &from, &to, rights) != 3 || to <= covered) continue;
    if (from > covered) break;
    if (rights[0] != 'r' || (writable && rights[1] != 'w')) {
      return fail(ErrorCode::invalid_argument, "register " + range_text(address, length) + ": " + range_text(covered, std::min(to, end) - covered) +
                                                   " may not be " + (rights[0] != 'r' ? "read" : "written"));
    }
    covered = to;
  }
  if (covered >= end) return {};
  return fail(ErrorCode::invalid_argument, "register " + range_text(address, length) + ": nothing is mapped at " + range_text(covered, 1).substr(11));
}

}  // namespace kvferry::plugins
