/// kvferry/engine.h: the transfer engine core, one state machine for both roles.
///
///   initiator: submit ─► queued ─► waiting for the target's lists ─► planning ─► posting ─► draining ─► done
///   target:    expect ─► announced ─────────────── every writer reported every chunk ────────────────► done
///   either:    cancel, deadline, refusal, lost peer ─► failed(cause), told to the other side ─► quiesced
///
/// No thread, clock or socket of its own: the owner calls `progress(now)` and hands in what the links bring; messages, jobs and batches go out through
/// the ports. One thread at a time. Times are nanoseconds of one monotonic clock; 0 as a deadline means none where it is allowed.
///
/// Done: every byte is in target memory and visible to a CPU that saw the event. Failed is terminal. Quiesced comes once after Done (at once) or Failed:
/// for an initiator the source is read no more; for a target nothing can land any more. Until then the memory must not be reused.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/backend.h"
#include "kvferry/plan.h"
#include "kvferry/pool.h"
#include "kvferry/result.h"
#include "kvferry/session.h"

namespace kvferry {

enum class PeerId : std::uint64_t {};
enum class TransferId : std::uint64_t {};
enum class LinkId : std::uint64_t {};

/// Where the engine sends control messages. Calls return at once; failures come back through link_lost.
class LinkPort {
 public:
  virtual ~LinkPort() = default;
  virtual void connect(LinkId link, std::string_view address, std::uint64_t deadline_ns) = 0;
  virtual void send(LinkId link, const session::Message& message) = 0;
  /// After what was sent has left, or at once when the other side is gone.
  virtual void close(LinkId link) = 0;
};

/// Runs work beside the engine (planning; later packing and checksums). The function must be run exactly once; then job_done(id) is called on the
/// engine's thread. May run it inline.
class JobPort {
 public:
  virtual ~JobPort() = default;
  virtual void run(std::uint64_t job, std::function<void()> work) = 0;
};

/// Which direction this engine's layout must fit at connect time: a prefill engine's pool must slice into the peer's, a decode engine's must take the
/// peer's, `any` needs one of the two. The other direction is refused when it is used.
enum class EngineRole : std::uint8_t { any, prefill, decode };

struct EngineOptions {
  std::string name = "engine";       ///< for messages of both sides
  std::string session_id;            ///< "ip:port" peers reach us at; empty: we do not listen
  session::EngineId id{};            ///< random; zero: the engine makes one from the OS
  std::string lane = "auto";
  EngineRole role = EngineRole::any;
  kvferry_writer writer{};           ///< our rank when we write
  std::optional<Pool> pool;          ///< addresses inside registered regions; absent: layout-free
  std::uint64_t heartbeat_interval_ns = 1'000'000'000;
  std::uint64_t lease_ns = 5'000'000'000;         ///< a peer silent for longer is lost; being stalled for longer ourselves drops all peers
  std::uint64_t connect_timeout_ns = 10'000'000'000;
  std::uint64_t quiesce_timeout_ns = 5'000'000'000;  ///< after which a fence that does not finish becomes "cannot promise"
  std::uint32_t writes_per_batch = 512;           ///< capped by the backend's limits
  std::uint32_t batches_per_peer = 16;            ///< capped by the backend's limits
  std::uint32_t parked_announcements_max = 65536; ///< per peer
  std::uint32_t ended_rooms_max = 4096;           ///< remembered per peer, so that late announcements get the cause at once
  std::uint64_t plan_inline_writes_max = 32768;   ///< larger plans are made as jobs
};

/// Source index lists per space.
using IndicesBySpace = std::array<std::vector<std::uint64_t>, kIndexSpacesCount>;

/// One chunk of a request, by pages. The target's lists come with its announcement.
struct PagedTransfer {
  TransferId id{};  ///< 0: the engine assigns one
  PeerId peer{};
  std::uint64_t room = 0;  ///< not 0
  std::uint32_t generation = 1;
  IndicesBySpace indices;                                       ///< of our pool
  std::array<std::uint64_t, kIndexSpacesCount> target_first{};  ///< position in the target's list where this chunk starts
  std::uint32_t chunk = 0;  ///< 0, 1, 2 ... in the room
  bool last = true;         ///< must end every list of the target exactly
  std::uint64_t deadline_ns = 0;
};

/// A list of addresses, for engines without a layout. Notifies when `notify` is set.
struct RawTransfer {
  TransferId id{};
  PeerId peer{};
  std::uint64_t room = 0;  ///< 0 is allowed here: the engine gives it a number of its own
  std::uint32_t generation = 1;
  std::vector<RawWrite> writes;
  bool notify = false;
  std::uint64_t deadline_ns = 0;
};

/// Target: a room that these peers will write, and where.
struct Expectation {
  TransferId id{};
  std::uint64_t room = 0;  ///< not 0
  std::uint32_t generation = 1;
  std::vector<PeerId> writers;  ///< every one must report its last chunk
  IndicesBySpace indices;       ///< of our pool
  std::uint64_t deadline_ns = 0;
};

enum class EventKind : std::uint8_t {
  peer_up,        ///< peer
  peer_lost,      ///< peer, error; its transfers fail too
  peer_quiesced,  ///< peer: nothing of it can land, nothing of ours is read for it; the id is gone
  transfer_done,
  transfer_failed,    ///< error
  transfer_quiesced,  ///< after done or failed; error.code cannot_promise: the memory stays in quarantine, another quiesced follows when it ends
  chunk_arrived,      ///< target: one writer's chunk is complete (notification)
  notified            ///< target without expectation (raw transfers): notification
};

struct TransferFigures {
  std::uint64_t bytes = 0, writes_before_merge = 0, writes = 0, pieces = 0;
  std::uint64_t plan_ns = 0;       ///< planning
  std::uint64_t submitted_ns = 0, posted_ns = 0, ended_ns = 0;  ///< engine clock; posted: first batch accepted
};

struct Event {
  EventKind kind = EventKind::peer_up;
  PeerId peer{};
  TransferId transfer{};
  std::uint64_t room = 0;
  std::uint32_t generation = 0;
  std::optional<Error> error;
  kvferry_notification notification{};
  TransferFigures figures;
};

enum class PeerState : std::uint8_t { connecting, up, closing, lost, gone };
struct PeerInfo {
  PeerState state = PeerState::connecting;
  std::string name, address, lane, detail;
  session::EngineId engine{};
  std::optional<Error> error;
  std::uint64_t transfers = 0;
};

/// Failures by reason, and totals; every failed transfer is counted once.
struct EngineCounters {
  std::uint64_t submitted = 0, expected = 0, done = 0;
  std::uint64_t failed_refused = 0, failed_timeout = 0, failed_peer_lost = 0, failed_canceled = 0, failed_by_peer = 0, failed_transport = 0;
  std::uint64_t bytes_done = 0;
  std::uint64_t messages_ignored = 0;  ///< for rooms the sender does not own, stale generations, late announcements
  std::uint64_t stalls = 0;            ///< times we were stalled past our lease
};

class Engine {
 public:
  /// The backend, the host and the ports outlive the engine.
  static Result<std::unique_ptr<Engine>> create(EngineOptions options, const Host& host, Backend& backend, LinkPort& links, JobPort& jobs);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- memory. Changes are told to all peers with a generation.
  Result<kvferry_region> register_region(const Backend::RegionRequest& request);
  Result<bool> deregister_region(kvferry_region region);  ///< false: draining, call again
  Result<Backend::Allocation> allocate(std::uint64_t length, std::uint32_t purpose);
  /// Declares the pool (all entries inside registered regions). Before the first peer.
  Result<void> set_pool(Pool pool);
  /// After the listening port is known. Before the first peer.
  void set_session_id(std::string session_id);

  // ---- peers
  /// Starts connecting; `peer_up` or `peer_lost` follows, at the latest at the deadline (0: connect_timeout_ns from now).
  PeerId open_peer(std::string_view address, std::uint64_t deadline_ns);
  /// Graceful: after what is in flight. `peer_quiesced` follows.
  Result<void> close_peer(PeerId peer);
  Result<PeerInfo> peer_info(PeerId peer) const;
  std::vector<PeerId> peers() const;

  // ---- links, called by the shell
  LinkId accept_link(std::string_view remote_address);  ///< an incoming connection; it must say hello within connect_timeout_ns
  void link_opened(LinkId link);                        ///< an outgoing one is up
  void link_message(LinkId link, session::Message message);
  void link_lost(LinkId link, Error error);
  void job_done(std::uint64_t job);

  // ---- transfers. Refusals come as errors at once; later failures as events.
  Result<TransferId> submit(PagedTransfer transfer);
  Result<TransferId> submit(RawTransfer transfer);
  Result<TransferId> expect(Expectation expectation);
  /// Ends in transfer_failed(canceled) and transfer_quiesced; no further write is posted from now on. Unknown or ended ids: not_found.
  Result<void> cancel(TransferId transfer, std::string_view why = "canceled by the caller");
  /// Target: pieces of the room up to the generation are no longer applied. peer 0: from everybody. Expectations of it fail with `fenced`.
  Result<void> fence(PeerId peer, std::uint64_t room, std::uint32_t generation);

  // ---- driving
  /// Moves everything forward. true: something happened, call again soon.
  bool progress(std::uint64_t now_ns);
  /// When progress must be called next at the latest, given no event.
  std::uint64_t next_deadline_ns() const;
  /// Takes events, oldest first; returns how many.
  std::size_t poll(std::span<Event> events);
  /// Work is in flight whose end only progress shows: the shell should spin rather than sleep.
  bool busy() const;

  const EngineCounters& counters() const noexcept;
  const Backend& backend() const noexcept;
  const session::EngineId& id() const noexcept;

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvferry
