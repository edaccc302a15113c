/// The job of a benchmark round: equal pieces from random places of one pool to random places of another.
#pragma once

#include <cstdint>
#include <vector>

#include "pattern.h"

namespace kvferry::transfer_check {

/// The same on both sides of a run: made from these numbers wherever it is needed.
struct PieceJob {
  std::uint64_t piece_bytes = 0, pool_bytes = 0, seed = 1;

  std::uint64_t pool_pieces() const { return pool_bytes / piece_bytes; }
  /// Half of the pool moves in a round; at least one piece.
  std::uint64_t pieces() const { return pool_pieces() / 2 == 0 ? 1 : pool_pieces() / 2; }
  std::uint64_t bytes() const { return pieces() * piece_bytes; }
};

/// Byte offsets of the pieces, in the order they are sent.
struct PieceList {
  std::vector<std::uint64_t> source, target;
};
PieceList make_pieces(const PieceJob& job);

/// The pool as a pattern and an expectation see it: one entry, one index per piece.
Pool piece_pool(const PieceJob& job);
/// Index lists of the same pieces.
IndicesBySpace source_piece_indices(const PieceJob& job);
IndicesBySpace target_piece_indices(const PieceJob& job);

}  // namespace kvferry::transfer_check
