// vector-check DIR: runs every golden file of DIR against our functions and says how many cases hold.
//
//   case.input ──► arguments ──► public function ──► outcome (value or error)
//                                                       │
//   output / error / hazard / correct ──────────────► judge ──► one line per case that fails
//
// What a case asks for:
//   output            this value, exactly
//   error             an error; of a deliberate check (ValueError, RuntimeError) every number of its message must be in ours
//   hazard            an error, or the keys of `correct` where they are given; never `output`
//
// A number that the parameter's type cannot take (a negative layer, a page of -1, a stage end that is absent) is refused before the call: in C++ the
// call does not exist. Such a refusal is an error of the case's input like any other. A case that is not of the schema is a failure, and so is a file
// without cases or one that this program does not know.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/page_index.h"
#include "kvferry/plan.h"
#include "kvferry/sglang_lists.h"

namespace {

using Json = nlohmann::json;
using Outcome = kvferry::Result<Json>;

/// The case is not of the schema.
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The parameter's type cannot take the value.
struct NoArgument : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// ---- from JSON to arguments

const Json& member(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw Malformed(std::string("no '") + name + "' in " + object.dump());
  return *found;
}

std::string value_text(const char* name, const Json& value) { return std::string(name) + " " + value.dump(); }

std::uint64_t unsigned_of(const char* name, const Json& value, std::uint64_t largest = std::numeric_limits<std::uint64_t>::max()) {
  if (value.is_null()) throw NoArgument(std::string(name) + " is absent");
  if (!value.is_number_integer()) throw Malformed(value_text(name, value) + " is no integer");
  if (!value.is_number_unsigned() && value.get<std::int64_t>() < 0) throw NoArgument(value_text(name, value) + " is negative");
  const auto number = value.get<std::uint64_t>();
  if (number > largest) throw NoArgument(value_text(name, value) + " is beyond " + std::to_string(largest));
  return number;
}

std::int64_t signed_of(const char* name, const Json& value) {
  if (!value.is_number_integer()) throw Malformed(value_text(name, value) + " is no integer");
  constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > largest)
    throw NoArgument(value_text(name, value) + " is beyond " + std::to_string(largest));
  return value.get<std::int64_t>();
}

std::uint32_t layer_of(const char* name, const Json& value) {
  return static_cast<std::uint32_t>(unsigned_of(name, value, std::numeric_limits<std::uint32_t>::max()));
}

std::uint64_t unsigned_at(const Json& input, const char* name) { return unsigned_of(name, member(input, name)); }
std::uint32_t layer_at(const Json& input, const char* name) { return layer_of(name, member(input, name)); }

bool flag_at(const Json& input, const char* name) {
  const Json& value = member(input, name);
  if (!value.is_boolean()) throw Malformed(value_text(name, value) + " is neither true nor false");
  return value.get<bool>();
}

template <class Convert>
auto list_at(const Json& input, const char* name, Convert convert) {
  const Json& value = member(input, name);
  if (!value.is_array()) throw Malformed(value_text(name, value) + " is no list");
  std::vector<decltype(convert(name, value))> list;
  list.reserve(value.size());
  for (const Json& element : value) list.push_back(convert(name, element));
  return list;
}

std::vector<std::uint64_t> pointers_at(const Json& input, const char* name) {
  return list_at(input, name, [](const char* what, const Json& value) { return unsigned_of(what, value); });
}
std::vector<std::int64_t> indices_at(const Json& input, const char* name) { return list_at(input, name, signed_of); }
std::vector<std::uint32_t> layers_at(const Json& input, const char* name) { return list_at(input, name, layer_of); }
std::vector<std::string> words_at(const Json& input, const char* name) {
  return list_at(input, name, [](const char* what, const Json& value) {
    if (!value.is_string()) throw Malformed(value_text(what, value) + " is no word");
    return value.get<std::string>();
  });
}

/// A layout without `first_layer` starts where the caller says.
kvferry::sglang::ListLayout layout_of(const Json& layout, std::uint32_t first_layer) {
  if (!layout.is_object()) throw Malformed("layout " + layout.dump() + " is no object");
  return {.first_layer = layout.contains("first_layer") ? layer_at(layout, "first_layer") : first_layer,
          .target_layers = layer_at(layout, "target_layers"),
          .draft_layers = layer_at(layout, "draft_layers")};
}

template <class Value, class Convert>
Outcome to_outcome(const kvferry::Result<Value>& result, Convert convert) {
  if (!result) return kvferry::fail(result.error());
  return convert(*result);
}

template <class Value>
Outcome to_outcome(const kvferry::Result<Value>& result) {
  return to_outcome(result, [](const Value& value) { return Json(value); });
}

// ---- one function per golden file

Outcome run_mha(const Json& input) {
  const std::uint32_t start_layer = layer_at(input, "start_layer");
  std::optional<kvferry::sglang::ListLayout> source_layout;
  if (input.contains("src_layout") && !input["src_layout"].is_null()) source_layout = layout_of(input["src_layout"], start_layer);
  const auto source = pointers_at(input, "src"), target = pointers_at(input, "dst");
  const auto slice = kvferry::sglang::slice_mha(start_layer, source, target, source_layout, layout_of(member(input, "dst_layout"), 0));
  return to_outcome(slice, [](const kvferry::sglang::MhaSlice& value) {
    Json json = Json::object();
    json["src_k"] = value.source_k;
    json["src_v"] = value.source_v;
    json["dst_k"] = value.target_k;
    json["dst_v"] = value.target_v;
    json["layers"] = value.layers;
    return json;
  });
}

Json to_json(const kvferry::sglang::ListSlice& slice) {
  Json json = Json::object();
  json["src"] = slice.source;
  json["dst"] = slice.target;
  return json;
}

kvferry::Result<kvferry::sglang::StateType> state_type_at(const Json& input) {
  const Json& type = member(input, "state_type");
  if (type.is_null()) return kvferry::sglang::StateType::kv;
  if (!type.is_string()) throw Malformed(value_text("state_type", type) + " is no word");
  return kvferry::sglang::parse_state_type(type.get<std::string>());
}

/// The stage is stated twice, by its own arguments and by the source's layout: both must say the same. A list of draft layers only has no stage.
void check_stated_twice(const Json& input, const kvferry::sglang::ListLayout& source, bool is_compressed) {
  if (source.target_layers == 0) return;
  if (const std::uint32_t start = layer_at(input, "start_layer"); start != source.first_layer) {
    throw NoArgument("start_layer " + std::to_string(start) + " is not the source layout's first layer " + std::to_string(source.first_layer));
  }
  if (!is_compressed && member(input, "end_layer").is_null()) return;
  const std::uint64_t stated_end = std::uint64_t{source.first_layer} + source.target_layers;
  if (const std::uint32_t end = layer_at(input, "end_layer"); end != stated_end) {
    throw NoArgument("end_layer " + std::to_string(end) + " is not the end of the source layout, " + std::to_string(stated_end));
  }
}

Outcome run_mla(const Json& input) {
  const auto source_layout = layout_of(member(input, "src_layout"), 0), target_layout = layout_of(member(input, "dst_layout"), 0);
  const auto source = pointers_at(input, "src"), target = pointers_at(input, "dst");
  const bool is_compressed = !member(input, "ratios").is_null() && !member(input, "ratios").empty();
  check_stated_twice(input, source_layout, is_compressed);
  const auto with_count = [](const kvferry::sglang::ListSlice& slice) {
    Json json = to_json(slice);
    json["count"] = slice.source.size();
    return json;
  };
  if (!is_compressed) return to_outcome(kvferry::sglang::slice_mla(source, target, source_layout, target_layout), with_count);
  const auto type = state_type_at(input);
  if (!type) return kvferry::fail(type.error());
  const auto ratios = layers_at(input, "ratios");
  return to_outcome(kvferry::sglang::slice_compressed_mla(ratios, *type, source, target, source_layout, target_layout), with_count);
}

Outcome run_compressed_mla(const Json& input) {
  const auto type = state_type_at(input);
  if (!type) return kvferry::fail(type.error());
  const std::uint32_t start = layer_at(input, "start_layer"), end = layer_at(input, "end_layer");
  const auto ratios = layers_at(input, "ratios");
  const auto source = pointers_at(input, "src"), target = pointers_at(input, "dst");
  return to_outcome(kvferry::sglang::slice_compressed_mla(start, end, ratios, *type, source, target), to_json);
}

Outcome run_entry_pairs(const Json& input) {
  const auto source_ids = indices_at(input, "src_layer_ids"), target_ids = indices_at(input, "dst_layer_ids");
  const kvferry::sglang::EntryIds source{source_ids, unsigned_at(input, "n_src")}, target{target_ids, unsigned_at(input, "n_dst")};
  return to_outcome(kvferry::sglang::pair_entries(source, target, flag_at(input, "allow_positional_fallback")), [](const auto& pairs) {
    Json json = Json::array();
    for (const auto& [from, to] : pairs) json.push_back(Json::array({from, to}));
    return json;
  });
}

Outcome run_state_component(const Json& input) {
  const auto source_types = words_at(input, "src_state_types"), target_types = words_at(input, "dst_state_types");
  return to_outcome(
      kvferry::sglang::state_component_index(source_types, target_types, unsigned_at(input, "src_index"), flag_at(input, "require_metadata")));
}

Outcome run_group(const Json& input) {
  const auto source = indices_at(input, "src"), target = indices_at(input, "dst");
  return to_outcome(kvferry::group_runs(source, target), [](const std::vector<kvferry::IndexRun>& runs) {
    Json source_groups = Json::array(), target_groups = Json::array();
    for (const kvferry::IndexRun& run : runs) {
      Json source_group = Json::array(), target_group = Json::array();
      for (std::uint64_t step = 0; step < run.count; ++step) {
        source_group.push_back(run.source + step);
        target_group.push_back(run.target + step);
      }
      source_groups.push_back(source_group);
      target_groups.push_back(target_group);
    }
    Json json = Json::object();
    json["src_groups"] = source_groups;
    json["dst_groups"] = target_groups;
    return json;
  });
}

// ---- block plans

/// One layer pair of a block plan; each side is a region of its own, just large enough for the indices in use.
struct PlanLayer {
  std::uint64_t source_address = 0, target_address = 0, item_length_bytes = 0;
};

kvferry::Result<kvferry::RegionSpan> region_of(std::uint64_t layer, std::uint64_t address, std::uint64_t index_count,
                                               std::uint64_t item_length_bytes) {
  std::uint64_t length = 0;
  if (!kvferry::checked_multiply(index_count, item_length_bytes, length)) {
    return kvferry::fail(kvferry::ErrorCode::out_of_range, "layer " + std::to_string(layer) + ": " + std::to_string(index_count) + " items of " +
                                                               std::to_string(item_length_bytes) + " bytes overflow 64 bits");
  }
  kvferry::RegionMap map;
  if (auto added = map.add({.id = layer + 1, .address = address, .length = length}); !added) return kvferry::fail(added.error());
  return map.find(address, length);
}

kvferry::Result<kvferry::PlanEntry> plan_entry(std::uint64_t number, const PlanLayer& layer, std::uint64_t source_count, std::uint64_t target_count) {
  const auto source = region_of(number, layer.source_address, source_count, layer.item_length_bytes);
  if (!source) return kvferry::fail(source.error());
  const auto target = region_of(number, layer.target_address, target_count, layer.item_length_bytes);
  if (!target) return kvferry::fail(target.error());
  const auto entry_number = static_cast<std::uint32_t>(number);
  return kvferry::PlanEntry{.source_entry = entry_number,
                            .target_entry = entry_number,
                            .space = kvferry::IndexSpace::pages,
                            .item_length_bytes = layer.item_length_bytes,
                            .source_pitch_bytes = layer.item_length_bytes,
                            .target_pitch_bytes = layer.item_length_bytes,
                            .source_index_count = source_count,
                            .target_index_count = target_count,
                            .source = *source,
                            .target = *target,
                            .name = "layer " + std::to_string(number)};
}

/// One more than the greatest page, so that the region ends there; at least 1.
std::uint64_t index_count_of(const char* name, const std::vector<std::uint64_t>& pages) {
  const std::uint64_t greatest = pages.empty() ? 0 : *std::max_element(pages.begin(), pages.end());
  if (greatest == std::numeric_limits<std::uint64_t>::max()) throw NoArgument(std::string(name) + " holds a page beyond every pool");
  return greatest + 1;
}

Json blocks_of(const kvferry::Plan& plan, const std::vector<PlanLayer>& layers) {
  constexpr std::size_t kBatch = 32;
  std::vector<kvferry_write> writes(kBatch);
  std::vector<kvferry_piece> pieces(kBatch);
  Json blocks = Json::array();
  for (kvferry::WriteCursor cursor = plan.begin(); !cursor.done();) {
    const auto filled = cursor.fill(writes, pieces);
    if (filled.writes == 0) throw std::logic_error("the cursor gives nothing and is not done");
    for (std::uint32_t place = 0; place < filled.writes; ++place) {
      const kvferry_write& write = writes[place];
      const kvferry_piece& piece = pieces[write.first_piece];
      const std::uint64_t source = layers[piece.region - 1].source_address + piece.offset;
      const std::uint64_t target = layers[write.remote_region - 1].target_address + write.remote_offset;
      blocks.push_back(Json::array({source, target, piece.length}));
    }
  }
  return blocks;
}

Outcome run_block_plan(const Json& input) {
  const auto layers = list_at(input, "layers", [](const char* name, const Json& layer) {
    if (!layer.is_array() || layer.size() != 3) throw Malformed(value_text(name, layer) + " is not [source, target, item length]");
    return PlanLayer{unsigned_of(name, layer[0]), unsigned_of(name, layer[1]), unsigned_of(name, layer[2])};
  });
  kvferry::IndexListsBySpace lists;
  kvferry::IndexLists& pages = lists[static_cast<std::size_t>(kvferry::IndexSpace::pages)];
  pages = {pointers_at(input, "src_pages"), pointers_at(input, "dst_pages")};
  std::vector<kvferry::PlanEntry> entries;
  for (std::uint64_t number = 0; number < layers.size(); ++number) {
    if (layers[number].item_length_bytes == 0) continue;  // no entry
    auto entry = plan_entry(number, layers[number], index_count_of("src_pages", pages.source), index_count_of("dst_pages", pages.target));
    if (!entry) return kvferry::fail(entry.error());
    entries.push_back(*entry);
  }
  const kvferry::PlanLimits limits{.message_bytes_max = std::uint64_t{1} << 62, .pieces_per_write_max = 1};
  const auto plan = kvferry::Plan::make(std::move(entries), lists, limits);
  if (!plan) return kvferry::fail(plan.error());
  return blocks_of(**plan, layers);
}

// ---- page helpers

kvferry::IndexRange slice_at(const Json& input) {
  const auto slice = pointers_at(input, "slice");
  if (slice.size() != 2) throw Malformed("slice is not [begin, end)");
  return {slice[0], slice[1]};
}

Json to_json(const kvferry::IndexRange& range) { return Json::array({range.begin, range.end}); }

Outcome run_cp_bounds(const Json& input) {
  return to_outcome(kvferry::cp_rank_page_bounds(unsigned_at(input, "total_pages"), unsigned_at(input, "cp_rank"), unsigned_at(input, "cp_size")),
                    [](const kvferry::IndexRange& range) { return to_json(range); });
}

kvferry::Result<kvferry::PageSlice> cp_pages(const Json& input, const std::vector<std::int64_t>& pages, kvferry::IndexRange slice) {
  return kvferry::cp_rank_pages(pages, slice, unsigned_at(input, "total_pages"), unsigned_at(input, "cp_rank"), unsigned_at(input, "cp_size"));
}

Outcome run_cp_filter(const Json& input) {
  return to_outcome(cp_pages(input, indices_at(input, "page_indices"), slice_at(input)), [](const kvferry::PageSlice& part) {
    Json json = Json::object();
    json["page_indices"] = part.pages;
    json["slice"] = to_json(part.slice);
    return json;
  });
}

/// The older helper without a slice: the list starts at the request's first page.
Outcome run_cp_old(const Json& input) {
  const auto pages = indices_at(input, "page_indices");
  return to_outcome(cp_pages(input, pages, {0, pages.size()}), [](const kvferry::PageSlice& part) { return Json(part.pages); });
}

Outcome run_window_start(const Json& input) {
  return to_outcome(kvferry::window_start(unsigned_at(input, "seq_len"), unsigned_at(input, "window"), unsigned_at(input, "page_size"),
                                          unsigned_at(input, "decode_prefix_len")),
                    [](const kvferry::WindowStart& start) {
                      Json json = Json::object();
                      json["prefill_start"] = start.prefill_start;
                      json["decode_start"] = start.decode_start;
                      json["prefill_pages"] = start.prefill_pages;
                      json["decode_pages"] = start.decode_pages;
                      return json;
                    });
}

Outcome run_page_helper(const Json& input) {
  const Json& function = member(input, "function");
  if (function == "kv_to_page_num") return to_outcome(kvferry::page_count(unsigned_at(input, "num_tokens"), unsigned_at(input, "page_size")));
  if (function == "kv_to_page_indices") {
    return to_outcome(kvferry::page_indices(indices_at(input, "token_locs"), unsigned_at(input, "page_size")));
  }
  if (function == "cp_rank_page_bounds") return run_cp_bounds(input);
  if (function == "filter_kv_indices_for_cp_rank") return run_cp_filter(input);
  if (function == "page_indices_to_cp_rank_page_indices") return run_cp_old(input);
  if (function == "filter_kv_indices_for_dcp_rank") {
    return to_outcome(kvferry::dcp_rank_locations(indices_at(input, "token_locs"), unsigned_at(input, "dcp_size"), unsigned_at(input, "dcp_rank")));
  }
  if (function == "swa_window_start") return run_window_start(input);
  if (function == "swa_ring_rows") {
    return to_outcome(kvferry::ring_rows(unsigned_at(input, "req_pool_idx"), unsigned_at(input, "seq_len"), unsigned_at(input, "window"),
                                         unsigned_at(input, "ring_stride")));
  }
  throw Malformed("unknown function " + function.dump());
}

using Runner = Outcome (*)(const Json& input);
const std::map<std::string, Runner, std::less<>>& runners() {
  static const std::map<std::string, Runner, std::less<>> known = {
      {"generic_block_plan.json", run_block_plan},
      {"group_concurrent_contiguous.json", run_group},
      {"mha_kv_ptrs_with_pp.json", run_mha},
      {"mla_kv_ptrs_with_pp.json", run_mla},
      {"mla_slice_ptrs_for_pp.json", run_compressed_mla},
      {"page_index_helpers.json", run_page_helper},
      {"state_component_index.json", run_state_component},
      {"transfer_entry_pairs.json", run_entry_pairs},
  };
  return known;
}

// ---- judging

/// nlohmann compares an unsigned with a signed integer as signed ones; here 2^64 - 1 is not -1.
bool same(const Json& expected, const Json& got) {
  if (expected.is_number_integer() && got.is_number_integer()) {
    const bool expected_negative = !expected.is_number_unsigned() && expected.get<std::int64_t>() < 0;
    const bool got_negative = !got.is_number_unsigned() && got.get<std::int64_t>() < 0;
    return expected_negative == got_negative && expected.get<std::uint64_t>() == got.get<std::uint64_t>();
  }
  if (expected.is_array() && got.is_array()) return std::equal(expected.begin(), expected.end(), got.begin(), got.end(), same);
  if (expected.is_object() && got.is_object()) {
    return expected.size() == got.size() && std::all_of(expected.items().begin(), expected.items().end(), [&](const auto& item) {
             return got.contains(item.key()) && same(item.value(), got[item.key()]);
           });
  }
  return false;
}

/// The keys that `correct` has.
bool holds_correct(const Json& correct, const Json& got) {
  if (!correct.is_object()) return same(correct, got);
  if (correct.empty()) throw Malformed("'correct' says nothing");
  return std::all_of(correct.items().begin(), correct.items().end(),
                     [&](const auto& item) { return got.is_object() && got.contains(item.key()) && same(item.value(), got[item.key()]); });
}

bool is_word_character(char character) {
  return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') || (character >= '0' && character <= '9') ||
         character == '_';
}

/// Whole numbers that stand alone: "c4=21" has 21, "c128" and "swa_L" have none. Leading zeros do not count.
std::set<std::string> numbers_of(std::string_view text) {
  std::set<std::string> numbers;
  for (std::size_t place = 0; place < text.size();) {
    if (!is_word_character(text[place])) {
      ++place;
      continue;
    }
    std::size_t end = place;
    while (end < text.size() && is_word_character(text[end])) ++end;
    const std::string_view word = text.substr(place, end - place);
    if (word.find_first_not_of("0123456789") == std::string_view::npos) {
      const auto first = std::min(word.find_first_not_of('0'), word.size() - 1);
      numbers.emplace(word.substr(first));
    }
    place = end;
  }
  return numbers;
}

struct Verdict {
  bool holds = false;
  std::string expected;  ///< for the line of a failure
};

Verdict judge_error(const Json& error, const Outcome& outcome) {
  const auto type = member(error, "type").get<std::string>(), message = member(error, "message").get<std::string>();
  Verdict verdict{.holds = !outcome, .expected = "an error like '" + message + "'"};
  if (outcome || (type != "ValueError" && type != "RuntimeError")) return verdict;
  const auto got = numbers_of(outcome.error().text);
  for (const std::string& number : numbers_of(message)) {
    if (got.count(number) != 0) continue;
    verdict.holds = false;
    verdict.expected += ", with the number " + number;
  }
  return verdict;
}

Verdict judge(const Json& test, const Outcome& outcome) {
  if (!outcome && outcome.error().text.empty()) return {.holds = false, .expected = "an error with a text"};
  if (test.contains("hazard")) {
    if (!test.contains("correct")) return {.holds = !outcome, .expected = "an error (hazard: " + test["hazard"].dump() + ")"};
    return {.holds = !outcome || holds_correct(test["correct"], *outcome), .expected = "an error or " + test["correct"].dump()};
  }
  if (test.contains("error")) return judge_error(test["error"], outcome);
  const Json& output = member(test, "output");
  return {.holds = outcome && same(output, *outcome), .expected = output.dump()};
}

struct Count {
  std::uint64_t passed = 0, failed = 0;
};

/// Empty when the case holds, the rest of its line otherwise.
std::string check_case(Runner run, const Json& test) {
  try {
    Outcome outcome;
    try {
      outcome = run(member(test, "input"));
    } catch (const NoArgument& refusal) {
      outcome = kvferry::fail(kvferry::ErrorCode::out_of_range, refusal.what());
    }
    const Verdict verdict = judge(test, outcome);
    if (verdict.holds) return {};
    return "expected " + verdict.expected + ", got " + (outcome ? outcome->dump() : "error '" + outcome.error().text + "'");
  } catch (const std::exception& trouble) {
    return std::string("expected a case of the schema, got ") + trouble.what();
  }
}

void check_file(const std::filesystem::path& path, Count& count) {
  const std::string name = path.filename().string();
  const auto fail_file = [&](const std::string& why) {
    ++count.failed;
    std::cout << name << ": " << why << "\n";
  };
  const auto runner = runners().find(name);
  if (runner == runners().end()) return fail_file("expected a known golden file, got one that no function here answers");
  std::ifstream stream(path);
  const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (!stream) return fail_file("expected a readable file, got a read error");
  const Json cases = Json::parse(text, nullptr, false);
  if (!cases.is_array() || cases.empty())
    return fail_file("expected a list of cases, got " + std::string(cases.is_discarded() ? "no JSON" : cases.empty() ? "none" : cases.type_name()));
  for (const Json& test : cases) {
    const std::string case_name =
        test.is_object() && test.contains("name") && test["name"].is_string() ? test["name"].get<std::string>() : "(no name)";
    const std::string trouble = check_case(runner->second, test);
    if (trouble.empty()) {
      ++count.passed;
    } else {
      ++count.failed;
      std::cout << name << ": " << case_name << ": " << trouble << "\n";
    }
  }
}

int wrong_use(const std::string& why) {
  std::cerr << "vector-check: " << why << " (usage: vector-check DIR, a folder of golden files *.json)\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return wrong_use(argc < 2 ? "no folder given" : "more than one folder given");
  const std::string folder = argv[1];
  if (folder.size() > 1 && folder.front() == '-') return wrong_use("unknown option '" + folder + "'");
  std::error_code trouble;
  std::vector<std::filesystem::path> files;
  std::filesystem::directory_iterator entries(folder, trouble);
  for (; !trouble && entries != std::filesystem::directory_iterator(); entries.increment(trouble)) {
    if (entries->path().extension() == ".json") files.push_back(entries->path());
  }
  if (trouble) return wrong_use("read folder '" + folder + "': " + trouble.message());
  if (files.empty()) return wrong_use("folder '" + folder + "' has no *.json file");
  std::sort(files.begin(), files.end());
  Count count;
  for (const auto& file : files) check_file(file, count);
  std::cout << count.passed << " passed, " << count.failed << " failed" << std::endl;
  return count.failed == 0 && count.passed > 0 ? 0 : 1;
}
