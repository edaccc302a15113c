// Registered memory of this process, and what a neighbour exported of its own.
//
// A region id is a serial above a slot index, so that the target's guard finds a region with one comparison and no hash, and an id is never used twice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "blob.h"
#include "kvferry/backend_abi.h"
#include "kvferry/result.h"
#include "mapping.h"

namespace kvferry::ucx {

constexpr unsigned kRegionSlotBits = 20;

inline std::uint32_t slot_of(kvferry_region region) noexcept { return static_cast<std::uint32_t>(region & ((1u << kRegionSlotBits) - 1)); }

struct Region {
  kvferry_region id = 0;  ///< 0: the slot is free
  std::uint8_t* address = nullptr;
  std::uint64_t length = 0;
  std::uint32_t access = 0;
  std::uint32_t purpose = 0;
  bool draining = false;
  bool refuses_everybody = false;
  std::vector<kvferry_peer> refused_peers;
  SharedMemory shared;  ///< from allocate

  bool allocated() const noexcept { return shared.descriptor.valid(); }
  bool refuses(kvferry_peer peer) const noexcept {
    return draining || refuses_everybody || std::find(refused_peers.begin(), refused_peers.end(), peer) != refused_peers.end();
  }
};

class RegionTable {
 public:
  RegionTable(std::uint64_t regions_max, std::uint64_t first_serial) : regions_max_(regions_max), serial_(first_serial) {}

  Result<Region*> add(const kvferry_region_desc& desc);
  void remove(Region& region);
  Region* find(kvferry_region region) noexcept {
    const std::uint32_t slot = slot_of(region);
    return slot < regions_.size() && regions_[slot].id == region && region != 0 ? &regions_[slot] : nullptr;
  }
  const Region* find(kvferry_region region) const noexcept { return const_cast<RegionTable*>(this)->find(region); }
  std::uint64_t size() const noexcept { return used_; }

 private:
  std::uint64_t regions_max_;
  std::uint64_t serial_;
  std::uint64_t used_ = 0;
  std::vector<Region> regions_;
  std::vector<std::uint32_t> free_slots_;
};

/// Error unless every page of the range is mapped with the rights it needs. Reads /proc/self/maps; without one there is nothing to check.
Result<void> check_mapped(std::uint64_t address, std::uint64_t length, bool writable);

/// "4096 bytes at 0x7f0000000000".
std::string range_text(std::uint64_t address, std::uint64_t length);

struct RemoteRegion {
  kvferry_region id = 0;
  std::uint64_t length = 0;
  std::uint32_t access = 0;
  SharedFile file;
  bool map_asked = false;
  std::uint64_t revoked_epoch = 0;  ///< a grant that is older counts no more
  std::uint64_t populated = 0;  ///< bytes of the mapping whose page table entries are there
  Mapping mapping;              ///< while granted: the neighbour's memory
};

class RemoteRegionTable {
 public:
  RemoteRegion* find(kvferry_region region) noexcept {
    const std::uint32_t slot = slot_of(region);
    return slot < regions_.size() && regions_[slot].id == region && region != 0 ? &regions_[slot] : nullptr;
  }
  const RemoteRegion* find(kvferry_region region) const noexcept { return const_cast<RemoteRegionTable*>(this)->find(region); }
  /// Puts in a region; one with the same id or slot is replaced (the slot's former region is gone at its owner).
  void put(const RegionRecord& record);
  void erase(kvferry_region region);
  std::vector<RemoteRegion>& all() noexcept { return regions_; }
  const std::vector<RemoteRegion>& all() const noexcept { return regions_; }

 private:
  std::vector<RemoteRegion> regions_;
};

}  // namespace kvferry::ucx
