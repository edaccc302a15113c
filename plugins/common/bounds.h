// Limits that are no settings.
#pragma once

#include <cstdint>

namespace kvferry::plugins {

constexpr std::uint32_t kWritesPerBatchMax = 2048;
constexpr std::uint32_t kPiecesPerBatchMax = 4096;
// Per peer, accepted and not ended. The rings take about a megabyte once the peer has sent something.
constexpr std::uint64_t kWritesInFlightMax = 16384;
constexpr std::uint64_t kPiecesInFlightMax = 32768;
constexpr std::uint64_t kControlEventsMax = 65536;  ///< answers to cancel, fence, flush, region_quiesce that wait to be polled
constexpr std::uint64_t kTargetEventsMax = 4096;    ///< notifications and refusals of one peer that wait; beyond it the peer is not progressed

}  // namespace kvferry::plugins
