/// Sorting by an unsigned 64-bit key in time linear in the number of items.
///
/// The keys come from other processes (target index lists) and may be anything; neither their values nor their order may make a plan slow. Least
/// significant digit first, and bits that are the same in all keys are skipped, so a million page indices or the addresses of a million pages take two
/// passes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvferry::plan_detail {

/// `key(item)` gives the 64-bit key.
template <class Item, class Key>
void radix_sort(std::vector<Item>& items, Key key) {
  constexpr std::size_t kDigits = 2048;
  constexpr std::size_t kSmall = 256;  // below it the histograms cost more than comparing
  if (items.size() < kSmall) {
    std::sort(items.begin(), items.end(), [&](const Item& a, const Item& b) { return key(a) < key(b); });
    return;
  }
  std::uint64_t differing = 0;
  for (const Item& item : items) differing |= key(item) ^ key(items.front());

  std::vector<Item> other(items.size());
  while (differing != 0) {
    const int shift = std::countr_zero(differing);
    const auto digit = [&](const Item& item) { return static_cast<std::size_t>(key(item) >> shift) & (kDigits - 1); };
    std::array<std::size_t, kDigits> place{};
    for (const Item& item : items) ++place[digit(item)];
    std::size_t before = 0;
    for (std::size_t& slot : place) {
      const std::size_t count = slot;
      slot = before;
      before += count;
    }
    for (const Item& item : items) other[place[digit(item)]++] = item;
    items.swap(other);
    differing &= ~(std::uint64_t{kDigits - 1} << shift);
  }
}

}  // namespace kvferry::plan_detail
