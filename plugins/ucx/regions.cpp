#include "regions.h"

#include <cinttypes>
#include <cstdio>
#include <memory>

namespace kvferry::ucx {
namespace {

constexpr std::uint32_t kAccessBits = KVFERRY_ACCESS_REMOTE_WRITE | KVFERRY_ACCESS_REMOTE_READ;

Result<void> check_desc(const kvferry_region_desc& desc) {
  const std::string what = "register " + range_text(desc.address, desc.length);
  if (desc.address == 0) return fail(ErrorCode::invalid_argument, what + ": the address is null");
  if (desc.length == 0) return fail(ErrorCode::invalid_argument, what + ": the length is zero");
  std::uint64_t end = 0;
  if (!checked_add(desc.address, desc.length, end)) return fail(ErrorCode::invalid_argument, what + ": the range wraps around the end of the address space");
  if (desc.purpose > KVFERRY_PURPOSE_STAGING) return fail(ErrorCode::invalid_argument, what + ": purpose " + std::to_string(desc.purpose) + " is not known");
  if (desc.memory_kind == KVFERRY_MEMORY_DEVICE) {
    return fail(ErrorCode::unsupported, what + ": device memory needs a UCX built with it, the lanes of this backend move host memory");
  }
  if (desc.memory_kind != KVFERRY_MEMORY_HOST) {
    return fail(ErrorCode::invalid_argument, what + ": memory kind " + std::to_string(desc.memory_kind) + " is not known");
  }
  if ((desc.access & ~kAccessBits) != 0) return fail(ErrorCode::invalid_argument, what + ": access bits " + std::to_string(desc.access) + " are not known");
  return {};
}

}  // namespace

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

Result<Region*> RegionTable::add(const kvferry_region_desc& desc) {
  if (auto checked = check_desc(desc); !checked) return fail(std::move(checked.error()));
  if (used_ >= regions_max_) {
    return fail(ErrorCode::limit, "register " + range_text(desc.address, desc.length) + ": " + std::to_string(used_) + " regions, regions_max is " +
                                      std::to_string(regions_max_));
  }
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(regions_.size()));
    regions_.emplace_back();
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  Region& region = regions_[slot];
  region.id = (++serial_ << kRegionSlotBits) | slot;
  region.address = reinterpret_cast<std::uint8_t*>(desc.address);
  region.length = desc.length;
  region.access = desc.access;
  region.purpose = desc.purpose;
  ++used_;
  return &region;
}

void RegionTable::remove(Region& region) {
  free_slots_.push_back(slot_of(region.id));
  region = Region();
  --used_;
}

void RemoteRegionTable::put(const RegionRecord& record) {
  const std::uint32_t slot = slot_of(record.id);
  if (slot >= regions_.size()) regions_.resize(slot + 1);
  if (regions_[slot].id == record.id) {
    RemoteRegion& known = regions_[slot];
    known.length = record.length_bytes;
    known.access = record.access;
    return;
  }
  RemoteRegion region;
  region.id = record.id;
  region.length = record.length_bytes;
  region.access = record.access;
  region.file = record.file;
  regions_[slot] = std::move(region);
}

void RemoteRegionTable::erase(kvferry_region region) {
  if (RemoteRegion* known = find(region); known != nullptr) *known = RemoteRegion();
}

}  // namespace kvferry::ucx
