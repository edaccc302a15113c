/// kvferry/plan.h: from entry pairs and index lists to a stream of bounds-checked writes.
///
///   index lists (one pair per space) ──► runs (merged once, used for every entry of the space)
///   runs × entries ──► cursor ──► fixed batches of kvferry_write + kvferry_piece (write_element.h)
///
/// A plan is immutable and is shared by its cursors; a cursor is a small copyable value. Filling a batch allocates nothing. No clock, no I/O, no
/// dereferenced pointer. All checks (equal list lengths, index bounds, overflow, region bounds on both sides) are made when the plan is made, before
/// the first write. Units: bytes and indices, 64 bits.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvferry/pool.h"
#include "kvferry/result.h"
#include "kvferry/slice.h"
#include "kvferry/write_element.h"

namespace kvferry {

/// Where an entry lies inside a registered region.
struct RegionSpan {
  kvferry_region region = 0;
  std::uint64_t offset = 0;         ///< of the entry's base address from the start of the region
  std::uint64_t region_length = 0;  ///< bytes
};

/// One pair of entries with everything the planner needs.
struct PlanEntry {
  std::uint32_t source_entry = 0, target_entry = 0;  ///< for messages and explain: indices into the pools
  IndexSpace space = IndexSpace::pages;
  std::uint64_t item_length_bytes = 0;
  std::uint64_t source_pitch_bytes = 0, target_pitch_bytes = 0;
  std::uint64_t source_index_count = 0, target_index_count = 0;
  RegionSpan source, target;
  std::string name;  ///< describe(entry)
};

/// Index lists of one space; equal lengths. Position i of one goes to position i of the other.
struct IndexLists {
  std::vector<std::uint64_t> source, target;
};
using IndexListsBySpace = std::array<IndexLists, kIndexSpacesCount>;

/// The backend's limits (kvferry_limits).
struct PlanLimits {
  std::uint64_t message_bytes_max = 1ull << 30;
  std::uint32_t pieces_per_write_max = 1;
};

/// Regions of one side by address, for callers that know addresses only. Overlaps are legal; the smallest region that holds the whole range wins, of
/// equally long ones the one that begins last, of equal ranges the newest.
class RegionMap {
 public:
  struct Region {
    kvferry_region id = 0;
    std::uint64_t address = 0, length = 0;
  };
  /// Errors: id 0, length 0, a range that wraps past 2^64, an id that is present.
  Result<void> add(Region region);
  /// Nothing happens where the id is not present.
  void remove(kvferry_region id);
  /// The region that holds [address, address + length), or an error that names the range and the nearest region.
  Result<RegionSpan> find(std::uint64_t address, std::uint64_t length) const;
  /// The same as a pointer, or null; valid until the next add or remove.
  const Region* lookup(std::uint64_t address, std::uint64_t length) const noexcept;
  /// Whether no other region shares a byte with this one, which `lookup` gave: then it is the answer for every range inside it.
  bool stands_alone(const Region& region) const noexcept;
  std::size_t size() const noexcept { return regions_.size(); }
  /// By address; of equal addresses the longest first.
  const std::vector<Region>& regions() const noexcept { return regions_; }

 private:
  void link_from(std::size_t place);

  std::vector<Region> regions_;
  std::vector<std::size_t> outer_;  ///< for each region the nearest one before it that ends no earlier
};

/// One operation of a raw list: absolute addresses. The source is local and the target the peer's, whatever the op: a read moves bytes from the target
/// to the source.
struct RawWrite {
  std::uint64_t source_address = 0, target_address = 0, length_bytes = 0;
  std::uint32_t op = KVFERRY_OP_WRITE;
};

/// Facts about a plan, from the code that runs it.
struct PlanCounts {
  std::uint64_t entries = 0;              ///< those with at least one index; 0 for a raw list
  std::uint64_t runs = 0;                 ///< sum over spaces, after joining indices that step by one on both sides; raw: ranges after joining
  std::uint64_t writes_before_merge = 0;  ///< one per entry and index (or raw item)
  std::uint64_t writes = 0;               ///< elements the cursor gives
  std::uint64_t pieces = 0;
  std::uint64_t bytes = 0;
};

class WriteCursor;

class Plan {
 public:
  /// Pairs and pools to plan entries is `resolve_entries`. Errors: lists of unequal length (space, both lengths), an index outside an entry (space,
  /// position, index, count), a target index twice in one list, a span outside its region, two entries that would write the same bytes of a target
  /// region, overflow, zero limits, item length 0, a pitch shorter than the item.
  static Result<std::shared_ptr<const Plan>> make(std::vector<PlanEntry> entries, const IndexListsBySpace& lists, PlanLimits limits);
  /// Raw list: the whole list is resolved and refused before the first byte; errors name the item number, both ranges and the nearest region. Items must
  /// not conflict: where one changes a byte that another one also uses, the result would depend on which goes first (the same bytes written twice to
  /// the same place are no conflict).
  static Result<std::shared_ptr<const Plan>> make_raw(std::span<const RawWrite> writes, const RegionMap& source, const RegionMap& target,
                                                      PlanLimits limits);

  WriteCursor begin() const;
  const PlanCounts& counts() const noexcept;
  const std::vector<PlanEntry>& entries() const noexcept;
  const PlanLimits& limits() const noexcept;

  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

 private:
  struct State;
  explicit Plan(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
  friend class WriteCursor;
};

/// A position in a plan. Copyable (a batch keeps a copy of where it started); borrows the plan, which must outlive it.
class WriteCursor {
 public:
  WriteCursor() = default;  ///< done, gives nothing
  struct Filled {
    std::uint32_t writes = 0, pieces = 0;
    std::uint64_t bytes = 0;
  };
  /// Writes at most writes.size() elements and pieces.size() pieces, whole elements only, and moves on. Nothing filled and `done()` false means that the
  /// piece span is shorter than one element needs (never with pieces.size() >= limits.pieces_per_write_max).
  Filled fill(std::span<kvferry_write> writes, std::span<kvferry_piece> pieces);
  /// Moves on by `count` elements without giving them out (after a prefix was accepted).
  void skip(std::uint64_t count);
  bool done() const noexcept;

 private:
  friend class Plan;
  explicit WriteCursor(const Plan::State& plan) noexcept : plan_(&plan) {}
  template <class Sink>
  Sink stream(Sink sink);

  const Plan::State* plan_ = nullptr;
  std::uint64_t entry_ = 0;  ///< of those with work, or stretch of a raw list
  std::uint64_t run_ = 0;    ///< inside the entry's space
  std::uint64_t index_ = 0;  ///< inside the run; 0 where a whole run is one stretch
  std::uint64_t byte_ = 0;   ///< inside the stretch
};

/// Looks up both sides' regions for every pair. Errors name the entry, its range and the nearest region.
Result<std::vector<PlanEntry>> resolve_entries(const Pool& source, const Pool& target, std::span<const EntryPair> pairs, const RegionMap& source_regions,
                                               const RegionMap& target_regions);

/// Duplicate target indices are refused by Plan::make; this names them for callers that check earlier.
Result<void> check_unique(std::span<const std::uint64_t> indices, std::string_view what);

}  // namespace kvferry
