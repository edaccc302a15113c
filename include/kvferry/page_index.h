/// kvferry/page_index.h: page indices of a request: from token locations, split over context-parallel ranks, windows and rings.
/// Page = page_size tokens. Token location = row in the token pool. Facts: SGLang 0.5.23, docs/sglang-lists.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvferry/result.h"

namespace kvferry {

/// ceil(tokens / page_size).
Result<std::uint64_t> page_count(std::uint64_t tokens, std::uint64_t page_size);

/// Pages of token locations that start on a page boundary, every page but the last full. Refused: an unaligned start, a page that is not consecutive
/// inside, a negative location.
Result<std::vector<std::int64_t>> page_indices(std::span<const std::int64_t> token_locations, std::uint64_t page_size);

struct IndexRange {
  std::uint64_t begin = 0, end = 0;  ///< half-open
  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

/// Positions of `total_pages` that context-parallel rank `cp_rank` of `cp_size` owns: the first (total mod size) ranks have one more.
Result<IndexRange> cp_rank_page_bounds(std::uint64_t total_pages, std::uint64_t cp_rank, std::uint64_t cp_size);

struct PageSlice {
  std::vector<std::int64_t> pages;
  IndexRange slice;  ///< positions in the request's page list
};
/// The part of a chunk (pages at positions `slice` of the request) that the rank sends; an empty part has slice (slice.begin, slice.begin).
Result<PageSlice> cp_rank_pages(std::span<const std::int64_t> pages, IndexRange slice, std::uint64_t total_pages, std::uint64_t cp_rank,
                                std::uint64_t cp_size);

/// Token locations that decode-context-parallel rank keeps (location mod dcp_size == dcp_rank), as rows of that rank: location / dcp_size.
Result<std::vector<std::int64_t>> dcp_rank_locations(std::span<const std::int64_t> token_locations, std::uint64_t dcp_size, std::uint64_t dcp_rank);

/// First token of the window, rounded down to a page, on both sides, and the pages each has from there. A prefix beyond the decode start is an error.
struct WindowStart {
  std::uint64_t prefill_start = 0, decode_start = 0;  ///< tokens
  std::uint64_t prefill_pages = 0, decode_pages = 0;
};
Result<WindowStart> window_start(std::uint64_t tokens, std::uint64_t window_tokens, std::uint64_t page_size, std::uint64_t decode_prefix_tokens);

/// Rows of the unified ring for the positions [max(0, tokens - window), tokens), ascending by position.
Result<std::vector<std::uint64_t>> ring_rows(std::uint64_t request_slot, std::uint64_t tokens, std::uint64_t window_tokens, std::uint64_t ring_stride);

/// Blocks of two equally long index lists in which both step by one.
struct IndexRun {
  std::uint64_t source = 0, target = 0, count = 0;
  friend bool operator==(const IndexRun&, const IndexRun&) = default;
};
/// Lengths must be equal. No bound is applied here (plan.h does).
Result<std::vector<IndexRun>> group_runs(std::span<const std::int64_t> source, std::span<const std::int64_t> target);

}  // namespace kvferry
