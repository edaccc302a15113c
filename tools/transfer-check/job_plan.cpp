#include "job_plan.h"

#include <algorithm>
#include <chrono>

namespace kvferry::transfer_check {
namespace {

constexpr std::uint64_t kNotionalAddress = 1ull << 40;  // Plans dereference nothing: any address that is not null will do.

struct PlacedPool {
  Pool pool;
  RegionMap regions;
};

Outcome<PlacedPool> place(const RankPool& rank) {
  PlacedPool placed;
  placed.pool = rank.pool;
  auto moved = rebase(placed.pool, kNotionalAddress);
  if (!moved) return because(moved.error(), rank.name);
  auto added = placed.regions.add({1, kNotionalAddress, rank.memory_bytes});
  if (!added) return because(added.error(), rank.name);
  return placed;
}

Outcome<std::vector<PlacedPool>> place_side(const Side& side) {
  std::vector<PlacedPool> placed;
  for (const auto& rank : side.ranks) {
    auto pool = place(rank);
    if (!pool) return tl::unexpected(pool.error());
    placed.push_back(std::move(*pool));
  }
  return placed;
}

}  // namespace

IndexListsBySpace index_lists(const Layout& layout) {
  IndexListsBySpace lists;
  for (std::size_t space = 0; space < kIndexSpacesCount; ++space) {
    lists[space].source = layout.source.indices[space];
    lists[space].target = layout.target.indices[space];
  }
  return lists;
}

Outcome<JobPlan> plan_job(const Layout& layout, const PlanLimits& limits) {
  auto sources = place_side(layout.source);
  if (!sources) return tl::unexpected(sources.error());
  auto targets = place_side(layout.target);
  if (!targets) return tl::unexpected(targets.error());
  const auto lists = index_lists(layout);
  JobPlan job;
  std::vector<double> seconds(layout.source.ranks.size());
  for (std::size_t p = 0; p < layout.pairs.size(); ++p) {
    const RankPair& pair = layout.pairs[p];
    const std::string names = layout.source.ranks[pair.source].name + " to " + layout.target.ranks[pair.target].name;
    const auto begin = std::chrono::steady_clock::now();
    auto entries = resolve_entries((*sources)[pair.source].pool, (*targets)[pair.target].pool, pair.entries, (*sources)[pair.source].regions,
                                   (*targets)[pair.target].regions);
    if (!entries) return because(entries.error(), names);
    auto plan = Plan::make(std::move(*entries), lists, limits);
    if (!plan) return because(plan.error(), names);
    seconds[pair.source] += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const PlanCounts& counts = (*plan)->counts();
    job.pairs.push_back({p, counts, layout.target.ranks[pair.target].pool.entries.size() - pair.entries.size()});
    job.bytes += counts.bytes;
    job.writes_before_merge += counts.writes_before_merge;
    job.writes += counts.writes;
    job.pieces += counts.pieces;
  }
  if (!seconds.empty()) job.plan_seconds = *std::max_element(seconds.begin(), seconds.end());
  return job;
}

}  // namespace kvferry::transfer_check
