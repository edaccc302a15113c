// Flat lists. The oracle is in the pointers: each one says which buffer of which layer it is, so a pair is right when both of its pointers say the
// same.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kvferry/sglang_lists.h"
#include "unit/slice/refusals.h"
#include "unit/slice/stage_cuts.h"

using namespace kvferry;
using namespace kvferry::sglang;
using kvferry::test::check_refused;
using kvferry::test::cuts;
using kvferry::test::random_ratios;

namespace {

using Pointers = std::vector<std::uint64_t>;
using Ratios = std::vector<std::uint32_t>;

constexpr std::uint64_t kSource = std::uint64_t{1} << 63, kTarget = std::uint64_t{3} << 62;  // above 2^63: nothing may treat them as signed

/// The buffer `section` of a layer; drafts count from 0 again.
std::uint64_t pointer(std::uint64_t side, std::uint64_t section, bool draft, std::uint64_t layer) {
  return side | section << 40 | static_cast<std::uint64_t>(draft) << 39 | layer;
}
std::uint64_t meaning(std::uint64_t pointer) { return pointer & ((std::uint64_t{1} << 62) - 1); }

void append_section(Pointers& list, std::uint64_t side, std::uint64_t section, bool draft, std::uint64_t first, std::uint64_t end) {
  for (std::uint64_t layer = first; layer < end; ++layer) list.push_back(pointer(side, section, draft, layer));
}

Pointers mha_list(std::uint64_t side, Stage stage, std::uint64_t drafts) {
  Pointers list;
  for (const std::uint64_t section : {0u, 1u}) append_section(list, side, section, false, stage.first, stage.end);
  for (const std::uint64_t section : {0u, 1u}) append_section(list, side, section, true, 0, drafts);
  return list;
}

Pointers mla_list(std::uint64_t side, Stage stage, std::uint64_t drafts) {
  Pointers list;
  append_section(list, side, 0, false, stage.first, stage.end);
  append_section(list, side, 0, true, 0, drafts);
  return list;
}

/// `window_end`: the first layer without a window.
Pointers compressed_list(std::uint64_t side, StateType type, Stage stage, const Ratios& ratios, std::uint64_t window_end) {
  Pointers list;
  const auto append_ratio = [&](std::uint64_t section, std::uint32_t ratio) {
    for (std::uint32_t layer = stage.first; layer < stage.end; ++layer) {
      if (ratios[layer] == ratio) list.push_back(pointer(side, section, false, layer));
    }
  };
  if (type == StateType::swa || type == StateType::swa_ring)
    append_section(list, side, 9, false, stage.first, std::min<std::uint64_t>(stage.end, window_end));
  if (type == StateType::kv || type == StateType::swa) {
    append_ratio(0, 4);
    append_ratio(1, 4);
  }
  if (type == StateType::kv || type == StateType::c128_state) append_ratio(2, 128);
  return list;
}

ListLayout layout(Stage stage, std::uint32_t drafts) {
  return {.first_layer = stage.first, .target_layers = stage.end - stage.first, .draft_layers = drafts};
}

/// Every source pointer once, each with the target's pointer to the same buffer.
bool pairs_right(const Pointers& list, const Pointers& source, const Pointers& target) {
  if (source.size() != list.size() || target.size() != list.size()) return false;
  for (std::size_t place = 0; place < source.size(); ++place) {
    if ((source[place] >> 62) != kSource >> 62 || (target[place] >> 62) != kTarget >> 62) return false;
    if (meaning(source[place]) != meaning(target[place])) return false;
  }
  return std::set<std::uint64_t>(source.begin(), source.end()) == std::set<std::uint64_t>(list.begin(), list.end());
}

Pointers shortened(Pointers list) {
  list.pop_back();
  return list;
}
Pointers lengthened(Pointers list) {
  list.push_back(77);
  return list;
}

Pointers numbered(std::uint64_t count) {
  Pointers list(count);
  for (std::uint64_t place = 0; place < count; ++place) list[place] = place;
  return list;
}

}  // namespace

TEST_CASE("every cut of an MHA model pairs each K and V with its own layer, with and without draft layers") {
  for (std::uint32_t layers = 1; layers <= 8; ++layers) {
    for (std::uint32_t stages = 1; stages <= std::min(layers, 4u); ++stages) {
      for (const auto& cut : cuts(layers, stages)) {
        for (const std::uint32_t target_drafts : {0u, 1u, 2u, layers, layers + 1}) {
          const Pointers target = mha_list(kTarget, {0, layers}, target_drafts);
          for (const Stage& stage : cut) {
            for (std::uint32_t source_drafts = 0; source_drafts <= (stage.end == layers ? target_drafts : 0); ++source_drafts) {
              const Pointers source = mha_list(kSource, stage, source_drafts);
              const auto slice = slice_mha(stage.first, source, target, layout(stage, source_drafts), layout({0, layers}, target_drafts));
              INFO("layers " << layers << ", stage [" << stage.first << ", " << stage.end << "), drafts " << source_drafts << " and "
                             << target_drafts);
              REQUIRE(slice.has_value());
              Pointers all_source = slice->source_k, all_target = slice->target_k;
              all_source.insert(all_source.end(), slice->source_v.begin(), slice->source_v.end());
              all_target.insert(all_target.end(), slice->target_v.begin(), slice->target_v.end());
              REQUIRE(pairs_right(source, all_source, all_target));
              REQUIRE(slice->layers == slice->source_k.size());
              REQUIRE(slice->source_k.size() == slice->source_v.size());
              REQUIRE(std::all_of(slice->source_k.begin(), slice->source_k.end(), [](std::uint64_t each) { return (meaning(each) >> 40) == 0; }));
              if (source_drafts == 0) REQUIRE(slice_mha(stage.first, source, target, std::nullopt, layout({0, layers}, target_drafts)).has_value());
            }
          }
        }
      }
    }
  }
}

TEST_CASE("an MHA list that does not fit its declaration is refused with both lengths") {
  const Stage model{0, 8}, stage{3, 7};
  const Pointers source = mha_list(kSource, stage, 1), target = mha_list(kTarget, model, 1);
  const auto slice = [&](const Pointers& from, const Pointers& to) { return slice_mha(3, from, to, layout(stage, 1), layout(model, 1)); };
  REQUIRE(slice(source, target).has_value());
  check_refused(slice(source, shortened(target)), {"target", "17 entries", "18 expected", "8 target", "1 draft"});
  check_refused(slice(source, lengthened(target)), {"target", "19 entries", "18 expected"});
  check_refused(slice(shortened(source), target), {"source", "9 entries", "10 expected", "4 target", "1 draft"});
  check_refused(slice(lengthened(source), target), {"source", "11 entries", "10 expected"});
  check_refused(slice({}, target), {"source", "0 entries", "10 expected"});
  check_refused(slice(source, {}), {"target", "0 entries", "18 expected"});
  const auto undeclared = [&](std::uint32_t start, std::uint64_t source_entries) {
    return slice_mha(start, numbered(source_entries), target, std::nullopt, layout(model, 1));
  };
  check_refused(undeclared(0, 9), {"9 entries", "odd"});
  check_refused(undeclared(6, 8), {"[6, 10)", "[0, 8)"});  // ends beyond the model
  check_refused(undeclared(8, 2), {"[8, 9)", "[0, 8)"});   // starts at its end, where the draft lies
  check_refused(undeclared(4294967295u, 4), {"[4294967295, 4294967297)", "[0, 8)"});
  check_refused(undeclared(0, 0), {"source list is empty", "18 entries"});
  check_refused(slice_mha(2, source, target, layout(stage, 1), layout(model, 1)), {"layer 2", "layer 3"});
  check_refused(slice_mha(3, mha_list(kSource, stage, 2), target, layout(stage, 2), layout(model, 1)), {"2 draft", "1", "speculative"});
  check_refused(slice_mha(3, mha_list(kSource, stage, 0), mha_list(kTarget, {4, 8}, 0), layout(stage, 0), layout({4, 8}, 0)), {"[3, 7)", "[4, 8)"});
  CHECK(slice_mha(5, {}, {}, std::nullopt, layout({0, 0}, 0)).value().layers == 0);
  CHECK(slice_mha(99, mha_list(kSource, {0, 0}, 1), target, layout({0, 0}, 1), layout(model, 1)).value().layers == 1);  // draft layers have no stage
}

TEST_CASE("draft layers behind the target block do not move the V section") {  // FC-001
  const Pointers target = numbered(62);                                        // 30 layers and 1 draft layer
  for (const std::uint32_t start : {0u, 15u}) {
    const auto slice = slice_mha(start, numbered(30), target, std::nullopt, layout({0, 30}, 1)).value();
    CHECK(slice.target_k.front() == start);
    CHECK(slice.target_v.front() == 30 + start);
    CHECK(slice.target_v.back() == 30 + start + 14);
  }
}

TEST_CASE("every cut of an MLA model pairs each latent with its own layer, with and without draft layers") {
  for (std::uint32_t layers = 1; layers <= 8; ++layers) {
    for (std::uint32_t stages = 1; stages <= std::min(layers, 4u); ++stages) {
      for (const auto& cut : cuts(layers, stages)) {
        for (std::uint32_t drafts = 0; drafts <= 2; ++drafts) {
          const Pointers target = mla_list(kTarget, {0, layers}, drafts);
          for (const Stage& stage : cut) {
            const std::uint32_t source_drafts = stage.end == layers ? drafts : 0;
            const Pointers source = mla_list(kSource, stage, source_drafts);
            const auto slice = slice_mla(source, target, layout(stage, source_drafts), layout({0, layers}, drafts));
            REQUIRE(slice.has_value());
            REQUIRE(pairs_right(source, slice->source, slice->target));
          }
        }
      }
    }
  }
}

TEST_CASE("MLA stages 20, 20, 19, 19 of 78 layers cover the target once") {  // FC-004
  Pointers covered;
  for (const Stage& stage : {Stage{0, 20}, Stage{20, 40}, Stage{40, 59}, Stage{59, 78}}) {
    const auto slice = slice_mla(numbered(stage.end - stage.first), numbered(78), layout(stage, 0), layout({0, 78}, 0)).value();
    covered.insert(covered.end(), slice.target.begin(), slice.target.end());
  }
  CHECK(covered == numbered(78));
}

TEST_CASE("an MLA list that does not fit its declaration is refused, whatever the other list's length") {
  const Stage first{0, 31}, second{31, 61}, model{0, 61};
  const auto slice = [](std::uint64_t from, std::uint64_t to, ListLayout source, ListLayout target) {
    return slice_mla(numbered(from), numbered(to), source, target);
  };
  REQUIRE(slice(30, 61, layout(second, 0), layout(model, 0)).has_value());
  CHECK(slice(30, 30, layout(second, 0), layout(second, 0)).value().target == numbered(30));  // decode cut like prefill
  check_refused(slice(30, 60, layout(second, 0), layout(model, 0)), {"target", "60 entries", "61 expected"});
  check_refused(slice(29, 61, layout(second, 0), layout(model, 0)), {"source", "29 entries", "30 expected"});
  check_refused(slice(31, 31, layout({31, 62}, 0), layout(first, 0)), {"[31, 62)", "[0, 31)"});  // equal lengths, other layers
  check_refused(slice(62, 61, layout({0, 62}, 0), layout(model, 0)), {"[0, 62)", "[0, 61)"});
  check_refused(slice(31, 61, layout(second, 1), layout(model, 0)), {"1 draft", "0"});
  CHECK(slice(31, 62, layout(second, 1), layout(model, 1)).value().target.back() == 61);
  CHECK(slice(0, 61, layout({3, 3}, 0), layout(model, 0)).value().source.empty());
}

TEST_CASE("every cut of a compressed-MLA model pairs each buffer of each list with its own layer") {
  std::mt19937_64 random(20240607);
  for (std::uint32_t layers = 1; layers <= 8; ++layers) {
    for (int round = 0; round < 6; ++round) {
      const Ratios ratios = random_ratios(layers, random);
      for (std::uint32_t stages = 1; stages <= std::min(layers, 4u); ++stages) {
        for (const auto& cut : cuts(layers, stages)) {
          for (const StateType type : {StateType::kv, StateType::swa, StateType::swa_ring, StateType::c128_state}) {
            for (const std::uint64_t window_end : {std::uint64_t{layers}, std::uint64_t{layers} - 1, std::uint64_t{0}}) {
              if (window_end == 0 && type == StateType::swa_ring && layers > 1) continue;
              const Pointers target = compressed_list(kTarget, type, {0, layers}, ratios, window_end);
              std::size_t covered = 0;
              for (const Stage& stage : cut) {
                const Pointers source = compressed_list(kSource, type, stage, ratios, window_end);
                const auto slice = slice_compressed_mla(stage.first, stage.end, ratios, type, source, target);
                INFO("layers " << layers << ", stage [" << stage.first << ", " << stage.end << "), type " << static_cast<int>(type) << ", window end "
                               << window_end);
                REQUIRE(slice.has_value());
                REQUIRE(pairs_right(source, slice->source, slice->target));
                covered += slice->target.size();
                check_refused(slice_compressed_mla(stage.first, stage.end, ratios, type, lengthened(source), target), {"source", "1 entry too long"});
                if (!source.empty()) {
                  check_refused(slice_compressed_mla(stage.first, stage.end, ratios, type, shortened(source), target), {"source", "1 entry short"});
                }
                // Decode cut like prefill: its list holds the stage only.
                const Pointers same_stage = compressed_list(kTarget, type, stage, ratios, window_end);
                const auto equal = slice_compressed_mla(ratios, type, source, same_stage, layout(stage, 0), layout(stage, 0));
                REQUIRE(equal.has_value());
                REQUIRE(pairs_right(source, equal->source, equal->target));
              }
              REQUIRE(covered == target.size());
            }
          }
        }
      }
    }
  }
}

TEST_CASE("compressed-MLA lists are grouped by buffer type") {  // FC-005
  const Ratios ratios{0, 4, 128, 4, 128, 4, 128, 4};
  CHECK(slice_compressed_mla(3, 6, ratios, StateType::kv, numbered(5), numbered(11)).value().target == Pointers{1, 2, 5, 6, 9});
}

TEST_CASE("a state list may lack the window of the model's last slot") {  // FC-006
  const Ratios ratios{0, 4, 128, 4, 128, 4, 128, 4, 0};
  const auto slice = [&](std::uint32_t start, std::uint32_t end, std::uint64_t from, std::uint64_t to) {
    return slice_compressed_mla(start, end, ratios, StateType::swa, numbered(from), numbered(to));
  };
  CHECK(slice(3, 6, 7, 16).value().target == Pointers{3, 4, 5, 9, 10, 13, 14});
  CHECK(slice(6, 9, 4, 16).value().target == Pointers{6, 7, 11, 15});
  CHECK(slice(6, 9, 5, 17).value().target == Pointers{6, 7, 8, 12, 16});
  CHECK(slice(6, 9, 2, 8).value().target == Pointers{3, 7});  // unified pool: no window pages
  for (const std::uint64_t length : {0u, 7u, 9u, 10u, 11u, 12u, 13u, 14u, 15u, 18u}) {
    check_refused(slice(3, 6, 7, length), {"target swa state list", std::to_string(length) + (length == 1 ? " entry" : " entries"),
                                           "8, 16 or 17 expected", "kv list of 11", "c4 4, c128 3, total 9"});
  }
}

TEST_CASE("only a list that reaches the model's last slot may lack a window") {
  const Ratios ratios{4, 128, 4, 0};
  const auto slice = [&](StateType type, std::uint64_t entries, Stage stage) {
    return slice_compressed_mla(ratios, type, numbered(entries), numbered(entries), layout(stage, 0), layout(stage, 0));
  };
  for (const Stage& stage : {Stage{0, 3}, Stage{1, 3}}) {
    const std::uint64_t layers = stage.end - stage.first, states = 2 * (stage.first == 0 ? 2 : 1);
    CHECK(slice(StateType::swa_ring, layers, stage).has_value());
    check_refused(slice(StateType::swa_ring, layers - 1, stage), {"swa_ring list is 1 entry short"});
    CHECK(slice(StateType::swa, layers + states, stage).has_value());
    check_refused(slice(StateType::swa, layers + states - 1, stage), {"swa state list", " or " + std::to_string(layers + states) + " expected"});
  }
  CHECK(slice(StateType::swa_ring, 2, {1, 4}).value().target == numbered(2));
  CHECK(slice(StateType::swa_ring, 3, {1, 4}).value().target == numbered(3));
}

TEST_CASE("the type of a compressed-MLA list is declared, never read from its length") {  // FC-007
  const Ratios ratios{0, 128, 128, 128, 128};
  CHECK(slice_compressed_mla(0, 3, ratios, StateType::kv, numbered(2), numbered(4)).value().target == Pointers{0, 1});
  CHECK(slice_compressed_mla(0, 3, ratios, StateType::swa, numbered(3), numbered(4)).value().target == Pointers{0, 1, 2});
  CHECK(parse_state_type("swa_ring").value() == StateType::swa_ring);
  check_refused(parse_state_type(""), {"kv, swa, swa_ring and c128_state"});
  check_refused(parse_state_type("dsa"), {"'dsa'"});
}

TEST_CASE("a target list one entry short says what it should be, by which counts, and what to check") {
  Ratios ratios{0, 0};  // DeepSeek-V4-Flash: 43 layers and a draft slot
  for (int pair = 0; pair < 20; ++pair) ratios.insert(ratios.end(), {4, 128});
  ratios.insert(ratios.end(), {4, 0});
  REQUIRE(ratios.size() == 44);
  check_refused(slice_compressed_mla(0, 22, ratios, StateType::kv, numbered(30), numbered(61)),
                {"target kv list is 1 entry short", "61 entries found", "62 expected", "c4 21, c128 20, total 44", "kv list of 62 (2*c4 + c128)",
                 "SWA + 42", "same model, engine version, kv cache dtype and layout variant"});
  check_refused(slice_compressed_mla(0, 22, ratios, StateType::swa, numbered(42), numbered(84)),
                {"target swa state list is 1 entry short", "84 entries found", "42, 85 or 86 expected", "c4 21, c128 20, total 44"});
  check_refused(slice_compressed_mla(0, 22, ratios, StateType::swa, numbered(42), numbered(62)), {"62 is the length of this pool's kv list"});
  check_refused(slice_compressed_mla(0, 22, ratios, StateType::kv, numbered(30), numbered(103)), {"two-pool fp8 variant"});
  check_refused(slice_compressed_mla(0, 22, ratios, StateType::swa_ring, numbered(22), numbered(88)), {"two-pool fp8 variant"});
  check_refused(slice_compressed_mla(0, 22, ratios, StateType::c128_state, numbered(10), numbered(19)),
                {"c128_state list is 1 entry short", "20 expected"});
}

TEST_CASE("stages and ratios that are no part of the model are refused") {
  const Ratios ratios{4, 4, 128, 4};
  const auto slice = [&](std::uint32_t start, std::uint32_t end) {
    return slice_compressed_mla(start, end, ratios, StateType::kv, numbered(7), numbered(7));
  };
  REQUIRE(slice(0, 4).has_value());
  check_refused(slice(2, 9), {"[2, 9)", "4 layers"});
  check_refused(slice(3, 1), {"[3, 1)", "4 layers"});
  check_refused(slice(2, 2), {"[2, 2)", "4 layers"});
  check_refused(slice_compressed_mla(0, 1, {}, StateType::kv, {}, {}), {"[0, 1)", "0 layers"});
  check_refused(slice_compressed_mla(0, 2, Ratios{4, 2}, StateType::kv, numbered(2), numbered(2)), {"unknown compression ratio 2", "layer 1"});
  const auto declared = [&](ListLayout source, ListLayout target) {
    return slice_compressed_mla(ratios, StateType::kv, numbered(7), numbered(7), source, target);
  };
  check_refused(declared(layout({0, 4}, 0), layout({0, 5}, 0)), {"target stage [0, 5)", "4 layers"});
  check_refused(declared(layout({3, 5}, 0), layout({0, 4}, 0)), {"source stage [3, 5)", "4 layers"});
  check_refused(declared(layout({0, 2}, 0), layout({2, 4}, 0)), {"[0, 2)", "[2, 4)"});
}

TEST_CASE("draft layers of compressed MLA are a list of windows of their own") {
  const Ratios ratios{4, 128, 4, 0};
  const auto slice = [&](StateType type, std::uint64_t from, std::uint64_t to, ListLayout source, ListLayout target) {
    return slice_compressed_mla(ratios, type, numbered(from), numbered(to), source, target);
  };
  const ListLayout draft = layout({3, 3}, 1), two_drafts = layout({3, 3}, 2), model = layout({0, 3}, 0);
  for (const StateType type : {StateType::swa, StateType::swa_ring}) {
    CHECK(slice(type, 1, 1, draft, draft).value().target == Pointers{0});
    CHECK(slice(type, 1, 2, draft, two_drafts).value().target == Pointers{0});
    check_refused(slice(type, 2, 1, two_drafts, draft), {"2 draft", "1"});
    check_refused(slice(type, 1, 2, draft, draft), {"target", "1 entry too long"});
    check_refused(slice(type, 1, 3, draft, model), {"1 draft", "0"});
    check_refused(slice(type, 4, 4, layout({0, 3}, 1), layout({0, 3}, 1)), {"3 target and 1 draft", "component of its own"});
  }
  CHECK(slice(StateType::kv, 0, 0, draft, draft).value().source.empty());  // a draft layer has no kv entry
  CHECK(slice(StateType::kv, 5, 5, model, layout({0, 3}, 1)).value().target == numbered(5));
  check_refused(slice(StateType::kv, 5, 6, model, layout({0, 3}, 1)), {"target kv list is 1 entry too long", "5 expected"});
}

TEST_CASE("entries with published layer ids pair by id, K and V in order of appearance") {
  using Ids = std::vector<std::int64_t>;
  using Pairs = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  const auto pair = [](const Ids& source, std::uint64_t from, const Ids& target, std::uint64_t to, bool fallback = false) {
    return pair_entries({source, from}, {target, to}, fallback);
  };
  CHECK(pair({}, 0, {}, 5).value().empty());
  CHECK(pair({}, 0, {0, 1}, 2).value().empty());
  CHECK(pair({}, 2, {}, 2).value() == Pairs{{0, 0}, {1, 1}});
  CHECK(pair({}, 2, {}, 4, true).value() == Pairs{{0, 0}, {1, 1}});
  CHECK(pair({5, 7, 5, 7}, 4, {3, 5, 7, 3, 5, 7}, 6).value() == Pairs{{0, 1}, {1, 2}, {2, 4}, {3, 5}});
  CHECK(pair({1, 1}, 2, {1, 0, 1}, 3, true).value() == Pairs{{0, 0}, {1, 2}});  // the fallback is for those without ids
  CHECK(pair({-1}, 1, {-1}, 1).value() == Pairs{{0, 0}});
  CHECK(pair({1, 2}, 2, {}, 2, true).value() == Pairs{{0, 0}, {1, 1}});  // one-sided ids are ignored when the caller allows it
  check_refused(pair({1, 2}, 2, {}, 2), {"only the source", "2 ids"});
  check_refused(pair({}, 2, {1, 2}, 2), {"only the target", "2 ids"});
  check_refused(pair({}, 4, {}, 8), {"4 entries", "8 entries", "layer ids"});
  check_refused(pair({}, 4, {}, 3), {"4 entries", "3 entries"});
  check_refused(pair({}, 4, {}, 3, true), {"4 entries", "3 entries"});
  check_refused(pair({0, 1, 2}, 2, {0, 1}, 2), {"3 ids for 2 entries", "2 ids for 2 entries"});
  check_refused(pair({0, 1}, 2, {0, 1, 1}, 2), {"2 ids for 2 entries", "3 ids for 2 entries"});
  check_refused(pair({0, 1, 64}, 3, {0, 1}, 2), {"model layer 64", "source entry 2"});
  check_refused(pair({1, 1, 1}, 3, {1, 1}, 2), {"model layer 1", "source entry 2"});
  check_refused(pair({}, std::uint64_t{1} << 40, {}, std::uint64_t{1} << 40), {"at most"});
}

TEST_CASE("global layer ids of a hybrid model find their dense entries") {  // FC-002, FC-003
  std::vector<std::int64_t> all, late;
  for (int half = 0; half < 2; ++half) {
    for (std::int64_t layer = 3; layer < 60; layer += 4) {
      all.push_back(layer);
      if (layer >= 30) late.push_back(layer);
    }
  }
  const auto pairs = pair_entries({late, late.size()}, {all, all.size()}, false).value();
  REQUIRE(pairs.size() == 16);
  for (std::uint64_t place = 0; place < 8; ++place) {
    CHECK(pairs[place].second == 7 + place);
    CHECK(pairs[8 + place].second == 22 + place);
  }
}

TEST_CASE("state components pair by type and occurrence") {
  using Types = std::vector<std::string>;
  const auto index = [](const Types& source, const Types& target, std::uint64_t place, bool required = false) {
    return state_component_index(source, target, place, required);
  };
  CHECK(index({"swa", "c128_state"}, {"swa", "c128_state"}, 1).value() == 1);
  CHECK(index({"swa", "c128_state", "swa"}, {"swa", "swa_ring", "c128_state", "swa"}, 2, true).value() == 3);
  CHECK(index({"swa"}, {}, 0).value() == 0);
  CHECK(index({}, {}, 4).value() == 4);
  check_refused(index({}, {}, 0, true), {"target declares no"});
  check_refused(index({"swa"}, {}, 0, true), {"target declares no", "1"});
  check_refused(index({}, {"swa"}, 0), {"source declares no", "1"});
  check_refused(index({"swa", "swa"}, {"swa"}, 1), {"swa occurrence 2"});
  check_refused(index({"mamba"}, {"swa"}, 0), {"mamba occurrence 1"});
  check_refused(index({"swa"}, {"swa"}, 1), {"component 1", "1 declared"});
}

// ---- importers

namespace {

/// Buffers of `pages` items each, one after another.
struct Buffers {
  Pointers pointers, lengths, items;

  Buffers(std::uint64_t count, std::uint64_t item, std::uint64_t pages) {
    for (std::uint64_t place = 0; place < count; ++place) {
      pointers.push_back(0x10000 * (place + 1));
      lengths.push_back(item * pages);
      items.push_back(item);
    }
  }
  FlatList list() const { return {pointers, lengths, items}; }
};

}  // namespace

TEST_CASE("an MHA list becomes tagged entries in the list's order") {
  const Buffers buffers(2 * (3 + 1), 4096, 10);
  const FlatFacts facts{.page_size = 16, .dtype = DType::fp16, .memory = MemoryKind::device, .kv_heads = 4, .first_head = 8};
  const auto entries = import_mha(buffers.list(), layout({5, 8}, 1), facts).value();
  REQUIRE(entries.size() == 8);
  const auto check = [&](std::size_t place, bool draft, Role role, std::uint32_t layer) {
    const Entry& entry = entries[place];
    CHECK(entry.component == Component{ComponentKind::kv, draft});
    CHECK(entry.role == role);
    CHECK(entry.layer == layer);
    CHECK(entry.space == IndexSpace::pages);
    CHECK(entry.base_address == buffers.pointers[place]);
    CHECK(entry.item_length_bytes == 4096);
    CHECK(entry.pitch_bytes == 4096);
    CHECK(entry.index_count == 10);
    CHECK(entry.page_size == 16);
    CHECK(entry.dtype == DType::fp16);
    CHECK(entry.memory == MemoryKind::device);
    CHECK(entry.heads == HeadRange{.head_count = 4, .first_head = 8, .bytes_per_head_token = 64});
  };
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    check(layer, false, Role::k, 5 + layer);
    check(3 + layer, false, Role::v, 5 + layer);
  }
  check(6, true, Role::k, 0);
  check(7, true, Role::v, 0);
}

TEST_CASE("importers refuse what the declaration or the buffers do not bear out, and say which entry") {
  const FlatFacts facts{.page_size = 16};
  const auto import = [&](const Buffers& buffers) { return import_mla(buffers.list(), layout({0, 4}, 0), facts); };
  const Buffers good(4, 1152, 8);
  REQUIRE(import(good).value().size() == 4);
  check_refused(import(Buffers(3, 1152, 8)), {"3 entries", "4 expected"});
  check_refused(import(Buffers(5, 1152, 8)), {"5 entries", "4 expected"});
  Buffers bad = good;
  bad.lengths.pop_back();
  check_refused(import(bad), {"4 pointers", "3 buffer lengths", "4 item lengths"});
  bad = good;
  bad.pointers[2] = 0;
  check_refused(import(bad), {"entry 2 (kv latent layer 2)", "pointer is 0"});
  bad = good;
  bad.lengths[1] += 1;
  check_refused(import(bad), {"entry 1 (kv latent layer 1)", "9217 bytes", "1152"});
  bad = good;
  bad.lengths[1] = 1151;
  check_refused(import(bad), {"entry 1", "1151", "1152"});
  bad = good;
  bad.pointers[3] = std::numeric_limits<std::uint64_t>::max() - 9000;
  check_refused(import(bad), {"entry 3", "64 bits"});
  check_refused(import_mla(good.list(), layout({4294967294u, 4294967295u}, 3), FlatFacts{.page_size = 0}), {"page size is 0"});
  check_refused(import_mha(good.list(), layout({0, 2}, 0), FlatFacts{.page_size = 16, .kv_heads = 7}),
                {"entry 0 (kv k layer 0)", "1152", "7 heads", "16 tokens"});
}

TEST_CASE("zero-length items are no entries but count in the section lengths") {  // reused index buffers
  Buffers buffers(4, 8448, 8);
  buffers.items[1] = buffers.items[2] = 0;
  buffers.pointers[1] = buffers.lengths[2] = 0;
  const auto entries = import_mla(buffers.list(), layout({0, 4}, 0), {}).value();
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].layer == 0);
  CHECK(entries[1].layer == 3);
}

TEST_CASE("compressed-MLA lists become the entries of their layers, with the index space of each") {
  const Ratios ratios{0, 4, 128, 4, 128, 4};
  const Stage stage{2, 6};
  const FlatFacts facts{.page_size = 256, .dtype = DType::packed_fp8};
  const auto import = [&](StateType type, std::uint64_t count) {
    return import_compressed_mla(Buffers(count, 512, 8).list(), type, stage, ratios, facts);
  };
  using Tags = std::vector<std::string>;
  const auto tags = [](const std::vector<Entry>& entries) {
    Tags words;
    for (const Entry& entry : entries)
      words.push_back(describe(entry) + " " + std::string(to_string(entry.space)) + " " + std::to_string(entry.page_size));
    return words;
  };
  CHECK(tags(import(StateType::kv, 6).value()) == Tags{"kv c4 layer 3 pages 256", "kv c4 layer 5 pages 256", "kv c4_indexer layer 3 pages 256",
                                                       "kv c4_indexer layer 5 pages 256", "kv c128 layer 2 pages 256", "kv c128 layer 4 pages 256"});
  CHECK(tags(import(StateType::swa, 8).value()) ==
        Tags{"swa swa_pool layer 2 window_pages 256", "swa swa_pool layer 3 window_pages 256", "swa swa_pool layer 4 window_pages 256",
             "swa swa_pool layer 5 window_pages 256", "swa c4_state layer 3 window_pages 256", "swa c4_state layer 5 window_pages 256",
             "swa c4_indexer_state layer 3 window_pages 256", "swa c4_indexer_state layer 5 window_pages 256"});
  CHECK(tags(import(StateType::swa, 4).value()) == Tags{"swa c4_state layer 3 request_slots 1", "swa c4_state layer 5 request_slots 1",
                                                        "swa c4_indexer_state layer 3 request_slots 1",
                                                        "swa c4_indexer_state layer 5 request_slots 1"});
  CHECK(tags(import(StateType::swa_ring, 3).value()) == Tags{"swa_ring ring layer 2 ring_rows 1", "swa_ring ring layer 3 ring_rows 1",
                                                             "swa_ring ring layer 4 ring_rows 1"});  // the last slot has none
  CHECK(tags(import(StateType::c128_state, 2).value()) ==
        Tags{"c128_state c128_state layer 2 c128_rows 1", "c128_state c128_state layer 4 c128_rows 1"});
  check_refused(import(StateType::kv, 5), {"kv list is 1 entry short", "5 entries found", "6 expected", "c4 2, c128 2, total 6"});
  check_refused(import(StateType::swa, 6), {"6 entries found", "4, 7 or 8 expected"});
  check_refused(import_compressed_mla(Buffers(1, 512, 8).list(), StateType::kv, {4, 7}, ratios, facts), {"[4, 7)", "6 layers"});
  check_refused(import_compressed_mla(Buffers(1, 512, 8).list(), StateType::kv, {0, 1}, Ratios{7}, facts), {"unknown compression ratio 7"});
}

TEST_CASE("a unified pool's kv buffers may end in rows that make no page, other lists may not") {
  const Ratios ratios{4};
  Buffers buffers(2, 512, 8);
  buffers.lengths[0] += 100;
  CHECK(import_compressed_mla(buffers.list(), StateType::kv, {0, 1}, ratios, {}).value()[0].index_count == 8);
  check_refused(import_compressed_mla(buffers.list(), StateType::swa, {0, 1}, ratios, {}), {"entry 0", "4196 bytes", "512"});
}
