// One neighbour: its life, and the way of messages between its link, its initiator and its target half.
//
//   CREATED ─connect► CONNECTING ─(tcp: can it be reached?)─ endpoint ─ hello, answer, both ways ─► UP ─close► CLOSING ─► CLOSED ─polled► gone
//                          └──── deadline, process ended, link failed, goodbye, lease, protocol error ────► FAILED ─close──┘
//
//   progress:  lease ─► link ─► messages ─► refusals, acknowledgement ─► pump, deliveries, deadlines ─► life
//
// FAILED and CLOSED have no worker any more: the worker is destroyed on the way there, so nothing of the neighbour can be applied afterwards.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "blob.h"
#include "../common/initiator.h"
#include "lane_choice.h"
#include "link.h"
#include "mapped_lane.h"
#include "reachability.h"
#include "scatter_sender.h"
#include "target.h"
#include "../common/wake_set.h"

namespace kvferry::ucx {

using namespace plugins;

/// The lane classes of a backend, opened when first needed.
class Lanes {
 public:
  explicit Lanes(const Settings& settings) : settings_(settings) {}
  Result<std::shared_ptr<Context>> open(LaneClass lane);
  const std::shared_ptr<Context>& opened(LaneClass lane) const noexcept { return lane == LaneClass::shm ? shm_ : tcp_; }

 private:
  const Settings& settings_;
  std::shared_ptr<Context> shm_, tcp_;
};

/// What all peers of a backend share.
struct Shared {
  kvferry_host host{};
  Settings settings;
  HostIdentity identity{};
  std::uint64_t instance = 0;
  Library library;
  RegionTable regions;
  Lanes lanes;
  WakeSet wake;
  Fences fences_of_all;
  EventQueue events;
  Counters counters;
  std::uint64_t control_events = 0;

  std::uint64_t now_ns() const { return host.now_ns(host.user); }
  void log(std::int32_t level, const std::string& text) const {
    if (host.log != nullptr) host.log(host.user, level, "ucx", text.c_str());
  }
};

class Peer final : public MessageSink {
 public:
  struct Options {
    kvferry_peer id = 0;
    LaneChoice lane = LaneChoice::automatic;
    std::uint64_t lease_ns = 0;
    std::uint64_t token = 0;
  };
  Peer(Shared& shared, const Options& options);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  kvferry_peer id() const noexcept { return options_.id; }
  std::uint32_t state() const noexcept { return state_; }
  std::uint64_t lease_ns() const noexcept { return options_.lease_ns; }
  Initiator& initiator() noexcept { return initiator_; }
  const Initiator& initiator() const noexcept { return initiator_; }
  Target& target() noexcept { return target_; }
  void forget_region(kvferry_region region) { remote_regions_.erase(region); }

  Result<std::vector<std::uint8_t>> export_endpoint();
  Result<void> connect(std::span<const std::uint8_t> blob, std::uint64_t deadline_ns);
  Result<void> import_regions(std::span<const std::uint8_t> blob);
  kvferry_peer_info info() const;
  void close(std::uint32_t mode, std::uint64_t deadline_ns);
  /// Ends at once; for the end of the backend.
  void abandon();

  bool progress(std::uint64_t now_ns);
  /// The neighbour's process has ended (its guard is readable).
  void process_ended(std::uint64_t now_ns);
  const std::shared_ptr<const ProcessGuard>& guard() const noexcept { return guard_; }

  /// What must still be proved before nothing of the writer can land in mapped memory; owner null: nothing.
  struct Proof {
    std::shared_ptr<const MapOwner> owner;
    std::uint64_t busy = 0;
    bool done() const noexcept { return owner == nullptr || owner->proved(busy); }
  };
  /// The room is fenced for this peer (the guard's table is the caller's matter): a writer of mapped memory is stopped and told.
  Proof stop_room(std::uint64_t room, std::uint32_t generation);
  /// The region is closed for this peer.
  Proof stop_region(kvferry_region region);
  /// With state CLOSED: what PEER_CLOSED could not promise.
  const Proof& open_proof() const noexcept { return open_proof_; }
  /// The host paused longer than the lease: nothing that is queued is applied.
  void drop_for_lease(std::uint64_t pause_ns);
  /// False: call progress instead of waiting.
  bool arm(std::uint64_t now_ns);

  void on_message(std::span<const std::uint8_t> bytes) override;

 private:
  Result<void> create_links();
  Result<void> add_link(LaneClass lane, std::unique_ptr<Link>& link);
  void drop_link(std::unique_ptr<Link>& link) noexcept;
  Result<void> check_remote(const EndpointBlob& remote) const;
  Result<void> watch_process();
  void start_link();
  template <class Message>
  void send(MessageKind kind, Message message);
  bool stalled();
  Error lease_error(std::uint64_t pause_ns) const;
  void take_hello(std::span<const std::uint8_t> bytes);
  void take_ack(std::span<const std::uint8_t> bytes);
  void take_refused(std::span<const std::uint8_t> bytes);
  void take_map_message(MessageKind kind, std::span<const std::uint8_t> bytes);
  void take_fence(std::span<const std::uint8_t> bytes);
  Result<void> open_writer();
  bool may_map() const noexcept;
  void ask_for_mapping(RemoteRegion& region);
  void grant(kvferry_region region);
  void tell_fence(std::uint64_t room, std::uint32_t generation);
  bool populate_mappings();
  void stop_everything();
  void protocol_error(Error error);
  bool step_connecting(std::uint64_t now_ns);
  void become_up();
  bool move_messages(std::uint64_t now_ns);
  void send_replies();
  bool step_closing(std::uint64_t now_ns);
  bool finish_close(std::uint64_t now_ns);
  void close_links();
  void report_closed();
  void lose(Error error);
  bool lose_to_goodbye();
  void push_event(std::uint32_t kind, const Error* error);
  std::string text() const { return "peer " + std::to_string(options_.id); }

  Shared& shared_;
  const Options options_;
  std::uint32_t state_ = KVFERRY_PEER_CREATED;
  RemoteRegionTable remote_regions_;
  Initiator initiator_;
  Target target_;

  // Offered until the lanes are compared, then one is left.
  bool links_created_ = false;
  std::unique_ptr<ScatterSender> sender_;
  std::unique_ptr<Link> shm_link_, tcp_link_;
  std::vector<Listener> listeners_;
  std::unique_ptr<Link>* chosen_ = nullptr;
  Link* link() const noexcept { return chosen_ != nullptr ? chosen_->get() : nullptr; }

  std::optional<EndpointBlob> remote_;
  std::uint64_t regions_instance_ = 0;  ///< of imported regions; 0: none yet
  std::shared_ptr<const ProcessGuard> guard_;  ///< null: nobody is watched
  std::shared_ptr<MapOwner> owner_;            ///< with shared memory: our control page
  std::unique_ptr<MappedWriter> writer_;       ///< with shared memory: the other side's
  std::size_t populate_next_ = 0;
  Proof open_proof_;
  ReachabilityTest reachability_;
  std::uint64_t connect_deadline_ns_ = 0;
  bool hello_taken_ = false, answer_taken_ = false;

  bool draining_ = false;
  bool deaf_ = false;     ///< closing: what arrives is not looked at any more
  bool links_closed_ = false;
  bool goodbye_ = false;  ///< the other side has begun to close
  std::uint64_t close_deadline_ns_ = 0;
  std::uint64_t proof_deadline_ns_ = 0;

  std::uint64_t alive_ns_ = 0;  ///< when we last knew that this process runs
  bool heard_ = false;
  std::uint64_t last_heard_ns_ = 0;
  std::uint64_t busy_since_ns_ = 0;
  std::optional<Error> protocol_error_;
  std::optional<Error> last_error_;
  std::string description_;
};

}  // namespace kvferry::ucx
