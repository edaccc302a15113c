// slice.cpp: the join of two pools on (component, role, layer).
//
//   source, stage [16, 32)                target, stage [0, 32)
//   kv k layer 16  ─────────────────────► kv k layer 16           by name, wherever it stands in the list
//   kv v layer 31  ─────────────────────► kv v layer 31
//   draft.kv k layer 0 ─────────────────► draft.kv k layer 0
//                                         kv k layer 3            outside the source's stage: another rank sends it
//
// Whatever both sides state is compared before anything is paired: first what they say about the model, then that each list of a compressed-MLA pool
// is complete, then entry by entry. A target entry of the source's own layers that no source entry would write is an error as well: its bytes would
// stay what they were.

#include "kvferry/slice.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "compressed_lists.h"
#include "concatenate.h"

namespace kvferry {
namespace {

/// Names an entry of a pool; orders entries for look-up.
struct Key {
  Component component;
  Role role = Role::k;
  std::uint32_t layer = 0;
  friend auto operator<=>(const Key&, const Key&) = default;
};

Key key_of(const Entry& entry) { return {entry.component, entry.role, entry.layer}; }

std::string describe(const Key& key) {
  Entry entry;
  entry.component = key.component;
  entry.role = key.role;
  entry.layer = key.layer;
  return kvferry::describe(entry);
}

std::string stage_text(Stage stage) { return range_text(stage.first, stage.end); }
bool is_empty(Stage stage) { return stage.first == stage.end; }
bool holds(Stage stage, std::uint32_t layer) { return stage.first <= layer && layer < stage.end; }

/// "SIDE pool of NAME" for messages.
struct Side {
  std::string_view name;  ///< "source" or "target"
  const Pool& pool;
};

/// Entries of a pool by key.
class EntryIndex {
 public:
  /// Error on a doubled key or a target layer outside the pool's stage.
  static Result<EntryIndex> make(const Side& side) {
    EntryIndex index;
    index.places_.reserve(side.pool.entries.size());
    for (std::uint32_t position = 0; position < side.pool.entries.size(); ++position) {
      const Entry& entry = side.pool.entries[position];
      if (!entry.component.draft && !holds(side.pool.stage, entry.layer)) {
        return fail(ErrorCode::out_of_range, concatenate(side.name, " entry ", position, " (", kvferry::describe(entry), ") is outside the ",
                                                         side.name, "'s stage ", stage_text(side.pool.stage)));
      }
      index.places_.push_back({key_of(entry), position});
    }
    std::sort(index.places_.begin(), index.places_.end());
    for (std::size_t place = 1; place < index.places_.size(); ++place) {
      const Place &before = index.places_[place - 1], &after = index.places_[place];
      if (before.key != after.key) continue;
      return fail(ErrorCode::exists,
                  concatenate(side.name, " has ", describe(after.key), " twice: entries ", before.position, " and ", after.position));
    }
    return index;
  }

  std::optional<std::uint32_t> find(const Key& key) const {
    const auto found =
        std::lower_bound(places_.begin(), places_.end(), key, [](const Place& place, const Key& wanted) { return place.key < wanted; });
    if (found == places_.end() || found->key != key) return std::nullopt;
    return found->position;
  }

 private:
  struct Place {
    Key key;
    std::uint32_t position = 0;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  std::vector<Place> places_;
};

// ---- what the pools say about the model

Result<void> check_stage(const Side& side) {
  const Pool& pool = side.pool;
  if (pool.stage.first > pool.stage.end) {
    return fail(ErrorCode::invalid_argument, concatenate(side.name, " stage ", stage_text(pool.stage), " ends before it starts"));
  }
  if (pool.stage.end > pool.layers_total) {
    return fail(ErrorCode::out_of_range, concatenate(side.name, " stage ", stage_text(pool.stage), " ends beyond the ", side.name, "'s model of ",
                                                     pool.layers_total, " layers"));
  }
  return {};
}

Result<void> check_stages(const Pool& source, const Pool& target) {
  for (const Side& side : {Side{"source", source}, Side{"target", target}}) {
    if (auto checked = check_stage(side); !checked) return checked;
  }
  if (source.stage.end > target.layers_total) {
    return fail(ErrorCode::out_of_range, concatenate("source stage ", stage_text(source.stage), " ends beyond the target's model of layers ",
                                                     range_text(0, target.layers_total)));
  }
  if (source.layers_total != target.layers_total) {
    return fail(ErrorCode::mismatch, concatenate("source's model has ", source.layers_total, " layers, the target's ", target.layers_total,
                                                 ": start both engines with the same model"));
  }
  if (!is_empty(source.stage) && (source.stage.first < target.stage.first || source.stage.end > target.stage.end)) {
    return fail(ErrorCode::out_of_range,
                concatenate("source stage ", stage_text(source.stage), " is not inside the target's stage ", stage_text(target.stage),
                            ": the target must hold all layers, or be cut into the same stages as the source"));
  }
  return {};
}

Result<void> check_words(std::string_view what, const std::string& source, const std::string& target, std::string_view remedy) {
  if (source.empty() || target.empty() || source == target) return {};
  return fail(ErrorCode::mismatch, concatenate(what, " is '", source, "' on the source and '", target, "' on the target: ", remedy));
}

Result<void> check_numbers(std::string_view what, std::uint64_t source, std::uint64_t target, std::string_view remedy) {
  if (source == target) return {};
  return fail(ErrorCode::mismatch, concatenate(what, " is ", source, " on the source and ", target, " on the target: ", remedy));
}

Result<void> check_ratio_lists(const Pool& source, const Pool& target) {
  const auto &ours = source.compression_ratios, &theirs = target.compression_ratios;
  for (const auto& [owner, ratios] : {std::pair{"the source's", &ours}, std::pair{"the target's", &theirs}}) {
    if (auto checked = check_known_ratios(*ratios, owner); !checked) return checked;
  }
  if (ours == theirs) return {};
  const std::string digests = concatenate("digest ", ratios_digest(ours), " on the source and ", ratios_digest(theirs), " on the target");
  if (ours.empty() || theirs.empty()) {
    return fail(ErrorCode::mismatch, concatenate("only the ", ours.empty() ? "target" : "source", " declares compression ratios (", ours.size(),
                                                 " on the source, ", theirs.size(), " on the target; ", digests, "): ", kLayoutRemedy));
  }
  const auto differing = std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end());
  const auto layer = differing.first - ours.begin();
  const auto ratio_text = [layer](const std::vector<std::uint32_t>& ratios) {
    return static_cast<std::size_t>(layer) < ratios.size() ? concatenate(ratios[static_cast<std::size_t>(layer)])
                                                           : concatenate("none (", ratios.size(), " ratios)");
  };
  return fail(ErrorCode::mismatch, concatenate("compression ratios differ first in layer ", layer, ": ", ratio_text(ours), " on the source, ",
                                               ratio_text(theirs), " on the target (", digests, "): start both engines with the same model"));
}

Result<void> check_windows(const Pool& source, const Pool& target) {
  struct Number {
    std::string_view what;
    std::uint64_t source, target;
    std::string_view remedy;
  };
  constexpr std::string_view kSameModel = "start both engines with the same model";
  constexpr std::string_view kSameState = "start both engines with the same compressor state settings";
  for (const Number& number : {
           Number{"window in tokens", source.window_tokens, target.window_tokens, kSameModel},
           Number{"ring stride in rows", source.ring_stride, target.ring_stride, "start both engines with the same speculative settings"},
       }) {
    if (auto checked = check_numbers(number.what, number.source, number.target, number.remedy); !checked) return checked;
  }
  const auto mode = [](bool online) { return std::string(online ? "online" : "paged"); };
  if (auto checked = check_words("C128 state", mode(source.c128_online), mode(target.c128_online), kSameState); !checked) return checked;
  return check_numbers("C128 ring size in rows", source.c128_ring_size, target.c128_ring_size, kSameState);
}

Result<void> check_models(const Pool& source, const Pool& target) {
  if (auto checked = check_stages(source, target); !checked) return checked;
  if (auto checked = check_words("kind of the pool", source.kind, target.kind, "start both engines with the same model"); !checked) return checked;
  if (auto checked = check_words("layout variant", source.variant, target.variant, "start both engines with the same kv cache dtype and layout");
      !checked) {
    return checked;
  }
  if (auto checked = check_ratio_lists(source, target); !checked) return checked;
  return check_windows(source, target);
}

// ---- complete lists of a compressed-MLA pool

/// The keys one list may have, sorted.
struct Keys {
  std::vector<Key> required;
  std::vector<Key> allowed;  ///< the window of the model's last slot, which need not be there

  void sort() {
    std::sort(required.begin(), required.end());
    std::sort(allowed.begin(), allowed.end());
  }
  bool hold(const Key& key) const {
    return std::binary_search(required.begin(), required.end(), key) || std::binary_search(allowed.begin(), allowed.end(), key);
  }
};

/// The four lists of such a pool, as SGLang publishes them; the window is in the state list or a ring list of its own.
enum class CompressedList : std::uint8_t { kv, state, ring, c128_state };
constexpr std::array kCompressedLists = {CompressedList::kv, CompressedList::state, CompressedList::ring, CompressedList::c128_state};

std::string_view name_of(CompressedList list) {
  switch (list) {
    case CompressedList::kv: return "kv list";
    case CompressedList::state: return "state list";
    case CompressedList::ring: return "ring list";
    case CompressedList::c128_state: return "C128 state list";
  }
  return "list";
}

ComponentKind component_of(CompressedList list) {
  switch (list) {
    case CompressedList::kv: return ComponentKind::kv;
    case CompressedList::state: return ComponentKind::swa;
    case CompressedList::ring: return ComponentKind::swa_ring;
    case CompressedList::c128_state: return ComponentKind::c128_state;
  }
  return ComponentKind::kv;
}

bool has_role(const Pool& pool, Component component, Role role) {
  return std::any_of(pool.entries.begin(), pool.entries.end(),
                     [&](const Entry& entry) { return entry.component == component && entry.role == role; });
}

/// What the ratios of the pool's stage make of one list.
Keys keys_of(CompressedList list, const Pool& pool, bool window_in_pages) {
  const Component component{component_of(list), false};
  Keys keys;
  const auto require = [&](Role role, std::uint32_t ratio) {
    for (std::uint32_t layer = pool.stage.first; layer < pool.stage.end; ++layer) {
      if (pool.compression_ratios[layer] == ratio) keys.required.push_back({component, role, layer});
    }
  };
  // The last slot of a ratio list may be a draft layer's place, without a buffer of any kind.
  const auto require_window = [&](Role role) {
    for (std::uint32_t layer = pool.stage.first; layer < pool.stage.end; ++layer) {
      const bool is_optional = layer + 1 == pool.compression_ratios.size() && pool.compression_ratios[layer] == 0;
      (is_optional ? keys.allowed : keys.required).push_back({component, role, layer});
    }
  };
  switch (list) {
    case CompressedList::kv:
      for (const Role role : {Role::c4, Role::c4_indexer}) require(role, kRatioC4);
      require(Role::c128, kRatioC128);
      break;
    case CompressedList::state:
      if (window_in_pages) require_window(Role::swa_pool);
      for (const Role role : {Role::c4_state, Role::c4_indexer_state}) require(role, kRatioC4);
      break;
    case CompressedList::ring: require_window(Role::ring); break;
    case CompressedList::c128_state: require(Role::c128_state, kRatioC128); break;
  }
  keys.sort();
  return keys;
}

/// What a list has that its ratios do not make, or the other way round.
struct Misfit {
  CompressedList list = CompressedList::kv;
  std::uint64_t found = 0;
  std::string culprit;  ///< "kv c4 layer 4 is missing"
};

Unexpected refuse_list(const Side& side, bool window_in_pages, const Keys& keys, const Misfit& misfit) {
  const Pool& pool = side.pool;
  const std::uint64_t expected = keys.required.size(), expected_max = expected + keys.allowed.size();
  std::string text = concatenate(side.name, " ", name_of(misfit.list), " ");
  if (misfit.found < expected || misfit.found > expected_max) {
    text += "is " + difference_text(misfit.found, misfit.found < expected ? expected : expected_max);
  } else {
    text += "does not fit its layers";
  }
  text += concatenate(": ", misfit.found, " entries found, ", expected);
  if (expected_max != expected) text += concatenate(" or ", expected_max);
  const std::uint64_t window_entries = window_in_pages ? pool.stage.end - pool.stage.first : 0;
  text +=
      concatenate(" expected, ", misfit.culprit, "; ", expected_lists_text(pool.compression_ratios, pool.stage, window_entries), "; ", kLayoutRemedy);
  if (!pool.variant.empty()) text += concatenate(" (the ", side.name, "'s is ", pool.variant, ")");
  return fail(ErrorCode::mismatch, std::move(text));
}

Result<void> check_compressed_list(const Side& side, const EntryIndex& index, CompressedList list, bool window_in_pages) {
  const Pool& pool = side.pool;
  const Keys keys = keys_of(list, pool, window_in_pages);
  Misfit misfit{.list = list, .found = 0, .culprit = {}};
  const Entry* stranger = nullptr;
  for (const Entry& entry : pool.entries) {
    if (entry.component != Component{component_of(list), false}) continue;
    ++misfit.found;
    if (stranger == nullptr && !keys.hold(key_of(entry))) stranger = &entry;
  }
  const auto is_missing = [&](const Key& key) { return !index.find(key); };
  const auto missing_count = std::count_if(keys.required.begin(), keys.required.end(), is_missing);
  if (missing_count > 0) {
    const std::string first = describe(*std::find_if(keys.required.begin(), keys.required.end(), is_missing));
    misfit.culprit = first + (missing_count > 1 ? concatenate(" and ", missing_count - 1, " more are missing") : " is missing");
    return refuse_list(side, window_in_pages, keys, misfit);
  }
  if (stranger != nullptr) {
    misfit.culprit = concatenate(kvferry::describe(*stranger), " does not belong to a layer of ratio ", pool.compression_ratios[stranger->layer]);
    return refuse_list(side, window_in_pages, keys, misfit);
  }
  return {};
}

/// Every list that either side publishes must be complete on both. The target comes first: its lists come from the other engine.
Result<void> check_compressed_lists(const Side& source, const EntryIndex& source_index, const Side& target, const EntryIndex& target_index) {
  if (target.pool.compression_ratios.empty()) return {};
  for (const Side& side : {target, source}) {
    if (side.pool.stage.end > side.pool.compression_ratios.size()) {
      return fail(ErrorCode::mismatch, concatenate(side.name, " stage ", stage_text(side.pool.stage), " ends beyond its list of ",
                                                   side.pool.compression_ratios.size(), " compression ratios"));
    }
  }
  const auto either_has = [&](ComponentKind kind, Role role) {
    return has_role(source.pool, {kind, false}, role) || has_role(target.pool, {kind, false}, role);
  };
  const bool window_in_pages = either_has(ComponentKind::swa, Role::swa_pool);
  const auto is_used = [&](CompressedList list) {
    const Component component{component_of(list), false};
    const auto belongs = [&](const Entry& entry) { return entry.component == component; };
    return std::any_of(source.pool.entries.begin(), source.pool.entries.end(), belongs) ||
           std::any_of(target.pool.entries.begin(), target.pool.entries.end(), belongs);
  };
  if (window_in_pages && is_used(CompressedList::ring)) {
    const auto window_text = [](const Pool& pool) { return has_role(pool, {ComponentKind::swa_ring, false}, Role::ring) ? "a ring" : "pages"; };
    return fail(ErrorCode::mismatch, concatenate("window is kept in ", window_text(source.pool), " on the source and in ", window_text(target.pool),
                                                 " on the target: ", kLayoutRemedy));
  }
  for (const CompressedList list : kCompressedLists) {
    if (!is_used(list)) continue;
    if (auto checked = check_compressed_list(target, target_index, list, window_in_pages); !checked) return checked;
    if (auto checked = check_compressed_list(source, source_index, list, window_in_pages); !checked) return checked;
  }
  return {};
}

// ---- entry by entry

Result<void> check_page_sizes(const Entry& source, const Entry& target) {
  if (source.page_size == target.page_size) return {};
  const std::uint32_t greater = std::max(source.page_size, target.page_size), lesser = std::min(source.page_size, target.page_size);
  const std::string sizes =
      concatenate(kvferry::describe(source), ": page size is ", source.page_size, " tokens on the source and ", target.page_size, " on the target");
  if (lesser == 0 || greater % lesser != 0) {
    return fail(ErrorCode::mismatch, concatenate(sizes, ", no integer ratio: start both engines with the same page size"));
  }
  return fail(ErrorCode::unsupported,
              concatenate(sizes, ", which needs page multiples, a feature of a later version: start both engines with the same page size"));
}

std::string heads_text(const std::optional<HeadRange>& heads) {
  if (!heads) return "not declared";
  return concatenate(range_text(heads->first_head, std::uint64_t{heads->first_head} + heads->head_count), " of ", heads->bytes_per_head_token,
                     " bytes per head and token");
}

Result<void> check_heads(const Entry& source, const Entry& target) {
  if (source.heads == target.heads) return {};
  const std::string heads = concatenate(kvferry::describe(source), ": head range is ", heads_text(source.heads), " on the source and ",
                                        heads_text(target.heads), " on the target");
  if (!source.heads || !target.heads) return fail(ErrorCode::mismatch, concatenate(heads, ": declare the heads on both sides or on neither"));
  if (source.heads->bytes_per_head_token != target.heads->bytes_per_head_token) {
    return fail(ErrorCode::mismatch, concatenate(heads, ": start both engines with the same model and kv cache dtype"));
  }
  return fail(ErrorCode::unsupported,
              concatenate(heads,
                          ", which needs head ranges, a feature of a later version: start both engines with the same tensor parallel "
                          "size and pair equal ranks"));
}

Result<Compatibility> compare(const Entry& source, const Entry& target) {
  const std::string name = kvferry::describe(source);
  if (source.space != target.space) {
    return fail(ErrorCode::mismatch, concatenate(name, ": indices count ", to_string(source.space), " on the source and ", to_string(target.space),
                                                 " on the target: ", "start both engines with the same kv cache layout"));
  }
  if (source.dtype != target.dtype) {
    return fail(ErrorCode::mismatch, concatenate(name, ": dtype is ", to_string(source.dtype), " on the source and ", to_string(target.dtype),
                                                 " on the target: start both engines with the same kv cache dtype"));
  }
  if (auto checked = check_page_sizes(source, target); !checked) return fail(checked.error());
  if (auto checked = check_heads(source, target); !checked) return fail(checked.error());
  if (source.item_length_bytes != target.item_length_bytes) {
    return fail(ErrorCode::mismatch,
                concatenate(name, ": item length is ", source.item_length_bytes, " bytes on the source and ", target.item_length_bytes,
                            " on the target: start both engines with the same model, kv cache dtype and layout"));
  }
  return source.pitch_bytes == target.pitch_bytes ? Compatibility::equal : Compatibility::different_pitch;
}

Unexpected refuse_partnerless(const Entry& entry, const Pool& source, const Pool& target) {
  const std::string text =
      concatenate("source entry ", kvferry::describe(entry), " has no partner among the target's ", target.entries.size(), " entries");
  if (!entry.component.draft) return fail(ErrorCode::mismatch, concatenate(text, " of stage ", stage_text(target.stage)));
  return fail(ErrorCode::mismatch, concatenate(text, " (draft layers: ", source.draft_layers, " on the source, ", target.draft_layers,
                                               " on the target): start both engines with the same speculative settings"));
}

/// A target entry of the source's layers that no source entry writes. Drafts of the target may stay alone: prefill need not run them.
Result<void> check_covered(const Pool& source, const EntryIndex& source_index, const Pool& target) {
  for (const Entry& entry : target.entries) {
    if (entry.component.draft || !holds(source.stage, entry.layer) || source_index.find(key_of(entry))) continue;
    return fail(ErrorCode::mismatch,
                concatenate("target entry ", kvferry::describe(entry), " is of the source's stage ", stage_text(source.stage),
                            " but the source has no such entry among its ", source.entries.size(), ": it would never be written"));
  }
  return {};
}

}  // namespace

Result<std::vector<EntryPair>> slice(const Pool& source, const Pool& target) {
  if (auto checked = check_models(source, target); !checked) return fail(checked.error());
  const Side source_side{"source", source}, target_side{"target", target};
  const auto source_index = EntryIndex::make(source_side), target_index = EntryIndex::make(target_side);
  for (const auto* index : {&source_index, &target_index}) {
    if (!*index) return fail(index->error());
  }
  if (auto checked = check_compressed_lists(source_side, *source_index, target_side, *target_index); !checked) return fail(checked.error());
  std::vector<EntryPair> pairs;
  pairs.reserve(source.entries.size());
  for (std::uint32_t position = 0; position < source.entries.size(); ++position) {
    const Entry& entry = source.entries[position];
    const auto partner = target_index->find(key_of(entry));
    if (!partner) return refuse_partnerless(entry, source, target);
    const auto compatibility = compare(entry, target.entries[*partner]);
    if (!compatibility) return fail(compatibility.error());
    pairs.push_back({.source = position, .target = *partner, .compatibility = *compatibility});
  }
  if (auto checked = check_covered(source, *source_index, target); !checked) return fail(checked.error());
  if (auto checked = check_numbers("page size of the pool", source.page_size, target.page_size, "start both engines with the same page size");
      !checked) {
    return fail(checked.error());
  }
  return pairs;
}

Result<void> check_compatible(const Pool& source, const Pool& target) {
  const auto pairs = slice(source, target);
  if (!pairs) return fail(pairs.error());
  return {};
}

}  // namespace kvferry
