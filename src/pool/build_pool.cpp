// From a model's description to the entries of one rank.
//
//   attention        MLA            compressed MLA, paged_fp8                    compressed MLA, unified_bf16
//   kv k  0 .. e-1   kv latent ..   kv c4          ratio-4 layers, pages         kv c4 .. c128        as left
//   kv v  0 .. e-1                  kv c4_indexer  ratio-4 layers, pages         swa c4_state         ratio-4 layers, request slots
//   draft.kv k ..    draft.kv       kv c128        ratio-128 layers, pages       swa c4_indexer_state ratio-4 layers, request slots
//   draft.kv v ..    latent ..      swa swa_pool   every layer, window pages     swa_ring ring        every layer, ring rows
//                                   swa c4_state .. ratio-4 layers, window pages c128_state           ratio-128 layers, C128 rows
//                                   c128_state     ratio-128 layers, C128 rows   draft.swa_ring ring  draft layers, ring rows
//                                   draft.swa swa_pool  draft layers
//
// The order is that of SGLang 0.5.23's lists (srt/mem_cache/memory_pool.py, deepseek_v4_memory_pool.py; srt/disaggregation). Every size is computed
// from the config's fields; docs/pools.md has the formulas with their sources.

#include <algorithm>
#include <utility>

#include "kvferry/model_config.h"

namespace kvferry {
namespace {

constexpr std::uint64_t kEntryAlignmentBytes = 4096;
constexpr std::uint32_t kPageTokensMax = 1u << 20;
constexpr std::uint32_t kDraftLayersMax = 4096;
constexpr std::uint32_t kRanksMax = 65536;

// Compressed MLA. A page of the packed rows is padded for the attention kernel's alignment; a scale covers a tile of fp8 values.
constexpr std::uint32_t kCompressedPageTokens = 256;
constexpr std::uint32_t kPackedPagePaddingBytes = 576;
constexpr std::uint32_t kPackedTileValues = 64;
constexpr std::uint32_t kPackedRowPadBytes = 1;
constexpr std::uint32_t kIndexTileValues = 128;
constexpr std::uint32_t kIndexScaleBytes = 4;
constexpr std::uint32_t kStateValueBytes = 4;
constexpr std::uint32_t kC4Ratio = 4, kC128Ratio = 128;
constexpr std::uint32_t kC4RingRows = 8;      ///< compressor rows kept per window page or request
constexpr std::uint32_t kC128RingRows = 128;  ///< raw rows pending per request

/// What one rank's pool is made from, all choices settled.
struct Settled {
  const ModelDescription& model;
  DType dtype = DType::bf16;
  std::uint32_t page_size = 0;
  std::uint32_t layers = 0;
  std::uint32_t draft_layers = 0;
  bool online = false;
  Stage stage;
  Rank rank;
  std::uint64_t pages = 1, window_pages = 1, request_slots = 1;

  [[nodiscard]] bool last_stage() const { return stage.end == layers; }
};

Unexpected refuse(const ModelDescription& model, ErrorCode code, const std::string& text) {
  return fail(code, "lay out model " + model.name + ": " + text);
}

// ---- choices

/// What the kind's cache may hold; `shown` says where the value came from.
Result<DType> settle_dtype(const ModelDescription& model, const PoolOptions& options) {
  if (!options.dtype && !model.dtype)
    return refuse(model, ErrorCode::invalid_argument, "no dtype: the config has none (torch_dtype, dtype), and none was given");
  const DType dtype = options.dtype ? *options.dtype : *model.dtype;
  const std::string shown = "dtype " + std::string(to_string(dtype)) + (options.dtype ? "" : " (the config's)");
  const bool compressed = model.kind == ModelKind::compressed_mla;
  const bool fits =
      compressed ? dtype == DType::fp8_e4m3 || dtype == DType::bf16
                 : dtype == DType::bf16 || dtype == DType::fp16 || dtype == DType::fp32 || dtype == DType::fp8_e4m3 || dtype == DType::fp8_e5m2;
  if (!fits) {
    return refuse(model, ErrorCode::unsupported,
                  shown + " is not a dtype of a " + model.kind_text +
                      " cache; known: " + (compressed ? "fp8 (paged_fp8), bf16 (unified_bf16)" : "bf16, fp16, fp32, fp8_e4m3, fp8_e5m2"));
  }
  return dtype;
}

/// Sets `ret.online` for compressed MLA; elsewhere a kind has one layout.
Result<void> settle_layout(const ModelDescription& model, const PoolOptions& options, Settled& ret) {
  const std::string& layout = options.kv_layout;
  if (layout.empty()) return {};
  const std::string shown = "kv layout \"" + layout + "\"";
  if (model.kind == ModelKind::mla && layout == "raw") {
    if (dtype_bytes(ret.dtype) == 1) return {};
    return refuse(model, ErrorCode::invalid_argument, shown + " is one of fp8 rows, and dtype is " + std::string(to_string(ret.dtype)));
  }
  if (model.kind != ModelKind::compressed_mla) {
    return refuse(model, ErrorCode::unsupported,
                  shown + " is not known for " + model.kind_text + (model.kind == ModelKind::mla ? "; known: raw" : ", which has one layout"));
  }
  if (layout != "paged_fp8" && layout != "unified_bf16" && layout != "online") {
    return refuse(model, ErrorCode::unsupported, shown + " is not known for compressed MLA; known: paged_fp8, unified_bf16, online");
  }
  const DType needed = layout == "unified_bf16" ? DType::bf16 : DType::fp8_e4m3;
  if (ret.dtype != needed) {
    return refuse(model, ErrorCode::invalid_argument,
                  shown + " has dtype " + std::string(to_string(needed)) + ", and dtype is " + std::string(to_string(ret.dtype)) +
                      (options.dtype ? "" : " (the config's)"));
  }
  ret.online = layout == "online";
  return {};
}

Result<void> settle_page_size(const ModelDescription& model, const PoolOptions& options) {
  if (options.page_size == 0 || options.page_size > kPageTokensMax) {
    return refuse(model, ErrorCode::invalid_argument,
                  "page size " + std::to_string(options.page_size) + " is not from 1 to " + std::to_string(kPageTokensMax) + " tokens");
  }
  if (model.kind == ModelKind::compressed_mla && options.page_size != kCompressedPageTokens) {
    return refuse(model, ErrorCode::invalid_argument,
                  "page size " + std::to_string(options.page_size) + ", and a page of compressed MLA is " + std::to_string(kCompressedPageTokens) + " tokens");
  }
  return {};
}

Result<std::uint32_t> settle_layers(const ModelDescription& model, const PoolOptions& options) {
  if (!options.layers) return model.layers;
  if (*options.layers == 0 || *options.layers > model.layers) {
    return refuse(model, ErrorCode::invalid_argument,
                  "layers " + std::to_string(*options.layers) + " is not from 1 to the model's " + std::to_string(model.layers));
  }
  return *options.layers;
}

Result<Stage> settle_stage(const ModelDescription& model, const Parallelism& cut, std::uint32_t layers, std::uint32_t pp_rank) {
  if (cut.pp.empty()) return refuse(model, ErrorCode::invalid_argument, "pp names no stage");
  if (pp_rank >= cut.pp.size()) {
    return refuse(model, ErrorCode::out_of_range, "pp rank " + std::to_string(pp_rank) + " of " + std::to_string(cut.pp.size()) + " stages");
  }
  std::uint64_t sum = 0;
  Stage stage;
  std::string shown;
  for (std::size_t i = 0; i < cut.pp.size(); ++i) {
    if (i != 0) shown += '+';
    shown += std::to_string(cut.pp[i]);
    if (cut.pp[i] == 0) return refuse(model, ErrorCode::invalid_argument, "pp " + shown + ": stage " + std::to_string(i) + " has no layer");
    if (i == pp_rank) stage.first = static_cast<std::uint32_t>(sum);
    sum += cut.pp[i];
    if (sum > layers) break;  // also keeps the sum in range
    if (i == pp_rank) stage.end = static_cast<std::uint32_t>(sum);
  }
  if (sum != layers) {
    return refuse(
        model, ErrorCode::invalid_argument,
        "pp " + shown + " adds up to " + std::to_string(sum) + (sum > layers ? " or more" : "") + " layers, and " + std::to_string(layers) + " are in use");
  }
  return stage;
}

Result<void> check_draft(const ModelDescription& model, const PoolOptions& options) {
  if (options.draft_layers > kDraftLayersMax) {
    return refuse(model, ErrorCode::out_of_range, "draft layers " + std::to_string(options.draft_layers) + " is more than " + std::to_string(kDraftLayersMax));
  }
  // The ratios beyond the model's layers are those of its draft layers.
  for (std::size_t i = model.layers; i < model.compression_ratios.size() && i - model.layers < options.draft_layers; ++i) {
    if (model.compression_ratios[i] != 0) {
      return refuse(model, ErrorCode::unsupported,
                    "draft layer " + std::to_string(i - model.layers) + " has ratio " + std::to_string(model.compression_ratios[i]) +
                        "; draft layers of compressed MLA are laid out with ratio 0");
    }
  }
  return {};
}

Result<Settled> settle(const ModelDescription& model, const PoolOptions& options, const Parallelism& cut, Rank rank) {
  Settled settled{.model = model, .stage = {}, .rank = rank};
  if (cut.tp == 0 || cut.tp > kRanksMax || rank.tp_rank >= cut.tp) {
    return refuse(model, ErrorCode::invalid_argument,
                  "tp rank " + std::to_string(rank.tp_rank) + " of tp " + std::to_string(cut.tp) + "; tp is from 1 to " + std::to_string(kRanksMax));
  }
  auto dtype = settle_dtype(model, options);
  if (!dtype) return fail(dtype.error());
  settled.dtype = *dtype;
  if (auto layout = settle_layout(model, options, settled); !layout) return fail(layout.error());
  if (auto page = settle_page_size(model, options); !page) return fail(page.error());
  settled.page_size = options.page_size;
  auto layers = settle_layers(model, options);
  if (!layers) return fail(layers.error());
  settled.layers = *layers;
  auto stage = settle_stage(model, cut, *layers, rank.pp_rank);
  if (!stage) return fail(stage.error());
  settled.stage = *stage;
  if (auto draft = check_draft(model, options); !draft) return fail(draft.error());
  settled.draft_layers = options.draft_layers;
  settled.pages = std::max<std::uint64_t>(options.pages, 1);
  settled.window_pages = options.window_pages != 0 ? options.window_pages : settled.pages;
  settled.request_slots = std::max<std::uint64_t>(options.request_slots, 1);
  return settled;
}

// ---- entries

/// The same buffer of several layers.
struct Section {
  Component component;
  Role role = Role::k;
  IndexSpace space = IndexSpace::pages;
  DType dtype = DType::bf16;
  std::uint32_t page_size = 1;
  std::uint64_t item_length_bytes = 0;
  std::uint64_t index_count = 1;
  std::optional<HeadRange> heads;
};

void append(Pool& pool, const Section& section, std::uint32_t layer) {
  Entry entry;
  entry.component = section.component;
  entry.role = section.role;
  entry.layer = layer;
  entry.space = section.space;
  entry.dtype = section.dtype;
  entry.page_size = section.page_size;
  entry.item_length_bytes = section.item_length_bytes;
  entry.pitch_bytes = section.item_length_bytes;
  entry.index_count = section.index_count;
  entry.heads = section.heads;
  pool.entries.push_back(entry);
}

/// Layers of the stage, or with `draft` the model's draft layers.
void append_all(Pool& pool, Section section, const Settled& settled, bool draft) {
  section.component.draft = draft;
  const Stage layers = draft ? Stage{0, settled.draft_layers} : settled.stage;
  for (std::uint32_t layer = layers.first; layer < layers.end; ++layer) append(pool, section, layer);
}

void append_ratio(Pool& pool, const Section& section, const Settled& settled, std::uint32_t ratio) {
  for (std::uint32_t layer = settled.stage.first; layer < settled.stage.end; ++layer) {
    if (settled.model.compression_ratios[layer] == ratio) append(pool, section, layer);
  }
}

/// Heads of a rank: whole blocks where tp divides the heads; one head on `replicas` ranks side by side where there are more ranks than heads.
Result<HeadRange> head_range(const Settled& settled) {
  const std::uint32_t heads = settled.model.kv_heads, tp = settled.rank.tp_size, rank = settled.rank.tp_rank;
  HeadRange range;
  range.bytes_per_head_token = settled.model.head_dim * dtype_bytes(settled.dtype);
  if (heads % tp == 0) {
    range.head_count = heads / tp;
    range.first_head = rank * range.head_count;
  } else if (tp % heads == 0) {
    const std::uint32_t replicas = tp / heads;
    range.head_count = 1;
    range.first_head = rank / replicas;
  } else {
    return refuse(settled.model, ErrorCode::invalid_argument,
                  "tp " + std::to_string(tp) + " neither divides the " + std::to_string(heads) + " KV heads nor is a multiple of them");
  }
  return range;
}

Result<void> add_attention(const Settled& settled, Pool& pool) {
  auto range = head_range(settled);
  if (!range) return fail(range.error());
  Section section{.component = {}, .dtype = settled.dtype, .page_size = settled.page_size, .index_count = settled.pages, .heads = *range};
  section.item_length_bytes = std::uint64_t{range->head_count} * range->bytes_per_head_token * settled.page_size;
  for (const bool draft : {false, true}) {
    if (draft && !settled.last_stage()) break;
    for (const Role role : {Role::k, Role::v}) {
      section.role = role;
      append_all(pool, section, settled, draft);
    }
  }
  return {};
}

void add_mla(const Settled& settled, Pool& pool) {
  const std::uint64_t row_bytes = std::uint64_t{settled.model.kv_lora_rank + settled.model.rope_head_dim} * dtype_bytes(settled.dtype);
  const Section latent{.component = {},
                       .role = Role::latent,
                       .dtype = settled.dtype,
                       .page_size = settled.page_size,
                       .item_length_bytes = row_bytes * settled.page_size,
                       .index_count = settled.pages,
                       .heads = {}};
  append_all(pool, latent, settled, false);
  if (settled.last_stage()) append_all(pool, latent, settled, true);
}

/// Bytes of the compressed kinds' rows and pages.
struct CompressedSizes {
  bool packed = false;  ///< paged_fp8; else unified_bf16
  std::uint64_t row_bytes = 0, index_row_bytes = 0;
  std::uint64_t c4_state_bytes = 0, c4_indexer_state_bytes = 0, c128_state_bytes = 0;

  /// A page of `rows` rows.
  [[nodiscard]] std::uint64_t page_bytes(std::uint64_t rows) const {
    const std::uint64_t bytes = rows * row_bytes;
    return packed ? (bytes + kPackedPagePaddingBytes - 1) / kPackedPagePaddingBytes * kPackedPagePaddingBytes : bytes;
  }
};

Result<CompressedSizes> compressed_sizes(const Settled& settled) {
  const ModelDescription& model = settled.model;
  CompressedSizes sizes;
  sizes.packed = settled.dtype == DType::fp8_e4m3;
  const std::uint64_t unrotated = model.head_dim - model.rope_head_dim;
  if (sizes.packed && unrotated % kPackedTileValues != 0) {
    return refuse(model, ErrorCode::unsupported,
                  "head_dim " + std::to_string(model.head_dim) + " less qk_rope_head_dim " + std::to_string(model.rope_head_dim) + " is no multiple of the " +
                      std::to_string(kPackedTileValues) + " values that share a scale in a packed row");
  }
  if (model.index_head_dim % kIndexTileValues != 0) {
    return refuse(model, ErrorCode::unsupported,
                  "index_head_dim " + std::to_string(model.index_head_dim) + " is no multiple of the " + std::to_string(kIndexTileValues) +
                      " values that share a scale in an index row");
  }
  // Packed: fp8 values without rotation, the rotated ones in bf16, one scale byte per tile, a pad byte.
  sizes.row_bytes =
      sizes.packed ? unrotated + std::uint64_t{model.rope_head_dim} * dtype_bytes(DType::bf16) + unrotated / kPackedTileValues + kPackedRowPadBytes
                   : std::uint64_t{model.head_dim} * dtype_bytes(DType::bf16);
  sizes.index_row_bytes = model.index_head_dim + std::uint64_t{model.index_head_dim} / kIndexTileValues * kIndexScaleBytes;
  // The compressor of ratio 4 overlaps its blocks: value and score of two of them per row. Online, C128 keeps (max, sum, value) instead of raw rows.
  sizes.c4_state_bytes = std::uint64_t{4} * model.head_dim * kStateValueBytes * kC4RingRows;
  sizes.c4_indexer_state_bytes = std::uint64_t{4} * model.index_head_dim * kStateValueBytes * kC4RingRows;
  sizes.c128_state_bytes =
      settled.online ? std::uint64_t{3} * model.head_dim * kStateValueBytes : std::uint64_t{2} * model.head_dim * kStateValueBytes * kC128Ratio;
  return sizes;
}

/// Rows of the per-request spaces. Error on overflow.
Result<std::uint64_t> rows_for_slots(const Settled& settled, std::uint64_t rows_per_slot, IndexSpace space) {
  std::uint64_t rows = 0;
  if (!checked_multiply(settled.request_slots, rows_per_slot, rows)) {
    return refuse(
        settled.model, ErrorCode::out_of_range,
        std::to_string(settled.request_slots) + " request slots of " + std::to_string(rows_per_slot) + " " + std::string(to_string(space)) + " pass 64 bits");
  }
  return rows;
}

void add_compressed_kv(const Settled& settled, const CompressedSizes& sizes, Pool& pool) {
  Section section{.component = {},
                  .dtype = sizes.packed ? DType::packed_fp8 : DType::bf16,
                  .page_size = settled.page_size,
                  .index_count = settled.pages,
                  .heads = {}};
  section.role = Role::c4;
  section.item_length_bytes = sizes.page_bytes(settled.page_size / kC4Ratio);
  append_ratio(pool, section, settled, kC4Ratio);
  Section indexer = section;
  indexer.role = Role::c4_indexer;
  indexer.dtype = DType::packed_fp8;
  indexer.item_length_bytes = sizes.index_row_bytes * (settled.page_size / kC4Ratio);
  append_ratio(pool, indexer, settled, kC4Ratio);
  section.role = Role::c128;
  section.item_length_bytes = sizes.page_bytes(settled.page_size / kC128Ratio);
  append_ratio(pool, section, settled, kC128Ratio);
}

/// The compressors of ratio 4 keep a ring per window page where the window is paged, and one per request where it is a ring.
void add_c4_states(const Settled& settled, const CompressedSizes& sizes, Pool& pool) {
  Section section{
      .component = {ComponentKind::swa, false}, .role = Role::c4_state, .dtype = DType::fp32, .item_length_bytes = sizes.c4_state_bytes, .heads = {}};
  section.space = sizes.packed ? IndexSpace::window_pages : IndexSpace::request_slots;
  section.page_size = sizes.packed ? settled.page_size : 1;
  section.index_count = sizes.packed ? settled.window_pages : settled.request_slots;
  append_ratio(pool, section, settled, kC4Ratio);
  section.role = Role::c4_indexer_state;
  section.item_length_bytes = sizes.c4_indexer_state_bytes;
  append_ratio(pool, section, settled, kC4Ratio);
}

Result<void> add_compressed_mla(const Settled& settled, Pool& pool) {
  auto sizes = compressed_sizes(settled);
  if (!sizes) return fail(sizes.error());
  pool.variant = sizes->packed ? "paged_fp8" : "unified_bf16";
  pool.window_tokens = settled.model.window_tokens;
  pool.compression_ratios.assign(settled.model.compression_ratios.begin(), settled.model.compression_ratios.begin() + settled.layers);
  const bool has_c128 = std::find(pool.compression_ratios.begin(), pool.compression_ratios.end(), kC128Ratio) != pool.compression_ratios.end();
  pool.c128_online = settled.online;
  pool.c128_ring_size = has_c128 && !settled.online ? kC128RingRows : 0;
  pool.ring_stride = sizes->packed ? 0 : settled.model.window_tokens;

  add_compressed_kv(settled, *sizes, pool);

  Section window{.component = {ComponentKind::swa, false},
                 .role = Role::swa_pool,
                 .space = IndexSpace::window_pages,
                 .dtype = DType::packed_fp8,
                 .page_size = settled.page_size,
                 .item_length_bytes = sizes->page_bytes(settled.page_size),
                 .index_count = settled.window_pages,
                 .heads = {}};
  if (!sizes->packed) {
    auto rows = rows_for_slots(settled, pool.ring_stride, IndexSpace::ring_rows);
    if (!rows) return fail(rows.error());
    window = {.component = {ComponentKind::swa_ring, false},
              .role = Role::ring,
              .space = IndexSpace::ring_rows,
              .dtype = DType::bf16,
              .page_size = 1,
              .item_length_bytes = sizes->row_bytes,
              .index_count = *rows,
              .heads = {}};
  }
  if (sizes->packed) append_all(pool, window, settled, false);
  add_c4_states(settled, *sizes, pool);
  if (!sizes->packed) append_all(pool, window, settled, false);

  auto c128_rows = rows_for_slots(settled, settled.online ? 1 : kC128RingRows / kC128Ratio, IndexSpace::c128_rows);
  if (!c128_rows) return fail(c128_rows.error());
  const Section c128{.component = {ComponentKind::c128_state, false},
                     .role = Role::c128_state,
                     .space = IndexSpace::c128_rows,
                     .dtype = DType::fp32,
                     .item_length_bytes = sizes->c128_state_bytes,
                     .index_count = *c128_rows,
                     .heads = {}};
  append_ratio(pool, c128, settled, kC128Ratio);
  // A draft layer has ratio 0: a window of its own and nothing compressed.
  if (settled.last_stage()) append_all(pool, window, settled, true);
  return {};
}

/// One entry after another, each on a border that suits every page size and device.
Result<void> place(const ModelDescription& model, Pool& pool) {
  std::uint64_t offset = 0;
  for (Entry& entry : pool.entries) {
    entry.base_address = offset;
    auto bytes = span_bytes(entry);
    std::uint64_t end = 0;
    if (!bytes || !checked_add(offset, *bytes, end) || !checked_add(end, kEntryAlignmentBytes - 1, end)) {
      return refuse(model, ErrorCode::out_of_range,
                    describe(entry) + " of " + std::to_string(entry.index_count) + " indices of " + std::to_string(entry.pitch_bytes) + " bytes at offset " +
                        std::to_string(offset) + " passes 64 bits");
    }
    offset = end / kEntryAlignmentBytes * kEntryAlignmentBytes;
  }
  return {};
}

}  // namespace

Result<std::vector<std::uint32_t>> split_stages(std::uint32_t layers, std::uint32_t stages) {
  if (stages == 0 || stages > layers) {
    return fail(ErrorCode::invalid_argument, "pp " + std::to_string(stages) + ": " + std::to_string(layers) + " layers cannot be cut into " + std::to_string(stages) +
                                                 " stages; pp is from 1 to " + std::to_string(layers));
  }
  std::vector<std::uint32_t> sizes(stages, layers / stages);
  for (std::uint32_t i = stages - layers % stages; i < stages; ++i) ++sizes[i];
  return sizes;
}

Result<Pool> build_pool(const ModelDescription& model, const PoolOptions& options, const Parallelism& cut, std::uint32_t tp_rank,
                        std::uint32_t pp_rank) {
  const Rank rank{.tp_size = cut.tp, .tp_rank = tp_rank, .pp_size = static_cast<std::uint32_t>(cut.pp.size()), .pp_rank = pp_rank};
  auto settled = settle(model, options, cut, rank);
  if (!settled) return fail(settled.error());
  Pool pool;
  pool.model = model.name;
  pool.kind = model.kind_text;
  pool.layers_total = settled->layers;
  pool.draft_layers = settled->draft_layers;
  pool.stage = settled->stage;
  pool.rank = rank;
  pool.page_size = settled->page_size;
  for (const std::uint32_t layer : model.sliding_layers) {
    if (layer < settled->layers) pool.sliding_layers.push_back(layer);
  }
  Result<void> added;
  switch (model.kind) {
    case ModelKind::attention: added = add_attention(*settled, pool); break;
    case ModelKind::mla: add_mla(*settled, pool); break;
    case ModelKind::compressed_mla: added = add_compressed_mla(*settled, pool); break;
  }
  if (!added) return fail(added.error());
  if (auto placed = place(model, pool); !placed) return fail(placed.error());
  if (auto valid = validate(pool); !valid) return fail(valid.error());
  return pool;
}

Result<Pool> build_whole_pool(const ModelDescription& model, const PoolOptions& options) {
  return build_pool(model, options, {.tp = 1, .pp = {options.layers.value_or(model.layers)}}, 0, 0);
}

Result<void> rebase(Pool& pool, std::uint64_t base) {
  for (const Entry& entry : pool.entries) {
    auto bytes = span_bytes(entry);
    std::uint64_t address = 0, end = 0;
    if (!bytes || !checked_add(entry.base_address, base, address) || !checked_add(address, *bytes, end)) {
      return fail(ErrorCode::out_of_range,
                  "rebase " + describe(entry) + " from " + std::to_string(entry.base_address) + " by " + std::to_string(base) + ": its end passes 64 bits");
    }
  }
  for (Entry& entry : pool.entries) entry.base_address += base;
  return {};
}

Result<std::uint64_t> pool_span_bytes(const Pool& pool) {
  if (pool.entries.empty()) return 0;
  std::uint64_t lowest = pool.entries.front().base_address, highest = 0;
  for (const Entry& entry : pool.entries) {
    auto bytes = span_bytes(entry);
    if (!bytes) return bytes;
    std::uint64_t end = 0;
    if (!checked_add(entry.base_address, *bytes, end)) {
      return fail(ErrorCode::out_of_range,
                  describe(entry) + " at " + std::to_string(entry.base_address) + " with " + std::to_string(*bytes) + " bytes passes 64 bits");
    }
    lowest = std::min(lowest, entry.base_address);
    highest = std::max(highest, end);
  }
  return highest - lowest;
}

Result<RequestIndices> request_indices(const Pool& pool, std::uint64_t tokens, std::uint64_t request_slot) {
  if (pool.page_size == 0) return fail(ErrorCode::invalid_argument, "page size of the pool is 0");
  RequestIndices indices;
  const std::uint64_t window = pool.window_tokens, page = pool.page_size;
  indices.pages = tokens / page + (tokens % page != 0 ? 1 : 0);
  const std::uint64_t window_start = tokens > window ? tokens - window : 0;
  const auto row = [&](std::uint64_t rows_per_slot, std::uint64_t place, std::uint64_t& ret) {
    return checked_multiply(request_slot, rows_per_slot, ret) && checked_add(ret, place, ret);
  };
  const auto overflow = [&](IndexSpace space) {
    return fail(ErrorCode::out_of_range, "request slot " + std::to_string(request_slot) + ": its " + std::string(to_string(space)) + " pass 64 bits");
  };

  // What a pool has per request follows from its own facts and not from its entries: both ends of a stage without such entries then agree.
  if (pool.ring_stride != 0) {
    for (std::uint64_t position = window_start; position < tokens; ++position) {
      std::uint64_t index = 0;
      if (!row(pool.ring_stride, position % pool.ring_stride, index)) return overflow(IndexSpace::ring_rows);
      indices.ring_rows.push_back(index);
    }
  } else if (window != 0) {
    indices.window_pages = indices.pages - window_start / page;
  }
  const bool pending = tokens % kC128Ratio != 0;
  if (pool.c128_online && pending) indices.c128_rows.push_back(request_slot);
  if (!pool.c128_online && pool.c128_ring_size != 0 && pending) {
    std::uint64_t index = 0;
    if (!row(pool.c128_ring_size / kC128Ratio, (tokens - 1) % pool.c128_ring_size / kC128Ratio, index)) return overflow(IndexSpace::c128_rows);
    indices.c128_rows.push_back(index);
  }
  const bool has_slots =
      std::any_of(pool.entries.begin(), pool.entries.end(), [](const Entry& entry) { return entry.space == IndexSpace::request_slots; });
  if (has_slots || pool.ring_stride != 0) indices.request_slots.push_back(request_slot);
  return indices;
}

}  // namespace kvferry
