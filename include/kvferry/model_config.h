/// kvferry/model_config.h: from a Hugging Face config.json to the pool of one rank.
///
/// Field names are those published; the rules per kind are in docs/pools.md. Kinds this version lays out: GQA, MHA, MQA; MLA; compressed MLA
/// (DeepSeek-V4) as paged fp8 rows and as the unified bf16 pool. Every other kind is refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/pool.h"

namespace kvferry {

enum class ModelKind : std::uint8_t { attention, mla, compressed_mla };  ///< attention: GQA, MHA and MQA

/// What a config.json decides about the KV layout, before any choice of the user.
struct ModelDescription {
  std::string name;  ///< for messages: model_type, or what the caller passes
  ModelKind kind = ModelKind::attention;
  std::string kind_text;              ///< "GQA", "MHA", "MQA", "MLA", "compressed MLA"
  std::uint32_t layers = 0;           ///< num_hidden_layers
  std::uint32_t kv_heads = 0;         ///< attention kinds
  std::uint32_t head_dim = 0;         ///< attention kinds: width of K and V; compressed MLA: width of the shared row
  std::uint32_t kv_lora_rank = 0;     ///< MLA
  std::uint32_t rope_head_dim = 0;    ///< MLA and compressed MLA
  std::uint32_t index_head_dim = 0;   ///< compressed MLA
  std::uint32_t window_tokens = 0;    ///< compressed MLA: sliding_window; attention kinds in one pool: 0
  std::vector<std::uint32_t> compression_ratios;  ///< as published; may be longer than layers
  std::optional<DType> dtype;         ///< torch_dtype or dtype
  std::vector<std::uint32_t> sliding_layers;  ///< attention kinds: layers that see a window only but live in the one pool; for figures, not for the layout
};

/// `text` is the whole file. Errors: not JSON; a field missing or out of range (named); a kind that is not laid out yet (named, with the field that
/// tells).
Result<ModelDescription> parse_model_config(std::string_view text, std::string_view name);

/// How one side is cut over ranks: `pp` has the target layers of every stage, in order; their sum is the number of layers in use.
struct Parallelism {
  std::uint32_t tp = 1;
  std::vector<std::uint32_t> pp;
};

/// "pp=2": extra layers to the last stages (7 over 2 is 3+4). Error when there are more stages than layers; it names `pp` and the value.
Result<std::vector<std::uint32_t>> split_stages(std::uint32_t layers, std::uint32_t stages);

struct PoolOptions {
  std::uint32_t page_size = 0;          ///< tokens; required
  std::optional<DType> dtype;           ///< of the cache; default: the config's; none given and none found is an error
  std::string kv_layout;                ///< "", or a variant name where the kind has several: "paged_fp8", "unified_bf16", "online" for the short C128 state
  std::optional<std::uint32_t> layers;  ///< the first N global layers; default all
  std::uint32_t draft_layers = 0;       ///< appended on the last stage
  std::uint64_t pages = 0;              ///< index_count of the page space; 0: 1
  std::uint64_t window_pages = 0;       ///< 0: as pages
  std::uint64_t request_slots = 0;      ///< 0: 1; sizes rings and per-request state
};

/// The pool of rank (tp_rank, pp_rank). Base addresses are offsets from 0, entries one after another in the order of SGLang's lists, each aligned to
/// 4096 bytes; the caller adds its own base (rebase). Draft entries belong to the last stage.
Result<Pool> build_pool(const ModelDescription& model, const PoolOptions& options, const Parallelism& cut, std::uint32_t tp_rank, std::uint32_t pp_rank);

/// The whole model on one rank (tp 1, pp 1), as `explain` lists it.
Result<Pool> build_whole_pool(const ModelDescription& model, const PoolOptions& options);

/// Adds `base` to every base address. Error on overflow.
Result<void> rebase(Pool& pool, std::uint64_t base);

/// Bytes from the lowest base address to the end of the last entry.
Result<std::uint64_t> pool_span_bytes(const Pool& pool);

/// How many indices a request of `tokens` tokens has in each space of `pool`, and which request-relative positions they stand for (models/README
/// rules: pages, window pages, ring rows, c128 rows, request slots). `request_slot` selects ring rows and state rows.
struct RequestIndices {
  std::uint64_t pages = 0;         ///< count; the caller places them
  std::uint64_t window_pages = 0;  ///< count: the last ones; the caller places them
  std::vector<std::uint64_t> ring_rows;
  std::vector<std::uint64_t> c128_rows;
  std::vector<std::uint64_t> request_slots;
};
Result<RequestIndices> request_indices(const Pool& pool, std::uint64_t tokens, std::uint64_t request_slot);

}  // namespace kvferry
