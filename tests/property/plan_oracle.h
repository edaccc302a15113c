/// The slow way to plan, and how a plan is compared with it.
///
/// A plan is right if, spelled out byte by byte, its writes are exactly the moves that two nested loops over entries and indices give, in that order. As
/// each wanted byte is in that list once, this says that each is written once, from the right place, and that nothing else is touched.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvferry/plan.h"

namespace kvferry::test {

struct Job {
  std::vector<PlanEntry> entries;
  IndexListsBySpace lists;
  PlanLimits limits;
};
std::string describe(const Job& job);

/// One byte on its way.
struct ByteMove {
  kvferry_region source_region = 0;
  std::uint64_t source_offset = 0;
  kvferry_region target_region = 0;
  std::uint64_t target_offset = 0;
  std::uint32_t op = KVFERRY_OP_WRITE;
  friend bool operator==(const ByteMove&, const ByteMove&) = default;
};
std::vector<ByteMove> wanted_moves(const Job& job);

/// A write with its pieces, whatever batch it came in.
struct Element {
  kvferry_region region = 0;
  std::uint64_t offset = 0;
  std::uint32_t op = 0;
  struct Piece {
    kvferry_region region = 0;
    std::uint64_t offset = 0, length = 0;
    friend bool operator==(const Piece&, const Piece&) = default;
  };
  std::vector<Piece> pieces;
  friend bool operator==(const Element&, const Element&) = default;
};

/// Spans of a batch and what was taken out of them.
struct BatchSize {
  std::size_t writes = 0, pieces = 0;
};

/// The functions below return what is wrong, or nothing.

/// Everything a plan promises: bytes, order, limits, nothing left to merge, counts; the same elements whatever the batches are, after a prefix was
/// accepted, after skipping, and from a copied cursor. `random` varies what is accepted.
std::string verify(const Plan& plan, const std::vector<ByteMove>& wanted, std::uint64_t random);

/// All elements, in batches of this size.
std::string collect(const Plan& plan, const BatchSize& size, std::vector<Element>& ret_elements);

/// The job as a raw list with absolute addresses, and the regions it lies in.
struct RawJob {
  std::vector<RawWrite> list;
  RegionMap source, target;
};
RawJob as_raw(const Job& job);

}  // namespace kvferry::test
