// Layouts against the numbers of tests/data/models/truth.json, and their cuts over stages and ranks.

#include <algorithm>
#include <map>
#include <set>

#include "kvferry/pool_file.h"
#include "pool_test.h"

namespace kvferry {
namespace {

using nlohmann::json;
using test::lines_of;

/// Our component word for a state type of the truth.
std::string component_of(const std::string& type) { return type == "dsv4_request_state" ? "c128_state" : type; }

/// The item length of a group at a page size; states have one for all.
std::uint64_t item_length(const json& group, const std::string& key, std::uint32_t page_size) {
  const json& item = group.at(key);
  return (item.is_object() ? item.at(std::to_string(page_size)) : item).get<std::uint64_t>();
}

std::vector<std::string> expected_lines(const json& lists, const std::string& item_key, std::uint32_t page_size) {
  std::vector<std::string> lines;
  for (const json& group : lists.at("kv_data")) {
    for (const json& layer : group.at("layers")) {
      lines.push_back(test::line_of("kv", group.at("role").get<std::string>(), layer.get<std::uint64_t>(), item_length(group, item_key, page_size)));
    }
  }
  for (const json& group : lists.at("state")) {
    for (const json& layer : group.at("layers")) {
      lines.push_back(test::line_of(component_of(group.at("type").get<std::string>()), group.at("role").get<std::string>(),
                                    layer.get<std::uint64_t>(), item_length(group, item_key, page_size)));
    }
  }
  return lines;
}

bool is_compressed(const json& facts) { return facts.at("kind").get<std::string>().starts_with("compressed MLA"); }

/// A kind of this version, judged by the truth alone: plain attention or MLA without state beside it, or compressed MLA.
bool is_laid_out(const json& facts) {
  const std::string kind = facts.at("kind").get<std::string>();
  if (is_compressed(facts)) return true;
  const bool plain = kind == "GQA" || kind == "MHA" || kind == "MQA" || kind == "MLA";
  const bool one_pool = (kind == "GQA + sliding window" || kind == "MHA + sliding window") && facts.at("sglang").at("state").empty();
  return plain || one_pool;
}

TEST_CASE("every attention and MLA model has the entries and figures of the truth") {
  const json models = test::truth();
  int checked = 0;
  for (const auto& [name, facts] : models.items()) {
    if (!is_laid_out(facts) || is_compressed(facts)) continue;
    INFO(name);
    const ModelDescription model = test::describe_model(name);
    CHECK(facts.at("kind").get<std::string>().starts_with(model.kind_text));
    for (const auto& [word, dtype] : {std::pair{"bf16", DType::bf16}, std::pair{"fp8", DType::fp8_e4m3}}) {
      for (const std::uint32_t page_size : {1u, 64u}) {
        PoolOptions options = test::options_for(model, dtype);
        options.page_size = page_size;
        const Pool pool = test::require_value(build_whole_pool(model, options));
        CHECK(lines_of(pool) == expected_lines(facts.at("sglang"), "item_bytes_" + std::string(word), page_size));
        CHECK(kv_bytes_per_token(pool) == facts.at("kv_bytes_per_token_total_" + std::string(word)).get<double>());
        CHECK(state_bytes_per_request(pool) == 0);
        const auto growing = facts.find("kv_bytes_per_token_growing_bf16");
        if (growing != facts.end() && dtype == DType::bf16) CHECK(kv_bytes_per_token_growing(pool) == growing->get<double>());
        if (growing == facts.end()) CHECK(kv_bytes_per_token_growing(pool) == kv_bytes_per_token(pool));
        ++checked;
      }
    }
  }
  CHECK(checked == 18 * 4);
}

TEST_CASE("compressed MLA has the entries and figures of the truth in both variants") {
  const json models = test::truth();
  int checked = 0;
  for (const auto& [name, facts] : models.items()) {
    if (!is_compressed(facts)) continue;
    INFO(name);
    const ModelDescription model = test::describe_model(name);
    CHECK(model.kind_text == "compressed MLA");
    const json& variants = facts.at("sglang").at("variants");
    REQUIRE(variants.size() == 2);
    const Pool paged = test::require_value(build_whole_pool(model, test::options_for(model, DType::fp8_e4m3)));
    const Pool unified = test::require_value(build_whole_pool(model, test::options_for(model, DType::bf16)));
    CHECK(paged.variant == "paged_fp8");
    CHECK(unified.variant == "unified_bf16");
    CHECK(lines_of(paged) == expected_lines(variants[0], "item_bytes", 256));
    CHECK(lines_of(unified) == expected_lines(variants[1], "item_bytes", 256));
    CHECK(kv_bytes_per_token(paged) == facts.at("kv_bytes_per_token_total_fp8").get<double>());
    CHECK(kv_bytes_per_token(unified) == facts.at("kv_bytes_per_token_total_bf16").get<double>());
    CHECK(kv_bytes_per_token_growing(paged) == kv_bytes_per_token(paged));

    const auto sum = [&](std::initializer_list<Role> roles) {
      std::uint64_t bytes = 0;
      for (const Entry& entry : paged.entries) {
        if (std::find(roles.begin(), roles.end(), entry.role) != roles.end()) bytes += entry.item_length_bytes;
      }
      return bytes;
    };
    const json& state = facts.at("state_bytes_per_request");
    CHECK(sum({Role::swa_pool}) == state.at("swa window, one 256-token page, all layers").get<std::uint64_t>());
    CHECK(sum({Role::c4_state, Role::c4_indexer_state}) == state.at("c4 + indexer states of one SWA page").get<std::uint64_t>());
    CHECK(sum({Role::c128_state}) == state.at("c128 state, one page per layer").get<std::uint64_t>());
    CHECK(paged.window_tokens == facts.at("window_tokens").get<std::uint32_t>());
    ++checked;
  }
  CHECK(checked == 2);
}

TEST_CASE("every model of another kind is refused by that kind's name and the field that tells") {
  const std::map<std::string, std::vector<std::string>> kExpected = {
      {"gpt-oss-120b", {"GQA + sliding window in a pool of its own", "architectures \"GptOssForCausalLM\""}},
      {"gpt-oss-20b", {"GQA + sliding window in a pool of its own", "architectures \"GptOssForCausalLM\""}},
      {"MiMo-V2-Flash",
       {"GQA + sliding window in a pool of its own + K and V of different width", "hybrid_layer_pattern [0,1", "v_head_dim 128 beside head_dim 192"}},
      {"DeepSeek-V3.2", {"MLA + DSA index", "index_head_dim 128"}},
      {"GLM-5.2", {"MLA + DSA index", "index_head_dim 128"}},
      {"Kimi-K3", {"MLA + KDA linear attention", "text_config.linear_attn_config"}},
      {"MiniMax-M3-NVFP4", {"GQA + block-sparse index", "text_config.sparse_attention_config"}},
      {"Qwen3-Next-80B-A3B", {"GQA + gated delta net (linear attention)", "linear_num_key_heads 16"}},
      {"Nemotron-H-56B-Base-8K", {"GQA + Mamba state", "hybrid_override_pattern \"M-M-"}},
      {"Nemotron-3-Nano-30B-A3B", {"GQA + Mamba state", "hybrid_override_pattern \"MEMEM"}},
      {"Jamba-v0.1", {"GQA + Mamba state", "mamba_d_"}}};
  const json models = test::truth();
  std::size_t refused = 0, laid_out = 0;
  for (const auto& [name, facts] : models.items()) {
    INFO(name);
    const auto model = parse_model_config(test::config_text(name), name);
    if (is_laid_out(facts)) {
      CHECK(model.has_value());
      CHECK(std::count(test::laid_out_models().begin(), test::laid_out_models().end(), name) == 1);
      ++laid_out;
      continue;
    }
    REQUIRE(!model.has_value());
    CHECK(model.error().code == ErrorCode::unsupported);
    CHECK_THAT(model.error().text, Catch::Contains("model config " + name) && Catch::Contains("kinds known: GQA, MHA, MQA, MLA, compressed MLA"));
    REQUIRE(kExpected.contains(name));
    for (const std::string& words : kExpected.at(name)) CHECK_THAT(model.error().text, Catch::Contains(words));
    ++refused;
  }
  CHECK(laid_out == test::laid_out_models().size());
  CHECK(refused == kExpected.size());
}

// ---- stages

TEST_CASE("extra layers go to the last stages") {
  const auto check = [](std::uint32_t layers, std::uint32_t stages, const std::vector<std::uint32_t>& expected) {
    CHECK(test::require_value(split_stages(layers, stages)) == expected);
  };
  check(7, 1, {7});
  check(7, 2, {3, 4});
  check(7, 7, {1, 1, 1, 1, 1, 1, 1});
  check(94, 4, {23, 23, 24, 24});
  check(126, 8, {15, 15, 16, 16, 16, 16, 16, 16});
  check(61, 4, {15, 15, 15, 16});
  CHECK_THAT(test::error_text(split_stages(4, 5)), Catch::Contains("pp 5") && Catch::Contains("4 layers"));
  CHECK_THAT(test::error_text(split_stages(4, 0)), Catch::Contains("pp 0"));
}

TEST_CASE("the stages of a model together have every entry of the whole once, and draft entries on the last only") {
  for (const std::string name : {"Llama-3.1-405B", "Qwen3-235B-A22B", "DeepSeek-V3", "DeepSeek-V4-Flash", "DeepSeek-V4-Pro", "DeepSeek-V2-Lite"}) {
    const ModelDescription model = test::describe_model(name);
    for (const DType dtype : {DType::bf16, DType::fp8_e4m3}) {
      for (const std::uint32_t stages : {1u, 2u, 3u, 4u, 8u, 16u, model.layers}) {
        PoolOptions options = test::options_for(model, dtype);
        options.draft_layers = 1;
        const Pool whole = test::require_value(build_whole_pool(model, options));
        const Parallelism cut{.tp = 1, .pp = test::require_value(split_stages(model.layers, stages))};
        std::multiset<std::string> together;
        std::uint32_t next_layer = 0;
        for (std::uint32_t rank = 0; rank < stages; ++rank) {
          INFO(name << " stage " << rank << " of " << stages);
          const Pool pool = test::require_value(build_pool(model, options, cut, 0, rank));
          CHECK(pool.stage.first == next_layer);
          next_layer = pool.stage.end;
          CHECK(pool.compression_ratios == whole.compression_ratios);
          for (const Entry& entry : pool.entries) {
            const bool in_place =
                entry.component.draft ? rank + 1 == stages && entry.layer == 0 : entry.layer >= pool.stage.first && entry.layer < pool.stage.end;
            if (!in_place) FAIL(describe(entry) << " on stage " << rank);
          }
          const std::vector<std::string> lines = lines_of(pool);
          together.insert(lines.begin(), lines.end());
        }
        CHECK(next_layer == model.layers);
        const std::vector<std::string> lines = lines_of(whole);
        CHECK(together == std::multiset<std::string>(lines.begin(), lines.end()));
      }
    }
  }
}

TEST_CASE("a cut that does not fit the layers is refused with both numbers") {
  const ModelDescription model = test::describe_model("Llama-3.1-8B");
  const PoolOptions options = test::options_for(model);
  const auto text = [&](const std::vector<std::uint32_t>& pp, std::uint32_t rank) {
    return test::error_text(build_pool(model, options, {.tp = 1, .pp = pp}, 0, rank));
  };
  CHECK_THAT(text({16, 15}, 0), Catch::Contains("pp 16+15 adds up to 31") && Catch::Contains("32"));
  CHECK_THAT(text({16, 17}, 1), Catch::Contains("pp 16+17 adds up to 33") && Catch::Contains("32"));
  CHECK_THAT(text({32, 4294967295u, 4294967295u}, 0), Catch::Contains("32 are in use"));
  CHECK_THAT(text({32, 0}, 0), Catch::Contains("pp 32+0") && Catch::Contains("stage 1 has no layer"));
  CHECK_THAT(text({32}, 1), Catch::Contains("pp rank 1 of 1"));
  CHECK_THAT(text({}, 0), Catch::Contains("pp names no stage"));
}

TEST_CASE("the first layers of a model keep their kinds") {
  const ModelDescription flash = test::describe_model("DeepSeek-V4-Flash");
  const auto lines = [&](std::uint32_t layers) {
    PoolOptions options = test::options_for(flash, DType::fp8_e4m3);
    options.layers = layers;
    return lines_of(test::require_value(build_whole_pool(flash, options)));
  };
  CHECK(lines(1) == std::vector<std::string>{"swa swa_pool 0 149760"});
  CHECK(lines(4) == std::vector<std::string>{"kv c4 2 37440", "kv c4_indexer 2 8448", "kv c128 3 1728", "swa swa_pool 0 149760",
                                             "swa swa_pool 1 149760", "swa swa_pool 2 149760", "swa swa_pool 3 149760", "swa c4_state 2 65536",
                                             "swa c4_indexer_state 2 16384", "c128_state c128_state 3 524288"});

  PoolOptions options = test::options_for(flash, DType::fp8_e4m3);
  options.layers = 2;
  options.draft_layers = 1;
  const Pool cut = test::require_value(build_whole_pool(flash, options));
  CHECK(cut.layers_total == 2);
  CHECK(cut.compression_ratios == std::vector<std::uint32_t>{0, 0});
  CHECK(cut.c128_ring_size == 0);
  // The draft layer's ratio is the published one beyond all layers, not that of layer 2.
  CHECK(describe(cut.entries.back()) == "draft.swa swa_pool layer 0");

  options.layers = 44;
  CHECK_THAT(test::error_text(build_whole_pool(flash, options)), Catch::Contains("layers 44") && Catch::Contains("43"));
  options.layers = 0;
  CHECK_THAT(test::error_text(build_whole_pool(flash, options)), Catch::Contains("layers 0"));

  const ModelDescription gemma = test::describe_model("gemma-2-27b");
  PoolOptions three = test::options_for(gemma);
  three.layers = 3;
  CHECK(test::require_value(build_whole_pool(gemma, three)).sliding_layers == std::vector<std::uint32_t>{0, 2});
}

// ---- draft layers

TEST_CASE("draft layers follow the target's entries in the order of the lists") {
  const auto tail = [](const std::string& name, DType dtype, std::uint32_t draft_layers) {
    const ModelDescription model = test::describe_model(name);
    PoolOptions options = test::options_for(model, dtype);
    options.layers = 2;
    options.draft_layers = draft_layers;
    const std::vector<std::string> lines = lines_of(test::require_value(build_whole_pool(model, options)));
    const std::size_t first = static_cast<std::size_t>(
        std::find_if(lines.begin(), lines.end(), [](const std::string& line) { return line.starts_with("draft."); }) - lines.begin());
    CHECK(std::all_of(lines.begin() + static_cast<std::ptrdiff_t>(first), lines.end(),
                      [](const std::string& line) { return line.starts_with("draft."); }));
    return std::vector<std::string>(lines.begin() + static_cast<std::ptrdiff_t>(first), lines.end());
  };
  CHECK(tail("Llama-3.1-8B", DType::bf16, 2) ==
        std::vector<std::string>{"draft.kv k 0 131072", "draft.kv k 1 131072", "draft.kv v 0 131072", "draft.kv v 1 131072"});
  CHECK(tail("DeepSeek-V3", DType::bf16, 1) == std::vector<std::string>{"draft.kv latent 0 73728"});
  CHECK(tail("DeepSeek-V4-Pro", DType::fp8_e4m3, 1) == std::vector<std::string>{"draft.swa swa_pool 0 149760"});
  CHECK(tail("DeepSeek-V4-Pro", DType::bf16, 1) == std::vector<std::string>{"draft.swa_ring ring 0 1024"});
}

TEST_CASE("a draft layer that is compressed is refused with its ratio") {
  ModelDescription flash = test::describe_model("DeepSeek-V4-Flash");
  flash.compression_ratios.back() = 4;
  PoolOptions options = test::options_for(flash, DType::fp8_e4m3);
  CHECK(build_whole_pool(flash, options).has_value());
  options.draft_layers = 1;
  CHECK_THAT(test::error_text(build_whole_pool(flash, options)), Catch::Contains("draft layer 0 has ratio 4"));
}

// ---- tensor parallelism

TEST_CASE("heads are split in whole blocks, or replicated on neighbouring ranks") {
  const auto heads_of = [](const std::string& name, std::uint32_t tp) {
    const ModelDescription model = test::describe_model(name);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges;  // first head, count
    for (std::uint32_t rank = 0; rank < tp; ++rank) {
      const Pool pool = test::require_value(build_pool(model, test::options_for(model), {.tp = tp, .pp = {model.layers}}, rank, 0));
      const Entry& entry = pool.entries.front();
      REQUIRE(entry.heads.has_value());
      CHECK(entry.heads->bytes_per_head_token == model.head_dim * 2);
      CHECK(entry.item_length_bytes == std::uint64_t{entry.heads->head_count} * model.head_dim * 2 * 64);
      CHECK(std::all_of(pool.entries.begin(), pool.entries.end(), [&](const Entry& other) { return other.heads == entry.heads; }));
      CHECK(pool.rank == Rank{tp, rank, 1, 0});
      ranges.emplace_back(entry.heads->first_head, entry.heads->head_count);
    }
    return ranges;
  };
  using Ranges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  CHECK(heads_of("Llama-3.1-8B", 1) == Ranges{{0, 8}});
  CHECK(heads_of("Llama-3.1-8B", 4) == Ranges{{0, 2}, {2, 2}, {4, 2}, {6, 2}});
  // 4 heads over 8 ranks: blocks of two ranks, never head = rank mod 4.
  CHECK(heads_of("Qwen2.5-7B-Instruct", 8) == Ranges{{0, 1}, {0, 1}, {1, 1}, {1, 1}, {2, 1}, {2, 1}, {3, 1}, {3, 1}});
  CHECK(heads_of("falcon-7b-instruct", 2) == Ranges{{0, 1}, {0, 1}});
  CHECK(heads_of("Llama-3.1-8B", 16).at(15) == std::pair<std::uint32_t, std::uint32_t>{7, 1});
}

TEST_CASE("a tp that neither divides the heads nor repeats them is refused with both numbers") {
  const ModelDescription model = test::describe_model("Llama-3.1-8B");
  for (const std::uint32_t tp : {3u, 5u, 6u, 12u, 20u}) {
    CHECK_THAT(test::error_text(build_pool(model, test::options_for(model), {.tp = tp, .pp = {32}}, 0, 0)),
               Catch::Contains("tp " + std::to_string(tp)) && Catch::Contains("8 KV heads"));
  }
  CHECK_THAT(test::error_text(build_pool(model, test::options_for(model), {.tp = 0, .pp = {32}}, 0, 0)), Catch::Contains("tp 0"));
  CHECK_THAT(test::error_text(build_pool(model, test::options_for(model), {.tp = 2, .pp = {32}}, 2, 0)), Catch::Contains("tp rank 2 of tp 2"));
}

TEST_CASE("latent and compressed rows are the same on every rank") {
  for (const std::string name : {"DeepSeek-V3", "DeepSeek-V4-Flash"}) {
    const ModelDescription model = test::describe_model(name);
    const Pool whole = test::require_value(build_whole_pool(model, test::options_for(model, DType::bf16)));
    for (const std::uint32_t rank : {0u, 2u}) {
      const Pool pool = test::require_value(build_pool(model, test::options_for(model, DType::bf16), {.tp = 3, .pp = {model.layers}}, rank, 0));
      CHECK(pool.entries == whole.entries);
      CHECK(std::none_of(pool.entries.begin(), pool.entries.end(), [](const Entry& entry) { return entry.heads.has_value(); }));
    }
  }
}

// ---- options

TEST_CASE("page sizes, dtypes and layouts that a kind does not have are refused with both values") {
  const auto text = [](const std::string& name, std::uint32_t page_size, std::optional<DType> dtype, const std::string& layout) {
    const ModelDescription model = test::describe_model(name);
    PoolOptions options;
    options.page_size = page_size;
    options.dtype = dtype;
    options.kv_layout = layout;
    return test::error_text(build_whole_pool(model, options));
  };
  CHECK_THAT(text("DeepSeek-V4-Flash", 64, DType::fp8_e4m3, ""), Catch::Contains("page size 64") && Catch::Contains("256"));
  CHECK_THAT(text("Llama-3.1-8B", 0, DType::bf16, ""), Catch::Contains("page size 0"));
  CHECK_THAT(text("Llama-3.1-8B", 1u << 31, DType::bf16, ""), Catch::Contains("page size 2147483648") && Catch::Contains("1048576"));
  CHECK_THAT(text("DeepSeek-V4-Flash", 256, DType::fp16, ""),
             Catch::Contains("dtype fp16") && Catch::Contains("paged_fp8") && Catch::Contains("unified_bf16"));
  CHECK_THAT(text("DeepSeek-V4-Flash", 256, std::nullopt, "online"),
             Catch::Contains("\"online\" has dtype fp8_e4m3") && Catch::Contains("bf16 (the config's)"));
  CHECK_THAT(text("DeepSeek-V4-Flash", 256, DType::fp8_e4m3, "unified_bf16"),
             Catch::Contains("\"unified_bf16\" has dtype bf16") && Catch::Contains("fp8_e4m3"));
  CHECK_THAT(text("DeepSeek-V4-Flash", 256, DType::fp8_e4m3, "scaled"),
             Catch::Contains("\"scaled\"") && Catch::Contains("paged_fp8, unified_bf16, online"));
  CHECK_THAT(text("DeepSeek-V3", 64, DType::fp8_e4m3, "scaled"), Catch::Contains("\"scaled\"") && Catch::Contains("known: raw"));
  CHECK_THAT(text("DeepSeek-V3", 64, DType::bf16, "raw"), Catch::Contains("\"raw\"") && Catch::Contains("bf16"));
  CHECK(text("DeepSeek-V3", 64, DType::fp8_e4m3, "raw") == "(no error)");
  CHECK(text("DeepSeek-V4-Flash", 256, DType::fp8_e4m3, "paged_fp8") == "(no error)");
  CHECK_THAT(text("Llama-3.1-8B", 64, DType::bf16, "online"), Catch::Contains("\"online\"") && Catch::Contains("GQA"));
  CHECK_THAT(text("Llama-3.1-8B", 64, DType::int8, ""), Catch::Contains("dtype int8") && Catch::Contains("GQA"));
  CHECK_THAT(text("Llama-3.1-8B", 64, DType::packed_fp8, ""), Catch::Contains("dtype packed_fp8"));
}

TEST_CASE("the dtype is the config's where none is given, and asked for where there is none") {
  const ModelDescription llama = test::describe_model("Llama-3.1-8B");
  CHECK(test::require_value(build_whole_pool(llama, test::options_for(llama))).entries.front().dtype == DType::bf16);
  ModelDescription silent = llama;
  silent.dtype.reset();
  CHECK_THAT(test::error_text(build_whole_pool(silent, test::options_for(silent))), Catch::Contains("Llama-3.1-8B") && Catch::Contains("no dtype"));
  CHECK(build_whole_pool(silent, test::options_for(silent, DType::fp16)).has_value());
  CHECK(test::require_value(build_whole_pool(silent, test::options_for(silent, DType::fp32))).entries.front().item_length_bytes == 8u * 128 * 4 * 64);
}

TEST_CASE("the online C128 state is one short row per request") {
  const ModelDescription flash = test::describe_model("DeepSeek-V4-Flash");
  PoolOptions options = test::options_for(flash, DType::fp8_e4m3);
  options.kv_layout = "online";
  const Pool pool = test::require_value(build_whole_pool(flash, options));
  CHECK(pool.c128_online);
  CHECK(pool.c128_ring_size == 0);
  for (const Entry& entry : pool.entries) {
    if (entry.role == Role::c128_state) CHECK(entry.item_length_bytes == 6144);
  }
}

TEST_CASE("sizes of compressed MLA follow the config's widths and are refused where they do not divide") {
  ModelDescription model = test::describe_model("DeepSeek-V4-Flash");
  model.head_dim = 256;
  model.index_head_dim = 256;
  const Pool pool = test::require_value(build_whole_pool(model, test::options_for(model, DType::fp8_e4m3)));
  const auto item = [&](Role role) {
    return std::find_if(pool.entries.begin(), pool.entries.end(), [&](const Entry& entry) { return entry.role == role; })->item_length_bytes;
  };
  CHECK(item(Role::c4) == 36 * 576);  // 64 rows of 192 + 128 + 3 + 1 bytes, exactly 36 paddings
  CHECK(item(Role::c4_indexer) == 64 * (256 + 2 * 4));
  CHECK(item(Role::c4_state) == 4 * 256 * 4 * 8);
  CHECK(item(Role::c128_state) == 2 * 256 * 4 * 128);
  model.index_head_dim = 192;
  CHECK_THAT(test::error_text(build_whole_pool(model, test::options_for(model, DType::bf16))), Catch::Contains("index_head_dim 192"));
  model.index_head_dim = 128;
  model.head_dim = 500;
  CHECK_THAT(test::error_text(build_whole_pool(model, test::options_for(model, DType::fp8_e4m3))),
             Catch::Contains("head_dim 500") && Catch::Contains("qk_rope_head_dim 64"));
}

// ---- places

TEST_CASE("entries lie one after another on borders of 4096 bytes and do not overlap") {
  for (const std::string& name : test::laid_out_models()) {
    INFO(name);
    const ModelDescription model = test::describe_model(name);
    for (const DType dtype : {DType::bf16, DType::fp8_e4m3}) {
      PoolOptions options = test::options_for(model, dtype);
      options.pages = 7;
      options.window_pages = 3;
      options.request_slots = 5;
      const Pool pool = test::require_value(build_whole_pool(model, options));
      std::uint64_t end = 0;
      for (const Entry& entry : pool.entries) {
        REQUIRE(entry.base_address % 4096 == 0);
        REQUIRE(entry.base_address >= end);
        REQUIRE(entry.base_address - end < 4096);
        end = entry.base_address + test::require_value(span_bytes(entry));
        const std::map<IndexSpace, std::uint64_t> kCounts = {{IndexSpace::pages, 7},
                                                             {IndexSpace::window_pages, 3},
                                                             {IndexSpace::ring_rows, 5 * 128},
                                                             {IndexSpace::c128_rows, 5},
                                                             {IndexSpace::request_slots, 5}};
        REQUIRE(entry.index_count == kCounts.at(entry.space));
      }
      CHECK(test::require_value(pool_span_bytes(pool)) == end);
    }
  }
}

TEST_CASE("a pool that passes 64 bits is refused before it is placed, and rebased whole or not at all") {
  const ModelDescription model = test::describe_model("Llama-3.1-8B");
  PoolOptions options = test::options_for(model);
  options.pages = std::uint64_t{1} << 60;
  CHECK_THAT(test::error_text(build_whole_pool(model, options)),
             Catch::Contains("kv k layer 0") && Catch::Contains("1152921504606846976") && Catch::Contains("64 bits"));
  ModelDescription flash = test::describe_model("DeepSeek-V4-Flash");
  options = test::options_for(flash, DType::bf16);
  options.request_slots = std::uint64_t{1} << 60;
  CHECK_THAT(test::error_text(build_whole_pool(flash, options)), Catch::Contains("1152921504606846976 request slots"));

  options = test::options_for(model);
  options.pages = 2;
  Pool pool = test::require_value(build_whole_pool(model, options));
  const Pool before = pool;
  const std::uint64_t span = test::require_value(pool_span_bytes(pool));
  REQUIRE(rebase(pool, 0xFFFF800000000000u).has_value());
  CHECK(pool.entries.front().base_address == 0xFFFF800000000000u);
  CHECK(test::require_value(pool_span_bytes(pool)) == span);
  pool = before;
  CHECK(rebase(pool, ~std::uint64_t{0} - span).has_value());
  pool = before;
  const auto refused = rebase(pool, ~std::uint64_t{0} - span + 1);
  CHECK_THAT(test::error_text(refused), Catch::Contains("kv v layer 31") && Catch::Contains("64 bits"));
  CHECK(pool == before);
}

// ---- request indices

TEST_CASE("a request has the indices that the table of models gives") {
  const ModelDescription flash = test::describe_model("DeepSeek-V4-Flash");
  PoolOptions online = test::options_for(flash, DType::fp8_e4m3);
  online.kv_layout = "online";
  const Pool paged = test::require_value(build_whole_pool(flash, test::options_for(flash, DType::fp8_e4m3)));
  const Pool unified = test::require_value(build_whole_pool(flash, test::options_for(flash, DType::bf16)));
  const Pool short_state = test::require_value(build_whole_pool(flash, online));
  const std::uint64_t slot = 3;
  for (std::uint64_t tokens = 0; tokens <= 1100; ++tokens) {
    INFO("tokens " << tokens);
    // One token after another: the pages they touch, the window's pages, the rows of the ring.
    std::set<std::uint64_t> pages, window_pages;
    std::vector<std::uint64_t> ring;
    for (std::uint64_t position = 0; position < tokens; ++position) {
      pages.insert(position / 256);
      if (position + 128 >= tokens) {
        window_pages.insert(position / 256);
        ring.push_back(slot * 128 + position % 128);
      }
    }
    const RequestIndices in_pages = test::require_value(request_indices(paged, tokens, slot));
    const RequestIndices in_ring = test::require_value(request_indices(unified, tokens, slot));
    const RequestIndices in_online = test::require_value(request_indices(short_state, tokens, slot));
    const std::vector<std::uint64_t> pending = tokens % 128 == 0 ? std::vector<std::uint64_t>{} : std::vector<std::uint64_t>{slot};
    REQUIRE(in_pages.pages == pages.size());
    REQUIRE(in_ring.pages == pages.size());
    REQUIRE(in_pages.window_pages == window_pages.size());
    REQUIRE(in_ring.window_pages == 0);
    REQUIRE(in_pages.ring_rows.empty());
    REQUIRE(in_ring.ring_rows == ring);
    REQUIRE(in_pages.c128_rows == pending);
    REQUIRE(in_ring.c128_rows == pending);
    REQUIRE(in_online.c128_rows == pending);
    REQUIRE(in_pages.request_slots.empty());
    REQUIRE(in_ring.request_slots == std::vector<std::uint64_t>{slot});
  }
}

TEST_CASE("a C128 ring of several pages is entered at the page of the last token") {
  Pool pool = test::require_value(
      build_whole_pool(test::describe_model("DeepSeek-V4-Flash"), test::options_for(test::describe_model("DeepSeek-V4-Flash"), DType::fp8_e4m3)));
  pool.c128_ring_size = 256;
  const auto rows = [&](std::uint64_t tokens, std::uint64_t slot) { return test::require_value(request_indices(pool, tokens, slot)).c128_rows; };
  CHECK(rows(1, 0) == std::vector<std::uint64_t>{0});
  CHECK(rows(129, 0) == std::vector<std::uint64_t>{1});
  CHECK(rows(255, 7) == std::vector<std::uint64_t>{15});
  CHECK(rows(256, 7).empty());
  CHECK(rows(257, 7) == std::vector<std::uint64_t>{14});
  CHECK_THAT(test::error_text(request_indices(pool, 129, ~std::uint64_t{0})), Catch::Contains("c128_rows"));
}

TEST_CASE("models without window or state have pages only, whatever stage they are cut to") {
  const ModelDescription gemma = test::describe_model("gemma-2-27b");
  const RequestIndices indices =
      test::require_value(request_indices(test::require_value(build_whole_pool(gemma, test::options_for(gemma))), 8193, 1));
  CHECK(indices.pages == 129);
  CHECK((indices.window_pages == 0 && indices.ring_rows.empty() && indices.c128_rows.empty() && indices.request_slots.empty()));

  // A stage without compressed layers counts as the others do: both ends of a transfer have lists of equal length.
  const ModelDescription flash = test::describe_model("DeepSeek-V4-Flash");
  const Pool first = test::require_value(build_pool(flash, test::options_for(flash, DType::fp8_e4m3), {.tp = 1, .pp = {2, 41}}, 0, 0));
  CHECK(std::none_of(first.entries.begin(), first.entries.end(), [](const Entry& entry) { return entry.space == IndexSpace::c128_rows; }));
  CHECK(test::require_value(request_indices(first, 300, 2)).c128_rows == std::vector<std::uint64_t>{2});
}

}  // namespace
}  // namespace kvferry
