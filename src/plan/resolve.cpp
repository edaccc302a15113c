/// From pools and pairs to plan entries: where every entry lies inside its region, on both sides.
#include <string>

#include "kvferry/plan.h"
#include "range_text.h"

namespace kvferry {
namespace {

Result<RegionSpan> resolve_side(const Entry& entry, const char* side, const RegionMap& regions) {
  const auto span = span_bytes(entry);
  const auto what = [&] { return "resolve " + std::string(side) + " entry " + describe(entry); };
  if (!span) return fail(span.error().within(what()));
  const auto found = regions.find(entry.base_address, *span);
  if (!found) return fail(found.error().within(what()));
  return *found;
}

Result<PlanEntry> resolve_pair(const Entry& source, const Entry& target) {
  const auto differ = [&](const std::string& fact, const std::string& source_value, const std::string& target_value) {
    return fail(ErrorCode::mismatch, "resolve " + describe(source) + " to " + describe(target) + ": " + fact + " of the source is " + source_value +
                                         ", of the target " + target_value);
  };
  if (source.space != target.space) return differ("index space", std::string(to_string(source.space)), std::string(to_string(target.space)));
  if (source.item_length_bytes != target.item_length_bytes) {
    return differ("item length", std::to_string(source.item_length_bytes) + " bytes", std::to_string(target.item_length_bytes) + " bytes");
  }
  PlanEntry entry;
  entry.space = source.space;
  entry.item_length_bytes = source.item_length_bytes;
  entry.source_pitch_bytes = source.pitch_bytes;
  entry.target_pitch_bytes = target.pitch_bytes;
  entry.source_index_count = source.index_count;
  entry.target_index_count = target.index_count;
  entry.name = describe(source);
  return entry;
}

}  // namespace

Result<std::vector<PlanEntry>> resolve_entries(const Pool& source, const Pool& target, std::span<const EntryPair> pairs, const RegionMap& source_regions,
                                               const RegionMap& target_regions) {
  std::vector<PlanEntry> entries;
  entries.reserve(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const EntryPair& pair = pairs[i];
    if (pair.source >= source.entries.size() || pair.target >= target.entries.size()) {
      return fail(ErrorCode::out_of_range, "resolve pair " + std::to_string(i) + ": entries " + std::to_string(pair.source) + " and " +
                                               std::to_string(pair.target) + " of pools with " + std::to_string(source.entries.size()) + " and " +
                                               std::to_string(target.entries.size()) + " entries");
    }
    const Entry& from = source.entries[pair.source];
    const Entry& to = target.entries[pair.target];
    auto entry = resolve_pair(from, to);
    if (!entry) return fail(std::move(entry.error()));
    entry->source_entry = pair.source;
    entry->target_entry = pair.target;
    auto source_place = resolve_side(from, "source", source_regions);
    if (!source_place) return fail(std::move(source_place.error()));
    auto target_place = resolve_side(to, "target", target_regions);
    if (!target_place) return fail(std::move(target_place.error()));
    entry->source = *source_place;
    entry->target = *target_place;
    entries.push_back(std::move(*entry));
  }
  return entries;
}

}  // namespace kvferry
