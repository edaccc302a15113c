/// From pools and pairs to plan entries.
#include <catch2/catch.hpp>

#include <vector>

#include "kvferry/plan.h"

using namespace kvferry;

namespace {

Entry page_entry(std::uint32_t layer, std::uint64_t address) {
  Entry entry;
  entry.layer = layer;
  entry.base_address = address;
  entry.pitch_bytes = 80;
  entry.item_length_bytes = 64;
  entry.index_count = 100;  // spans 99 * 80 + 64 = 7984 bytes
  return entry;
}

struct Two {
  Pool source, target;
  RegionMap source_regions, target_regions;
  std::vector<EntryPair> pairs = {{0, 1}, {1, 0}};

  Two() {
    source.entries = {page_entry(4, 0x10000), page_entry(5, 0x20000)};
    target.entries = {page_entry(5, 0x8000'0000'0001'0000), page_entry(4, 0x8000'0000'0002'0000)};
    REQUIRE(source_regions.add({1, 0x10000, 7984}));
    REQUIRE(source_regions.add({2, 0x1FF00, 0x10000}));
    REQUIRE(target_regions.add({9, 0x8000'0000'0000'0000, 0x40000}));
  }
  auto resolve() const { return resolve_entries(source, target, pairs, source_regions, target_regions); }
  void refuse(ErrorCode code, const std::vector<std::string>& words) const {
    const auto entries = resolve();
    REQUIRE_FALSE(entries);
    CHECK(entries.error().code == code);
    for (const std::string& word : words) CHECK_THAT(entries.error().text, Catch::Contains(word));
  }
};

}  // namespace

TEST_CASE("pairs become plan entries with their place in a region") {
  Two two;
  two.target.entries[0].pitch_bytes = 64;
  const auto entries = two.resolve();
  REQUIRE(entries);
  REQUIRE(entries->size() == 2);
  const PlanEntry& first = entries->at(0);
  CHECK(first.source_entry == 0);
  CHECK(first.target_entry == 1);
  CHECK(first.space == IndexSpace::pages);
  CHECK(first.item_length_bytes == 64);
  CHECK(first.source_pitch_bytes == 80);
  CHECK(first.source_index_count == 100);
  CHECK(first.source.region == 1);
  CHECK(first.source.offset == 0);
  CHECK(first.source.region_length == 7984);
  CHECK(first.target.region == 9);
  CHECK(first.target.offset == 0x20000);
  CHECK(first.target.region_length == 0x40000);
  CHECK(first.name == describe(two.source.entries[0]));
  const PlanEntry& second = entries->at(1);
  CHECK(second.target_pitch_bytes == 64);
  CHECK(second.source.region == 2);
  CHECK(second.source.offset == 0x100);
  CHECK(Plan::make(*entries, {}, {}));
}

TEST_CASE("no pairs are no entries") {
  Two two;
  two.pairs.clear();
  REQUIRE(two.resolve());
  CHECK(two.resolve()->empty());
}

TEST_CASE("an entry outside the registered regions is refused with its range and the nearest region") {
  Two two;
  two.source.entries[1].index_count = 1000;
  two.refuse(ErrorCode::out_of_range, {"source entry", describe(two.source.entries[1]), "79984 bytes at 0x20000", "nearest is region 2"});
  two = Two();
  two.source.entries[0].base_address += 1;
  two.refuse(ErrorCode::out_of_range, {"source entry", describe(two.source.entries[0]), "7984 bytes at 0x10001", "nearest is region 1"});
  two = Two();
  two.target.entries[0].base_address = 0x8000'0000'0004'0000 - 7983;
  two.refuse(ErrorCode::out_of_range, {"target entry", describe(two.target.entries[0]), "nearest is region 9"});
  two.target.entries[0].base_address -= 1;
  CHECK(two.resolve());
  two.target.entries[0].base_address = UINT64_MAX - 100;
  two.refuse(ErrorCode::out_of_range, {"target entry", "wraps past 2^64"});
  two = Two();
  two.source.entries[0].index_count = UINT64_MAX;
  two.refuse(ErrorCode::out_of_range, {describe(two.source.entries[0])});
}

TEST_CASE("entries that are no pair are refused with both values") {
  Two two;
  two.target.entries[1].item_length_bytes = 32;
  two.refuse(ErrorCode::mismatch, {describe(two.source.entries[0]), "item length", "64 bytes", "32 bytes"});
  two = Two();
  two.target.entries[1].space = IndexSpace::ring_rows;
  two.refuse(ErrorCode::mismatch, {"index space", "pages", "ring_rows"});
  two = Two();
  two.pairs.push_back({2, 0});
  two.refuse(ErrorCode::out_of_range, {"pair 2", "entries 2 and 0", "2 and 2 entries"});
  two.pairs.back() = {0, 2};
  two.refuse(ErrorCode::out_of_range, {"pair 2", "entries 0 and 2"});
}
