// explain --sglang-lists=FILE: SGLang's flat pointer lists, with what their owner declares about them, through the checks of sglang_lists.h.
//
//   {"convention": "compressed_mla", "state_type": "kv", "compression_ratios": [0, 4, 128, ...], "stage": [0, 22], "source": 31, "target": 62}
//   {"convention": "mha", "source_layout": {...}, "target_layout": {"first_layer": 0, "target_layers": 32, "draft_layers": 1}, ...}
//
// A list may be given as pointers or as its length alone: what decides is how many there are, not where they point.
#include <algorithm>
#include <numeric>
#include <optional>

#include "explain.h"
#include "kvferry/sglang_lists.h"
#include "report.h"
#include "values.h"

namespace kvferry::transfer_check {
namespace {

constexpr std::string_view kOption = "--sglang-lists";
constexpr std::string_view kListsRemedy = "docs/transfer-check.md, \"SGLang's lists\", has the keys";
constexpr std::uint64_t kListMax = 1u << 20;

/// Reads the keys of one JSON object and remembers which were asked for, so that a misspelt one is an error.
class Keys {
 public:
  Keys(const Json& object, std::string path, std::string where) : object_(object), path_(std::move(path)), where_(std::move(where)) {}

  Outcome<const Json*> get(const std::string& key) {
    known_.push_back(key);
    const auto found = object_.find(key);
    if (found == object_.end()) return wrong(where_ + " has no \"" + key + "\"");
    return &*found;
  }
  bool has(const std::string& key) {
    known_.push_back(key);
    return object_.contains(key);
  }
  Outcome<std::uint32_t> number(const std::string& key) {
    auto value = get(key);
    if (!value) return tl::unexpected(value.error());
    if (!(*value)->is_number_unsigned() || (*value)->get<std::uint64_t>() > UINT32_MAX)
      return wrong(where_ + ": \"" + key + "\": " + (*value)->dump() + " is not a whole number");
    return (*value)->get<std::uint32_t>();
  }
  Outcome<std::string> word(const std::string& key) {
    auto value = get(key);
    if (!value) return tl::unexpected(value.error());
    if (!(*value)->is_string()) return wrong(where_ + ": \"" + key + "\": " + (*value)->dump() + " is not a word");
    return (*value)->get<std::string>();
  }
  Outcome<std::vector<std::uint32_t>> numbers(const std::string& key) {
    auto value = get(key);
    if (!value) return tl::unexpected(value.error());
    if (!(*value)->is_array()) return wrong(where_ + ": \"" + key + "\" is not a list");
    std::vector<std::uint32_t> numbers;
    for (const auto& item : **value) {
      if (!item.is_number_unsigned() || item.get<std::uint64_t>() > UINT32_MAX)
        return wrong(where_ + ": \"" + key + "\": " + item.dump() + " is not a whole number");
      numbers.push_back(item.get<std::uint32_t>());
    }
    return numbers;
  }
  /// How many pointers a list has.
  Outcome<std::uint64_t> list_length(const std::string& key) {
    auto value = get(key);
    if (!value) return tl::unexpected(value.error());
    if ((*value)->is_number_unsigned() && (*value)->get<std::uint64_t>() <= kListMax) return (*value)->get<std::uint64_t>();
    if ((*value)->is_array() && (*value)->size() <= kListMax) return (*value)->size();
    return wrong(where_ + ": \"" + key + "\" is neither a list of pointers nor its length");
  }
  Outcome<void> no_others() const {
    for (const auto& item : object_.items()) {
      if (std::find(known_.begin(), known_.end(), item.key()) == known_.end()) return wrong(where_ + ": unknown key \"" + item.key() + "\"");
    }
    return {};
  }
  tl::unexpected<Failure> wrong(const std::string& cause) const { return wrong_option(kOption, path_, cause, kListsRemedy); }
  const Json& object() const { return object_; }
  const std::string& path() const { return path_; }

 private:
  const Json& object_;
  std::string path_, where_;
  std::vector<std::string> known_;
};

Outcome<sglang::ListLayout> read_layout(Keys& keys, const std::string& key) {
  auto object = keys.get(key);
  if (!object) return tl::unexpected(object.error());
  if (!(*object)->is_object()) return keys.wrong("\"" + key + "\" is not an object");
  Keys inner(**object, keys.path(), "\"" + key + "\"");
  auto first = inner.number("first_layer");
  if (!first) return tl::unexpected(first.error());
  auto layers = inner.number("target_layers");
  if (!layers) return tl::unexpected(layers.error());
  auto draft = inner.number("draft_layers");
  if (!draft) return tl::unexpected(draft.error());
  if (auto closed = inner.no_others(); !closed) return tl::unexpected(closed.error());
  return sglang::ListLayout{*first, *layers, *draft};
}

/// Positions as pointers: 1, 2, 3 ...; a null pointer would be refused.
std::vector<std::uint64_t> positions(std::uint64_t count) {
  std::vector<std::uint64_t> list(count);
  std::iota(list.begin(), list.end(), std::uint64_t{1});
  return list;
}

struct Paired {
  std::string convention;
  std::uint64_t source_length = 0, target_length = 0;
  std::vector<std::uint64_t> source, target;  ///< positions from 1
};

Outcome<void> take(const Keys& keys, const Result<sglang::ListSlice>& sliced, Paired& ret) {
  if (!sliced)
    return because(sliced.error(), std::string(kOption) + "=" + keys.path(), "hand over the whole list of each side with the counts it was made from",
                   kOption);
  ret.source = sliced->source;
  ret.target = sliced->target;
  return {};
}

Outcome<void> pair_compressed(Keys& keys, Paired& ret) {
  auto type_word = keys.word("state_type");
  if (!type_word) return tl::unexpected(type_word.error());
  auto type = sglang::parse_state_type(*type_word);
  if (!type) return because(type.error(), std::string(kOption) + "=" + keys.path(), kListsRemedy, kOption);
  auto ratios = keys.numbers("compression_ratios");
  if (!ratios) return tl::unexpected(ratios.error());
  auto stage = keys.numbers("stage");
  if (!stage) return tl::unexpected(stage.error());
  if (stage->size() != 2) return keys.wrong("\"stage\" is not [first layer, layer after the last]");
  if (auto closed = keys.no_others(); !closed) return closed;
  return take(
      keys, sglang::slice_compressed_mla((*stage)[0], (*stage)[1], *ratios, *type, positions(ret.source_length), positions(ret.target_length)), ret);
}

Outcome<void> pair_mla(Keys& keys, Paired& ret) {
  auto source = read_layout(keys, "source_layout");
  if (!source) return tl::unexpected(source.error());
  auto target = read_layout(keys, "target_layout");
  if (!target) return tl::unexpected(target.error());
  if (auto closed = keys.no_others(); !closed) return closed;
  return take(keys, sglang::slice_mla(positions(ret.source_length), positions(ret.target_length), *source, *target), ret);
}

Outcome<void> pair_mha(Keys& keys, Paired& ret) {
  std::optional<sglang::ListLayout> source;
  std::uint32_t start_layer = 0;
  if (keys.has("source_layout")) {
    auto layout = read_layout(keys, "source_layout");
    if (!layout) return tl::unexpected(layout.error());
    source = *layout;
    start_layer = layout->first_layer;
  } else {
    auto start = keys.number("start_layer");
    if (!start) return tl::unexpected(start.error());
    start_layer = *start;
  }
  auto target = read_layout(keys, "target_layout");
  if (!target) return tl::unexpected(target.error());
  if (auto closed = keys.no_others(); !closed) return closed;
  auto sliced = sglang::slice_mha(start_layer, positions(ret.source_length), positions(ret.target_length), source, *target);
  if (!sliced) return take(keys, tl::unexpected(sliced.error()), ret);
  sglang::ListSlice both;
  for (const auto* list : {&sliced->source_k, &sliced->source_v}) both.source.insert(both.source.end(), list->begin(), list->end());
  for (const auto* list : {&sliced->target_k, &sliced->target_v}) both.target.insert(both.target.end(), list->begin(), list->end());
  return take(keys, both, ret);
}

Outcome<Paired> pair_lists(const Json& document, const std::string& path) {
  Keys keys(document, path, "the file");
  Paired paired;
  auto convention = keys.word("convention");
  if (!convention) return tl::unexpected(convention.error());
  auto source = keys.list_length("source");
  if (!source) return tl::unexpected(source.error());
  auto target = keys.list_length("target");
  if (!target) return tl::unexpected(target.error());
  paired.convention = *convention;
  paired.source_length = *source;
  paired.target_length = *target;
  Outcome<void> done = *convention == "compressed_mla" ? pair_compressed(keys, paired)
                       : *convention == "mla"          ? pair_mla(keys, paired)
                       : *convention == "mha"          ? pair_mha(keys, paired)
                                                       : keys.wrong("unknown convention \"" + *convention + "\", known are mha, mla, compressed_mla");
  if (!done) return tl::unexpected(done.error());
  return paired;
}

/// Pairs in which both positions step by one, as one line.
std::string paired_text(const Paired& paired) {
  Table table({{"source entries", Table::Align::right}, {"target entries", Table::Align::right}, {"count", Table::Align::right}});
  const auto range = [](std::uint64_t first, std::uint64_t count) {
    return count == 1 ? std::to_string(first - 1) : std::to_string(first - 1) + ".." + std::to_string(first + count - 2);
  };
  for (std::size_t begin = 0; begin < paired.source.size();) {
    std::size_t end = begin + 1;
    while (end < paired.source.size() && paired.source[end] == paired.source[end - 1] + 1 && paired.target[end] == paired.target[end - 1] + 1) ++end;
    table.add({range(paired.source[begin], end - begin), range(paired.target[begin], end - begin), std::to_string(end - begin)});
    begin = end;
  }
  return paired.convention + ": " + std::to_string(paired.source_length) + " source and " + std::to_string(paired.target_length) +
         " target entries; positions from 0\n" + table.text();
}

Json paired_document(const Paired& paired) {
  Json document = begin_document("explain", "pass");
  document["convention"] = paired.convention;
  document["source_entries"] = paired.source_length;
  document["target_entries"] = paired.target_length;
  Json pairs = Json::array();
  for (std::size_t i = 0; i < paired.source.size(); ++i) pairs.push_back({{"source", paired.source[i] - 1}, {"target", paired.target[i] - 1}});
  document["pairs"] = std::move(pairs);
  return document;
}

}  // namespace

Outcome<ExitStatus> run_explain_sglang_lists(const Request& request) {
  for (const auto& [option, text] : request.values) {
    if (option != kOption && option != "--json") {
      return wrong_option(option, text, "cannot stand beside --sglang-lists: the file says everything", "leave one of the two out");
    }
  }
  const std::string path = request.text(kOption);
  auto text = read_file(kOption, path);
  if (!text) return tl::unexpected(text.error());
  Json document;
  try {
    document = Json::parse(*text);
  } catch (const Json::exception& error) {
    return wrong_option(kOption, path, error.what(), kListsRemedy);
  }
  if (!document.is_object()) return wrong_option(kOption, path, "the file is not a JSON object", kListsRemedy);
  auto paired = pair_lists(document, path);
  if (!paired) return tl::unexpected(paired.error());
  auto printed = request.has("--json") ? print_document(paired_document(*paired)) : print(paired_text(*paired));
  if (!printed) return tl::unexpected(printed.error());
  return ExitStatus::holds;
}

}  // namespace kvferry::transfer_check
