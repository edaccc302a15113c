#include "random_pages.h"

#include <utility>

namespace kvferry::transfer_check {
namespace {

/// Items of the arrangement: 0 .. runs - 1 are the runs of the request in its order, what follows are unused pages.
struct Arrangement {
  std::vector<std::uint64_t> items;
  std::uint64_t runs = 0;

  /// Whether the item at `position` continues the one before it: the planner would join the two.
  bool touches(std::size_t position) const {
    if (position == 0 || position >= items.size()) return false;
    return items[position] < runs && items[position - 1] + 1 == items[position];
  }
  bool touches_around(std::size_t position) const { return touches(position) || touches(position + 1); }
};

/// Ends every touching pair that a swap can end. With a handful of items none may exist; then the two runs stay joined, which is legal.
void separate(Arrangement& arrangement) {
  const std::size_t count = arrangement.items.size();
  for (std::size_t position = 1; position < count; ++position) {
    if (!arrangement.touches(position)) continue;
    for (std::size_t step = 1; step < count; ++step) {
      const std::size_t other = (position + step) % count;
      std::swap(arrangement.items[position], arrangement.items[other]);
      if (!arrangement.touches_around(position) && !arrangement.touches_around(other)) break;
      std::swap(arrangement.items[position], arrangement.items[other]);
    }
  }
}

}  // namespace

std::uint64_t SplitMix64::next() {
  state_ += 0x9E3779B97F4A7C15u;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

SplitMix64 source_random(std::uint64_t seed) { return SplitMix64(2 * seed + 1); }
SplitMix64 target_random(std::uint64_t seed) { return SplitMix64(2 * seed + 2); }

std::vector<std::uint64_t> random_pages(const RandomPages& wanted, SplitMix64& random) {
  Arrangement arrangement;
  arrangement.runs = (wanted.count + wanted.run_length - 1) / wanted.run_length;
  const std::uint64_t unused = wanted.pool_pages - wanted.count;
  for (std::uint64_t item = 0; item < arrangement.runs + unused; ++item) arrangement.items.push_back(item);
  for (std::size_t i = arrangement.items.size(); i-- > 1;) std::swap(arrangement.items[i], arrangement.items[random.next() % (i + 1)]);
  separate(arrangement);

  std::vector<std::uint64_t> pages(wanted.count);
  std::uint64_t page = 0;
  for (const std::uint64_t item : arrangement.items) {
    if (item >= arrangement.runs) {
      ++page;
      continue;
    }
    const std::uint64_t begin = item * wanted.run_length;
    for (std::uint64_t i = begin; i < wanted.count && i < begin + wanted.run_length; ++i) pages[i] = page++;
  }
  return pages;
}

}  // namespace kvferry::transfer_check
