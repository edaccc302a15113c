// Registered memory of this process, and what a neighbour exported of its own, by id.
//
// A region id is a serial above a slot index: it is found with one comparison and no hash, and never used twice.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvferry/backend_abi.h"
#include "kvferry/result.h"

namespace kvferry::plugins {

constexpr unsigned kRegionSlotBits = 20;

inline std::uint32_t slot_of(kvferry_region region) noexcept { return static_cast<std::uint32_t>(region & ((1u << kRegionSlotBits) - 1)); }

struct LocalRegion {
  kvferry_region id = 0;  ///< 0: the slot is free
  std::uint8_t* address = nullptr;
  std::uint64_t length = 0;
  std::uint32_t access = 0;
  std::uint32_t purpose = 0;
  bool draining = false;
};

struct RemoteRegionBase {
  kvferry_region id = 0;
  std::uint64_t length = 0;
  std::uint32_t access = 0;
};

/// What the initiator looks its own regions up in.
class LocalRegions {
 public:
  virtual const LocalRegion* find_local(kvferry_region region) const noexcept = 0;

 protected:
  ~LocalRegions() = default;
};

class RemoteRegions {
 public:
  virtual const RemoteRegionBase* find_remote(kvferry_region region) const noexcept = 0;

 protected:
  ~RemoteRegions() = default;
};

/// What can be said of a description without touching memory or a device. `device_memory`: the backend can register it.
Result<void> check_region_desc(const kvferry_region_desc& desc, bool device_memory);

/// Error unless every page of the range is mapped with the rights it needs. Reads /proc/self/maps; without one there is nothing to check.
Result<void> check_mapped(std::uint64_t address, std::uint64_t length, bool writable);

/// "4096 bytes at 0x7f0000000000".
std::string range_text(std::uint64_t address, std::uint64_t length);

/// R: a LocalRegion with what the backend adds.
template <class R>
class RegionTable final : public LocalRegions {
 public:
  RegionTable(std::uint64_t regions_max, std::uint64_t first_serial) : regions_max_(regions_max), serial_(first_serial) {}

  /// The description must have been checked.
  Result<R*> add(const kvferry_region_desc& desc) {
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
    R& region = regions_[slot];
    region.id = (++serial_ << kRegionSlotBits) | slot;
    region.address = reinterpret_cast<std::uint8_t*>(desc.address);
    region.length = desc.length;
    region.access = desc.access;
    region.purpose = desc.purpose;
    ++used_;
    return &region;
  }
  void remove(R& region) {
    free_slots_.push_back(slot_of(region.id));
    region = R();
    --used_;
  }
  R* find(kvferry_region region) noexcept {
    const std::uint32_t slot = slot_of(region);
    return slot < regions_.size() && regions_[slot].id == region && region != 0 ? &regions_[slot] : nullptr;
  }
  const R* find(kvferry_region region) const noexcept { return const_cast<RegionTable*>(this)->find(region); }
  const LocalRegion* find_local(kvferry_region region) const noexcept override { return find(region); }
  std::uint64_t size() const noexcept { return used_; }
  /// Free slots have id 0.
  std::vector<R>& all() noexcept { return regions_; }

 private:
  std::uint64_t regions_max_;
  std::uint64_t serial_;
  std::uint64_t used_ = 0;
  std::vector<R> regions_;
  std::vector<std::uint32_t> free_slots_;
};

/// R: a RemoteRegionBase with what the backend adds.
template <class R>
class RemoteRegionTable final : public RemoteRegions {
 public:
  R* find(kvferry_region region) noexcept {
    const std::uint32_t slot = slot_of(region);
    return slot < regions_.size() && regions_[slot].id == region && region != 0 ? &regions_[slot] : nullptr;
  }
  const R* find(kvferry_region region) const noexcept { return const_cast<RemoteRegionTable*>(this)->find(region); }
  const RemoteRegionBase* find_remote(kvferry_region region) const noexcept override { return find(region); }
  /// The place for a region. What was there and has another id is gone at its owner: it is forgotten.
  R& place(kvferry_region region) {
    const std::uint32_t slot = slot_of(region);
    if (slot >= regions_.size()) regions_.resize(slot + 1);
    if (regions_[slot].id != region) {
      regions_[slot] = R();
      regions_[slot].id = region;
    }
    return regions_[slot];
  }
  void erase(kvferry_region region) {
    if (R* known = find(region); known != nullptr) *known = R();
  }
  std::vector<R>& all() noexcept { return regions_; }
  const std::vector<R>& all() const noexcept { return regions_; }

 private:
  std::vector<R> regions_;
};

}  // namespace kvferry::plugins
