/// Plans of raw lists: absolute addresses, as a drop-in transfer engine gets them.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "kvferry/plan.h"
#include "plan_text.h"

using namespace kvferry;
using kvferry::test::texts;

namespace {

constexpr std::uint32_t kRead = KVFERRY_OP_READ;
constexpr std::uint64_t kTop = 0xFFFF'8000'0000'0000;  // a device address with the top bit set

/// Source: region 1 at 0x1000, region 2 right behind it, region 3 far up. Target: regions 11 and 12 side by side, 13 far up.
RegionMap sources() {
  RegionMap map;
  REQUIRE(map.add({1, 0x1000, 0x1000}));
  REQUIRE(map.add({2, 0x2000, 0x1000}));
  REQUIRE(map.add({3, kTop, 1ull << 46}));
  return map;
}
RegionMap targets() {
  RegionMap map;
  REQUIRE(map.add({11, 0x10000, 0x1000}));
  REQUIRE(map.add({12, 0x11000, 0x1000}));
  REQUIRE(map.add({13, 0x8000'0000'0000'1000, 1ull << 40}));
  return map;
}

void check(const char* reason, const std::vector<RawWrite>& list, PlanLimits limits, const std::vector<std::string>& expected) {
  INFO(reason);
  const auto plan = Plan::make_raw(list, sources(), targets(), limits);
  if (!plan) FAIL(plan.error().text);
  CHECK(texts(**plan) == expected);
  CHECK(texts(**plan, 1) == expected);
  CHECK((*plan)->counts().writes == expected.size());
  CHECK((*plan)->counts().writes_before_merge == list.size());
  CHECK((*plan)->counts().entries == 0);
}

void refuse(const char* reason, const std::vector<RawWrite>& list, ErrorCode code, const std::vector<std::string>& words) {
  INFO(reason);
  const auto plan = Plan::make_raw(list, sources(), targets(), {});
  REQUIRE_FALSE(plan);
  CHECK(plan.error().code == code);
  for (const std::string& word : words) CHECK_THAT(plan.error().text, Catch::Contains(word));
}

}  // namespace

TEST_CASE("raw items become writes with region offsets") {
  check("empty", {}, {}, {});
  check("one", {{0x1010, 0x10020, 64}}, {}, {"11:32+64 = 1:16+64"});
  check("the whole of both regions", {{0x1000, 0x10000, 0x1000}}, {}, {"11:0+4096 = 1:0+4096"});
  check("the last byte of both regions", {{0x1FFF, 0x10FFF, 1}}, {}, {"11:4095+1 = 1:4095+1"});
  check("addresses with the top bit set", {{kTop + 4'587'520'000, 0x8000'0000'0000'1000 + 4'587'552'768, 65'536}}, {},
        {"13:4587552768+65536 = 3:4587520000+65536"});
}

TEST_CASE("raw items that touch on both sides are merged, in the order given") {
  check("three in a row", {{0x1000, 0x10000, 64}, {0x1040, 0x10040, 32}, {0x1060, 0x10060, 8}}, {}, {"11:0+104 = 1:0+104"});
  check("out of order they are not neighbours", {{0x1040, 0x10040, 64}, {0x1000, 0x10000, 64}}, {}, {"11:64+64 = 1:64+64", "11:0+64 = 1:0+64"});
  check("source gap of one byte", {{0x1000, 0x10000, 64}, {0x1041, 0x10040, 64}}, {}, {"11:0+64 = 1:0+64", "11:64+64 = 1:65+64"});
  check("source gap: gathered where allowed", {{0x1000, 0x10000, 64}, {0x1041, 0x10040, 64}}, {1 << 20, 2}, {"11:0+128 = 1:0+64 1:65+64"});
  check("target gap of one byte", {{0x1000, 0x10000, 64}, {0x1040, 0x10041, 64}}, {1 << 20, 2}, {"11:0+64 = 1:0+64", "11:65+64 = 1:64+64"});
  check("addresses touch, target regions do not", {{0x1000, 0x10FC0, 64}, {0x1040, 0x11000, 64}}, {1 << 20, 2}, {"11:4032+64 = 1:0+64", "12:0+64 = 1:64+64"});
  check("addresses touch, source regions do not: two pieces", {{0x1FC0, 0x10000, 64}, {0x2000, 0x10040, 64}}, {1 << 20, 2}, {"11:0+128 = 1:4032+64 2:0+64"});
  check("offsets touch, source regions differ", {{0x1000, 0x10000, 64}, {0x2040, 0x10040, 64}}, {1 << 20, 2}, {"11:0+128 = 1:0+64 2:64+64"});
  check("offsets touch, target regions differ", {{0x1000, 0x10000, 64}, {0x1040, 0x11040, 64}}, {1 << 20, 2}, {"11:0+64 = 1:0+64", "12:64+64 = 1:64+64"});
  check("split at the message limit", {{0x1000, 0x10000, 64}, {0x1040, 0x10040, 64}}, {100, 1}, {"11:0+100 = 1:0+100", "11:100+28 = 1:100+28"});
}

TEST_CASE("reads stay reads and are not merged with writes") {
  check("one read", {{0x1000, 0x10000, 64, kRead}}, {}, {"11:0+64 > 1:0+64"});
  check("two reads in a row", {{0x1000, 0x10000, 64, kRead}, {0x1040, 0x10040, 64, kRead}}, {}, {"11:0+128 > 1:0+128"});
  check("a read scattered into two pieces", {{0x1000, 0x10000, 64, kRead}, {0x1100, 0x10040, 64, kRead}}, {1 << 20, 2}, {"11:0+128 > 1:0+64 1:256+64"});
  check("a write and a read that touch", {{0x1000, 0x10000, 64}, {0x1040, 0x10040, 64, kRead}, {0x1080, 0x10080, 64}}, {1 << 20, 4},
        {"11:0+64 = 1:0+64", "11:64+64 > 1:64+64", "11:128+64 = 1:128+64"});
  check("a gather ends before a read", {{0x1000, 0x10000, 64}, {0x1100, 0x10040, 64}, {0x1140, 0x10080, 64, kRead}}, {1 << 20, 4},
        {"11:0+128 = 1:0+64 1:256+64", "11:128+64 > 1:320+64"});
}

TEST_CASE("a raw list with one bad item is refused as a whole, by number") {
  const RawWrite good{0x1000, 0x10000, 64};
  refuse("length 0", {good, {0x1100, 0x10100, 0}}, ErrorCode::invalid_argument, {"raw item 1", "0x1100", "0x10100", "length is 0"});
  refuse("unknown operation", {good, {0x1100, 0x10100, 64, 2}}, ErrorCode::invalid_argument, {"raw item 1", "operation 2"});
  refuse("source nowhere", {good, good, {0x5000, 0x10100, 64}}, ErrorCode::out_of_range,
         {"raw item 2", "write of 64 bytes", "source 0x5000", "target 0x10100", "nearest is region 2 of 4096 bytes at 0x2000"});
  refuse("source one byte past its region", {{0x1FC1, 0x10000, 64}}, ErrorCode::out_of_range, {"raw item 0", "source", "0x1fc1", "nearest is region 1"});
  refuse("target one byte past its region", {{0x1000, 0x11FC1, 64}}, ErrorCode::out_of_range, {"raw item 0", "target", "64 bytes at 0x11fc1", "nearest is region 12"});
  refuse("target across two regions side by side", {{0x1000, 0x10FC1, 64}}, ErrorCode::out_of_range, {"target", "nearest is region 11"});
  refuse("one byte before its region", {{0xFFF, 0x10000, 64}}, ErrorCode::out_of_range, {"source", "nearest is region 1"});
  refuse("source wraps", {{UINT64_MAX - 3, 0x10000, 8}}, ErrorCode::out_of_range, {"source", "wraps past 2^64"});
  refuse("length as large as can be", {{0x1000, 0x10000, UINT64_MAX, kRead}}, ErrorCode::out_of_range, {"read of 18446744073709551615 bytes"});
  refuse("a good item after it does not help", {{0x5000, 0x10100, 64}, good}, ErrorCode::out_of_range, {"raw item 0"});
  const auto zero = Plan::make_raw({}, sources(), targets(), {0, 1});
  REQUIRE_FALSE(zero);
  CHECK_THAT(zero.error().text, Catch::Equals("plan: message_bytes_max is 0"));
}

TEST_CASE("a raw list whose result would depend on the order is refused") {
  check("the same bytes twice", {{0x1000, 0x10000, 64}, {0x1000, 0x10000, 64}}, {}, {"11:0+64 = 1:0+64", "11:0+64 = 1:0+64"});
  check("overlapping, the same bytes in the overlap", {{0x1000, 0x10000, 64}, {0x1020, 0x10020, 64}}, {}, {"11:0+64 = 1:0+64", "11:32+64 = 1:32+64"});
  check("one source to two targets", {{0x1000, 0x10000, 64}, {0x1000, 0x10100, 64}}, {}, {"11:0+64 = 1:0+64", "11:256+64 = 1:0+64"});
  refuse("two sources to one target", {{0x1000, 0x10000, 64}, {0x1040, 0x10000, 64}}, ErrorCode::invalid_argument,
         {"raw item 0 (write, 64 bytes at 0x10000)", "raw item 1 (write, 64 bytes at 0x10000)", "target memory"});
  refuse("one byte", {{0x1000, 0x1003F, 64}, {0x1040, 0x10200, 8}, {0x1080, 0x10000, 64}}, ErrorCode::invalid_argument, {"raw item 0", "raw item 2", "target memory"});
  refuse("hidden behind a long item that agrees", {{0x1000, 0x10000, 512}, {0x1010, 0x10010, 16}, {0x1000, 0x10020, 16}}, ErrorCode::invalid_argument,
         {"raw item 0", "raw item 2"});
  check("reads of one target to two sources", {{0x1000, 0x10000, 64, kRead}, {0x1100, 0x10000, 64, kRead}}, {}, {"11:0+64 > 1:0+64", "11:0+64 > 1:256+64"});
  refuse("two reads into one source", {{0x1000, 0x10000, 64, kRead}, {0x1020, 0x10100, 64, kRead}}, ErrorCode::invalid_argument, {"raw item 0", "raw item 1", "source memory"});
  refuse("a read of what a write changes", {{0x1000, 0x10000, 64}, {0x1100, 0x10020, 64, kRead}}, ErrorCode::invalid_argument, {"target memory"});
  refuse("a write of what a read changes", {{0x1000, 0x10000, 64, kRead}, {0x103F, 0x10100, 64}}, ErrorCode::invalid_argument, {"source memory"});
}

TEST_CASE("a raw item takes the smallest region that holds it, whatever came before") {
  RegionMap source, target;
  REQUIRE(source.add({1, 0x1000, 0x4000}));
  REQUIRE(source.add({2, 0x2000, 0x1000}));
  REQUIRE(target.add({11, 0x10000, 0x10000}));
  const auto plan = Plan::make_raw(std::vector<RawWrite>{{0x1FC0, 0x10000, 64}, {0x2000, 0x10040, 64}, {0x3000, 0x10080, 64}, {0x2FC0, 0x100C0, 128}},
                                   source, target, {1 << 20, 8});
  REQUIRE(plan);
  CHECK(texts(**plan) == std::vector<std::string>{"11:0+320 = 1:4032+64 2:0+64 1:8192+64 1:8128+128"});
}
