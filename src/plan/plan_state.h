/// What a plan keeps: the runs of every index space, the entries that have work, the stretches of a raw list.
///
///   space "pages"       runs   [3,9,x2] [7,1,x1] [0,11,x4] ...      made once, shared by all entries of the space
///                                 ▲
///   streams             K layer 0 │ K layer 1 │ ... │ V layer 0 ...   base offsets, pitches, item length: what turns a run into addresses
///
/// Everything is allocated when the plan is made and never changes after it, so cursors in many threads can read it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kvferry/plan.h"

namespace kvferry::plan_detail {

/// Indices that step by one on both sides.
struct Run {
  std::uint64_t source = 0, target = 0, count = 0;
};

/// A range that is contiguous on both sides, each side in one region.
struct Stretch {
  kvferry_region source_region = 0;
  std::uint64_t source_offset = 0;
  kvferry_region target_region = 0;
  std::uint64_t target_offset = 0;
  std::uint64_t length = 0;
  std::uint32_t op = KVFERRY_OP_WRITE;
};

/// An entry with at least one index, as the cursor reads it.
struct EntryStream {
  const Run* runs = nullptr;  ///< of the entry's space
  const Run* runs_end = nullptr;
  kvferry_region source_region = 0, target_region = 0;
  std::uint64_t source_offset = 0, target_offset = 0;  ///< of index 0
  std::uint64_t source_pitch = 0, target_pitch = 0;
  std::uint64_t item_length = 0;
  bool packed = false;  ///< pages touch on both sides: a whole run is one stretch; else every index is one
};

struct PlanState {
  PlanLimits limits;
  PlanCounts counts;
  std::vector<PlanEntry> entries;
  std::array<std::vector<Run>, kIndexSpacesCount> runs;
  std::vector<EntryStream> streams;
  std::vector<Stretch> stretches;  ///< of a raw list; a plan has either streams or stretches
};

Result<void> check_limits(const PlanLimits& limits);

/// Fills the state from its entries; all checks of Plan::make but those of the limits. Counts but for writes and pieces.
Result<void> build_paged(PlanState& state, const IndexListsBySpace& lists);

/// Fills the state from a raw list, likewise.
Result<void> build_raw(PlanState& state, std::span<const RawWrite> writes, const RegionMap& source, const RegionMap& target);

/// Sets counts.writes and counts.pieces to what a cursor gives.
void count_writes(PlanState& state);

}  // namespace kvferry::plan_detail
