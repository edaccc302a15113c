// Every way to cut layers into pipeline stages, and ratio lists from a seed.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "kvferry/pool.h"

namespace kvferry::test {

/// Every cut of `layers` layers into exactly `stages` stages, none empty.
inline std::vector<std::vector<Stage>> cuts(std::uint32_t layers, std::uint32_t stages, std::uint32_t first = 0) {
  if (stages == 1) return {{Stage{first, layers}}};
  std::vector<std::vector<Stage>> all;
  for (std::uint32_t end = first + 1; end + stages - 1 <= layers; ++end) {
    for (std::vector<Stage> rest : cuts(layers, stages - 1, end)) {
      rest.insert(rest.begin(), Stage{first, end});
      all.push_back(rest);
    }
  }
  return all;
}

inline std::vector<std::uint32_t> random_ratios(std::uint32_t layers, std::mt19937_64& random) {
  constexpr std::uint32_t kRatios[] = {0, 4, 128};
  std::vector<std::uint32_t> ratios;
  for (std::uint32_t layer = 0; layer < layers; ++layer) ratios.push_back(kRatios[random() % 3]);
  return ratios;
}

}  // namespace kvferry::test
