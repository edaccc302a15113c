// Driving: progress, poll, the event fd.
#include "backend.h"
#include "registry.h"

namespace loopback {

bool Backend::progress() {
  counters_.progress_calls.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t now = now_ns();
  const std::uint64_t pause_ns = now - last_progress_ns_;
  last_progress_ns_ = now;
  bell_->answer();
  bool worked = false;
  for (auto& [id, peer] : peers_) {
    // A peer is dropped before anything of it is looked at: what was queued while we stood still must not land any more.
    if (peer->live() && peer->lease_ns != 0 && pause_ns > peer->lease_ns) {
      Failure failure;
      failure.code = KVFERRY_ERROR_PEER_LOST;
      failure.text = "peer " + std::to_string(id) + ": this side stood still for " + std::to_string(pause_ns) + " ns, its lease is " +
                     std::to_string(peer->lease_ns) + " ns";
      lose(*peer, std::move(failure), now);
      worked = true;
      continue;
    }
    worked = progress_peer(*peer, now) || worked;
  }
  return worked;
}

bool Backend::progress_peer(Peer& peer, std::uint64_t now_ns) {
  if (peer.state == KVFERRY_PEER_CONNECTING) return handshake(peer, now_ns);
  if (!peer.live()) return peer.link == nullptr && answer_flushes(peer);

  bool worked = false;
  bool drained = false;
  std::optional<Failure> lost;
  {
    const std::lock_guard<std::mutex> lock(peer.link->mutex);
    worked = take_answers(peer, now_ns);
    const End& other = *peer.other_end();
    Failure failure;
    failure.code = KVFERRY_ERROR_PEER_LOST;
    if (!dead_ && other.closed && other.closed_at_ns <= now_ns) {
      failure.text = "peer " + std::to_string(peer.id) + ": the other side has closed the connection";
      lost = std::move(failure);
    } else if (!dead_ && other.silent && other.silent_until_ns <= now_ns) {
      failure.text = "peer " + std::to_string(peer.id) + ": the other side is dead";
      lost = std::move(failure);
    } else if (!dead_) {
      worked = apply_arrivals(peer, now_ns) || worked;
    }
    worked = answer_flushes(peer) || worked;
    if (peer.state == KVFERRY_PEER_CLOSING) {
      const End& own = peer.own_end();
      drained = true;
      for (std::uint64_t sequence = own.oldest; sequence != own.next; ++sequence) drained = drained && own.slot(sequence).local != Slot::Local::open;
      drained = drained || (peer.close_deadline_ns != 0 && now_ns >= peer.close_deadline_ns);
    }
  }
  if (peer.state == KVFERRY_PEER_CLOSING && (drained || lost)) {
    if (!lost) {
      lost = Failure{};
      lost->code = KVFERRY_ERROR_CANCELED;
      lost->text = "peer " + std::to_string(peer.id) + " was closed at the deadline of its drain with the batch in flight";
    }
    finish_close(peer, std::move(*lost), now_ns);
    return true;
  }
  if (lost) {
    lose(peer, std::move(*lost), now_ns);
    return true;
  }
  return worked;
}

std::uint32_t Backend::poll(kvferry_event* events, std::uint32_t capacity) {
  std::uint32_t count = 0;
  for (; count < capacity && !events_.empty(); ++count) {
    Event event = events_.pop();
    const auto found = peers_.find(event.peer);
    Peer* const peer = found != peers_.end() ? found->second.get() : nullptr;
    switch (event.kind) {
      case KVFERRY_EVENT_BATCH_DONE:
      case KVFERRY_EVENT_BATCH_FAILED: {
        const std::lock_guard<std::mutex> lock(peer->link->mutex);
        peer->own_end().slot(event.sequence).local = Slot::Local::free;
        break;
      }
      case KVFERRY_EVENT_NOTIFICATION:
      case KVFERRY_EVENT_PIECE_REFUSED:
        --peer->target_events;
        break;
      case KVFERRY_EVENT_INITIATOR_QUIESCED:
      case KVFERRY_EVENT_FENCED:
      case KVFERRY_EVENT_REGION_QUIESCED:
      case KVFERRY_EVENT_FLUSHED:
        --control_events_;
        break;
      case KVFERRY_EVENT_PEER_CLOSED:
        peers_.erase(found);
        counters_.peers.store(peers_.size(), std::memory_order_relaxed);
        break;
      default:
        break;
    }
    kvferry_event out{};
    out.kind = event.kind;
    out.peer = event.peer;
    out.room = event.room;
    out.generation = event.generation;
    out.tag = event.tag;
    out.bytes = event.bytes;
    out.notification = event.notification;
    out.error.struct_size = sizeof(out.error);
    if (event.failure) write_error(&out.error, *event.failure);
    write_sized(sized_element(events, count), out);
  }
  return count;
}

/// Something that progress can do now, or will be able to do without being rung.
bool Backend::pending(const Peer& peer, std::uint64_t now_ns) const {
  if (peer.link == nullptr) return !peer.flushes.empty();
  if (dead_ || (peer.state != KVFERRY_PEER_CONNECTING && !peer.live())) return false;
  const std::lock_guard<std::mutex> lock(peer.link->mutex);
  const End& own = peer.own_end();
  const End* const other = peer.other_end();
  if (other == nullptr || other->silent) return false;
  if (peer.state == KVFERRY_PEER_CONNECTING && (!own.probe_sent || other->probe_sent)) return true;
  if (other->closed || !peer.flushes.empty() || peer.state == KVFERRY_PEER_CLOSING) return true;
  for (std::uint64_t sequence = own.oldest; sequence != own.next; ++sequence) {
    const Slot& slot = own.slot(sequence);
    if (slot.local != Slot::Local::open) continue;
    if (slot.wire == Slot::Wire::answered && slot.answer_at_ns != kNever) return true;
    if (slot.deadline_ns != 0 && slot.deadline_ns <= now_ns) return true;
  }
  for (std::uint64_t sequence = other->oldest; sequence != other->next; ++sequence) {
    if (other->slot(sequence).wire == Slot::Wire::sent) return true;
  }
  return false;
}

bool Backend::arm() {
  bell_->arm();  // first: what comes after the look below rings
  if (!events_.empty()) return false;
  const std::uint64_t now = now_ns();
  for (const auto& [id, peer] : peers_) {
    if (pending(*peer, now)) return false;
  }
  return true;
}

}  // namespace loopback
