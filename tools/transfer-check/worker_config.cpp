#include "worker_config.h"

#include "kvferry/pool_file.h"

namespace kvferry::transfer_check {
namespace {

Json pool_json(const NamedPool& pool) { return {{"name", pool.name}, {"pool", write_pool_file(pool.pool)}}; }

Result<NamedPool> parse_pool(const Json& json) {
  auto pool = parse_pool_file(json.at("pool").get<std::string>());
  if (!pool) return fail(pool.error());
  return NamedPool{json.at("name").get<std::string>(), std::move(*pool)};
}

Result<WorkerConfig> parse_fields(const Json& json) {
  WorkerConfig config;
  json.at("name").get_to(config.name);
  json.at("is_prefill").get_to(config.is_prefill);
  json.at("tp").get_to(config.tp);
  json.at("pp").get_to(config.pp);
  json.at("memory_bytes").get_to(config.memory_bytes);
  json.at("backend").get_to(config.backend);
  json.at("lane").get_to(config.lane);
  json.at("memory").get_to(config.memory);
  json.at("listen").get_to(config.listen);
  json.at("timeout_ns").get_to(config.timeout_ns);
  json.at("heartbeat_ns").get_to(config.heartbeat_ns);
  json.at("lease_ns").get_to(config.lease_ns);
  json.at("corrupt").get_to(config.corrupt);
  json.at("show_progress").get_to(config.show_progress);
  json.at("seed").get_to(config.seed);
  json.at("source").get_to(config.source);
  json.at("writers").get_to(config.writers);
  json.at("source_indices").get_to(config.source_indices);
  json.at("target_indices").get_to(config.target_indices);
  for (const auto& source : json.at("sources")) {
    auto pool = parse_pool(source);
    if (!pool) return fail(pool.error());
    config.sources.push_back(std::move(*pool));
  }
  if (config.is_prefill) return config;
  auto target = parse_pool(json.at("target"));
  if (!target) return fail(target.error());
  config.target = std::move(*target);
  return config;
}

}  // namespace

Json to_json(const WorkerConfig& config) {
  Json json;
  json["name"] = config.name;
  json["is_prefill"] = config.is_prefill;
  json["tp"] = config.tp;
  json["pp"] = config.pp;
  json["memory_bytes"] = config.memory_bytes;
  json["backend"] = config.backend;
  json["lane"] = config.lane;
  json["memory"] = config.memory;
  json["listen"] = config.listen;
  json["timeout_ns"] = config.timeout_ns;
  json["heartbeat_ns"] = config.heartbeat_ns;
  json["lease_ns"] = config.lease_ns;
  json["corrupt"] = config.corrupt;
  json["show_progress"] = config.show_progress;
  json["seed"] = config.seed;
  json["source"] = config.source;
  json["writers"] = config.writers;
  json["source_indices"] = config.source_indices;
  json["target_indices"] = config.target_indices;
  json["sources"] = Json::array();
  for (const auto& source : config.sources) json["sources"].push_back(pool_json(source));
  if (!config.is_prefill) json["target"] = pool_json(config.target);
  return json;
}

Result<WorkerConfig> parse_worker_config(const Json& json) {
  try {
    return parse_fields(json);
  } catch (const Json::exception& error) {
    return fail(ErrorCode::internal, std::string("read the worker's configuration: ") + error.what());
  }
}

}  // namespace kvferry::transfer_check
