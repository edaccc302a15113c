#include "kvferry/pool.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace kvferry {
namespace {

constexpr std::size_t kTextBytesMax = 1024;
constexpr std::uint32_t kRingRowsMax = 1u << 20;  ///< window and ring rows of a request: a request's index list stays small
constexpr std::string_view kDraftPrefix = "draft.";

template <class T>
struct Name {
  T value;
  std::string_view word;
};

constexpr Name<ComponentKind> kComponents[] = {{ComponentKind::kv, "kv"},
                                               {ComponentKind::swa, "swa"},
                                               {ComponentKind::swa_ring, "swa_ring"},
                                               {ComponentKind::c128_state, "c128_state"},
                                               {ComponentKind::dsa, "dsa"},
                                               {ComponentKind::mamba, "mamba"},
                                               {ComponentKind::minimax_index_k, "minimax_index_k"},
                                               {ComponentKind::minimax_dense_kv, "minimax_dense_kv"},
                                               {ComponentKind::block_scale, "block_scale"}};
constexpr Name<Role> kRoles[] = {{Role::k, "k"},
                                 {Role::v, "v"},
                                 {Role::latent, "latent"},
                                 {Role::c4, "c4"},
                                 {Role::c4_indexer, "c4_indexer"},
                                 {Role::c128, "c128"},
                                 {Role::swa_pool, "swa_pool"},
                                 {Role::c4_state, "c4_state"},
                                 {Role::c4_indexer_state, "c4_indexer_state"},
                                 {Role::ring, "ring"},
                                 {Role::c128_state, "c128_state"},
                                 {Role::index_k, "index_k"},
                                 {Role::conv, "conv"},
                                 {Role::temporal, "temporal"}};
constexpr Name<IndexSpace> kSpaces[] = {{IndexSpace::pages, "pages"},
                                        {IndexSpace::window_pages, "window_pages"},
                                        {IndexSpace::ring_rows, "ring_rows"},
                                        {IndexSpace::c128_rows, "c128_rows"},
                                        {IndexSpace::request_slots, "request_slots"}};
static_assert(std::size(kSpaces) == kIndexSpacesCount);
constexpr Name<MemoryKind> kMemoryKinds[] = {{MemoryKind::host, "host"}, {MemoryKind::device, "device"}};
/// The first name of a dtype is the one that is written.
constexpr Name<DType> kDTypes[] = {{DType::bf16, "bf16"},
                                   {DType::bf16, "bfloat16"},
                                   {DType::fp16, "fp16"},
                                   {DType::fp16, "float16"},
                                   {DType::fp16, "half"},
                                   {DType::fp32, "fp32"},
                                   {DType::fp32, "float32"},
                                   {DType::fp32, "float"},
                                   {DType::fp8_e4m3, "fp8_e4m3"},
                                   {DType::fp8_e4m3, "fp8"},
                                   {DType::fp8_e4m3, "fp8_e4m3fn"},
                                   {DType::fp8_e4m3, "float8_e4m3"},
                                   {DType::fp8_e4m3, "float8_e4m3fn"},
                                   {DType::fp8_e5m2, "fp8_e5m2"},
                                   {DType::fp8_e5m2, "float8_e5m2"},
                                   {DType::int8, "int8"},
                                   {DType::uint8, "uint8"},
                                   {DType::packed_fp8, "packed_fp8"}};

template <class T, std::size_t N>
std::string_view word_of(T value, const Name<T> (&names)[N]) {
  const auto* found = std::find_if(std::begin(names), std::end(names), [&](const Name<T>& name) { return name.value == value; });
  return found == std::end(names) ? std::string_view("unknown") : found->word;
}

/// The refusal has the word, cut where it is long, and what is known.
template <class T, std::size_t N>
Result<T> value_of(std::string_view word, const Name<T> (&names)[N], std::string_view what) {
  const auto* found = std::find_if(std::begin(names), std::end(names), [&](const Name<T>& name) { return name.word == word; });
  if (found != std::end(names)) return found->value;
  constexpr std::size_t kShownBytesMax = 64;
  std::string text = "unknown " + std::string(what) + " \"" + std::string(word.substr(0, kShownBytesMax)) +
                     (word.size() > kShownBytesMax ? "..." : "") + "\"; known: ";
  bool first = true;
  for (const Name<T>& name : names) {
    text += (first ? "" : ", ") + std::string(name.word);
    first = false;
  }
  return fail(ErrorCode::invalid_argument, std::move(text));
}

std::string range_of(Stage stage) { return "[" + std::to_string(stage.first) + ", " + std::to_string(stage.end) + ")"; }

bool is_paged(IndexSpace space) { return space == IndexSpace::pages || space == IndexSpace::window_pages; }

// ---- validate

Unexpected broken(const Pool& pool, ErrorCode code, const std::string& text) {
  return fail(code, "pool " + (pool.model.empty() ? std::string("(unnamed)") : pool.model) + ": " + text);
}
Unexpected broken(const Pool& pool, const Entry& entry, ErrorCode code, const std::string& text) {
  return broken(pool, code, describe(entry) + ": " + text);
}

Result<void> validate_places(const Pool& pool) {
  if (pool.layers_total == 0) return broken(pool, ErrorCode::invalid_argument, "layers_total is 0");
  if (pool.stage.first >= pool.stage.end || pool.stage.end > pool.layers_total) {
    return broken(pool, ErrorCode::out_of_range,
                  "stage " + range_of(pool.stage) + " is not a range of the model's " + std::to_string(pool.layers_total) + " layers");
  }
  const Rank& rank = pool.rank;
  if (rank.tp_size == 0 || rank.tp_rank >= rank.tp_size) {
    return broken(pool, ErrorCode::out_of_range, "tp rank " + std::to_string(rank.tp_rank) + " of tp size " + std::to_string(rank.tp_size));
  }
  if (rank.pp_size == 0 || rank.pp_rank >= rank.pp_size) {
    return broken(pool, ErrorCode::out_of_range, "pp rank " + std::to_string(rank.pp_rank) + " of pp size " + std::to_string(rank.pp_size));
  }
  return {};
}

Result<void> validate_facts(const Pool& pool) {
  for (const std::string* text : {&pool.model, &pool.kind, &pool.variant}) {
    if (text->size() > kTextBytesMax) {
      return broken(pool, ErrorCode::limit,
                    "a text of " + std::to_string(text->size()) + " bytes (model, kind or variant); at most " + std::to_string(kTextBytesMax));
    }
  }
  if (pool.page_size == 0) return broken(pool, ErrorCode::invalid_argument, "page_size is 0");
  if (pool.ring_stride > kRingRowsMax) {
    return broken(pool, ErrorCode::limit,
                  "ring_stride " + std::to_string(pool.ring_stride) + " is more than " + std::to_string(kRingRowsMax) + " rows per request");
  }
  if (pool.ring_stride != 0 && pool.window_tokens > pool.ring_stride) {
    return broken(pool, ErrorCode::invalid_argument,
                  "window_tokens " + std::to_string(pool.window_tokens) + " does not fit ring_stride " + std::to_string(pool.ring_stride));
  }
  if (pool.c128_ring_size % 128 != 0) {
    return broken(pool, ErrorCode::invalid_argument, "c128_ring_size " + std::to_string(pool.c128_ring_size) + " is no multiple of 128");
  }
  if (pool.c128_online && pool.c128_ring_size != 0) {
    return broken(pool, ErrorCode::invalid_argument, "c128_online with a c128_ring_size of " + std::to_string(pool.c128_ring_size));
  }
  const auto& ratios = pool.compression_ratios;
  if (!ratios.empty() && ratios.size() != pool.layers_total) {
    return broken(pool, ErrorCode::mismatch, std::to_string(ratios.size()) + " compression ratios for " + std::to_string(pool.layers_total) + " layers");
  }
  for (std::size_t layer = 0; layer < ratios.size(); ++layer) {
    if (ratios[layer] != 0 && ratios[layer] != 4 && ratios[layer] != 128) {
      return broken(pool, ErrorCode::unsupported,
                    "unknown compression ratio " + std::to_string(ratios[layer]) + " of layer " + std::to_string(layer) + "; known: 0, 4, 128");
    }
  }
  for (std::size_t i = 0; i < pool.sliding_layers.size(); ++i) {
    const bool ascends = i == 0 || pool.sliding_layers[i - 1] < pool.sliding_layers[i];
    if (!ascends || pool.sliding_layers[i] >= pool.layers_total) {
      return broken(pool, ErrorCode::invalid_argument,
                    "sliding layer " + std::to_string(pool.sliding_layers[i]) + " at place " + std::to_string(i) + " is doubled, out of order or beyond the " +
                        std::to_string(pool.layers_total) + " layers");
    }
  }
  return {};
}

Result<void> validate_sizes(const Pool& pool, const Entry& entry) {
  const struct {
    std::string_view name;
    std::uint64_t value;
  } kSizes[] = {
      {"item length", entry.item_length_bytes}, {"pitch", entry.pitch_bytes}, {"index count", entry.index_count}, {"page size", entry.page_size}};
  for (const auto& size : kSizes) {
    if (size.value == 0) return broken(pool, entry, ErrorCode::invalid_argument, std::string(size.name) + " is 0");
  }
  if (entry.pitch_bytes < entry.item_length_bytes) {
    return broken(pool, entry, ErrorCode::invalid_argument,
                  "pitch " + std::to_string(entry.pitch_bytes) + " is less than item length " + std::to_string(entry.item_length_bytes));
  }
  if (!is_paged(entry.space) && entry.page_size != 1) {
    return broken(pool, entry, ErrorCode::invalid_argument,
                  "page size " + std::to_string(entry.page_size) + " in space " + std::string(to_string(entry.space)) + ", which has no pages of tokens");
  }
  auto bytes = span_bytes(entry);
  if (!bytes) return broken(pool, ErrorCode::out_of_range, bytes.error().text);
  if (std::uint64_t end = 0; !checked_add(entry.base_address, *bytes, end)) {
    return broken(pool, entry, ErrorCode::out_of_range,
                  "base address " + std::to_string(entry.base_address) + " and " + std::to_string(*bytes) + " bytes pass 64 bits");
  }
  return {};
}

Result<void> validate_heads(const Pool& pool, const Entry& entry) {
  if (!entry.heads) return {};
  const HeadRange& heads = *entry.heads;
  if (heads.head_count == 0 || heads.bytes_per_head_token == 0) {
    return broken(pool, entry, ErrorCode::invalid_argument,
                  std::to_string(heads.head_count) + " heads of " + std::to_string(heads.bytes_per_head_token) + " bytes per token");
  }
  std::uint64_t bytes = 0;
  if (!checked_multiply(std::uint64_t{heads.head_count} * heads.bytes_per_head_token, entry.page_size, bytes) || bytes != entry.item_length_bytes) {
    return broken(pool, entry, ErrorCode::mismatch,
                  "item length " + std::to_string(entry.item_length_bytes) + " is not that of " + std::to_string(heads.head_count) + " heads of " +
                      std::to_string(heads.bytes_per_head_token) + " bytes and " + std::to_string(entry.page_size) + " tokens");
  }
  return {};
}

Result<void> validate_layer(const Pool& pool, const Entry& entry) {
  if (entry.component.draft) {
    if (entry.layer >= pool.draft_layers) {
      return broken(pool, entry, ErrorCode::out_of_range, "the model has " + std::to_string(pool.draft_layers) + " draft layers");
    }
    if (pool.stage.end != pool.layers_total) {
      return broken(
          pool, entry, ErrorCode::invalid_argument,
          "draft layers belong to the last stage, and stage " + range_of(pool.stage) + " of " + std::to_string(pool.layers_total) + " layers is not it");
    }
    return {};
  }
  if (entry.layer < pool.stage.first || entry.layer >= pool.stage.end) {
    return broken(pool, entry, ErrorCode::out_of_range, "layer is outside stage " + range_of(pool.stage));
  }
  return {};
}

using Key = std::tuple<Component, Role, std::uint32_t>;
Key key_of(const Entry& entry) { return {entry.component, entry.role, entry.layer}; }

bool counts_per_token(const Entry& entry) {
  const ComponentKind kind = entry.component.kind;
  return entry.space == IndexSpace::pages && (kind == ComponentKind::kv || kind == ComponentKind::dsa || kind == ComponentKind::minimax_index_k ||
                                              kind == ComponentKind::minimax_dense_kv);
}

/// Item lengths are summed per page size first, so that the figure is exact: the quotient is taken once.
template <class Predicate>
double bytes_per_token(const Pool& pool, Predicate counts) {
  std::map<std::uint32_t, std::uint64_t> bytes;
  for (const Entry& entry : pool.entries) {
    if (counts(entry)) bytes[entry.page_size] += entry.item_length_bytes;
  }
  double sum = 0;
  for (const auto& [page_size, page_bytes] : bytes) sum += static_cast<double>(page_bytes) / page_size;
  return sum;
}

// ---- digest

/// Feeds fixed-width little-endian values, so that both ends get the same digest on any machine.
class Digest {
 public:
  Digest() { bytes_.reserve(256); }
  void add(std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) bytes_.push_back(static_cast<unsigned char>(value >> shift));
  }
  void add(std::string_view text) {
    add(text.size());
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }
  [[nodiscard]] std::uint64_t value() const { return XXH64(bytes_.data(), bytes_.size(), 0); }

 private:
  std::vector<unsigned char> bytes_;
};

}  // namespace

std::string to_string(Component component) {
  return (component.draft ? std::string(kDraftPrefix) : std::string()) + std::string(word_of(component.kind, kComponents));
}
std::string_view to_string(Role role) noexcept { return word_of(role, kRoles); }
std::string_view to_string(IndexSpace space) noexcept { return word_of(space, kSpaces); }
std::string_view to_string(DType dtype) noexcept { return word_of(dtype, kDTypes); }
std::string_view to_string(MemoryKind kind) noexcept { return word_of(kind, kMemoryKinds); }

Result<Component> parse_component(std::string_view word) {
  const bool draft = word.starts_with(kDraftPrefix);
  auto kind = value_of(draft ? word.substr(kDraftPrefix.size()) : word, kComponents, "component");
  if (!kind) return fail(kind.error());
  return Component{*kind, draft};
}
Result<Role> parse_role(std::string_view word) { return value_of(word, kRoles, "role"); }
Result<IndexSpace> parse_index_space(std::string_view word) { return value_of(word, kSpaces, "index space"); }
Result<MemoryKind> parse_memory_kind(std::string_view word) { return value_of(word, kMemoryKinds, "memory kind"); }

Result<DType> parse_dtype(std::string_view word) {
  constexpr std::string_view kTorchPrefix = "torch.";
  return value_of(word.starts_with(kTorchPrefix) ? word.substr(kTorchPrefix.size()) : word, kDTypes, "dtype");
}

std::uint32_t dtype_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::fp32: return 4;
    case DType::bf16:
    case DType::fp16: return 2;
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
    case DType::int8:
    case DType::uint8:
    case DType::packed_fp8: return 1;
  }
  return 1;
}

std::string describe(const Entry& entry) {
  return to_string(entry.component) + " " + std::string(to_string(entry.role)) + " layer " + std::to_string(entry.layer);
}

Result<std::uint64_t> span_bytes(const Entry& entry) {
  if (entry.index_count == 0) return 0;
  std::uint64_t bytes = 0;
  if (!checked_multiply(entry.index_count - 1, entry.pitch_bytes, bytes) || !checked_add(bytes, entry.item_length_bytes, bytes)) {
    return fail(ErrorCode::out_of_range,
                describe(entry) + ": " + std::to_string(entry.index_count) + " indices of pitch " + std::to_string(entry.pitch_bytes) + " pass 64 bits");
  }
  return bytes;
}

Result<void> validate(const Pool& pool) {
  if (auto places = validate_places(pool); !places) return places;
  if (auto facts = validate_facts(pool); !facts) return facts;
  std::map<Key, std::size_t> seen;
  std::array<const Entry*, kIndexSpacesCount> first_of_space{};
  for (std::size_t i = 0; i < pool.entries.size(); ++i) {
    const Entry& entry = pool.entries[i];
    if (auto sizes = validate_sizes(pool, entry); !sizes) return sizes;
    if (auto heads = validate_heads(pool, entry); !heads) return heads;
    if (auto layer = validate_layer(pool, entry); !layer) return layer;
    if (const auto [other, added] = seen.try_emplace(key_of(entry), i); !added) {
      return broken(pool, entry, ErrorCode::exists,
                    "entries " + std::to_string(other->second) + " and " + std::to_string(i) + " have the same component, role and layer");
    }
    const Entry*& first = first_of_space.at(static_cast<std::size_t>(entry.space));
    if (first == nullptr) first = &entry;
    if (first->index_count != entry.index_count) {
      return broken(pool, entry, ErrorCode::mismatch,
                    std::to_string(entry.index_count) + " " + std::string(to_string(entry.space)) + ", and " + describe(*first) + " has " +
                        std::to_string(first->index_count));
    }
  }
  return {};
}

std::uint64_t ratios_digest(const std::vector<std::uint32_t>& ratios) noexcept {
  if (ratios.empty()) return 0;
  // Each ratio is hashed with the digest so far as the seed, so the order counts.
  std::uint64_t digest = ratios.size();
  for (const std::uint32_t ratio : ratios) {
    const unsigned char bytes[4] = {static_cast<unsigned char>(ratio), static_cast<unsigned char>(ratio >> 8),
                                    static_cast<unsigned char>(ratio >> 16), static_cast<unsigned char>(ratio >> 24)};
    digest = XXH64(bytes, sizeof bytes, digest);
  }
  return digest == 0 ? 1 : digest;  // 0 says that there is no list
}

std::uint64_t layout_digest(const Pool& pool) {
  Digest digest;
  digest.add(pool.variant);
  for (const std::uint64_t fact :
       {std::uint64_t{pool.layers_total}, std::uint64_t{pool.draft_layers}, std::uint64_t{pool.stage.first}, std::uint64_t{pool.stage.end},
        std::uint64_t{pool.rank.tp_size}, std::uint64_t{pool.rank.tp_rank}, std::uint64_t{pool.rank.pp_size}, std::uint64_t{pool.rank.pp_rank},
        std::uint64_t{pool.page_size}, std::uint64_t{pool.window_tokens}, std::uint64_t{pool.ring_stride}, std::uint64_t{pool.c128_ring_size},
        std::uint64_t{pool.c128_online}, ratios_digest(pool.compression_ratios), std::uint64_t{pool.compression_ratios.size()},
        std::uint64_t{pool.entries.size()}}) {
    digest.add(fact);
  }
  std::vector<const Entry*> sorted;
  sorted.reserve(pool.entries.size());
  for (const Entry& entry : pool.entries) sorted.push_back(&entry);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Entry* a, const Entry* b) { return key_of(*a) < key_of(*b); });
  for (const Entry* entry : sorted) {
    digest.add(to_string(entry->component));
    digest.add(to_string(entry->role));
    digest.add(entry->layer);
    digest.add(to_string(entry->space));
    digest.add(to_string(entry->dtype));
    digest.add(entry->page_size);
    digest.add(entry->item_length_bytes);
    const HeadRange heads = entry->heads.value_or(HeadRange{});
    digest.add(entry->heads ? 1 : 0);
    digest.add(heads.head_count);
    digest.add(heads.first_head);
    digest.add(heads.bytes_per_head_token);
  }
  return digest.value();
}

double kv_bytes_per_token(const Pool& pool) { return bytes_per_token(pool, counts_per_token); }

double kv_bytes_per_token_growing(const Pool& pool) {
  return bytes_per_token(pool, [&](const Entry& entry) {
    const bool slides = entry.component == Component{} && std::binary_search(pool.sliding_layers.begin(), pool.sliding_layers.end(), entry.layer);
    return counts_per_token(entry) && !slides;
  });
}

std::uint64_t state_bytes_per_request(const Pool& pool) {
  std::uint64_t bytes = 0;
  for (const Entry& entry : pool.entries) {
    if (entry.component.kind == ComponentKind::mamba && entry.space == IndexSpace::request_slots) bytes += entry.item_length_bytes;
  }
  return bytes;
}

}  // namespace kvferry
