/// Which pools stand on each side, and which rank writes to which.
///
///   config.json + cut ─┐                                    prefill tp0 pp0 ─┐
///                      ├─► ranks of the prefill side        prefill tp0 pp1 ─┼─► decode tp0 pp0
///   pool file ─────────┘   ranks of the decode side         ...
///
/// Rank mapping over tensor parallel ranks, Tp on the prefill and Td on the decode side (one must divide the other): equal sizes pair one to one;
/// Td > Tp: decode rank d reads from prefill rank d / (Td / Tp); Td < Tp: from the first of its Tp / Td prefill ranks, whose bytes must be all of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "failure.h"
#include "kvferry/engine.h"
#include "kvferry/model_config.h"
#include "kvferry/pool.h"
#include "kvferry/slice.h"
#include "page_file.h"
#include "values.h"

namespace kvferry::transfer_check {

/// Bytes before and behind each pool that no write may touch.
inline constexpr std::uint64_t kGuardBytes = 4096;

/// One process of a side.
///
///   memory of the rank:  [guard][entry 0][entry 1] ... [entry n-1][guard]
struct RankPool {
  std::string name;  ///< "prefill tp0 pp1"
  std::uint32_t tp = 0, pp = 0;
  Pool pool;                       ///< base addresses count from the start of the rank's memory
  std::uint64_t memory_bytes = 0;  ///< with both guards
};

struct Side {
  bool is_prefill = false;
  std::string parallel_text;  ///< "tp=1,pp=2", or the pool file
  std::uint32_t tp_size = 1;
  std::vector<RankPool> ranks;
  Pool whole;              ///< the whole model with the sizes of rank 0; of a pool file: that pool
  IndicesBySpace indices;  ///< of the request
  std::uint64_t request_slot = 0;

  std::string_view name() const { return is_prefill ? "prefill" : "decode"; }
};

/// A prefill rank that writes to a decode rank, and which of its entries go where.
struct RankPair {
  std::size_t source = 0, target = 0;  ///< indices into the ranks of the two sides
  std::vector<EntryPair> entries;
};

struct RequestFacts {
  std::uint64_t tokens = 0, pages = 0, run_length = 1, seed = 1;
};

struct Layout {
  std::string model;  ///< file name without folder and ".json"
  Side source, target;
  std::vector<RankPair> pairs;
  RequestFacts request;
};

/// From the options of `explain` and `self`: pools, rank pairs and index lists. Everything wrong about them is found here or in the plan.
Outcome<Layout> make_layout(const Request& request);

}  // namespace kvferry::transfer_check
