/// A position in a plan. See stream.h for how it moves.
#include <tuple>

#include "plan_private.h"
#include "stream.h"

namespace kvferry {

using plan_detail::CountSink;
using plan_detail::FillSink;
using plan_detail::PagedReader;
using plan_detail::Position;
using plan_detail::RawReader;

template <class Sink>
Sink WriteCursor::stream(Sink sink) {
  const Position from{entry_, run_, index_, byte_};
  Position to;
  if (plan_->stretches.empty()) {
    std::tie(sink, to) = plan_detail::stream_writes(PagedReader(*plan_, from), plan_->limits, sink);
  } else {
    std::tie(sink, to) = plan_detail::stream_writes(RawReader(*plan_, from), plan_->limits, sink);
  }
  entry_ = to.entry;
  run_ = to.run;
  index_ = to.index;
  byte_ = to.byte;
  return sink;
}

WriteCursor::Filled WriteCursor::fill(std::span<kvferry_write> writes, std::span<kvferry_piece> pieces) {
  if (done()) return {};
  const FillSink sink = stream(FillSink(writes, pieces));
  return {sink.writes(), sink.pieces(), sink.bytes()};
}

void WriteCursor::skip(std::uint64_t count) {
  if (done()) return;
  stream(CountSink{.writes_max = count});
}

bool WriteCursor::done() const noexcept { return plan_ == nullptr || entry_ == plan_->streams.size() + plan_->stretches.size(); }

void plan_detail::count_writes(PlanState& state) {
  CountSink sink{.writes_max = UINT64_MAX};
  if (state.stretches.empty()) {
    sink = stream_writes(PagedReader(state, {}), state.limits, sink).first;
  } else {
    sink = stream_writes(RawReader(state, {}), state.limits, sink).first;
  }
  state.counts.writes = sink.writes;
  state.counts.pieces = sink.pieces;
}

}  // namespace kvferry
