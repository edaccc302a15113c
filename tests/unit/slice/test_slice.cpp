// The join of two pools. The oracle asks for each source entry which target entry has the same component, role and layer, by looking at all of them.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "kvferry/model_config.h"
#include "kvferry/slice.h"
#include "unit/slice/refusals.h"
#include "unit/slice/stage_cuts.h"

using namespace kvferry;
using kvferry::test::check_refused;
using kvferry::test::cuts;
using kvferry::test::random_ratios;

namespace {

using Ratios = std::vector<std::uint32_t>;

struct Section {
  Component component;
  Role role = Role::k;
  IndexSpace space = IndexSpace::pages;
  std::uint64_t item_length_bytes = 0;
  DType dtype = DType::bf16;
};

void append(Pool& pool, const Section& section, std::uint32_t layer) {
  Entry entry;
  entry.component = section.component;
  entry.role = section.role;
  entry.layer = layer;
  entry.space = section.space;
  entry.dtype = section.dtype;
  entry.page_size = section.space == IndexSpace::pages || section.space == IndexSpace::window_pages ? pool.page_size : 1;
  entry.base_address = std::uint64_t{1} << 63 | pool.entries.size() << 20;
  entry.pitch_bytes = section.item_length_bytes;
  entry.item_length_bytes = section.item_length_bytes;
  entry.index_count = 8;
  pool.entries.push_back(entry);
}

void append_layers(Pool& pool, const Section& section, Stage layers) {
  for (std::uint32_t layer = layers.first; layer < layers.end; ++layer) append(pool, section, layer);
}

Pool empty_pool(std::string kind, std::uint32_t layers, Stage stage, std::uint32_t page_size) {
  Pool pool;
  pool.model = "test";
  pool.kind = std::move(kind);
  pool.layers_total = layers;
  pool.stage = stage;
  pool.page_size = page_size;
  return pool;
}

constexpr std::uint64_t kGqaItem = 8 * 128 * 2 * 16;

Pool gqa_pool(std::uint32_t layers, Stage stage, std::uint32_t drafts = 0) {
  Pool pool = empty_pool("GQA", layers, stage, 16);
  pool.draft_layers = drafts;
  for (const Role role : {Role::k, Role::v}) append_layers(pool, {{ComponentKind::kv, false}, role, IndexSpace::pages, kGqaItem}, stage);
  for (const Role role : {Role::k, Role::v}) append_layers(pool, {{ComponentKind::kv, true}, role, IndexSpace::pages, kGqaItem}, {0, drafts});
  for (Entry& entry : pool.entries) entry.heads = HeadRange{.head_count = 8, .first_head = 0, .bytes_per_head_token = 256};
  return pool;
}

Pool mla_pool(std::uint32_t layers, Stage stage, std::uint32_t drafts = 0) {
  Pool pool = empty_pool("MLA", layers, stage, 64);
  pool.draft_layers = drafts;
  append_layers(pool, {{ComponentKind::kv, false}, Role::latent, IndexSpace::pages, 1152 * 64}, stage);
  append_layers(pool, {{ComponentKind::kv, true}, Role::latent, IndexSpace::pages, 1152 * 64}, {0, drafts});
  return pool;
}

enum class Variant { paged_fp8, unified_bf16 };

/// Item lengths of DeepSeek-V4-Flash; drafts are windows only.
Pool compressed_pool(const Ratios& ratios, Stage stage, Variant variant, std::uint32_t drafts = 0) {
  const bool paged = variant == Variant::paged_fp8;
  Pool pool = empty_pool("compressed MLA", static_cast<std::uint32_t>(ratios.size()), stage, 256);
  pool.variant = paged ? "paged_fp8" : "unified_bf16";
  pool.draft_layers = drafts;
  pool.window_tokens = 128;
  pool.ring_stride = paged ? 0 : 128;
  pool.c128_ring_size = 128;
  pool.compression_ratios = ratios;
  const auto append_ratio = [&](const Section& section, std::uint32_t ratio) {
    for (std::uint32_t layer = stage.first; layer < stage.end; ++layer) {
      if (ratios[layer] == ratio) append(pool, section, layer);
    }
  };
  const DType rows = paged ? DType::packed_fp8 : DType::bf16;
  append_ratio({{ComponentKind::kv, false}, Role::c4, IndexSpace::pages, paged ? 37440u : 65536u, rows}, 4);
  append_ratio({{ComponentKind::kv, false}, Role::c4_indexer, IndexSpace::pages, 8448, DType::packed_fp8}, 4);
  append_ratio({{ComponentKind::kv, false}, Role::c128, IndexSpace::pages, paged ? 1728u : 2048u, rows}, 128);
  const auto window = [&](bool draft) {
    return paged ? Section{{ComponentKind::swa, draft}, Role::swa_pool, IndexSpace::window_pages, 149760, rows}
                 : Section{{ComponentKind::swa_ring, draft}, Role::ring, IndexSpace::ring_rows, 1024, rows};
  };
  append_layers(pool, window(false), stage);
  const IndexSpace states = paged ? IndexSpace::window_pages : IndexSpace::request_slots;
  append_ratio({{ComponentKind::swa, false}, Role::c4_state, states, 65536, DType::fp32}, 4);
  append_ratio({{ComponentKind::swa, false}, Role::c4_indexer_state, states, 16384, DType::fp32}, 4);
  append_ratio({{ComponentKind::c128_state, false}, Role::c128_state, IndexSpace::c128_rows, 524288, DType::fp32}, 128);
  append_layers(pool, window(true), {0, drafts});
  return pool;
}

/// DeepSeek-V4-Flash without its draft: 21 layers of ratio 4, 20 of ratio 128.
Ratios flash_ratios() {
  Ratios ratios{0, 0};
  for (int pair = 0; pair < 20; ++pair) ratios.insert(ratios.end(), {4, 128});
  ratios.push_back(4);
  return ratios;
}

bool same_name(const Entry& one, const Entry& other) {
  return one.component.kind == other.component.kind && one.component.draft == other.component.draft && one.role == other.role &&
         one.layer == other.layer;
}

/// Every source entry once, in order, with the only target entry of its name.
bool pairs_right(const Pool& source, const Pool& target, const std::vector<EntryPair>& pairs) {
  if (pairs.size() != source.entries.size()) return false;
  for (std::uint32_t place = 0; place < pairs.size(); ++place) {
    if (pairs[place].source != place || pairs[place].target >= target.entries.size()) return false;
    for (std::uint32_t other = 0; other < target.entries.size(); ++other) {
      if (same_name(source.entries[place], target.entries[other]) != (other == pairs[place].target)) return false;
    }
  }
  return true;
}

using MakePool = std::function<Pool(Stage stage, std::uint32_t drafts)>;

/// Cuts the model in every way; the stages together must write every target entry once. `random` also shuffles the target's list.
void check_every_cut(std::uint32_t layers, std::uint32_t drafts, const MakePool& make, std::mt19937_64& random) {
  Pool target = make({0, layers}, drafts);
  std::shuffle(target.entries.begin(), target.entries.end(), random);
  for (std::uint32_t stages = 1; stages <= std::min(layers, 4u); ++stages) {
    for (const auto& cut : cuts(layers, stages)) {
      std::vector<int> written(target.entries.size());
      for (const Stage& stage : cut) {
        const Pool source = make(stage, stage.end == layers ? drafts : 0);
        const auto pairs = slice(source, target);
        if (!pairs) FAIL(pairs.error().text);
        if (!pairs_right(source, target, *pairs))
          FAIL("wrong pairs for stage [" << stage.first << ", " << stage.end << ") of " << layers << " layers");
        for (const EntryPair& pair : *pairs) ++written[pair.target];
        if (!slice(source, make(stage, stage.end == layers ? drafts : 0))) FAIL("decode cut like prefill is refused");
      }
      if (!std::all_of(written.begin(), written.end(), [](int times) { return times == 1; })) FAIL("a target entry is not written once");
    }
  }
}

struct Mismatch {
  const char* reason;
  std::function<void(Pool& source, Pool& target)> change;
  std::vector<std::string_view> words;
};

void check_mismatches(const Pool& source, const Pool& target, const std::vector<Mismatch>& mismatches) {
  REQUIRE(slice(source, target).has_value());
  for (const Mismatch& mismatch : mismatches) {
    INFO(mismatch.reason);
    Pool changed_source = source, changed_target = target;
    mismatch.change(changed_source, changed_target);
    const auto pairs = slice(changed_source, changed_target);
    check_refused(pairs, {});
    check_refused(check_compatible(changed_source, changed_target), {});
    if (pairs) continue;
    INFO(pairs.error().text);
    for (const std::string_view word : mismatch.words) {
      INFO("must have: " << word);
      CHECK(pairs.error().text.find(word) != std::string::npos);
    }
  }
}

Entry& entry_of(Pool& pool, Component component, Role role, std::uint32_t layer) {
  return *std::find_if(pool.entries.begin(), pool.entries.end(),
                       [&](const Entry& entry) { return entry.component == component && entry.role == role && entry.layer == layer; });
}

constexpr Component kKv{ComponentKind::kv, false};

}  // namespace

TEST_CASE("every cut of up to eight layers into up to four stages pairs each entry with its own, drafts too") {
  std::mt19937_64 random(7);
  for (std::uint32_t layers = 1; layers <= 8; ++layers) {
    for (const std::uint32_t drafts : {0u, 1u, 2u}) {
      INFO("layers " << layers << ", drafts " << drafts);
      check_every_cut(
          layers, drafts, [&](Stage stage, std::uint32_t own_drafts) { return gqa_pool(layers, stage, own_drafts); }, random);
      check_every_cut(
          layers, drafts, [&](Stage stage, std::uint32_t own_drafts) { return mla_pool(layers, stage, own_drafts); }, random);
      for (int round = 0; round < 3; ++round) {
        const Ratios ratios = random_ratios(layers, random);
        for (const Variant variant : {Variant::paged_fp8, Variant::unified_bf16}) {
          check_every_cut(
              layers, drafts, [&](Stage stage, std::uint32_t own_drafts) { return compressed_pool(ratios, stage, variant, own_drafts); }, random);
        }
      }
    }
  }
}

TEST_CASE("the stages of every published model that is laid out write every entry of decode once") {
  int models_count = 0;
  for (const auto& file : std::filesystem::directory_iterator(KVFERRY_TEST_DATA "/models")) {
    std::ifstream stream(file.path());
    const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    const auto model = parse_model_config(text, file.path().stem().string());
    if (!model) continue;  // of a kind that is refused by name, or no config
    ++models_count;
    for (const DType dtype : {DType::bf16, DType::fp8_e4m3}) {
      INFO(file.path() << " " << to_string(dtype));
      PoolOptions options;
      options.page_size = model->kind == ModelKind::compressed_mla ? 256 : 64;
      options.dtype = dtype;
      options.draft_layers = 1;
      const Pool target = build_whole_pool(*model, options).value();
      for (const std::uint32_t stages : {2u, 3u, 4u, 8u}) {
        std::vector<int> written(target.entries.size());
        for (std::uint32_t stage = 0; stage < stages; ++stage) {
          const Parallelism cut{.tp = 1, .pp = split_stages(model->layers, stages).value()};
          const Pool source = build_pool(*model, options, cut, 0, stage).value();
          const auto pairs = slice(source, target);
          if (!pairs) FAIL(pairs.error().text);
          for (const EntryPair& pair : *pairs) ++written[pair.target];
        }
        CHECK(std::all_of(written.begin(), written.end(), [](int times) { return times == 1; }));
      }
    }
  }
  CHECK(models_count >= 15);
}

TEST_CASE("layers of a hybrid model pair by their global number, not by their place among the dense ones") {  // FC-002, FC-003
  const auto hybrid = [](std::uint32_t layers, std::uint32_t period, Stage stage) {
    Pool pool = gqa_pool(layers, stage);
    pool.entries.erase(
        std::remove_if(pool.entries.begin(), pool.entries.end(), [&](const Entry& entry) { return entry.layer % period != period - 1; }),
        pool.entries.end());
    return pool;
  };
  const auto targets = [](const std::vector<EntryPair>& pairs) {
    std::vector<std::uint32_t> places;
    for (const EntryPair& pair : pairs) places.push_back(pair.target);
    return places;
  };
  CHECK(targets(slice(hybrid(60, 4, {30, 60}), hybrid(60, 4, {0, 60})).value()) ==
        std::vector<std::uint32_t>{7, 8, 9, 10, 11, 12, 13, 14, 22, 23, 24, 25, 26, 27, 28, 29});
  CHECK(targets(slice(hybrid(48, 4, {24, 48}), hybrid(48, 4, {0, 48})).value()) ==
        std::vector<std::uint32_t>{6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23});
  CHECK(slice(hybrid(48, 4, {0, 3}), hybrid(48, 4, {0, 48})).value().empty());  // a stage without KV layers
}

TEST_CASE("pitches may differ, nothing else of an item may") {
  Pool source = gqa_pool(2, {0, 2}), target = source;
  target.entries[1].pitch_bytes += 256;
  target.entries[2].memory = MemoryKind::device;
  target.entries[3].index_count = 1000;
  const auto pairs = slice(source, target).value();
  CHECK(pairs[0].compatibility == Compatibility::equal);
  CHECK(pairs[1].compatibility == Compatibility::different_pitch);
  CHECK(pairs[2].compatibility == Compatibility::equal);
  CHECK(pairs[3].compatibility == Compatibility::equal);
  CHECK(check_compatible(source, target).has_value());
}

TEST_CASE("two pools that disagree are refused with the entry and both values") {
  check_mismatches(
      gqa_pool(8, {2, 5}, 1), gqa_pool(8, {0, 8}, 2),
      {
          {"other dtype",
           [](Pool&, Pool& t) { entry_of(t, kKv, Role::v, 3).dtype = DType::fp8_e4m3; },
           {"kv v layer 3", "bf16 on the source", "fp8_e4m3 on the target"}},
          {"other item length",
           [](Pool&, Pool& t) { entry_of(t, kKv, Role::k, 4).item_length_bytes = 32512; },
           {"kv k layer 4", "32768 bytes on the source", "32512 on the target"}},
          {"pages of several pages",
           [](Pool&, Pool& t) { entry_of(t, kKv, Role::k, 2).page_size = 64; },
           {"kv k layer 2", "16 tokens on the source", "64 on the target", "page multiples"}},
          {"pages without ratio",
           [](Pool& s, Pool& t) { entry_of(s, kKv, Role::k, 2).page_size = 4192, entry_of(t, kKv, Role::k, 2).page_size = 2112; },
           {"kv k layer 2", "4192", "2112", "no integer ratio"}},
          {"page size 0", [](Pool&, Pool& t) { entry_of(t, kKv, Role::k, 2).page_size = 0; }, {"16", "0 on the target", "no integer ratio"}},
          {"page size of the pool", [](Pool&, Pool& t) { t.page_size = 64; }, {"page size of the pool", "16 on the source", "64 on the target"}},
          {"other heads",
           [](Pool&, Pool& t) { entry_of(t, kKv, Role::k, 2).heads->first_head = 8; },
           {"kv k layer 2", "[0, 8)", "[8, 16)", "head ranges"}},
          {"fewer heads",
           [](Pool& s, Pool&) { entry_of(s, kKv, Role::k, 2).heads->head_count = 4; },
           {"kv k layer 2", "[0, 4)", "[0, 8)", "head ranges"}},
          {"wider heads",
           [](Pool&, Pool& t) { entry_of(t, kKv, Role::k, 2).heads->bytes_per_head_token = 512; },
           {"kv k layer 2", "256 bytes", "512 bytes"}},
          {"heads on one side only", [](Pool&, Pool& t) { entry_of(t, kKv, Role::k, 2).heads.reset(); }, {"kv k layer 2", "[0, 8)", "not declared"}},
          {"other index space",
           [](Pool&, Pool& t) { entry_of(t, kKv, Role::v, 2).space = IndexSpace::window_pages; },
           {"kv v layer 2", "pages on the source", "window_pages on the target"}},
          {"a target entry gone",
           [](Pool&, Pool& t) { t.entries.erase(t.entries.begin() + 3); },
           {"source entry kv k layer 3", "no partner", "19 entries"}},
          {"a source entry gone",
           [](Pool& s, Pool&) { s.entries.erase(s.entries.begin() + 4); },
           {"target entry kv v layer 3", "[2, 5)", "never be written"}},
          {"roles swapped", [](Pool&, Pool& t) { entry_of(t, kKv, Role::v, 2).role = Role::latent; }, {"source entry kv v layer 2", "no partner"}},
          {"doubled in the source", [](Pool& s, Pool&) { s.entries[1].layer = 2; }, {"source has kv k layer 2 twice", "entries 0 and 1"}},
          {"doubled in the target", [](Pool&, Pool& t) { t.entries.push_back(t.entries[9]); }, {"target has kv v layer 1 twice", "entries 9 and 20"}},
          {"a draft the target lacks",
           [](Pool&, Pool& t) {
             t = gqa_pool(8, {0, 8});
           },
           {"source entry draft.kv k layer 0", "1 on the source, 0 on the target", "speculative"}},
          {"source layer outside its stage", [](Pool& s, Pool&) { s.stage.end = 4; }, {"source entry 2 (kv k layer 4)", "[2, 4)"}},
          {"target layer outside its stage", [](Pool&, Pool& t) { t.stage.end = 7; }, {"target entry 7 (kv k layer 7)", "[0, 7)"}},
          {"stage beyond its own model", [](Pool& s, Pool&) { s.stage.end = 9; }, {"source stage [2, 9)", "8 layers"}},
          {"stage beyond the target's model",
           [](Pool&, Pool& t) {
             t = gqa_pool(4, {0, 4}, 2);
           },
           {"source stage [2, 5)", "target's model of layers [0, 4)"}},
          {"stage outside the target's",
           [](Pool&, Pool& t) {
             t = gqa_pool(8, {4, 8}, 2);
           },
           {"source stage [2, 5)", "target's stage [4, 8)"}},
          {"stage turned round",
           [](Pool& s, Pool&) {
             s.stage = {5, 2};
           },
           {"[5, 2)"}},
          {"another model",
           [](Pool&, Pool& t) {
             t = gqa_pool(10, {0, 10}, 2);
           },
           {"8 layers", "the target's 10"}},
          {"another kind", [](Pool&, Pool& t) { t.kind = "MLA"; }, {"'GQA' on the source", "'MLA' on the target"}},
          {"another variant", [](Pool& s, Pool& t) { s.variant = "scaled", t.variant = "raw"; }, {"'scaled'", "'raw'"}},
          {"another window", [](Pool& s, Pool&) { s.window_tokens = 4096; }, {"window", "4096 on the source", "0 on the target"}},
          {"ratios on one side only",
           [](Pool&, Pool& t) { t.compression_ratios = {0, 0, 0, 0, 0, 0, 0, 0}; },
           {"only the target", "0 on the source", "8 on the target", "digest"}},
      });
}

TEST_CASE("two regions of one layer need a role each") {  // FC-107
  Pool source = gqa_pool(1, {0, 1}), target = source;
  std::swap(target.entries[0].role, target.entries[1].role);
  target.entries[0].item_length_bytes = 256;
  check_refused(slice(source, target), {"kv v layer 0", "32768", "256"});
}

TEST_CASE("surplus target entries are fine outside the source's stage and for drafts") {
  CHECK(slice(gqa_pool(8, {2, 5}), gqa_pool(8, {0, 8}, 3)).value().size() == 6);
  Pool source = gqa_pool(8, {2, 5});
  source.stage = {2, 2};
  source.entries.clear();
  CHECK(slice(source, gqa_pool(8, {0, 8})).value().empty());
}

TEST_CASE("compressed-MLA pools that disagree are refused with both values") {
  const Ratios ratios{0, 4, 128, 4, 128, 4};
  for (const Variant variant : {Variant::paged_fp8, Variant::unified_bf16}) {
    check_mismatches(
        compressed_pool(ratios, {1, 4}, variant), compressed_pool(ratios, {0, 6}, variant),
        {
            {"another ratio", [](Pool&, Pool& t) { t.compression_ratios[5] = 128; }, {"layer 5", "4 on the source", "128 on the target", "digest"}},
            {"a longer ratio list",
             [](Pool&, Pool& t) { t.compression_ratios.push_back(0); },
             {"layer 6", "none (6 ratios) on the source", "0 on the target"}},
            {"unknown ratio of the source",
             [](Pool& s, Pool&) { s.compression_ratios[2] = 2; },
             {"unknown compression ratio 2", "layer 2", "the source's"}},
            {"unknown ratio of the target",
             [](Pool&, Pool& t) { t.compression_ratios[2] = 2; },
             {"unknown compression ratio 2", "layer 2", "the target's"}},
            {"online C128",
             [](Pool&, Pool& t) { t.c128_online = true, t.c128_ring_size = 0; },
             {"C128", "'paged' on the source", "'online' on the target"}},
            {"longer C128 ring", [](Pool&, Pool& t) { t.c128_ring_size = 256; }, {"C128 ring size", "128 on the source", "256 on the target"}},
            {"another ring stride", [](Pool&, Pool& t) { t.ring_stride = 136; }, {"ring stride", "136 on the target"}},
            {"another window", [](Pool&, Pool& t) { t.window_tokens = 256; }, {"window", "128 on the source", "256 on the target"}},
            {"too few ratios",
             [](Pool& s, Pool& t) { s.compression_ratios.resize(4), t.compression_ratios.resize(4); },
             {"target stage [0, 6)", "4 compression ratios"}},
        });
  }
  Pool paged = compressed_pool(ratios, {0, 6}, Variant::paged_fp8), unified = compressed_pool(ratios, {0, 6}, Variant::unified_bf16);
  check_refused(slice(paged, unified), {"'paged_fp8' on the source", "'unified_bf16' on the target"});
  paged.variant.clear();  // undeclared, but the entries tell
  unified.ring_stride = 0;
  check_refused(slice(paged, unified), {"window is kept in pages on the source and in a ring on the target"});
}

TEST_CASE("a target list one entry short for DeepSeek-V4 is refused with lengths, counts, the missing entry and a remedy") {
  const Pool source = compressed_pool(flash_ratios(), {0, 22}, Variant::paged_fp8),
             whole = compressed_pool(flash_ratios(), {0, 43}, Variant::paged_fp8);
  REQUIRE(slice(source, whole).has_value());
  REQUIRE(whole.entries.size() == 62 + 85 + 20);
  for (std::size_t missing = 0; missing < whole.entries.size(); ++missing) {  // also those of layers that another stage sends
    Pool target = whole;
    target.entries.erase(target.entries.begin() + static_cast<std::ptrdiff_t>(missing));
    const Entry& entry = whole.entries[missing];
    const std::string name = describe(entry) + " is missing";
    const char* list = entry.component.kind == ComponentKind::kv    ? "target kv list is 1 entry short: 61 entries found, 62 expected"
                       : entry.component.kind == ComponentKind::swa ? "target state list is 1 entry short: 84 entries found, 85 expected"
                                                                    : "target C128 state list is 1 entry short: 19 entries found, 20 expected";
    check_refused(slice(source, target), {list, name, "c4 21, c128 20, total 43", "kv list of 62 (2*c4 + c128)", "state list of 85 (SWA 43 + 2*c4)",
                                          "same model, engine version, kv cache dtype and layout variant", "the target's is paged_fp8"});
  }
}

TEST_CASE("a source list one entry short for DeepSeek-V4 is refused: the target would keep old bytes") {
  const Pool whole = compressed_pool(flash_ratios(), {22, 43}, Variant::unified_bf16),
             target = compressed_pool(flash_ratios(), {0, 43}, Variant::unified_bf16);
  REQUIRE(slice(whole, target).has_value());
  for (std::size_t missing = 0; missing < whole.entries.size(); ++missing) {
    Pool source = whole;
    source.entries.erase(source.entries.begin() + static_cast<std::ptrdiff_t>(missing));
    const std::string name = describe(whole.entries[missing]) + " is missing";
    check_refused(slice(source, target), {"source", "1 entry short", name, "[22, 43)", "c4 11, c128 10, total 43"});
  }
}

TEST_CASE("compressed-MLA lists with strangers, several entries short, or absent on one side are refused") {
  const Ratios ratios{0, 4, 128, 4, 128, 4};
  const Pool source = compressed_pool(ratios, {1, 4}, Variant::paged_fp8), target = compressed_pool(ratios, {0, 6}, Variant::paged_fp8);
  const auto without = [](Pool pool, ComponentKind kind) {
    pool.entries.erase(std::remove_if(pool.entries.begin(), pool.entries.end(), [&](const Entry& entry) { return entry.component.kind == kind; }),
                       pool.entries.end());
    return pool;
  };
  check_mismatches(source, target,
                   {
                       {"a role on a layer of another ratio",
                        [](Pool&, Pool& t) { entry_of(t, kKv, Role::c128, 4).layer = 5; },
                        {"target kv list does not fit", "kv c128 layer 4 is missing"}},
                       {"one entry too many",
                        [](Pool&, Pool& t) { t.entries.push_back(t.entries[0]), t.entries.back().layer = 2; },
                        {"target kv list is 1 entry too long: 9 entries found, 8 expected", "kv c4 layer 2 does not belong to a layer of ratio 128"}},
                       {"K in a compressed pool",
                        [](Pool&, Pool& t) { t.entries.push_back(t.entries[0]), t.entries.back().role = Role::k; },
                        {"kv k layer 1 does not belong"}},
                       {"several missing",
                        [](Pool&, Pool& t) { t.entries.erase(t.entries.begin(), t.entries.begin() + 3); },
                        {"target kv list is 3 entries short: 5 entries found, 8 expected", "kv c4 layer 1 and 2 more are missing"}},
                       {"state list absent at the target",
                        [&](Pool&, Pool& t) { t = without(t, ComponentKind::swa); },
                        {"target state list is 12 entries short", "0 entries found"}},
                       {"C128 list absent at the source",
                        [&](Pool& s, Pool&) { s = without(s, ComponentKind::c128_state); },
                        {"source C128 state list is 1 entry short"}},
                   });
  CHECK(slice(without(source, ComponentKind::c128_state), without(target, ComponentKind::c128_state)).has_value());  // lists sent one by one
}

TEST_CASE("the model's last slot may lack a window, on both sides alike") {
  Ratios ratios{0, 4, 128, 4, 128, 4, 128, 4, 0};
  const Pool source = compressed_pool(ratios, {6, 9}, Variant::paged_fp8), target = compressed_pool(ratios, {0, 9}, Variant::paged_fp8);
  const auto without_tail = [](Pool pool) {
    pool.entries.erase(std::remove_if(pool.entries.begin(), pool.entries.end(), [](const Entry& entry) { return entry.layer == 8; }),
                       pool.entries.end());
    return pool;
  };
  CHECK(slice(source, target).value().size() == source.entries.size());
  CHECK(slice(without_tail(source), without_tail(target)).value().size() == source.entries.size() - 1);
  check_refused(slice(source, without_tail(target)), {"source entry swa swa_pool layer 8", "no partner"});
  check_refused(slice(without_tail(source), target), {"target entry swa swa_pool layer 8", "never be written"});
}
