/// The plans of a job, made by the code that runs them, without running.
#pragma once

#include <cstdint>
#include <vector>

#include "kvferry/plan.h"
#include "layout.h"

namespace kvferry::transfer_check {

struct PairPlan {
  std::size_t pair = 0;  ///< index into layout.pairs
  PlanCounts counts;
  std::uint64_t entries_unwritten = 0;  ///< of the target rank, by nobody in this pair
};

struct JobPlan {
  std::vector<PairPlan> pairs;
  std::uint64_t bytes = 0, writes_before_merge = 0, writes = 0, pieces = 0;
  double plan_seconds = 0;  ///< of the prefill rank that takes longest
};

Outcome<JobPlan> plan_job(const Layout& layout, const PlanLimits& limits);

/// Index lists of a job as the planner takes them.
IndexListsBySpace index_lists(const Layout& layout);

}  // namespace kvferry::transfer_check
