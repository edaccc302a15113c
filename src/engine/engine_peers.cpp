// Peers: from a link to a peer that can be written, and the ways it ends.
//
//   outgoing  linking ─► greeting ─► connecting ─► up ─► leaving ─► closing ─► gone
//   incoming             greeting ─┘                └── lost ────────┘
//
// Both sides send hello, check the other's, let the backends connect (which ends with a probe both ways) and send ready. A side that refuses says why in
// its goodbye, so that both logs have the cause with both values. A lost peer is closed by force in the backend: only the backend's PEER_CLOSED proves
// that nothing of it can land here and nothing of ours is read for it.
#include <algorithm>

#include "engine_state.h"
#include "kvferry/pool_file.h"

namespace kvferry {
namespace {

constexpr std::uint64_t kLeaveNs = 1'000'000'000;  // how long a graceful close waits for the other side's end of the link

}  // namespace

// ---- the owner's calls

PeerId Engine::open_peer(std::string_view address, std::uint64_t deadline_ns) {
  State& state = *state_;
  state.enter(state.host.now_ns());
  const LinkId link{state.new_id()};
  Peer& peer = state.make_peer(link, true, address, deadline_ns);
  state.links.connect(link, address, peer.connect_deadline_ns);
  return peer.id;
}

LinkId Engine::accept_link(std::string_view remote_address) {
  State& state = *state_;
  state.enter(state.host.now_ns());
  const LinkId link{state.new_id()};
  state.make_peer(link, false, remote_address, 0);
  return link;
}

void Engine::link_opened(LinkId link) {
  State& state = *state_;
  state.enter(state.host.now_ns());
  Peer* peer = state.find_peer_by_link(link);
  if (peer == nullptr || peer->stage != PeerStage::linking) return;
  peer->stage = PeerStage::greeting;
  peer->last_heard_ns = state.now_ns;
  if (auto sent = state.send_hello(*peer); !sent) state.lose_peer(*peer, sent.error(), true);
}

void Engine::link_message(LinkId link, session::Message message) {
  State& state = *state_;
  state.enter(state.host.now_ns());
  Peer* peer = state.find_peer_by_link(link);
  if (peer == nullptr) return;
  peer->last_heard_ns = state.now_ns;
  state.on_message(*peer, std::move(message));
}

void Engine::link_lost(LinkId link, Error error) {
  State& state = *state_;
  state.enter(state.host.now_ns());
  Peer* peer = state.find_peer_by_link(link);
  state.peer_by_link.erase(static_cast<std::uint64_t>(link));
  if (peer == nullptr) return;
  peer->link_alive = false;
  if (peer->stage == PeerStage::leaving) {
    state.close_backend_peer(*peer, KVFERRY_CLOSE_DRAIN);
  } else if (peer->stage != PeerStage::closing) {
    state.lose_peer(*peer, error.within(state.describe(*peer)), false);
  }
}

Result<void> Engine::close_peer(PeerId id) {
  State& state = *state_;
  state.enter(state.host.now_ns());
  Peer* peer = state.find_peer(id);
  if (peer == nullptr) return fail(ErrorCode::not_found, "close peer " + std::to_string(static_cast<std::uint64_t>(id)) + ": no such peer");
  peer->close_when_idle = true;
  if (peer->stage == PeerStage::up && !state.idle(*peer)) return {};
  if (peer->stage == PeerStage::up) {
    state.start_leaving(*peer);
  } else if (peer->stage != PeerStage::leaving && peer->stage != PeerStage::closing) {
    state.lose_peer(*peer, Error(ErrorCode::canceled, state.describe(*peer) + ": closed by the caller before it was up"), true);
  }
  return {};
}

Result<PeerInfo> Engine::peer_info(PeerId id) const {
  Peer* peer = state_->find_peer(id);
  if (peer == nullptr) return fail(ErrorCode::not_found, "peer " + std::to_string(static_cast<std::uint64_t>(id)) + ": no such peer");
  PeerInfo info;
  switch (peer->stage) {
    case PeerStage::linking:
    case PeerStage::greeting:
    case PeerStage::connecting: info.state = PeerState::connecting; break;
    case PeerStage::up: info.state = PeerState::up; break;
    case PeerStage::leaving: info.state = PeerState::closing; break;
    case PeerStage::closing: info.state = peer->cause ? PeerState::lost : PeerState::closing; break;
  }
  info.name = peer->name;
  info.address = peer->address;
  info.lane = peer->lane;
  info.detail = peer->detail;
  if (auto now = state_->backend.peer_state(peer->backend_peer); peer->backend_peer != 0 && now) {
    info.lane = now->lane;  // whether memory could be mapped shows only when it is written
    info.detail = now->detail;
  }
  info.engine = peer->engine;
  info.error = peer->cause;
  for (const auto& [id_, transfer] : state_->transfers) info.transfers += transfer->peer == id && transfer->phase != Phase::ended;
  return info;
}

std::vector<PeerId> Engine::peers() const {
  std::vector<PeerId> ids;
  for (const auto& [id, peer] : state_->peers) ids.push_back(id);
  return ids;
}

// ---- life of a peer

Peer& Engine::State::make_peer(LinkId link, bool outgoing, std::string_view address, std::uint64_t deadline_ns) {
  auto owned = std::make_unique<Peer>();
  Peer& peer = *owned;
  peer.id = PeerId{new_id()};
  peer.link = link;
  peer.outgoing_link = outgoing;
  peer.stage = outgoing ? PeerStage::linking : PeerStage::greeting;
  peer.address = std::string(address);
  peer.connect_deadline_ns = deadline_ns != 0 ? deadline_ns : now_ns + options.connect_timeout_ns;
  peer.last_heard_ns = now_ns;
  peer_by_link[static_cast<std::uint64_t>(link)] = peer.id;
  peers[peer.id] = std::move(owned);
  arm_peer_timer(peer);
  return peer;
}

void Engine::State::send(Peer& peer, const session::Message& message) {
  if (peer.link_alive) links.send(peer.link, message);
}

Result<void> Engine::State::send_hello(Peer& peer) {
  auto backend_peer = backend.peer_create({options.lane, options.lease_ns});
  if (!backend_peer) return fail(backend_peer.error().within(describe(peer)));
  peer.backend_peer = *backend_peer;
  peer_by_backend[peer.backend_peer] = peer.id;
  auto endpoint = backend.peer_export(peer.backend_peer);
  if (!endpoint) return fail(endpoint.error().within(describe(peer)));

  session::Hello hello;
  hello.engine = options.id;
  hello.name = options.name;
  hello.session_id = options.session_id;
  hello.backend = std::string(backend.name());
  hello.lane = options.lane;
  hello.writer = options.writer;
  hello.heartbeat_interval_ns = options.heartbeat_interval_ns;
  hello.lease_ns = options.lease_ns;
  if (options.pool) {
    hello.pool = write_pool_file(*options.pool);
    hello.layout_digest = layout_digest(*options.pool);
    hello.ratios_digest = ratios_digest(options.pool->compression_ratios);
  }
  hello.regions_generation = regions_generation;
  std::vector<kvferry_region> ids;
  for (const auto& [id, info] : exported) {
    hello.regions.push_back(info);
    ids.push_back(id);
  }
  if (!ids.empty()) {
    auto blob = backend.export_regions(ids);
    if (!blob) return fail(blob.error().within(describe(peer)));
    hello.region_blob = std::move(*blob);
  }
  hello.endpoint = std::move(*endpoint);
  peer.hello_sent = true;
  send(peer, hello);
  return {};
}

Result<void> Engine::State::check_hello(const Peer& peer, const session::Hello& hello) const {
  if (auto version = session::negotiate_version(hello); !version) return fail(version.error().within(describe(peer)));
  if (hello.engine == options.id) return fail(ErrorCode::invalid_argument, describe(peer) + ": this engine was asked to connect to itself");
  if (hello.backend != backend.name()) {
    return fail(ErrorCode::mismatch, describe(peer) + ": its backend is " + hello.backend + ", ours is " + std::string(backend.name()) +
                                         ": start both sides with the same backend");
  }
  if (hello.pool.has_value() != options.pool.has_value()) {
    return fail(ErrorCode::mismatch, describe(peer) + (hello.pool ? ": it declares a pool layout and we declare none" : ": it declares no pool layout and we declare one") +
                                         ": declare a pool on both sides or on neither");
  }
  return {};
}

// Compares the layouts in the directions that our role needs; the other one is kept as the reason to refuse transfers that way.
Result<void> Engine::State::take_layout(Peer& peer, const session::Hello& hello) {
  if (!hello.pool) return {};
  auto pool = parse_pool_file(*hello.pool);
  if (!pool) return fail(pool.error().within(describe(peer) + ": its pool layout"));
  peer.pool = std::move(*pool);
  if (auto pairs = slice(*options.pool, *peer.pool); pairs) {
    peer.pairs_out = std::move(*pairs);
  } else {
    peer.out_refusal = pairs.error().within(options.name + " to " + describe(peer));
  }
  if (auto pairs = slice(*peer.pool, *options.pool); pairs) {
    peer.pairs_in = std::move(*pairs);
  } else {
    peer.in_refusal = pairs.error().within(describe(peer) + " to " + options.name);
  }
  const bool out_needed = options.role == EngineRole::prefill, in_needed = options.role == EngineRole::decode;
  if (out_needed && peer.out_refusal) return fail(*peer.out_refusal);
  if (in_needed && peer.in_refusal) return fail(*peer.in_refusal);
  if (peer.out_refusal && peer.in_refusal) return fail(*peer.out_refusal);
  return {};
}

Result<void> Engine::State::take_regions(Peer& peer, const std::vector<session::RegionInfo>& infos, std::span<const std::uint8_t> blob) {
  if (infos.empty()) return {};
  if (auto imported = backend.import_regions(peer.backend_peer, blob); !imported) return fail(imported.error().within(describe(peer)));
  for (const auto& info : infos) {
    if (auto added = peer.regions.add({info.id, info.address, info.length}); !added) return fail(added.error().within(describe(peer)));
  }
  peer.plan_entries_fresh = false;
  return {};
}

void Engine::State::on_hello(Peer& peer, session::Hello hello) {
  peer.name = hello.name;
  peer.engine = hello.engine;
  auto fits = check_hello(peer, hello);
  if (fits && !peer.hello_sent) fits = send_hello(peer);
  if (fits) fits = take_layout(peer, hello);
  if (fits) fits = take_regions(peer, hello.regions, hello.region_blob);
  if (fits) fits = backend.peer_connect(peer.backend_peer, hello.endpoint, peer.connect_deadline_ns);
  if (!fits) {
    lose_peer(peer, fits.error(), true);
    return;
  }
  peer.stage = PeerStage::connecting;
  peer.heartbeat_due_ns = now_ns + options.heartbeat_interval_ns;
  arm_peer_timer(peer);
}

void Engine::State::maybe_up(Peer& peer) {
  if (peer.stage != PeerStage::connecting || !peer.backend_up || !peer.ready_received) return;
  peer.stage = PeerStage::up;
  worked = true;
  events.push_back({EventKind::peer_up, peer.id, {}, 0, 0, std::nullopt, {}, {}});
  for (const TransferId id : std::exchange(peer.waiting, {})) {
    Transfer* transfer = find_transfer(id);
    if (transfer != nullptr && transfer->phase == Phase::waiting_peer) start_outgoing(peer, *transfer);
  }
  std::vector<TransferId> expected;
  for (const auto& [key, id] : incoming) expected.push_back(id);
  for (const TransferId id : expected) {
    Transfer* transfer = find_transfer(id);
    if (transfer == nullptr || transfer->phase != Phase::expecting) continue;
    const bool named = std::any_of(transfer->writers.begin(), transfer->writers.end(), [&](const Writer& writer) { return writer.peer == peer.id; });
    if (named && peer.in_refusal) {
      fail_incoming(*transfer, *peer.in_refusal, std::nullopt);
    } else if (named) {
      announce(*transfer);
    }
  }
  if (peer.close_when_idle && idle(peer)) start_leaving(peer);
}

void Engine::State::on_message(Peer& peer, session::Message message) {
  if (peer.stage == PeerStage::closing || peer.stage == PeerStage::leaving) {
    return;  // nothing it says matters any more; its end of the link is what we wait for
  }
  worked = true;
  if (auto* goodbye = std::get_if<session::Goodbye>(&message)) {
    Error cause(ErrorCode::peer_lost, describe(peer) + ": closed the connection");
    if (goodbye->code != 0) {
      cause = Error(static_cast<ErrorCode>(goodbye->code), describe(peer) + ": refused us or gave up: " + goodbye->text);
    }
    lose_peer(peer, std::move(cause), false);
    return;
  }
  const bool greeting = peer.stage == PeerStage::linking || peer.stage == PeerStage::greeting;
  if (greeting != std::holds_alternative<session::Hello>(message)) {
    lose_peer(peer, Error(ErrorCode::io, describe(peer) + ": sent " + std::string(session::name_of(message)) +
                                             (greeting ? " before its hello" : " a second time")), true);
    return;
  }
  if (auto* hello = std::get_if<session::Hello>(&message)) return on_hello(peer, std::move(*hello));
  if (std::holds_alternative<session::Ready>(message)) {
    peer.ready_received = true;
    return maybe_up(peer);
  }
  if (auto* added = std::get_if<session::RegionsAdded>(&message)) {
    if (auto taken = take_regions(peer, added->regions, added->blob); !taken) lose_peer(peer, taken.error(), true);
    return;
  }
  if (auto* removed = std::get_if<session::RegionsRemoved>(&message)) {
    for (const kvferry_region region : removed->regions) peer.regions.remove(region);
    peer.plan_entries_fresh = false;
    (void)backend.forget_regions(peer.backend_peer, removed->regions);  // an unknown peer is on its way out: its loss is handled elsewhere
    return;
  }
  if (auto* announced = std::get_if<session::Announce>(&message)) return on_announce(peer, std::move(*announced));
  if (auto* abort = std::get_if<session::Abort>(&message)) return on_abort(peer, *abort);
  if (auto* quiesced = std::get_if<session::Quiesced>(&message)) {
    const auto room = incoming.find({quiesced->room, quiesced->generation});
    Transfer* transfer = room == incoming.end() ? nullptr : find_transfer(room->second);
    if (transfer == nullptr || !transfer->cause) return;
    for (auto& writer : transfer->writers) {
      if (writer.peer == peer.id && writer.quarantine) writer.quiesced = true;
    }
    return settle_incoming(*transfer);
  }
  if (auto* extension = std::get_if<session::Extension>(&message)) return on_extension(peer, *extension);
}

void Engine::State::on_extension(Peer& peer, const session::Extension& extension) {
  if (extension.tag == kTagRegionsQuery) {
    send(peer, session::Extension{kTagRegionsAnswer, false, {}});
    return;
  }
  if (extension.tag == kTagRegionsAnswer) {
    for (const TransferId id : std::exchange(peer.refreshing, {})) {
      Transfer* transfer = find_transfer(id);
      if (transfer != nullptr && transfer->phase == Phase::refreshing) plan_raw(peer, *transfer);
    }
    return;
  }
  if (extension.critical) {
    lose_peer(peer, Error(ErrorCode::version, describe(peer) + ": needs session extension " + std::to_string(extension.tag) + ", which we do not know"), true);
  }
}

// ---- time

void Engine::State::arm_peer_timer(Peer& peer) {
  std::uint64_t at = ~std::uint64_t{0};
  switch (peer.stage) {
    case PeerStage::linking:
    case PeerStage::greeting: at = peer.connect_deadline_ns; break;
    case PeerStage::connecting: at = std::min(peer.connect_deadline_ns, peer.heartbeat_due_ns); break;
    case PeerStage::up: at = std::min(peer.heartbeat_due_ns, peer.last_heard_ns + options.lease_ns + 1); break;
    case PeerStage::leaving: at = peer.leave_deadline_ns; break;
    case PeerStage::closing: return;
  }
  peer.timer_at_ns = at;
  add_timer({at, TimerKind::peer, static_cast<std::uint64_t>(peer.id), {}});
}

void Engine::State::peer_timer(Peer& peer) {
  const bool connecting = peer.stage == PeerStage::linking || peer.stage == PeerStage::greeting || peer.stage == PeerStage::connecting;
  if (connecting && now_ns >= peer.connect_deadline_ns) {
    const char* step = peer.stage == PeerStage::linking    ? "the connection was not accepted"
                       : peer.stage == PeerStage::greeting ? "no hello came"
                       : !peer.backend_up                  ? "the data path's probe did not come back"
                                                           : "no ready came";
    return lose_peer(peer, Error(ErrorCode::timeout, describe(peer) + ": connecting timed out: " + step), true);
  }
  if (peer.stage == PeerStage::leaving && now_ns >= peer.leave_deadline_ns) return close_backend_peer(peer, KVFERRY_CLOSE_DRAIN);
  if (peer.stage == PeerStage::connecting || peer.stage == PeerStage::up) {
    if (now_ns - peer.last_heard_ns > options.lease_ns && peer.stage == PeerStage::up) {
      return lose_peer(peer, Error(ErrorCode::peer_lost, describe(peer) + ": silent for " + std::to_string((now_ns - peer.last_heard_ns) / 1'000'000) +
                                                             " ms, longer than the lease of " + std::to_string(options.lease_ns / 1'000'000) +
                                                             " ms: dead, frozen or unreachable"), true);
    }
    if (now_ns >= peer.heartbeat_due_ns) {
      send(peer, session::Heartbeat{++peer.heartbeats});
      peer.heartbeat_due_ns = now_ns + options.heartbeat_interval_ns;
    }
  }
  arm_peer_timer(peer);
}

// ---- ends

bool Engine::State::idle(const Peer& peer) const {
  for (const auto& [id, transfer] : transfers) {
    if (transfer->phase == Phase::ended && transfer->quiesced) continue;
    if (transfer->peer == peer.id) return false;
    for (const auto& writer : transfer->writers) {
      if (writer.peer == peer.id) return false;
    }
  }
  return true;
}

void Engine::State::start_leaving(Peer& peer) {
  send(peer, session::Goodbye{0, {}});
  peer.stage = PeerStage::leaving;
  peer.leave_deadline_ns = now_ns + kLeaveNs;
  if (!peer.link_alive) return close_backend_peer(peer, KVFERRY_CLOSE_DRAIN);
  arm_peer_timer(peer);
}

// `tell`: the link may still carry our goodbye.
void Engine::State::lose_peer(Peer& peer, Error cause, bool tell) {
  worked = true;
  if (tell) send(peer, session::Goodbye{static_cast<std::int32_t>(cause.code), session::fit_text(cause.text)});
  peer.cause = cause;
  close_backend_peer(peer, KVFERRY_CLOSE_FORCE);

  events.push_back({EventKind::peer_lost, peer.id, {}, 0, 0, cause, {}, {}});
  for (const TransferId id : std::exchange(peer.waiting, {})) {
    const Transfer* transfer = find_transfer(id);  // in no room yet: it gets one to end in
    if (transfer != nullptr) peer.outgoing[{transfer->room, transfer->generation}].transfers.push_back(id);
  }
  peer.refreshing.clear();
  std::vector<RoomKey> rooms;
  for (const auto& [key, room] : peer.outgoing) rooms.push_back(key);
  for (const RoomKey& key : rooms) fail_outgoing(peer, key, cause, false);
  std::vector<TransferId> targets;
  for (const auto& [key, id] : incoming) targets.push_back(id);
  for (const TransferId id : targets) {
    Transfer* transfer = find_transfer(id);
    if (transfer == nullptr || transfer->cause || transfer->phase == Phase::ended) continue;
    const bool ours = std::any_of(transfer->writers.begin(), transfer->writers.end(),
                                  [&](const Writer& writer) { return writer.peer == peer.id && !writer.complete; });
    if (ours) fail_incoming(*transfer, cause.within(describe(*transfer)), peer.id);
  }
  if (peer.backend_peer == 0) forget_peer(peer);
}

void Engine::State::close_backend_peer(Peer& peer, std::uint32_t mode) {
  peer.stage = PeerStage::closing;
  if (peer.link_alive) {
    links.close(peer.link);
    peer.link_alive = false;
    peer_by_link.erase(static_cast<std::uint64_t>(peer.link));
  }
  if (peer.backend_peer == 0) {
    if (!peer.cause) forget_peer(peer);
    return;  // lose_peer forgets it when it has told everybody
  }
  auto closed = backend.peer_close(peer.backend_peer, mode, now_ns + options.quiesce_timeout_ns);
  if (!closed && closed.error().code == ErrorCode::not_found) {
    // The backend has finished with it already; nobody will tell us again.
    peer_by_backend.erase(peer.backend_peer);
    peer.backend_peer = 0;
    if (!peer.cause) forget_peer(peer);
  }
}

// The backend's proof that the peer is quiet in both roles, or that it cannot prove it yet.
void Engine::State::on_peer_closed(Peer& peer, const kvferry_event& event) {
  if (event.error.code != KVFERRY_ERROR_CANNOT_PROMISE) return forget_peer(peer);
  std::vector<RoomKey> rooms;
  for (const auto& [key, room] : peer.outgoing) rooms.push_back(key);
  for (const RoomKey& key : rooms) quiesce_outgoing(peer, key);  // our side of it is closed in any case
  settle_writer(peer.id, true);
}

void Engine::State::forget_peer(Peer& peer) {
  const PeerId id = peer.id;
  std::vector<RoomKey> rooms;
  for (const auto& [key, room] : peer.outgoing) rooms.push_back(key);
  for (const RoomKey& key : rooms) quiesce_outgoing(peer, key);
  settle_writer(id, false);
  release_batches(id);
  peer_by_backend.erase(peer.backend_peer);
  peer_by_link.erase(static_cast<std::uint64_t>(peer.link));
  events.push_back({EventKind::peer_quiesced, id, {}, 0, 0, std::nullopt, {}, {}});
  peers.erase(id);
}

}  // namespace kvferry
