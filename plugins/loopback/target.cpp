// The receiving side: the guard, the copy, the notification. All of it runs in the target's progress, with the link's mutex held for at most
// progress_bytes of copying.
//
//   slot on the wire ─ arrived? ─ fenced? ─ region, access, bounds? ─► copy ─► all of it, and all earlier ones of its room? ─► notify ─► answer
//                                    └──────────── no: refused and answered at once, nothing more of the batch is applied ───────────────┘
#include <algorithm>

#include "backend.h"

namespace loopback {
namespace {

Failure failed(std::int32_t code, std::string text, std::uint64_t object) {
  Failure failure;
  failure.code = code;
  failure.text = std::move(text);
  failure.object = object;
  return failure;
}

std::string write_text(const TargetWrite& write) {
  return std::string(write.op == KVFERRY_OP_READ ? "read" : "write") + " of " + std::to_string(write.length) + " bytes at offset " +
         std::to_string(write.offset) + " of region " + std::to_string(write.region);
}

bool data_complete(const Slot& slot) { return slot.cursor.write == slot.write_count; }

}  // namespace

Answer<void> Backend::fence(kvferry_peer peer, std::uint64_t room, std::uint32_t generation, std::uint64_t tag) {
  Peer* only = nullptr;
  if (peer != 0) {
    auto found = find_peer(peer, "fence");
    if (!found) return tl::unexpected<Failure>(std::move(found.error()));
    only = *found;
  }
  if (auto space = room_for_control_event(); !space) return space;
  auto& fences = only != nullptr ? only->fences : fences_of_all_;
  if (fences.size() >= config_.fences_max && fences.count(room) == 0) {
    return refuse(KVFERRY_ERROR_LIMIT,
                  "fence room " + std::to_string(room) + ": " + std::to_string(fences.size()) + " rooms are fenced, fences_max is " +
                      std::to_string(config_.fences_max),
                  peer);
  }
  auto& highest = fences.try_emplace(room, generation).first->second;
  highest = std::max(highest, generation);
  // Pieces are applied by our own progress only, which does not run now: from here on none of the room is.
  Event event;
  event.kind = KVFERRY_EVENT_FENCED;
  event.peer = peer;
  event.room = room;
  event.generation = generation;
  event.tag = tag;
  push(std::move(event));
  return {};
}

bool Backend::fenced(const Peer& peer, std::uint64_t room, std::uint32_t generation) const {
  const auto covers = [&](const auto& fences) {
    const auto found = fences.find(room);
    return found != fences.end() && generation <= found->second;
  };
  return covers(peer.fences) || covers(fences_of_all_);
}

/// Why a write must not be applied, or the region it goes to.
std::optional<Failure> Backend::guard(const Peer& peer, const TargetWrite& write, const Region*& ret_region) const {
  const auto found = regions_.find(write.region);
  if (found == regions_.end() || found->second.draining)
    return failed(KVFERRY_ERROR_REFUSED, write_text(write) + ": no such region any more", write.region);
  const Region& region = found->second;
  if (!inside(write.offset, write.length, region.length)) {
    return failed(KVFERRY_ERROR_REFUSED, write_text(write) + ", which has " + std::to_string(region.length) + " bytes", write.region);
  }
  const std::uint32_t needed = write.op == KVFERRY_OP_WRITE ? KVFERRY_ACCESS_REMOTE_WRITE : KVFERRY_ACCESS_REMOTE_READ;
  if ((region.access & needed) == 0) return failed(KVFERRY_ERROR_REFUSED, write_text(write) + ": the region does not allow it", write.region);
  const auto& refused = region.refused_peers;
  if (region.refuses_everybody || std::find(refused.begin(), refused.end(), peer.id) != refused.end()) {
    return failed(KVFERRY_ERROR_REFUSED, write_text(write) + ": the region is quiesced for peer " + std::to_string(peer.id), write.region);
  }
  ret_region = &region;
  return std::nullopt;
}

/// The next batch to work on. In order of sending; with the fault `reorder`, any that has arrived, but none before an earlier one of its room.
Slot* Backend::choose_slot(End& sender, std::uint64_t now_ns) {
  Slot* chosen = nullptr;
  std::uint64_t candidates = 0;
  const bool any_order = config_.reorder_permille != 0 && reorder_draws_.permille(config_.reorder_permille);
  for (std::uint64_t sequence = sender.oldest; sequence != sender.next; ++sequence) {
    Slot& slot = sender.slot(sequence);
    if (slot.wire != Slot::Wire::sent || slot.deliver_at_ns > now_ns) continue;
    bool earlier_of_room = false;
    for (std::uint64_t before = sender.oldest; before != sequence && !earlier_of_room; ++before) {
      earlier_of_room = sender.slot(before).wire == Slot::Wire::sent && sender.slot(before).same_room(slot);
    }
    // Its data may pass earlier ones of its room when the settings say so, its notification never.
    const bool data_may_pass = config_.reorder_same_room != 0 && !data_complete(slot);
    if (earlier_of_room && !data_may_pass) continue;
    ++candidates;
    if (candidates == 1 || (any_order && reorder_draws_.below(candidates) == 0)) chosen = &slot;
    if (!any_order) break;
  }
  return chosen;
}

/// Copies within the current write until it ends or the budget does.
void Backend::copy_some(End& sender, Slot& slot, const Region& region, std::uint64_t& budget_bytes) {
  const TargetWrite& write = slot.writes[slot.cursor.write];
  Cursor& cursor = slot.cursor;
  while (cursor.write_offset < write.length && budget_bytes > 0) {
    const SourcePiece& piece = slot.pieces[write.first_piece + cursor.piece];
    const std::uint64_t length = std::min(piece.length - cursor.piece_offset, budget_bytes);
    std::uint8_t* const here = region.address + write.offset + cursor.write_offset;
    const std::uint64_t position = slot.window_position + write.batch_offset + cursor.write_offset;
    if (write.op == KVFERRY_OP_READ) {
      sender.window.write(position, here, length);
    } else if (slot.buffered) {
      sender.window.read(position, here, length);
    } else {
      std::memcpy(here, piece.address + cursor.piece_offset, length);
    }
    const bool corrupt = slot.corrupt_write == cursor.write && slot.corrupt_offset - cursor.write_offset < length;
    if (corrupt) here[slot.corrupt_offset - cursor.write_offset] ^= 0xffu;
    budget_bytes -= length;
    cursor.write_offset += length;
    cursor.piece_offset += length;
    if (cursor.piece_offset == piece.length) {
      ++cursor.piece;
      cursor.piece_offset = 0;
    }
    counters_.bytes_applied.fetch_add(write.op == KVFERRY_OP_WRITE ? length : 0, std::memory_order_relaxed);
  }
  if (cursor.write_offset < write.length) return;
  counters_.pieces_applied.fetch_add(1, std::memory_order_relaxed);
  ++cursor.write;
  cursor.piece = 0;
  cursor.piece_offset = cursor.write_offset = 0;
}

void Backend::answer_slot(Peer& peer, End& sender, Slot& slot, std::optional<Failure> failure, std::uint64_t now_ns) {
  ++batches_answered_;
  const bool lose = lose_draws_.permille(config_.lose_completion_permille) || batches_answered_ == config_.lose_completion_nth;
  if (lose) log(KVFERRY_LOG_INFO, "fault injected: the answer to batch " + std::to_string(slot.tag) + " is lost");
  slot.wire = Slot::Wire::answered;
  slot.answer_at_ns = lose ? kNever : peer.own_end().arrival(now_ns, draw_delay());
  if (failure) sender.fail(slot, std::move(*failure));
  counters_.messages_sent.fetch_add(1, std::memory_order_relaxed);
  sender.bell->ring();
}

/// The batch has landed: its notification, if it may be said, and the answer. False: it has to wait for earlier ones of its room.
bool Backend::finish_slot(Peer& peer, End& sender, Slot& slot, std::uint64_t now_ns) {
  if (!slot.notify) {
    answer_slot(peer, sender, slot, std::nullopt, now_ns);
    return true;
  }
  for (std::uint64_t sequence = sender.oldest; sequence != slot.sequence; ++sequence) {
    const Slot& earlier = sender.slot(sequence);
    if (earlier.wire == Slot::Wire::sent && earlier.same_room(slot)) return false;
  }
  if (slot.inherited_code != 0 && slot.notification.status == KVFERRY_OK) {
    answer_slot(peer, sender, slot,
                failed(slot.inherited_code, "an earlier batch of room " + std::to_string(slot.room) + " failed: the notification is withheld", 0),
                now_ns);
    return true;
  }
  Event event;
  event.kind = KVFERRY_EVENT_NOTIFICATION;
  event.peer = peer.id;
  event.room = slot.room;
  event.generation = slot.generation;
  event.bytes = slot.notification.bytes;
  event.notification = slot.notification;
  ++peer.target_events;
  push(std::move(event));
  counters_.notifications_received.fetch_add(1, std::memory_order_relaxed);
  answer_slot(peer, sender, slot, std::nullopt, now_ns);
  return true;
}

/// Works on one batch within the budget. False: nothing could be done.
bool Backend::step_slot(Peer& peer, End& sender, Slot& slot, std::uint64_t now_ns, std::uint64_t& budget_bytes) {
  const std::uint32_t left = slot.write_count - slot.cursor.write;
  if (fenced(peer, slot.room, slot.generation)) {
    counters_.pieces_fenced.fetch_add(left, std::memory_order_relaxed);
    answer_slot(peer, sender, slot,
                failed(KVFERRY_ERROR_FENCED,
                       "room " + std::to_string(slot.room) + " generation " + std::to_string(slot.generation) + " is fenced at the target", peer.id),
                now_ns);
    return true;
  }
  std::optional<Failure> refusal;
  if (!slot.examined) {
    slot.examined = true;
    ++batches_examined_;
    counters_.messages_received.fetch_add(1, std::memory_order_relaxed);
    if (refuse_draws_.permille(config_.refuse_permille) || batches_examined_ == config_.refuse_nth_batch) {
      refusal = failed(KVFERRY_ERROR_REFUSED, "fault injected: batch " + std::to_string(batches_examined_) + " is refused", 0);
    }
  }
  while (!refusal && !data_complete(slot) && budget_bytes > 0) {
    const TargetWrite& write = slot.writes[slot.cursor.write];
    const Region* region = nullptr;
    refusal = guard(peer, write, region);
    if (!refusal && write.op == KVFERRY_OP_READ) {
      if (auto opened = sender.window.open(); !opened) refusal = std::move(opened.error());
    }
    if (!refusal) copy_some(sender, slot, *region, budget_bytes);
  }
  if (refusal) {
    counters_.pieces_refused.fetch_add(std::max<std::uint32_t>(slot.write_count - slot.cursor.write, 1), std::memory_order_relaxed);
    Event event;
    event.kind = KVFERRY_EVENT_PIECE_REFUSED;
    event.peer = peer.id;
    event.room = slot.room;
    event.generation = slot.generation;
    event.failure = refusal;
    ++peer.target_events;
    push(std::move(event));
    answer_slot(peer, sender, slot, std::move(refusal), now_ns);
    return true;
  }
  if (!data_complete(slot)) return true;
  return finish_slot(peer, sender, slot, now_ns);
}

/// Applies what has arrived from one peer, a bounded amount. The link's mutex is held.
bool Backend::apply_arrivals(Peer& peer, std::uint64_t now_ns) {
  End* const sender = peer.other_end();
  if (sender == nullptr || sender->silent) return false;
  bool worked = false;
  std::uint64_t budget_bytes = config_.progress_bytes;
  for (std::size_t step = 0; step < sender->slots.size() && budget_bytes > 0; ++step) {
    // A batch leaves at most one event: with no room for it the peer's window stays full, which is what holds it back.
    if (peer.target_events >= config_.target_events_max) break;
    Slot* const slot = choose_slot(*sender, now_ns);
    if (slot == nullptr || !step_slot(peer, *sender, *slot, now_ns, budget_bytes)) break;
    peer.last_heard_ns = now_ns;
    worked = true;
  }
  return worked;
}

}  // namespace loopback
