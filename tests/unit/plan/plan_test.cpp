/// Plans of entries and index lists: what comes out, and what is refused with which words.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "kvferry/plan.h"
#include "plan_text.h"

using namespace kvferry;
using kvferry::test::page_lists;
using kvferry::test::texts;

namespace {

constexpr std::uint64_t kMax = UINT64_MAX;

/// An entry of `count` pages of `item` bytes that touch, region 1 to region 2, both of 2^40 bytes.
PlanEntry packed(std::uint64_t item, std::uint64_t source_offset, std::uint64_t target_offset, std::uint64_t count = 1000) {
  PlanEntry entry;
  entry.item_length_bytes = entry.source_pitch_bytes = entry.target_pitch_bytes = item;
  entry.source_index_count = entry.target_index_count = count;
  entry.source = {1, source_offset, 1ull << 40};
  entry.target = {2, target_offset, 1ull << 40};
  entry.name = "kv k layer 0";
  return entry;
}

PlanEntry pitched(std::uint64_t item, std::uint64_t source_pitch, std::uint64_t target_pitch) {
  PlanEntry entry = packed(item, 0, 0);
  entry.source_pitch_bytes = source_pitch;
  entry.target_pitch_bytes = target_pitch;
  return entry;
}

struct Planned {
  const char* reason;
  std::vector<PlanEntry> entries;
  IndexListsBySpace lists;
  PlanLimits limits;
  std::vector<std::string> expected;
};

void check(const Planned& planned) {
  INFO(planned.reason);
  const auto plan = Plan::make(planned.entries, planned.lists, planned.limits);
  if (!plan) FAIL(plan.error().text);
  CHECK(texts(**plan) == planned.expected);
  CHECK(texts(**plan, 1) == planned.expected);
  CHECK((*plan)->counts().writes == planned.expected.size());
}

struct Refused {
  const char* reason;
  std::vector<PlanEntry> entries;
  IndexListsBySpace lists;
  PlanLimits limits;
  ErrorCode code;
  std::vector<std::string> words;
};

void check(const Refused& refused) {
  INFO(refused.reason);
  const auto plan = Plan::make(refused.entries, refused.lists, refused.limits);
  REQUIRE_FALSE(plan);
  CHECK(plan.error().code == refused.code);
  for (const std::string& word : refused.words) CHECK_THAT(plan.error().text, Catch::Contains(word));
}

}  // namespace

TEST_CASE("pages that step by one on both sides become one write, entry by entry") {
  check(Planned{"three pages in a row, two entries", {packed(64, 0, 0), packed(64, 100'000, 200'000)}, page_lists({4, 5, 6}, {10, 11, 12}), {},
                {"2:640+192 = 1:256+192", "2:200640+192 = 1:100256+192"}});
  check(Planned{"the source jumps", {packed(64, 0, 0)}, page_lists({4, 5, 9}, {10, 11, 12}), {}, {"2:640+128 = 1:256+128", "2:768+64 = 1:576+64"}});
  check(Planned{"the target jumps", {packed(64, 0, 0)}, page_lists({4, 5, 6}, {10, 12, 13}), {}, {"2:640+64 = 1:256+64", "2:768+128 = 1:320+128"}});
  check(Planned{"both jump, entries of different item lengths",
                {packed(4096, 0, 0), packed(2048, 1 << 30, 1 << 30)}, page_lists({1, 2, 3}, {7, 8, 1}), {},
                {"2:28672+8192 = 1:4096+8192", "2:4096+4096 = 1:12288+4096", "2:1073756160+4096 = 1:1073743872+4096", "2:1073743872+2048 = 1:1073747968+2048"}});
  check(Planned{"descending pages are not neighbours", {packed(64, 0, 0)}, page_lists({2, 1, 0}, {2, 1, 0}), {},
                {"2:128+64 = 1:128+64", "2:64+64 = 1:64+64", "2:0+64 = 1:0+64"}});
  check(Planned{"one source page may go to two targets", {packed(64, 0, 0)}, page_lists({5, 5, 6}, {1, 2, 3}), {},
                {"2:64+64 = 1:320+64", "2:128+128 = 1:320+128"}});
  check(Planned{"page 0", {packed(64, 0, 0)}, page_lists({0}, {0}), {}, {"2:0+64 = 1:0+64"}});
  check(Planned{"the last page", {packed(64, 0, 0)}, page_lists({999}, {999}), {}, {"2:63936+64 = 1:63936+64"}});
  check(Planned{"one-byte items", {packed(1, 0, 0)}, page_lists({3, 4}, {8, 9}), {}, {"2:8+2 = 1:3+2"}});
}

TEST_CASE("nothing to do is a plan without writes") {
  check(Planned{"no lists", {packed(64, 0, 0)}, {}, {}, {}});
  check(Planned{"no entries", {}, page_lists({1}, {2}), {}, {}});
  check(Planned{"neither", {}, {}, {}, {}});
  PlanEntry state = packed(64, 0, 0);
  state.space = IndexSpace::request_slots;
  state.source_index_count = state.target_index_count = 0;
  check(Planned{"an empty entry of a space without lists beside one with work", {state, packed(64, 0, 0)}, page_lists({1}, {2}), {}, {"2:128+64 = 1:64+64"}});
}

TEST_CASE("every entry takes the lists of its own space") {
  PlanEntry window = packed(32, 50'000, 60'000);
  window.space = IndexSpace::window_pages;
  IndexListsBySpace lists = page_lists({1, 2}, {4, 5});
  lists[static_cast<std::size_t>(IndexSpace::window_pages)] = {{9}, {0}};
  check(Planned{"pages and window pages", {packed(64, 0, 0), window, packed(64, 100'000, 200'000)}, lists, {},
                {"2:256+128 = 1:64+128", "2:60000+32 = 1:50288+32", "2:200256+128 = 1:100064+128"}});
}

TEST_CASE("pages with padding between them move one by one and the padding stays") {
  const auto lists = page_lists({4, 5, 6}, {10, 11, 12});
  check(Planned{"both padded", {pitched(64, 80, 72)}, lists, {}, {"2:720+64 = 1:320+64", "2:792+64 = 1:400+64", "2:864+64 = 1:480+64"}});
  check(Planned{"only the target padded", {pitched(64, 64, 72)}, lists, {}, {"2:720+64 = 1:256+64", "2:792+64 = 1:320+64", "2:864+64 = 1:384+64"}});
  check(Planned{"only the source padded, no gather", {pitched(64, 80, 64)}, lists, {}, {"2:640+64 = 1:320+64", "2:704+64 = 1:400+64", "2:768+64 = 1:480+64"}});
  check(Planned{"only the source padded: gathered", {pitched(64, 80, 64)}, lists, {1 << 20, 2},
                {"2:640+128 = 1:320+64 1:400+64", "2:768+64 = 1:480+64"}});
  check(Planned{"both padded: the target does not touch, nothing to gather", {pitched(64, 80, 72)}, lists, {1 << 20, 8},
                {"2:720+64 = 1:320+64", "2:792+64 = 1:400+64", "2:864+64 = 1:480+64"}});
  check(Planned{"one byte of padding", {pitched(64, 65, 65)}, page_lists({0, 1}, {0, 1}), {}, {"2:0+64 = 1:0+64", "2:65+64 = 1:65+64"}});
}

TEST_CASE("scattered source pages with one contiguous target are gathered") {
  const auto lists = page_lists({9, 3, 4, 7, 1}, {20, 21, 22, 23, 24});
  check(Planned{"no gather", {packed(64, 0, 0)}, lists, {1 << 20, 1},
                {"2:1280+64 = 1:576+64", "2:1344+128 = 1:192+128", "2:1472+64 = 1:448+64", "2:1536+64 = 1:64+64"}});
  check(Planned{"two pieces", {packed(64, 0, 0)}, lists, {1 << 20, 2}, {"2:1280+192 = 1:576+64 1:192+128", "2:1472+128 = 1:448+64 1:64+64"}});
  check(Planned{"one piece fewer than there are", {packed(64, 0, 0)}, lists, {1 << 20, 3}, {"2:1280+256 = 1:576+64 1:192+128 1:448+64", "2:1536+64 = 1:64+64"}});
  check(Planned{"as many as there are", {packed(64, 0, 0)}, lists, {1 << 20, 4}, {"2:1280+320 = 1:576+64 1:192+128 1:448+64 1:64+64"}});
  check(Planned{"more than there are", {packed(64, 0, 0)}, lists, {1 << 20, 5}, {"2:1280+320 = 1:576+64 1:192+128 1:448+64 1:64+64"}});
  check(Planned{"a scattered target is not gathered", {packed(64, 0, 0)}, page_lists({9, 3}, {20, 22}), {1 << 20, 4}, {"2:1280+64 = 1:576+64", "2:1408+64 = 1:192+64"}});
  check(Planned{"the message limit ends a gather in mid-page", {packed(64, 0, 0)}, lists, {100, 4},
                {"2:1280+100 = 1:576+64 1:192+36", "2:1380+100 = 1:228+92 1:448+8", "2:1480+100 = 1:456+56 1:64+44", "2:1580+20 = 1:108+20"}});
}

TEST_CASE("neighbours across entries are merged where both sides touch") {
  // Two entries of four pages each, side by side in both regions: the last page of the first touches the first page of the second.
  const std::vector<PlanEntry> entries = {packed(64, 0, 0, 4), packed(64, 256, 256, 4)};
  check(Planned{"whole entries: one write", entries, page_lists({0, 1, 2, 3}, {0, 1, 2, 3}), {}, {"2:0+512 = 1:0+512"}});
  check(Planned{"last page of one, first page of the next", entries, page_lists({0, 3}, {0, 3}), {}, {"2:0+64 = 1:0+64", "2:192+128 = 1:192+128", "2:448+64 = 1:448+64"}});
  check(Planned{"only the target touches: gathered", {packed(64, 0, 0, 4), packed(64, 1000, 256, 4)}, page_lists({0, 1, 2, 3}, {0, 1, 2, 3}), {1 << 20, 2},
                {"2:0+512 = 1:0+256 1:1000+256"}});
  check(Planned{"only the target touches, no gather", {packed(64, 0, 0, 4), packed(64, 1000, 256, 4)}, page_lists({0, 1, 2, 3}, {0, 1, 2, 3}), {},
                {"2:0+256 = 1:0+256", "2:256+256 = 1:1000+256"}});
  check(Planned{"only the source touches", {packed(64, 0, 0, 4), packed(64, 256, 1000, 4)}, page_lists({0, 1, 2, 3}, {0, 1, 2, 3}), {1 << 20, 2},
                {"2:0+256 = 1:0+256", "2:1000+256 = 1:256+256"}});
  PlanEntry elsewhere = packed(64, 256, 256, 4);
  elsewhere.target.region = 3;
  check(Planned{"equal offsets of another region do not touch", {packed(64, 0, 0, 4), elsewhere}, page_lists({0, 1, 2, 3}, {0, 1, 2, 3}), {1 << 20, 2},
                {"2:0+256 = 1:0+256", "3:256+256 = 1:256+256"}});
  PlanEntry other_source = packed(64, 256, 256, 4);
  other_source.source.region = 3;
  check(Planned{"a source in another region is a piece of its own", {packed(64, 0, 0, 4), other_source}, page_lists({0, 1, 2, 3}, {0, 1, 2, 3}), {1 << 20, 2},
                {"2:0+512 = 1:0+256 3:256+256"}});
  check(Planned{"an entry without work between them does not matter", {packed(64, 0, 0, 4), [] {
                  PlanEntry idle = packed(64, 0, 0, 4);
                  idle.space = IndexSpace::ring_rows;
                  return idle;
                }(), packed(64, 256, 256, 4)},
                page_lists({0, 1, 2, 3}, {0, 1, 2, 3}), {}, {"2:0+512 = 1:0+512"}});
  check(Planned{"a gather goes on over the border", {packed(64, 0, 0, 2), packed(64, 1000, 128, 2)}, page_lists({1, 0}, {0, 1}), {1 << 20, 3},
                {"2:0+192 = 1:64+64 1:0+64 1:1064+64", "2:192+64 = 1:1000+64"}});
}

TEST_CASE("writes are split at the message limit") {
  const auto run = page_lists({0, 1, 2}, {0, 1, 2});
  check(Planned{"exactly the limit", {packed(64, 0, 0)}, run, {192, 1}, {"2:0+192 = 1:0+192"}});
  check(Planned{"one byte more than the limit", {packed(64, 0, 0)}, run, {191, 1}, {"2:0+191 = 1:0+191", "2:191+1 = 1:191+1"}});
  check(Planned{"one byte less than the limit", {packed(64, 0, 0)}, run, {193, 1}, {"2:0+192 = 1:0+192"}});
  check(Planned{"twice the limit", {packed(64, 0, 0)}, run, {96, 1}, {"2:0+96 = 1:0+96", "2:96+96 = 1:96+96"}});
  check(Planned{"limit of one byte", {packed(2, 0, 0)}, page_lists({1}, {0}), {1, 1}, {"2:0+1 = 1:2+1", "2:1+1 = 1:3+1"}});
  check(Planned{"3 MiB and one byte with a limit of 1 MiB", {packed((3 << 20) + 1, 0, 0)}, page_lists({0}, {0}), {1 << 20, 1},
                {"2:0+1048576 = 1:0+1048576", "2:1048576+1048576 = 1:1048576+1048576", "2:2097152+1048576 = 1:2097152+1048576", "2:3145728+1 = 1:3145728+1"}});
  check(Planned{"a length of 2^32 does not fit 32 bits and stays whole", {packed(1ull << 32, 0, 0, 2)}, page_lists({0}, {1}), {1ull << 33, 1},
                {"2:4294967296+4294967296 = 1:0+4294967296"}});
  check(Planned{"a length of 2^32 - 1", {packed((1ull << 32) - 1, 0, 0, 2)}, page_lists({0}, {1}), {1ull << 33, 1}, {"2:4294967295+4294967295 = 1:0+4294967295"}});
  check(Planned{"padded pages longer than a message", {pitched(64, 80, 80)}, page_lists({0, 1}, {1, 2}), {40, 2},
                {"2:80+40 = 1:0+40", "2:120+24 = 1:40+24", "2:160+40 = 1:80+40", "2:200+24 = 1:120+24"}});
  check(Planned{"after a split the rest goes on into the next entry", {packed(64, 0, 0, 2), packed(64, 128, 128, 2)}, page_lists({0, 1}, {0, 1}), {100, 1},
                {"2:0+100 = 1:0+100", "2:100+100 = 1:100+100", "2:200+56 = 1:200+56"}});
}

TEST_CASE("offsets are exact in 64 bits") {
  PlanEntry top = packed(65'536, 0xFFFF'8000'0000'0000, 0x8000'0000'0000'1000, 70'001);
  top.source.region_length = top.target.region_length = kMax;
  check(Planned{"bases with the top bit set, page 70000", {top}, page_lists({0, 1, 70'000}, {70'000, 5, 6}), {},
                {"2:9223372041442299904+65536 = 1:18446603336221196288+65536", "2:9223372036855107584+65536 = 1:18446603336221261824+65536",
                 "2:9223372036855173120+65536 = 1:18446603340808716288+65536"}});
  PlanEntry end = packed(4, kMax - 40, kMax - 40, 10);
  end.source.region_length = end.target.region_length = kMax;
  check(Planned{"the last bytes that 64 bits can name", {end}, page_lists({9}, {9}), {}, {"2:18446744073709551611+4 = 1:18446744073709551611+4"}});
}

TEST_CASE("index lists that do not fit are refused by name") {
  const std::vector<PlanEntry> one = {packed(64, 0, 0, 100)};
  check(Refused{"one source, five targets", one, page_lists({0}, {1, 2, 3, 4, 5}), {}, ErrorCode::mismatch, {"pages", "1 source", "5 target"}});
  check(Refused{"no source", one, page_lists({}, {1, 2}), {}, ErrorCode::mismatch, {"pages", "0 source", "2 target"}});
  check(Refused{"no target", one, page_lists({1, 2}, {}), {}, ErrorCode::mismatch, {"pages", "2 source", "0 target"}});
  IndexListsBySpace slots;
  slots[static_cast<std::size_t>(IndexSpace::request_slots)] = {{1, 2}, {1}};
  check(Refused{"a space without entries", one, slots, {}, ErrorCode::mismatch, {"request_slots", "2 source", "1 target"}});
  check(Refused{"source index one past the end", one, page_lists({4, 100, 6}, {1, 2, 3}), {}, ErrorCode::out_of_range,
                {"kv k layer 0", "source", "index 100", "position 1", "pages", "100 indices"}});
  check(Refused{"target index one past the end", one, page_lists({1, 2, 3}, {4, 5, 100}), {}, ErrorCode::out_of_range,
                {"target", "index 100", "position 2", "100 indices"}});
  check(Refused{"page -1 as an unsigned number", one, page_lists({4, kMax, 6}, {1, 2, 3}), {}, ErrorCode::out_of_range,
                {"source", "index 18446744073709551615", "position 1"}});
  check(Refused{"only page -1", one, page_lists({1}, {kMax}), {}, ErrorCode::out_of_range, {"target", "18446744073709551615", "position 0"}});
  check(Refused{"2^31, a 32-bit sign bit", one, page_lists({2147483648}, {0}), {}, ErrorCode::out_of_range, {"2147483648", "position 0"}});
  check(Refused{"a target page twice", one, page_lists({1, 2, 3, 4}, {7, 9, 8, 9}), {}, ErrorCode::invalid_argument,
                {"pages", "index 9", "positions 1 and 3"}});
  check(Refused{"a target page twice in a row", one, page_lists({1, 2}, {9, 9}), {}, ErrorCode::invalid_argument, {"index 9", "positions 0 and 1"}});
  PlanEntry smaller = packed(64, 1 << 20, 1 << 20, 50);
  smaller.name = "kv v layer 3";
  check(Refused{"the second entry is smaller", {packed(64, 0, 0, 100), smaller}, page_lists({50}, {0}), {}, ErrorCode::out_of_range,
                {"kv v layer 3", "source", "index 50", "50 indices"}});
  PlanEntry empty = packed(64, 0, 0, 0);
  check(Refused{"an entry of no indices", {empty}, page_lists({0}, {0}), {}, ErrorCode::out_of_range, {"index 0", "0 indices"}});
}

TEST_CASE("entries that cannot be are refused by name") {
  const auto lists = page_lists({0}, {0});
  const auto refuse = [&](const char* reason, auto change, ErrorCode code, std::vector<std::string> words) {
    PlanEntry entry = packed(64, 0, 0, 100);
    change(entry);
    words.push_back("kv k layer 0");
    check(Refused{reason, {entry}, lists, {}, code, words});
    check(Refused{reason, {entry}, {}, {}, code, words});  // without work too
  };
  refuse("item length 0", [](PlanEntry& e) { e.item_length_bytes = 0; }, ErrorCode::invalid_argument, {"item length is 0"});
  refuse("source pitch one byte short", [](PlanEntry& e) { e.source_pitch_bytes = 63; }, ErrorCode::invalid_argument, {"source pitch", "63", "64"});
  refuse("target pitch one byte short", [](PlanEntry& e) { e.target_pitch_bytes = 63; }, ErrorCode::invalid_argument, {"target pitch", "63", "64"});
  refuse("source region 0", [](PlanEntry& e) { e.source.region = 0; }, ErrorCode::invalid_argument, {"source region is 0"});
  refuse("target region 0", [](PlanEntry& e) { e.target.region = 0; }, ErrorCode::invalid_argument, {"target region is 0"});
  refuse("source region one byte short", [](PlanEntry& e) { e.source.region_length = 6399; }, ErrorCode::out_of_range, {"source", "6400 bytes", "region 1", "6399"});
  refuse("target region one byte short", [](PlanEntry& e) { e.target.region_length = 6399; }, ErrorCode::out_of_range, {"target", "6400 bytes", "region 2", "6399"});
  refuse("target offset one byte too far", [](PlanEntry& e) { e.target = {2, 4, 6403}; }, ErrorCode::out_of_range, {"offset 4", "6403"});
  refuse("pitch times indices passes 2^64", [](PlanEntry& e) { e.source_index_count = kMax; }, ErrorCode::out_of_range, {"source", "2^64"});
  refuse("the last item passes 2^64", [](PlanEntry& e) { e.target_pitch_bytes = 1ull << 63, e.target_index_count = 2, e.target.offset = kMax - 60; },
         ErrorCode::out_of_range, {"target", "2^64"});
  refuse("offset and span pass 2^64", [](PlanEntry& e) { e.source = {1, kMax - 6398, kMax}; }, ErrorCode::out_of_range, {"source", "2^64"});
  refuse("an index space that is none", [](PlanEntry& e) { e.space = static_cast<IndexSpace>(kIndexSpacesCount); }, ErrorCode::invalid_argument, {"index space 5"});

  PlanEntry fits = packed(64, 0, 0, 100);
  fits.source = {1, 3, 6403};
  fits.target = {2, 4, 6404};
  check(Planned{"regions that end with the entry", {fits}, page_lists({99}, {99}), {}, {"2:6340+64 = 1:6339+64"}});

  PlanEntry half = packed(1ull << 63, 0, 0, 1), other_half = half;
  half.source.region_length = half.target.region_length = other_half.source.region_length = other_half.target.region_length = kMax;
  other_half.target.region = 3;
  other_half.name = "kv v layer 0";
  check(Refused{"bytes of all entries together pass 2^64", {half, other_half}, lists, {}, ErrorCode::out_of_range, {"kv v layer 0", "2^64"}});
}

TEST_CASE("limits of zero are refused") {
  check(Refused{"message", {packed(64, 0, 0)}, {}, {0, 1}, ErrorCode::invalid_argument, {"message_bytes_max is 0"}});
  check(Refused{"pieces", {packed(64, 0, 0)}, {}, {1, 0}, ErrorCode::invalid_argument, {"pieces_per_write_max is 0"}});
  check(Planned{"the greatest limits", {packed(64, 0, 0)}, page_lists({1}, {2}), {kMax, 1}, {"2:128+64 = 1:64+64"}});
}

TEST_CASE("two entries that would write the same target bytes are refused") {
  const auto lists = page_lists({0, 1, 2}, {5, 6, 8});
  PlanEntry first = packed(64, 0, 0, 100), second = packed(64, 10'000, 0, 100);
  second.name = "kv v layer 0";
  check(Refused{"the same place", {first, second}, lists, {}, ErrorCode::invalid_argument, {"kv k layer 0 index 5", "kv v layer 0 index 5", "64 bytes", "offset 320", "region 2"}});
  second.target.offset = 63;
  check(Refused{"one byte", {first, second}, lists, {}, ErrorCode::invalid_argument, {"kv k layer 0 index 5", "kv v layer 0 index 5", "1 bytes", "offset 383"}});
  second.target.offset = 128;
  check(Refused{"index 6 of one is index 8 of the other", {first, second}, lists, {}, ErrorCode::invalid_argument, {"kv k layer 0 index 8", "kv v layer 0 index 6"}});
  second.target.offset = 64;
  second.space = IndexSpace::window_pages;
  IndexListsBySpace both = lists;
  both[static_cast<std::size_t>(IndexSpace::window_pages)] = {{0}, {6}};
  check(Planned{"memory shared by two spaces, pages kept apart", {first, second}, both, {}, {"2:320+128 = 1:0+128", "2:512+64 = 1:128+64", "2:448+64 = 1:10000+64"}});
  both[static_cast<std::size_t>(IndexSpace::window_pages)] = {{0}, {7}};
  check(Refused{"memory shared by two spaces, one page used twice", {first, second}, both, {}, ErrorCode::invalid_argument, {"kv k layer 0 index 8", "kv v layer 0 index 7"}});
}

TEST_CASE("entries that alternate inside one pitch are not in each other's way") {
  PlanEntry k = pitched(64, 128, 128), v = pitched(64, 128, 128);
  v.source.offset = v.target.offset = 64;
  v.name = "kv v layer 0";
  check(Planned{"K and V page by page", {k, v}, page_lists({3, 1}, {0, 1}), {},
                {"2:0+64 = 1:384+64", "2:128+64 = 1:128+64", "2:64+64 = 1:448+64", "2:192+64 = 1:192+64"}});
  v.target.offset = 63;
  check(Refused{"one byte too near", {k, v}, page_lists({3, 1}, {0, 1}), {}, ErrorCode::invalid_argument, {"kv k layer 0 index 0", "kv v layer 0 index 0", "1 bytes"}});
  v.target.offset = 65;
  check(Refused{"one byte too far: the next page", {k, v}, page_lists({3, 1}, {0, 1}), {}, ErrorCode::invalid_argument, {"kv v layer 0 index 0", "kv k layer 0 index 1"}});
  check(Planned{"the same, but that page is not written", {k, v}, page_lists({3, 1}, {0, 2}), {},
                {"2:0+64 = 1:384+64", "2:256+64 = 1:128+64", "2:65+64 = 1:448+64", "2:321+64 = 1:192+64"}});
}

TEST_CASE("counts say what the cursor gives") {
  PlanEntry idle = packed(64, 0, 0);
  idle.space = IndexSpace::c128_rows;
  const auto plan = Plan::make({packed(64, 0, 0), packed(32, 500'000, 500'000), idle}, page_lists({4, 5, 9, 2}, {10, 11, 12, 40}), {1 << 20, 4});
  REQUIRE(plan);
  const PlanCounts& counts = (*plan)->counts();
  CHECK(counts.entries == 2);
  CHECK(counts.runs == 3);
  CHECK(counts.writes_before_merge == 8);
  CHECK(counts.writes == 4);
  CHECK(counts.pieces == 6);
  CHECK(counts.bytes == 4 * 64 + 4 * 32);
  CHECK((*plan)->entries().size() == 3);
  CHECK((*plan)->limits().pieces_per_write_max == 4);
}

TEST_CASE("a plan of many bytes in small messages is made without counting them one by one") {
  // 2^40 messages: a loop over them would not end in the life of a test.
  PlanEntry large = packed(1ull << 40, 0, 0, 1);
  const auto plan = Plan::make({large}, page_lists({0}, {0}), {1, 1});
  REQUIRE(plan);
  CHECK((*plan)->counts().writes == 1ull << 40);
  WriteCursor cursor = (*plan)->begin();
  cursor.skip((1ull << 40) - 2);
  CHECK_FALSE(cursor.done());
  std::vector<kvferry_write> writes(4);
  std::vector<kvferry_piece> pieces(4);
  CHECK(cursor.fill(writes, pieces).writes == 2);
  CHECK(pieces[1].offset == (1ull << 40) - 1);
  CHECK(cursor.done());
}

TEST_CASE("a fill gives whole elements only and says when its spans are too short") {
  const auto plan = Plan::make({packed(64, 0, 0)}, page_lists({9, 3, 7, 1}, {20, 21, 22, 40}), {1 << 20, 3});
  REQUIRE(plan);
  std::vector<kvferry_write> writes(4);
  std::vector<kvferry_piece> pieces(4);
  WriteCursor cursor = (*plan)->begin();
  auto filled = cursor.fill(writes, std::span(pieces).first(2));
  CHECK(filled.writes == 0);
  CHECK(filled.pieces == 0);
  CHECK(filled.bytes == 0);
  CHECK_FALSE(cursor.done());
  filled = cursor.fill(std::span(writes).first(0), pieces);
  CHECK(filled.writes == 0);
  filled = cursor.fill(writes, std::span(pieces).first(3));
  CHECK(filled.writes == 1);
  CHECK(filled.pieces == 3);
  CHECK(filled.bytes == 192);
  CHECK(writes[0].first_piece == 0);
  CHECK(writes[0].reserved == 0);
  filled = cursor.fill(writes, std::span(pieces).first(1));
  CHECK(filled.writes == 1);
  CHECK(cursor.done());
  CHECK(cursor.fill(writes, pieces).writes == 0);
  cursor.skip(5);
  CHECK(cursor.done());
}

TEST_CASE("skipping past the end is the end, and an empty cursor is done") {
  const auto plan = Plan::make({packed(64, 0, 0)}, page_lists({9, 3}, {20, 40}), {});
  REQUIRE(plan);
  WriteCursor cursor = (*plan)->begin();
  cursor.skip(0);
  CHECK_FALSE(cursor.done());
  cursor.skip(UINT64_MAX);
  CHECK(cursor.done());
  WriteCursor none;
  CHECK(none.done());
  none.skip(1);
  CHECK(none.fill({}, {}).writes == 0);
}

TEST_CASE("a list is checked for doubled indices") {
  CHECK(check_unique({}, "list"));
  CHECK(check_unique(std::vector<std::uint64_t>{3}, "list"));
  CHECK(check_unique(std::vector<std::uint64_t>{3, 1, 2}, "list"));
  CHECK(check_unique(std::vector<std::uint64_t>{kMax, 0, 1ull << 63, (1ull << 63) + 1}, "list"));
  std::vector<std::uint64_t> long_list;
  for (std::uint64_t i = 0; i < 5000; ++i) long_list.push_back((i * 0x9E37'79B9'7F4A'7C15) ^ (i << 60));
  CHECK(check_unique(long_list, "list"));
  long_list[4321] = long_list[17];
  const auto doubled = check_unique(long_list, "the reply");
  REQUIRE_FALSE(doubled);
  CHECK(doubled.error().code == ErrorCode::invalid_argument);
  CHECK_THAT(doubled.error().text, Catch::Equals("the reply: index " + std::to_string(long_list[17]) + " is there twice, at positions 17 and 4321"));
}
