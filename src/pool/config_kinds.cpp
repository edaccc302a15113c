// Recognising what is not laid out.
//
//   config.json ──► fields that tell another kind ──► refused: the kind's name, the fields and values, the kinds known
//             └───► fields that speak of the cache and that nobody here knows ──► refused: the field and its value
//
// A layout that is read from a config of the wrong kind gives wrong bytes without any error later, so the rule is to lay out only what is understood
// whole. Three nets: fields that belong to one other kind (kRules), architectures whose engine keeps another pool although the fields look plain, and
// words in the names of unknown fields (kLayoutWords). docs/pools.md has the same as a table.

#include "config_kinds.h"

#include <algorithm>
#include <array>
#include <utility>

#include "strict_json.h"

namespace kvferry::config {
namespace {

using nlohmann::json;

constexpr std::string_view kMamba = "Mamba state";
constexpr std::string_view kGatedDelta = "gated delta net (linear attention)";
constexpr std::string_view kKda = "KDA linear attention";
constexpr std::string_view kLinear = "linear attention";
constexpr std::string_view kLightning = "lightning (linear) attention";
constexpr std::string_view kConvolution = "short convolution state";
constexpr std::string_view kRecurrent = "recurrent state";
constexpr std::string_view kDsa = "DSA index";
constexpr std::string_view kBlockSparse = "block-sparse index";
constexpr std::string_view kOwnSlidingPool = "sliding window in a pool of its own";
constexpr std::string_view kChunked = "chunked (local) attention";
constexpr std::string_view kTwoWidths = "K and V of different width";
constexpr std::string_view kShared = "KV shared between layers";
constexpr std::string_view kByLayer = "heads that differ by layer";
constexpr std::string_view kCross = "cross attention (encoder-decoder)";
constexpr std::string_view kLooped = "layers run more than once";

/// When a field tells: it is set (config_fields.h, telling), is more than 1, or is set in a model that has no sliding window (MiMo-V2 carries a chunk
/// size beside its window), or is set and nothing above told more.
enum class Tells : std::uint8_t { set, above_one, without_window, alone };

struct Rule {
  std::string_view field;  ///< a trailing * stands for any ending
  std::string_view kind;
  Tells tells = Tells::set;
};

constexpr Rule kRules[] = {
    {"linear_attn_config", kKda},
    {"kda_*", kKda},
    {"linear_num_heads", kKda},
    {"linear_head_dim", kKda},
    {"linear_num_key_heads", kGatedDelta},
    {"linear_num_value_heads", kGatedDelta},
    {"linear_key_*", kGatedDelta},
    {"linear_value_*", kGatedDelta},
    {"linear_conv_*", kLinear, Tells::alone},
    {"full_attention_interval", kLinear, Tells::alone},
    {"hybrid_override_pattern", kMamba},
    {"layers_block_type", kMamba},
    {"mamba_*", kMamba},
    {"n_mamba_heads", kMamba},
    {"ssm_*", kMamba},
    {"state_size", kMamba},
    {"time_step_rank", kMamba},
    {"attn_layer_period", kMamba},
    {"attn_layer_indices", kMamba},
    {"conv_L_cache", kConvolution},
    {"block_types", kRecurrent},
    {"sparse_attention_config", kBlockSparse},
    {"hybrid_layer_pattern", kOwnSlidingPool},
    {"is_hybrid_swa", kOwnSlidingPool},
    {"swa_num_*", kOwnSlidingPool},
    {"swa_head_dim", kOwnSlidingPool},
    {"swa_v_head_dim", kOwnSlidingPool},
    {"swa_kv_*", kOwnSlidingPool},
    {"attention_chunk_size", kChunked, Tells::without_window},
    {"num_kv_shared_layers", kShared},
    {"use_cla", kShared},
    {"cla_share_factor", kShared, Tells::above_one},
    {"kv_source_layer*", kShared},
    {"yoco*", kShared},
    {"attention_k_eq_v", kShared},
    {"block_configs", kByLayer},
    {"num_key_value_heads_per_layer", kByLayer},
    {"num_global_key_value_heads", kByLayer},
    {"global_head_dim", kByLayer},
    {"is_encoder_decoder", kCross},
    {"cross_attention_layers", kCross},
    {"loop_num", kLooped, Tells::above_one},
    {"num_loops", kLooped, Tells::above_one},
    {"total_ut_steps", kLooped, Tells::above_one},
};

struct LayerType {
  std::string_view name;
  std::string_view kind;  ///< empty: plain attention, or laid out in one pool
};
constexpr LayerType kLayerTypes[] = {
    {"full_attention", {}},
    {"sliding_attention", {}},
    {"attention", {}},
    {"linear_attention", kLinear},
    {"mamba", kMamba},
    {"mamba2", kMamba},
    {"conv", kConvolution},
    {"recurrent", kRecurrent},
    {"chunked_attention", kChunked},
    {"deepseek_sparse_attention", kDsa},
    {"indexed_attention", kDsa},
};
constexpr std::string_view kCompressedLayerTypes[] = {"sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"};

// Architectures that keep sliding layers in a pool of their own (SGLang 0.5.23, srt/configs/model_config.py, is_hybrid_swa_model). Their fields are
// those of models whose sliding layers share the one pool (Gemma 3 and gpt-oss differ in nothing but the name), so only the name can tell.
constexpr std::string_view kOwnSlidingPoolArchitectures[] = {"BeamForCausalLM",
                                                             "DiffusionGemmaForBlockDiffusion",
                                                             "EmbeddingGemma2Model",
                                                             "Gemma4ForCausalLM",
                                                             "Gemma4ForConditionalGeneration",
                                                             "Gemma4UnifiedForConditionalGeneration",
                                                             "GptOssForCausalLM",
                                                             "GraniteMoeSWAForCausalLM",
                                                             "GraniteSWAForCausalLM",
                                                             "IQuestQ1ForCausalLM",
                                                             "IQuestQ1MTP",
                                                             "InklingForConditionalGeneration",
                                                             "InklingForConditionalGenerationMTP",
                                                             "LagunaForCausalLM",
                                                             "Llama4ForCausalLM",
                                                             "Llama4ForConditionalGeneration",
                                                             "MellumForCausalLM",
                                                             "MiMoV2FlashForCausalLM",
                                                             "MiMoV2ForCausalLM",
                                                             "MiMoV2MTP",
                                                             "MuseGlimmerForCausalLM",
                                                             "MuseGlimmerForConditionalGeneration",
                                                             "Step3p5ForCausalLM",
                                                             "Step3p5MTP",
                                                             "Step3p7ForConditionalGeneration",
                                                             "UnlimitedOCRForCausalLM"};
constexpr std::string_view kOwnSlidingPoolModelTypes[] = {"beam",        "gemma4", "gemma4_text",   "gpt_oss", "laguna", "llama4",
                                                          "llama4_text", "mellum", "mimo_v2_flash", "step3p5", "step3p7"};

// Two attention blocks in each layer, so two entries per layer (the same file, num_attention_layers).
constexpr std::string_view kTwoBlockArchitectures[] = {"LongcatFlashForCausalLM", "LongcatFlashForCausalLMNextN"};
constexpr std::string_view kTwoBlocks = "two attention blocks per layer";

// Known fields whose names have a layout word and which the readers of model_config.cpp use, or which change nothing in the cache.
constexpr std::string_view kKnownFields[] = {
    // read
    "head_dim", "attention_head_dim", "v_head_dim", "kv_channels", "num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_lora_rank",
    "qk_rope_head_dim", "qk_nope_head_dim", "qk_head_dim", "sliding_window", "sliding_window_pattern", "use_sliding_window", "max_window_layers",
    "layer_types", "attn_type_list", "compress_ratios", "global_attn_every_n_layers",
    // no effect on the cache
    "chunk_size_feed_forward", "compress_rope_theta", "compression_config", "cross_attention_hidden_size", "decoder_sparse_step", "swa_rope_theta",
    "_sliding_window_pattern"};
constexpr std::string_view kCompressedIndexFields[] = {"index_head_dim", "index_n_heads", "index_topk"};

constexpr std::string_view kLayoutWords[] = {"kv",        "kvs",        "swa",        "sliding",     "window",      "windows",   "mamba",
                                             "mamba2",    "ssm",        "conv",       "conv1d",      "recurrent",   "rwkv",      "wkv",
                                             "retention", "deltanet",   "gdn",        "kda",         "hybrid",      "lightning", "indexer",
                                             "compress",  "compressed", "compressor", "compression", "yoco",        "cla",       "loop",
                                             "loops",     "chunk",      "chunked",    "sparse",      "blocksparse", "cross"};
/// Two words side by side.
constexpr std::array<std::string_view, 2> kLayoutWordPairs[] = {
    {"key", "value"},         {"head", "dim"},       {"head", "dims"},       {"layer", "types"},      {"layer", "type"},
    {"block", "type"},        {"block", "types"},    {"attn", "type"},       {"attn", "types"},       {"attn", "layer"},
    {"attn", "layers"},       {"attention", "type"}, {"attention", "types"}, {"attention", "layers"}, {"attention", "interval"},
    {"attention", "pattern"}, {"full", "attention"}, {"full", "attn"},       {"global", "attn"},      {"global", "attention"},
    {"local", "attention"},   {"shared", "layers"},  {"share", "layers"},    {"attn", "pattern"},     {"linear", "attn"},
    {"linear", "attention"}};
/// Words that open the name of a field of something else: draft layers, experts, other modalities, rotation.
constexpr std::string_view kForeignOpenings[] = {"mtp",   "moe",  "mlp",    "vision", "image",       "audio",
                                                 "video", "rope", "router", "expert", "quantization"};

template <class List>
bool has(const List& list, std::string_view word) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}

bool matches(const Rule& rule, std::string_view field) {
  if (rule.field.ends_with('*')) return field.starts_with(rule.field.substr(0, rule.field.size() - 1));
  return field == rule.field;
}

std::vector<std::string> words_of(std::string_view field) {
  std::vector<std::string> words(1);
  for (const char c : field) {
    if (c == '_') {
      words.emplace_back();
    } else {
      words.back() += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return words;
}

bool speaks_of_layout(std::string_view field) {
  const std::vector<std::string> words = words_of(field);
  if (has(kForeignOpenings, words.front())) return false;
  if (words.front() == "index") return true;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (has(kLayoutWords, words[i])) return true;
    for (const auto& pair : kLayoutWordPairs) {
      if (i + 1 < words.size() && words[i] == pair[0] && words[i + 1] == pair[1]) return true;
    }
  }
  return false;
}

/// What was found of other kinds: their names in the order of the rules, and what tells each.
class Findings {
 public:
  void add(std::string_view kind, const std::string& evidence) {
    if (!has(kinds_, kind)) {
      kinds_.emplace_back(kind);
      if (evidence_.size() < kEvidenceMax) evidence_.push_back(evidence);
    }
  }

  [[nodiscard]] bool empty() const { return kinds_.empty(); }

  [[nodiscard]] Result<void> verdict(const Model& model, std::string_view base) const {
    if (kinds_.empty()) return {};
    std::string text = "kind " + std::string(base);
    for (const std::string& kind : kinds_) text += " + " + kind;
    text += " is not laid out yet (";
    for (std::size_t i = 0; i < evidence_.size(); ++i) text += (i == 0 ? "" : "; ") + evidence_[i];
    return model.top.refuse(ErrorCode::unsupported, text + "); kinds known: " + std::string(kKindsKnown));
  }

 private:
  static constexpr std::size_t kEvidenceMax = 4;
  std::vector<std::string> kinds_, evidence_;
};

bool is_compressed(const Model& model) { return model.text.telling("compress_ratios") != nullptr; }
bool is_mla(const Model& model) { return !is_compressed(model) && model.text.telling("kv_lora_rank") != nullptr; }

/// "GQA" and its likes for the message; a config of another kind may lack what tells them apart.
std::string_view base_word(const Model& model) {
  if (is_compressed(model)) return "compressed MLA";
  if (is_mla(model)) return "MLA";
  const json* heads = model.text.find("num_attention_heads");
  const json* kv_heads = model.text.find("num_key_value_heads");
  if (heads == nullptr || kv_heads == nullptr) return "attention";
  if (*heads == *kv_heads) return "MHA";
  return *kv_heads == json(1) ? "MQA" : "GQA";
}

void find_by_rules(const Object& object, Findings& findings) {
  for (const Rule& rule : kRules) {
    for (const auto& member : object.value().items()) {
      if (!matches(rule, member.key())) continue;
      const json* value = object.telling(member.key());
      if (value == nullptr || member.key().ends_with("_dtype")) continue;  // a state's dtype is written by models that have it under another name
      if (rule.tells == Tells::above_one && value->is_number() && value->get<double>() <= 1) continue;
      if (rule.tells == Tells::alone && !findings.empty()) continue;
      if (rule.tells == Tells::without_window && object.telling("sliding_window") != nullptr) continue;
      findings.add(rule.kind, object.shown(member.key()));
    }
  }
}

void find_by_index(const Model& model, Findings& findings) {
  if (is_compressed(model)) return;
  for (const auto& member : model.text.value().items()) {
    if (!member.key().starts_with("index_") && !member.key().starts_with("indexer_")) continue;
    if (model.text.telling(member.key()) == nullptr) continue;
    findings.add(is_mla(model) ? kDsa : "sparse attention index", model.text.shown(member.key()));
  }
}

void find_by_attention_types(const Model& model, Findings& findings) {
  const json* list = model.text.find("attn_type_list");
  if (list == nullptr) return;
  const bool plain = list->is_array() && std::all_of(list->begin(), list->end(), [](const json& type) { return type == json(1); });
  if (!plain) findings.add(kLightning, model.text.shown("attn_type_list"));
}

void find_by_architecture(const Model& model, Findings& findings) {
  for (const std::string& name : architectures_of(model)) {
    if (has(kOwnSlidingPoolArchitectures, name)) findings.add(kOwnSlidingPool, "architectures " + strict_json::show_text(name));
    if (has(kTwoBlockArchitectures, name)) findings.add(kTwoBlocks, "architectures " + strict_json::show_text(name));
  }
  for (const std::string& type : model_types_of(model)) {
    if (has(kOwnSlidingPoolModelTypes, type)) findings.add(kOwnSlidingPool, "model_type " + strict_json::show_text(type));
  }
}

void find_by_widths(const Model& model, Findings& findings) {
  if (is_compressed(model) || is_mla(model)) return;
  const json* value_width = model.text.telling("v_head_dim");
  const json* key_width = model.text.find("head_dim");
  if (value_width == nullptr || key_width == nullptr || *value_width == *key_width) return;
  findings.add(kTwoWidths, model.text.shown("v_head_dim") + " beside " + model.text.shown("head_dim"));
}

/// Layer types of other kinds are findings; a type nobody here knows is an error of its own.
Result<void> find_by_layer_types(const Model& model, Findings& findings) {
  auto types = model.text.texts("layer_types");
  if (!types) return fail(types.error());
  for (std::size_t i = 0; i < types->size(); ++i) {
    const std::string& type = (*types)[i];
    const std::string where = model.text.name_of("layer_types") + "[" + std::to_string(i) + "] " + strict_json::show_text(type);
    if (is_compressed(model)) {
      if (!has(kCompressedLayerTypes, type)) return model.top.refuse(ErrorCode::unsupported, where + " is not a layer type of compressed MLA");
      continue;
    }
    const auto known = std::find_if(std::begin(kLayerTypes), std::end(kLayerTypes), [&](const LayerType& entry) { return entry.name == type; });
    if (known != std::end(kLayerTypes)) {
      // The layer types of a hybrid say less than its other fields, so they speak only where nothing else did.
      if (!known->kind.empty() && findings.empty()) findings.add(known->kind, where);
      continue;
    }
    if (has(kCompressedLayerTypes, type))
      return model.text.missing("compress_ratios", where + " is one of compressed MLA, which needs a ratio per layer");
    return model.top.refuse(ErrorCode::unsupported,
                            where + " is an unknown layer type; known: full_attention, sliding_attention; kinds known: " + std::string(kKindsKnown));
  }
  return {};
}

Result<void> refuse_unknown_fields(const Object& object, bool compressed) {
  for (const auto& member : object.value().items()) {
    const std::string& field = member.key();
    if (has(kKnownFields, field) || (compressed && has(kCompressedIndexFields, field))) continue;
    if (std::any_of(std::begin(kRules), std::end(kRules), [&](const Rule& rule) { return matches(rule, field); })) continue;
    if (!speaks_of_layout(field) || object.telling(field) == nullptr) continue;
    return object.refuse(ErrorCode::unsupported,
                         object.shown(field) + " speaks of the KV layout and is not known; kinds known: " + std::string(kKindsKnown));
  }
  return {};
}

std::vector<std::string> strings_of(const Object& object, std::string_view field) {
  std::vector<std::string> list;
  const json* value = object.find(field);
  if (value == nullptr) return list;
  if (value->is_string()) list.push_back(value->get<std::string>());
  if (value->is_array()) {
    for (const json& item : *value) {
      if (item.is_string()) list.push_back(item.get<std::string>());
    }
  }
  return list;
}

std::vector<std::string> strings_of(const Model& model, std::string_view field) {
  std::vector<std::string> list = strings_of(model.text, field);
  if (&model.text.value() != &model.top.value()) {
    for (std::string& name : strings_of(model.top, field)) list.push_back(std::move(name));
  }
  return list;
}

}  // namespace

Result<Model> find_text_model(const Object& top) {
  constexpr std::string_view kNames[] = {"text_config", "language_config", "llm_config", "thinker_config"};
  constexpr int kNestedMax = 4;
  Object text = top;
  for (int depth = 0; depth < kNestedMax; ++depth) {
    std::optional<Object> next;
    std::string_view next_name;
    for (const std::string_view name : kNames) {
      auto child = text.child(name);
      if (!child) continue;
      if (next) return top.refuse(ErrorCode::unsupported, text.name_of(next_name) + " and " + text.name_of(name) + ": two text models in one config");
      next = std::move(child);
      next_name = name;
    }
    if (!next) return Model{top, std::move(text)};
    text = std::move(*next);
  }
  return top.refuse(ErrorCode::unsupported,
                    text.name_of("...") + ": the text model is nested deeper than " + std::to_string(kNestedMax) + " objects");
}

std::vector<std::string> architectures_of(const Model& model) { return strings_of(model, "architectures"); }
std::vector<std::string> model_types_of(const Model& model) { return strings_of(model, "model_type"); }

Result<void> refuse_other_kinds(const Model& model) {
  Findings findings;
  find_by_rules(model.text, findings);
  if (&model.text.value() != &model.top.value() && model.top.telling("is_encoder_decoder") != nullptr) {
    findings.add(kCross, model.top.shown("is_encoder_decoder"));
  }
  find_by_index(model, findings);
  find_by_attention_types(model, findings);
  find_by_architecture(model, findings);
  find_by_widths(model, findings);
  if (auto types = find_by_layer_types(model, findings); !types) return types;
  if (auto verdict = findings.verdict(model, base_word(model)); !verdict) return verdict;
  return refuse_unknown_fields(model.text, is_compressed(model));
}

}  // namespace kvferry::config
