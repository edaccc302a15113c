// Pools as JSON text.
//
//   {
//     "schema": "kvferry-pool",
//     "version": 1,
//     ... facts of the pool, one per line ...
//     "entries": [
//       {"component": "kv", "role": "k", "layer": 0, ...},      one entry per line, so that two files can be compared line by line
//       ...
//     ]
//   }
//
// The same text goes over the wire, so the reader trusts nothing: sizes and depth are bounded before anything is built, every key is known or refused
// with its path, every number is an unsigned integer within its field, and the pool that comes out is validated. docs/pool-file.md describes each
// key.

#include "kvferry/pool_file.h"

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "strict_json.h"

namespace kvferry {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using strict_json::show;

constexpr std::string_view kSchema = "kvferry-pool";
constexpr std::size_t kFileBytesMax = 32u << 20;
constexpr std::size_t kFileDepthMax = 8;
constexpr std::size_t kEntriesMax = 1u << 16;
constexpr std::size_t kListMax = 1u << 16;  ///< ratios, sliding layers

// ---- writing

ordered_json json_of(const Entry& entry) {
  ordered_json object = {{"component", to_string(entry.component)},
                         {"role", to_string(entry.role)},
                         {"layer", entry.layer},
                         {"index_space", to_string(entry.space)},
                         {"dtype", to_string(entry.dtype)},
                         {"memory", to_string(entry.memory)},
                         {"page_size", entry.page_size},
                         {"base_address", entry.base_address},
                         {"pitch_bytes", entry.pitch_bytes},
                         {"item_length_bytes", entry.item_length_bytes},
                         {"index_count", entry.index_count}};
  if (entry.heads) {
    object["heads"] = {{"head_count", entry.heads->head_count},
                       {"first_head", entry.heads->first_head},
                       {"bytes_per_head_token", entry.heads->bytes_per_head_token}};
  }
  return object;
}

ordered_json facts_of(const Pool& pool) {
  return {{"schema", kSchema},
          {"version", kPoolFileVersion},
          {"model", pool.model},
          {"kind", pool.kind},
          {"variant", pool.variant},
          {"layers_total", pool.layers_total},
          {"draft_layers", pool.draft_layers},
          {"stage", {{"first", pool.stage.first}, {"end", pool.stage.end}}},
          {"rank", {{"tp_size", pool.rank.tp_size}, {"tp_rank", pool.rank.tp_rank}, {"pp_size", pool.rank.pp_size}, {"pp_rank", pool.rank.pp_rank}}},
          {"page_size", pool.page_size},
          {"window_tokens", pool.window_tokens},
          {"ring_stride", pool.ring_stride},
          {"c128_ring_size", pool.c128_ring_size},
          {"c128_online", pool.c128_online},
          {"compression_ratios", pool.compression_ratios},
          {"sliding_layers", pool.sliding_layers}};
}

std::string line_of(const ordered_json& value) { return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

// ---- reading

/// A value and the path that names it in messages.
struct Node {
  const json& value;
  std::string path;

  [[nodiscard]] Unexpected refuse(ErrorCode code, const std::string& text) const { return fail(code, "pool file: " + path + ": " + text); }
  [[nodiscard]] Unexpected expected(const std::string& what) const {
    return refuse(ErrorCode::invalid_argument, "expected " + what + ", found " + show(value));
  }
  [[nodiscard]] Node member(const std::string& key) const { return {value.at(key), path.empty() ? key : path + "." + key}; }
  [[nodiscard]] Node element(std::size_t i) const { return {value.at(i), path + "[" + std::to_string(i) + "]"}; }
};

/// An object with these keys and no other; those that start with '?' may be left out.
Result<void> check_keys(const Node& node, std::initializer_list<std::string_view> keys) {
  if (!node.value.is_object()) return node.expected("an object");
  for (const std::string_view key : keys) {
    if (!key.starts_with('?') && !node.value.contains(std::string(key))) {
      return node.refuse(ErrorCode::invalid_argument, "key \"" + std::string(key) + "\" is missing");
    }
  }
  for (const auto& member : node.value.items()) {
    const bool known =
        std::any_of(keys.begin(), keys.end(), [&](std::string_view key) { return (key.starts_with('?') ? key.substr(1) : key) == member.key(); });
    if (!known) return node.refuse(ErrorCode::invalid_argument, "unknown key " + strict_json::show_text(member.key()));
  }
  return {};
}

template <class T>
Result<void> read_number(const Node& node, T& ret) {
  constexpr std::uint64_t kMax = std::numeric_limits<T>::max();
  if (!node.value.is_number_unsigned() || node.value.get<std::uint64_t>() > kMax)
    return node.expected("an unsigned integer up to " + std::to_string(kMax));
  ret = static_cast<T>(node.value.get<std::uint64_t>());
  return {};
}

Result<void> read_flag(const Node& node, bool& ret) {
  if (!node.value.is_boolean()) return node.expected("true or false");
  ret = node.value.get<bool>();
  return {};
}

Result<void> read_text(const Node& node, std::string& ret) {
  if (!node.value.is_string()) return node.expected("a string");
  ret = node.value.get<std::string>();
  return {};
}

template <class T>
Result<void> read_word(const Node& node, Result<T> (*parse)(std::string_view), T& ret) {
  std::string word;
  if (auto text = read_text(node, word); !text) return text;
  auto value = parse(word);
  if (!value) return node.refuse(value.error().code, value.error().text);
  ret = *value;
  return {};
}

Result<void> check_list(const Node& node, std::size_t count_max) {
  if (!node.value.is_array()) return node.expected("a list");
  if (node.value.size() > count_max)
    return node.refuse(ErrorCode::limit, std::to_string(node.value.size()) + " elements, at most " + std::to_string(count_max));
  return {};
}

Result<void> read_numbers(const Node& node, std::vector<std::uint32_t>& ret) {
  if (auto list = check_list(node, kListMax); !list) return list;
  ret.resize(node.value.size());
  for (std::size_t i = 0; i < ret.size(); ++i) {
    if (auto number = read_number(node.element(i), ret[i]); !number) return number;
  }
  return {};
}

/// Runs the steps until one fails.
template <class... Steps>
Result<void> all_of(Steps&&... steps) {
  Result<void> result;
  (void)((result = steps(), result.has_value()) && ...);
  return result;
}

Result<void> read_entry(const Node& node, Entry& ret) {
  const auto number = [&](const char* key, auto& field) { return [&node, key, &field] { return read_number(node.member(key), field); }; };
  auto read = all_of(
      [&] {
        return check_keys(node, {"component", "role", "layer", "index_space", "dtype", "memory", "page_size", "base_address", "pitch_bytes",
                                 "item_length_bytes", "index_count", "?heads"});
      },
      [&] { return read_word(node.member("component"), &parse_component, ret.component); },
      [&] { return read_word(node.member("role"), &parse_role, ret.role); }, number("layer", ret.layer),
      [&] { return read_word(node.member("index_space"), &parse_index_space, ret.space); },
      [&] { return read_word(node.member("dtype"), &parse_dtype, ret.dtype); },
      [&] { return read_word(node.member("memory"), &parse_memory_kind, ret.memory); }, number("page_size", ret.page_size),
      number("base_address", ret.base_address), number("pitch_bytes", ret.pitch_bytes), number("item_length_bytes", ret.item_length_bytes),
      number("index_count", ret.index_count));
  if (!read || !node.value.contains("heads")) return read;
  const Node heads = node.member("heads");
  HeadRange range;
  read = all_of(
      [&] {
        return check_keys(heads, {"head_count", "first_head", "bytes_per_head_token"});
      },
      [&] { return read_number(heads.member("head_count"), range.head_count); },
      [&] { return read_number(heads.member("first_head"), range.first_head); },
      [&] { return read_number(heads.member("bytes_per_head_token"), range.bytes_per_head_token); });
  ret.heads = range;
  return read;
}

Result<void> read_entries(const Node& node, std::vector<Entry>& ret) {
  if (auto list = check_list(node, kEntriesMax); !list) return list;
  ret.resize(node.value.size());
  for (std::size_t i = 0; i < ret.size(); ++i) {
    if (auto entry = read_entry(node.element(i), ret[i]); !entry) return entry;
  }
  return {};
}

Result<void> read_places(const Node& root, Pool& ret) {
  const Node stage = root.member("stage"), rank = root.member("rank");
  return all_of(
      [&] {
        return check_keys(stage, {"first", "end"});
      },
      [&] { return read_number(stage.member("first"), ret.stage.first); }, [&] { return read_number(stage.member("end"), ret.stage.end); },
      [&] {
        return check_keys(rank, {"tp_size", "tp_rank", "pp_size", "pp_rank"});
      },
      [&] { return read_number(rank.member("tp_size"), ret.rank.tp_size); }, [&] { return read_number(rank.member("tp_rank"), ret.rank.tp_rank); },
      [&] { return read_number(rank.member("pp_size"), ret.rank.pp_size); }, [&] { return read_number(rank.member("pp_rank"), ret.rank.pp_rank); });
}

/// Before the keys: a file of another schema or version would fail on its keys with a text that helps nobody.
Result<void> check_version(const json& root) {
  if (!root.is_object()) return fail(ErrorCode::invalid_argument, "pool file: expected an object, found " + show(root));
  const auto schema = root.find("schema");
  if (schema == root.end() || *schema != json(kSchema)) {
    return fail(ErrorCode::invalid_argument,
                "pool file: schema: expected \"" + std::string(kSchema) + "\", found " + (schema == root.end() ? "nothing" : show(*schema)));
  }
  const auto version = root.find("version");
  if (version == root.end() || !version->is_number_unsigned() || *version != json(kPoolFileVersion)) {
    return fail(ErrorCode::version, "pool file: version: this library reads version " + std::to_string(kPoolFileVersion) + ", found " +
                                        (version == root.end() ? "nothing" : show(*version)));
  }
  return {};
}

Result<Pool> read_pool(const json& value) {
  if (auto version = check_version(value); !version) return fail(version.error());
  const Node root{value, ""};
  Pool pool;
  const auto number = [&](const char* key, auto& field) { return [&root, key, &field] { return read_number(root.member(key), field); }; };
  const auto read = all_of(
      [&] {
        const Node shown{value, "top level"};
        return check_keys(
            shown, {"schema", "version", "model", "kind", "variant", "layers_total", "draft_layers", "stage", "rank", "page_size", "window_tokens",
                    "ring_stride", "c128_ring_size", "c128_online", "compression_ratios", "sliding_layers", "entries"});
      },
      [&] { return read_text(root.member("model"), pool.model); }, [&] { return read_text(root.member("kind"), pool.kind); },
      [&] { return read_text(root.member("variant"), pool.variant); }, number("layers_total", pool.layers_total),
      number("draft_layers", pool.draft_layers), [&] { return read_places(root, pool); }, number("page_size", pool.page_size),
      number("window_tokens", pool.window_tokens), number("ring_stride", pool.ring_stride), number("c128_ring_size", pool.c128_ring_size),
      [&] { return read_flag(root.member("c128_online"), pool.c128_online); },
      [&] { return read_numbers(root.member("compression_ratios"), pool.compression_ratios); },
      [&] { return read_numbers(root.member("sliding_layers"), pool.sliding_layers); },
      [&] { return read_entries(root.member("entries"), pool.entries); });
  if (!read) return fail(read.error());
  if (auto valid = validate(pool); !valid) return fail(valid.error().within("pool file"));
  return pool;
}

}  // namespace

std::string write_pool_file(const Pool& pool) {
  std::string text = "{\n";
  const ordered_json facts = facts_of(pool);
  for (const auto& fact : facts.items()) text += "  " + line_of(fact.key()) + ": " + line_of(fact.value()) + ",\n";
  text += "  \"entries\": [";
  for (std::size_t i = 0; i < pool.entries.size(); ++i) text += (i == 0 ? "\n    " : ",\n    ") + line_of(json_of(pool.entries[i]));
  text += pool.entries.empty() ? "]\n}\n" : "\n  ]\n}\n";
  return text;
}

Result<Pool> parse_pool_file(std::string_view text) {
  auto parsed = strict_json::parse(text, {.bytes_max = kFileBytesMax, .depth_max = kFileDepthMax});
  if (!parsed) return fail(parsed.error().within("pool file"));
  try {
    return read_pool(*parsed);
  } catch (const std::exception& error) {  // of the JSON library; every access above is checked, so this is a fault of ours
    return fail(ErrorCode::internal, std::string("pool file: ") + error.what());
  }
}

}  // namespace kvferry
