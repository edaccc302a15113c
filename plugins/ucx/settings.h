// The settings of this backend: KVFERRY_UCX_<KEY> for users, lower-case keys without prefix here. Every key is checked, an unknown one is an error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/backend_abi.h"
#include "kvferry/result.h"

namespace kvferry::ucx {

enum class LaneChoice : std::uint32_t { automatic = 0, shm = 1, tcp = 2 };
std::string_view to_string(LaneChoice choice) noexcept;
Result<LaneChoice> parse_lane(std::string_view text, std::string_view what);

struct Settings {
  LaneChoice lane = LaneChoice::automatic;
  bool mapped = true;
  std::uint64_t shm_segment_bytes = 0;
  std::uint64_t tcp_segment_bytes = 0;
  std::uint64_t messages_in_flight = 0;
  std::uint64_t batches_in_flight = 0;
  std::uint64_t window_bytes = 0;
  std::uint64_t write_bytes_max = 0;
  std::uint64_t regions_max = 0;
  std::uint64_t tcp_keepalive_ms = 0;
  std::uint64_t cancels_max = 0;
  std::string net_devices;

  static Result<Settings> parse(const kvferry_setting* settings, std::uint32_t count);
  /// One JSON object with every key and its value in effect; `extra` is put behind them as it is ("" or "\"key\": value, ...").
  std::string to_json(std::string_view extra) const;
};

}  // namespace kvferry::ucx
