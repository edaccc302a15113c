#include "initiator.h"

#include <algorithm>

#include "bounds.h"

namespace kvferry::plugins {
namespace {

std::string room_text(std::uint64_t room, std::uint32_t generation) {
  return "room " + std::to_string(room) + " generation " + std::to_string(generation);
}

}  // namespace

// ---- submit -------------------------------------------------------------------------------------------------------------------------------------

/// One write, checked in full; its length and the addresses of its pieces are noted. False: `objection` tells why not.
bool Initiator::resolve(const kvferry_batch& batch, std::uint32_t index) noexcept {
  const kvferry_write& write = batch.writes[index];
  const bool read = write.op == KVFERRY_OP_READ && env_.limits.reads;
  if ((write.op != KVFERRY_OP_WRITE && !read) || write.reserved != 0 || write.piece_count == 0 || write.piece_count > env_.limits.pieces_per_write_max) return false;
  if (std::uint64_t{write.first_piece} + write.piece_count > batch.piece_count) return false;
  std::uint64_t length = 0;
  for (std::uint32_t i = write.first_piece; i < write.first_piece + write.piece_count; ++i) {
    const kvferry_piece& piece = batch.pieces[i];
    const LocalRegion* region = env_.regions.find_local(piece.region);
    if (region == nullptr || region->draining || piece.length == 0) return false;
    if (piece.offset > region->length || piece.length > region->length - piece.offset || !checked_add(length, piece.length, length)) return false;
    addresses_[i] = region->address + piece.offset;
  }
  const RemoteRegionBase* remote = env_.remote_regions.find_remote(write.remote_region);
  if (length > env_.limits.write_bytes_max || remote == nullptr || (remote->access & (read ? KVFERRY_ACCESS_REMOTE_READ : KVFERRY_ACCESS_REMOTE_WRITE)) == 0) return false;
  if (write.remote_offset > remote->length || length > remote->length - write.remote_offset) return false;
  lengths_[index] = length;
  return true;
}

Error Initiator::objection(const kvferry_batch& batch, std::uint32_t index) const {
  const kvferry_write& write = batch.writes[index];
  const std::string what = "write " + std::to_string(index);
  const bool read = write.op == KVFERRY_OP_READ;
  if (read && !env_.limits.reads) return {ErrorCode::unsupported, what + ": the " + env_.backend_name + " backend has no reads"};
  if (write.op != KVFERRY_OP_WRITE && !read) return {ErrorCode::invalid_argument, what + ": operation " + std::to_string(write.op) + " is not known"};
  if (write.reserved != 0) return {ErrorCode::invalid_argument, what + ": reserved is " + std::to_string(write.reserved) + ", not 0"};
  if (write.piece_count == 0) return {ErrorCode::invalid_argument, what + ": it has no piece"};
  if (write.piece_count > env_.limits.pieces_per_write_max) {
    return {ErrorCode::limit, what + ": " + std::to_string(write.piece_count) + " pieces, " + std::to_string(env_.limits.pieces_per_write_max) + " are possible"};
  }
  if (std::uint64_t{write.first_piece} + write.piece_count > batch.piece_count) {
    return {ErrorCode::out_of_range, what + ": pieces " + std::to_string(write.first_piece) + " and " + std::to_string(write.piece_count - 1) +
                                         " more, the batch has " + std::to_string(batch.piece_count)};
  }
  std::uint64_t length = 0;
  for (std::uint32_t i = 0; i < write.piece_count; ++i) {
    const kvferry_piece& piece = batch.pieces[write.first_piece + i];
    const LocalRegion* region = env_.regions.find_local(piece.region);
    const std::string local = "local region " + std::to_string(piece.region);
    if (region == nullptr) return {ErrorCode::not_found, what + ": " + local + " is not registered"};
    if (region->draining) return {ErrorCode::not_found, what + ": " + local + " is being deregistered"};
    if (piece.length == 0) return {ErrorCode::invalid_argument, what + ": a piece of length 0"};
    if (piece.offset > region->length || piece.length > region->length - piece.offset) {
      return {ErrorCode::out_of_range, what + ": piece at offset " + std::to_string(piece.offset) + " of " + std::to_string(piece.length) + " bytes, " + local +
                                           " has " + std::to_string(region->length)};
    }
    if (!checked_add(length, piece.length, length)) return {ErrorCode::out_of_range, what + ": the sum of its lengths wraps"};
  }
  if (length > env_.limits.write_bytes_max) {
    return {ErrorCode::limit, what + ": " + std::to_string(length) + " bytes, write_bytes_max is " + std::to_string(env_.limits.write_bytes_max)};
  }
  const RemoteRegionBase* remote = env_.remote_regions.find_remote(write.remote_region);
  const std::string theirs = "remote region " + std::to_string(write.remote_region);
  if (remote == nullptr) return {ErrorCode::not_found, what + ": the peer exported no region " + std::to_string(write.remote_region)};
  if ((remote->access & (read ? KVFERRY_ACCESS_REMOTE_READ : KVFERRY_ACCESS_REMOTE_WRITE)) == 0) {
    return {ErrorCode::invalid_argument, what + ": " + theirs + " was exported without remote " + (read ? "read" : "write")};
  }
  return {ErrorCode::out_of_range, what + ": remote offset " + std::to_string(write.remote_offset) + " and " + std::to_string(length) + " bytes, " + theirs +
                                       " has " + std::to_string(remote->length)};
}

Result<void> Initiator::check(const kvferry_batch& batch, std::uint64_t& ret_object) {
  const bool notify = (batch.flags & KVFERRY_BATCH_NOTIFY) != 0;
  if ((batch.flags & ~static_cast<std::uint32_t>(KVFERRY_BATCH_NOTIFY)) != 0) {
    return fail(ErrorCode::invalid_argument, "submit: batch flags " + std::to_string(batch.flags) + " are not known");
  }
  if (batch.write_count == 0 && !notify) return fail(ErrorCode::invalid_argument, "submit: a batch of no write and no notification");
  if (batch.write_count > kWritesPerBatchMax || batch.piece_count > kPiecesPerBatchMax) {
    return fail(ErrorCode::limit, "submit: " + std::to_string(batch.write_count) + " writes and " + std::to_string(batch.piece_count) + " pieces, a batch takes " +
                                      std::to_string(kWritesPerBatchMax) + " and " + std::to_string(kPiecesPerBatchMax));
  }
  if (batch.write_count > 0 && (batch.writes == nullptr || batch.pieces == nullptr)) {
    return fail(ErrorCode::invalid_argument, "submit: the list of writes or pieces is null");
  }
  if (notify && (batch.notification.room != batch.room || batch.notification.generation != batch.generation)) {
    return fail(ErrorCode::invalid_argument, "submit: the notification is for " + room_text(batch.notification.room, batch.notification.generation) +
                                                 ", its batch for " + room_text(batch.room, batch.generation));
  }
  for (std::uint32_t i = 0; i < batch.write_count; ++i) {
    if (!resolve(batch, i)) {
      ret_object = i;
      return fail(objection(batch, i));
    }
  }
  return {};
}

void Initiator::reserve() {
  if (queue_.batches.capacity() != 0) return;
  queue_.batches.reserve(env_.limits.batches_in_flight);
  queue_.writes.reserve(kWritesInFlightMax);
  queue_.pieces.reserve(kPiecesInFlightMax);
  lengths_.resize(kWritesPerBatchMax);
  addresses_.resize(kPiecesPerBatchMax);
}

/// Copies as many writes into the queue as there is room for.
std::uint32_t Initiator::take_writes(const kvferry_batch& batch) {
  std::uint32_t taken = 0;
  for (; taken < batch.write_count; ++taken) {
    const kvferry_write& write = batch.writes[taken];
    if (queue_.writes.free() == 0 || queue_.pieces.free() < write.piece_count || queue_.bytes + lengths_[taken] > env_.limits.window_bytes) break;
    const std::uint64_t first_piece = queue_.pieces.next();
    for (std::uint32_t i = 0; i < write.piece_count; ++i) {
      const kvferry_piece& piece = batch.pieces[write.first_piece + i];
      queue_.pieces.push() = {addresses_[write.first_piece + i], piece.length, piece.region};
    }
    queue_.writes.push() = {write.remote_region, write.remote_offset, lengths_[taken], first_piece, write.op};
    queue_.bytes += lengths_[taken];
  }
  return taken;
}

Result<Initiator::Accepted> Initiator::submit(const kvferry_batch& batch, std::uint64_t& ret_object) {
  reserve();
  if (auto checked = check(batch, ret_object); !checked) return fail(std::move(checked.error()));
  if (canceled_.count({batch.room, batch.generation}) != 0) {
    return fail(ErrorCode::canceled, "submit: " + room_text(batch.room, batch.generation) + " was canceled");
  }
  if (queue_.batches.size() >= env_.limits.batches_in_flight) return Accepted{};
  const std::uint64_t number = queue_.batches.next();
  const std::uint64_t first_write = queue_.writes.next(), first_piece = queue_.pieces.next(), bytes_before = queue_.bytes;
  const std::uint32_t taken = take_writes(batch);
  if (taken == 0 && batch.write_count > 0) return Accepted{};
  const bool all = taken == batch.write_count;
  Batch& queued = queue_.batches.push();
  queued = Batch();
  queued.tag = batch.tag;
  queued.room = batch.room;
  queued.generation = batch.generation;
  queued.notify = all && (batch.flags & KVFERRY_BATCH_NOTIFY) != 0;
  queued.notification = batch.notification;
  queued.deadline_ns = batch.deadline_ns;
  queued.first_write = first_write;
  queued.write_end = queue_.writes.next();
  queued.first_piece = first_piece;
  queued.piece_end = queue_.pieces.next();
  queued.bytes = queue_.bytes - bytes_before;
  if (queued.notify) inherit(queued, number);
  if (queued.deadline_ns != 0) next_deadline_ns_ = next_deadline_ns_ == 0 ? queued.deadline_ns : std::min(next_deadline_ns_, queued.deadline_ns);
  ++batches_open_;
  env_.counters.batches_submitted.add(1);
  env_.counters.writes.add(taken);
  env_.counters.pieces.add(queued.piece_end - queued.first_piece);
  env_.counters.bytes.add(queued.bytes);
  return Accepted{taken, all};
}

/// A failure of the room whose event was not polled yet, even if the batch behind it is new.
void Initiator::inherit(Batch& batch, std::uint64_t number) {
  for (std::uint64_t earlier = queue_.batches.oldest(); earlier != number; ++earlier) {
    const Batch& other = queue_.batches[earlier];
    if (other.same_room(batch) && !other.polled && other.inherited_code != 0) batch.inherited_code = other.inherited_code;
  }
}

// ---- what the sender asks -----------------------------------------------------------------------------------------------------------------------

bool Initiator::withhold(std::uint64_t number) {
  const Batch& batch = queue_.batches[number];
  if (remote_fences_.holds(batch.room, batch.generation)) {
    const Error error(ErrorCode::fenced, room_text(batch.room, batch.generation) + " is fenced by the target");
    end_batch(number, &error);
    return true;
  }
  if (!batch.notify || batch.notification.status != KVFERRY_OK || batch.inherited_code == 0) return false;
  const Error error(static_cast<ErrorCode>(batch.inherited_code),
                    "batch withheld: it announces " + room_text(batch.room, batch.generation) + " as complete, an earlier batch of it failed");
  end_batch(number, &error);
  return true;
}

std::uint64_t Initiator::since_sequence(std::uint64_t number) {
  const Batch& batch = queue_.batches[number];
  for (std::uint64_t earlier = queue_.batches.oldest(); earlier != number; ++earlier) {
    const Batch& other = queue_.batches[earlier];
    if (other.same_room(batch) && !other.polled && other.first_sequence != 0) return other.first_sequence;
  }
  return batch.first_sequence;
}

std::uint64_t Initiator::oldest_sequence() {
  for (std::uint64_t number = queue_.batches.oldest(); number != queue_.batches.next(); ++number) {
    if (queue_.batches[number].first_sequence != 0) return queue_.batches[number].first_sequence;
  }
  return 0;
}

// ---- the end of batches -------------------------------------------------------------------------------------------------------------------------

void Initiator::end_batch(std::uint64_t number, const Error* error) {
  Batch& batch = queue_.batches[number];
  if (batch.ended) return;
  batch.ended = true;
  --batches_open_;
  queue_.bytes -= batch.bytes;
  Event event;
  event.kind = error == nullptr ? KVFERRY_EVENT_BATCH_DONE : KVFERRY_EVENT_BATCH_FAILED;
  event.peer = env_.peer;
  event.room = batch.room;
  event.generation = batch.generation;
  event.tag = batch.tag;
  event.batch = number;
  event.bytes = error == nullptr ? batch.bytes : 0;
  if (error != nullptr) {
    event.error = std::make_unique<Error>(*error);
    batch.inherited_code = static_cast<std::int32_t>(error->code);
    if (sender_ != nullptr && batch.first_sequence != 0) sender_->give_up(number, batch);
    for (std::uint64_t later = number + 1; later != queue_.batches.next(); ++later) {
      Batch& other = queue_.batches[later];
      if (other.same_room(batch) && !other.ended && other.inherited_code == 0) other.inherited_code = batch.inherited_code;
    }
  }
  (error == nullptr ? env_.counters.batches_done : env_.counters.batches_failed).add(1);
  env_.events.push(std::move(event));
}

void Initiator::deliver() {
  const bool in_order = sender_->in_order();
  bool all_ended = true;  // up to here
  for (std::uint64_t number = delivery_cursor_; number != queue_.batches.next(); ++number) {
    const Batch& batch = queue_.batches[number];
    if (!batch.ended && batch.sent && sender_->delivered(batch)) end_batch(number, nullptr);
    all_ended = all_ended && batch.ended;
    if (all_ended) delivery_cursor_ = number + 1;
    if (in_order && !batch.ended) break;
  }
}

void Initiator::expire(std::uint64_t now_ns) {
  next_deadline_ns_ = 0;
  for (std::uint64_t number = delivery_cursor_; number != queue_.batches.next(); ++number) {
    Batch& batch = queue_.batches[number];
    if (batch.ended || batch.deadline_ns == 0) continue;
    if (now_ns < batch.deadline_ns) {
      next_deadline_ns_ = next_deadline_ns_ == 0 ? batch.deadline_ns : std::min(next_deadline_ns_, batch.deadline_ns);
      continue;
    }
    const Error error(ErrorCode::timeout, "batch with tag " + std::to_string(batch.tag) + " of " + room_text(batch.room, batch.generation) + ": " +
                                              (batch.first_sequence == 0 ? "not sent" : batch.sent ? "sent, not acknowledged" : "sent in part") +
                                              " by its deadline");
    end_batch(number, &error);
  }
}

bool Initiator::step(std::uint64_t now_ns) {
  if (queue_.batches.size() == 0 && cancels_waiting_.empty() && flushes_.empty()) {
    last_pump_ = Pumped::idle;
    return false;
  }
  const std::uint64_t events_before = env_.events.size();
  const std::uint64_t cursor_before = queue_.cursor_piece + queue_.cursor_batch;
  deliver();
  reclaim();
  if (next_deadline_ns_ != 0 && now_ns >= next_deadline_ns_) expire(now_ns);
  last_pump_ = queue_.idle() ? Pumped::idle : sender_->pump(queue_, *this);
  if (!cancels_waiting_.empty()) answer_cancels();
  if (!flushes_.empty()) answer_flushes();
  return env_.events.size() != events_before || queue_.cursor_piece + queue_.cursor_batch != cursor_before;
}

void Initiator::on_refused(std::uint64_t sequence, ErrorCode code, const std::string& text) {
  for (std::uint64_t number = queue_.batches.oldest(); number != queue_.batches.next(); ++number) {
    const Batch& batch = queue_.batches[number];
    if (batch.first_sequence == 0 || sequence < batch.first_sequence || sequence > batch.last_sequence) continue;
    const Error error(code, code == ErrorCode::refused ? ErrorClass::reregister : default_class(code), text);
    end_batch(number, &error);
    return;
  }
}

void Initiator::on_fenced(std::uint64_t room, std::uint32_t generation) {
  remote_fences_.add(room, generation);
  for (std::uint64_t number = delivery_cursor_; number != queue_.batches.next(); ++number) {
    const Batch& batch = queue_.batches[number];
    if (batch.ended || batch.room != room || batch.generation > generation) continue;
    const Error error(ErrorCode::fenced, room_text(batch.room, batch.generation) + " is fenced by the target");
    end_batch(number, &error);
  }
}

void Initiator::end_everything(const Error& error) {
  for (std::uint64_t number = queue_.batches.oldest(); number != queue_.batches.next(); ++number) {
    end_batch(number, &error);
    queue_.batches[number].outstanding = queue_.batches[number].waiting_again = 0;
  }
  delivery_cursor_ = queue_.batches.next();
  reclaim();
  answer_cancels();
  answer_flushes();
}

void Initiator::polled(std::uint64_t number) {
  queue_.batches[number].polled = true;
  reclaim();
}

void Initiator::reclaim() {
  while (queue_.batches.size() > 0) {
    const std::uint64_t number = queue_.batches.oldest();
    const Batch& batch = queue_.batches[number];
    if (!batch.polled || batch.outstanding != 0) return;
    if (queue_.cursor_batch == number) {  // ended before the pump came to it
      queue_.cursor_batch = number + 1;
      queue_.cursor_write = batch.write_end;
      queue_.cursor_piece = batch.piece_end;
      queue_.write_gone = queue_.piece_gone = 0;
    }
    if (delivery_cursor_ == number) ++delivery_cursor_;
    queue_.writes.release_to(batch.write_end);
    queue_.pieces.release_to(batch.piece_end);
    queue_.batches.release_to(number + 1);
  }
}

// ---- cancel, flush ------------------------------------------------------------------------------------------------------------------------------

Result<void> Initiator::room_for_answer() const {
  if (env_.control_events < kControlEventsMax) return {};
  return fail(Error(ErrorCode::busy, ErrorClass::retry, std::to_string(env_.control_events) + " answers wait to be polled"));
}

Result<void> Initiator::cancel(std::uint64_t room, std::uint32_t generation) {
  if (auto possible = room_for_answer(); !possible) return possible;
  if (canceled_.insert({room, generation}).second) {
    canceled_order_.emplace_back(room, generation);
    if (canceled_order_.size() > env_.limits.cancels_max) {
      canceled_.erase(canceled_order_.front());
      canceled_order_.pop_front();
    }
  }
  for (std::uint64_t number = delivery_cursor_; number != queue_.batches.next(); ++number) {
    const Batch& batch = queue_.batches[number];
    if (batch.ended || batch.room != room || batch.generation != generation) continue;
    const Error error(ErrorCode::canceled, room_text(room, generation) + " was canceled");
    end_batch(number, &error);
  }
  cancels_waiting_.emplace_back(room, generation);
  answer_cancels();
  return {};
}

void Initiator::answer_cancels() {
  std::erase_if(cancels_waiting_, [&](const Room& room) {
    if (sender_ != nullptr && sender_->reads_room(room.first, room.second)) return false;
    Event event;
    event.kind = KVFERRY_EVENT_INITIATOR_QUIESCED;
    event.peer = env_.peer;
    event.room = room.first;
    event.generation = room.second;
    ++env_.control_events;
    env_.events.push(std::move(event));
    return true;
  });
}

Result<void> Initiator::flush(std::uint64_t tag) {
  if (auto possible = room_for_answer(); !possible) return possible;
  flushes_.push_back({queue_.batches.next(), tag});
  answer_flushes();
  return {};
}

void Initiator::answer_flushes() {
  if (flushes_.empty()) return;
  std::uint64_t open = delivery_cursor_;
  while (open != queue_.batches.next() && queue_.batches[open].ended) ++open;
  std::erase_if(flushes_, [&](const Flush& flush) {
    if (open < flush.before) return false;
    Event event;
    event.kind = KVFERRY_EVENT_FLUSHED;
    event.peer = env_.peer;
    event.tag = flush.tag;
    ++env_.control_events;
    env_.events.push(std::move(event));
    return true;
  });
}

bool Initiator::uses_region(kvferry_region region) const {
  if (sender_ != nullptr && sender_->reads_region(region)) return true;
  for (std::uint64_t number = queue_.batches.oldest(); number != queue_.batches.next(); ++number) {
    const Batch& batch = queue_.batches[number];
    if (batch.ended && batch.outstanding == 0) continue;
    for (std::uint64_t piece = batch.first_piece; piece != batch.piece_end; ++piece) {
      if (queue_.pieces[piece].region == region) return true;
    }
  }
  return false;
}

}  // namespace kvferry::plugins
