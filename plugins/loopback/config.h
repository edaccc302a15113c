// The settings of the loopback backend: windows and limits, and the faults it can be told to have. docs/backend-abi.md has the table for users;
// kSettings in config.cpp is its source.
#pragma once

#include <cstdint>
#include <string>

#include "failure.h"

namespace loopback {

struct Config {
  // Windows and limits, of every peer.
  std::uint64_t window_bytes = 32u << 20;      ///< batches in flight hold at most so many bytes
  std::uint64_t message_bytes_max = 8u << 20;  ///< longest write
  std::uint64_t pieces_per_write_max = 64;
  std::uint64_t writes_per_batch_max = 512;
  std::uint64_t pieces_per_batch_max = 2048;
  std::uint64_t batches_in_flight_max = 16;
  std::uint64_t progress_bytes = 1u << 20;  ///< applied per progress and peer
  std::uint64_t target_events_max = 1024;   ///< notifications and refusals of a peer that wait to be polled
  std::uint64_t control_events_max = 4096;  ///< answers to fence, cancel, flush, region_quiesce that wait to be polled
  std::uint64_t regions_max = 1u << 20;
  std::uint64_t fences_max = 1u << 20;   ///< fenced rooms, of a peer or of all
  std::uint64_t cancels_max = 1u << 16;  ///< canceled rooms of a peer that are remembered

  // Faults; all draws come from `seed`.
  std::uint64_t seed = 0;
  std::uint64_t delay_min_ns = 0;
  std::uint64_t delay_max_ns = 0;
  std::uint64_t reorder_permille = 0;
  std::uint64_t reorder_same_room = 0;
  std::uint64_t partial_accept_permille = 0;
  std::uint64_t refuse_permille = 0;
  std::uint64_t refuse_nth_batch = 0;
  std::uint64_t lose_completion_permille = 0;
  std::uint64_t lose_completion_nth = 0;
  std::uint64_t die_after_batches = 0;
  std::uint64_t die_notice_ns = 0;
  std::uint64_t corrupt_nth_write = 0;
  std::uint64_t corrupt_offset = 0;
  std::uint64_t late_landing = 0;
  std::uint64_t fail_nth = 0;
  std::string fail_entry;  ///< empty: none

  /// The same limits without any fault.
  Config without_faults() const;
};

Answer<Config> parse_config(const kvferry_setting* settings, std::uint32_t count);
std::string config_as_json(const Config& config);

}  // namespace loopback
