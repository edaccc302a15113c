// Draws for the faults: one stream per fault and backend, so that switching one fault on does not move the others. splitmix64, by its published
// constants.
#pragma once

#include <cstdint>

namespace loopback {

class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) : state_(seed ^ (stream * 0x9e3779b97f4a7c15u)) { (void)next(); }

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// 0 .. count - 1; count is at least 1. The bias of the remainder does not matter for faults.
  std::uint64_t below(std::uint64_t count) { return next() % count; }
  bool permille(std::uint64_t chance) { return chance > 0 && below(1000) < chance; }

 private:
  std::uint64_t state_;
};

}  // namespace loopback
