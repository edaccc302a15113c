/// The steps of make_layout (layout.h), one source file each.
#pragma once

#include <optional>

#include "layout.h"

namespace kvferry::transfer_check {

/// What the user said about the request itself.
struct RequestInput {
  std::uint64_t tokens = 0, run_length = 1, seed = 1;
  bool tokens_given = false;
  std::optional<PageList> source_pages, target_pages;  ///< both or none
};

/// Pages a request has: by its lists, else by its tokens. An error where both are given and disagree.
Outcome<std::uint64_t> request_pages(const RequestInput& input, std::uint64_t page_size);
/// Tokens a request has: those of --tokens, else as many as its page lists hold.
std::uint64_t request_tokens(const RequestInput& input, std::uint64_t page_size);

/// layout_config.cpp: pools of every rank from config.json and the cut.
Outcome<void> sides_from_config(const Request& request, const RequestInput& input, Layout& ret);
/// layout_files.cpp: one rank a side from pool files.
Outcome<void> sides_from_files(const Request& request, Layout& ret);
/// layout_pairs.cpp: who writes to whom, and which entries.
Outcome<void> pair_ranks(Layout& ret);
/// layout_indices.cpp: the index lists of both sides.
Outcome<void> place_indices(const RequestInput& input, Layout& ret);

/// Names the rank and moves its addresses to begin behind the guard.
Outcome<RankPool> make_rank(const Side& side, std::uint32_t tp, std::uint32_t pp, Pool pool);

}  // namespace kvferry::transfer_check
