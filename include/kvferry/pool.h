/// kvferry/pool.h: what a KV pool is: tagged entries, where they lie, what their indices count.
///
///   entry (one layer's K, say)          base address
///   ┌──────────────┬───┬──────────────┬───┬──────────────┬───┐
///   │ page 0       │pad│ page 1       │pad│ page 2       │pad│ ...   index_count pages
///   └──────────────┴───┴──────────────┴───┴──────────────┴───┘
///   ◄─ item length ►
///   ◄───── pitch ──────►
///
/// A pool is a value. Three sources make one: a model's config.json (model_config.h), a pool file (pool_file.h), and SGLang's flat pointer lists with
/// declared counts (sglang_lists.h). Nothing here dereferences an address.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/result.h"

namespace kvferry {

/// Component words of design.md section 4; `draft` puts "draft." before the word (speculative layers).
enum class ComponentKind : std::uint8_t { kv, swa, swa_ring, c128_state, dsa, mamba, minimax_index_k, minimax_dense_kv, block_scale };

struct Component {
  ComponentKind kind = ComponentKind::kv;
  bool draft = false;
  friend auto operator<=>(const Component&, const Component&) = default;
};

enum class Role : std::uint8_t {
  k, v, latent, c4, c4_indexer, c128, swa_pool, c4_state, c4_indexer_state, ring, c128_state, index_k, conv, temporal
};

/// What the indices of an entry count. A request brings one pair of index lists per space.
enum class IndexSpace : std::uint8_t {
  pages,          ///< pages of `page_size` tokens
  window_pages,   ///< pages of the sliding-window pool
  ring_rows,      ///< rows of the unified pool's window ring
  c128_rows,      ///< pending compressor state: 128-row pages, or rows in online mode
  request_slots,  ///< one per request
};
inline constexpr std::size_t kIndexSpacesCount = 5;

enum class DType : std::uint8_t { bf16, fp16, fp32, fp8_e4m3, fp8_e5m2, int8, uint8, packed_fp8 };  ///< packed_fp8: rows of fp8, bf16 and scales together

enum class MemoryKind : std::uint8_t { host, device };

std::string to_string(Component component);
std::string_view to_string(Role role) noexcept;
std::string_view to_string(IndexSpace space) noexcept;
std::string_view to_string(DType dtype) noexcept;
std::string_view to_string(MemoryKind kind) noexcept;
Result<Component> parse_component(std::string_view word);
Result<Role> parse_role(std::string_view word);
Result<IndexSpace> parse_index_space(std::string_view word);
/// Accepts the names of to_string and the usual spellings: bfloat16, float16, half, fp8, float8_e4m3fn, ...
Result<DType> parse_dtype(std::string_view word);
Result<MemoryKind> parse_memory_kind(std::string_view word);
/// Bytes of one element; 1 for packed_fp8.
std::uint32_t dtype_bytes(DType dtype) noexcept;

/// How an entry is split by attention heads; absent where every rank holds the same bytes.
struct HeadRange {
  std::uint32_t head_count = 0;            ///< on this rank
  std::uint32_t first_head = 0;            ///< of the model
  std::uint32_t bytes_per_head_token = 0;  ///< one head, one token
  friend bool operator==(const HeadRange&, const HeadRange&) = default;
};

/// One buffer of a pool.
struct Entry {
  Component component;
  Role role = Role::k;
  std::uint32_t layer = 0;  ///< global layer id; draft layers count from 0 again
  IndexSpace space = IndexSpace::pages;
  DType dtype = DType::bf16;
  MemoryKind memory = MemoryKind::host;
  std::uint32_t page_size = 1;          ///< tokens per index of a paged space; 1 elsewhere
  std::uint64_t base_address = 0;       ///< in the owner's address space
  std::uint64_t pitch_bytes = 0;        ///< from one index to the next; at least item_length_bytes
  std::uint64_t item_length_bytes = 0;  ///< bytes of one index that move
  std::uint64_t index_count = 0;        ///< indices are 0 .. index_count - 1
  std::optional<HeadRange> heads;
  friend bool operator==(const Entry&, const Entry&) = default;
};

/// "kv k layer 17": how messages name an entry.
std::string describe(const Entry& entry);

/// Bytes from the base address to the end of the last index. Error on overflow.
Result<std::uint64_t> span_bytes(const Entry& entry);

/// Half-open range of global layers of one pipeline rank.
struct Stage {
  std::uint32_t first = 0;
  std::uint32_t end = 0;
  friend bool operator==(const Stage&, const Stage&) = default;
};

/// Place of a rank in its engine.
struct Rank {
  std::uint32_t tp_size = 1, tp_rank = 0;
  std::uint32_t pp_size = 1, pp_rank = 0;
  friend bool operator==(const Rank&, const Rank&) = default;
};

/// The pool of one rank.
struct Pool {
  std::string model;                              ///< free text for messages
  std::string kind;                               ///< "GQA", "MLA", "compressed MLA", or what the pool file says
  std::string variant;                            ///< "paged_fp8", "unified_bf16" ...; empty where a kind has one
  std::uint32_t layers_total = 0;                 ///< target layers of the whole model
  std::uint32_t draft_layers = 0;                 ///< draft layers of the whole model
  Stage stage;                                    ///< this rank's target layers
  Rank rank;
  std::uint32_t page_size = 1;                    ///< tokens
  std::uint32_t window_tokens = 0;                ///< 0: no window
  std::uint32_t ring_stride = 0;                  ///< rows per request of the unified ring
  std::uint32_t c128_ring_size = 0;               ///< rows per request of the paged C128 state; 0: none or online
  bool c128_online = false;
  std::vector<std::uint32_t> compression_ratios;  ///< one per target layer of the model; empty: not compressed
  std::vector<Entry> entries;
  std::vector<std::uint32_t> sliding_layers;      ///< target layers that see a window only but live in the pages space; for figures, not for the layout
  friend bool operator==(const Pool&, const Pool&) = default;
};

/// Entries complete and consistent: no doubled (component, role, layer), pitch >= item length, nothing zero, no wrap, target layers inside the
/// stage, stage inside the model, known ratios, all entries of one space with one index count. The error names the entry and the values.
Result<void> validate(const Pool& pool);

/// Digest of the ratio list (order matters); 0 for an empty list. Both sides compare it.
std::uint64_t ratios_digest(const std::vector<std::uint32_t>& ratios) noexcept;

/// Digest of everything but texts for people (model, kind), addresses, pitches, memory kinds, index counts and the order of entries: equal for two pools
/// that can be paired without conversion on equal ranks.
std::uint64_t layout_digest(const Pool& pool);

/// Bytes that move per token while the token is inside all windows: the sum of item lengths of the paged kv, dsa and minimax entries over the page
/// size; may be fractional.
double kv_bytes_per_token(const Pool& pool);

/// The same figures for sliding layers left out.
double kv_bytes_per_token_growing(const Pool& pool);

/// Bytes of per-request state: entries of the request_slots space of component mamba. 0 where a request has none.
std::uint64_t state_bytes_per_request(const Pool& pool);

}  // namespace kvferry
