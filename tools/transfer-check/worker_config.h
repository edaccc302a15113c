/// What a worker of `self` is told when it starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pattern.h"
#include "report.h"

namespace kvferry::transfer_check {

struct WorkerConfig {
  std::string name;  ///< "decode tp0 pp0"
  bool is_prefill = false;
  std::uint32_t tp = 0, pp = 0;
  std::uint64_t memory_bytes = 0;
  std::string backend, lane, memory, listen;
  std::uint64_t timeout_ns = 0, heartbeat_ns = 0, lease_ns = 0;
  bool corrupt = false;        ///< flip one byte of the source
  bool show_progress = false;  ///< say how far a step is
  std::uint64_t seed = 1;
  std::vector<NamedPool> sources;    ///< all prefill ranks: the pattern
  std::size_t source = 0;            ///< prefill: which of them this is
  NamedPool target;                  ///< decode: its own pool
  std::vector<std::size_t> writers;  ///< decode: sources that write here
  IndicesBySpace source_indices, target_indices;
};

Json to_json(const WorkerConfig& config);
/// Only what to_json wrote comes in here; a damaged message is a bug and an error.
Result<WorkerConfig> parse_worker_config(const Json& json);

}  // namespace kvferry::transfer_check
