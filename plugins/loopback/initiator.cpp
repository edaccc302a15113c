// The sending side: batches into slots, answers out of them.
#include <algorithm>

#include "backend.h"

namespace loopback {
namespace {

tl::unexpected<Failure> bad_write(std::uint32_t index, std::int32_t code, const std::string& why) {
  return refuse(code, "write " + std::to_string(index) + ": " + why, index);
}

std::string span_text(std::uint64_t offset, std::uint64_t length) {
  std::string text = "[";
  return text.append(std::to_string(offset)).append(", +").append(std::to_string(length)).append(")");
}

}  // namespace

/// Checks one write and copies it into the slot. The slot is not in use yet.
Answer<void> Backend::fill_write(const Peer& peer, const kvferry_batch& batch, std::uint32_t index, Slot& slot) const {
  const kvferry_write& write = batch.writes[index];
  if (write.reserved != 0) return bad_write(index, KVFERRY_ERROR_INVALID_ARGUMENT, "its reserved field is " + std::to_string(write.reserved));
  if (write.op != KVFERRY_OP_WRITE && write.op != KVFERRY_OP_READ) {
    return bad_write(index, KVFERRY_ERROR_INVALID_ARGUMENT, "op " + std::to_string(write.op) + " is not known");
  }
  if (write.piece_count == 0) return bad_write(index, KVFERRY_ERROR_INVALID_ARGUMENT, "it has no piece");
  if (write.piece_count > config_.pieces_per_write_max) {
    return bad_write(index, KVFERRY_ERROR_LIMIT,
                     std::to_string(write.piece_count) + " pieces, pieces_per_write_max is " + std::to_string(config_.pieces_per_write_max));
  }
  if (!inside(write.first_piece, write.piece_count, batch.piece_count)) {
    return bad_write(index, KVFERRY_ERROR_OUT_OF_RANGE,
                     "pieces " + span_text(write.first_piece, write.piece_count) + " of a list of " + std::to_string(batch.piece_count));
  }
  TargetWrite& wanted = slot.writes[index];
  wanted.first_piece = slot.piece_count;
  wanted.piece_count = write.piece_count;
  wanted.region = write.remote_region;
  wanted.offset = write.remote_offset;
  wanted.op = write.op;
  wanted.batch_offset = slot.bytes;
  wanted.length = 0;
  const Region* region = nullptr;  // of the piece before: most writes stay in one
  for (std::uint32_t i = 0; i < write.piece_count; ++i) {
    const kvferry_piece& piece = batch.pieces[write.first_piece + i];
    if (region == nullptr || region->id != piece.region) {
      const auto found = regions_.find(piece.region);
      if (found == regions_.end()) {
        return bad_write(index, KVFERRY_ERROR_NOT_FOUND,
                         "piece " + std::to_string(i) + " names local region " + std::to_string(piece.region) + ", which is not registered");
      }
      region = &found->second;
      if (region->draining) {
        return bad_write(index, KVFERRY_ERROR_NOT_FOUND, "local region " + std::to_string(piece.region) + " is being deregistered");
      }
    }
    if (piece.length == 0) return bad_write(index, KVFERRY_ERROR_INVALID_ARGUMENT, "piece " + std::to_string(i) + " has no byte");
    if (!inside(piece.offset, piece.length, region->length)) {
      return bad_write(index, KVFERRY_ERROR_OUT_OF_RANGE,
                       "piece " + std::to_string(i) + " " + span_text(piece.offset, piece.length) + " is outside local region " +
                           std::to_string(piece.region) + " of " + std::to_string(region->length) + " bytes");
    }
    if (piece.length > config_.message_bytes_max - wanted.length) {
      return bad_write(index, KVFERRY_ERROR_LIMIT, "it is longer than message_bytes_max " + std::to_string(config_.message_bytes_max));
    }
    if (slot.piece_count == slot.pieces.size()) {
      return bad_write(index, KVFERRY_ERROR_LIMIT,
                       "pieces used more than once exceed pieces_per_batch_max " + std::to_string(config_.pieces_per_batch_max));
    }
    slot.pieces[slot.piece_count++] = {region->address + piece.offset, piece.length, piece.region};
    wanted.length += piece.length;
  }
  const auto remote = peer.remote_regions.find(write.remote_region);
  if (remote == peer.remote_regions.end()) {
    return bad_write(index, KVFERRY_ERROR_NOT_FOUND, "peer " + std::to_string(peer.id) + " has no region " + std::to_string(write.remote_region));
  }
  if (!inside(write.remote_offset, wanted.length, remote->second.length)) {
    return bad_write(index, KVFERRY_ERROR_OUT_OF_RANGE,
                     span_text(write.remote_offset, wanted.length) + " is outside remote region " + std::to_string(write.remote_region) + " of " +
                         std::to_string(remote->second.length) + " bytes");
  }
  const std::uint32_t needed = write.op == KVFERRY_OP_WRITE ? KVFERRY_ACCESS_REMOTE_WRITE : KVFERRY_ACCESS_REMOTE_READ;
  if ((remote->second.access & needed) == 0) {
    return bad_write(
        index, KVFERRY_ERROR_INVALID_ARGUMENT,
        "remote region " + std::to_string(write.remote_region) + " does not allow remote " + (write.op == KVFERRY_OP_WRITE ? "writes" : "reads"));
  }
  slot.bytes += wanted.length;
  return {};
}

Answer<void> Backend::fill_slot(const Peer& peer, const kvferry_batch& batch, Slot& slot) const {
  const bool notify = (batch.flags & KVFERRY_BATCH_NOTIFY) != 0;
  if ((batch.flags & ~static_cast<std::uint32_t>(KVFERRY_BATCH_NOTIFY)) != 0) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "batch flags " + std::to_string(batch.flags) + " are not known");
  }
  if (batch.reserved != 0) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "the reserved field of the batch is " + std::to_string(batch.reserved));
  if (batch.write_count == 0 && !notify) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "the batch has neither writes nor a notification");
  if (batch.write_count > config_.writes_per_batch_max || batch.piece_count > config_.pieces_per_batch_max) {
    return refuse(KVFERRY_ERROR_LIMIT, std::to_string(batch.write_count) + " writes of " + std::to_string(batch.piece_count) +
                                           " pieces, writes_per_batch_max is " + std::to_string(config_.writes_per_batch_max) +
                                           ", pieces_per_batch_max " + std::to_string(config_.pieces_per_batch_max));
  }
  if ((batch.write_count > 0 && batch.writes == nullptr) || (batch.piece_count > 0 && batch.pieces == nullptr)) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "the list of writes or pieces is null");
  }
  if (notify && (batch.notification.room != batch.room || batch.notification.generation != batch.generation)) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "the notification is of room " + std::to_string(batch.notification.room) + " generation " +
                                                      std::to_string(batch.notification.generation) + ", its batch of room " +
                                                      std::to_string(batch.room) + " generation " + std::to_string(batch.generation));
  }
  slot.write_count = batch.write_count;
  slot.piece_count = 0;
  slot.bytes = 0;
  for (std::uint32_t i = 0; i < batch.write_count; ++i) {
    if (auto filled = fill_write(peer, batch, i, slot); !filled) return filled;
  }
  return {};
}

Answer<kvferry_status> Backend::submit(kvferry_peer peer, const kvferry_batch& batch, std::uint32_t& ret_accepted) {
  auto found = find_peer(peer, "submit");
  if (!found) return tl::unexpected<Failure>(std::move(found.error()));
  Peer& to = **found;
  if (to.state == KVFERRY_PEER_CREATED || to.state == KVFERRY_PEER_CONNECTING) return KVFERRY_AGAIN;
  if (to.state == KVFERRY_PEER_FAILED) return refuse(KVFERRY_ERROR_PEER_LOST, "submit to peer " + std::to_string(peer) + ": it is lost", peer);
  if (to.state != KVFERRY_PEER_UP) return refuse(KVFERRY_ERROR_CANCELED, "submit to peer " + std::to_string(peer) + ": it is closing", peer);
  if (to.canceled.count({batch.room, batch.generation}) != 0) {
    return refuse(KVFERRY_ERROR_CANCELED,
                  "submit to peer " + std::to_string(peer) + ": room " + std::to_string(batch.room) + " generation " +
                      std::to_string(batch.generation) + " is canceled",
                  peer);
  }
  End& own = to.own_end();
  std::uint64_t window_free = 0;
  {
    const std::lock_guard<std::mutex> lock(to.link->mutex);
    own.reclaim();
    if (own.full()) return KVFERRY_AGAIN;
    window_free = own.window.bytes() - own.window_used();
  }
  // The slot is nobody's until it is sent: it is filled without the lock, and what is free now can only become more.
  Slot& slot = own.slot(own.next);
  if (auto filled = fill_slot(to, batch, slot); !filled) return tl::unexpected<Failure>(std::move(filled.error()));
  std::uint32_t accepted = batch.write_count;
  while (accepted > 0 && slot.writes[accepted - 1].batch_offset + slot.writes[accepted - 1].length > window_free) --accepted;
  if (accept_draws_.permille(config_.partial_accept_permille)) accepted = static_cast<std::uint32_t>(accept_draws_.below(accepted + 1u));
  if (accepted == 0 && batch.write_count > 0) return KVFERRY_AGAIN;

  if (accepted < batch.write_count) {
    slot.bytes = slot.writes[accepted].batch_offset;
    slot.piece_count = slot.writes[accepted].first_piece;
    slot.write_count = accepted;
  }
  slot.notify = accepted == batch.write_count && (batch.flags & KVFERRY_BATCH_NOTIFY) != 0;
  slot.notification = batch.notification;
  slot.room = batch.room;
  slot.generation = batch.generation;
  slot.tag = batch.tag;
  slot.deadline_ns = batch.deadline_ns;
  {
    const std::lock_guard<std::mutex> lock(to.link->mutex);
    send_slot(to, slot, now_ns());
  }
  ret_accepted = accepted;
  if (config_.die_after_batches != 0 && batches_sent_ == config_.die_after_batches) die(now_ns());
  return KVFERRY_OK;
}

/// The filled slot goes on the wire. The link's mutex is held.
void Backend::send_slot(Peer& peer, Slot& slot, std::uint64_t now_ns) {
  End& own = peer.own_end();
  slot.sequence = own.next++;
  slot.window_position = own.window_next;
  own.window_next += slot.bytes;
  slot.buffered = slot.examined = slot.lose_answer = false;
  slot.cursor = {};
  slot.answer_at_ns = kNever;
  slot.failure.reset();
  slot.inherited_code = 0;
  for (std::uint64_t sequence = own.oldest; sequence < slot.sequence; ++sequence) {
    const Slot& earlier = own.slot(sequence);
    if (earlier.local != Slot::Local::free && earlier.failure && earlier.same_room(slot)) slot.inherited_code = earlier.failure->code;
  }
  const std::uint64_t delay = draw_delay();
  slot.deliver_at_ns = reorder_draws_.permille(config_.reorder_permille) ? std::max(now_ns + delay, own.answer_at_ns) : own.arrival(now_ns, delay);

  ++batches_sent_;
  slot.corrupt_write = kNever;
  std::uint64_t pieces = 0;
  for (std::uint32_t i = 0; i < slot.write_count; ++i) {
    pieces += slot.writes[i].piece_count;
    if (slot.writes[i].op != KVFERRY_OP_WRITE || ++writes_sent_ != config_.corrupt_nth_write) continue;
    slot.corrupt_write = i;
    slot.corrupt_offset = std::min(config_.corrupt_offset, slot.writes[i].length - 1);
  }
  counters_.batches_submitted.fetch_add(1, std::memory_order_relaxed);
  counters_.messages_sent.fetch_add(1, std::memory_order_relaxed);
  counters_.writes.fetch_add(slot.write_count, std::memory_order_relaxed);
  counters_.pieces.fetch_add(pieces, std::memory_order_relaxed);
  counters_.bytes.fetch_add(slot.bytes, std::memory_order_relaxed);
  if (slot.notify) counters_.notifications_sent.fetch_add(1, std::memory_order_relaxed);

  slot.local = Slot::Local::open;
  slot.wire = Slot::Wire::sent;
  if (End* other = peer.other_end(); other != nullptr) other->bell->ring();
}

/// The terminal event of a batch. The link's mutex is held.
void Backend::end_batch(Peer& peer, Slot& slot, std::optional<Failure> failure) {
  Event event;
  event.kind = failure ? KVFERRY_EVENT_BATCH_FAILED : KVFERRY_EVENT_BATCH_DONE;
  event.peer = peer.id;
  event.room = slot.room;
  event.generation = slot.generation;
  event.tag = slot.tag;
  event.bytes = failure ? 0 : slot.bytes;
  event.sequence = slot.sequence;
  auto& counter = failure ? counters_.batches_failed : counters_.batches_done;
  counter.fetch_add(1, std::memory_order_relaxed);
  if (failure) peer.own_end().fail(slot, *failure);
  event.failure = std::move(failure);
  slot.local = Slot::Local::ended;
  push(std::move(event));
}

/// Takes a batch off the wire so that its source is read no more. With late_landing what has left may still arrive, from a copy.
void Backend::withdraw(End& own, Slot& slot) {
  if (slot.wire != Slot::Wire::sent || slot.buffered) return;
  if (config_.late_landing == 0 || dead_ || !own.window.open()) {
    slot.wire = Slot::Wire::none;
    return;
  }
  for (std::uint32_t i = slot.cursor.write; i < slot.write_count; ++i) {
    const TargetWrite& write = slot.writes[i];
    if (write.op != KVFERRY_OP_WRITE) continue;
    std::uint64_t position = slot.window_position + write.batch_offset;
    for (std::uint32_t p = 0; p < write.piece_count; ++p) {
      const SourcePiece& piece = slot.pieces[write.first_piece + p];
      own.window.write(position, piece.address, piece.length);
      position += piece.length;
    }
  }
  slot.buffered = true;
}

void Backend::fail_open_batches(Peer& peer, const Failure& failure) {
  End& own = peer.own_end();
  for (std::uint64_t sequence = own.oldest; sequence != own.next; ++sequence) {
    Slot& slot = own.slot(sequence);
    withdraw(own, slot);
    if (slot.local == Slot::Local::open) end_batch(peer, slot, failure);
  }
}

Answer<void> Backend::cancel(kvferry_peer peer, std::uint64_t room, std::uint32_t generation) {
  auto found = find_peer(peer, "cancel");
  if (!found) return tl::unexpected<Failure>(std::move(found.error()));
  if (auto space = room_for_control_event(); !space) return space;
  Peer& to = **found;
  const std::pair<std::uint64_t, std::uint32_t> key{room, generation};
  if (to.canceled.insert(key).second) to.canceled_order.push_back(key);
  if (to.canceled.size() > config_.cancels_max) {
    to.canceled.erase(to.canceled_order.front());
    to.canceled_order.pop_front();
  }
  if (to.link != nullptr) {
    Failure failure;
    failure.code = KVFERRY_ERROR_CANCELED;
    failure.text = "room " + std::to_string(room) + " generation " + std::to_string(generation) + " was canceled";
    const std::lock_guard<std::mutex> lock(to.link->mutex);
    End& own = to.own_end();
    for (std::uint64_t sequence = own.oldest; sequence != own.next; ++sequence) {
      Slot& slot = own.slot(sequence);
      if (slot.room != room || slot.generation != generation) continue;
      withdraw(own, slot);
      if (slot.local == Slot::Local::open) end_batch(to, slot, failure);
    }
  }
  Event event;
  event.kind = KVFERRY_EVENT_INITIATOR_QUIESCED;
  event.peer = peer;
  event.room = room;
  event.generation = generation;
  push(std::move(event));
  return {};
}

Answer<void> Backend::flush(kvferry_peer peer, std::uint64_t tag) {
  auto found = find_peer(peer, "flush");
  if (!found) return tl::unexpected<Failure>(std::move(found.error()));
  Peer& flushed = **found;
  if (control_events_ + flushed.flushes.size() >= config_.control_events_max) {
    if (auto space = room_for_control_event(); !space) return space;
    return refuse(KVFERRY_ERROR_BUSY, std::to_string(flushed.flushes.size()) + " flushes of peer " + std::to_string(peer) +
                                          " are under way, control_events_max is " + std::to_string(config_.control_events_max));
  }
  std::uint64_t before = 0;
  if (flushed.link != nullptr) {
    const std::lock_guard<std::mutex> lock(flushed.link->mutex);
    before = flushed.own_end().next;
  }
  flushed.flushes.push_back({before, tag});
  return {};
}

/// FLUSHED for those whose batches have ended. The link's mutex is held, or there is no link.
bool Backend::answer_flushes(Peer& peer) {
  if (peer.flushes.empty()) return false;
  std::uint64_t first_open = kNever;
  if (peer.link != nullptr) {
    const End& own = peer.own_end();
    for (std::uint64_t sequence = own.oldest; sequence != own.next && first_open == kNever; ++sequence) {
      if (own.slot(sequence).local == Slot::Local::open) first_open = sequence;
    }
  }
  std::size_t answered = 0;
  for (; answered < peer.flushes.size() && peer.flushes[answered].before <= first_open; ++answered) {
    Event event;
    event.kind = KVFERRY_EVENT_FLUSHED;
    event.peer = peer.id;
    event.tag = peer.flushes[answered].tag;
    push(std::move(event));
  }
  peer.flushes.erase(peer.flushes.begin(), peer.flushes.begin() + static_cast<std::ptrdiff_t>(answered));
  return answered > 0;
}

/// What was read for us goes from the window to its pieces.
void Backend::deliver_reads(const End& own, const Slot& slot) const {
  for (std::uint32_t i = 0; i < slot.write_count; ++i) {
    const TargetWrite& write = slot.writes[i];
    if (write.op != KVFERRY_OP_READ) continue;
    std::uint64_t position = slot.window_position + write.batch_offset;
    for (std::uint32_t p = 0; p < write.piece_count; ++p) {
      const SourcePiece& piece = slot.pieces[write.first_piece + p];
      own.window.read(position, piece.address, piece.length);
      position += piece.length;
    }
  }
}

/// Answers that have arrived, and deadlines. The link's mutex is held.
bool Backend::take_answers(Peer& peer, std::uint64_t now_ns) {
  End& own = peer.own_end();
  bool worked = false;
  for (std::uint64_t sequence = own.oldest; sequence != own.next; ++sequence) {
    Slot& slot = own.slot(sequence);
    if (slot.local != Slot::Local::open) continue;
    if (!dead_ && slot.wire == Slot::Wire::answered && slot.answer_at_ns <= now_ns) {
      counters_.messages_received.fetch_add(1, std::memory_order_relaxed);
      peer.last_heard_ns = now_ns;
      if (!slot.failure) deliver_reads(own, slot);
      std::optional<Failure> failure = slot.failure;
      end_batch(peer, slot, std::move(failure));
      worked = true;
    } else if (slot.deadline_ns != 0 && now_ns >= slot.deadline_ns) {
      Failure failure;
      failure.code = KVFERRY_ERROR_TIMEOUT;
      failure.text = "batch " + std::to_string(slot.tag) + " of room " + std::to_string(slot.room) + " to peer " + std::to_string(peer.id) +
                     ": no answer by its deadline";
      end_batch(peer, slot, std::move(failure));
      worked = true;
    }
  }
  return worked;
}

/// The fault die_after_batches: from here on nothing of this backend arrives anywhere, and nothing is taken.
void Backend::die(std::uint64_t now_ns) {
  dead_ = true;
  log(KVFERRY_LOG_INFO, "fault injected: died after batch " + std::to_string(batches_sent_));
  for (auto& [id, peer] : peers_) {
    if (peer->link == nullptr) continue;
    const std::lock_guard<std::mutex> lock(peer->link->mutex);
    End& own = peer->own_end();
    own.silent = true;
    own.silent_until_ns = config_.die_notice_ns == 0 ? kNever : now_ns + config_.die_notice_ns;
  }
}

}  // namespace loopback
