/// Plans as text, so that a table row can say what must come out.
///
///   "2:640+192 = 1:256+64 1:512+128"     192 bytes to offset 640 of region 2, gathered from two pieces of region 1
///   "2:640+192 > 1:256+192"              the same range read into region 1
#pragma once

#include <string>
#include <vector>

#include "kvferry/plan.h"

namespace kvferry::test {

inline std::string range(kvferry_region region, std::uint64_t offset, std::uint64_t length) {
  return std::to_string(region).append(":").append(std::to_string(offset)).append("+").append(std::to_string(length));
}

/// All writes of a plan, given in batches of `batch_writes`.
inline std::vector<std::string> texts(const Plan& plan, std::size_t batch_writes = 16) {
  std::vector<kvferry_write> writes(batch_writes);
  std::vector<kvferry_piece> pieces(batch_writes * plan.limits().pieces_per_write_max);
  std::vector<std::string> all;
  for (WriteCursor cursor = plan.begin(); !cursor.done();) {
    const auto filled = cursor.fill(writes, pieces);
    if (filled.writes == 0) {
      all.push_back("nothing filled");
      break;
    }
    for (std::size_t i = 0; i < filled.writes; ++i) {
      std::uint64_t length = 0;
      std::string from;
      for (std::size_t p = 0; p < writes[i].piece_count; ++p) {
        const kvferry_piece& piece = pieces[writes[i].first_piece + p];
        length += piece.length;
        from.append(" ").append(range(piece.region, piece.offset, piece.length));
      }
      all.push_back(range(writes[i].remote_region, writes[i].remote_offset, length).append(writes[i].op == KVFERRY_OP_READ ? " >" : " =").append(from));
    }
  }
  return all;
}

inline IndexListsBySpace page_lists(std::vector<std::uint64_t> source, std::vector<std::uint64_t> target) {
  IndexListsBySpace lists;
  lists[static_cast<std::size_t>(IndexSpace::pages)] = {std::move(source), std::move(target)};
  return lists;
}

}  // namespace kvferry::test
