/// Regions by address.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvferry/plan.h"

using namespace kvferry;

namespace {

constexpr std::uint64_t kLast = UINT64_MAX;

/// The rule, said plainly: of all regions that hold the range the shortest, of those the one that begins last, of those the one added last.
const RegionMap::Region* slow_find(const std::vector<RegionMap::Region>& in_order_of_age, std::uint64_t address, std::uint64_t length) {
  const RegionMap::Region* best = nullptr;
  for (const RegionMap::Region& region : in_order_of_age) {
    const bool holds = address >= region.address && length <= region.length && address - region.address <= region.length - length;
    const auto rank = [](const RegionMap::Region& r) { return std::pair(r.length, ~r.address); };
    if (holds && (best == nullptr || rank(region) <= rank(*best))) best = &region;
  }
  return best;
}

bool slow_alone(const std::vector<RegionMap::Region>& all, const RegionMap::Region& region) {
  return std::none_of(all.begin(), all.end(), [&](const RegionMap::Region& other) {
    return other.id != region.id && other.address <= region.address + (region.length - 1) && region.address <= other.address + (other.length - 1);
  });
}

}  // namespace

TEST_CASE("a range is found in the region that holds all of it") {
  RegionMap map;
  REQUIRE(map.add({7, 0x1000, 0x1000}));
  const auto found = map.find(0x1800, 0x800);
  REQUIRE(found);
  CHECK(found->region == 7);
  CHECK(found->offset == 0x800);
  CHECK(found->region_length == 0x1000);
  CHECK(map.find(0x1000, 0x1000));
  CHECK(map.find(0x1FFF, 1));
  CHECK_FALSE(map.find(0x1000, 0x1001));
  CHECK_FALSE(map.find(0xFFF, 1));
  CHECK_FALSE(map.find(0x2000, 1));
  CHECK_FALSE(map.find(0x1FFF, 2));
}

TEST_CASE("of overlapping regions the smallest that holds the range wins, of equal ones the newest") {
  RegionMap map;
  REQUIRE(map.add({1, 0x1000, 0x1000}));
  REQUIRE(map.add({2, 0x1000, 0x2000}));
  REQUIRE(map.add({3, 0x1800, 0x400}));
  REQUIRE(map.add({4, 0x1000, 0x1000}));
  CHECK(map.find(0x1800, 16)->region == 3);
  CHECK(map.find(0x1000, 16)->region == 4);
  CHECK(map.find(0x17F0, 32)->region == 4);
  CHECK(map.find(0x1FF0, 32)->region == 2);
  std::vector<kvferry_region> order;
  for (const RegionMap::Region& region : map.regions()) order.push_back(region.id);
  CHECK(order == std::vector<kvferry_region>{2, 1, 4, 3});
  map.remove(4);
  CHECK(map.find(0x1000, 16)->region == 1);
  map.remove(1);
  CHECK(map.find(0x1000, 16)->region == 2);
  map.remove(3);
  CHECK(map.find(0x1800, 16)->region == 2);
  map.remove(99);
  CHECK(map.size() == 1);
  map.remove(2);
  CHECK(map.size() == 0);
  CHECK_FALSE(map.find(0x1000, 16));
}

TEST_CASE("a region that cannot be is refused, with its range") {
  RegionMap map;
  const auto check = [&](RegionMap::Region region, ErrorCode code, const std::string& word) {
    const auto added = map.add(region);
    REQUIRE_FALSE(added);
    CHECK(added.error().code == code);
    CHECK_THAT(added.error().text, Catch::Contains(word));
  };
  check({0, 0x1000, 64}, ErrorCode::invalid_argument, "region 0 is no region");
  check({1, 0x1000, 0}, ErrorCode::invalid_argument, "region 1 of 0 bytes at 0x1000: the length is zero");
  check({1, kLast - 62, 65}, ErrorCode::out_of_range, "65 bytes at 0xffffffffffffffc1: the range wraps past 2^64");
  check({1, 2, kLast}, ErrorCode::out_of_range, "wraps past 2^64");
  CHECK(map.size() == 0);
  REQUIRE(map.add({1, 0x1000, 64}));
  check({1, 0x2000, 64}, ErrorCode::exists, "already present as region 1 of 64 bytes at 0x1000");
  CHECK(map.size() == 1);
}

TEST_CASE("a region may end at the top of the address space") {
  RegionMap map;
  REQUIRE(map.add({1, kLast - 63, 64}));
  CHECK(map.find(kLast, 1)->offset == 63);
  CHECK(map.find(kLast - 63, 64)->offset == 0);
  const auto wrapped = map.find(kLast, 2);
  REQUIRE_FALSE(wrapped);
  CHECK_THAT(wrapped.error().text, Catch::Contains("wraps past 2^64"));
  REQUIRE(map.add({2, 0, kLast}));
  CHECK(map.find(kLast - 64, 1)->region == 2);
  CHECK(map.find(kLast - 63, 1)->region == 1);
  CHECK(map.find(kLast, 1)->region == 1);
}

TEST_CASE("what is not found names the range and the nearest region") {
  RegionMap map;
  CHECK_THAT(map.find(0x10, 4).error().text, Catch::Equals("find 4 bytes at 0x10: no region is registered"));
  REQUIRE(map.add({1, 0x1000, 0x1000}));
  REQUIRE(map.add({2, 0x4000, 0x1000}));
  const auto text = [&](std::uint64_t address, std::uint64_t length) { return map.find(address, length).error().text; };
  CHECK_THAT(text(0x1000, 0), Catch::Equals("find 0 bytes at 0x1000: the length is zero"));
  CHECK_THAT(text(0x2fff, 1), Catch::Equals("find 1 bytes at 0x2fff: not inside one region; nearest is region 1 of 4096 bytes at 0x1000"));
  CHECK_THAT(text(0x3001, 1), Catch::Contains("nearest is region 2"));
  CHECK_THAT(text(0x0, 16), Catch::Contains("nearest is region 1"));
  CHECK_THAT(text(kLast, 1), Catch::Contains("nearest is region 2"));
  CHECK_THAT(text(0x1FF0, 0x2100), Catch::Contains("nearest is region 2"));  // both touched, more of 2
  CHECK_THAT(text(0x1F00, 0x2110), Catch::Contains("nearest is region 1"));
}

TEST_CASE("finding agrees with looking at every region, through adding and removing") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    // Small numbers make regions nest, cross, repeat and touch; some rounds lie at the top of the address space.
    const std::uint64_t base = round % 3 == 0 ? kLast - 40 : (round % 3 == 1 ? 0 : 0x7FFF'FFFF'FFFF'FFF0);
    RegionMap map;
    std::vector<RegionMap::Region> all;
    kvferry_region next_id = 1;
    for (int step = 0; step < 40; ++step) {
      if (!all.empty() && random() % 4 == 0) {
        const auto victim = static_cast<std::ptrdiff_t>(random() % all.size());
        map.remove(all[static_cast<std::size_t>(victim)].id);
        all.erase(all.begin() + victim);
      } else {
        const std::uint64_t offset = random() % 40;
        const RegionMap::Region region{next_id++, base + offset, 1 + random() % (41 - offset)};
        if (!map.add(region)) FAIL("add failed");
        all.push_back(region);
      }
      for (std::uint64_t offset = 0; offset < 41; ++offset) {
        for (std::uint64_t length = 1; length <= 41 - offset; ++length) {
          const RegionMap::Region* expected = slow_find(all, base + offset, length);
          const RegionMap::Region* found = map.lookup(base + offset, length);
          if ((expected == nullptr) != (found == nullptr) || (found != nullptr && found->id != expected->id)) {
            FAIL("range " << offset << "+" << length << " of " << all.size() << " regions: found " << (found ? found->id : 0) << ", expected "
                          << (expected ? expected->id : 0));
          }
        }
      }
      for (const RegionMap::Region& region : map.regions()) {
        if (map.stands_alone(region) != slow_alone(all, region)) FAIL("region at " << region.address - base << "+" << region.length << " alone or not");
      }
    }
  }
}
