// The engine core's front: creation, memory, what the owner calls, and the drive shaft.
//
//   progress(now): stalled? ─► backend.progress ─► backend events ─► timers ─► post batches
//
// The order matters. The check for our own stall comes before the backend applies anything that queued up while we stood still; batches are posted
// last, when completions have made room.
#include <algorithm>
#include <cstring>
#include <random>

#include "engine_state.h"

namespace kvferry {
namespace {

constexpr std::uint32_t kEventsPerPoll = 32;
constexpr std::uint32_t kPollsPerProgress = 8;

session::EngineId random_engine_id() {
  std::random_device device;
  session::EngineId id{};
  for (auto& byte : id) byte = static_cast<std::uint8_t>(device());
  return id;
}

bool is_zero(const session::EngineId& id) {
  return std::all_of(id.begin(), id.end(), [](std::uint8_t byte) { return byte == 0; });
}

}  // namespace

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(EngineOptions options, const Host& host, Backend& backend, LinkPort& links, JobPort& jobs) {
  if (options.writes_per_batch == 0 || options.batches_per_peer == 0) {
    return fail(ErrorCode::invalid_argument, "engine " + options.name + ": writes_per_batch " + std::to_string(options.writes_per_batch) +
                                                 " and batches_per_peer " + std::to_string(options.batches_per_peer) + " must be at least 1");
  }
  if (options.lease_ns == 0 || options.heartbeat_interval_ns == 0 || options.heartbeat_interval_ns > options.lease_ns / 2) {
    return fail(ErrorCode::invalid_argument, "engine " + options.name + ": heartbeat interval " + std::to_string(options.heartbeat_interval_ns) +
                                                 " ns must be above 0 and at most half of the lease of " + std::to_string(options.lease_ns) + " ns");
  }
  if (options.pool) {
    if (auto valid = validate(*options.pool); !valid) return fail(valid.error().within("engine " + options.name));
  }
  if (is_zero(options.id)) options.id = random_engine_id();
  const auto& limits = backend.limits();
  auto state = std::make_unique<State>(std::move(options), host, backend, links, jobs);
  state->now_ns = host.now_ns();
  state->writes_per_batch = std::max(1u, std::min(state->options.writes_per_batch, limits.writes_per_batch_max));
  state->pieces_per_batch = std::max(limits.pieces_per_write_max, std::min(limits.pieces_per_batch_max, 2 * state->writes_per_batch));
  state->batches_per_peer = std::max(1u, std::min(state->options.batches_per_peer, limits.batches_in_flight_max));
  state->polled.resize(kEventsPerPoll);
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

// ---- memory

Result<kvferry_region> Engine::register_region(const Backend::RegionRequest& request) {
  auto region = state_->backend.register_region(request);
  if (!region) return region;
  if (auto added = state_->regions.add({*region, request.address, request.length}); !added) {
    (void)state_->backend.deregister_region(*region, KVFERRY_DEREGISTER_REFUSE_IF_BUSY);  // unused so far: cannot be busy
    return fail(added.error());
  }
  if ((request.access & (KVFERRY_ACCESS_REMOTE_WRITE | KVFERRY_ACCESS_REMOTE_READ)) != 0) {
    const session::RegionInfo info{*region, request.address, request.length, request.purpose, request.memory_kind};
    if (auto told = state_->publish_region(info); !told) return fail(told.error());
  }
  state_->refresh_plan_entries();
  return region;
}

Result<Backend::Allocation> Engine::allocate(std::uint64_t length, std::uint32_t purpose) {
  auto allocation = state_->backend.allocate(length, purpose);
  if (!allocation) return allocation;
  const auto address = reinterpret_cast<std::uint64_t>(allocation->address);
  if (auto added = state_->regions.add({allocation->region, address, length}); !added) return fail(added.error());
  state_->allocated.insert(allocation->region);
  if (auto told = state_->publish_region({allocation->region, address, length, purpose, KVFERRY_MEMORY_HOST}); !told) return fail(told.error());
  state_->refresh_plan_entries();
  return allocation;
}

Result<bool> Engine::deregister_region(kvferry_region region) {
  State& state = *state_;
  if (state.withdrawn.insert(region).second && state.exported.erase(region) != 0) {
    ++state.regions_generation;
    for (auto& [id, peer] : state.peers) {
      if (peer->hello_sent) state.send(*peer, session::RegionsRemoved{state.regions_generation, {region}});
    }
  }
  auto gone = state.allocated.count(region) != 0 ? state.backend.free_memory(region)
                                                 : state.backend.deregister_region(region, KVFERRY_DEREGISTER_DRAIN);
  if (!gone) {
    if (gone.error().code == ErrorCode::not_found) state.withdrawn.erase(region);
    return gone;
  }
  if (*gone) {
    state.regions.remove(region);
    state.withdrawn.erase(region);
    state.allocated.erase(region);
    state.refresh_plan_entries();
  }
  return gone;
}

Result<void> Engine::set_pool(Pool pool) {
  if (!state_->peers.empty()) {
    return fail(ErrorCode::busy, "engine " + state_->options.name + ": the pool must be set before the first of its " +
                                     std::to_string(state_->peers.size()) + " peers");
  }
  if (auto valid = validate(pool); !valid) return fail(valid.error().within("engine " + state_->options.name));
  state_->options.pool = std::move(pool);
  return {};
}

void Engine::set_session_id(std::string session_id) { state_->options.session_id = std::move(session_id); }

Result<void> Engine::State::publish_region(const session::RegionInfo& info) {
  exported[info.id] = info;
  ++regions_generation;
  bool wanted = false;
  for (auto& [id, peer] : peers) wanted |= peer->hello_sent;
  if (!wanted) return {};
  auto blob = backend.export_regions(std::span(&info.id, 1));
  if (!blob) return fail(blob.error());
  for (auto& [id, peer] : peers) {
    if (peer->hello_sent) send(*peer, session::RegionsAdded{regions_generation, {info}, *blob});
  }
  return {};
}

void Engine::State::refresh_plan_entries() {
  for (auto& [id, peer] : peers) peer->plan_entries_fresh = false;
}

// ---- look-ups

Peer* Engine::State::find_peer(PeerId id) {
  const auto found = peers.find(id);
  return found == peers.end() ? nullptr : found->second.get();
}

Peer* Engine::State::find_peer_by_link(LinkId link) {
  const auto found = peer_by_link.find(static_cast<std::uint64_t>(link));
  return found == peer_by_link.end() ? nullptr : find_peer(found->second);
}

Transfer* Engine::State::find_transfer(TransferId id) {
  const auto found = transfers.find(static_cast<std::uint64_t>(id));
  return found == transfers.end() ? nullptr : found->second.get();
}

std::string Engine::State::describe(const Peer& peer) const { return "peer \"" + peer.name + "\" at " + peer.address; }

std::string Engine::State::describe(const Transfer& transfer) const {
  std::string text = "room " + std::to_string(transfer.room) + " generation " + std::to_string(transfer.generation);
  if (!transfer.target_role && !transfer.raw) text += " chunk " + std::to_string(transfer.chunk);
  return text;
}

// ---- driving

// Every way in comes past the clock: what a link brings after a long pause must find our own stall first.
void Engine::State::enter(std::uint64_t at_ns) {
  now_ns = std::max(now_ns, at_ns);
  check_stall();
}

bool Engine::progress(std::uint64_t now_ns) {
  State& state = *state_;
  state.worked = false;
  state.enter(now_ns);
  state.last_progress_ns = state.now_ns;
  if (auto worked = state.backend.progress(); worked) {
    state.worked |= *worked;
  } else {
    // A backend whose progress fails cannot be trusted with any peer.
    std::vector<PeerId> ids;
    for (auto& [id, peer] : state.peers) ids.push_back(id);
    for (const PeerId id : ids) {
      if (Peer* peer = state.find_peer(id); peer != nullptr && peer->stage != PeerStage::closing) state.lose_peer(*peer, worked.error(), true);
    }
  }
  state.drain_backend();
  state.run_timers();
  state.run_postponed();
  for (auto& [id, peer] : state.peers) {
    if (peer->stage == PeerStage::up) state.post(*peer);
  }
  return state.worked;
}

void Engine::State::drain_backend() {
  for (std::uint32_t round = 0; round < kPollsPerProgress; ++round) {
    for (auto& event : polled) {
      event.struct_size = sizeof event;
    }
    auto count = backend.poll(polled);
    if (!count || *count == 0) return;
    worked = true;
    for (std::uint32_t i = 0; i < *count; ++i) on_backend_event(polled[i]);
    if (*count < polled.size()) return;
  }
}

void Engine::State::on_backend_event(const kvferry_event& event) {
  switch (event.kind) {
    case KVFERRY_EVENT_BATCH_DONE:
    case KVFERRY_EVENT_BATCH_FAILED: on_batch(event); return;
    case KVFERRY_EVENT_FENCED: on_fenced(event); return;
    default: break;
  }
  const auto found = peer_by_backend.find(event.peer);
  Peer* peer = found == peer_by_backend.end() ? nullptr : find_peer(found->second);
  if (peer == nullptr) return;
  switch (event.kind) {
    case KVFERRY_EVENT_PEER_UP:
      peer->backend_up = true;
      if (peer->stage == PeerStage::connecting) {
        if (auto info = backend.peer_state(peer->backend_peer); info) {
          peer->lane = info->lane;
          peer->detail = info->detail;
        }
        send(*peer, session::Ready{peer->lane});
        maybe_up(*peer);
      }
      return;
    case KVFERRY_EVENT_PEER_LOST:
      if (peer->stage == PeerStage::leaving) {
        close_backend_peer(*peer, KVFERRY_CLOSE_FORCE);
      } else if (peer->stage != PeerStage::closing) {
        lose_peer(*peer, to_error(event.error).within(describe(*peer)), true);
      }
      return;
    case KVFERRY_EVENT_PEER_CLOSED: on_peer_closed(*peer, event); return;
    case KVFERRY_EVENT_INITIATOR_QUIESCED: quiesce_outgoing(*peer, {event.room, event.generation}); return;
    case KVFERRY_EVENT_NOTIFICATION: on_notification(*peer, event.notification); return;
    case KVFERRY_EVENT_PIECE_REFUSED: {
      const auto room = incoming.find({event.room, event.generation});
      Transfer* transfer = room == incoming.end() ? nullptr : find_transfer(room->second);
      if (transfer != nullptr && !transfer->cause) {
        fail_incoming(*transfer, to_error(event.error).within(describe(*transfer) + " from " + describe(*peer)), std::nullopt);
      }
      return;
    }
    default: return;
  }
}

void Engine::State::run_timers() {
  while (!timers.empty() && timers.top().at_ns <= now_ns) {
    const Timer timer = timers.top();
    timers.pop();
    if (timer.kind == TimerKind::transfer) {
      Transfer* transfer = find_transfer(TransferId{timer.id});
      if (transfer != nullptr && transfer->phase != Phase::ended) on_deadline(*transfer);
      continue;
    }
    Peer* peer = find_peer(PeerId{timer.id});
    if (peer == nullptr) continue;
    if (timer.kind == TimerKind::peer) {
      if (timer.at_ns == peer->timer_at_ns) peer_timer(*peer);
    } else {
      expire_announcement(*peer, timer.room);
    }
  }
}

// What a busy backend put off, and peers that must go but could not go in the middle of something else.
void Engine::State::run_postponed() {
  for (const auto& [id, key] : std::exchange(cancels_to_retry, {})) {
    Peer* peer = find_peer(id);
    if (peer != nullptr && peer->stage != PeerStage::closing) cancel_in_backend(*peer, key);
  }
  for (const auto& [id, transfer_id] : std::exchange(fences_to_retry, {})) {
    Peer* peer = find_peer(id);
    Transfer* transfer = find_transfer(transfer_id);
    if (peer != nullptr && transfer != nullptr && peer->stage != PeerStage::closing) fence_in_backend(*peer, *transfer);
  }
  for (const auto& [id, cause] : std::exchange(lose_peer_later, {})) {
    Peer* peer = find_peer(id);
    if (peer != nullptr && peer->stage != PeerStage::closing) lose_peer(*peer, cause, true);
  }
}

std::uint64_t Engine::next_deadline_ns() const {
  return state_->timers.empty() ? ~std::uint64_t{0} : state_->timers.top().at_ns;
}

std::size_t Engine::poll(std::span<Event> events) {
  std::size_t count = 0;
  while (count < events.size() && !state_->events.empty()) {
    events[count++] = std::move(state_->events.front());
    state_->events.pop_front();
  }
  return count;
}

bool Engine::busy() const {
  return state_->batches_in_flight != 0 ||
         std::any_of(state_->peers.begin(), state_->peers.end(), [](const auto& peer) { return peer.second->staged != TransferId{}; });
}
const EngineCounters& Engine::counters() const noexcept { return state_->counters; }
const Backend& Engine::backend() const noexcept { return state_->backend; }
const session::EngineId& Engine::id() const noexcept { return state_->options.id; }

// We stood still for longer than the lease we promised: others may have declared us dead and our memory may be planned for something else. Nothing
// that queued up in the meantime may be applied, so every peer goes before the backend moves.
void Engine::State::check_stall() {
  if (peers.empty() || last_progress_ns == 0 || now_ns - last_progress_ns <= options.lease_ns) return;
  const std::uint64_t stalled_ns = now_ns - std::exchange(last_progress_ns, now_ns);
  ++counters.stalls;
  const Error cause(ErrorCode::peer_lost, "engine " + options.name + " was stalled for " + std::to_string(stalled_ns / 1'000'000) +
                                              " ms, longer than its lease of " + std::to_string(options.lease_ns / 1'000'000) +
                                              " ms: everything queued meanwhile is fenced");
  std::vector<PeerId> ids;
  for (auto& [id, peer] : peers) ids.push_back(id);
  for (const PeerId id : ids) {
    Peer* peer = find_peer(id);
    if (peer != nullptr && peer->stage != PeerStage::closing) lose_peer(*peer, cause, true);
  }
}

}  // namespace kvferry
