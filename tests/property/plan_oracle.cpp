#include "plan_oracle.h"

#include <algorithm>
#include <map>
#include <sstream>

namespace kvferry::test {
namespace {

std::string show(const Element& element) {
  std::ostringstream out;
  out << (element.op == KVFERRY_OP_READ ? "read " : "write ") << element.region << ":" << element.offset << " pieces";
  for (const Element::Piece& piece : element.pieces) out << " " << piece.region << ":" << piece.offset << "+" << piece.length;
  return out.str();
}

std::uint64_t length(const Element& element) {
  std::uint64_t sum = 0;
  for (const Element::Piece& piece : element.pieces) sum += piece.length;
  return sum;
}

bool touch(const Element::Piece& before, const Element::Piece& next) { return before.region == next.region && before.offset + before.length == next.offset; }

bool could_be_one(const Element& before, const Element& next, const PlanLimits& limits) {
  if (before.op != next.op || before.region != next.region || before.offset + length(before) != next.offset) return false;
  if (length(before) + length(next) > limits.message_bytes_max) return false;
  const std::size_t pieces = before.pieces.size() + next.pieces.size() - (touch(before.pieces.back(), next.pieces.front()) ? 1 : 0);
  return pieces <= limits.pieces_per_write_max;
}

std::string verify_elements(const std::vector<Element>& elements, const std::vector<ByteMove>& wanted, const PlanLimits& limits) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const Element& element = elements[i];
    const auto wrong = [&](const std::string& what) { return "element " + std::to_string(i) + " (" + show(element) + "): " + what; };
    if (element.pieces.empty()) return wrong("no piece");
    if (element.pieces.size() > limits.pieces_per_write_max) return wrong("too many pieces");
    if (length(element) > limits.message_bytes_max) return wrong("too long");
    if (i > 0 && could_be_one(elements[i - 1], element, limits)) return wrong("could be one with " + show(elements[i - 1]));
    std::uint64_t target_offset = element.offset;
    for (std::size_t p = 0; p < element.pieces.size(); ++p) {
      const Element::Piece& piece = element.pieces[p];
      if (piece.length == 0) return wrong("an empty piece");
      if (p > 0 && touch(element.pieces[p - 1], piece)) return wrong("pieces that touch");
      for (std::uint64_t byte = 0; byte < piece.length; ++byte) {
        const ByteMove move{piece.region, piece.offset + byte, element.region, target_offset++, element.op};
        if (at == wanted.size()) return wrong("more bytes than wanted");
        if (move != wanted[at]) return wrong("not byte " + std::to_string(at) + " of those wanted");
        ++at;
      }
    }
  }
  return at == wanted.size() ? "" : "only " + std::to_string(at) + " of " + std::to_string(wanted.size()) + " bytes";
}

std::string verify_counts(const Plan& plan, const std::vector<Element>& elements, const std::vector<ByteMove>& wanted) {
  std::uint64_t pieces = 0;
  for (const Element& element : elements) pieces += element.pieces.size();
  const PlanCounts& counts = plan.counts();
  if (counts.writes != elements.size()) return "counts.writes is " + std::to_string(counts.writes) + ", given " + std::to_string(elements.size());
  if (counts.pieces != pieces) return "counts.pieces is " + std::to_string(counts.pieces) + ", given " + std::to_string(pieces);
  if (counts.bytes != wanted.size()) return "counts.bytes is " + std::to_string(counts.bytes) + ", wanted " + std::to_string(wanted.size());
  return "";
}

/// Room for one batch; collects what is given.
class Batch {
 public:
  explicit Batch(const BatchSize& size) : writes_(size.writes), pieces_(size.pieces) {}

  std::string fill(WriteCursor& cursor) {
    filled_ = cursor.fill(writes_, pieces_);
    if (filled_.writes > writes_.size() || filled_.pieces > pieces_.size()) return "more filled than there is room for";
    std::uint64_t pieces = 0, bytes = 0;
    for (std::size_t i = 0; i < filled_.writes; ++i) {
      if (writes_[i].first_piece != pieces || writes_[i].reserved != 0) return "first_piece or reserved of write " + std::to_string(i);
      pieces += writes_[i].piece_count;
      if (pieces > filled_.pieces) return "a write beyond the pieces filled";
    }
    for (std::size_t i = 0; i < filled_.pieces; ++i) bytes += pieces_[i].length;
    if (pieces != filled_.pieces || bytes != filled_.bytes) return "the sums of a fill do not fit its writes";
    return "";
  }

  std::uint32_t filled() const { return filled_.writes; }

  bool gives(std::size_t i, const Element& expected) const {
    const kvferry_write& write = writes_[i];
    if (write.remote_region != expected.region || write.remote_offset != expected.offset || write.op != expected.op) return false;
    return std::equal(expected.pieces.begin(), expected.pieces.end(), pieces_.begin() + write.first_piece,
                      pieces_.begin() + write.first_piece + write.piece_count, [](const Element::Piece& a, const kvferry_piece& b) {
                        return a.region == b.region && a.offset == b.offset && a.length == b.length;
                      });
  }

  Element element(std::size_t i) const {
    Element element{writes_[i].remote_region, writes_[i].remote_offset, writes_[i].op, {}};
    for (std::size_t p = 0; p < writes_[i].piece_count; ++p) {
      const kvferry_piece& piece = pieces_[writes_[i].first_piece + p];
      element.pieces.push_back({piece.region, piece.offset, piece.length});
    }
    return element;
  }

 private:
  std::vector<kvferry_write> writes_;
  std::vector<kvferry_piece> pieces_;
  WriteCursor::Filled filled_;
};

/// Batches of which a backend takes some: the start cursor of the batch goes on by what was taken, or is replaced by the one that filled it. Now and then
/// the batch is filled again from the start, as after the loss of a rail.
std::string verify_partly_accepted(const Plan& plan, const BatchSize& size, const std::vector<Element>& expected, std::uint64_t random) {
  Batch batch(size);
  std::size_t at = 0;
  WriteCursor start = plan.begin();
  for (int rounds = 0; !start.done(); ++rounds) {
    if (rounds > 1000 + static_cast<int>(expected.size()) * 8) return "no way forward";
    random = random * 6364136223846793005u + 1442695040888963407u;
    WriteCursor ahead = start;
    if (std::string wrong = batch.fill(ahead); !wrong.empty()) return wrong;
    if (batch.filled() == 0) return "nothing filled though there is room";
    const std::uint64_t accepted = (random >> 33) % (batch.filled() + 1);
    for (std::size_t i = 0; i < batch.filled(); ++i) {
      if (at + i >= expected.size() || !batch.gives(i, expected[at + i])) return "element " + std::to_string(at + i) + " differs in a batch that began at " + std::to_string(at);
    }
    if (accepted == batch.filled() && (random >> 20 & 1) != 0) {
      start = ahead;
    } else {
      start.skip(accepted);
    }
    at += accepted;
  }
  return at == expected.size() ? "" : "done at element " + std::to_string(at) + " of " + std::to_string(expected.size());
}

std::string verify_skips(const Plan& plan, const std::vector<Element>& expected) {
  Batch one({1, plan.limits().pieces_per_write_max});
  for (std::size_t count = 0; count <= expected.size() + 1; ++count) {
    WriteCursor cursor = plan.begin();
    cursor.skip(count);
    if (cursor.done() != (count >= expected.size())) return "done() after skipping " + std::to_string(count);
    if (std::string wrong = one.fill(cursor); !wrong.empty()) return wrong;
    if (one.filled() != (count < expected.size() ? 1 : 0)) return "nothing or too much after skipping " + std::to_string(count);
    if (one.filled() == 1 && !one.gives(0, expected[count])) return "element " + std::to_string(count) + " differs after skipping to it";
  }
  return "";
}

}  // namespace

std::string describe(const Job& job) {
  std::ostringstream out;
  for (const PlanEntry& entry : job.entries) {
    out << "\n  entry of " << to_string(entry.space) << ": item " << entry.item_length_bytes << ", source " << entry.source.region << ":" << entry.source.offset
        << " pitch " << entry.source_pitch_bytes << " x" << entry.source_index_count << ", target " << entry.target.region << ":" << entry.target.offset
        << " pitch " << entry.target_pitch_bytes << " x" << entry.target_index_count;
  }
  for (std::size_t space = 0; space < kIndexSpacesCount; ++space) {
    if (job.lists[space].source.empty()) continue;
    out << "\n  " << to_string(static_cast<IndexSpace>(space)) << ":";
    for (std::size_t i = 0; i < job.lists[space].source.size(); ++i) out << " " << job.lists[space].source[i] << ">" << job.lists[space].target[i];
  }
  out << "\n  message " << job.limits.message_bytes_max << ", pieces " << job.limits.pieces_per_write_max;
  return out.str();
}

std::vector<ByteMove> wanted_moves(const Job& job) {
  std::vector<ByteMove> moves;
  for (const PlanEntry& entry : job.entries) {
    const IndexLists& lists = job.lists[static_cast<std::size_t>(entry.space)];
    for (std::size_t i = 0; i < lists.source.size(); ++i) {
      for (std::uint64_t byte = 0; byte < entry.item_length_bytes; ++byte) {
        moves.push_back({entry.source.region, entry.source.offset + lists.source[i] * entry.source_pitch_bytes + byte, entry.target.region,
                         entry.target.offset + lists.target[i] * entry.target_pitch_bytes + byte, KVFERRY_OP_WRITE});
      }
    }
  }
  return moves;
}

std::string collect(const Plan& plan, const BatchSize& size, std::vector<Element>& ret_elements) {
  Batch batch(size);
  for (WriteCursor cursor = plan.begin(); !cursor.done();) {
    if (std::string wrong = batch.fill(cursor); !wrong.empty()) return wrong;
    if (batch.filled() == 0) return "nothing filled though there is room";
    for (std::size_t i = 0; i < batch.filled(); ++i) ret_elements.push_back(batch.element(i));
  }
  return "";
}

std::string verify(const Plan& plan, const std::vector<ByteMove>& wanted, std::uint64_t random) {
  const PlanLimits& limits = plan.limits();
  const std::size_t pieces_max = limits.pieces_per_write_max;
  std::vector<Element> elements;
  if (std::string wrong = collect(plan, {wanted.size() + 1, wanted.size() + pieces_max}, elements); !wrong.empty()) return wrong;
  if (std::string wrong = verify_elements(elements, wanted, limits); !wrong.empty()) return wrong;
  if (std::string wrong = verify_counts(plan, elements, wanted); !wrong.empty()) return wrong;
  if (std::string wrong = verify_skips(plan, elements); !wrong.empty()) return "skip: " + wrong;
  for (const BatchSize& size : {BatchSize{1, pieces_max}, BatchSize{2, pieces_max}, BatchSize{3, pieces_max + 1}, BatchSize{7, 2 * pieces_max - 1}}) {
    if (std::string wrong = verify_partly_accepted(plan, size, elements, random); !wrong.empty()) {
      return "batches of " + std::to_string(size.writes) + " writes and " + std::to_string(size.pieces) + " pieces: " + wrong;
    }
  }
  return "";
}

RawJob as_raw(const Job& job) {
  // Regions far from each other, so that offsets decide what touches as they do in the paged plan.
  const auto address = [](std::uint64_t side, kvferry_region region) { return side + (region << 40); };
  constexpr std::uint64_t kSource = 0x7000'0000'0000'0000, kTarget = 0xF000'0000'0000'0000;
  RawJob raw;
  std::map<kvferry_region, std::uint64_t> sources, targets;
  for (const PlanEntry& entry : job.entries) {
    sources[entry.source.region] = entry.source.region_length;
    targets[entry.target.region] = entry.target.region_length;
    const IndexLists& lists = job.lists[static_cast<std::size_t>(entry.space)];
    for (std::size_t i = 0; i < lists.source.size(); ++i) {
      raw.list.push_back({address(kSource, entry.source.region) + entry.source.offset + lists.source[i] * entry.source_pitch_bytes,
                          address(kTarget, entry.target.region) + entry.target.offset + lists.target[i] * entry.target_pitch_bytes, entry.item_length_bytes,
                          KVFERRY_OP_WRITE});
    }
  }
  for (const auto& [region, length] : sources) (void)raw.source.add({region, address(kSource, region), length});  // a refusal shows as an item not found
  for (const auto& [region, length] : targets) (void)raw.target.add({region, address(kTarget, region), length});
  return raw;
}

}  // namespace kvferry::test
