/// No byte is written twice.
///
/// A list with an index twice shows as equal neighbours in the sorted list. Two entries of one target region are looked at only where the spans that
/// they touch overlap:
///
///   span of A   ├──────────────┤
///   span of B          ├──────────────┤                  A, B: one cluster
///   span of C                              ├─────┤       alone: nothing to check
///
/// A cluster of one pitch is harmless where its entries have different places inside the pitch (K and V that alternate page by page). Any other cluster is
/// walked through byte by byte range, in ascending order, all of its entries at once: exact, and needed only where pools of different shape share memory.
#include "overlap.h"

#include <algorithm>
#include <string>
#include <utility>

#include "radix_sort.h"
#include "range_text.h"

namespace kvferry {
namespace plan_detail {
namespace {

/// The target bytes that an entry touches, from the first of its least index to the last of its greatest, in offsets of the region.
struct TouchedSpan {
  const EntryTargets* targets = nullptr;
  kvferry_region region = 0;
  std::uint64_t begin = 0, end = 0;
};

TouchedSpan touched_span(const EntryTargets& targets) {
  const PlanEntry& entry = *targets.entry;
  return {&targets, entry.target.region, entry.target.offset + targets.indices.front() * entry.target_pitch_bytes,
          entry.target.offset + targets.indices.back() * entry.target_pitch_bytes + entry.item_length_bytes};
}

/// Whether all entries repeat at the same pitch and never share a place inside it.
bool interleaved(std::span<const TouchedSpan> cluster) {
  struct Place {
    std::uint64_t begin, length;  ///< inside the pitch; may go on at its start
  };
  const std::uint64_t pitch = cluster.front().targets->entry->target_pitch_bytes;
  std::vector<Place> places;
  places.reserve(cluster.size());
  for (const TouchedSpan& span : cluster) {
    if (span.targets->entry->target_pitch_bytes != pitch) return false;
    places.push_back({span.begin % pitch, span.targets->entry->item_length_bytes});
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i].begin - places[i - 1].begin < places[i - 1].length) return false;
  }
  return pitch - places.back().begin + places.front().begin >= places.back().length;
}

/// One entry of a cluster on its way through its indices.
struct Walker {
  const EntryTargets* targets = nullptr;
  std::size_t next = 0;  ///< into targets->indices

  std::uint64_t begin() const { return targets->entry->target.offset + targets->indices[next] * targets->entry->target_pitch_bytes; }
  std::uint64_t end() const { return begin() + targets->entry->item_length_bytes; }
};

std::string name(const Walker& walker) { return walker.targets->entry->name + " index " + std::to_string(walker.targets->indices[walker.next]); }

Result<void> walk(std::span<const TouchedSpan> cluster) {
  const auto later = [](const Walker& a, const Walker& b) { return a.begin() > b.begin(); };
  std::vector<Walker> heap;
  heap.reserve(cluster.size());
  for (const TouchedSpan& span : cluster) heap.push_back({span.targets, 0});
  std::make_heap(heap.begin(), heap.end(), later);

  Walker before{};
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    Walker& now = heap.back();
    if (before.targets != nullptr && now.begin() < before.end()) {
      return fail(ErrorCode::invalid_argument, "plan: " + name(before) + " and " + name(now) + " would both write " +
                                                   std::to_string(std::min(before.end(), now.end()) - now.begin()) + " bytes at offset " +
                                                   std::to_string(now.begin()) + " of target region " + std::to_string(now.targets->entry->target.region));
    }
    before = now;
    if (++now.next == now.targets->indices.size()) {
      heap.pop_back();
    } else {
      std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  return {};
}

/// How one item of a raw list uses memory of one side.
struct Access {
  std::uint64_t address = 0;
  std::size_t item = 0;
};

std::string name(std::size_t number, const RawWrite& item, std::uint64_t address) {
  return "raw item " + std::to_string(number) + " (" + (item.op == KVFERRY_OP_READ ? "read" : "write") + ", " + range_text(address, item.length_bytes) + ")";
}

/// The last byte that items so far have used, and the item that uses it.
struct Reach {
  std::uint64_t last = 0;
  std::size_t item = 0;
  bool any = false;

  bool covers(std::uint64_t address) const { return any && last >= address; }
  void extend(std::uint64_t last_byte, std::size_t by) {
    if (!any || last_byte > last) *this = {last_byte, by, true};
  }
};

/// One side of a raw list, in address order. Items farther apart than the longest one is are not looked at; of those that may overlap, each is compared
/// with the one before it that reaches farthest: all that cover the same byte before it are known to bring the same bytes there.
class ConflictCheck {
 public:
  /// `changing_op` is the operation that changes memory of this side.
  ConflictCheck(std::span<const RawWrite> items, const char* side, std::uint64_t RawWrite::*address, std::uint32_t changing_op)
      : items_(items), side_(side), address_(address), changing_op_(changing_op) {}

  Result<void> run() const {
    std::uint64_t longest = 0;
    bool changes = false, ascending = true;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      longest = std::max(longest, items_[i].length_bytes);
      changes = changes || items_[i].op == changing_op_;
      ascending = ascending && (i == 0 || items_[i - 1].*address_ <= items_[i].*address_);
    }
    if (!changes) return {};
    std::vector<Access> accesses;
    accesses.reserve(items_.size());
    for (std::size_t i = 0; i < items_.size(); ++i) accesses.push_back({items_[i].*address_, i});
    if (!ascending) radix_sort(accesses, [](const Access& access) { return access.address; });
    for (std::size_t first = 0; first < accesses.size();) {
      std::size_t end = first + 1;
      while (end < accesses.size() && accesses[end].address - accesses[end - 1].address < longest) ++end;
      if (end - first > 1) {
        if (auto checked = check_near({accesses.data() + first, end - first}); !checked) return checked;
      }
      first = end;
    }
    return {};
  }

 private:
  Result<void> check_near(std::span<const Access> accesses) const {
    Reach changed, used;
    for (const Access& access : accesses) {
      const RawWrite& item = items_[access.item];
      const std::uint64_t last = access.address + (item.length_bytes - 1);
      const bool change = item.op == changing_op_;
      if (changed.covers(access.address) && !(change && same_bytes(item, items_[changed.item]))) return conflict(changed.item, access.item);
      if (change && used.covers(access.address)) return conflict(used.item, access.item);
      (change ? changed : used).extend(last, access.item);
    }
    return {};
  }

  static bool same_bytes(const RawWrite& a, const RawWrite& b) { return a.source_address - b.source_address == a.target_address - b.target_address; }

  Result<void> conflict(std::size_t a, std::size_t b) const {
    const std::size_t first = std::min(a, b), second = std::max(a, b);
    return fail(ErrorCode::invalid_argument, "plan: " + name(first, items_[first], items_[first].*address_) + " and " +
                                                 name(second, items_[second], items_[second].*address_) + " use the same " + side_ +
                                                 " memory and at least one changes it");
  }

  std::span<const RawWrite> items_;
  const char* side_;
  std::uint64_t RawWrite::*address_;
  std::uint32_t changing_op_;
};

}  // namespace

Result<std::span<const std::uint64_t>> sorted_unique(std::span<const std::uint64_t> indices, std::string_view what, std::vector<std::uint64_t>& storage) {
  const auto not_ascending = [](std::uint64_t a, std::uint64_t b) { return a >= b; };
  if (std::adjacent_find(indices.begin(), indices.end(), not_ascending) == indices.end()) return indices;
  storage.assign(indices.begin(), indices.end());
  radix_sort(storage, [](std::uint64_t index) { return index; });
  const auto doubled = std::adjacent_find(storage.begin(), storage.end());
  if (doubled == storage.end()) return std::span<const std::uint64_t>(storage);
  const auto first = std::find(indices.begin(), indices.end(), *doubled);
  const auto second = std::find(first + 1, indices.end(), *doubled);
  return fail(ErrorCode::invalid_argument, std::string(what) + ": index " + std::to_string(*doubled) + " is there twice, at positions " +
                                               std::to_string(first - indices.begin()) + " and " + std::to_string(second - indices.begin()));
}

Result<void> check_entries_disjoint(std::span<const EntryTargets> entries) {
  std::vector<TouchedSpan> spans;
  spans.reserve(entries.size());
  for (const EntryTargets& entry : entries) spans.push_back(touched_span(entry));
  std::sort(spans.begin(), spans.end(), [](const TouchedSpan& a, const TouchedSpan& b) { return std::pair(a.region, a.begin) < std::pair(b.region, b.begin); });
  for (std::size_t first = 0; first < spans.size();) {
    std::uint64_t end = spans[first].end;
    std::size_t last = first + 1;
    for (; last < spans.size() && spans[last].region == spans[first].region && spans[last].begin < end; ++last) end = std::max(end, spans[last].end);
    const std::span<const TouchedSpan> cluster(spans.data() + first, last - first);
    if (cluster.size() > 1 && !interleaved(cluster)) {
      if (auto walked = walk(cluster); !walked) return walked;
    }
    first = last;
  }
  return {};
}

Result<void> check_raw_conflicts(std::span<const RawWrite> items) {
  if (auto target = ConflictCheck(items, "target", &RawWrite::target_address, KVFERRY_OP_WRITE).run(); !target) return target;
  return ConflictCheck(items, "source", &RawWrite::source_address, KVFERRY_OP_READ).run();
}

}  // namespace plan_detail

Result<void> check_unique(std::span<const std::uint64_t> indices, std::string_view what) {
  try {
    std::vector<std::uint64_t> storage;
    auto sorted = plan_detail::sorted_unique(indices, what, storage);
    if (!sorted) return fail(std::move(sorted.error()));
    return {};
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::no_memory, "out of memory");
  }
}

}  // namespace kvferry
