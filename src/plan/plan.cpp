/// A plan: made once with all its checks, then read only.
///
///   entries, lists ──► paged.cpp ─┐
///                                 ├─► overlap.cpp: no target byte twice ──► stream.h: the writes ──► cursor.cpp
///   raw list ────────► raw.cpp ───┘
#include "kvferry/plan.h"

#include <new>
#include <stdexcept>
#include <utility>

#include "plan_private.h"

namespace kvferry {
namespace {

/// Runs `build`. Memory that is refused is an error like others; the text is short enough not to need memory itself.
template <class Build>
Result<void> without_exceptions(Build build) {
  try {
    return build();
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::no_memory, "out of memory");
  } catch (const std::length_error&) {
    return fail(ErrorCode::no_memory, "out of memory");
  }
}

}  // namespace

Result<void> plan_detail::check_limits(const PlanLimits& limits) {
  if (limits.message_bytes_max == 0) return fail(ErrorCode::invalid_argument, "plan: message_bytes_max is 0");
  if (limits.pieces_per_write_max == 0) return fail(ErrorCode::invalid_argument, "plan: pieces_per_write_max is 0");
  return {};
}

Plan::Plan(std::unique_ptr<State> state) : state_(std::move(state)) {}
Plan::~Plan() = default;

Result<std::shared_ptr<const Plan>> Plan::make(std::vector<PlanEntry> entries, const IndexListsBySpace& lists, PlanLimits limits) {
  std::shared_ptr<const Plan> plan;
  auto built = without_exceptions([&]() -> Result<void> {
    if (auto checked = plan_detail::check_limits(limits); !checked) return checked;
    auto state = std::make_unique<State>();
    state->limits = limits;
    state->entries = std::move(entries);
    if (auto filled = plan_detail::build_paged(*state, lists); !filled) return filled;
    plan_detail::count_writes(*state);
    plan.reset(new Plan(std::move(state)));
    return {};
  });
  if (!built) return fail(std::move(built.error()));
  return plan;
}

Result<std::shared_ptr<const Plan>> Plan::make_raw(std::span<const RawWrite> writes, const RegionMap& source, const RegionMap& target, PlanLimits limits) {
  std::shared_ptr<const Plan> plan;
  auto built = without_exceptions([&]() -> Result<void> {
    if (auto checked = plan_detail::check_limits(limits); !checked) return checked;
    auto state = std::make_unique<State>();
    state->limits = limits;
    if (auto filled = plan_detail::build_raw(*state, writes, source, target); !filled) return filled;
    plan_detail::count_writes(*state);
    plan.reset(new Plan(std::move(state)));
    return {};
  });
  if (!built) return fail(std::move(built.error()));
  return plan;
}

WriteCursor Plan::begin() const { return WriteCursor(*state_); }
const PlanCounts& Plan::counts() const noexcept { return state_->counts; }
const std::vector<PlanEntry>& Plan::entries() const noexcept { return state_->entries; }
const PlanLimits& Plan::limits() const noexcept { return state_->limits; }

}  // namespace kvferry
