/// kvferry/sglang_lists.h: SGLang's flat pointer lists, with what their owner declares about them.
///
/// The lists carry no tags; the caller declares the convention and the counts, the importer checks every section length and gives tagged entries, or
/// slices the lists themselves for callers that stay with lists. Order of the lists and the faults this replaces: docs/sglang-lists.md (SGLang
/// 0.5.23, disaggregation/common/conn.py).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvferry/pool.h"
#include "kvferry/result.h"

namespace kvferry::sglang {

/// Declared contents of one list: target layers [first_layer, first_layer + target_layers) and draft layers after them.
struct ListLayout {
  std::uint32_t first_layer = 0;
  std::uint32_t target_layers = 0;
  std::uint32_t draft_layers = 0;
};

/// MHA/GQA lists: [K target][V target][K draft][V draft].
struct MhaSlice {
  std::vector<std::uint64_t> source_k, source_v, target_k, target_v;  ///< target layers, then draft layers where both sides have them
  std::uint32_t layers = 0;
};
/// `source_layout` absent: the source has len / 2 target layers from `start_layer` and no draft.
Result<MhaSlice> slice_mha(std::uint32_t start_layer, std::span<const std::uint64_t> source, std::span<const std::uint64_t> target,
                           const std::optional<ListLayout>& source_layout, const ListLayout& target_layout);

/// Which list of a compressed-MLA pool: kv = [C4][C4 indexer][C128]; swa = [SWA][C4 state][C4 indexer state]; swa_ring one per layer; c128_state one per
/// ratio-128 layer.
enum class StateType : std::uint8_t { kv, swa, swa_ring, c128_state };
Result<StateType> parse_state_type(std::string_view word);  ///< "kv", "swa", "swa_ring", "c128_state"

struct ListSlice {
  std::vector<std::uint64_t> source, target;  ///< equal lengths, paired by position
};

/// Plain MLA, one latent per layer then draft entries; layouts declare both sides. Flat state lists of one entry per layer (DSA) follow the same rule.
Result<ListSlice> slice_mla(std::span<const std::uint64_t> source, std::span<const std::uint64_t> target, const ListLayout& source_layout,
                            const ListLayout& target_layout);

/// Compressed MLA. `ratios` is the declaration: one per layer of the model, values 0, 4, 128. The stage is [start, end). Any length that does not fit is
/// refused with the expected lengths, the counts (c4, c128, total) and the length found.
Result<ListSlice> slice_compressed_mla(std::uint32_t start, std::uint32_t end, std::span<const std::uint32_t> ratios, StateType type,
                                       std::span<const std::uint64_t> source, std::span<const std::uint64_t> target);
/// The same for callers that declare what each list holds: a target that holds one stage only, or the draft layers' list, which is a component of its
/// own (a draft layer has ratio 0: one window buffer or ring, no kv and no C128 state). A source without target layers ignores the stage.
Result<ListSlice> slice_compressed_mla(std::span<const std::uint32_t> ratios, StateType type, std::span<const std::uint64_t> source,
                                       std::span<const std::uint64_t> target, const ListLayout& source_layout, const ListLayout& target_layout);

/// Pairing by published layer ids, first unused target entry with the same id. Positional only when neither side has ids and the counts are equal, or
/// when the caller allows it by name.
struct EntryIds {
  std::span<const std::int64_t> layer_ids;  ///< empty: not published
  std::uint64_t entries = 0;
};
Result<std::vector<std::pair<std::uint64_t, std::uint64_t>>> pair_entries(const EntryIds& source, const EntryIds& target,
                                                                          bool allow_positional_fallback);

/// Target index of the source's state component: by (type, occurrence); the same position only when the target declares no types and
/// `require_metadata` is false. A target that declares types needs a source that does.
Result<std::uint64_t> state_component_index(std::span<const std::string> source_types, std::span<const std::string> target_types,
                                            std::uint64_t source_index, bool require_metadata);

/// What an engine hands over for one list and we tag: pointers, bytes of each buffer, item lengths.
struct FlatList {
  std::span<const std::uint64_t> pointers;
  std::span<const std::uint64_t> lengths_bytes;
  std::span<const std::uint64_t> item_lengths_bytes;
};
/// Common facts of the tagged entries.
struct FlatFacts {
  std::uint32_t page_size = 1;
  DType dtype = DType::bf16;
  MemoryKind memory = MemoryKind::host;
  std::uint32_t kv_heads = 0;  ///< MHA: heads on this rank; 0: not declared, no head range is set
  std::uint32_t first_head = 0;
};
/// Zero-length items are no entries, but count in the section lengths, which are all checked against the declaration. Pitch is the item length; a buffer
/// that is no whole number of items is refused, except for compressed kv lists, whose unified pools end in rows of no page.
Result<std::vector<Entry>> import_mha(const FlatList& list, const ListLayout& layout, const FlatFacts& facts);
Result<std::vector<Entry>> import_mla(const FlatList& list, const ListLayout& layout, const FlatFacts& facts);
Result<std::vector<Entry>> import_compressed_mla(const FlatList& list, StateType type, Stage stage, std::span<const std::uint32_t> ratios,
                                                 const FlatFacts& facts);

}  // namespace kvferry::sglang
