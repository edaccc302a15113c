#include "sglang_tags.h"

#include <limits>

#include "concatenate.h"

namespace kvferry::sglang {
namespace {

std::uint64_t first_of(const ListLayout& layout) { return layout.first_layer; }
std::uint64_t layers_of(const ListLayout& layout) { return std::uint64_t{layout.target_layers} + layout.draft_layers; }

std::string declared_text(const ListLayout& layout) {
  return concatenate(layout.target_layers, " target and ", layout.draft_layers, " draft layers");
}

void append_layers(Tags& tags, Role role, bool draft, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t layer = first; layer < first + count; ++layer) tags.push_back({role, draft, static_cast<std::uint32_t>(layer)});
}

std::string_view list_name(StateType type) {
  switch (type) {
    case StateType::kv: return "kv list";
    case StateType::swa: return "swa state list";
    case StateType::swa_ring: return "swa_ring list";
    case StateType::c128_state: return "c128_state list";
  }
  return "list";
}

Stage stage_of(const CompressedList& list) { return {list.layout.first_layer, list.layout.first_layer + list.layout.target_layers}; }
RatioCounts counts_of(const CompressedList& list) { return count_ratios(list.ratios, stage_of(list)); }
/// The model's last slot (a draft layer's place in the ratio list) may have no window buffer.
bool ends_the_model(const CompressedList& list) { return list.layout.target_layers != 0 && end_of(list.layout) == list.ratios.size(); }

/// How many of the list's layers may have a window buffer or ring, in ascending order.
std::vector<std::uint64_t> possible_window_layers(const CompressedList& list) {
  const std::uint64_t all = layers_of(list.layout);
  std::vector<std::uint64_t> possible;
  const auto add = [&](std::uint64_t layers) {
    if (possible.empty() || possible.back() != layers) possible.push_back(layers);
  };
  if (list.type == StateType::swa && list.layout.draft_layers == 0) add(0);
  if (ends_the_model(list)) add(all - 1);
  add(all);
  return possible;
}

/// Entries of the list with `window_layers` window buffers or rings.
std::uint64_t entries_of(const CompressedList& list, std::uint64_t window_layers) {
  switch (list.type) {
    case StateType::kv: return counts_of(list).kv_entries();
    case StateType::swa: return window_layers + counts_of(list).state_entries();
    case StateType::swa_ring: return window_layers;
    case StateType::c128_state: return counts_of(list).c128;
  }
  return 0;
}

/// What a wrong length is the right length of, if anything: the mistake is often a swapped or another engine's list.
std::string hint(const CompressedList& list, std::uint64_t found) {
  const RatioCounts counts = counts_of(list);
  const std::uint64_t layers = list.layout.target_layers;
  if (found == 0) return {};
  if (list.type == StateType::kv && found == 3 * counts.c4 + 2 * counts.c128) {
    return concatenate("; ", found,
                       " is the length of the two-pool fp8 variant (3*c4 + 2*c128, SGLANG_DSV4_UNIFIED_KV_FP8), which this version cannot move");
  }
  if (list.type == StateType::swa_ring && found == 2 * layers) {
    return concatenate(
        "; ", found, " is the length of the two-pool fp8 variant (two rings per layer, SGLANG_DSV4_UNIFIED_KV_FP8), which this version cannot move");
  }
  if (list.type == StateType::kv && (found == counts.state_entries() || found == layers + counts.state_entries())) {
    return concatenate("; ", found, " is the length of this pool's state list");
  }
  if (list.type == StateType::swa && found == counts.kv_entries()) return concatenate("; ", found, " is the length of this pool's kv list");
  return {};
}

Unexpected refuse_length(const CompressedList& list, std::uint64_t found, const std::vector<std::uint64_t>& expected) {
  std::string choices;
  std::uint64_t nearest = expected.front();
  for (std::size_t position = 0; position < expected.size(); ++position) {
    if (position > 0) choices += position + 1 == expected.size() ? " or " : ", ";
    choices += std::to_string(expected[position]);
    const auto distance = [found](std::uint64_t length) { return length < found ? found - length : length - found; };
    if (distance(expected[position]) < distance(nearest)) nearest = expected[position];
  }
  return fail(ErrorCode::mismatch,
              concatenate(list.side, list_name(list.type), " is ", difference_text(found, nearest), ": ", entries_text(found), " found, ", choices,
                          " expected", hint(list, found), "; ", expected_lists_text(list.ratios, stage_of(list)), "; ", kLayoutRemedy));
}

}  // namespace

std::uint64_t end_of(const ListLayout& layout) noexcept { return first_of(layout) + layout.target_layers; }

std::string layers_text(const ListLayout& layout) { return range_text(first_of(layout), end_of(layout)); }

std::string entries_text(std::uint64_t count) { return concatenate(count, count == 1 ? " entry" : " entries"); }

Result<void> check_declared_length(std::string_view side, std::uint64_t found, std::uint64_t entries_per_layer, const ListLayout& layout) {
  const std::uint64_t expected = entries_per_layer * layers_of(layout);
  if (end_of(layout) > std::numeric_limits<std::uint32_t>::max()) {
    return fail(ErrorCode::out_of_range, concatenate(side, " list declares layers ", layers_text(layout), ", beyond 32 bits"));
  }
  if (found == expected) return {};
  return fail(ErrorCode::invalid_argument, concatenate(side, " list has ", entries_text(found), ", ", expected, " expected: ", entries_per_layer,
                                                       " for each of ", declared_text(layout)));
}

Tags mha_tags(const ListLayout& layout) {
  Tags tags;
  for (const Role role : {Role::k, Role::v}) append_layers(tags, role, false, layout.first_layer, layout.target_layers);
  for (const Role role : {Role::k, Role::v}) append_layers(tags, role, true, 0, layout.draft_layers);
  return tags;
}

Tags mla_tags(const ListLayout& layout) {
  Tags tags;
  append_layers(tags, Role::latent, false, layout.first_layer, layout.target_layers);
  append_layers(tags, Role::latent, true, 0, layout.draft_layers);
  return tags;
}

Result<void> check_compressed_layout(const CompressedList& list) {
  if (list.layout.target_layers != 0 && end_of(list.layout) > list.ratios.size()) {
    return fail(ErrorCode::out_of_range, concatenate(list.side, "stage ", layers_text(list.layout), " is not a part of the ", list.ratios.size(),
                                                     " layers that have a compression ratio"));
  }
  const bool has_window = list.type == StateType::swa || list.type == StateType::swa_ring;
  if (has_window && list.layout.target_layers != 0 && list.layout.draft_layers != 0) {
    return fail(ErrorCode::invalid_argument, concatenate(list.side, list_name(list.type), " declares ", declared_text(list.layout),
                                                         ": the draft layers' list is a component of its own"));
  }
  return {};
}

Result<std::uint64_t> window_layers_of(const CompressedList& list, std::uint64_t found) {
  std::vector<std::uint64_t> expected;
  for (const std::uint64_t window_layers : possible_window_layers(list)) {
    const std::uint64_t entries = entries_of(list, window_layers);
    if (entries == found) return window_layers;
    if (expected.empty() || expected.back() != entries) expected.push_back(entries);
  }
  return refuse_length(list, found, expected);
}

Result<void> check_compressed_length(const CompressedList& list, std::uint64_t window_layers, std::uint64_t found) {
  const std::uint64_t expected = entries_of(list, window_layers);
  if (found == expected) return {};
  return refuse_length(list, found, {expected});
}

Tags compressed_tags(const CompressedList& list, std::uint64_t window_layers) {
  Tags tags;
  const auto append_ratio = [&](Role role, std::uint32_t ratio) {
    for (std::uint64_t layer = first_of(list.layout); layer < end_of(list.layout); ++layer) {
      if (list.ratios[layer] == ratio) tags.push_back({role, false, static_cast<std::uint32_t>(layer)});
    }
  };
  const auto append_window = [&](Role role) {
    if (list.layout.target_layers != 0) {
      append_layers(tags, role, false, first_of(list.layout), window_layers);
    } else {
      append_layers(tags, role, true, 0, window_layers);
    }
  };
  switch (list.type) {
    case StateType::kv:
      append_ratio(Role::c4, kRatioC4);
      append_ratio(Role::c4_indexer, kRatioC4);
      append_ratio(Role::c128, kRatioC128);
      break;
    case StateType::swa:
      append_window(Role::swa_pool);
      append_ratio(Role::c4_state, kRatioC4);
      append_ratio(Role::c4_indexer_state, kRatioC4);
      break;
    case StateType::swa_ring: append_window(Role::ring); break;
    case StateType::c128_state: append_ratio(Role::c128_state, kRatioC128); break;
  }
  return tags;
}

}  // namespace kvferry::sglang
