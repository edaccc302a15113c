#include "bench_pieces.h"

#include "random_pages.h"

namespace kvferry::transfer_check {
namespace {

IndicesBySpace indices(const PieceJob& job, SplitMix64 random) {
  IndicesBySpace lists;
  lists[static_cast<std::size_t>(IndexSpace::pages)] = random_pages({job.pieces(), job.pool_pieces(), 1}, random);
  return lists;
}

std::vector<std::uint64_t> offsets(const PieceJob& job, const IndicesBySpace& lists) {
  std::vector<std::uint64_t> bytes = lists[static_cast<std::size_t>(IndexSpace::pages)];
  for (auto& offset : bytes) offset *= job.piece_bytes;
  return bytes;
}

}  // namespace

IndicesBySpace source_piece_indices(const PieceJob& job) { return indices(job, source_random(job.seed)); }
IndicesBySpace target_piece_indices(const PieceJob& job) { return indices(job, target_random(job.seed)); }

PieceList make_pieces(const PieceJob& job) { return {offsets(job, source_piece_indices(job)), offsets(job, target_piece_indices(job))}; }

Pool piece_pool(const PieceJob& job) {
  Pool pool;
  pool.model = "pieces of " + std::to_string(job.piece_bytes) + " bytes";
  pool.kind = "bench";
  pool.layers_total = 1;
  pool.stage = {0, 1};
  Entry entry;
  entry.role = Role::latent;
  entry.dtype = DType::uint8;
  entry.pitch_bytes = job.piece_bytes;
  entry.item_length_bytes = job.piece_bytes;
  entry.index_count = job.pool_pieces();
  pool.entries = {entry};
  return pool;
}

}  // namespace kvferry::transfer_check
