// Reading config.json: the traps published files hold, what is refused, and hostile text.

#include <random>

#include "pool_test.h"

namespace kvferry {
namespace {

using nlohmann::json;

Result<ModelDescription> parse(const json& config) { return parse_model_config(config.dump(), "test-model"); }

/// A plain model of 4 layers, 8 heads of 16, 2 KV heads.
json plain() {
  return {{"model_type", "some_new_model"}, {"architectures", {"SomeNewForCausalLM"}},
          {"num_hidden_layers", 4},         {"hidden_size", 128},
          {"num_attention_heads", 8},       {"num_key_value_heads", 2},
          {"torch_dtype", "bfloat16"}};
}
json mla() {
  return {{"model_type", "some_mla"}, {"num_hidden_layers", 4}, {"hidden_size", 128},      {"num_attention_heads", 8}, {"num_key_value_heads", 8},
          {"kv_lora_rank", 512},      {"qk_rope_head_dim", 64}, {"qk_nope_head_dim", 128}, {"v_head_dim", 128},        {"torch_dtype", "bfloat16"}};
}
json compressed() {
  return {{"model_type", "deepseek_v4"},
          {"num_hidden_layers", 3},
          {"hidden_size", 128},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 1},
          {"head_dim", 512},
          {"qk_rope_head_dim", 64},
          {"index_head_dim", 128},
          {"index_n_heads", 64},
          {"index_topk", 512},
          {"sliding_window", 128},
          {"torch_dtype", "bfloat16"},
          {"compress_ratios", {0, 4, 128, 0}}};
}
json with(json config, const json& changes) {
  for (const auto& change : changes.items()) config[change.key()] = change.value();
  return config;
}
json without(json config, std::initializer_list<const char*> fields) {
  for (const char* field : fields) config.erase(field);
  return config;
}

struct Heads {
  std::string kind;
  std::uint32_t kv_heads, head_dim;
};
void check_heads(const std::string& reason, const json& config, const Heads& expected) {
  INFO(reason);
  const ModelDescription model = test::require_value(parse(config));
  CHECK(model.kind == ModelKind::attention);
  CHECK(model.kind_text == expected.kind);
  CHECK(model.kv_heads == expected.kv_heads);
  CHECK(model.head_dim == expected.head_dim);
}

void check_refused(const std::string& reason, const json& config, ErrorCode code, const std::vector<std::string>& words) {
  INFO(reason);
  const auto model = parse(config);
  REQUIRE(!model.has_value());
  INFO(model.error().text);
  CHECK(model.error().code == code);
  CHECK_THAT(model.error().text, Catch::StartsWith("model config test-model: "));
  for (const std::string& word : words) CHECK_THAT(model.error().text, Catch::Contains(word));
}

TEST_CASE("head counts and widths are found under the names that published files use") {
  check_heads("derived width", plain(), {"GQA", 2, 16});
  check_heads("width given and not hidden_size / heads", with(plain(), {{"head_dim", 128}}), {"GQA", 2, 128});
  check_heads("width null is derived", with(plain(), {{"head_dim", nullptr}}), {"GQA", 2, 16});
  check_heads("attention_head_dim (Nemotron)", with(plain(), {{"attention_head_dim", 64}}), {"GQA", 2, 64});
  check_heads("kv_channels (ChatGLM, Qwen 1)", with(plain(), {{"kv_channels", 32}}), {"GQA", 2, 32});
  check_heads("no KV head count: as many as heads", without(plain(), {"num_key_value_heads"}), {"MHA", 8, 16});
  check_heads("KV head count null: as many as heads", with(plain(), {{"num_key_value_heads", nullptr}}), {"MHA", 8, 16});
  check_heads("one KV head", with(plain(), {{"num_key_value_heads", 1}}), {"MQA", 1, 16});
  check_heads("one head is MHA", with(plain(), {{"num_key_value_heads", 1}, {"num_attention_heads", 1}}), {"MHA", 1, 128});
  check_heads("GPT-2 names", {{"model_type", "gpt2"}, {"n_layer", 12}, {"n_head", 12}, {"n_embd", 768}}, {"MHA", 12, 64});
  check_heads("GPTBigCode: multi_query", {{"model_type", "gpt_bigcode"}, {"n_layer", 40}, {"n_head", 48}, {"n_embd", 6144}, {"multi_query", true}},
              {"MQA", 1, 128});
  check_heads("DBRX names",
              {{"model_type", "dbrx"}, {"n_layers", 40}, {"n_heads", 48}, {"d_model", 6144}, {"attn_config", {{"kv_n_heads", 8}, {"clip_qkv", 8}}}},
              {"GQA", 8, 128});
  check_heads("MPT with one KV head",
              {{"model_type", "mpt"}, {"n_layers", 2}, {"n_heads", 4}, {"d_model", 64}, {"attn_config", {{"attn_type", "multiquery_attention"}}}},
              {"MQA", 1, 16});
  check_heads("groups under num_attention_groups", with(without(plain(), {"num_key_value_heads"}), {{"num_attention_groups", 4}}), {"GQA", 4, 16});
  check_heads("the same fact twice, in agreement", with(plain(), {{"num_kv_heads", 2}, {"n_head", 8}}), {"GQA", 2, 16});
}

TEST_CASE("a multi-query flag overrules the head count beside it, as the engines read it") {
  const json falcon = {{"model_type", "falcon"}, {"num_hidden_layers", 2}, {"hidden_size", 4544}, {"num_attention_heads", 71}, {"num_kv_heads", 71}};
  check_heads("Falcon 7B", with(falcon, {{"multi_query", true}, {"new_decoder_architecture", false}}), {"MQA", 1, 64});
  check_heads(
      "Falcon 40B: the new decoder ignores the flag",
      with(falcon,
           {{"multi_query", true}, {"new_decoder_architecture", true}, {"num_attention_heads", 128}, {"hidden_size", 8192}, {"num_kv_heads", 8}}),
      {"GQA", 8, 64});
  check_heads("Falcon RW: no multi-query", with(falcon, {{"multi_query", false}}), {"MHA", 71, 64});
  check_refused("Falcon without the flag", falcon, ErrorCode::invalid_argument, {"multi_query is missing"});
  const json chatglm = {{"model_type", "chatglm"},   {"num_layers", 28},   {"hidden_size", 4096},
                        {"num_attention_heads", 32}, {"kv_channels", 128}, {"multi_query_group_num", 2}};
  check_heads("ChatGLM with groups", with(chatglm, {{"multi_query_attention", true}}), {"GQA", 2, 128});
  check_heads("ChatGLM without: the group count does not hold", with(chatglm, {{"multi_query_attention", false}}), {"MHA", 32, 128});
  check_refused("ChatGLM groups asked for and not given", with(without(chatglm, {"multi_query_group_num"}), {{"multi_query_attention", true}}),
                ErrorCode::invalid_argument, {"multi_query_group_num is missing"});
}

TEST_CASE("a field that a file leaves out has the value of its published configuration class") {
  const json gemma = {{"model_type", "gemma3"},
                      {"torch_dtype", "bfloat16"},
                      {"text_config", {{"model_type", "gemma3_text"}, {"hidden_size", 2560}, {"num_hidden_layers", 34}}}};
  check_heads("Gemma 3 4B writes neither heads nor width", gemma, {"GQA", 4, 256});
  check_heads("Gemma 2 without width: not hidden_size / heads", with(plain(), {{"model_type", "gemma2"}}), {"GQA", 2, 256});
  check_heads("written null is derived all the same", with(plain(), {{"model_type", "gemma2"}, {"head_dim", nullptr}}), {"GQA", 2, 16});
  check_heads("Mistral without KV heads has 8",
              with(without(plain(), {"num_key_value_heads"}), {{"model_type", "mistral"}, {"num_attention_heads", 16}}), {"GQA", 8, 8});
  check_heads("Llama without KV heads has as many as heads", with(without(plain(), {"num_key_value_heads"}), {{"model_type", "llama"}}),
              {"MHA", 8, 16});
}

TEST_CASE("MLA is told by its latent and ignores the head counts beside it") {
  const ModelDescription model =
      test::require_value(parse(with(mla(), {{"head_dim", 192}, {"num_key_value_heads", 128}, {"qk_head_dim", 192}, {"sliding_window", nullptr}})));
  CHECK(model.kind == ModelKind::mla);
  CHECK(model.kind_text == "MLA");
  CHECK(model.kv_lora_rank == 512);
  CHECK(model.rope_head_dim == 64);
  CHECK(model.kv_heads == 0);
}

TEST_CASE("compressed MLA keeps the ratios beyond its layers for the draft") {
  const ModelDescription model = test::require_value(parse(compressed()));
  CHECK(model.kind == ModelKind::compressed_mla);
  CHECK(model.layers == 3);
  CHECK(model.compression_ratios == std::vector<std::uint32_t>{0, 4, 128, 0});
  CHECK(model.window_tokens == 128);
  CHECK(model.head_dim == 512);
  CHECK(model.index_head_dim == 128);
  CHECK(
      parse(with(compressed(), {{"layer_types", {"sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"}}})).has_value());
}

TEST_CASE("dtypes are read under both names, the text model's before the outer one") {
  const auto dtype = [](const json& config) { return test::require_value(parse(config)).dtype; };
  CHECK(dtype(plain()) == DType::bf16);
  CHECK(dtype(with(without(plain(), {"torch_dtype"}), {{"dtype", "float16"}})) == DType::fp16);
  CHECK(dtype(with(plain(), {{"torch_dtype", "torch.float32"}})) == DType::fp32);
  CHECK(dtype(with(plain(), {{"torch_dtype", "auto"}})) == std::nullopt);
  CHECK(dtype(without(plain(), {"torch_dtype"})) == std::nullopt);
  const json nested = {{"model_type", "vl"}, {"torch_dtype", "float32"}, {"text_config", plain()}};
  CHECK(dtype(nested) == DType::bf16);
  json outer = nested;
  outer["text_config"].erase("torch_dtype");
  CHECK(dtype(outer) == DType::fp32);
  check_refused("two names that differ", with(plain(), {{"dtype", "float16"}}), ErrorCode::mismatch,
                {"torch_dtype \"bfloat16\"", "dtype \"float16\""});
  check_refused("an unknown dtype", with(plain(), {{"torch_dtype", "int4"}}), ErrorCode::invalid_argument,
                {"torch_dtype", "\"int4\"", "known: bf16"});
  check_refused("not a name", with(plain(), {{"torch_dtype", 16}}), ErrorCode::invalid_argument, {"torch_dtype 16"});
}

TEST_CASE("a nested text model is read, and two descriptions of one model have to agree") {
  const json vision = {{"hidden_size", 1024}, {"num_hidden_layers", 24}, {"num_attention_heads", 16}};
  check_heads("text_config", {{"model_type", "vl"}, {"vision_config", vision}, {"text_config", plain()}}, {"GQA", 2, 16});
  check_heads("language_config", {{"model_type", "vl"}, {"language_config", plain()}}, {"GQA", 2, 16});
  check_heads("two levels", {{"model_type", "omni"}, {"thinker_config", {{"text_config", plain()}}}}, {"GQA", 2, 16});
  check_heads("text_config null", with(plain(), {{"text_config", nullptr}}), {"GQA", 2, 16});
  check_refused("two text models", {{"text_config", plain()}, {"llm_config", plain()}}, ErrorCode::unsupported, {"text_config", "llm_config"});
  check_refused("counts that differ outside and inside", {{"num_hidden_layers", 5}, {"text_config", plain()}}, ErrorCode::mismatch,
                {"num_hidden_layers 5", "text_config.num_hidden_layers 4"});
  check_refused("missing inside", {{"num_hidden_layers", 5}, {"text_config", {{"num_attention_heads", 8}}}}, ErrorCode::invalid_argument,
                {"text_config.num_hidden_layers is missing"});
  check_refused("its own kind is judged", {{"text_config", with(plain(), {{"index_topk", 8}})}}, ErrorCode::unsupported,
                {"text_config.index_topk 8"});
}

TEST_CASE("sliding layers in the one pool change the growing figure and nothing else") {
  const auto sliding = [](const json& config) { return test::require_value(parse(config)).sliding_layers; };
  using Layers = std::vector<std::uint32_t>;
  const json qwen = with(plain(), {{"model_type", "qwen2"}, {"sliding_window", 64}});
  CHECK(sliding(with(qwen, {{"use_sliding_window", false}})).empty());
  CHECK(sliding(with(qwen, {{"use_sliding_window", true}, {"max_window_layers", 3}})) == Layers{3});
  CHECK(sliding(with(plain(), {{"sliding_window", nullptr}})).empty());
  CHECK(sliding(with(plain(), {{"sliding_window", 64}})) == Layers{0, 1, 2, 3});
  CHECK(sliding(with(plain(), {{"model_type", "gemma2"}, {"sliding_window", 64}})) == Layers{0, 2});
  CHECK(sliding(with(plain(), {{"model_type", "gemma3_text"}, {"sliding_window", 64}, {"num_hidden_layers", 7}})) == Layers{0, 1, 2, 3, 4, 6});
  CHECK(sliding(with(plain(), {{"model_type", "cohere2"}, {"sliding_window", 64}, {"sliding_window_pattern", 3}})) == Layers{0, 1, 3});
  CHECK(sliding(with(plain(), {{"model_type", "exaone4"}, {"sliding_window", 64}, {"sliding_window_pattern", "LG"}})) == Layers{0, 2});
  CHECK(sliding(with(plain(), {{"model_type", "olmo3"},
                               {"sliding_window", 64},
                               {"layer_types", {"full_attention", "sliding_attention", "full_attention", "full_attention"}}})) == Layers{1});
  CHECK(sliding(with(plain(), {{"layer_types", {"full_attention", "full_attention", "full_attention", "full_attention"}}})).empty());
  check_refused("a mixture whose pool is not known", with(plain(), {{"sliding_window", 64}, {"sliding_window_pattern", 2}}), ErrorCode::unsupported,
                {"some_new_model", "2 of 4 layers slide", "sliding_window 64", "kinds known"});
  check_refused("types for other layers", with(plain(), {{"layer_types", {"full_attention"}}}), ErrorCode::mismatch,
                {"layer_types has 1 entries for 4 layers"});
  check_refused("an unknown pattern", with(plain(), {{"model_type", "exaone4"}, {"sliding_window", 8}, {"sliding_window_pattern", "LX"}}),
                ErrorCode::unsupported, {"\"LX\""});
}

TEST_CASE("fields that tell another kind are refused by the kind's name") {
  const auto check = [](const json& config, const std::string& kind, const std::string& evidence) {
    check_refused(evidence, config, ErrorCode::unsupported,
                  {kind, evidence, "is not laid out yet", "kinds known: GQA, MHA, MQA, MLA, compressed MLA"});
  };
  check(with(plain(), {{"hybrid_override_pattern", "M*"}}), "GQA + Mamba state", "hybrid_override_pattern \"M*\"");
  check(with(plain(), {{"layers_block_type", {"mamba"}}}), "Mamba state", "layers_block_type [\"mamba\"]");
  check(with(plain(), {{"mamba_d_state", 16}}), "Mamba state", "mamba_d_state 16");
  check(with(plain(), {{"ssm_state_size", 16}}), "Mamba state", "ssm_state_size 16");
  check(with(plain(), {{"attn_layer_period", 8}}), "Mamba state", "attn_layer_period 8");
  check(with(plain(), {{"linear_num_key_heads", 16}}), "gated delta net", "linear_num_key_heads 16");
  check(with(plain(), {{"full_attention_interval", 4}}), "linear attention", "full_attention_interval 4");
  check(with(mla(), {{"linear_attn_config", {{"kda_layers", {1}}}}}), "MLA + KDA linear attention", "linear_attn_config");
  check(with(plain(), {{"layer_types", {"linear_attention", "full_attention"}}}), "linear attention", "layer_types[0] \"linear_attention\"");
  check(with(plain(), {{"layer_types", {"full_attention", "conv"}}}), "short convolution state", "layer_types[1] \"conv\"");
  check(with(plain(), {{"attn_type_list", {1, 1, 0, 1}}}), "lightning (linear) attention", "attn_type_list [1,1,0,1]");
  check(with(plain(), {{"block_types", {"recurrent"}}}), "recurrent state", "block_types [\"recurrent\"]");
  check(with(mla(), {{"index_topk", 2048}}), "MLA + DSA index", "index_topk 2048");
  check(with(plain(), {{"index_head_dim", 128}}), "GQA + sparse attention index", "index_head_dim 128");
  check(with(plain(), {{"sparse_attention_config", {{"sparse_block_size", 128}}}}), "block-sparse index", "sparse_attention_config");
  check(with(plain(), {{"swa_num_key_value_heads", 8}}), "sliding window in a pool of its own", "swa_num_key_value_heads 8");
  check(with(plain(), {{"hybrid_layer_pattern", {0, 1}}}), "sliding window in a pool of its own", "hybrid_layer_pattern [0,1]");
  check(with(plain(), {{"architectures", {"GptOssForCausalLM"}}}), "sliding window in a pool of its own", "GptOssForCausalLM");
  check(with(plain(), {{"model_type", "gpt_oss"}}), "sliding window in a pool of its own", "\"gpt_oss\"");
  check(with(plain(), {{"attention_chunk_size", 8192}}), "chunked (local) attention", "attention_chunk_size 8192");
  check(with(plain(), {{"head_dim", 192}, {"v_head_dim", 128}}), "K and V of different width", "v_head_dim 128 beside head_dim 192");
  check(with(plain(), {{"v_head_dim", 32}}), "K and V of different width", "v_head_dim 32 beside a head width of 16");
  check(with(plain(), {{"num_kv_shared_layers", 2}}), "KV shared between layers", "num_kv_shared_layers 2");
  check(with(plain(), {{"use_cla", true}}), "KV shared between layers", "use_cla true");
  check(with(plain(), {{"cla_share_factor", 2}}), "KV shared between layers", "cla_share_factor 2");
  check(with(plain(), {{"yoco_layers", 2}}), "KV shared between layers", "yoco_layers 2");
  check(with(compressed(), {{"kv_source_layer_ids", {1}}}), "compressed MLA + KV shared between layers", "kv_source_layer_ids [1]");
  check(with(plain(), {{"block_configs", {{{"attention", 1}}}}}), "heads that differ by layer", "block_configs");
  check(with(plain(), {{"global_head_dim", 512}}), "heads that differ by layer", "global_head_dim 512");
  check(with(plain(), {{"is_encoder_decoder", true}}), "cross attention (encoder-decoder)", "is_encoder_decoder true");
  check(with(plain(), {{"cross_attention_layers", {1}}}), "cross attention", "cross_attention_layers [1]");
  check(with(plain(), {{"num_loops", 2}}), "layers run more than once", "num_loops 2");
  check(with(mla(), {{"architectures", {"LongcatFlashForCausalLM"}}}), "two attention blocks per layer", "LongcatFlashForCausalLM");
  check(with(mla(), {{"sliding_window", 128}}), "MLA + sliding window", "sliding_window 128");
}

TEST_CASE("the same fields tell nothing where they are off") {
  const auto is_plain = [](const json& changes) {
    INFO(changes.dump());
    const auto model = parse(with(plain(), changes));
    INFO(test::error_text(model));
    CHECK((model.has_value() && model->kind == ModelKind::attention && model->kv_heads == 2 && model->head_dim == 16));
  };
  is_plain({{"num_kv_shared_layers", 0}});
  is_plain({{"use_cla", false}, {"cla_share_factor", 1}, {"num_loops", 1}});
  is_plain({{"is_encoder_decoder", false}, {"add_cross_attention", false}, {"cross_attention_hidden_size", nullptr}, {"chunk_size_feed_forward", 0}});
  is_plain({{"attn_type_list", {1, 1, 1, 1}}});
  is_plain(
      {{"v_head_dim", 0}, {"qk_nope_head_dim", 0}, {"qk_rope_head_dim", 0}, {"kv_lora_rank", nullptr}, {"q_lora_rank", nullptr}, {"use_mla", false}});
  is_plain({{"v_head_dim", 16}});
  is_plain({{"hybrid_override_pattern", nullptr}, {"layer_types", nullptr}, {"compress_ratios", nullptr}, {"index_topk", nullptr}});
}

TEST_CASE("weights, experts, rotation and draft fields say nothing about the cache") {
  const auto model = parse(with(plain(), {{"quantization_config",
                                           {{"quant_method", "fp8"},
                                            {"kv_cache_scheme", {{"num_bits", 8}}},
                                            {"ignore", {"lm_head"}},
                                            {"sparsity_config", {{"sparse", true}}},
                                            {"weight_block_size", {128, 128}}}},
                                          {"compression_config", {{"format", "pack-quantized"}}},
                                          {"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}},
                                          {"rope_parameters", {{"sliding_attention", {{"rope_type", "default"}}}}},
                                          {"decoder_sparse_step", 1},
                                          {"mlp_layer_types", {"dense", "sparse"}},
                                          {"moe_layer_freq", 1},
                                          {"n_shared_experts", 1},
                                          {"shared_expert_intermediate_size", 5632},
                                          {"num_nextn_predict_layers", 1},
                                          {"num_mtp_modules", 3},
                                          {"mtp_layer_types", {"full_attention"}},
                                          {"attention_bias", false},
                                          {"qkv_bias", true},
                                          {"clip_qkv", 8},
                                          {"use_qk_norm", true},
                                          {"attn_logit_softcapping", 50.0},
                                          {"query_pre_attn_scalar", 256},
                                          {"cache_implementation", "hybrid"},
                                          {"max_window_layers", 28},
                                          {"max_position_embeddings", 131072},
                                          {"vocab_size", 128256},
                                          {"id2label", {{"0", "LABEL_0"}}},
                                          {"auto_map", {{"AutoConfig", "configuration.Config"}}},
                                          {"vision_config", {{"window_size", 14}, {"num_hidden_layers", 24}}}}));
  INFO(test::error_text(model));
  REQUIRE(model.has_value());
  CHECK(model->kind_text == "GQA");
  CHECK(model->dtype == DType::bf16);
}

TEST_CASE("a field that speaks of the cache and is not known is refused by name and value") {
  for (const char* field :
       {"kv_merge_groups", "num_delta_kv_layers", "kv_cache_window", "attention_window_size", "local_sliding_span", "rwkv_head_size", "gdn_heads",
        "blocksparse_block_size", "indexer_width", "index_future", "compressor_rank", "num_key_value_groups_of_layer", "rope_free_head_dim_extra",
        "latent_chunk", "attn_types", "decoder_block_types", "prefix_full_attention", "cross_layer_cache"}) {
    const json config = with(plain(), {{field, 7}});
    if (std::string_view(field).starts_with("rope_")) {  // a field of the rotation, whatever its ending
      CHECK(parse(config).has_value());
      continue;
    }
    check_refused(field, config, ErrorCode::unsupported, {std::string(field) + " 7"});
  }
  check_refused("an unknown layer type", with(plain(), {{"layer_types", {"full_attention", "banded_attention", "full_attention", "full_attention"}}}),
                ErrorCode::unsupported, {"layer_types[1] \"banded_attention\"", "unknown layer type"});
}

TEST_CASE("fields that are missing, doubled or out of range are named with their value") {
  const auto check = [](const json& config, const std::vector<std::string>& words) {
    check_refused(words.front(), config, ErrorCode::invalid_argument, words);
  };
  const auto check_range = [](const json& config, const std::vector<std::string>& words) {
    check_refused(words.front(), config, ErrorCode::out_of_range, words);
  };
  check(without(plain(), {"num_hidden_layers"}), {"num_hidden_layers is missing"});
  check(without(plain(), {"num_attention_heads"}), {"num_attention_heads is missing"});
  check(without(plain(), {"hidden_size"}), {"head_dim is missing", "hidden_size is missing"});
  check(with(plain(), {{"hidden_size", 129}}), {"hidden_size 129", "num_attention_heads 8"});
  check(with(plain(), {{"num_key_value_heads", 3}}), {"8 attention heads", "3 KV heads"});
  check(with(plain(), {{"num_key_value_heads", 16}}), {"8 attention heads", "16 KV heads"});
  check(with(plain(), {{"num_key_value_heads", 2.5}}), {"num_key_value_heads 2.5", "integer from 1 to 65536"});
  check(with(plain(), {{"num_key_value_heads", "2"}}), {"num_key_value_heads \"2\""});
  check(with(plain(), {{"num_hidden_layers", true}}), {"num_hidden_layers true"});
  check_range(with(plain(), {{"num_hidden_layers", 0}}), {"num_hidden_layers 0", "from 1 to 4096"});
  check_range(with(plain(), {{"num_hidden_layers", -3}}), {"num_hidden_layers -3"});
  check_range(with(plain(), {{"num_hidden_layers", 4097}}), {"num_hidden_layers 4097"});
  check_range(with(plain(), {{"head_dim", 18446744073709551615u}}), {"head_dim 18446744073709551615"});
  check(with(plain(), {{"use_sliding_window", "no"}}), {"use_sliding_window \"no\""});
  check_refused("heads by layer", with(plain(), {{"num_key_value_heads", {2, 4, 2, 4}}}), ErrorCode::unsupported,
                {"num_key_value_heads [2,4,2,4] differs by layer"});
  check_refused("two names that differ", with(plain(), {{"num_kv_heads", 4}}), ErrorCode::mismatch, {"num_key_value_heads 2", "num_kv_heads 4"});
  check(with(plain(), {{"qk_rope_head_dim", 64}}), {"kv_lora_rank is missing", "qk_rope_head_dim 64"});
  check(without(mla(), {"qk_rope_head_dim"}), {"qk_rope_head_dim is missing"});
  check_range(with(mla(), {{"kv_lora_rank", -1}}), {"kv_lora_rank -1"});
  check_refused("MLA switched off", with(mla(), {{"use_mla", false}}), ErrorCode::mismatch, {"use_mla false", "kv_lora_rank 512"});
}

TEST_CASE("compressed MLA is refused where its ratios or its shared row do not fit") {
  const auto check = [](const json& changes, ErrorCode code, const std::vector<std::string>& words) {
    check_refused(words.front(), with(compressed(), changes), code, words);
  };
  check({{"compress_ratios", {0, 4}}}, ErrorCode::mismatch, {"compress_ratios has 2 entries for 3 layers"});
  check({{"compress_ratios", {0, 4, 64, 0}}}, ErrorCode::unsupported, {"compress_ratios[2] 64", "known: 0, 4, 128"});
  check({{"compress_ratios", {0, 4, -4}}}, ErrorCode::unsupported, {"compress_ratios[2] -4"});
  check({{"compress_ratios", {0, 4.0, 128}}}, ErrorCode::invalid_argument, {"compress_ratios[1] 4.0"});
  check({{"compress_ratios", "0,4,128"}}, ErrorCode::invalid_argument, {"compress_ratios \"0,4,128\" is not a list"});
  check({{"compress_ratios", nullptr}}, ErrorCode::invalid_argument, {"compress_ratios is missing"});
  check({{"compress_ratios", json::array()}}, ErrorCode::invalid_argument, {"compress_ratios is missing"});
  check({{"head_dim", nullptr}}, ErrorCode::invalid_argument, {"head_dim is missing"});
  check({{"qk_rope_head_dim", 512}}, ErrorCode::invalid_argument, {"qk_rope_head_dim 512", "head_dim 512"});
  check({{"index_head_dim", nullptr}}, ErrorCode::invalid_argument, {"index_head_dim is missing"});
  check({{"sliding_window", nullptr}}, ErrorCode::invalid_argument, {"sliding_window is missing"});
  check({{"num_key_value_heads", 2}}, ErrorCode::unsupported, {"num_key_value_heads 2"});
  check({{"v_head_dim", 128}}, ErrorCode::unsupported, {"v_head_dim 128", "512"});
  check({{"layer_types", {"sliding_attention", "sliding_attention", "heavily_compressed_attention"}}}, ErrorCode::mismatch,
        {"layer_types[1] \"sliding_attention\"", "compress_ratios[1] 4"});
  check({{"layer_types", {"full_attention"}}}, ErrorCode::unsupported, {"layer_types[0] \"full_attention\""});
  check_refused("layer types without ratios", with(plain(), {{"layer_types", {"compressed_sparse_attention"}}}), ErrorCode::invalid_argument,
                {"compress_ratios is missing", "compressed_sparse_attention"});
}

TEST_CASE("text that is no config is refused and never thrown at the caller") {
  const auto text = [](std::string_view config) { return test::error_text(parse_model_config(config, "x")); };
  CHECK_THAT(text(""), Catch::StartsWith("model config x: parse error"));
  CHECK_THAT(text("[]"), Catch::Contains("[] is not an object"));
  CHECK_THAT(text("3"), Catch::Contains("3 is not an object"));
  CHECK_THAT(text("{\"a\": 1} {"), Catch::Contains("parse error at line 1, column 10"));
  CHECK_THAT(text("{\"a\": 1, \"b\": {\"c\": [0, {\"d\": 1, \"d\": 2}]}}"), Catch::Contains("b.c[1].d: key appears twice"));
  CHECK_THAT(text("{\"a\": \"\xff\"}"), Catch::Contains("parse error"));
  CHECK_THAT(text(std::string(100000, '[')), Catch::Contains("nested deeper than 64"));
  CHECK_THAT(text(std::string((16u << 20) + 1, ' ')), Catch::Contains("16777217 bytes") && Catch::Contains("16777216"));
  CHECK_THAT(text("{\"num_hidden_layers\": 1e999}"), Catch::Contains("parse error") || Catch::Contains("number overflow"));
  CHECK_THAT(text("{\"num_hidden_layers\": 99999999999999999999999}"), Catch::Contains("num_hidden_layers 9.999999999999999e+22"));
  CHECK_THAT(test::error_text(parse_model_config("{\"model_type\": \"named_by_type\"}", "")), Catch::StartsWith("model config named_by_type: "));
  CHECK_THAT(text("{\"kv_odd\": \"" + std::string(5000, 'y') + "\"}"), Catch::Contains("...yyyy"));
}

TEST_CASE("Python's spelling of infinity does not hide a config behind a parse error") {
  json config = plain();
  std::string text = config.dump();
  text.insert(text.size() - 1, ", \"time_step_limit\": [0.0, Infinity], \"low\": -Infinity, \"none\": NaN, \"said\": \"Infinity \\\" NaN\"");
  CHECK(parse_model_config(text, "x").has_value());
}

TEST_CASE("a damaged config is an error or another valid config, never a crash") {
  const std::uint32_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (const std::string name : {"DeepSeek-V4-Flash", "gemma-3-27b-it", "Kimi-K3", "gpt-oss-20b"}) {
    const std::string original = test::config_text(name);
    for (int round = 0; round < 400; ++round) {
      std::string text = original;
      for (int change = 0; change < 3; ++change) {
        const std::size_t place = random() % text.size();
        switch (random() % 3) {
          case 0: text[place] = static_cast<char>(random() % 256); break;
          case 1: text.erase(place, random() % 16); break;
          default: text.insert(place, text.substr(random() % text.size(), random() % 16)); break;
        }
        if (text.empty()) break;
      }
      const auto model = parse_model_config(text, name);
      if (!model && model.error().code == ErrorCode::internal) FAIL(model.error().text);
      if (model) (void)build_whole_pool(*model, test::options_for(*model, DType::bf16));  // an error or a pool; validated inside
    }
  }
}

}  // namespace
}  // namespace kvferry
