// sglang_import.cpp: a flat list with its declaration becomes tagged entries.
//
// What tags cannot say comes from facts the caller states once for the whole list (page size, dtype, heads); what can be checked against the buffers
// is.

#include <limits>

#include "concatenate.h"
#include "kvferry/sglang_lists.h"
#include "sglang_tags.h"

namespace kvferry::sglang {
namespace {

Result<void> check_list_sizes(const FlatList& list) {
  if (list.pointers.size() == list.lengths_bytes.size() && list.pointers.size() == list.item_lengths_bytes.size()) return {};
  return fail(ErrorCode::invalid_argument, concatenate("list has ", list.pointers.size(), " pointers, ", list.lengths_bytes.size(),
                                                       " buffer lengths and ", list.item_lengths_bytes.size(), " item lengths"));
}

ComponentKind component_of(Role role) {
  switch (role) {
    case Role::swa_pool:
    case Role::c4_state:
    case Role::c4_indexer_state: return ComponentKind::swa;
    case Role::ring: return ComponentKind::swa_ring;
    case Role::c128_state: return ComponentKind::c128_state;
    default: return ComponentKind::kv;
  }
}

/// Compressor states lie beside the window pages where there are any, and in one ring per request otherwise.
IndexSpace space_of(Role role, bool window_in_pages) {
  switch (role) {
    case Role::swa_pool: return IndexSpace::window_pages;
    case Role::c4_state:
    case Role::c4_indexer_state: return window_in_pages ? IndexSpace::window_pages : IndexSpace::request_slots;
    case Role::ring: return IndexSpace::ring_rows;
    case Role::c128_state: return IndexSpace::c128_rows;
    default: return IndexSpace::pages;
  }
}

bool is_paged(IndexSpace space) { return space == IndexSpace::pages || space == IndexSpace::window_pages; }

Result<HeadRange> head_range(const FlatFacts& facts, std::uint64_t item_length_bytes) {
  const std::uint64_t heads_tokens = std::uint64_t{facts.kv_heads} * facts.page_size;
  const std::uint64_t bytes = heads_tokens == 0 ? 0 : item_length_bytes / heads_tokens;
  if (bytes == 0 || bytes * heads_tokens != item_length_bytes || bytes > std::numeric_limits<std::uint32_t>::max()) {
    return fail(ErrorCode::invalid_argument, concatenate("item length of ", item_length_bytes, " bytes is no whole number of bytes for ",
                                                         facts.kv_heads, " heads and ", facts.page_size, " tokens of a page"));
  }
  return HeadRange{.head_count = facts.kv_heads, .first_head = facts.first_head, .bytes_per_head_token = static_cast<std::uint32_t>(bytes)};
}

/// Size and place of one buffer; the caller has set everything else.
Result<void> place_entry(Entry& entry, const FlatList& list, std::size_t position, bool whole_items) {
  const std::uint64_t address = list.pointers[position], length = list.lengths_bytes[position], item = list.item_lengths_bytes[position];
  if (address == 0) return fail(ErrorCode::invalid_argument, "the pointer is 0");
  std::uint64_t end = 0;
  if (!checked_add(address, length, end)) {
    return fail(ErrorCode::out_of_range, concatenate(length, " bytes at address ", address, " reach beyond 64 bits"));
  }
  if (length < item || (whole_items && length % item != 0)) {
    return fail(ErrorCode::invalid_argument, concatenate("buffer of ", length, " bytes is no whole number of items of ", item, " bytes"));
  }
  entry.base_address = address;
  entry.pitch_bytes = item;
  entry.item_length_bytes = item;
  entry.index_count = length / item;
  return {};
}

struct ImportRules {
  bool window_in_pages = false;
  bool whole_items = true;
};

Result<std::vector<Entry>> import_tagged(const FlatList& list, const Tags& tags, const FlatFacts& facts, ImportRules rules) {
  if (facts.page_size == 0) return fail(ErrorCode::invalid_argument, "page size is 0");
  std::vector<Entry> entries;
  entries.reserve(tags.size());
  for (std::size_t position = 0; position < tags.size(); ++position) {
    if (list.item_lengths_bytes[position] == 0) continue;
    const Tag& tag = tags[position];
    Entry entry;
    entry.component = {component_of(tag.role), tag.draft};
    entry.role = tag.role;
    entry.layer = tag.layer;
    entry.space = space_of(tag.role, rules.window_in_pages);
    entry.dtype = facts.dtype;
    entry.memory = facts.memory;
    entry.page_size = is_paged(entry.space) ? facts.page_size : 1;
    const auto name = [&] { return concatenate("entry ", position, " (", describe(entry), ")"); };
    if (auto placed = place_entry(entry, list, position, rules.whole_items); !placed) return fail(placed.error().within(name()));
    if (facts.kv_heads != 0 && (tag.role == Role::k || tag.role == Role::v)) {
      auto heads = head_range(facts, entry.item_length_bytes);
      if (!heads) return fail(heads.error().within(name()));
      entry.heads = *heads;
    }
    entries.push_back(entry);
  }
  return entries;
}

}  // namespace

Result<std::vector<Entry>> import_mha(const FlatList& list, const ListLayout& layout, const FlatFacts& facts) {
  if (auto checked = check_list_sizes(list); !checked) return fail(checked.error());
  if (auto checked = check_declared_length("MHA", list.pointers.size(), 2, layout); !checked) return fail(checked.error());
  return import_tagged(list, mha_tags(layout), facts, {});
}

Result<std::vector<Entry>> import_mla(const FlatList& list, const ListLayout& layout, const FlatFacts& facts) {
  if (auto checked = check_list_sizes(list); !checked) return fail(checked.error());
  if (auto checked = check_declared_length("MLA", list.pointers.size(), 1, layout); !checked) return fail(checked.error());
  return import_tagged(list, mla_tags(layout), facts, {});
}

Result<std::vector<Entry>> import_compressed_mla(const FlatList& list, StateType type, Stage stage, std::span<const std::uint32_t> ratios,
                                                 const FlatFacts& facts) {
  if (auto checked = check_known_ratios(ratios, {}); !checked) return fail(checked.error());
  if (stage.first >= stage.end || stage.end > ratios.size()) {
    return fail(ErrorCode::out_of_range, concatenate("stage ", range_text(stage.first, stage.end), " is not a part of the ", ratios.size(),
                                                     " layers that have a compression ratio"));
  }
  if (auto checked = check_list_sizes(list); !checked) return fail(checked.error());
  const CompressedList declared{"", type, {.first_layer = stage.first, .target_layers = stage.end - stage.first, .draft_layers = 0}, ratios};
  const auto window = window_layers_of(declared, list.pointers.size());
  if (!window) return fail(window.error());
  return import_tagged(list, compressed_tags(declared, *window), facts, {.window_in_pages = *window != 0, .whole_items = type != StateType::kv});
}

}  // namespace kvferry::sglang
