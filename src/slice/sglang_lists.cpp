// sglang_lists.cpp: slices of flat pointer lists.
//
// Each entry of a list gets its tag (role, draft, layer) from its place (sglang_tags.h); from then on nothing is paired by place any more.
//
//   source, stage [2, 4)           [K2 K3]      [V2 V3]                   a stage takes several pieces of the target list,
//                                    │  │         │  │                    one of each section
//   target, 4 layers, 1 draft  [K0 K1 K2 K3][V0 V1 V2 V3][Kd][Vd]

#include "kvferry/sglang_lists.h"

#include <algorithm>
#include <unordered_map>

#include "concatenate.h"
#include "sglang_tags.h"

namespace kvferry::sglang {
namespace {

/// Error where the source's layers have no place in the target's list. A layout of draft layers only has no stage.
Result<void> check_ranges(const ListLayout& source, const ListLayout& target) {
  if (source.target_layers != 0 && (source.first_layer < target.first_layer || end_of(source) > end_of(target))) {
    return fail(ErrorCode::out_of_range,
                concatenate("source stage ", layers_text(source), " is not inside the target list's layers ", layers_text(target)));
  }
  if (source.draft_layers > target.draft_layers) {
    return fail(ErrorCode::mismatch, concatenate("source list has ", source.draft_layers, " draft layers, the target list ", target.draft_layers,
                                                 ": start both engines with the same speculative settings"));
  }
  return {};
}

std::uint64_t key_of(const Tag& tag) {
  return (static_cast<std::uint64_t>(tag.role) << 33) | (static_cast<std::uint64_t>(tag.draft) << 32) | tag.layer;
}

using Pointers = std::span<const std::uint64_t>;

struct PointerPair {
  Role role = Role::k;
  std::uint64_t source = 0, target = 0;
};

/// In source order. Both spans have the length of their tags.
Result<std::vector<PointerPair>> join(const Tags& source_tags, Pointers source, const Tags& target_tags, Pointers target) {
  std::unordered_map<std::uint64_t, std::size_t> place;
  place.reserve(target_tags.size());
  for (std::size_t position = 0; position < target_tags.size(); ++position) place.emplace(key_of(target_tags[position]), position);
  std::vector<PointerPair> pairs;
  pairs.reserve(source_tags.size());
  for (std::size_t position = 0; position < source_tags.size(); ++position) {
    const Tag& tag = source_tags[position];
    const auto found = place.find(key_of(tag));
    if (found == place.end()) {
      return fail(ErrorCode::mismatch, concatenate("source entry ", position, " (", tag.draft ? "draft " : "", to_string(tag.role), " layer ",
                                                   tag.layer, ") has no partner in the target list of ", entries_text(target.size())));
    }
    pairs.push_back({tag.role, source[position], target[found->second]});
  }
  return pairs;
}

ListSlice to_list_slice(const std::vector<PointerPair>& pairs) {
  ListSlice slice;
  for (const PointerPair& pair : pairs) {
    slice.source.push_back(pair.source);
    slice.target.push_back(pair.target);
  }
  return slice;
}

/// Layers of `source` whose window buffer the target has: its first `target_window_layers` layers do.
std::uint64_t shared_window_layers(const ListLayout& source, const ListLayout& target, std::uint64_t target_window_layers) {
  if (source.target_layers == 0) return std::min<std::uint64_t>(source.draft_layers, target_window_layers);
  const std::uint64_t window_end = std::uint64_t{target.first_layer} + target_window_layers;
  return window_end <= source.first_layer ? 0 : std::min(end_of(source), window_end) - source.first_layer;
}

}  // namespace

Result<StateType> parse_state_type(std::string_view word) {
  if (word == "kv") return StateType::kv;
  if (word == "swa") return StateType::swa;
  if (word == "swa_ring") return StateType::swa_ring;
  if (word == "c128_state") return StateType::c128_state;
  return fail(ErrorCode::invalid_argument,
              concatenate("unknown list type '", word, "' of a compressed-MLA pool; known are kv, swa, swa_ring and c128_state"));
}

Result<MhaSlice> slice_mha(std::uint32_t start_layer, std::span<const std::uint64_t> source, std::span<const std::uint64_t> target,
                           const std::optional<ListLayout>& source_layout, const ListLayout& target_layout) {
  if (auto checked = check_declared_length("target", target.size(), 2, target_layout); !checked) return fail(checked.error());
  ListLayout layout;
  if (source_layout) {
    layout = *source_layout;
    if (auto checked = check_declared_length("source", source.size(), 2, layout); !checked) return fail(checked.error());
    if (layout.target_layers != 0 && layout.first_layer != start_layer) {
      return fail(ErrorCode::mismatch, concatenate("source stage starts at layer ", start_layer, ", its list at layer ", layout.first_layer));
    }
  } else {
    if (source.size() % 2 != 0) {
      return fail(ErrorCode::invalid_argument,
                  concatenate("source list has ", source.size(), " entries, an odd number: K and V sections of equal length expected"));
    }
    if (source.size() > kListEntriesMax) {
      return fail(ErrorCode::limit, concatenate("source list has ", source.size(), " entries, at most ", kListEntriesMax));
    }
    layout = {.first_layer = start_layer, .target_layers = static_cast<std::uint32_t>(source.size() / 2), .draft_layers = 0};
  }
  if (source.empty() && !target.empty()) {
    return fail(ErrorCode::invalid_argument,
                concatenate("source list is empty, the target list has ", target.size(), " entries: nothing would be sent"));
  }
  if (auto checked = check_ranges(layout, target_layout); !checked) return fail(checked.error());
  const auto pairs = join(mha_tags(layout), source, mha_tags(target_layout), target);
  if (!pairs) return fail(pairs.error());
  MhaSlice slice;
  for (const PointerPair& pair : *pairs) {
    (pair.role == Role::k ? slice.source_k : slice.source_v).push_back(pair.source);
    (pair.role == Role::k ? slice.target_k : slice.target_v).push_back(pair.target);
  }
  slice.layers = static_cast<std::uint32_t>(slice.source_k.size());
  return slice;
}

Result<ListSlice> slice_mla(std::span<const std::uint64_t> source, std::span<const std::uint64_t> target, const ListLayout& source_layout,
                            const ListLayout& target_layout) {
  if (auto checked = check_declared_length("target", target.size(), 1, target_layout); !checked) return fail(checked.error());
  if (auto checked = check_declared_length("source", source.size(), 1, source_layout); !checked) return fail(checked.error());
  if (auto checked = check_ranges(source_layout, target_layout); !checked) return fail(checked.error());
  const auto pairs = join(mla_tags(source_layout), source, mla_tags(target_layout), target);
  if (!pairs) return fail(pairs.error());
  return to_list_slice(*pairs);
}

Result<ListSlice> slice_compressed_mla(std::span<const std::uint32_t> ratios, StateType type, std::span<const std::uint64_t> source,
                                       std::span<const std::uint64_t> target, const ListLayout& source_layout, const ListLayout& target_layout) {
  const CompressedList source_list{"source ", type, source_layout, ratios}, target_list{"target ", type, target_layout, ratios};
  if (auto checked = check_known_ratios(ratios, {}); !checked) return fail(checked.error());
  for (const CompressedList& list : {source_list, target_list}) {
    if (auto checked = check_compressed_layout(list); !checked) return fail(checked.error());
  }
  if (auto checked = check_ranges(source_layout, target_layout); !checked) return fail(checked.error());
  const auto target_window = window_layers_of(target_list, target.size());
  if (!target_window) return fail(target_window.error());
  const std::uint64_t source_window = shared_window_layers(source_layout, target_layout, *target_window);
  if (auto checked = check_compressed_length(source_list, source_window, source.size()); !checked) return fail(checked.error());
  const auto pairs = join(compressed_tags(source_list, source_window), source, compressed_tags(target_list, *target_window), target);
  if (!pairs) return fail(pairs.error());
  return to_list_slice(*pairs);
}

Result<ListSlice> slice_compressed_mla(std::uint32_t start, std::uint32_t end, std::span<const std::uint32_t> ratios, StateType type,
                                       std::span<const std::uint64_t> source, std::span<const std::uint64_t> target) {
  if (start >= end || end > ratios.size() || ratios.size() > kListEntriesMax) {
    return fail(ErrorCode::out_of_range, concatenate("source stage ", range_text(start, end), " is not a part of the ", ratios.size(),
                                                     " layers that have a compression ratio"));
  }
  const ListLayout stage{.first_layer = start, .target_layers = end - start, .draft_layers = 0};
  const ListLayout model{.first_layer = 0, .target_layers = static_cast<std::uint32_t>(ratios.size()), .draft_layers = 0};
  return slice_compressed_mla(ratios, type, source, target, stage, model);
}

Result<std::vector<std::pair<std::uint64_t, std::uint64_t>>> pair_entries(const EntryIds& source, const EntryIds& target,
                                                                          bool allow_positional_fallback) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pairs;
  if (source.entries == 0 && source.layer_ids.empty()) return pairs;
  const bool source_has_ids = !source.layer_ids.empty(), target_has_ids = !target.layer_ids.empty();
  if (source_has_ids && target_has_ids) {
    if (source.layer_ids.size() != source.entries || target.layer_ids.size() != target.entries) {
      return fail(ErrorCode::invalid_argument,
                  concatenate("layer ids do not fit the entries: source ", source.layer_ids.size(), " ids for ", entries_text(source.entries),
                              ", target ", target.layer_ids.size(), " ids for ", entries_text(target.entries)));
    }
    std::unordered_map<std::int64_t, std::vector<std::uint64_t>> unused;  // last element: first unused place
    for (std::uint64_t place = target.entries; place-- > 0;) unused[target.layer_ids[place]].push_back(place);
    for (std::uint64_t place = 0; place < source.entries; ++place) {
      const auto found = unused.find(source.layer_ids[place]);
      if (found == unused.end() || found->second.empty()) {
        return fail(ErrorCode::mismatch, concatenate("target has no unused entry for model layer ", source.layer_ids[place], " of source entry ",
                                                     place, ": source ", entries_text(source.entries), ", target ", entries_text(target.entries)));
      }
      pairs.emplace_back(place, found->second.back());
      found->second.pop_back();
    }
    return pairs;
  }
  if (source_has_ids != target_has_ids && !allow_positional_fallback) {
    return fail(ErrorCode::mismatch,
                concatenate("only the ", source_has_ids ? "source" : "target", " publishes layer ids: source ", source.layer_ids.size(), " ids for ",
                            entries_text(source.entries), ", target ", target.layer_ids.size(), " ids for ", entries_text(target.entries)));
  }
  if (source.entries > target.entries || (source.entries != target.entries && !allow_positional_fallback)) {
    return fail(ErrorCode::mismatch, concatenate("pairing by position without layer ids: source has ", entries_text(source.entries), ", target ",
                                                 entries_text(target.entries), "; publish layer ids on both sides"));
  }
  if (source.entries > kListEntriesMax) {
    return fail(ErrorCode::limit,
                concatenate("pairing by position: source has ", source.entries, " entries, at most ", kListEntriesMax, " expected"));
  }
  for (std::uint64_t place = 0; place < source.entries; ++place) pairs.emplace_back(place, place);
  return pairs;
}

Result<std::uint64_t> state_component_index(std::span<const std::string> source_types, std::span<const std::string> target_types,
                                            std::uint64_t source_index, bool require_metadata) {
  if (!source_types.empty() && source_index >= source_types.size()) {
    return fail(ErrorCode::out_of_range, concatenate("source state component ", source_index, " of ", source_types.size(), " declared types"));
  }
  if (target_types.empty()) {
    if (!require_metadata) return source_index;
    return fail(ErrorCode::mismatch,
                concatenate("target declares no state component types, the source ", source_types.size(), ": pairing needs them on both sides"));
  }
  if (source_types.empty()) {
    return fail(ErrorCode::mismatch,
                concatenate("source declares no state component types, the target ", target_types.size(), ": pairing needs them on both sides"));
  }
  const std::string& type = source_types[source_index];
  const auto occurrence = std::count(source_types.begin(), source_types.begin() + static_cast<std::ptrdiff_t>(source_index) + 1, type);
  std::ptrdiff_t seen = 0;
  for (std::uint64_t index = 0; index < target_types.size(); ++index) {
    if (target_types[index] == type && ++seen == occurrence) return index;
  }
  return fail(ErrorCode::mismatch, concatenate("target has no state component ", type, " occurrence ", occurrence, ", it has ", seen, " of ",
                                               target_types.size(), " components of that type"));
}

}  // namespace kvferry::sglang
