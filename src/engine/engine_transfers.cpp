// Transfers of both roles.
//
// Initiator: a chunk waits for its peer, then for the target's lists; the plan is made (inline, or as a job when it is large); writes are filled from
// the plan's cursor into the peer's staging arrays and offered to the backend until all of a batch is accepted. The notification rides on the last
// batch. Nothing is allocated per write.
//
//   cursor ──fill──► peer.writes/pieces ──submit──► accepted k ──► BatchRecord{start, skipped, k}
//                         ▲      └── the rest is offered again as it is ──┘
//
// A failure is one of a room at one peer: chunks of one room share their fate, other rooms and peers are not touched.
#include <algorithm>

#include "engine_state.h"

namespace kvferry {
namespace {

constexpr std::uint64_t kSlotBits = 32;
constexpr std::size_t kEndedTextBytes = 512;  // of a remembered cause

std::string number(std::uint64_t value) { return std::to_string(value); }

std::uint64_t indices_total(const IndicesBySpace& indices) {
  std::uint64_t total = 0;
  for (const auto& list : indices) total += list.size();
  return total;
}

}  // namespace

// ---- the owner's calls

Result<Transfer*> Engine::State::adopt(Transfer transfer) {
  if (transfer.id == TransferId{}) transfer.id = TransferId{new_id()};
  auto& slot = transfers[static_cast<std::uint64_t>(transfer.id)];
  if (slot != nullptr) return fail(ErrorCode::exists, "transfer " + number(static_cast<std::uint64_t>(transfer.id)) + ": the id is in use");
  transfer.figures.submitted_ns = now_ns;
  slot = std::make_unique<Transfer>(std::move(transfer));
  if (slot->deadline_ns != 0) add_timer({slot->deadline_ns, TimerKind::transfer, static_cast<std::uint64_t>(slot->id), {}});
  return slot.get();
}

Result<TransferId> Engine::submit(PagedTransfer paged) {
  State& state = *state_;
  state.enter(state.host.now_ns());
  Peer* peer = state.find_peer(paged.peer);
  const std::string what = "submit room " + number(paged.room) + " chunk " + number(paged.chunk);
  if (peer == nullptr) return fail(ErrorCode::not_found, what + ": no peer " + number(static_cast<std::uint64_t>(paged.peer)));
  if (peer->cause) return fail(peer->cause->within(what));
  if (paged.room == 0) return fail(ErrorCode::invalid_argument, what + ": room 0 means \"not landed\" in the metadata and cannot be used");
  if (!state.options.pool) return fail(ErrorCode::invalid_argument, what + ": engine " + state.options.name + " has no pool: submit a raw list");
  if (peer->stage == PeerStage::up && peer->out_refusal) return fail(peer->out_refusal->within(what));
  const RoomKey key{paged.room, paged.generation};
  if (const auto ended = peer->ended_rooms.find(key); ended != peer->ended_rooms.end()) return fail(ended->second.within(what));
  if (const auto room = peer->outgoing.find(key); room != peer->outgoing.end() && room->second.cause) return fail(room->second.cause->within(what));

  Transfer transfer;
  transfer.id = paged.id;
  transfer.peer = paged.peer;
  transfer.room = paged.room;
  transfer.generation = paged.generation;
  transfer.deadline_ns = paged.deadline_ns;
  transfer.indices = std::move(paged.indices);
  transfer.target_first = paged.target_first;
  transfer.chunk = paged.chunk;
  transfer.last = paged.last;
  auto adopted = state.adopt(std::move(transfer));
  if (!adopted) return fail(adopted.error());
  ++state.counters.submitted;
  const TransferId id = (*adopted)->id;
  state.start_outgoing(*peer, **adopted);
  return id;
}

Result<TransferId> Engine::submit(RawTransfer raw) {
  State& state = *state_;
  state.enter(state.host.now_ns());
  Peer* peer = state.find_peer(raw.peer);
  const std::string what = "submit " + number(raw.writes.size()) + " raw writes";
  if (peer == nullptr) return fail(ErrorCode::not_found, what + ": no peer " + number(static_cast<std::uint64_t>(raw.peer)));
  if (peer->cause) return fail(peer->cause->within(what));
  Transfer transfer;
  transfer.id = raw.id;
  transfer.peer = raw.peer;
  transfer.raw = true;
  transfer.room = raw.room != 0 ? raw.room : state.next_own_room++;
  transfer.generation = raw.generation;
  transfer.deadline_ns = raw.deadline_ns;
  transfer.writes = std::move(raw.writes);
  transfer.notify = raw.notify;
  const RoomKey key{transfer.room, transfer.generation};
  if (const auto ended = peer->ended_rooms.find(key); ended != peer->ended_rooms.end()) return fail(ended->second.within(what));
  auto adopted = state.adopt(std::move(transfer));
  if (!adopted) return fail(adopted.error());
  ++state.counters.submitted;
  const TransferId id = (*adopted)->id;
  state.start_outgoing(*peer, **adopted);
  return id;
}

Result<TransferId> Engine::expect(Expectation expectation) {
  State& state = *state_;
  state.enter(state.host.now_ns());
  const std::string what = "expect room " + number(expectation.room) + " generation " + number(expectation.generation);
  if (expectation.room == 0) return fail(ErrorCode::invalid_argument, what + ": room 0 means \"not landed\" in the metadata and cannot be used");
  if (!state.options.pool) return fail(ErrorCode::invalid_argument, what + ": engine " + state.options.name + " has no pool");
  if (expectation.writers.empty()) return fail(ErrorCode::invalid_argument, what + ": no writers given");
  const RoomKey key{expectation.room, expectation.generation};
  if (state.incoming.count(key) != 0) return fail(ErrorCode::exists, what + ": is expected already");
  for (std::size_t space = 0; space < kIndexSpacesCount; ++space) {
    for (std::size_t i = 0; i < expectation.indices[space].size(); ++i) {
      if (expectation.indices[space][i] > ~std::uint32_t{0}) {
        return fail(ErrorCode::out_of_range, what + ": " + std::string(to_string(static_cast<IndexSpace>(space))) + " index " +
                                                 number(expectation.indices[space][i]) + " at position " + number(i) + " does not fit 32 bits");
      }
    }
    if (auto unique = check_unique(expectation.indices[space], to_string(static_cast<IndexSpace>(space))); !unique) {
      return fail(unique.error().within(what));
    }
  }
  if (auto inside = state.check_inside_pool(expectation.indices); !inside) return fail(inside.error().within(what));
  Transfer transfer;
  transfer.id = expectation.id;
  transfer.target_role = true;
  transfer.room = expectation.room;
  transfer.generation = expectation.generation;
  transfer.deadline_ns = expectation.deadline_ns;
  transfer.indices = std::move(expectation.indices);
  transfer.phase = Phase::expecting;
  for (const PeerId id : expectation.writers) {
    Peer* peer = state.find_peer(id);
    if (peer == nullptr) return fail(ErrorCode::not_found, what + ": no peer " + number(static_cast<std::uint64_t>(id)));
    if (peer->cause) return fail(peer->cause->within(what));
    if (peer->stage == PeerStage::up && peer->in_refusal) return fail(peer->in_refusal->within(what));
    if (std::any_of(transfer.writers.begin(), transfer.writers.end(), [&](const Writer& writer) { return writer.peer == id; })) {
      return fail(ErrorCode::exists, what + ": " + state.describe(*peer) + " is named twice as a writer");
    }
    Writer writer;
    writer.peer = id;
    transfer.writers.push_back(std::move(writer));
  }
  auto adopted = state.adopt(std::move(transfer));
  if (!adopted) return fail(adopted.error());
  ++state.counters.expected;
  state.incoming[key] = (*adopted)->id;
  const TransferId id = (*adopted)->id;
  state.announce(**adopted);
  return id;
}

// The greatest index of every space lies inside every entry of that space.
Result<void> Engine::State::check_inside_pool(const IndicesBySpace& indices) const {
  for (std::size_t space = 0; space < kIndexSpacesCount; ++space) {
    const auto greatest = std::max_element(indices[space].begin(), indices[space].end());
    if (greatest == indices[space].end()) continue;
    for (const Entry& entry : options.pool->entries) {
      if (static_cast<std::size_t>(entry.space) != space || *greatest < entry.index_count) continue;
      return fail(ErrorCode::out_of_range, std::string(to_string(entry.space)) + " index " + number(*greatest) + " at position " +
                                               number(static_cast<std::uint64_t>(greatest - indices[space].begin())) + " is outside " +
                                               kvferry::describe(entry) + ", which has " + number(entry.index_count));
    }
  }
  return {};
}

Result<void> Engine::cancel(TransferId id, std::string_view why) {
  State& state = *state_;
  state.enter(state.host.now_ns());
  Transfer* transfer = state.find_transfer(id);
  if (transfer == nullptr || transfer->phase == Phase::ended) {
    return fail(ErrorCode::not_found, "cancel transfer " + number(static_cast<std::uint64_t>(id)) + ": no such transfer, or it has ended");
  }
  state.fail_transfer(*transfer, Error(ErrorCode::canceled, state.describe(*transfer) + ": " + std::string(why)), true);
  return {};
}

Result<void> Engine::fence(PeerId id, std::uint64_t room, std::uint32_t generation) {
  State& state = *state_;
  state.enter(state.host.now_ns());
  kvferry_peer backend_peer = 0;
  if (id != PeerId{}) {
    Peer* peer = state.find_peer(id);
    if (peer == nullptr) return fail(ErrorCode::not_found, "fence room " + number(room) + ": no peer " + number(static_cast<std::uint64_t>(id)));
    backend_peer = peer->backend_peer;
  }
  std::vector<TransferId> affected;
  for (const auto& [key, transfer_id] : state.incoming) {
    Transfer* transfer = state.find_transfer(transfer_id);
    if (transfer == nullptr || transfer->cause || transfer->phase == Phase::ended || key.first != room || key.second > generation) continue;
    const bool named = id == PeerId{} || std::any_of(transfer->writers.begin(), transfer->writers.end(), [&](const Writer& w) { return w.peer == id; });
    if (named) affected.push_back(transfer_id);
  }
  for (const TransferId transfer_id : affected) {
    Transfer* transfer = state.find_transfer(transfer_id);
    if (transfer != nullptr) state.fail_incoming(*transfer, Error(ErrorCode::fenced, state.describe(*transfer) + ": fenced by the caller"), std::nullopt);
  }
  return state.backend.fence(backend_peer, room, generation, 0, state.now_ns + state.options.quiesce_timeout_ns);
}

// ---- initiator: towards a plan

void Engine::State::start_outgoing(Peer& peer, Transfer& transfer) {
  if (peer.stage != PeerStage::up) {  // maybe_up comes again
    transfer.phase = Phase::waiting_peer;
    peer.waiting.push_back(transfer.id);
    return;
  }
  auto& room = peer.outgoing[{transfer.room, transfer.generation}];
  if (room.transfers.empty() && room.announce) --peer.parked;
  room.transfers.push_back(transfer.id);
  if (transfer.raw) return plan_raw(peer, transfer);
  transfer.phase = Phase::waiting_target;
  if (peer.out_refusal) return fail_outgoing(peer, {transfer.room, transfer.generation}, *peer.out_refusal, true);
  try_plan(peer, transfer);
}

// The slice of the target's lists that belongs to this chunk, with every count compared.
Result<IndexListsBySpace> Engine::State::target_lists(const Peer& peer, const Transfer& transfer, const session::Announce& announce) const {
  IndexListsBySpace lists;
  std::array<bool, kIndexSpacesCount> used{};
  for (const EntryPair& pair : peer.pairs_out) used[static_cast<std::size_t>(options.pool->entries[pair.source].space)] = true;
  for (std::size_t space = 0; space < kIndexSpacesCount; ++space) {
    if (!used[space]) continue;
    const auto& source = transfer.indices[space];
    const auto& target = announce.indices[space];
    const std::uint64_t first = transfer.target_first[space];
    const std::string name(to_string(static_cast<IndexSpace>(space)));
    std::uint64_t end = 0;
    if (!checked_add(first, source.size(), end) || end > target.size()) {
      return fail(ErrorCode::mismatch, describe(transfer) + ": " + number(source.size()) + " source " + name + " from position " + number(first) +
                                           ", but " + describe(peer) + " announced " + number(target.size()));
    }
    if (transfer.last && end != target.size()) {
      return fail(ErrorCode::mismatch, describe(transfer) + ": the last chunk ends at " + name + " position " + number(end) + ", but " + describe(peer) +
                                           " announced " + number(target.size()));
    }
    lists[space].source = source;
    lists[space].target.assign(target.begin() + static_cast<std::ptrdiff_t>(first), target.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return lists;
}

void Engine::State::try_plan(Peer& peer, Transfer& transfer) {
  const RoomKey key{transfer.room, transfer.generation};
  const auto& room = peer.outgoing[key];
  if (!room.announce) return;  // on_announce comes back
  auto lists = target_lists(peer, transfer, *room.announce);
  if (!lists) return fail_outgoing(peer, key, lists.error(), true);
  if (!peer.plan_entries_fresh) {
    auto entries = resolve_entries(*options.pool, *peer.pool, peer.pairs_out, regions, peer.regions);
    if (!entries) return fail_outgoing(peer, key, entries.error().within(describe(peer)), true);
    peer.plan_entries = std::move(*entries);
    peer.plan_entries_fresh = true;
  }
  auto job = std::make_shared<PlanJob>();
  job->transfer = transfer.id;
  job->entries = peer.plan_entries;
  job->lists = std::move(*lists);
  job->limits = {backend.limits().message_bytes_max, backend.limits().pieces_per_write_max};
  auto work = [job, host = &host] {
    const std::uint64_t begin = host->now_ns();
    job->plan = Plan::make(std::move(job->entries), job->lists, job->limits);
    job->nanoseconds = host->now_ns() - begin;
  };
  std::uint64_t writes = 0;
  if (checked_multiply(indices_total(transfer.indices), peer.plan_entries.size(), writes) && writes <= options.plan_inline_writes_max) {
    work();
    if (!job->plan) return fail_outgoing(peer, key, job->plan.error().within(describe(transfer)), true);
    return take_plan(peer, transfer, std::move(*job->plan), job->nanoseconds);
  }
  transfer.phase = Phase::planning;
  const std::uint64_t id = new_id();
  plan_jobs[id] = job;
  jobs.run(id, std::move(work));
}

void Engine::job_done(std::uint64_t id) {
  State& state = *state_;
  const auto found = state.plan_jobs.find(id);
  if (found == state.plan_jobs.end()) return;
  const auto job = found->second;
  state.plan_jobs.erase(found);
  state.worked = true;
  Transfer* transfer = state.find_transfer(job->transfer);
  if (transfer == nullptr || transfer->phase != Phase::planning) return;  // it failed meanwhile
  Peer* peer = state.find_peer(transfer->peer);
  if (peer == nullptr) return;
  if (!job->plan) {
    return state.fail_outgoing(*peer, {transfer->room, transfer->generation}, job->plan.error().within(state.describe(*transfer)), true);
  }
  state.take_plan(*peer, *transfer, std::move(*job->plan), job->nanoseconds);
}

// Addresses are resolved through both sides' regions before the first byte. A target address that we do not know may have been registered a moment ago:
// the peer is asked once whether we have seen all of its table.
void Engine::State::plan_raw(Peer& peer, Transfer& transfer) {
  const std::uint64_t begin = host.now_ns();
  auto plan = Plan::make_raw(transfer.writes, regions, peer.regions, {backend.limits().message_bytes_max, backend.limits().pieces_per_write_max});
  if (plan) return take_plan(peer, transfer, std::move(*plan), host.now_ns() - begin);
  if (!transfer.refreshed) {
    transfer.refreshed = true;
    transfer.phase = Phase::refreshing;
    peer.refreshing.push_back(transfer.id);
    send(peer, session::Extension{kTagRegionsQuery, false, {}});
    return;
  }
  fail_outgoing(peer, {transfer.room, transfer.generation}, plan.error().within(describe(transfer) + " to " + describe(peer)), true);
}

void Engine::State::take_plan(Peer& peer, Transfer& transfer, std::shared_ptr<const Plan> plan, std::uint64_t nanoseconds) {
  transfer.plan = std::move(plan);
  transfer.cursor = transfer.plan->begin();
  const PlanCounts& counts = transfer.plan->counts();
  transfer.figures.bytes = counts.bytes;
  transfer.figures.writes_before_merge = counts.writes_before_merge;
  transfer.figures.writes = counts.writes;
  transfer.figures.pieces = counts.pieces;
  transfer.figures.plan_ns = nanoseconds;
  transfer.phase = Phase::posting;
  peer.posting.push_back(transfer.id);
  worked = true;
}

// ---- initiator: posting

void Engine::State::post(Peer& peer) {
  while (peer.batches_in_flight < batches_per_peer) {
    if (peer.staged == TransferId{} && !stage_next(peer)) return;
    if (!offer(peer)) return;
  }
}

// Fills the peer's staging arrays from the next transfer in turn.
bool Engine::State::stage_next(Peer& peer) {
  while (!peer.posting.empty()) {
    const TransferId id = peer.posting.front();
    peer.posting.pop_front();
    Transfer* transfer = find_transfer(id);
    if (transfer == nullptr || transfer->phase != Phase::posting) continue;
    if (peer.writes.empty()) {
      peer.writes.resize(writes_per_batch);
      peer.pieces.resize(pieces_per_batch);
    }
    peer.staged = id;
    peer.staged_start = transfer->cursor;
    peer.staged_accepted = 0;
    peer.filled = transfer->cursor.fill(peer.writes, peer.pieces);
    if (peer.filled.writes == 0 && !transfer->cursor.done()) {
      peer.staged = {};
      fail_outgoing(peer, {transfer->room, transfer->generation},
                    Error(ErrorCode::internal, describe(*transfer) + ": the planner gave no write with " + number(peer.pieces.size()) + " pieces of room"), true);
      continue;
    }
    return true;
  }
  return false;
}

// Offers what is staged. False: the backend is full for now, or the transfer is gone.
bool Engine::State::offer(Peer& peer) {
  Transfer* transfer = find_transfer(peer.staged);
  if (transfer == nullptr || transfer->phase != Phase::posting) {
    peer.staged = {};
    return true;
  }
  const std::uint32_t writes_left = peer.filled.writes - peer.staged_accepted;
  const bool with_notification = transfer->cursor.done() && transfer->notify;
  if (writes_left == 0 && !with_notification) {  // an empty list without notification
    peer.staged = {};
    transfer->phase = Phase::draining;
    maybe_done(peer, *transfer);
    return true;
  }
  if (free_batches.empty()) {
    free_batches.push_back(static_cast<std::uint32_t>(batches.size()));
    batches.emplace_back();
  }
  const std::uint32_t slot = free_batches.back();
  kvferry_batch batch{};
  batch.struct_size = sizeof batch;
  batch.write_count = writes_left;
  batch.piece_count = peer.filled.pieces;
  batch.writes = peer.writes.data() + peer.staged_accepted;
  batch.pieces = peer.pieces.data();
  batch.room = transfer->room;
  batch.generation = transfer->generation;
  batch.writer = options.writer;
  batch.tag = (std::uint64_t{batches[slot].sequence + 1} << kSlotBits) | slot;
  batch.deadline_ns = transfer->deadline_ns;
  if (with_notification) {
    batch.flags = KVFERRY_BATCH_NOTIFY;
    batch.notification = {transfer->room, static_cast<std::uint64_t>(transfer->id), transfer->generation, transfer->chunk, options.writer, KVFERRY_OK,
                          transfer->last ? std::uint32_t{KVFERRY_NOTIFY_LAST_CHUNK} : 0u, transfer->figures.bytes};
  }
  auto accepted = backend.submit(peer.backend_peer, batch);
  if (!accepted) {
    peer.staged = {};
    fail_outgoing(peer, {transfer->room, transfer->generation}, accepted.error().within(describe(*transfer) + " to " + describe(peer)), true);
    return true;
  }
  const bool notified = with_notification && accepted->all;
  if (accepted->writes == 0 && !notified) return false;
  accept_batch(peer, *transfer, slot, accepted->writes, notified);
  return true;
}

void Engine::State::accept_batch(Peer& peer, Transfer& transfer, std::uint32_t slot, std::uint32_t accepted, bool notified) {
  worked = true;
  free_batches.pop_back();
  BatchRecord& record = batches[slot];
  record.used = true;
  ++record.sequence;
  record.peer = peer.id;
  record.transfer = transfer.id;
  record.start = peer.staged_start;
  record.skipped = peer.staged_accepted;
  record.writes = accepted;
  ++peer.batches_in_flight;
  ++batches_in_flight;
  ++transfer.batches_in_flight;
  if (!transfer.posted) transfer.figures.posted_ns = now_ns;
  transfer.posted = true;
  transfer.notify_accepted = transfer.notify_accepted || notified;
  peer.staged_accepted += accepted;
  if (peer.staged_accepted < peer.filled.writes) return;
  if (!transfer.cursor.done()) {
    peer.staged = {};
    peer.posting.push_back(transfer.id);
  } else if (!transfer.notify || transfer.notify_accepted) {
    peer.staged = {};
    transfer.phase = Phase::draining;
  }
  // Otherwise the notification alone is left; it is offered as a batch of no writes.
}

void Engine::State::on_batch(const kvferry_event& event) {
  const std::uint32_t slot = static_cast<std::uint32_t>(event.tag);
  if (slot >= batches.size() || !batches[slot].used || batches[slot].sequence != static_cast<std::uint32_t>(event.tag >> kSlotBits)) return;
  BatchRecord& record = batches[slot];
  record.used = false;
  free_batches.push_back(slot);
  --batches_in_flight;
  Peer* peer = find_peer(record.peer);
  Transfer* transfer = find_transfer(record.transfer);
  if (peer != nullptr) --peer->batches_in_flight;
  if (transfer == nullptr || peer == nullptr) return;
  --transfer->batches_in_flight;
  if (event.kind == KVFERRY_EVENT_BATCH_FAILED) {
    if (transfer->cause) return;  // the first cause stays
    return fail_outgoing(*peer, {transfer->room, transfer->generation}, to_error(event.error).within(describe(*transfer) + " to " + describe(*peer)), true);
  }
  maybe_done(*peer, *transfer);
}

// The backend has no more events for batches of a peer that is gone.
void Engine::State::release_batches(PeerId peer) {
  for (std::uint32_t slot = 0; slot < batches.size(); ++slot) {
    if (!batches[slot].used || batches[slot].peer != peer) continue;
    batches[slot].used = false;
    free_batches.push_back(slot);
    --batches_in_flight;
  }
}

void Engine::State::maybe_done(Peer& peer, Transfer& transfer) {
  if (transfer.phase != Phase::draining || transfer.batches_in_flight != 0 || transfer.cause) return;
  transfer.phase = Phase::ended;
  transfer.figures.ended_ns = now_ns;
  ++counters.done;
  counters.bytes_done += transfer.figures.bytes;
  emit(EventKind::transfer_done, transfer);
  transfer.quiesced = true;
  emit(EventKind::transfer_quiesced, transfer);
  const RoomKey key{transfer.room, transfer.generation};
  OutgoingRoom& room = peer.outgoing[key];
  room.last_done = room.last_done || transfer.last;
  std::erase(room.transfers, transfer.id);
  erase(transfer);
  settle_outgoing(peer, key);
}

// ---- initiator: the end of a room

// Every chunk of the room at this peer fails with the first cause. `tell`: the other side does not know yet.
void Engine::State::fail_outgoing(Peer& peer, RoomKey key, Error cause, bool tell) {
  const auto found = peer.outgoing.find(key);
  if (found == peer.outgoing.end() || found->second.cause) return;
  OutgoingRoom& room = found->second;
  worked = true;
  if (room.transfers.empty() && room.announce) --peer.parked;
  room.cause = cause;
  if (tell) {
    send(peer, session::Abort{key.first, key.second, static_cast<std::int32_t>(cause.code), session::fit_text(cause.text)});
  }
  bool posted = false;
  for (const TransferId id : room.transfers) {
    Transfer* transfer = find_transfer(id);
    if (transfer == nullptr || transfer->phase == Phase::ended) continue;
    posted |= transfer->posted;
    transfer->cause = cause;
    transfer->phase = Phase::ended;
    transfer->figures.ended_ns = now_ns;
    count_failure(cause, !tell);
    emit(EventKind::transfer_failed, *transfer, cause);
  }
  if (find_transfer(peer.staged) == nullptr || find_transfer(peer.staged)->phase == Phase::ended) peer.staged = {};
  remember_ended(peer, key, cause);
  if (!posted) return quiesce_outgoing(peer, key);  // the backend never saw it
  room.cancel_sent = true;
  if (peer.stage == PeerStage::closing) return;  // PEER_CLOSED proves it
  cancel_in_backend(peer, key);
}

void Engine::State::cancel_in_backend(Peer& peer, RoomKey key) {
  auto canceled = backend.cancel(peer.backend_peer, key.first, key.second);
  if (canceled) return;
  if (canceled.error().code == ErrorCode::busy) {
    cancels_to_retry.emplace_back(peer.id, key);  // its event queue is full; it is polled first
  } else if (canceled.error().code == ErrorCode::not_found) {
    quiesce_outgoing(peer, key);  // the backend has finished with the peer
  } else {
    lose_peer_later.push_back({peer.id, canceled.error().within(describe(peer))});
  }
}

// The backend reads none of the room's source any more.
void Engine::State::quiesce_outgoing(Peer& peer, RoomKey key) {
  const auto found = peer.outgoing.find(key);
  if (found == peer.outgoing.end() || !found->second.cause) return;
  worked = true;
  if (found->second.cancel_sent) send(peer, session::Quiesced{key.first, key.second});
  for (const TransferId id : std::exchange(found->second.transfers, {})) {
    Transfer* transfer = find_transfer(id);
    if (transfer == nullptr) continue;
    transfer->quiesced = true;
    emit(EventKind::transfer_quiesced, *transfer);
    erase(*transfer);
  }
  peer.outgoing.erase(found);
  if (peer.close_when_idle && peer.stage == PeerStage::up && idle(peer)) start_leaving(peer);
}

void Engine::State::settle_outgoing(Peer& peer, RoomKey key) {
  const auto found = peer.outgoing.find(key);
  if (found == peer.outgoing.end()) return;
  OutgoingRoom& room = found->second;
  if (!room.transfers.empty()) return;
  if (room.last_done || !room.announce) {
    peer.outgoing.erase(found);
  } else {
    ++peer.parked;  // waits for its next chunk; the announcement's own deadline ends it if none comes
  }
  if (peer.close_when_idle && peer.stage == PeerStage::up && idle(peer)) start_leaving(peer);
}

void Engine::State::remember_ended(Peer& peer, RoomKey key, const Error& cause) {
  if (!peer.ended_rooms.emplace(key, cause).second) return;
  peer.ended_rooms[key].text.resize(std::min(cause.text.size(), kEndedTextBytes));
  peer.ended_order.push_back(key);
  if (peer.ended_order.size() <= options.ended_rooms_max) return;
  peer.ended_rooms.erase(peer.ended_order.front());
  peer.ended_order.pop_front();
}

// ---- target

void Engine::State::announce(Transfer& transfer) {
  for (auto& writer : transfer.writers) {
    Peer* peer = find_peer(writer.peer);
    if (writer.announced || peer == nullptr || peer->stage != PeerStage::up) continue;
    session::Announce message;
    message.room = transfer.room;
    message.generation = transfer.generation;
    message.deadline_ms = transfer.deadline_ns == 0 ? 0 : std::max<std::uint64_t>(1, (transfer.deadline_ns - std::min(transfer.deadline_ns, now_ns)) / 1'000'000);
    for (std::size_t space = 0; space < kIndexSpacesCount; ++space) {
      message.indices[space].reserve(transfer.indices[space].size());
      for (const std::uint64_t index : transfer.indices[space]) message.indices[space].push_back(static_cast<std::uint32_t>(index));
    }
    writer.announced = true;
    send(*peer, message);
  }
}

void Engine::State::on_announce(Peer& peer, session::Announce message) {
  const RoomKey key{message.room, message.generation};
  if (const auto ended = peer.ended_rooms.find(key); ended != peer.ended_rooms.end()) {
    ++counters.messages_ignored;
    const Error& cause = ended->second;
    return send(peer, session::Abort{key.first, key.second, static_cast<std::int32_t>(cause.code), session::fit_text(cause.text)});
  }
  OutgoingRoom& room = peer.outgoing[key];
  if (room.announce || message.room == 0) {
    ++counters.messages_ignored;  // the first one stands
    return;
  }
  if (room.transfers.empty()) {
    if (peer.parked >= options.parked_announcements_max) {
      peer.outgoing.erase(key);
      ++counters.messages_ignored;
      return send(peer, session::Abort{key.first, key.second, static_cast<std::int32_t>(ErrorCode::limit),
                                       options.name + ": " + number(peer.parked) + " announcements wait for their transfers already"});
    }
    ++peer.parked;
  }
  if (message.deadline_ms != 0) {
    room.announce_expires_ns = now_ns + message.deadline_ms * 1'000'000;
    add_timer({room.announce_expires_ns, TimerKind::announcement, static_cast<std::uint64_t>(peer.id), key});
  }
  room.announce = std::move(message);
  const std::vector<TransferId> waiting = room.transfers;
  for (const TransferId id : waiting) {
    Transfer* transfer = find_transfer(id);
    if (transfer != nullptr && transfer->phase == Phase::waiting_target) try_plan(peer, *transfer);
  }
}

void Engine::State::expire_announcement(Peer& peer, RoomKey key) {
  const auto found = peer.outgoing.find(key);
  if (found == peer.outgoing.end() || !found->second.announce || !found->second.transfers.empty()) return;
  if (found->second.announce_expires_ns > now_ns) return;
  --peer.parked;
  peer.outgoing.erase(found);
}

void Engine::State::on_abort(Peer& peer, const session::Abort& abort) {
  const RoomKey key{abort.room, abort.generation};
  const Error cause(static_cast<ErrorCode>(abort.code), describe(peer) + " ended room " + number(abort.room) + ": " + abort.text);
  if (const auto room = peer.outgoing.find(key); room != peer.outgoing.end()) {
    const bool parked = room->second.transfers.empty();
    if (!parked) return fail_outgoing(peer, key, cause, false);
    if (room->second.announce) --peer.parked;
    peer.outgoing.erase(room);
    return remember_ended(peer, key, cause);
  }
  const auto found = incoming.find(key);
  Transfer* transfer = found == incoming.end() ? nullptr : find_transfer(found->second);
  const bool ours = transfer != nullptr && std::any_of(transfer->writers.begin(), transfer->writers.end(),
                                                       [&](const Writer& writer) { return writer.peer == peer.id; });
  if (ours && !transfer->cause && transfer->phase != Phase::ended) return fail_incoming(*transfer, cause, peer.id);
  if (transfer == nullptr) {
    remember_ended(peer, key, cause);  // it gave up before we submitted or expected
  } else {
    ++counters.messages_ignored;
  }
}

// What this writer owes us: its paired entries times our lists.
Result<std::uint64_t> Engine::State::expected_bytes(const Peer& peer, const Transfer& transfer) const {
  std::uint64_t total = 0;
  for (const EntryPair& pair : peer.pairs_in) {
    const Entry& entry = options.pool->entries[pair.target];
    std::uint64_t bytes = 0;
    if (!checked_multiply(entry.item_length_bytes, transfer.indices[static_cast<std::size_t>(entry.space)].size(), bytes) ||
        !checked_add(total, bytes, total)) {
      return fail(ErrorCode::out_of_range, describe(transfer) + ": its size does not fit 64 bits");
    }
  }
  return total;
}

void Engine::State::on_notification(Peer& peer, const kvferry_notification& notification) {
  const auto found = incoming.find({notification.room, notification.generation});
  Transfer* transfer = found == incoming.end() ? nullptr : find_transfer(found->second);
  if (transfer == nullptr) {
    if (options.pool) {
      ++counters.messages_ignored;
      return;
    }
    Event event;
    event.kind = EventKind::notified;
    event.peer = peer.id;
    event.room = notification.room;
    event.generation = notification.generation;
    event.notification = notification;
    events.push_back(std::move(event));
    return;
  }
  const auto writer = std::find_if(transfer->writers.begin(), transfer->writers.end(), [&](const Writer& w) { return w.peer == peer.id; });
  if (writer == transfer->writers.end() || transfer->cause || !writer->chunks.insert(notification.chunk).second) {
    ++counters.messages_ignored;
    return;
  }
  writer->bytes += notification.bytes;
  if ((notification.flags & KVFERRY_NOTIFY_LAST_CHUNK) != 0) writer->last_chunk = notification.chunk;
  Event event;
  event.kind = EventKind::chunk_arrived;
  event.peer = peer.id;
  event.transfer = transfer->id;
  event.room = transfer->room;
  event.generation = transfer->generation;
  event.notification = notification;
  events.push_back(std::move(event));
  if (!writer->last_chunk || writer->chunks.size() != std::size_t{*writer->last_chunk} + 1) return;
  const auto expected = expected_bytes(peer, *transfer);
  if (!expected) return fail_incoming(*transfer, expected.error(), std::nullopt);
  if (writer->bytes != *expected) {
    return fail_incoming(*transfer, Error(ErrorCode::mismatch, describe(*transfer) + ": " + describe(peer) + " reports " + number(writer->bytes) +
                                                                   " bytes delivered, its layout and our lists make " + number(*expected)), std::nullopt);
  }
  writer->complete = true;
  transfer->figures.bytes += writer->bytes;
  if (!std::all_of(transfer->writers.begin(), transfer->writers.end(), [](const Writer& w) { return w.complete; })) return;
  transfer->phase = Phase::ended;
  transfer->quiesced = true;
  transfer->figures.ended_ns = now_ns;
  ++counters.done;
  counters.bytes_done += transfer->figures.bytes;
  emit(EventKind::transfer_done, *transfer);
  emit(EventKind::transfer_quiesced, *transfer);
  incoming.erase(found);
  std::vector<PeerId> writers;
  for (const Writer& w : transfer->writers) writers.push_back(w.peer);
  erase(*transfer);
  for (const PeerId id : writers) {
    Peer* other = find_peer(id);
    if (other != nullptr && other->close_when_idle && other->stage == PeerStage::up && idle(*other)) start_leaving(*other);
  }
}

// `origin`: the peer the cause came from; it needs no abort.
void Engine::State::fail_incoming(Transfer& transfer, Error cause, std::optional<PeerId> origin) {
  if (transfer.cause || transfer.phase == Phase::ended) return;
  worked = true;
  transfer.cause = cause;
  transfer.phase = Phase::ended;
  transfer.figures.ended_ns = now_ns;
  count_failure(cause, origin.has_value() && cause.code != ErrorCode::peer_lost);
  emit(EventKind::transfer_failed, transfer, cause);
  for (auto& writer : transfer.writers) {
    Peer* peer = find_peer(writer.peer);
    if (peer == nullptr) {
      writer.quiesced = true;
      continue;
    }
    remember_ended(*peer, {transfer.room, transfer.generation}, cause);
    if (origin != writer.peer) {
      send(*peer, session::Abort{transfer.room, transfer.generation, static_cast<std::int32_t>(cause.code), session::fit_text(cause.text)});
    }
    if (peer->backend_peer == 0) {
      writer.quiesced = true;
      continue;
    }
    if (peer->stage == PeerStage::closing) continue;  // its PEER_CLOSED settles the writer
    fence_in_backend(*peer, transfer);
  }
  settle_incoming(transfer);
}

void Engine::State::fence_in_backend(Peer& peer, Transfer& transfer) {
  const std::uint64_t tag = new_id();
  auto fenced = backend.fence(peer.backend_peer, transfer.room, transfer.generation, tag, now_ns + options.quiesce_timeout_ns);
  if (fenced) {
    fences[tag] = {transfer.id, peer.id};
  } else if (fenced.error().code == ErrorCode::busy) {
    fences_to_retry.emplace_back(peer.id, transfer.id);
  } else {
    // A backend that cannot fence one room is cut off: closing the peer is the stronger fence.
    lose_peer_later.push_back({peer.id, fenced.error().within(describe(peer))});
  }
}

void Engine::State::on_fenced(const kvferry_event& event) {
  const auto found = fences.find(event.tag);
  if (found == fences.end()) return;
  const auto [transfer_id, peer_id] = found->second;
  fences.erase(found);
  Transfer* transfer = find_transfer(transfer_id);
  if (transfer == nullptr) return;
  const bool promised = event.error.code != KVFERRY_ERROR_CANNOT_PROMISE;
  for (auto& writer : transfer->writers) {
    if (writer.peer != peer_id) continue;
    writer.quiesced = writer.quiesced || promised;
    writer.quarantine = writer.quarantine || !promised;
  }
  settle_incoming(*transfer);
}

// The backend closed the peer: its writers are quiet, or in quarantine.
void Engine::State::settle_writer(PeerId peer, bool quarantine) {
  std::vector<TransferId> ids;
  for (const auto& [key, id] : incoming) ids.push_back(id);
  for (const TransferId id : ids) {
    Transfer* transfer = find_transfer(id);
    if (transfer == nullptr) continue;
    bool named = false;
    for (auto& writer : transfer->writers) {
      if (writer.peer != peer) continue;
      named = true;
      writer.quiesced = writer.quiesced || !quarantine;
      writer.quarantine = writer.quarantine || quarantine;
    }
    if (named && transfer->cause) settle_incoming(*transfer);
  }
}

void Engine::State::settle_incoming(Transfer& transfer) {
  if (!transfer.cause) return;
  const bool quiet = std::all_of(transfer.writers.begin(), transfer.writers.end(), [](const Writer& writer) { return writer.quiesced; });
  const bool settled = std::all_of(transfer.writers.begin(), transfer.writers.end(), [](const Writer& w) { return w.quiesced || w.quarantine; });
  if (quiet) {
    transfer.quiesced = true;
    emit(EventKind::transfer_quiesced, transfer);
    incoming.erase({transfer.room, transfer.generation});
    erase(transfer);
    return;
  }
  if (settled && !transfer.quarantine_told) {
    transfer.quarantine_told = true;
    std::string who;
    for (const Writer& writer : transfer.writers) {
      if (writer.quiesced) continue;
      const Peer* peer = find_peer(writer.peer);
      who += (who.empty() ? "" : ", ") + (peer == nullptr ? std::string("a closed peer") : describe(*peer));
    }
    emit(EventKind::transfer_quiesced, transfer,
         Error(ErrorCode::cannot_promise, describe(transfer) + ": quiet cannot be promised while " + who + " may still write: the memory stays in quarantine"));
  }
}

// ---- both roles

void Engine::State::fail_transfer(Transfer& transfer, Error cause, bool tell) {
  if (transfer.target_role) return fail_incoming(transfer, std::move(cause), std::nullopt);
  Peer* peer = find_peer(transfer.peer);
  const RoomKey key{transfer.room, transfer.generation};
  if (peer == nullptr) return;
  if (transfer.phase == Phase::waiting_peer) {
    // Not in any room yet: it ends alone.
    std::erase(peer->waiting, transfer.id);
    peer->outgoing[key].transfers.push_back(transfer.id);
  }
  fail_outgoing(*peer, key, std::move(cause), tell);
}

void Engine::State::on_deadline(Transfer& transfer) {
  std::string text = describe(transfer) + ": deadline passed after " + number((now_ns - std::min(now_ns, transfer.figures.submitted_ns)) / 1'000'000) + " ms ";
  if (transfer.target_role) {
    text += "waiting for";
    for (const Writer& writer : transfer.writers) {
      if (writer.complete) continue;
      const Peer* peer = find_peer(writer.peer);
      text += " " + (peer == nullptr ? std::string("a closed peer") : describe(*peer)) + " (" + number(writer.chunks.size()) + " chunks arrived" +
              (writer.announced ? ")" : ", not yet told)");
    }
  } else {
    const Peer* peer = find_peer(transfer.peer);
    switch (transfer.phase) {
      case Phase::waiting_peer: text += "waiting for the connection to "; break;
      case Phase::waiting_target: text += "waiting for the index lists of "; break;
      case Phase::refreshing: text += "waiting for the region table of "; break;
      case Phase::planning: text += "planning for "; break;
      default: text += "with " + number(transfer.batches_in_flight) + " batches in flight to "; break;
    }
    text += peer == nullptr ? "a closed peer" : describe(*peer);
  }
  fail_transfer(transfer, Error(ErrorCode::timeout, std::move(text)), true);
}

void Engine::State::count_failure(const Error& cause, bool by_peer) {
  switch (cause.code) {
    case ErrorCode::timeout: ++counters.failed_timeout; return;
    case ErrorCode::peer_lost: ++counters.failed_peer_lost; return;
    default: break;
  }
  if (by_peer) {
    ++counters.failed_by_peer;
  } else if (cause.code == ErrorCode::canceled || cause.code == ErrorCode::fenced) {
    ++counters.failed_canceled;
  } else if (cause.code == ErrorCode::io || cause.code == ErrorCode::internal || cause.code == ErrorCode::cannot_promise) {
    ++counters.failed_transport;
  } else {
    ++counters.failed_refused;
  }
}

void Engine::State::emit(EventKind kind, const Transfer& transfer, std::optional<Error> error) {
  Event event;
  event.kind = kind;
  event.peer = transfer.peer;
  event.transfer = transfer.id;
  event.room = transfer.room;
  event.generation = transfer.generation;
  event.error = std::move(error);
  event.figures = transfer.figures;
  events.push_back(std::move(event));
}

void Engine::State::erase(Transfer& transfer) { transfers.erase(static_cast<std::uint64_t>(transfer.id)); }

}  // namespace kvferry
