/// A plan from a raw list: every item is resolved on both sides, items that touch become one stretch.
#include <string>

#include "overlap.h"
#include "plan_state.h"
#include "range_text.h"

namespace kvferry::plan_detail {
namespace {

std::string describe_item(std::size_t number, const RawWrite& item) {
  const bool read = item.op == KVFERRY_OP_READ;
  return "plan raw item " + std::to_string(number) + " (" + (read ? "read" : "write") + " of " + std::to_string(item.length_bytes) + " bytes, source " +
         hex(item.source_address) + ", target " + hex(item.target_address) + ")";
}

Result<void> refuse(std::size_t number, const RawWrite& item, const RegionMap& source, const RegionMap& target) {
  const std::string what = describe_item(number, item);
  if (auto found = source.find(item.source_address, item.length_bytes); !found) return fail(found.error().within("source").within(what));
  if (auto found = target.find(item.target_address, item.length_bytes); !found) return fail(found.error().within("target").within(what));
  return fail(ErrorCode::internal, what + ": refused without a reason");
}

/// Finds the regions of one side. Items come in layer by layer, so the last region is tried first where no other one could be the answer.
class Finder {
 public:
  explicit Finder(const RegionMap& regions) : regions_(regions) {}

  const RegionMap::Region* find(std::uint64_t address, std::uint64_t length) {
    if (last_ != nullptr && address >= last_->address && length <= last_->length && address - last_->address <= last_->length - length) return last_;
    const RegionMap::Region* region = regions_.lookup(address, length);
    last_ = region != nullptr && regions_.stands_alone(*region) ? region : nullptr;
    return region;
  }

 private:
  const RegionMap& regions_;
  const RegionMap::Region* last_ = nullptr;
};

bool continues(const Stretch& before, const Stretch& next) {
  return before.op == next.op && before.source_region == next.source_region && before.target_region == next.target_region &&
         before.source_offset + before.length == next.source_offset && before.target_offset + before.length == next.target_offset;
}

}  // namespace

Result<void> build_raw(PlanState& state, std::span<const RawWrite> writes, const RegionMap& source, const RegionMap& target) {
  Finder sources(source), targets(target);
  state.stretches.reserve(writes.size());
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const RawWrite& item = writes[i];
    if (item.op != KVFERRY_OP_WRITE && item.op != KVFERRY_OP_READ) {
      return fail(ErrorCode::invalid_argument, "plan raw item " + std::to_string(i) + ": unknown operation " + std::to_string(item.op));
    }
    if (item.length_bytes == 0) return fail(ErrorCode::invalid_argument, describe_item(i, item) + ": the length is 0");
    const RegionMap::Region* from = sources.find(item.source_address, item.length_bytes);
    const RegionMap::Region* to = targets.find(item.target_address, item.length_bytes);
    if (from == nullptr || to == nullptr) return refuse(i, item, source, target);
    if (!checked_add(state.counts.bytes, item.length_bytes, state.counts.bytes)) {
      return fail(ErrorCode::out_of_range, describe_item(i, item) + ": the bytes of all items together pass 2^64");
    }
    const Stretch next{from->id, item.source_address - from->address, to->id, item.target_address - to->address, item.length_bytes, item.op};
    if (!state.stretches.empty() && continues(state.stretches.back(), next)) {
      state.stretches.back().length += next.length;
    } else {
      state.stretches.push_back(next);
    }
  }
  state.counts.runs = state.stretches.size();
  state.counts.writes_before_merge = writes.size();
  return check_raw_conflicts(writes);
}

}  // namespace kvferry::plan_detail
