// Which prefill rank writes to which decode rank.
#include <algorithm>

#include "layout_parts.h"

namespace kvferry::transfer_check {
namespace {

bool overlap(const Stage& a, const Stage& b) { return a.first < b.end && b.first < a.end; }

/// The prefill rank a decode rank reads from; the sizes divide.
std::uint32_t source_tp(const Layout& layout, std::uint32_t target_tp) {
  const std::uint32_t sources = layout.source.tp_size, targets = layout.target.tp_size;
  return targets >= sources ? target_tp / (targets / sources) : target_tp * (sources / targets);
}

Outcome<void> check_divides(const Layout& layout) {
  const std::uint32_t sources = layout.source.tp_size, targets = layout.target.tp_size;
  const std::uint32_t larger = std::max(sources, targets), smaller = std::min(sources, targets);
  if (larger % smaller == 0) return {};
  return wrong_option("--decode", layout.target.parallel_text,
                      "tp " + std::to_string(targets) + " and tp " + std::to_string(sources) + " of --prefill do not divide each other",
                      "use a tp that is a multiple or a divisor of " + std::to_string(sources));
}

Outcome<void> add_pair(Layout& ret, std::size_t source, std::size_t target) {
  const RankPool& from = ret.source.ranks[source];
  const RankPool& to = ret.target.ranks[target];
  auto entries = slice(from.pool, to.pool);
  if (!entries) {
    const bool cuts_differ = ret.source.tp_size != ret.target.tp_size && entries.error().code != ErrorCode::not_found;
    return because(entries.error(), from.name + " to " + to.name,
                   cuts_differ ? "use the same tp for --prefill and --decode: heads that are split differently are not converted yet" : "");
  }
  ret.pairs.push_back({source, target, std::move(*entries)});
  return {};
}

}  // namespace

Outcome<void> pair_ranks(Layout& ret) {
  // Two pool files are one rank each, whatever ranks they were written from.
  if (ret.source.ranks.size() == 1 && ret.target.ranks.size() == 1) return add_pair(ret, 0, 0);
  if (auto divides = check_divides(ret); !divides) return divides;
  for (std::size_t t = 0; t < ret.target.ranks.size(); ++t) {
    const RankPool& target = ret.target.ranks[t];
    const std::uint32_t tp = source_tp(ret, target.tp);
    for (std::size_t s = 0; s < ret.source.ranks.size(); ++s) {
      const RankPool& source = ret.source.ranks[s];
      if (source.tp != tp || !overlap(source.pool.stage, target.pool.stage)) continue;
      if (auto added = add_pair(ret, s, t); !added) return added;
    }
  }
  return {};
}

}  // namespace kvferry::transfer_check
