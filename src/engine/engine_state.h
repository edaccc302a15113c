// The inside of the engine core: what a peer, a room and a transfer are between two calls of progress. See engine.h for the contract.
//
//   Peer ──1:1── link (control)            Peer.outgoing[(room, generation)] ──► OutgoingRoom ──► transfers (chunks) of the initiator
//        ──1:1── backend peer (data)       State.incoming[(room, generation)] ─► one transfer of the target role, with its writers
//
// Everything is owned by State and addressed by id; nothing outside keeps a pointer over a call that may end the object.
#pragma once

#include <deque>
#include <map>
#include <queue>
#include <set>
#include <unordered_map>
#include <utility>

#include "kvferry/engine.h"

namespace kvferry {

using RoomKey = std::pair<std::uint64_t, std::uint32_t>;  // room, generation

// Extension tags of the session (docs/wire-format.md).
inline constexpr std::uint16_t kTagRegionsQuery = 1;   // "have I seen all your regions?"
inline constexpr std::uint16_t kTagRegionsAnswer = 2;  // sent after every RegionsAdded that preceded the query's arrival

enum class Phase : std::uint8_t {
  waiting_peer,     // initiator: the peer is not up yet
  waiting_target,   // initiator: the announcement is not here yet
  refreshing,       // initiator, raw: waiting for the peer's answer about its regions
  planning,         // initiator: a job makes the plan
  posting,          // initiator: writes are left
  draining,         // initiator: all accepted, batches in flight
  expecting,        // target
  ended             // done or failed; kept until quiesced
};

struct Writer {  // one expected writer of a target transfer
  PeerId peer{};
  std::set<std::uint32_t> chunks;
  std::optional<std::uint32_t> last_chunk;
  std::uint64_t bytes = 0;
  bool announced = false;
  bool complete = false;
  bool quiesced = false;   // fenced, or its peer is closed
  bool quarantine = false; // cannot be promised yet
};

struct Transfer {
  TransferId id{};
  bool target_role = false;
  bool raw = false;
  PeerId peer{};
  std::uint64_t room = 0;
  std::uint32_t generation = 1;
  std::uint64_t deadline_ns = 0;
  Phase phase = Phase::waiting_peer;

  // initiator
  IndicesBySpace indices;
  std::array<std::uint64_t, kIndexSpacesCount> target_first{};
  std::uint32_t chunk = 0;
  bool last = true;
  bool notify = true;
  bool refreshed = false;
  std::vector<RawWrite> writes;
  std::shared_ptr<const Plan> plan;  // lives until quiesced: what a failed rail lost is posted again from a batch's start cursor
  WriteCursor cursor;
  std::uint32_t batches_in_flight = 0;
  bool notify_accepted = false;
  bool posted = false;  // the backend has seen it

  // target
  std::vector<Writer> writers;

  std::optional<Error> cause;  // set: failed
  bool quiesced = false;
  bool quarantine_told = false;
  TransferFigures figures;
};

// All chunks that go to one room of one peer.
struct OutgoingRoom {
  std::optional<session::Announce> announce;
  std::uint64_t announce_expires_ns = 0;
  std::vector<TransferId> transfers;  // not yet quiesced
  std::optional<Error> cause;         // failed: the whole room of this peer
  bool cancel_sent = false;           // to the backend
  bool last_done = false;
};

// A batch accepted by the backend. `start` and `skipped` say where its writes begin in the plan.
struct BatchRecord {
  bool used = false;
  std::uint32_t sequence = 0;
  PeerId peer{};
  TransferId transfer{};
  WriteCursor start;
  std::uint32_t skipped = 0;
  std::uint32_t writes = 0;
  std::uint64_t bytes = 0;
};

enum class PeerStage : std::uint8_t {
  linking,     // outgoing: TCP connection under way
  greeting,    // hello not received yet
  connecting,  // hellos exchanged, backend connecting or Ready outstanding
  up,
  leaving,     // graceful close: goodbye sent, waiting for the link's end
  closing      // backend peer closing; the cause is set if it was lost
};

struct Peer {
  PeerId id{};
  LinkId link{};
  bool outgoing_link = false;
  bool link_alive = true;
  bool close_when_idle = false;
  PeerStage stage = PeerStage::linking;
  std::string address;
  std::string name = "unknown";
  std::string lane, detail;
  session::EngineId engine{};
  kvferry_peer backend_peer = 0;
  bool hello_sent = false, backend_up = false, ready_received = false;
  std::optional<Error> cause;

  std::optional<Pool> pool;
  std::vector<EntryPair> pairs_out;           // our entries to theirs
  std::optional<Error> out_refusal;           // why we cannot write to them by pages
  std::vector<EntryPair> pairs_in;            // their entries to ours
  std::optional<Error> in_refusal;
  RegionMap regions;                          // theirs, remote accessible
  std::vector<PlanEntry> plan_entries;        // resolved pairs_out
  bool plan_entries_fresh = false;

  std::uint64_t connect_deadline_ns = 0, last_heard_ns = 0, heartbeat_due_ns = 0, leave_deadline_ns = 0;
  std::uint64_t timer_at_ns = 0;              // of the one timer that counts; earlier ones are stale
  std::uint64_t heartbeats = 0;

  std::map<RoomKey, OutgoingRoom> outgoing;
  std::uint32_t parked = 0;                   // announcements without a transfer
  std::map<RoomKey, Error> ended_rooms;       // cause by room, bounded
  std::deque<RoomKey> ended_order;
  std::vector<TransferId> waiting;            // submitted before the peer was up
  std::vector<TransferId> refreshing;
  std::deque<TransferId> posting;             // round robin
  std::uint32_t batches_in_flight = 0;

  // The batch being offered: filled once, offered until all of it is accepted.
  std::vector<kvferry_write> writes;
  std::vector<kvferry_piece> pieces;
  TransferId staged{};                        // 0: nothing staged
  WriteCursor staged_start;
  WriteCursor::Filled filled;
  std::uint32_t staged_accepted = 0;
};

struct PlanJob {
  TransferId transfer{};
  std::vector<PlanEntry> entries;
  IndexListsBySpace lists;
  PlanLimits limits;
  Result<std::shared_ptr<const Plan>> plan = fail(ErrorCode::internal, "the plan was not made");
  std::uint64_t nanoseconds = 0;
};

enum class TimerKind : std::uint8_t { peer, transfer, announcement };
struct Timer {
  std::uint64_t at_ns = 0;
  TimerKind kind = TimerKind::peer;
  std::uint64_t id = 0;  // peer or transfer
  RoomKey room{};        // announcement
  friend bool operator>(const Timer& a, const Timer& b) noexcept { return a.at_ns > b.at_ns; }
};

struct Engine::State {
  EngineOptions options;
  const Host& host;
  Backend& backend;
  LinkPort& links;
  JobPort& jobs;

  std::uint64_t now_ns = 0;
  std::uint64_t last_progress_ns = 0;
  std::uint64_t next_id = 1;
  std::uint64_t next_own_room = 1ull << 63;  // rooms of raw transfers without one
  bool worked = false;

  RegionMap regions;
  std::map<kvferry_region, session::RegionInfo> exported;  // remote accessible
  std::set<kvferry_region> withdrawn;                       // deregistering
  std::set<kvferry_region> allocated;                       // made by allocate
  std::uint64_t regions_generation = 0;

  std::map<PeerId, std::unique_ptr<Peer>> peers;
  std::unordered_map<std::uint64_t, PeerId> peer_by_link;
  std::unordered_map<kvferry_peer, PeerId> peer_by_backend;
  std::unordered_map<std::uint64_t, std::unique_ptr<Transfer>> transfers;
  std::map<RoomKey, TransferId> incoming;
  std::vector<BatchRecord> batches;
  std::vector<std::uint32_t> free_batches;
  std::uint32_t batches_in_flight = 0;
  std::map<std::uint64_t, std::pair<TransferId, PeerId>> fences;  // tag of a backend fence
  std::map<std::uint64_t, std::shared_ptr<PlanJob>> plan_jobs;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers;
  std::vector<std::pair<PeerId, Error>> lose_peer_later;  // found out in the middle of something else
  std::vector<std::pair<PeerId, RoomKey>> cancels_to_retry;    // the backend was busy
  std::vector<std::pair<PeerId, TransferId>> fences_to_retry;
  std::deque<Event> events;
  std::vector<kvferry_event> polled;
  EngineCounters counters;
  std::uint32_t writes_per_batch = 0, pieces_per_batch = 0, batches_per_peer = 0;

  State(EngineOptions options_, const Host& host_, Backend& backend_, LinkPort& links_, JobPort& jobs_)
      : options(std::move(options_)), host(host_), backend(backend_), links(links_), jobs(jobs_) {}

  // ---- look-ups
  Peer* find_peer(PeerId id);
  Peer* find_peer_by_link(LinkId link);
  Transfer* find_transfer(TransferId id);
  std::string describe(const Peer& peer) const;
  std::string describe(const Transfer& transfer) const;
  std::uint64_t new_id() { return next_id++; }

  // ---- memory (engine.cpp)
  Result<void> publish_region(const session::RegionInfo& info);
  void refresh_plan_entries();

  // ---- peers (engine_peers.cpp)
  Peer& make_peer(LinkId link, bool outgoing, std::string_view address, std::uint64_t deadline_ns);
  void send(Peer& peer, const session::Message& message);
  Result<void> send_hello(Peer& peer);
  void on_hello(Peer& peer, session::Hello hello);
  Result<void> check_hello(const Peer& peer, const session::Hello& hello) const;
  Result<void> take_layout(Peer& peer, const session::Hello& hello);
  Result<void> take_regions(Peer& peer, const std::vector<session::RegionInfo>& regions, std::span<const std::uint8_t> blob);
  void on_message(Peer& peer, session::Message message);
  void on_abort(Peer& peer, const session::Abort& abort);
  void on_announce(Peer& peer, session::Announce announce);
  void on_extension(Peer& peer, const session::Extension& extension);
  void expire_announcement(Peer& peer, RoomKey key);
  void maybe_up(Peer& peer);
  void peer_timer(Peer& peer);
  void arm_peer_timer(Peer& peer);
  void lose_peer(Peer& peer, Error cause, bool tell);
  void start_leaving(Peer& peer);
  void close_backend_peer(Peer& peer, std::uint32_t mode);
  void on_peer_closed(Peer& peer, const kvferry_event& event);
  void forget_peer(Peer& peer);
  bool idle(const Peer& peer) const;
  void check_stall();

  // ---- transfers (engine_transfers.cpp)
  Result<Transfer*> adopt(Transfer transfer);
  void start_outgoing(Peer& peer, Transfer& transfer);
  void try_plan(Peer& peer, Transfer& transfer);
  void plan_raw(Peer& peer, Transfer& transfer);
  Result<IndexListsBySpace> target_lists(const Peer& peer, const Transfer& transfer, const session::Announce& announce) const;
  void take_plan(Peer& peer, Transfer& transfer, std::shared_ptr<const Plan> plan, std::uint64_t nanoseconds);
  void post(Peer& peer);
  bool stage_next(Peer& peer);
  bool offer(Peer& peer);
  void accept_batch(Peer& peer, Transfer& transfer, std::uint32_t slot, std::uint32_t accepted, bool notified);
  void maybe_done(Peer& peer, Transfer& transfer);
  void on_batch(const kvferry_event& event);
  void release_batches(PeerId peer);
  Result<void> check_inside_pool(const IndicesBySpace& indices) const;
  void fail_outgoing(Peer& peer, RoomKey key, Error cause, bool tell);
  void settle_outgoing(Peer& peer, RoomKey key);
  void cancel_in_backend(Peer& peer, RoomKey key);
  void quiesce_outgoing(Peer& peer, RoomKey key);
  void remember_ended(Peer& peer, RoomKey key, const Error& cause);
  void announce(Transfer& transfer);
  void on_notification(Peer& peer, const kvferry_notification& notification);
  Result<std::uint64_t> expected_bytes(const Peer& peer, const Transfer& transfer) const;
  void fail_incoming(Transfer& transfer, Error cause, std::optional<PeerId> origin);
  void fence_in_backend(Peer& peer, Transfer& transfer);
  void on_fenced(const kvferry_event& event);
  void settle_writer(PeerId peer, bool quarantine);
  void settle_incoming(Transfer& transfer);
  void fail_transfer(Transfer& transfer, Error cause, bool tell);
  void on_deadline(Transfer& transfer);
  void count_failure(const Error& cause, bool by_peer);
  void emit(EventKind kind, const Transfer& transfer, std::optional<Error> error = std::nullopt);
  void erase(Transfer& transfer);

  // ---- driving (engine.cpp)
  void enter(std::uint64_t at_ns);
  void drain_backend();
  void on_backend_event(const kvferry_event& event);
  void run_timers();
  void run_postponed();
  void add_timer(Timer timer) { timers.push(timer); }
};

}  // namespace kvferry
