/// A plan from entries and index lists: the checks, the runs of every space, the streams.
///
///   lists of a space     source  3  4  7  8  9      target  10 11 12 20 21
///   runs                 [3 → 10, 2] [7 → 12, 1] [8 → 20, 2]               step by one on both sides
///
/// The lists are read a few times in a row whatever the number of entries; what an entry needs of them are the greatest indices.
#include <algorithm>
#include <string>
#include <utility>

#include "overlap.h"
#include "plan_state.h"
#include "range_text.h"

namespace kvferry::plan_detail {
namespace {

/// What the checks need to know about the lists of a space.
struct SpaceFacts {
  std::uint64_t greatest_source = 0, greatest_target = 0;
  std::span<const std::uint64_t> sorted_targets;
  std::vector<std::uint64_t> sorted_storage;
};

using Facts = std::array<SpaceFacts, kIndexSpacesCount>;

std::string name(IndexSpace space) { return std::string(to_string(space)); }
std::size_t number(IndexSpace space) { return static_cast<std::size_t>(space); }

Result<void> check_lengths(const IndexListsBySpace& lists) {
  for (std::size_t space = 0; space < kIndexSpacesCount; ++space) {
    const std::size_t sources = lists[space].source.size(), targets = lists[space].target.size();
    if (sources == targets) continue;
    return fail(ErrorCode::mismatch, "plan: the " + name(static_cast<IndexSpace>(space)) + " lists differ in length: " + std::to_string(sources) +
                                         " source indices and " + std::to_string(targets) + " target indices");
  }
  return {};
}

/// One side of an entry, so that both sides go through the same checks.
struct EntrySide {
  const char* name;
  std::uint64_t pitch, index_count;
  const RegionSpan& place;
};

Result<void> check_side(const PlanEntry& entry, const EntrySide& side) {
  const auto what = [&] { return "plan " + entry.name + ": " + side.name; };
  if (side.pitch < entry.item_length_bytes) {
    return fail(ErrorCode::invalid_argument, what() + " pitch of " + std::to_string(side.pitch) + " bytes is shorter than the item of " +
                                                 std::to_string(entry.item_length_bytes) + " bytes");
  }
  if (side.place.region == 0) return fail(ErrorCode::invalid_argument, what() + " region is 0, which is no region");
  std::uint64_t span = 0, end = 0;
  const bool exact = side.index_count == 0 || (checked_multiply(side.index_count - 1, side.pitch, span) && checked_add(span, entry.item_length_bytes, span));
  if (!exact || !checked_add(side.place.offset, span, end)) {
    return fail(ErrorCode::out_of_range, what() + " span of " + std::to_string(side.index_count) + " indices of pitch " + std::to_string(side.pitch) +
                                             " at offset " + std::to_string(side.place.offset) + " passes 2^64 bytes");
  }
  if (end > side.place.region_length) {
    return fail(ErrorCode::out_of_range, what() + " span of " + std::to_string(span) + " bytes at offset " + std::to_string(side.place.offset) +
                                             " ends outside region " + std::to_string(side.place.region) + " of " +
                                             std::to_string(side.place.region_length) + " bytes");
  }
  return {};
}

Result<void> check_entry(const PlanEntry& entry) {
  if (number(entry.space) >= kIndexSpacesCount) {
    return fail(ErrorCode::invalid_argument, "plan " + entry.name + ": unknown index space " + std::to_string(number(entry.space)));
  }
  if (entry.item_length_bytes == 0) return fail(ErrorCode::invalid_argument, "plan " + entry.name + ": the item length is 0");
  if (auto source = check_side(entry, {"source", entry.source_pitch_bytes, entry.source_index_count, entry.source}); !source) return source;
  return check_side(entry, {"target", entry.target_pitch_bytes, entry.target_index_count, entry.target});
}

/// Names the first index that is out of bounds; `greatest` tells whether there is one.
Result<void> check_bounds(const PlanEntry& entry, const EntrySide& side, std::uint64_t greatest, const std::vector<std::uint64_t>& list) {
  if (greatest < side.index_count) return {};
  const auto bad = std::find_if(list.begin(), list.end(), [&](std::uint64_t index) { return index >= side.index_count; });
  return fail(ErrorCode::out_of_range, "plan " + entry.name + ": " + side.name + " index " + std::to_string(*bad) + " at position " +
                                           std::to_string(bad - list.begin()) + " of the " + name(entry.space) + " list is outside its " +
                                           std::to_string(side.index_count) + " indices");
}

Result<void> check_indices(const PlanEntry& entry, const SpaceFacts& facts, const IndexLists& lists) {
  if (lists.source.empty()) return {};
  if (auto source = check_bounds(entry, {"source", 0, entry.source_index_count, entry.source}, facts.greatest_source, lists.source); !source) return source;
  return check_bounds(entry, {"target", 0, entry.target_index_count, entry.target}, facts.greatest_target, lists.target);
}

std::vector<Run> join_runs(const IndexLists& lists) {
  const std::vector<std::uint64_t>& source = lists.source;
  const std::vector<std::uint64_t>& target = lists.target;
  const auto continues = [&](std::size_t i) { return source[i] - source[i - 1] == 1 && target[i] - target[i - 1] == 1; };
  std::size_t count = source.empty() ? 0 : 1;
  for (std::size_t i = 1; i < source.size(); ++i) count += continues(i) ? 0 : 1;
  std::vector<Run> runs;
  runs.reserve(count);
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (i > 0 && continues(i)) {
      ++runs.back().count;
    } else {
      runs.push_back({source[i], target[i], 1});
    }
  }
  return runs;
}

EntryStream make_stream(const PlanEntry& entry, const std::vector<Run>& runs) {
  EntryStream stream;
  stream.runs = runs.data();
  stream.runs_end = runs.data() + runs.size();
  stream.source_region = entry.source.region;
  stream.target_region = entry.target.region;
  stream.source_offset = entry.source.offset;
  stream.target_offset = entry.target.offset;
  stream.source_pitch = entry.source_pitch_bytes;
  stream.target_pitch = entry.target_pitch_bytes;
  stream.item_length = entry.item_length_bytes;
  stream.packed = entry.source_pitch_bytes == entry.item_length_bytes && entry.target_pitch_bytes == entry.item_length_bytes;
  return stream;
}

/// Bytes of one entry fit 64 bits, because its target indices are distinct and inside a region; the sum over entries may not.
Result<void> add_counts(PlanCounts& counts, const PlanEntry& entry, std::uint64_t indices) {
  counts.entries += 1;
  counts.writes_before_merge += indices;
  if (!checked_add(counts.bytes, indices * entry.item_length_bytes, counts.bytes)) {
    return fail(ErrorCode::out_of_range, "plan " + entry.name + ": the bytes of all entries together pass 2^64");
  }
  return {};
}

}  // namespace

Result<void> build_paged(PlanState& state, const IndexListsBySpace& lists) {
  if (auto lengths = check_lengths(lists); !lengths) return lengths;
  Facts facts;
  for (std::size_t space = 0; space < kIndexSpacesCount; ++space) {
    if (lists[space].source.empty()) continue;
    facts[space].greatest_source = *std::max_element(lists[space].source.begin(), lists[space].source.end());
    facts[space].greatest_target = *std::max_element(lists[space].target.begin(), lists[space].target.end());
  }
  for (const PlanEntry& entry : state.entries) {
    if (auto checked = check_entry(entry); !checked) return checked;
    if (auto checked = check_indices(entry, facts[number(entry.space)], lists[number(entry.space)]); !checked) return checked;
  }
  for (std::size_t space = 0; space < kIndexSpacesCount; ++space) {
    const std::string what = "plan: target list of the " + name(static_cast<IndexSpace>(space)) + " space";
    auto sorted = sorted_unique(lists[space].target, what, facts[space].sorted_storage);
    if (!sorted) return fail(std::move(sorted.error()));
    facts[space].sorted_targets = *sorted;
    state.runs[space] = join_runs(lists[space]);
    state.counts.runs += state.runs[space].size();
  }

  std::vector<EntryTargets> targets;
  targets.reserve(state.entries.size());
  state.streams.reserve(state.entries.size());
  for (const PlanEntry& entry : state.entries) {
    const std::size_t space = number(entry.space);
    if (state.runs[space].empty()) continue;
    targets.push_back({&entry, facts[space].sorted_targets});
    state.streams.push_back(make_stream(entry, state.runs[space]));
    if (auto added = add_counts(state.counts, entry, lists[space].source.size()); !added) return added;
  }
  return check_entries_disjoint(targets);
}

}  // namespace kvferry::plan_detail
