/// From stretches to writes: the one place that decides where a write begins and ends.
///
///   stretches     ├──A──┤├──B──┤ ├────────C────────┤     as the reader gives them, in order
///   touching       source no,      nowhere
///                  target yes
///   writes        [ A B        ] [ C 1.. ][ C 2.. ]      A, B: one write of two pieces; C: longer than a message
///
/// A write takes all it can: stretches follow as long as the target goes on where it ended, and a stretch whose source goes on too makes its piece longer
/// instead of adding one. It ends when the target does not go on, when the message is full, or when a new piece would be one too many. So two writes in
/// a row are never one, and where a write ends depends on where it begins and on nothing else: a copied cursor gives the same writes again.
///
/// `fill`, `skip` and the counts of a plan are this loop with three sinks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "plan_state.h"

namespace kvferry::plan_detail {

/// Where a cursor stands; the fields of WriteCursor.
struct Position {
  std::uint64_t entry = 0, run = 0, index = 0, byte = 0;
};

/// The stretches of entries and runs, entry by entry.
class PagedReader {
 public:
  PagedReader(const PlanState& state, const Position& position) : streams_(state.streams.data()), stream_end_(streams_ + state.streams.size()) {
    seek(position);
  }

  bool done() const { return stream_ == stream_end_; }
  const Stretch& now() const { return now_; }

  Position position() const {
    return {static_cast<std::uint64_t>(stream_ - streams_), done() ? 0 : static_cast<std::uint64_t>(run_ - stream_->runs), index_, byte_};
  }

  void seek(const Position& position) {
    stream_ = streams_ + position.entry;
    index_ = position.index;
    byte_ = position.byte;
    if (done()) return;
    run_ = stream_->runs + position.run;
    load();
  }

  /// Moves on by `bytes`, at most the rest of the stretch.
  void take(std::uint64_t bytes) {
    if (bytes < now_.length) {
      byte_ += bytes;
      now_.source_offset += bytes;
      now_.target_offset += bytes;
      now_.length -= bytes;
      return;
    }
    byte_ = 0;
    if (stream_->packed || ++index_ == run_->count) {
      index_ = 0;
      if (++run_ == stream_->runs_end) {
        if (++stream_ == stream_end_) return;
        run_ = stream_->runs;
      }
    }
    load();
  }

  /// Gives stretches of this entry that are writes of their own, up to one that is not or may not be: it is longer than a message, the target of the next
  /// one goes on where it ends, or it is the last of the entry, whose follower is in another entry. The reader stands where a write begins.
  template <class Sink>
  Sink give_singles(const PlanLimits& limits, Sink sink) {
    if (byte_ != 0) return sink;
    const EntryStream stream = *stream_;
    const bool gathers = limits.pieces_per_write_max > 1 && stream.target_pitch == stream.item_length;
    const Run* const last = stream.runs_end - 1;
    const Run* run = run_;
    const auto single = [&](std::uint64_t index, std::uint64_t length) {
      sink.single({stream.source_region, stream.source_offset + (run->source + index) * stream.source_pitch, stream.target_region,
                   stream.target_offset + (run->target + index) * stream.target_pitch, length, KVFERRY_OP_WRITE});
    };
    if (stream.packed) {
      for (; run != last && sink.room_for_single(); ++run) {
        const std::uint64_t length = run->count * stream.item_length;
        if (length > limits.message_bytes_max || (gathers && run->target + run->count == run[1].target)) break;
        single(0, length);
      }
    } else if (!gathers && stream.item_length <= limits.message_bytes_max) {
      std::uint64_t index = index_;
      while (sink.room_for_single() && !(run == last && index + 1 == run->count)) {
        single(index, stream.item_length);
        if (++index == run->count) {
          index = 0;
          ++run;
        }
      }
      index_ = index;
    }
    run_ = run;
    load();
    return sink;
  }

 private:
  void load() {
    const EntryStream& stream = *stream_;
    now_.source_region = stream.source_region;
    now_.target_region = stream.target_region;
    now_.source_offset = stream.source_offset + (run_->source + index_) * stream.source_pitch + byte_;
    now_.target_offset = stream.target_offset + (run_->target + index_) * stream.target_pitch + byte_;
    now_.length = (stream.packed ? run_->count * stream.item_length : stream.item_length) - byte_;
  }

  const EntryStream* streams_;
  const EntryStream* stream_end_;
  const EntryStream* stream_ = nullptr;
  const Run* run_ = nullptr;
  std::uint64_t index_ = 0, byte_ = 0;
  Stretch now_;
};

inline bool target_goes_on(const Stretch& before, const Stretch& next) {
  return before.target_offset + before.length == next.target_offset && before.target_region == next.target_region && before.op == next.op;
}

/// The stretches of a raw list.
class RawReader {
 public:
  RawReader(const PlanState& state, const Position& position) : stretches_(state.stretches.data()), end_(stretches_ + state.stretches.size()) {
    seek(position);
  }

  bool done() const { return next_ == end_; }
  const Stretch& now() const { return now_; }
  Position position() const { return {static_cast<std::uint64_t>(next_ - stretches_), 0, 0, byte_}; }

  void seek(const Position& position) {
    next_ = stretches_ + position.entry;
    byte_ = 0;
    if (done()) return;
    now_ = *next_;
    if (position.byte != 0) take(position.byte);
  }

  void take(std::uint64_t bytes) {
    if (bytes < now_.length) {
      byte_ += bytes;
      now_.source_offset += bytes;
      now_.target_offset += bytes;
      now_.length -= bytes;
      return;
    }
    byte_ = 0;
    if (++next_ != end_) now_ = *next_;
  }

  /// See PagedReader.
  template <class Sink>
  Sink give_singles(const PlanLimits& limits, Sink sink) {
    if (byte_ != 0) return sink;
    const bool gathers = limits.pieces_per_write_max > 1;
    const Stretch* next = next_;
    for (; next + 1 != end_ && sink.room_for_single(); ++next) {
      if (next->length > limits.message_bytes_max || (gathers && target_goes_on(next[0], next[1]))) break;
      sink.single(*next);
    }
    next_ = next;
    now_ = *next_;
    return sink;
  }

 private:
  const Stretch* stretches_;
  const Stretch* end_;
  const Stretch* next_ = nullptr;
  std::uint64_t byte_ = 0;
  Stretch now_;
};

/// Counts elements without giving them out; stops after `writes_max`.
struct CountSink {
  std::uint64_t writes_max = 0;
  std::uint64_t writes = 0;
  std::uint64_t pieces = 0;

  static constexpr bool kCountsOnly = true;
  bool wants_write() const { return writes != writes_max; }
  bool room_for_single() const { return writes != writes_max; }
  void single(const Stretch&) {
    ++writes;
    ++pieces;
  }
  bool may_run_short(std::uint32_t) const { return false; }
  void open(const Stretch&) {}
  bool add_piece(const Stretch&, std::uint64_t) { return true; }
  void extend_piece(std::uint64_t) {}
  void close(std::uint32_t piece_count, std::uint64_t) {
    ++writes;
    pieces += piece_count;
  }
};

/// Fills spans of a batch.
class FillSink {
 public:
  FillSink(std::span<kvferry_write> writes, std::span<kvferry_piece> pieces)
      : writes_(writes.data()), write_(writes_), write_end_(writes_ + std::min<std::size_t>(writes.size(), UINT32_MAX)),
        pieces_(pieces.data()), piece_(pieces_), piece_end_(pieces_ + std::min<std::size_t>(pieces.size(), UINT32_MAX)) {}

  static constexpr bool kCountsOnly = false;
  bool wants_write() const { return write_ != write_end_; }
  bool room_for_single() const { return write_ != write_end_ && piece_ != piece_end_; }
  /// A write of one piece.
  void single(const Stretch& stretch) {
    *write_++ = {stretch.target_region, stretch.target_offset, pieces(), 1, stretch.op, 0};
    *piece_++ = {stretch.source_region, stretch.source_offset, stretch.length};
    bytes_ += stretch.length;
  }
  /// Whether an element of `pieces_max` pieces may not fit any more.
  bool may_run_short(std::uint32_t pieces_max) const { return piece_end_ - piece_ < static_cast<std::ptrdiff_t>(pieces_max); }

  void open(const Stretch& first) {
    *write_ = {first.target_region, first.target_offset, pieces(), 0, first.op, 0};
  }
  bool add_piece(const Stretch& from, std::uint64_t length) {
    if (piece_ == piece_end_) {
      piece_ = pieces_ + write_->first_piece;
      return false;
    }
    *piece_++ = {from.source_region, from.source_offset, length};
    return true;
  }
  void extend_piece(std::uint64_t length) { piece_[-1].length += length; }
  void close(std::uint32_t piece_count, std::uint64_t length) {
    (write_++)->piece_count = piece_count;
    bytes_ += length;
  }

  std::uint32_t writes() const { return static_cast<std::uint32_t>(write_ - writes_); }
  std::uint32_t pieces() const { return static_cast<std::uint32_t>(piece_ - pieces_); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  kvferry_write* writes_;
  kvferry_write* write_;
  kvferry_write* write_end_;
  kvferry_piece* pieces_;
  kvferry_piece* piece_;
  kvferry_piece* piece_end_;
  std::uint64_t bytes_ = 0;
};

/// Gives writes to the sink until it wants no more, has no room for the next one, or the reader is done; then the sink and the place of the reader are
/// returned. All by value: the compiler keeps them in registers.
template <class Reader, class Sink>
std::pair<Sink, Position> stream_writes(Reader reader, const PlanLimits limits, Sink sink) {
  while (!reader.done() && sink.wants_write()) {
    sink = reader.give_singles(limits, sink);
    if (!sink.wants_write()) break;
    if constexpr (Sink::kCountsOnly) {
      // Full messages inside one stretch are counted at once, so that the time does not depend on the bytes.
      if (reader.now().length > limits.message_bytes_max) {
        const std::uint64_t full = std::min(reader.now().length / limits.message_bytes_max, sink.writes_max - sink.writes);
        sink.writes += full;
        sink.pieces += full;
        reader.take(full * limits.message_bytes_max);
        continue;
      }
    }
    Position start;
    if (sink.may_run_short(limits.pieces_per_write_max)) start = reader.position();

    sink.open(reader.now());
    std::uint64_t bytes = 0, source_end = 0, target_end = 0;
    kvferry_region source_region = 0, target_region = 0;
    std::uint32_t op = 0, pieces = 0;
    do {
      const Stretch& now = reader.now();
      if (pieces > 0 && (now.target_offset != target_end || now.target_region != target_region || now.op != op)) break;
      const std::uint64_t length = std::min(now.length, limits.message_bytes_max - bytes);
      if (pieces > 0 && now.source_offset == source_end && now.source_region == source_region) {
        sink.extend_piece(length);
      } else if (pieces == limits.pieces_per_write_max) {
        break;
      } else if (!sink.add_piece(now, length)) {
        return {sink, start};
      } else {
        ++pieces;
      }
      source_region = now.source_region;
      target_region = now.target_region;
      op = now.op;
      source_end = now.source_offset + length;
      target_end = now.target_offset + length;
      bytes += length;
      reader.take(length);
    } while (bytes != limits.message_bytes_max && !reader.done());
    sink.close(pieces, bytes);
  }
  return {sink, reader.position()};
}

}  // namespace kvferry::plan_detail
