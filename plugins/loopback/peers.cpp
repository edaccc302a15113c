// The life of a peer.
//
//   create ─► CREATED ─connect► CONNECTING ─probe and answer, both ways► UP ─close► CLOSING ─► CLOSED ─event polled► gone
//                                   └────────── deadline, the other side is gone, our lease ──────► FAILED ─close──┘
#include <algorithm>

#include "backend.h"
#include "registry.h"

namespace loopback {
namespace {

constexpr const char* kLane = "loopback";

Failure lost(std::string text) {
  Failure failure;
  failure.code = KVFERRY_ERROR_PEER_LOST;
  failure.text = std::move(text);
  return failure;
}

std::string peer_text(const Peer& peer) { return "peer " + std::to_string(peer.id); }

}  // namespace

EndOptions Backend::end_options() const {
  EndOptions options;
  options.batches_in_flight_max = static_cast<std::uint32_t>(config_.batches_in_flight_max);
  options.writes_per_batch_max = static_cast<std::uint32_t>(config_.writes_per_batch_max);
  options.pieces_per_batch_max = static_cast<std::uint32_t>(config_.pieces_per_batch_max);
  options.window_bytes = config_.window_bytes;
  return options;
}

Answer<kvferry_peer> Backend::peer_create(const kvferry_peer_options& options) {
  const std::string lane = options.lane != nullptr ? options.lane : "auto";
  if (lane != "auto" && lane != kLane) {
    return refuse(KVFERRY_ERROR_UNSUPPORTED, "create a peer: lane " + lane + "; this backend has loopback only (or auto)");
  }
  auto peer = std::make_unique<Peer>();
  peer->id = next_id();
  peer->lease_ns = options.lease_ns;
  const kvferry_peer id = peer->id;
  add_peer(identity_.instance, id);
  peers_.emplace(id, std::move(peer));
  counters_.peers.store(peers_.size(), std::memory_order_relaxed);
  return id;
}

Answer<std::vector<std::uint8_t>> Backend::peer_export(kvferry_peer peer) const {
  auto found = find_peer(peer, "peer_export");
  if (!found) return tl::unexpected<Failure>(std::move(found.error()));
  return encode(EndpointBlob{identity_, peer});
}

Answer<void> Backend::peer_connect(kvferry_peer peer, const void* blob, std::uint64_t bytes, std::uint64_t deadline_ns) {
  auto found = find_peer(peer, "peer_connect");
  if (!found) return tl::unexpected<Failure>(std::move(found.error()));
  Peer& connecting = **found;
  const std::string what = "connect " + peer_text(connecting);
  if (connecting.state != KVFERRY_PEER_CREATED) {
    return refuse(KVFERRY_ERROR_EXISTS, what + ": it is connected or was; one peer connects once", peer);
  }
  auto remote = decode_endpoint(blob, bytes);
  if (!remote) return tl::unexpected<Failure>(std::move(remote.error()));
  if (connecting.regions_identity.instance != 0 && connecting.regions_identity.instance != remote->identity.instance) {
    return refuse(KVFERRY_ERROR_MISMATCH,
                  what + ": its region table came from instance " + std::to_string(connecting.regions_identity.instance) +
                      ", the endpoint from instance " + std::to_string(remote->identity.instance),
                  peer);
  }
  auto joined = join(EndpointBlob{identity_, peer}, *remote, end_options(), bell_);
  if (!joined) return tl::unexpected<Failure>(std::move(joined.error()));
  connecting.link = std::move(joined->link);
  connecting.side = joined->side;
  connecting.remote = *remote;
  connecting.connect_deadline_ns = deadline_ns;
  connecting.state = KVFERRY_PEER_CONNECTING;
  return {};
}

Answer<void> Backend::import_regions(kvferry_peer peer, const void* blob, std::uint64_t bytes) {
  auto found = find_peer(peer, "import_regions");
  if (!found) return tl::unexpected<Failure>(std::move(found.error()));
  Peer& importing = **found;
  auto table = decode_regions(blob, bytes, config_.regions_max);
  if (!table) return tl::unexpected<Failure>(std::move(table.error()));
  const std::uint64_t expected = importing.remote.peer != 0 ? importing.remote.identity.instance : importing.regions_identity.instance;
  if (expected != 0 && expected != table->identity.instance) {
    return refuse(KVFERRY_ERROR_MISMATCH,
                  "import regions for " + peer_text(importing) + ": they come from instance " + std::to_string(table->identity.instance) +
                      ", the peer is instance " + std::to_string(expected),
                  peer);
  }
  if (importing.remote_regions.size() + table->regions.size() > config_.regions_max) {
    return refuse(KVFERRY_ERROR_LIMIT,
                  "import " + std::to_string(table->regions.size()) + " regions for " + peer_text(importing) + " beside " +
                      std::to_string(importing.remote_regions.size()) + ": regions_max is " + std::to_string(config_.regions_max),
                  peer);
  }
  importing.regions_identity = table->identity;
  for (const RegionsBlob::Entry& region : table->regions) importing.remote_regions[region.id] = {region.length, region.access};
  return {};
}

Answer<void> Backend::forget_regions(kvferry_peer peer, const kvferry_region* regions, std::uint32_t count) {
  auto found = find_peer(peer, "forget_regions");
  if (!found) return tl::unexpected<Failure>(std::move(found.error()));
  if (regions == nullptr && count > 0) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "forget regions: a null list of " + std::to_string(count));
  for (std::uint32_t i = 0; i < count; ++i) (*found)->remote_regions.erase(regions[i]);
  return {};
}

Answer<kvferry_peer_info> Backend::peer_state(kvferry_peer peer) const {
  auto found = find_peer(peer, "peer_state");
  if (!found) return tl::unexpected<Failure>(std::move(found.error()));
  const Peer& asked = **found;
  kvferry_peer_info info{};
  info.state = asked.state;
  info.last_heard_ns = asked.last_heard_ns;
  std::strncpy(info.lane, kLane, sizeof(info.lane) - 1);
  if (asked.link != nullptr) {
    const std::lock_guard<std::mutex> lock(asked.link->mutex);
    const End& own = asked.own_end();
    for (std::uint64_t sequence = own.oldest; sequence != own.next; ++sequence) {
      const Slot& slot = own.slot(sequence);
      if (slot.local != Slot::Local::open) continue;
      ++info.batches_in_flight;
      info.bytes_in_flight += slot.bytes;
    }
    (void)std::snprintf(info.detail, sizeof(info.detail), "instance %llu to instance %llu, process %u",
                        static_cast<unsigned long long>(identity_.instance), static_cast<unsigned long long>(asked.remote.identity.instance),
                        identity_.process_id);
  }
  info.last_error.struct_size = sizeof(info.last_error);
  if (asked.last_error) write_error(&info.last_error, *asked.last_error);
  return info;
}

Answer<void> Backend::peer_close(kvferry_peer peer, std::uint32_t mode, std::uint64_t deadline_ns) {
  auto found = find_peer(peer, "peer_close");
  if (!found) return tl::unexpected<Failure>(std::move(found.error()));
  if (mode != KVFERRY_CLOSE_DRAIN && mode != KVFERRY_CLOSE_FORCE) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "close peer " + std::to_string(peer) + ": mode " + std::to_string(mode) + " is not known", peer);
  }
  Peer& closing = **found;
  if (closing.state == KVFERRY_PEER_CLOSED) return {};
  if (mode == KVFERRY_CLOSE_DRAIN && closing.live()) {
    if (closing.state == KVFERRY_PEER_UP) closing.close_deadline_ns = deadline_ns;
    closing.state = KVFERRY_PEER_CLOSING;
    return {};
  }
  Failure failure;
  failure.code = KVFERRY_ERROR_CANCELED;
  failure.text = peer_text(closing) + " was closed with the batch in flight";
  finish_close(closing, std::move(failure), now_ns());
  return {};
}

bool Backend::has_open_peers() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& entry) { return entry.second->state != KVFERRY_PEER_CLOSED; });
}

/// One step of connecting. True: something happened.
bool Backend::handshake(Peer& peer, std::uint64_t now_ns) {
  if (peer.connect_deadline_ns != 0 && now_ns >= peer.connect_deadline_ns) {
    lose(peer,
         lost("connect " + peer_text(peer) + " to instance " + std::to_string(peer.remote.identity.instance) +
              ": no answer to the probe by the deadline"),
         now_ns);
    return true;
  }
  if (dead_) return false;
  bool worked = false;
  bool gone = !has_peer(peer.remote.identity.instance, peer.remote.peer);
  {
    const std::lock_guard<std::mutex> lock(peer.link->mutex);
    End& own = peer.own_end();
    End* other = peer.other_end();
    if (other != nullptr) {
      gone = gone || (other->closed && other->closed_at_ns <= now_ns);
      if (!own.probe_sent) {
        own.probe_sent = worked = true;
        own.probe_at_ns = own.arrival(now_ns, draw_delay());
        other->bell->ring();
      }
      if (!own.answer_sent && other->probe_sent && other->probe_at_ns <= now_ns && !other->silent) {
        own.answer_sent = worked = true;
        own.answer_at_ns = own.arrival(now_ns, draw_delay());
        other->bell->ring();
      }
      if (!gone && own.answer_sent && other->answer_sent && other->answer_at_ns <= now_ns && !other->silent) {
        peer.state = KVFERRY_PEER_UP;
        peer.last_heard_ns = now_ns;
      }
    }
  }
  if (gone) {
    lose(peer,
         lost("connect " + peer_text(peer) + ": peer " + std::to_string(peer.remote.peer) + " of instance " +
              std::to_string(peer.remote.identity.instance) + " is gone"),
         now_ns);
    return true;
  }
  if (peer.state != KVFERRY_PEER_UP) return worked;
  push_peer(KVFERRY_EVENT_PEER_UP, peer, std::nullopt);
  return true;
}

/// Everything in flight fails, then PEER_LOST. Nothing of the peer is applied from here on.
void Backend::lose(Peer& peer, Failure failure, std::uint64_t now_ns) {
  peer.state = KVFERRY_PEER_FAILED;
  peer.last_error = failure;
  if (peer.link != nullptr) {
    const std::lock_guard<std::mutex> lock(peer.link->mutex);
    fail_open_batches(peer, failure);
    End& own = peer.own_end();
    own.closed = true;
    own.closed_at_ns = own.arrival(now_ns, draw_delay());
    (void)answer_flushes(peer);
    if (End* other = peer.other_end(); other != nullptr) other->bell->ring();
  }
  push_peer(KVFERRY_EVENT_PEER_LOST, peer, std::move(failure));
}

/// What is in flight fails as stated, then PEER_CLOSED. Drained peers come here with nothing in flight.
void Backend::finish_close(Peer& peer, Failure failure, std::uint64_t now_ns) {
  if (peer.link != nullptr) {
    const std::lock_guard<std::mutex> lock(peer.link->mutex);
    fail_open_batches(peer, failure);
    End& own = peer.own_end();
    if (!own.closed) {
      own.closed = true;
      own.closed_at_ns = own.arrival(now_ns, draw_delay());
    }
    (void)answer_flushes(peer);
    if (End* other = peer.other_end(); other != nullptr) other->bell->ring();
  }
  peer.state = KVFERRY_PEER_CLOSED;
  remove_peer(identity_.instance, peer.id);
  push_peer(KVFERRY_EVENT_PEER_CLOSED, peer, std::nullopt);
}

/// The end of a peer whose backend goes away: nothing of ours is read any more, and the other side learns. No event, no allocation.
void Backend::abandon(Peer& peer, std::uint64_t now_ns) noexcept {
  if (peer.link == nullptr) return;
  const std::lock_guard<std::mutex> lock(peer.link->mutex);
  End& own = peer.own_end();
  for (std::uint64_t sequence = own.oldest; sequence != own.next; ++sequence) {
    Slot& slot = own.slot(sequence);
    if (slot.reads_source()) slot.wire = Slot::Wire::none;
  }
  if (!own.closed) {
    own.closed = true;
    own.closed_at_ns = own.arrival(now_ns, 0);
  }
  if (End* other = peer.other_end(); other != nullptr) other->bell->ring();
}

}  // namespace loopback
