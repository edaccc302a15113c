// Pool files: what is written is read back, and nothing else is read.

#include <random>

#include "kvferry/pool_file.h"
#include "pool_test.h"

namespace kvferry {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

Pool flash_stage() {
  const ModelDescription model = test::describe_model("DeepSeek-V4-Flash");
  PoolOptions options = test::options_for(model, DType::fp8_e4m3);
  options.draft_layers = 1;
  options.pages = 4;
  return test::require_value(build_pool(model, options, {.tp = 2, .pp = {39, 4}}, 1, 1));
}

TEST_CASE("a pool file gives back the pool it was written from") {
  int checked = 0;
  for (const std::string& name : test::laid_out_models()) {
    INFO(name);
    const ModelDescription model = test::describe_model(name);
    for (const DType dtype : {DType::bf16, DType::fp8_e4m3}) {
      PoolOptions options = test::options_for(model, dtype);
      options.draft_layers = 2;
      options.pages = 1000;
      Pool pool = test::require_value(build_pool(model, options, {.tp = 1, .pp = {1, model.layers - 1}}, 0, 1));
      REQUIRE(rebase(pool, 0x7F1C00000000u).has_value());
      pool.entries.back().memory = MemoryKind::device;
      const std::string text = write_pool_file(pool);
      CHECK(test::require_value(parse_pool_file(text)) == pool);
      CHECK(write_pool_file(test::require_value(parse_pool_file(text))) == text);
      ++checked;
    }
  }
  CHECK(checked == 40);
}

TEST_CASE("numbers of 64 bits and texts of any alphabet come back exactly") {
  Pool pool = flash_stage();
  pool.model = "m\u00f6del \"quoted\" \\ \n \x01";
  std::uint64_t address = 0xFFFF800000000000u;
  for (Entry& entry : pool.entries) entry.base_address = address += 1u << 20;
  pool.entries.front().base_address = 18446744073709000001u;
  pool.entries.front().index_count = 4;
  const Pool again = test::require_value(parse_pool_file(write_pool_file(pool)));
  CHECK(again == pool);
  CHECK(again.entries.front().base_address == 18446744073709000001u);
}

TEST_CASE("a pool file has one entry per line and its keys in a stable order") {
  const std::string text = write_pool_file(flash_stage());
  CHECK_THAT(text, Catch::StartsWith("{\n  \"schema\": \"kvferry-pool\",\n  \"version\": 1,\n  \"model\": \"DeepSeek-V4-Flash\",\n"));
  CHECK_THAT(text, Catch::Contains("\n    "
                                   "{\"component\":\"kv\",\"role\":\"c4\",\"layer\":40,\"index_space\":\"pages\",\"dtype\":\"packed_fp8\",\"memory\":"
                                   "\"host\",\"page_size\":256,"));
  CHECK_THAT(text, Catch::EndsWith("\"index_count\":4}\n  ]\n}\n"));
  Pool empty = flash_stage();
  empty.entries.clear();
  CHECK_THAT(write_pool_file(empty), Catch::EndsWith("\"entries\": []\n}\n"));
  CHECK(test::require_value(parse_pool_file(write_pool_file(empty))) == empty);
}

/// The file as JSON, changed by `change`.
template <class Change>
std::string changed(Change change) {
  ordered_json file = ordered_json::parse(write_pool_file(flash_stage()));
  change(file);
  return file.dump();
}

TEST_CASE("each wrong value is refused with its path, what was expected and what was found") {
  const auto check = [](const auto& change, const std::vector<std::string>& words) {
    const std::string text = test::error_text(parse_pool_file(changed(change)));
    INFO(text);
    CHECK_THAT(text, Catch::StartsWith("pool file: "));
    for (const std::string& word : words) CHECK_THAT(text, Catch::Contains(word));
  };
  check([](auto& f) { f["schema"] = "other"; }, {"schema: expected \"kvferry-pool\", found \"other\""});
  check([](auto& f) { f.erase("schema"); }, {"schema", "found nothing"});
  check([](auto& f) { f["version"] = 2; }, {"version: this library reads version 1, found 2"});
  check([](auto& f) { f["version"] = 1.0; }, {"version", "found 1.0"});
  check([](auto& f) { f["colour"] = "red"; }, {"top level: unknown key \"colour\""});
  check([](auto& f) { f.erase("page_size"); }, {"top level: key \"page_size\" is missing"});
  check([](auto& f) { f["page_size"] = -1; }, {"page_size: expected an unsigned integer up to 4294967295, found -1"});
  check([](auto& f) { f["page_size"] = 256.0; }, {"page_size: expected an unsigned integer up to 4294967295, found 256.0"});
  check([](auto& f) { f["page_size"] = 4294967296u; }, {"page_size", "found 4294967296"});
  check([](auto& f) { f["page_size"] = "256"; }, {"page_size", "found \"256\""});
  check([](auto& f) { f["page_size"] = nullptr; }, {"page_size", "found null"});
  check([](auto& f) { f["model"] = 3; }, {"model: expected a string, found 3"});
  check([](auto& f) { f["c128_online"] = 0; }, {"c128_online: expected true or false, found 0"});
  check([](auto& f) { f["stage"] = json::array({39, 43}); }, {"stage: expected an object, found [39,43]"});
  check([](auto& f) { f["stage"]["last"] = 1; }, {"stage: unknown key \"last\""});
  check([](auto& f) { f["rank"].erase("pp_rank"); }, {"rank: key \"pp_rank\" is missing"});
  check([](auto& f) { f["rank"]["tp_rank"] = 2; }, {"tp rank 2 of tp size 2"});
  check([](auto& f) { f["compression_ratios"] = 4; }, {"compression_ratios: expected a list, found 4"});
  check([](auto& f) { f["compression_ratios"][7] = -4; }, {"compression_ratios[7]: expected an unsigned integer", "found -4"});
  check([](auto& f) { f["compression_ratios"][7] = 16; }, {"unknown compression ratio 16 of layer 7"});
  check([](auto& f) { f["compression_ratios"] = json(std::vector<int>(65537, 0)); }, {"compression_ratios: 65537 elements, at most 65536"});
  check([](auto& f) { f["entries"] = json::object(); }, {"entries: expected a list"});
  check([](auto& f) { f["entries"] = json(std::vector<int>(65537, 0)); }, {"entries: 65537 elements, at most 65536"});
  check([](auto& f) { f["entries"][2] = 5; }, {"entries[2]: expected an object, found 5"});
  check([](auto& f) { f["entries"][2]["component"] = "kv2"; }, {"entries[2].component: unknown component \"kv2\"", "swa_ring"});
  check([](auto& f) { f["entries"][2]["role"] = 1; }, {"entries[2].role: expected a string"});
  check([](auto& f) { f["entries"][2]["dtype"] = "fp7"; }, {"entries[2].dtype: unknown dtype \"fp7\""});
  check([](auto& f) { f["entries"][2]["index_space"] = "rows"; }, {"entries[2].index_space: unknown index space \"rows\""});
  check([](auto& f) { f["entries"][2]["memory"] = "tape"; }, {"entries[2].memory: unknown memory kind \"tape\""});
  check([](auto& f) { f["entries"][2].erase("pitch_bytes"); }, {"entries[2]: key \"pitch_bytes\" is missing"});
  check([](auto& f) { f["entries"][2]["pitch"] = 1; }, {"entries[2]: unknown key \"pitch\""});
  check([](auto& f) { f["entries"][2]["base_address"] = -1; },
        {"entries[2].base_address: expected an unsigned integer up to 18446744073709551615, found -1"});
  check([](auto& f) { f["entries"][2]["heads"] = nullptr; }, {"entries[2].heads: expected an object, found null"});
  check([](auto& f) { f["entries"][2]["heads"] = {{"head_count", 1}}; }, {"entries[2].heads: key \"first_head\" is missing"});
  check([](auto& f) { f["entries"][2]["item_length_bytes"] = 0; }, {"item length is 0"});
  check(
      [](auto& f) {
        f["entries"][1]["layer"] = 40;
        f["entries"][1]["role"] = "c4";
      },
      {"kv c4 layer 40", "entries 0 and 1"});
  check([](auto& f) { f["stage"]["end"] = 44; }, {"stage [39, 44)", "43 layers"});
}

TEST_CASE("text that is no pool file is refused with its place") {
  const auto text = [](const std::string& file) { return test::error_text(parse_pool_file(file)); };
  const std::string good = write_pool_file(flash_stage());
  CHECK_THAT(text(""), Catch::Contains("parse error at line 1"));
  CHECK_THAT(text("[1]"), Catch::Contains("expected an object, found [1]"));
  CHECK_THAT(text(good + "x"), Catch::Contains("parse error") && Catch::Contains("expected end of input"));
  CHECK_THAT(text(good + good), Catch::Contains("expected end of input"));
  CHECK_THAT(text(good.substr(0, good.size() / 2)), Catch::Contains("parse error"));
  CHECK_THAT(text("{\"schema\": \"kvferry-pool\", \"schema\": \"kvferry-pool\"}"), Catch::Contains("schema: key appears twice"));
  std::string doubled = good;
  doubled.replace(doubled.find("\"layer\":"), 8, "\"layer\":0,\"layer\":");
  CHECK_THAT(text(doubled), Catch::Contains("entries[0].layer: key appears twice"));
  CHECK_THAT(text("{\"a\":" + std::string(9, '[')), Catch::Contains("nested deeper than 8"));
  CHECK_THAT(text(std::string(1000000, '[')), Catch::Contains("nested deeper than 8"));
  CHECK_THAT(text(std::string((32u << 20) + 1, ' ')), Catch::Contains("33554433 bytes") && Catch::Contains("33554432"));
  CHECK_THAT(text("{\"schema\": NaN}"), Catch::Contains("parse error"));
  std::string huge = good;
  huge.replace(huge.find("\"base_address\":0"), 16, "\"base_address\":18446744073709551616");
  CHECK_THAT(text(huge),
             Catch::Contains("entries[0].base_address: expected an unsigned integer up to 18446744073709551615, found 1.8446744073709552e+19"));
}

TEST_CASE("a damaged pool file is an error or another valid pool, never a crash") {
  const std::uint32_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const std::string original = write_pool_file(flash_stage());
  for (int round = 0; round < 1000; ++round) {
    std::string text = original;
    for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t place = random() % text.size();
      switch (random() % 4) {
        case 0: text[place] = static_cast<char>(random() % 256); break;
        case 1: text.erase(place, random() % 40); break;
        case 2: text.insert(place, text.substr(random() % text.size(), random() % 40)); break;
        default: text[place] = static_cast<char>('0' + random() % 10); break;
      }
    }
    const auto pool = parse_pool_file(text);
    if (!pool && pool.error().code == ErrorCode::internal) FAIL(pool.error().text);
    if (pool && (!validate(*pool).has_value() || test::require_value(parse_pool_file(write_pool_file(*pool))) != *pool))
      FAIL("accepted and not written back: " << text);
  }
}

TEST_CASE("the example of the documentation is a valid pool file") {
  const std::string page = test::read_text(std::string(KVFERRY_TEST_DATA) + "/../../docs/pool-file.md");
  const std::string fence = "```json\n";
  const std::size_t begin = page.find(fence);
  REQUIRE(begin != std::string::npos);
  const std::string example = page.substr(begin + fence.size(), page.find("```", begin + fence.size()) - begin - fence.size());
  const Pool pool = test::require_value(parse_pool_file(example));
  CHECK(pool.entries.size() == 4);
  CHECK(write_pool_file(pool) == example);
  const ordered_json file = ordered_json::parse(example);
  for (const auto& key : file.items()) CHECK_THAT(page, Catch::Contains("| `" + key.key() + "` |"));
  for (const auto& key : file.at("entries").at(0).items()) CHECK_THAT(page, Catch::Contains("| `" + key.key() + "` |"));
}

}  // namespace
}  // namespace kvferry
