/// Regions by address.
///
///   address ──►
///   ┌ 0 ──────────────────────────────────────────┐   sorted by address; of equal addresses the longest first, of equal ranges the oldest first
///   │     ┌ 1 ─────────────┐  ┌ 2 ──┐   ┌ 3 ──┐   │   outer: 1 → 0, 2 → 0, 3 → 0
///   └─────└────────────────┘──└─────┘───└─────┘───┘
///
/// `outer` of a region is the nearest region before it that ends no earlier. A search starts at the last region that begins at or before the range and
/// goes back. Where a region ends too early, all regions up to its `outer` end too early as well and are passed in one step. Where a region holds the
/// range, only one that begins less than its length before the end of the range can be smaller. So regions side by side cost one binary search, nested
/// ones one step for each level.
#include <algorithm>
#include <limits>
#include <new>

#include "kvferry/plan.h"
#include "range_text.h"

namespace kvferry {
namespace {

using plan_detail::hex;
using plan_detail::range_text;

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

/// The last byte, not the end: a region may end at the top of the address space.
std::uint64_t last_byte(std::uint64_t address, std::uint64_t length) { return address + (length - 1); }
std::uint64_t last_byte(const RegionMap::Region& region) { return last_byte(region.address, region.length); }

bool wraps(std::uint64_t address, std::uint64_t length) { return length > 0 && last_byte(address, length) < address; }

std::string name(const RegionMap::Region& region) { return "region " + std::to_string(region.id) + " of " + range_text(region.address, region.length); }

/// Bytes between the two; 0 where they touch or overlap.
std::uint64_t gap(const RegionMap::Region& region, std::uint64_t address, std::uint64_t length) {
  if (address > last_byte(region)) return address - last_byte(region) - 1;
  if (region.address > last_byte(address, length)) return region.address - last_byte(address, length) - 1;
  return 0;
}

std::uint64_t overlap(const RegionMap::Region& region, std::uint64_t address, std::uint64_t length) {
  const std::uint64_t first = std::max(region.address, address);
  const std::uint64_t last = std::min(last_byte(region), last_byte(address, length));
  return last >= first ? last - first + 1 : 0;
}

}  // namespace

Result<void> RegionMap::add(Region region) {
  if (region.id == 0) return fail(ErrorCode::invalid_argument, "add region of " + range_text(region.address, region.length) + ": region 0 is no region");
  if (region.length == 0) return fail(ErrorCode::invalid_argument, "add " + name(region) + ": the length is zero");
  if (wraps(region.address, region.length)) return fail(ErrorCode::out_of_range, "add " + name(region) + ": the range wraps past 2^64");
  for (const Region& present : regions_) {
    if (present.id == region.id) return fail(ErrorCode::exists, "add " + name(region) + ": already present as " + name(present));
  }
  const auto after = std::upper_bound(regions_.begin(), regions_.end(), region, [](const Region& a, const Region& b) {
    return a.address != b.address ? a.address < b.address : a.length > b.length;
  });
  const auto place = static_cast<std::size_t>(after - regions_.begin());
  try {
    outer_.push_back(kNone);
    regions_.insert(after, region);
  } catch (const std::bad_alloc&) {
    outer_.resize(regions_.size());
    return fail(ErrorCode::no_memory, "out of memory");
  }
  link_from(place);
  return {};
}

void RegionMap::remove(kvferry_region id) {
  const auto found = std::find_if(regions_.begin(), regions_.end(), [&](const Region& region) { return region.id == id; });
  if (found == regions_.end()) return;
  const auto place = static_cast<std::size_t>(found - regions_.begin());
  regions_.erase(found);
  link_from(place);
}

/// Links point back only, so those before the change stay.
void RegionMap::link_from(std::size_t place) {
  outer_.resize(regions_.size());
  for (std::size_t i = place; i < regions_.size(); ++i) {
    std::size_t outer = i == 0 ? kNone : i - 1;
    while (outer != kNone && last_byte(regions_[outer]) < last_byte(regions_[i])) outer = outer_[outer];
    outer_[i] = outer;
  }
}

const RegionMap::Region* RegionMap::lookup(std::uint64_t address, std::uint64_t length) const noexcept {
  if (length == 0 || wraps(address, length)) return nullptr;
  const std::uint64_t last = last_byte(address, length);
  const auto after =
      std::upper_bound(regions_.begin(), regions_.end(), address, [](std::uint64_t value, const Region& region) { return value < region.address; });
  std::size_t candidate = after == regions_.begin() ? kNone : static_cast<std::size_t>(after - regions_.begin()) - 1;
  const Region* best = nullptr;
  while (candidate != kNone) {
    const Region& region = regions_[candidate];
    if (best != nullptr && last - region.address >= best->length - 1) break;
    if (last_byte(region) >= last) {
      if (best == nullptr || region.length < best->length) best = &region;
      candidate = candidate == 0 ? kNone : candidate - 1;
    } else {
      candidate = outer_[candidate];
    }
  }
  return best;
}

bool RegionMap::stands_alone(const Region& region) const noexcept {
  const auto place = static_cast<std::size_t>(&region - regions_.data());
  if (place + 1 < regions_.size() && regions_[place + 1].address <= last_byte(region)) return false;
  std::size_t before = place == 0 ? kNone : place - 1;
  while (before != kNone && last_byte(regions_[before]) < region.address) before = outer_[before];
  return before == kNone;
}

Result<RegionSpan> RegionMap::find(std::uint64_t address, std::uint64_t length) const {
  if (const Region* region = lookup(address, length)) return RegionSpan{region->id, address - region->address, region->length};
  const std::string what = "find " + range_text(address, length);
  if (length == 0) return fail(ErrorCode::invalid_argument, what + ": the length is zero");
  if (wraps(address, length)) return fail(ErrorCode::out_of_range, what + ": the range wraps past 2^64");
  if (regions_.empty()) return fail(ErrorCode::out_of_range, what + ": no region is registered");
  const auto nearer = [&](const Region& a, const Region& b) {
    const std::uint64_t gap_a = gap(a, address, length), gap_b = gap(b, address, length);
    return gap_a != gap_b ? gap_a < gap_b : overlap(a, address, length) > overlap(b, address, length);
  };
  return fail(ErrorCode::out_of_range, what + ": not inside one region; nearest is " + name(*std::min_element(regions_.begin(), regions_.end(), nearer)));
}

}  // namespace kvferry
