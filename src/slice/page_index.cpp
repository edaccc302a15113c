// page_index.cpp: which pages, rows and runs a request's indices stand for.
//
//   token locations   12 13 14 15 | 36 37 38 39 | 16 17           page size 4, last page partly filled
//   pages                   3     |      9      |   4
//
// A location list is taken apart page by page, never sampled by stride: a list that does not start on a page boundary would otherwise lose the page
// its end falls into, without a trace.

#include "kvferry/page_index.h"

#include <algorithm>
#include <limits>

#include "concatenate.h"

namespace kvferry {
namespace {

/// A longer ring is a wrong unit, not a request: rows are tokens of one window.
constexpr std::uint64_t kRingRowsMax = std::uint64_t{1} << 26;

Result<void> check_rank(std::string_view what, std::uint64_t rank, std::uint64_t size) {
  if (size == 0) return fail(ErrorCode::invalid_argument, concatenate(what, " size is 0"));
  if (rank >= size) return fail(ErrorCode::out_of_range, concatenate(what, " rank ", rank, " is outside the size of ", size));
  return {};
}

Result<void> check_not_negative(std::string_view what, std::span<const std::int64_t> values) {
  const auto negative = std::find_if(values.begin(), values.end(), [](std::int64_t value) { return value < 0; });
  if (negative == values.end()) return {};
  return fail(ErrorCode::out_of_range,
              concatenate(what, " ", *negative, " at position ", static_cast<std::uint64_t>(negative - values.begin()), " is negative"));
}

bool steps_by_one(std::int64_t before, std::int64_t after) { return before != std::numeric_limits<std::int64_t>::max() && after == before + 1; }

std::uint64_t round_down(std::uint64_t tokens, std::uint64_t page_size) { return tokens - tokens % page_size; }

std::uint64_t pages_of(std::uint64_t tokens, std::uint64_t page_size) { return tokens / page_size + (tokens % page_size != 0 ? 1 : 0); }

}  // namespace

Result<std::uint64_t> page_count(std::uint64_t tokens, std::uint64_t page_size) {
  if (page_size == 0) return fail(ErrorCode::invalid_argument, concatenate("count the pages of ", tokens, " tokens: page size is 0"));
  return pages_of(tokens, page_size);
}

Result<std::vector<std::int64_t>> page_indices(std::span<const std::int64_t> token_locations, std::uint64_t page_size) {
  if (page_size == 0) return fail(ErrorCode::invalid_argument, concatenate("pages of ", token_locations.size(), " token locations: page size is 0"));
  if (auto checked = check_not_negative("token location", token_locations); !checked) return fail(checked.error());
  std::vector<std::int64_t> pages;
  pages.reserve(pages_of(token_locations.size(), page_size));
  for (std::size_t position = 0; position < token_locations.size(); ++position) {
    const std::int64_t location = token_locations[position];
    if (position % page_size == 0) {
      const std::uint64_t row = static_cast<std::uint64_t>(location);
      if (row % page_size != 0) {
        return fail(ErrorCode::invalid_argument, concatenate("token location ", location, " at position ", position,
                                                             " starts a page but is not a multiple of the page size ", page_size));
      }
      pages.push_back(static_cast<std::int64_t>(row / page_size));
    } else if (!steps_by_one(token_locations[position - 1], location)) {
      return fail(ErrorCode::invalid_argument, concatenate("token location ", location, " at position ", position, " does not follow ",
                                                           token_locations[position - 1], " inside a page of ", page_size, " tokens"));
    }
  }
  return pages;
}

Result<IndexRange> cp_rank_page_bounds(std::uint64_t total_pages, std::uint64_t cp_rank, std::uint64_t cp_size) {
  if (auto checked = check_rank("context-parallel", cp_rank, cp_size); !checked) return fail(checked.error());
  const std::uint64_t each = total_pages / cp_size, extra = total_pages % cp_size;
  const std::uint64_t begin = cp_rank * each + std::min(cp_rank, extra);
  return IndexRange{begin, begin + each + (cp_rank < extra ? 1 : 0)};
}

Result<PageSlice> cp_rank_pages(std::span<const std::int64_t> pages, IndexRange slice, std::uint64_t total_pages, std::uint64_t cp_rank,
                                std::uint64_t cp_size) {
  const auto bounds = cp_rank_page_bounds(total_pages, cp_rank, cp_size);
  if (!bounds) return fail(bounds.error());
  if (slice.begin > slice.end || slice.end > total_pages) {
    return fail(ErrorCode::out_of_range,
                concatenate("chunk ", range_text(slice.begin, slice.end), " is not a part of the request's ", total_pages, " pages"));
  }
  if (slice.end - slice.begin != pages.size()) {
    return fail(ErrorCode::invalid_argument, concatenate("chunk ", range_text(slice.begin, slice.end), " has ", slice.end - slice.begin,
                                                         " positions, its page list ", pages.size(), " pages"));
  }
  if (auto checked = check_not_negative("page", pages); !checked) return fail(checked.error());
  const std::uint64_t begin = std::max(slice.begin, bounds->begin), end = std::min(slice.end, bounds->end);
  if (begin >= end) return PageSlice{{}, {slice.begin, slice.begin}};
  const auto part = pages.subspan(begin - slice.begin, end - begin);
  return PageSlice{{part.begin(), part.end()}, {begin, end}};
}

Result<std::vector<std::int64_t>> dcp_rank_locations(std::span<const std::int64_t> token_locations, std::uint64_t dcp_size, std::uint64_t dcp_rank) {
  if (auto checked = check_rank("decode-context-parallel", dcp_rank, dcp_size); !checked) return fail(checked.error());
  if (auto checked = check_not_negative("token location", token_locations); !checked) return fail(checked.error());
  std::vector<std::int64_t> kept;
  for (const std::int64_t location : token_locations) {
    const std::uint64_t row = static_cast<std::uint64_t>(location);
    if (row % dcp_size == dcp_rank) kept.push_back(static_cast<std::int64_t>(row / dcp_size));
  }
  return kept;
}

Result<WindowStart> window_start(std::uint64_t tokens, std::uint64_t window_tokens, std::uint64_t page_size, std::uint64_t decode_prefix_tokens) {
  if (page_size == 0) return fail(ErrorCode::invalid_argument, concatenate("window of a request of ", tokens, " tokens: page size is 0"));
  if (window_tokens == 0) return fail(ErrorCode::invalid_argument, concatenate("window of a request of ", tokens, " tokens: window is 0 tokens"));
  const std::uint64_t window_first = tokens > window_tokens ? tokens - window_tokens : 0;
  const std::uint64_t start = round_down(window_first, page_size);
  // With a prefix beyond its own start, decode keeps pages that prefill does not send: the two lists would start at different tokens.
  if (decode_prefix_tokens > start) {
    return fail(ErrorCode::mismatch,
                concatenate("window of a request of ", tokens, " tokens starts at token ", start, " on the decode side, whose prefix of ",
                            decode_prefix_tokens, " tokens reaches beyond it (window ", window_tokens, ", page size ", page_size, ")"));
  }
  const std::uint64_t pages = pages_of(tokens - start, page_size);
  return WindowStart{.prefill_start = start, .decode_start = start, .prefill_pages = pages, .decode_pages = pages};
}

Result<std::vector<std::uint64_t>> ring_rows(std::uint64_t request_slot, std::uint64_t tokens, std::uint64_t window_tokens,
                                             std::uint64_t ring_stride) {
  const std::uint64_t rows_count = std::min(tokens, window_tokens);
  if (ring_stride == 0) return fail(ErrorCode::invalid_argument, concatenate("ring rows of request slot ", request_slot, ": ring stride is 0"));
  if (rows_count > ring_stride) {
    return fail(ErrorCode::invalid_argument, concatenate("ring rows of request slot ", request_slot, ": ", rows_count, " tokens of the window of ",
                                                         window_tokens, " do not fit a ring of ", ring_stride, " rows"));
  }
  if (rows_count > kRingRowsMax) {
    return fail(ErrorCode::limit, concatenate("ring rows of request slot ", request_slot, ": ", rows_count, " rows, at most ", kRingRowsMax));
  }
  std::uint64_t first_row = 0, end_row = 0;
  if (!checked_multiply(request_slot, ring_stride, first_row) || !checked_add(first_row, ring_stride, end_row)) {
    return fail(ErrorCode::out_of_range,
                concatenate("ring rows of request slot ", request_slot, " with ", ring_stride, " rows per slot overflow 64 bits"));
  }
  std::vector<std::uint64_t> rows;
  rows.reserve(rows_count);
  for (std::uint64_t position = tokens - rows_count; position < tokens; ++position) rows.push_back(first_row + position % ring_stride);
  return rows;
}

Result<std::vector<IndexRun>> group_runs(std::span<const std::int64_t> source, std::span<const std::int64_t> target) {
  if (source.size() != target.size()) {
    return fail(ErrorCode::mismatch,
                concatenate("index lists must be of equal length, the source has ", source.size(), " indices and the target ", target.size()));
  }
  if (auto checked = check_not_negative("source index", source); !checked) return fail(checked.error());
  if (auto checked = check_not_negative("target index", target); !checked) return fail(checked.error());
  std::vector<IndexRun> runs;
  for (std::size_t position = 0; position < source.size(); ++position) {
    if (position > 0 && steps_by_one(source[position - 1], source[position]) && steps_by_one(target[position - 1], target[position])) {
      ++runs.back().count;
    } else {
      runs.push_back({static_cast<std::uint64_t>(source[position]), static_cast<std::uint64_t>(target[position]), 1});
    }
  }
  return runs;
}

}  // namespace kvferry
