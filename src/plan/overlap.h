/// No byte is written twice: the checks behind that promise.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvferry/plan.h"

namespace kvferry::plan_detail {

/// The indices in ascending order; `indices` itself where it is in order, else `storage`. An index that is there twice is an error that names it and two
/// of its positions.
Result<std::span<const std::uint64_t>> sorted_unique(std::span<const std::uint64_t> indices, std::string_view what, std::vector<std::uint64_t>& storage);

/// An entry with work and the target indices of its space, ascending.
struct EntryTargets {
  const PlanEntry* entry = nullptr;
  std::span<const std::uint64_t> indices;
};

/// No two entries write the same byte of one target region. The error names both entries and the bytes.
Result<void> check_entries_disjoint(std::span<const EntryTargets> entries);

/// No item of a raw list changes a byte that another item also uses, unless both write the same bytes there. The error names both items and ranges.
Result<void> check_raw_conflicts(std::span<const RawWrite> items);

}  // namespace kvferry::plan_detail
