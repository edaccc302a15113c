// Page helpers: tables with the reason of each case, and context-parallel splits against counting.

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <vector>

#include "kvferry/page_index.h"
#include "unit/slice/refusals.h"

using namespace kvferry;
using kvferry::test::check_refused;

namespace {

constexpr std::uint64_t kLargest = std::numeric_limits<std::uint64_t>::max();
constexpr std::int64_t kLargestIndex = std::numeric_limits<std::int64_t>::max();
using Indices = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("a page count rounds up and never overflows") {
  const auto check = [](std::uint64_t tokens, std::uint64_t page_size, std::uint64_t expected) {
    CHECK(page_count(tokens, page_size).value() == expected);
  };
  check(0, 1, 0);
  check(1, 64, 1);
  check(63, 64, 1);
  check(64, 64, 1);
  check(65, 64, 2);
  check(kLargest, 1, kLargest);
  check(kLargest, 2, (std::uint64_t{1} << 63));
  check(kLargest, kLargest, 1);
  check_refused(page_count(5, 0), {"page size is 0"});
}

TEST_CASE("token locations become pages only where every page starts on its boundary and is consecutive") {
  const auto check = [](const Indices& locations, std::uint64_t page_size, const Indices& expected) {
    CHECK(page_indices(locations, page_size).value() == expected);
  };
  check({}, 16, {});
  check({448}, 64, {7});                                                                         // one token
  check({12, 13, 14, 15, 36, 37, 38, 39, 16, 17}, 4, {3, 9, 4});                                 // scattered pages, partly filled last one
  check({5, 6, 9}, 1, {5, 6, 9});                                                                // token pages
  check({kLargestIndex - 1}, 2, {kLargestIndex / 2});                                            // 64-bit locations
  check_refused(page_indices(Indices{14, 15, 16, 17}, 4), {"14", "position 0", "page size 4"});  // would lose the page of 17
  check_refused(page_indices(Indices{12, 13, 14, 15, 18, 19}, 4), {"18", "position 4"});         // a later page starts inside
  check_refused(page_indices(Indices{12, 13, 15, 16}, 4), {"15", "position 2", "13"});           // a hole
  check_refused(page_indices(Indices{12, 13, 14, 15, 12, 12}, 4), {"12", "position 5"});         // twice the same row
  check_refused(page_indices(Indices{12, 13, -1, 15}, 4), {"-1", "position 2"});
  check_refused(page_indices(Indices{0}, 0), {"page size is 0"});
}

TEST_CASE("context-parallel ranks share the pages without gap, overlap or order lost") {
  for (std::uint64_t total = 0; total <= 40; ++total) {
    for (std::uint64_t size = 1; size <= 9; ++size) {
      std::uint64_t next = 0;
      for (std::uint64_t rank = 0; rank < size; ++rank) {
        const IndexRange bounds = cp_rank_page_bounds(total, rank, size).value();
        if (bounds.begin != next || bounds.end < bounds.begin || bounds.end - bounds.begin != total / size + (rank < total % size ? 1 : 0)) {
          FAIL("total " << total << ", rank " << rank << " of " << size << ": [" << bounds.begin << ", " << bounds.end << ")");
        }
        next = bounds.end;
      }
      REQUIRE(next == total);
    }
  }
  CHECK(cp_rank_page_bounds(kLargest, 2, 3).value() == IndexRange{kLargest / 3 * 2, kLargest});
  check_refused(cp_rank_page_bounds(10, 4, 4), {"rank 4", "size of 4"});
  check_refused(cp_rank_page_bounds(10, 0, 0), {"size is 0"});
}

TEST_CASE("the chunks of all context-parallel ranks make the request's pages, each page once") {
  Indices request;
  for (std::int64_t page = 0; page < 17; ++page) request.push_back(200 + page * 3 % 17);  // not in ascending order
  for (std::uint64_t size = 1; size <= 5; ++size) {
    for (std::uint64_t chunk = 1; chunk <= request.size(); ++chunk) {
      Indices sent(request.size(), -1);
      for (std::uint64_t begin = 0; begin < request.size(); begin += chunk) {
        const std::uint64_t end = std::min<std::uint64_t>(begin + chunk, request.size());
        const Indices pages(request.begin() + static_cast<std::ptrdiff_t>(begin), request.begin() + static_cast<std::ptrdiff_t>(end));
        for (std::uint64_t rank = 0; rank < size; ++rank) {
          const PageSlice part = cp_rank_pages(pages, {begin, end}, request.size(), rank, size).value();
          REQUIRE(part.slice.end - part.slice.begin == part.pages.size());
          for (std::uint64_t position = part.slice.begin; position < part.slice.end; ++position) {
            REQUIRE(sent[position] == -1);
            sent[position] = part.pages[position - part.slice.begin];
          }
        }
      }
      REQUIRE(sent == request);
    }
  }
  CHECK(cp_rank_pages(Indices{200, 203}, {3, 5}, 16, 1, 2).value().slice == IndexRange{3, 3});  // nothing of it: empty at the chunk's start
  check_refused(cp_rank_pages(Indices{1, 2}, {0, 3}, 10, 0, 2), {"3 positions", "2 pages"});
  check_refused(cp_rank_pages(Indices{1, 2}, {9, 11}, 10, 0, 2), {"[9, 11)", "10 pages"});
  check_refused(cp_rank_pages(Indices{}, {4, 3}, 10, 0, 2), {"[4, 3)"});
  check_refused(cp_rank_pages(Indices{1, -2}, {0, 2}, 10, 0, 2), {"-2", "position 1"});
}

TEST_CASE("decode-context-parallel ranks keep each location once, as a row of their own") {
  const Indices locations{0, 3, 8, 11, 12, 13, 40};
  CHECK(dcp_rank_locations(locations, 1, 0).value() == locations);
  CHECK(dcp_rank_locations(locations, 4, 0).value() == Indices{0, 2, 3, 10});
  CHECK(dcp_rank_locations(locations, 4, 1).value() == Indices{3});
  CHECK(dcp_rank_locations(locations, 4, 2).value().empty());
  CHECK(dcp_rank_locations(locations, 4, 3).value() == Indices{0, 2});
  check_refused(dcp_rank_locations(locations, 4, 4), {"rank 4", "size of 4"});
  check_refused(dcp_rank_locations(locations, 0, 0), {"size is 0"});
  check_refused(dcp_rank_locations(Indices{4, -4}, 4, 0), {"-4", "position 1"});
}

TEST_CASE("the window starts on a page, and a decode prefix beyond it is refused") {
  const auto check = [](std::uint64_t tokens, std::uint64_t window, std::uint64_t page_size, std::uint64_t prefix, std::uint64_t start,
                        std::uint64_t pages) {
    const WindowStart got = window_start(tokens, window, page_size, prefix).value();
    CHECK(got.prefill_start == start);
    CHECK(got.decode_start == start);
    CHECK(got.prefill_pages == pages);
    CHECK(got.decode_pages == pages);
  };
  check(4096, 128, 256, 0, 3840, 1);
  check(4096, 128, 256, 3840, 3840, 1);  // the prefix ends where the window's page starts
  check(1000, 128, 64, 832, 832, 3);
  check(100, 128, 64, 0, 0, 2);  // shorter than the window
  check(0, 128, 64, 0, 0, 0);
  check(kLargest, 1, 2, 0, kLargest - 1, 1);
  check_refused(window_start(1000, 128, 64, 833), {"832", "833"});
  check_refused(window_start(1000, 128, 64, 960), {"832", "960", "128", "64"});
  check_refused(window_start(100, 128, 64, 64), {"token 0", "64"});
  check_refused(window_start(100, 128, 0, 0), {"page size is 0"});
  check_refused(window_start(100, 0, 64, 0), {"window is 0"});
}

TEST_CASE("ring rows are the window's positions, distinct and inside the request's slot") {
  CHECK(ring_rows(0, 10, 8, 8).value() == std::vector<std::uint64_t>{2, 3, 4, 5, 6, 7, 0, 1});
  CHECK(ring_rows(3, 5, 128, 128).value() == std::vector<std::uint64_t>{384, 385, 386, 387, 388});
  CHECK(ring_rows(2, 300, 4, 6).value() == std::vector<std::uint64_t>{14, 15, 16, 17});
  CHECK(ring_rows(1, 0, 128, 128).value().empty());
  for (std::uint64_t stride = 1; stride <= 12; ++stride) {
    for (std::uint64_t window = 1; window <= stride; ++window) {
      for (std::uint64_t tokens = 0; tokens <= 40; ++tokens) {
        const auto rows = ring_rows(5, tokens, window, stride).value();
        REQUIRE(rows.size() == std::min(tokens, window));
        std::vector<bool> used(stride);
        for (const std::uint64_t row : rows) {
          REQUIRE((row >= 5 * stride && row < 6 * stride && !used[row - 5 * stride]));
          used[row - 5 * stride] = true;
        }
      }
    }
  }
  check_refused(ring_rows(0, 10, 8, 7), {"8 tokens", "7 rows"});  // two positions would share a row
  check_refused(ring_rows(0, 10, 8, 0), {"stride is 0"});
  check_refused(ring_rows(kLargest / 8, 10, 8, 9), {"overflow"});
  check_refused(ring_rows(0, kLargest, kLargest, kLargest), {"at most"});
}

TEST_CASE("runs break wherever one of the lists does not step by one") {
  const auto check = [](const Indices& source, const Indices& target, const std::vector<IndexRun>& expected) {
    CHECK(group_runs(source, target).value() == expected);
  };
  check({}, {}, {});
  check({5}, {9}, {{5, 9, 1}});
  check({1, 2, 3}, {7, 8, 9}, {{1, 7, 3}});
  check({1, 2, 4, 5}, {7, 8, 9, 10}, {{1, 7, 2}, {4, 9, 2}});
  check({1, 2, 3, 4}, {7, 9, 10, 9}, {{1, 7, 1}, {2, 9, 2}, {4, 9, 1}});  // the target's steps count as much
  check({5, 5, 6}, {1, 2, 3}, {{5, 1, 1}, {5, 2, 2}});
  check({3, 2, 1}, {1, 2, 3}, {{3, 1, 1}, {2, 2, 1}, {1, 3, 1}});
  check({kLargestIndex, kLargestIndex}, {0, 1},
        {{static_cast<std::uint64_t>(kLargestIndex), 0, 1}, {static_cast<std::uint64_t>(kLargestIndex), 1, 1}});
  check({2147483647, 2147483648}, {0, 1}, {{2147483647, 0, 2}});  // beyond 32 bits
  check_refused(group_runs(Indices{}, Indices{1, 2}), {"0 indices", "2"});
  check_refused(group_runs(Indices{1, 2}, Indices{}), {"2 indices", "0"});
  check_refused(group_runs(Indices{0}, Indices{1, 2, 3, 4, 5}), {"1", "5"});
  check_refused(group_runs(Indices{4, -1, 6}, Indices{1, 2, 3}), {"source", "-1", "position 1"});
  check_refused(group_runs(Indices{1, 2, 3}, Indices{4, 5, -6}), {"target", "-6", "position 2"});
}
