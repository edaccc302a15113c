/// What the pool tests share: the model shapes in tests/data/models and pools made from them.
#pragma once

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvferry/model_config.h"
#include "kvferry/pool.h"

namespace kvferry::test {

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  INFO(path);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::string config_text(const std::string& model) { return read_text(std::string(KVFERRY_TEST_DATA) + "/models/" + model + ".json"); }

inline nlohmann::json truth() { return nlohmann::json::parse(config_text("truth")).at("models"); }

inline ModelDescription describe_model(const std::string& model) {
  auto description = parse_model_config(config_text(model), model);
  INFO((description ? std::string() : description.error().text));
  REQUIRE(description.has_value());
  return *description;
}

template <class T>
T require_value(const Result<T>& result) {
  INFO((result ? std::string() : result.error().text));
  REQUIRE(result.has_value());
  return *result;
}

/// The text of a failure, so that a test can look for the values in it.
template <class T>
std::string error_text(const Result<T>& result) {
  return result.has_value() ? std::string("(no error)") : result.error().text;
}

inline PoolOptions options_for(const ModelDescription& model, std::optional<DType> dtype = std::nullopt) {
  PoolOptions options;
  options.page_size = model.kind == ModelKind::compressed_mla ? 256 : 64;
  options.dtype = dtype;
  return options;
}

/// "kv k 17 131072": component, role, layer, item length.
inline std::string line_of(const std::string& component, const std::string& role, std::uint64_t layer, std::uint64_t item_length) {
  return component + " " + role + " " + std::to_string(layer) + " " + std::to_string(item_length);
}
inline std::vector<std::string> lines_of(const Pool& pool) {
  std::vector<std::string> lines;
  for (const Entry& entry : pool.entries) {
    lines.push_back(line_of(to_string(entry.component), std::string(to_string(entry.role)), entry.layer, entry.item_length_bytes));
  }
  return lines;
}

/// Models of tests/data/models whose kind is laid out.
inline const std::vector<std::string>& laid_out_models() {
  static const std::vector<std::string> kModels = {"Llama-3.1-8B", "Llama-3.1-70B",     "Llama-3.1-405B",         "Qwen2.5-7B-Instruct",
                                                   "Qwen3-8B",     "Qwen3-32B",         "Qwen3-235B-A22B",        "Mistral-7B-v0.1",
                                                   "gemma-2-27b",  "gemma-3-27b-it",    "DeepSeek-V2-Lite",       "DeepSeek-V3",
                                                   "DeepSeek-R1",  "DeepSeek-V4-Flash", "DeepSeek-V4-Pro",        "Kimi-K2-Instruct",
                                                   "GLM-4.5",      "MiniMax-M2.7",      "Phi-3-mini-4k-instruct", "falcon-7b-instruct"};
  return kModels;
}

}  // namespace kvferry::test
