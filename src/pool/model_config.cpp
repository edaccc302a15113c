// From a Hugging Face config.json to what it decides about the cache.
//
//   text ──► strict JSON ──► the text model's object ──► other kinds refused ──► compressed MLA (compress_ratios)
//                                                                           ├──► MLA (kv_lora_rank)
//                                                                           └──► attention (heads and their width)
//
// Sources: the field names and defaults of transformers 5.24 (models/*/configuration_*.py), and how SGLang 0.5.23 reads them
// (srt/configs/model_config.py: get_total_num_kv_heads, _derive_model_shapes). The rules are in docs/pools.md.

#include "kvferry/model_config.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "config_fields.h"
#include "config_kinds.h"
#include "strict_json.h"

namespace kvferry {
namespace {

using config::kHeadsMax;
using config::kLayersMax;
using config::kWidthMax;
using config::kWindowMax;
using config::Model;
using config::Object;
using config::Range;
using nlohmann::json;
using strict_json::show;
using strict_json::show_text;

constexpr std::size_t kConfigBytesMax = 16u << 20;
constexpr std::size_t kConfigDepthMax = 64;

/// What the configuration class of a model_type fills in where a file does not write the field (transformers 5.24). 0: the class derives it, heads
/// from num_attention_heads and the width from hidden_size / num_attention_heads. A field written as null is derived too.
struct ClassDefaults {
  std::string_view model_type;
  std::uint32_t heads, kv_heads, head_dim;
};
constexpr ClassDefaults kClassDefaults[] = {{"afmoe", 16, 0, 128},
                                            {"bitnet", 20, 5, 0},
                                            {"chameleon", 32, 32, 0},
                                            {"dots1", 32, 32, 0},
                                            {"emu3_text_model", 32, 8, 0},
                                            {"ernie4_5", 16, 2, 128},
                                            {"ernie4_5_moe", 20, 4, 0},
                                            {"exaone", 32, 8, 0},
                                            {"exaone4", 32, 32, 0},
                                            {"exaone_moe", 32, 32, 0},
                                            {"gemma", 16, 16, 256},
                                            {"gemma2", 8, 4, 256},
                                            {"gemma3_text", 8, 4, 256},
                                            {"glm", 32, 2, 128},
                                            {"glm4", 32, 2, 128},
                                            {"glm4_moe", 96, 8, 0},
                                            {"glm4v_text", 32, 2, 0},
                                            {"glm4v_moe_text", 96, 8, 0},
                                            {"helium", 20, 20, 128},
                                            {"hy_v3", 64, 8, 128},
                                            {"internlm3", 32, 2, 128},
                                            {"iquestcoder", 40, 8, 128},
                                            {"minimax_m2", 48, 8, 128},
                                            {"ministral", 32, 8, 0},
                                            {"ministral3", 32, 8, 128},
                                            {"mistral", 32, 8, 0},
                                            {"mixtral", 32, 8, 0},
                                            {"phi4_multimodal", 32, 8, 0},
                                            {"phimoe", 32, 8, 0},
                                            {"qwen2", 32, 32, 0},
                                            {"qwen2_moe", 16, 16, 0},
                                            {"qwen2_vl_text", 64, 8, 0},
                                            {"qwen2_5_vl_text", 64, 8, 0},
                                            {"qwen3", 32, 32, 128},
                                            {"qwen3_moe", 32, 4, 0},
                                            {"qwen3_vl_text", 32, 32, 128},
                                            {"qwen3_vl_moe_text", 16, 16, 0},
                                            {"sarvam_moe", 64, 4, 64},
                                            {"seed_oss", 80, 8, 128},
                                            {"smollm3", 16, 4, 0},
                                            {"solar_open", 64, 8, 128},
                                            {"stablelm", 32, 32, 0},
                                            {"starcoder2", 24, 2, 0},
                                            {"vaultgemma", 8, 4, 256}};

/// Every how many layers one is full where the file has a window and no pattern (the same classes). Others slide in every layer.
struct ClassPattern {
  std::string_view model_type;
  std::uint32_t full_every;
};
constexpr ClassPattern kClassPatterns[] = {{"afmoe", 4},  {"cohere2", 4},     {"exaone4", 4}, {"gemma2", 2},
                                           {"gemma3", 6}, {"gemma3_text", 6}, {"olmo3", 4},   {"vaultgemma", 2}};

/// Model types whose full and sliding layers lie in one pool (they are not in the list that config_kinds.cpp has from the engine). A mixture in a
/// model that neither list names is refused: nothing in the fields tells where its sliding layers live.
constexpr std::string_view kOnePoolMixtures[] = {
    "afmoe", "cohere2",   "cwm",   "dots1",     "exaone4",  "exaone_moe",    "gemma2",     "gemma3",          "gemma3_text", "ministral", "olmo3",
    "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "smollm3",     "vaultgemma"};

constexpr std::string_view kMultiQueryTypes[] = {"falcon", "gpt_bigcode", "RefinedWeb", "RefinedWebModel"};
constexpr std::string_view kCompressedTypes[] = {"deepseek_v4"};

/// The model_type of the text model, as the tables above spell it: "gemma3" around a text_config is "gemma3_text" inside.
template <class Table>
auto entry_for(const Model& model, const Table& table) -> decltype(std::begin(table)) {
  std::vector<std::string> types = config::model_types_of(model);
  if (&model.text.value() != &model.top.value() && !types.empty()) types.push_back(types.back() + "_text");
  for (const std::string& type : types) {
    const auto* found = std::find_if(std::begin(table), std::end(table), [&](const auto& entry) { return entry.model_type == type; });
    if (found != std::end(table)) return found;
  }
  return nullptr;
}

template <class Names>
bool is_type(const Model& model, const Names& names) {
  for (const std::string& type : config::model_types_of(model)) {
    if (std::find(std::begin(names), std::end(names), type) != std::end(names)) return true;
  }
  return false;
}

// ---- dtype

Result<std::optional<DType>> dtype_of(const Object& object) {
  std::optional<DType> agreed;
  std::string_view agreed_name;
  for (const std::string_view name : {std::string_view("torch_dtype"), std::string_view("dtype")}) {
    const json* value = object.find(name);
    if (value == nullptr || *value == json("auto")) continue;
    if (!value->is_string()) return object.refuse(ErrorCode::invalid_argument, object.shown(name) + " is not the name of a dtype");
    auto dtype = parse_dtype(value->get_ref<const std::string&>());
    if (!dtype) return object.refuse(dtype.error().code, object.name_of(name) + ": " + dtype.error().text);
    if (agreed && *agreed != *dtype) return object.refuse(ErrorCode::mismatch, object.shown(agreed_name) + " and " + object.shown(name) + " differ");
    agreed = *dtype;
    agreed_name = name;
  }
  return agreed;
}

/// The text model's own field decides; the file's outer one serves where there is none.
Result<void> read_dtype(const Model& model, ModelDescription& ret) {
  auto dtype = dtype_of(model.text);
  if (!dtype) return fail(dtype.error());
  if (!*dtype) dtype = dtype_of(model.top);
  if (!dtype) return fail(dtype.error());
  ret.dtype = *dtype;
  return {};
}

// ---- attention

Result<std::uint32_t> read_layers(const Model& model) {
  auto layers = model.text.count({"num_hidden_layers", "n_layer", "n_layers", "num_layers"}, {1, kLayersMax});
  if (!layers) return fail(layers.error());
  if (!*layers) return model.text.missing("num_hidden_layers", "the number of layers is not known");
  return **layers;
}

Result<std::uint32_t> read_heads(const Model& model) {
  auto heads = model.text.count({"num_attention_heads", "n_head", "n_heads"}, {1, kHeadsMax});
  if (!heads) return fail(heads.error());
  if (*heads) return **heads;
  if (const auto* defaults = entry_for(model, kClassDefaults); defaults != nullptr) return defaults->heads;
  return model.text.missing("num_attention_heads", "the number of attention heads is not known");
}

/// Multi-query models say so beside a head count that does not hold (Falcon: num_kv_heads 71, multi_query true). Empty: nothing overrules the count.
Result<std::optional<std::uint32_t>> read_multi_query(const Model& model, std::uint32_t heads) {
  const Object& text = model.text;
  auto multi_query = text.flag("multi_query");
  if (!multi_query) return fail(multi_query.error());
  auto new_decoder = text.flag("new_decoder_architecture");
  if (!new_decoder) return fail(new_decoder.error());
  if (!new_decoder->value_or(false)) {
    if (multi_query->value_or(false)) return 1u;
    if (!*multi_query && is_type(model, kMultiQueryTypes)) return text.missing("multi_query", "it decides between one KV head and many");
  }

  auto grouped = text.flag("multi_query_attention");
  if (!grouped) return fail(grouped.error());
  if (*grouped) {
    if (!**grouped) return heads;
    auto groups = text.count("multi_query_group_num", {1, kHeadsMax});
    if (!groups) return groups;
    if (!*groups) return text.missing("multi_query_group_num", "multi_query_attention is true, and this is the number of KV heads");
    return **groups;
  }

  const auto nested = text.child("attn_config");
  if (!nested) return std::nullopt;
  if (const json* type = nested->find("attn_type"); type != nullptr && *type == json("multiquery_attention")) return 1u;
  return nested->count("kv_n_heads", {1, kHeadsMax});
}

Result<std::uint32_t> read_kv_heads(const Model& model, std::uint32_t heads) {
  auto overruled = read_multi_query(model, heads);
  if (!overruled) return fail(overruled.error());
  if (*overruled) return **overruled;
  const Object& text = model.text;
  auto kv_heads = text.count({"num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups"}, {1, kHeadsMax});
  if (!kv_heads) return fail(kv_heads.error());
  if (*kv_heads) return **kv_heads;
  const auto* defaults = entry_for(model, kClassDefaults);
  if (!text.writes("num_key_value_heads") && defaults != nullptr && defaults->kv_heads != 0) return defaults->kv_heads;
  return heads;
}

Result<std::uint32_t> read_head_dim(const Model& model, std::uint32_t heads) {
  const Object& text = model.text;
  auto head_dim = text.count({"head_dim", "attention_head_dim", "kv_channels"}, {1, kWidthMax});
  if (!head_dim) return fail(head_dim.error());
  if (*head_dim) return **head_dim;
  const auto* defaults = entry_for(model, kClassDefaults);
  if (!text.writes("head_dim") && defaults != nullptr && defaults->head_dim != 0) return defaults->head_dim;
  auto hidden = text.count({"hidden_size", "n_embd", "n_embed", "d_model"}, {1, kWidthMax});
  if (!hidden) return fail(hidden.error());
  if (!*hidden) return text.missing("head_dim", "it is neither given nor to be derived, for hidden_size is missing too");
  if (**hidden % heads != 0) {
    return text.refuse(ErrorCode::invalid_argument, "head_dim is missing, and hidden_size " + std::to_string(**hidden) +
                                                        " is no multiple of num_attention_heads " + std::to_string(heads));
  }
  return **hidden / heads;
}

/// 0: no window. Qwen's configs carry a window beside the word that it is off.
Result<std::uint32_t> read_window(const Object& text) {
  auto used = text.flag("use_sliding_window");
  if (!used) return fail(used.error());
  auto window = text.count("sliding_window", {0, kWindowMax});
  if (!window) return fail(window.error());
  return used->value_or(true) ? window->value_or(0) : 0;
}

/// Every how many layers one is full, or a pattern of L (local) and G (global): 'L' and 'G' per layer, repeated. Empty: the file has none.
Result<std::string> read_pattern(const Model& model) {
  const json* written = nullptr;
  std::string_view name;
  for (const std::string_view candidate : {"sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"}) {
    if (written = model.text.find(candidate); written != nullptr) {
      name = candidate;
      break;
    }
  }
  if (written != nullptr && written->is_string()) {
    const auto& letters = written->get_ref<const std::string&>();
    if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos) {
      return model.text.refuse(ErrorCode::unsupported, model.text.shown(name) + " is not a pattern of L and G");
    }
    return letters;
  }
  std::uint32_t full_every = 0;
  if (written != nullptr) {
    auto count = model.text.count(name, {1, kLayersMax});
    if (!count) return fail(count.error());
    full_every = **count;
  } else if (const auto* pattern = entry_for(model, kClassPatterns); pattern != nullptr) {
    full_every = pattern->full_every;
  } else {
    return std::string();
  }
  return std::string(full_every - 1, 'L') + "G";
}

/// Layers that see a window only. They live in the one pool and are sent whole; only the figure of what grows for ever leaves them out.
Result<std::vector<std::uint32_t>> read_sliding_layers(const Model& model, std::uint32_t layers) {
  const Object& text = model.text;
  auto types = text.texts("layer_types");
  if (!types) return fail(types.error());
  if (!types->empty() && types->size() != layers) {
    return text.refuse(ErrorCode::mismatch,
                       text.name_of("layer_types") + " has " + std::to_string(types->size()) + " entries for " + std::to_string(layers) + " layers");
  }
  auto window = read_window(text);
  if (!window) return fail(window.error());
  auto pattern = read_pattern(model);
  if (!pattern) return fail(pattern.error());
  std::vector<std::uint32_t> sliding;
  if (!types->empty()) {
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      if ((*types)[layer] == "sliding_attention") sliding.push_back(layer);
    }
    return sliding;
  }
  if (*window == 0) return sliding;
  std::uint32_t first = 0;
  // With use_sliding_window the first max_window_layers are full (qwen2, qwen3 and their relatives).
  if (text.telling("use_sliding_window") != nullptr) {
    auto full_layers = text.count("max_window_layers", {0, kLayersMax});
    if (!full_layers) return fail(full_layers.error());
    first = full_layers->value_or(0);
  }
  for (std::uint32_t layer = first; layer < layers; ++layer) {
    if (pattern->empty() || (*pattern)[layer % pattern->size()] == 'L') sliding.push_back(layer);
  }
  return sliding;
}

Result<void> check_list_length(const Model& model, std::string_view field, std::uint32_t layers) {
  const json* list = model.text.find(field);
  if (list == nullptr || list->size() == layers) return {};
  return model.text.refuse(ErrorCode::mismatch,
                           model.text.name_of(field) + " has " + std::to_string(list->size()) + " entries for " + std::to_string(layers) + " layers");
}

/// Fields of latent attention without the latent's width, and widths of V or Q that are not that of K: the file is not plain attention after all.
Result<void> check_plain(const Model& model, std::uint32_t head_dim) {
  const Object& text = model.text;
  for (const std::string_view field : {"qk_rope_head_dim", "qk_nope_head_dim", "q_lora_rank"}) {
    if (text.telling(field) != nullptr)
      return text.missing("kv_lora_rank", text.shown(field) + " belongs to MLA, which cannot be laid out without it");
  }
  for (const std::string_view field : {"v_head_dim", "qk_head_dim"}) {
    if (text.telling(field) == nullptr) continue;
    auto width = text.count(field, {1, kWidthMax});
    if (!width) return fail(width.error());
    if (**width != head_dim) {
      return text.refuse(ErrorCode::unsupported, "kind attention + K and V of different width is not laid out yet (" + text.shown(field) +
                                                     " beside a head width of " + std::to_string(head_dim) +
                                                     "); kinds known: " + std::string(config::kKindsKnown));
    }
  }
  return {};
}

Result<void> read_attention(const Model& model, ModelDescription& ret) {
  auto heads = read_heads(model);
  if (!heads) return fail(heads.error());
  auto kv_heads = read_kv_heads(model, *heads);
  if (!kv_heads) return fail(kv_heads.error());
  if (*kv_heads > *heads || *heads % *kv_heads != 0) {
    return model.text.refuse(ErrorCode::invalid_argument,
                             std::to_string(*heads) + " attention heads are no multiple of " + std::to_string(*kv_heads) + " KV heads");
  }
  auto head_dim = read_head_dim(model, *heads);
  if (!head_dim) return fail(head_dim.error());
  if (auto plain = check_plain(model, *head_dim); !plain) return plain;
  if (auto fits = check_list_length(model, "attn_type_list", ret.layers); !fits) return fits;
  auto sliding = read_sliding_layers(model, ret.layers);
  if (!sliding) return fail(sliding.error());
  if (!sliding->empty() && sliding->size() < ret.layers && !is_type(model, kOnePoolMixtures)) {
    return model.text.refuse(ErrorCode::unsupported,
                             "kind attention + sliding window is not laid out for " + model.text.shown("model_type") + " (" +
                                 std::to_string(sliding->size()) + " of " + std::to_string(ret.layers) + " layers slide, " +
                                 model.text.shown("sliding_window") +
                                 "): it is not known whether they share the one pool; kinds known: " + std::string(config::kKindsKnown));
  }
  ret.kind = ModelKind::attention;
  ret.kind_text = *kv_heads == *heads ? "MHA" : *kv_heads == 1 ? "MQA" : "GQA";
  ret.kv_heads = *kv_heads;
  ret.head_dim = *head_dim;
  ret.sliding_layers = std::move(*sliding);
  return {};
}

// ---- MLA

Result<std::uint32_t> required(const Object& text, std::string_view field, Range range, std::string_view why) {
  auto value = text.count(field, range);
  if (!value) return fail(value.error());
  if (!*value) return text.missing(field, why);
  return **value;
}

/// num_key_value_heads and head_dim of MLA configs are those of the projections; the cache has one latent row per token.
Result<void> read_mla(const Model& model, ModelDescription& ret) {
  const Object& text = model.text;
  if (const json* used = text.find("use_mla"); used != nullptr && *used != json(true)) {
    return text.refuse(ErrorCode::mismatch, text.shown("use_mla") + " beside " + text.shown("kv_lora_rank"));
  }
  if (const json* unrotated = text.telling("use_mla_nope"); unrotated != nullptr) {
    return text.refuse(ErrorCode::unsupported, text.shown("use_mla_nope") + ": MLA without the rotary part is not laid out yet; kinds known: " +
                                                   std::string(config::kKindsKnown));
  }
  auto window = read_window(text);
  if (!window) return fail(window.error());
  auto types = text.texts("layer_types");
  if (!types) return fail(types.error());
  if (*window != 0 || std::find(types->begin(), types->end(), "sliding_attention") != types->end()) {
    return text.refuse(ErrorCode::unsupported, "kind MLA + sliding window is not laid out yet (" +
                                                   text.shown(*window != 0 ? "sliding_window" : "layer_types") +
                                                   "); kinds known: " + std::string(config::kKindsKnown));
  }
  auto rank = required(text, "kv_lora_rank", {1, kWidthMax}, "the width of the latent is not known");
  if (!rank) return fail(rank.error());
  auto rope = required(text, "qk_rope_head_dim", {1, kWidthMax}, "the rotary part of the latent row is not known");
  if (!rope) return fail(rope.error());
  ret.kind = ModelKind::mla;
  ret.kind_text = "MLA";
  ret.kv_lora_rank = *rank;
  ret.rope_head_dim = *rope;
  return {};
}

// ---- compressed MLA

Result<std::vector<std::uint32_t>> read_ratios(const Model& model, std::uint32_t layers) {
  const Object& text = model.text;
  const json* list = text.find("compress_ratios");
  if (!list->is_array()) return text.refuse(ErrorCode::invalid_argument, text.shown("compress_ratios") + " is not a list");
  if (list->size() < layers || list->size() > kLayersMax) {
    return text.refuse(ErrorCode::mismatch, text.name_of("compress_ratios") + " has " + std::to_string(list->size()) + " entries for " +
                                                std::to_string(layers) + " layers; at least one per layer, at most " + std::to_string(kLayersMax));
  }
  std::vector<std::uint32_t> ratios;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const json& ratio = (*list)[i];
    if (ratio != json(0u) && ratio != json(4u) && ratio != json(128u)) {
      return text.refuse(ErrorCode::unsupported,
                         text.name_of("compress_ratios") + "[" + std::to_string(i) + "] " + show(ratio) + " is an unknown ratio; known: 0, 4, 128");
    }
    if (!ratio.is_number_integer()) {
      return text.refuse(ErrorCode::invalid_argument,
                         text.name_of("compress_ratios") + "[" + std::to_string(i) + "] " + show(ratio) + " is not an integer");
    }
    ratios.push_back(ratio.get<std::uint32_t>());
  }
  return ratios;
}

/// Newer files say the same per layer in words.
Result<void> check_layer_types(const Model& model, const std::vector<std::uint32_t>& ratios) {
  auto types = model.text.texts("layer_types");
  if (!types) return fail(types.error());
  for (std::size_t i = 0; i < types->size() && i < ratios.size(); ++i) {
    const std::uint32_t said = (*types)[i] == "compressed_sparse_attention" ? 4 : (*types)[i] == "heavily_compressed_attention" ? 128 : 0;
    if (said != ratios[i]) {
      return model.text.refuse(ErrorCode::mismatch, model.text.name_of("layer_types") + "[" + std::to_string(i) + "] " + show_text((*types)[i]) +
                                                        " and compress_ratios[" + std::to_string(i) + "] " + std::to_string(ratios[i]) + " differ");
    }
  }
  return {};
}

Result<void> check_shared_row(const Object& text, const ModelDescription& model) {
  const struct {
    std::string_view field;
    std::uint32_t expected;
  } kChecks[] = {{"num_key_value_heads", 1}, {"v_head_dim", model.head_dim}, {"qk_nope_head_dim", model.head_dim - model.rope_head_dim}};
  for (const auto& check : kChecks) {
    auto value = text.count(check.field, {0, kWidthMax});
    if (!value) return fail(value.error());
    if (*value && **value != check.expected) {
      return text.refuse(ErrorCode::unsupported, text.shown(check.field) + ": the one shared row of compressed MLA with head_dim " +
                                                     std::to_string(model.head_dim) + " and qk_rope_head_dim " + std::to_string(model.rope_head_dim) +
                                                     " has " + std::to_string(check.expected));
    }
  }
  return {};
}

Result<void> read_compressed_mla(const Model& model, ModelDescription& ret) {
  const Object& text = model.text;
  auto ratios = read_ratios(model, ret.layers);
  if (!ratios) return fail(ratios.error());
  if (auto agree = check_layer_types(model, *ratios); !agree) return agree;
  auto head_dim = required(text, "head_dim", {1, kWidthMax}, "the width of the shared row is not known");
  if (!head_dim) return fail(head_dim.error());
  auto rope = required(text, "qk_rope_head_dim", {1, kWidthMax}, "the rotary part of the shared row is not known");
  if (!rope) return fail(rope.error());
  if (*rope >= *head_dim) {
    return text.refuse(ErrorCode::invalid_argument, text.shown("qk_rope_head_dim") + " is not less than " + text.shown("head_dim"));
  }
  auto index = required(text, "index_head_dim", {1, kWidthMax}, "the width of the index keys is not known");
  if (!index) return fail(index.error());
  auto window = required(text, "sliding_window", {1, kWindowMax}, "every layer of compressed MLA has a window");
  if (!window) return fail(window.error());
  ret.kind = ModelKind::compressed_mla;
  ret.kind_text = "compressed MLA";
  ret.kv_heads = 1;
  ret.head_dim = *head_dim;
  ret.rope_head_dim = *rope;
  ret.index_head_dim = *index;
  ret.window_tokens = *window;
  ret.compression_ratios = std::move(*ratios);
  return check_shared_row(text, ret);
}

/// Some multimodal configs repeat the text model's counts outside. Which of two holds is not ours to guess.
Result<void> check_outer_counts(const Model& model) {
  if (&model.text.value() == &model.top.value()) return {};
  for (const std::string_view field : {"num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "kv_lora_rank"}) {
    const json* outer = model.top.find(field);
    const json* inner = model.text.find(field);
    if (outer != nullptr && inner != nullptr && *outer != *inner) {
      return model.top.refuse(ErrorCode::mismatch, model.top.shown(field) + " and " + model.text.shown(field) + " differ");
    }
  }
  return {};
}

bool is_deepseek_v4(const Model& model) {
  const std::vector<std::string> names = config::architectures_of(model);
  return is_type(model, kCompressedTypes) ||
         std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.starts_with("DeepseekV4"); });
}

Result<ModelDescription> read_model(const Model& model) {
  if (is_deepseek_v4(model) && model.text.telling("compress_ratios") == nullptr) {
    return model.text.missing("compress_ratios", "compressed MLA needs the ratio of every layer");
  }
  if (auto same = check_outer_counts(model); !same) return fail(same.error());
  if (auto known = config::refuse_other_kinds(model); !known) return fail(known.error());
  ModelDescription description;
  description.name = model.top.model();
  auto layers = read_layers(model);
  if (!layers) return fail(layers.error());
  description.layers = *layers;
  if (auto dtype = read_dtype(model, description); !dtype) return fail(dtype.error());
  Result<void> read;
  if (model.text.telling("compress_ratios") != nullptr) {
    read = read_compressed_mla(model, description);
  } else if (model.text.telling("kv_lora_rank") != nullptr) {
    read = read_mla(model, description);
  } else {
    read = read_attention(model, description);
  }
  if (!read) return fail(read.error());
  return description;
}

}  // namespace

Result<ModelDescription> parse_model_config(std::string_view text, std::string_view name) {
  const std::string given(name);
  auto parsed = strict_json::parse(text, {.bytes_max = kConfigBytesMax, .depth_max = kConfigDepthMax, .python_constants = true});
  if (!parsed) return fail(parsed.error().within("model config " + (given.empty() ? std::string("(unnamed)") : given)));
  std::string shown = given;
  if (shown.empty()) {
    const auto type = parsed->is_object() ? parsed->find("model_type") : parsed->end();
    shown = type != parsed->end() && type->is_string() ? type->get<std::string>() : "(unnamed)";
  }
  if (!parsed->is_object()) return fail(ErrorCode::invalid_argument, "model config " + shown + ": " + show(*parsed) + " is not an object");
  try {
    auto model = config::find_text_model(Object(*parsed, "", shown));
    if (!model) return fail(model.error());
    return read_model(*model);
  } catch (const std::exception& error) {  // of the JSON library; every access above is checked, so this is a fault of ours
    return fail(ErrorCode::internal, "model config " + shown + ": " + error.what());
  }
}

}  // namespace kvferry
