#include "compressed_lists.h"

#include <algorithm>

#include "concatenate.h"

namespace kvferry {

RatioCounts count_ratios(std::span<const std::uint32_t> ratios, Stage layers) noexcept {
  RatioCounts counts;
  const std::size_t end = std::min<std::size_t>(layers.end, ratios.size());
  for (std::size_t layer = layers.first; layer < end; ++layer) {
    if (ratios[layer] == kRatioC4) ++counts.c4;
    if (ratios[layer] == kRatioC128) ++counts.c128;
  }
  return counts;
}

Result<void> check_known_ratios(std::span<const std::uint32_t> ratios, std::string_view owner) {
  for (std::size_t layer = 0; layer < ratios.size(); ++layer) {
    const std::uint32_t ratio = ratios[layer];
    if (ratio == 0 || ratio == kRatioC4 || ratio == kRatioC128) continue;
    return fail(ErrorCode::unsupported, concatenate("unknown compression ratio ", ratio, " of layer ", layer, " in ", owner, owner.empty() ? "" : " ",
                                                    "list of ", ratios.size(), " ratios; known are 0, ", kRatioC4, " and ", kRatioC128));
  }
  return {};
}

std::string expected_lists_text(std::span<const std::uint32_t> ratios, Stage layers, std::optional<std::uint64_t> window_entries) {
  const RatioCounts counts = count_ratios(ratios, layers);
  const std::string state_list = window_entries ? concatenate(*window_entries + counts.state_entries(), " (SWA ", *window_entries, " + 2*c4)")
                                                : concatenate("SWA + ", counts.state_entries(), " (SWA + 2*c4)");
  return concatenate("the ratios of layers ", range_text(layers.first, layers.end), " (c4 ", counts.c4, ", c128 ", counts.c128, ", total ",
                     ratios.size(), ") make a kv list of ", counts.kv_entries(), " (2*c4 + c128) and a state list of ", state_list);
}

std::string difference_text(std::uint64_t found, std::uint64_t expected) {
  const std::uint64_t difference = found < expected ? expected - found : found - expected;
  return concatenate(difference, difference == 1 ? " entry " : " entries ", found < expected ? "short" : "too long");
}

}  // namespace kvferry
