/// Where the pages of a request lie: random, from a seed, the same on every machine (docs/transfer-check.md, "Index lists").
///
///   request:  run 0      run 1      run 2          each run: run_length pages that step by one on both sides
///   source:   ...[run 2]..[run 0]......[run 1].    dots: pages that must stay as they are
///   target:   .[run 1]....[run 2]..[run 0]......   another order, another distance
#pragma once

#include <cstdint>
#include <vector>

namespace kvferry::transfer_check {

/// Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (2014). Small, fixed for ever, the same in any language.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t state) : state_(state) {}
  std::uint64_t next();

 private:
  std::uint64_t state_;
};

/// Generator of one side: state 2 * seed + 1 for the source, 2 * seed + 2 for the target.
SplitMix64 source_random(std::uint64_t seed);
SplitMix64 target_random(std::uint64_t seed);

struct RandomPages {
  std::uint64_t count = 0;       ///< pages of the request
  std::uint64_t pool_pages = 0;  ///< at least count
  std::uint64_t run_length = 1;  ///< at least 1
};

/// The pages in the order of the request. Runs of `run_length` (the last may be shorter) and the unused pages, one by one, are shuffled (Fisher-Yates
/// from the back, `next() % (i + 1)`) and laid out one after another; where two runs that follow each other in the request would touch, the later one
/// is swapped with the first item that ends this without making another pair touch.
std::vector<std::uint64_t> random_pages(const RandomPages& wanted, SplitMix64& random);

}  // namespace kvferry::transfer_check
