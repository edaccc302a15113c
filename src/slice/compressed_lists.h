/// compressed_lists.h: what a list of compression ratios says about the lists of a compressed-MLA pool; shared by the join of tagged pools and the
/// slicing of flat lists, so that both refuse in the same words.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvferry/pool.h"
#include "kvferry/result.h"

namespace kvferry {

inline constexpr std::uint32_t kRatioC4 = 4, kRatioC128 = 128;

/// Layers of each compressing ratio; the rest has ratio 0, a window only.
struct RatioCounts {
  std::uint64_t c4 = 0, c128 = 0;

  std::uint64_t kv_entries() const noexcept { return 2 * c4 + c128; }
  /// Of the state list, beside one window buffer per layer where the pool has a window pool.
  std::uint64_t state_entries() const noexcept { return 2 * c4; }
};

/// The part of `layers` beyond the list counts as ratio 0.
RatioCounts count_ratios(std::span<const std::uint32_t> ratios, Stage layers) noexcept;

/// Error on a ratio other than 0, 4 and 128. `owner` says whose list it is: "the source's", or nothing.
Result<void> check_known_ratios(std::span<const std::uint32_t> ratios, std::string_view owner);

/// "the ratios of layers [0, 43) (c4 21, c128 20, total 44) make a kv list of 62 (2*c4 + c128) and a state list of 85 (SWA 43 + 2*c4)". Without
/// `window_entries` the state list is "SWA + 42 (SWA + 2*c4)": its window part may be absent.
std::string expected_lists_text(std::span<const std::uint32_t> ratios, Stage layers, std::optional<std::uint64_t> window_entries = std::nullopt);

/// "3 entries short" or "1 entry too long".
std::string difference_text(std::uint64_t found, std::uint64_t expected);

/// What to look at when a compressed-MLA list has another length than its ratios make.
inline constexpr std::string_view kLayoutRemedy =
    "check that prefill and decode run the same model, engine version, kv cache dtype and layout variant";

}  // namespace kvferry
