// The index lists of a request on both sides (docs/transfer-check.md, "Index lists").
#include <algorithm>

#include "layout_parts.h"
#include "random_pages.h"

namespace kvferry::transfer_check {
namespace {

std::size_t number_of(IndexSpace space) { return static_cast<std::size_t>(space); }

/// Indices that the entries of a space have; 0 where the side has no such entry.
std::uint64_t index_count(const Side& side, IndexSpace space) {
  for (const auto& entry : side.whole.entries) {
    if (entry.space == space) return entry.index_count;
  }
  return 0;
}

bool has_space(const Side& side, IndexSpace space) { return index_count(side, space) != 0; }

/// How many requests the rings and the per-request state of a side have room for.
std::uint64_t request_slots(const Side& side) {
  std::uint64_t slots = UINT64_MAX;
  const Pool& pool = side.whole;
  if (has_space(side, IndexSpace::request_slots)) slots = std::min(slots, index_count(side, IndexSpace::request_slots));
  if (has_space(side, IndexSpace::ring_rows) && pool.ring_stride != 0) {
    slots = std::min(slots, index_count(side, IndexSpace::ring_rows) / pool.ring_stride);
  }
  if (has_space(side, IndexSpace::c128_rows)) {
    constexpr std::uint64_t kRowsPerIndex = 128;
    const std::uint64_t indices = pool.c128_online ? 1 : std::max<std::uint64_t>(1, pool.c128_ring_size / kRowsPerIndex);
    slots = std::min(slots, index_count(side, IndexSpace::c128_rows) / indices);
  }
  return slots == UINT64_MAX ? 1 : slots;
}

Outcome<std::vector<std::uint64_t>> draw(const Side& side, IndexSpace space, std::uint64_t count, std::uint64_t run_length, SplitMix64& random) {
  if (count == 0 || !has_space(side, space)) return std::vector<std::uint64_t>{};
  const std::uint64_t pool = index_count(side, space);
  if (count > pool) {
    return because(Error(ErrorCode::out_of_range, "the request needs " + std::to_string(count) + " indices of " + std::string(to_string(space)) +
                                                      ", the " + std::string(side.name()) + " pool has " + std::to_string(pool)),
                   {}, "use fewer --tokens or a larger pool");
  }
  return random_pages({count, pool, run_length}, random);
}

Outcome<void> place_side(const RequestInput& input, const std::optional<PageList>& list, SplitMix64 random, std::uint64_t tokens, Side& ret) {
  const std::uint64_t slots = request_slots(ret);
  if (slots == 0) {
    return because(Error(ErrorCode::out_of_range, "the " + std::string(ret.name()) + " pool has no room for the state of one request"), {},
                   "use a pool with more rows per request");
  }
  auto pages = request_pages(input, ret.whole.page_size);
  if (!pages) return tl::unexpected(pages.error());
  auto counts = request_indices(ret.whole, tokens, 0);
  if (!counts) return because(counts.error(), "count the indices of the request");
  if (list) {
    const std::string what = std::string(ret.name()) + " pool";
    if (auto inside = check_page_list(*list, std::max<std::uint64_t>(1, index_count(ret, IndexSpace::pages)), what, !ret.is_prefill); !inside)
      return inside;
    ret.indices[number_of(IndexSpace::pages)] = list->pages;
  } else {
    auto drawn = draw(ret, IndexSpace::pages, *pages, input.run_length, random);
    if (!drawn) return tl::unexpected(drawn.error());
    ret.indices[number_of(IndexSpace::pages)] = std::move(*drawn);
  }
  auto window = draw(ret, IndexSpace::window_pages, counts->window_pages, input.run_length, random);
  if (!window) return tl::unexpected(window.error());
  ret.indices[number_of(IndexSpace::window_pages)] = std::move(*window);

  ret.request_slot = random.next() % slots;
  auto rows = request_indices(ret.whole, tokens, ret.request_slot);
  if (!rows) return because(rows.error(), "choose the rows of the request");
  if (has_space(ret, IndexSpace::ring_rows)) ret.indices[number_of(IndexSpace::ring_rows)] = std::move(rows->ring_rows);
  if (has_space(ret, IndexSpace::c128_rows)) ret.indices[number_of(IndexSpace::c128_rows)] = std::move(rows->c128_rows);
  if (has_space(ret, IndexSpace::request_slots)) ret.indices[number_of(IndexSpace::request_slots)] = std::move(rows->request_slots);
  return {};
}

}  // namespace

Outcome<std::uint64_t> request_pages(const RequestInput& input, std::uint64_t page_size) {
  const std::uint64_t by_tokens = (input.tokens + page_size - 1) / page_size;
  if (!input.source_pages) return by_tokens;
  const std::uint64_t listed = input.source_pages->pages.size();
  if (input.tokens_given && by_tokens != listed) {
    return wrong_option("--tokens", std::to_string(input.tokens),
                        "are " + std::to_string(by_tokens) + " pages of " + std::to_string(page_size) + " tokens, " + input.source_pages->path +
                            " has " + std::to_string(listed),
                        "leave --tokens out, or make the two agree");
  }
  return listed;
}

std::uint64_t request_tokens(const RequestInput& input, std::uint64_t page_size) {
  return input.source_pages && !input.tokens_given ? input.source_pages->pages.size() * page_size : input.tokens;
}

Outcome<void> place_indices(const RequestInput& input, Layout& ret) {
  const std::uint64_t tokens = request_tokens(input, ret.target.whole.page_size);
  if (auto placed = place_side(input, input.source_pages, source_random(input.seed), tokens, ret.source); !placed) return placed;
  if (auto placed = place_side(input, input.target_pages, target_random(input.seed), tokens, ret.target); !placed) return placed;
  for (std::size_t space = 0; space < kIndexSpacesCount; ++space) {
    // A pool file of one stage may have no entry of a space: then nothing of that space moves.
    if (has_space(ret.source, IndexSpace(space)) && has_space(ret.target, IndexSpace(space))) continue;
    ret.source.indices[space].clear();
    ret.target.indices[space].clear();
  }
  ret.request.tokens = tokens;
  ret.request.pages = ret.target.indices[number_of(IndexSpace::pages)].size();
  return {};
}

}  // namespace kvferry::transfer_check
