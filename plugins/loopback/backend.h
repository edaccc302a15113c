// One loopback backend: regions, peers, events, and the two roles (initiator.cpp, target.cpp).
//
//   submit ─► slot of our end ──────────────────────► target.cpp of the other backend: guard, copy, notify
//   poll  ◄─ events ◄─ initiator.cpp: answers, deadlines ◄────────── answered
//
// One thread at a time; only `stats` is read from others. What another thread can see lies in the links, under their mutexes. No other mutex is taken
// while a link's is held; the registry's may be held when a link's is taken.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "blob.h"
#include "config.h"
#include "event_queue.h"
#include "link.h"
#include "random.h"

namespace loopback {

inline bool inside(std::uint64_t offset, std::uint64_t length, std::uint64_t limit) noexcept { return offset <= limit && length <= limit - offset; }

struct Region {
  kvferry_region id = 0;
  std::uint8_t* address = nullptr;
  std::uint64_t length = 0;
  std::uint32_t access = 0;
  std::uint32_t purpose = 0;
  bool draining = false;
  std::uint64_t mapped_bytes = 0;  ///< from allocate; 0: the caller's memory
  bool refuses_everybody = false;
  std::vector<kvferry_peer> refused_peers;
};

struct RemoteRegion {
  std::uint64_t length = 0;
  std::uint32_t access = 0;
};

struct Flush {
  std::uint64_t before = 0;  ///< sequence
  std::uint64_t tag = 0;
};

struct Peer {
  kvferry_peer id = 0;
  std::uint32_t state = KVFERRY_PEER_CREATED;
  std::uint64_t lease_ns = 0;

  std::shared_ptr<Link> link;
  int side = 0;
  EndpointBlob remote;  ///< peer 0: not connected yet
  std::uint64_t connect_deadline_ns = 0;
  std::uint64_t close_deadline_ns = 0;
  std::uint64_t last_heard_ns = 0;
  std::optional<Failure> last_error;

  Identity regions_identity;  ///< of the imported tables; instance 0: none
  std::unordered_map<kvferry_region, RemoteRegion> remote_regions;
  std::unordered_map<std::uint64_t, std::uint32_t> fences;  ///< room: highest generation that is refused
  std::set<std::pair<std::uint64_t, std::uint32_t>> canceled;
  std::deque<std::pair<std::uint64_t, std::uint32_t>> canceled_order;
  std::vector<Flush> flushes;
  std::uint64_t target_events = 0;  ///< of this peer, not polled yet

  bool live() const noexcept { return state == KVFERRY_PEER_UP || state == KVFERRY_PEER_CLOSING; }
  End& own_end() const noexcept { return *link->ends[side]; }
  End* other_end() const noexcept { return link->ends[1 - side].get(); }
};

/// Read by any thread.
struct Counters {
  std::atomic<std::uint64_t> peers{0}, regions{0}, batches_submitted{0}, batches_done{0}, batches_failed{0}, writes{0}, pieces{0}, bytes{0},
      messages_sent{0}, messages_received{0}, pieces_applied{0}, bytes_applied{0}, pieces_refused{0}, pieces_fenced{0}, notifications_sent{0},
      notifications_received{0}, progress_calls{0};
};

class Backend {
 public:
  static Answer<std::unique_ptr<Backend>> create(const kvferry_host& host, const Config& config);
  ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  const Config& config() const noexcept { return config_; }
  const kvferry_host& host() const noexcept { return host_; }
  std::uint32_t process_id() const noexcept { return identity_.process_id; }
  kvferry_limits limits() const;
  kvferry_stats stats() const;
  /// The call of this entry that the settings ask to fail.
  std::optional<Failure> injected_failure(const char* entry);

  // regions.cpp
  Answer<kvferry_region> register_region(const kvferry_region_desc& desc);
  Answer<kvferry_status> deregister_region(kvferry_region region, std::uint32_t mode);
  Answer<void> region_quiesce(kvferry_region region, kvferry_peer peer, std::uint64_t tag);
  Answer<std::pair<void*, kvferry_region>> allocate(std::uint64_t length, std::uint32_t purpose);
  Answer<kvferry_status> free_memory(kvferry_region region);
  Answer<std::vector<std::uint8_t>> export_regions(const kvferry_region* regions, std::uint32_t count) const;

  // peers.cpp
  Answer<kvferry_peer> peer_create(const kvferry_peer_options& options);
  Answer<std::vector<std::uint8_t>> peer_export(kvferry_peer peer) const;
  Answer<void> peer_connect(kvferry_peer peer, const void* blob, std::uint64_t bytes, std::uint64_t deadline_ns);
  Answer<void> import_regions(kvferry_peer peer, const void* blob, std::uint64_t bytes);
  Answer<void> forget_regions(kvferry_peer peer, const kvferry_region* regions, std::uint32_t count);
  Answer<kvferry_peer_info> peer_state(kvferry_peer peer) const;
  Answer<void> peer_close(kvferry_peer peer, std::uint32_t mode, std::uint64_t deadline_ns);
  bool has_open_peers() const;

  // initiator.cpp
  Answer<kvferry_status> submit(kvferry_peer peer, const kvferry_batch& batch, std::uint32_t& ret_accepted);
  Answer<void> cancel(kvferry_peer peer, std::uint64_t room, std::uint32_t generation);
  Answer<void> flush(kvferry_peer peer, std::uint64_t tag);

  // target.cpp
  Answer<void> fence(kvferry_peer peer, std::uint64_t room, std::uint32_t generation, std::uint64_t tag);

  // progress.cpp
  bool progress();
  std::uint32_t poll(kvferry_event* events, std::uint32_t capacity);
  int event_fd() const noexcept { return bell_->fd(); }
  bool arm();

 private:
  Backend(const kvferry_host& host, const Config& config, const Identity& identity, std::shared_ptr<Doorbell> bell);

  std::uint64_t now_ns() const { return host_.now_ns(host_.user); }
  void log(std::int32_t level, const std::string& text) const;
  Answer<Peer*> find_peer(kvferry_peer peer, const char* what) const;
  Answer<Region*> find_region(kvferry_region region, const char* what);
  Answer<void> room_for_control_event() const;
  void push(Event event);
  void push_peer(std::uint32_t kind, const Peer& peer, std::optional<Failure> failure);
  std::uint64_t draw_delay();

  // regions.cpp
  bool in_use(kvferry_region region) const;
  Answer<kvferry_status> release(Region& region, std::uint32_t mode);

  // peers.cpp: called with the link's mutex free
  bool handshake(Peer& peer, std::uint64_t now_ns);
  void lose(Peer& peer, Failure failure, std::uint64_t now_ns);
  void finish_close(Peer& peer, Failure failure, std::uint64_t now_ns);
  void abandon(Peer& peer, std::uint64_t now_ns) noexcept;
  EndOptions end_options() const;

  // initiator.cpp: called with the link's mutex held
  Answer<void> fill_slot(const Peer& peer, const kvferry_batch& batch, Slot& slot) const;
  Answer<void> fill_write(const Peer& peer, const kvferry_batch& batch, std::uint32_t index, Slot& slot) const;
  void send_slot(Peer& peer, Slot& slot, std::uint64_t now_ns);
  void end_batch(Peer& peer, Slot& slot, std::optional<Failure> failure);
  void withdraw(End& own, Slot& slot);
  void fail_open_batches(Peer& peer, const Failure& failure);
  bool take_answers(Peer& peer, std::uint64_t now_ns);
  bool answer_flushes(Peer& peer);
  void deliver_reads(const End& own, const Slot& slot) const;
  void die(std::uint64_t now_ns);

  // target.cpp: called with the link's mutex held
  bool apply_arrivals(Peer& peer, std::uint64_t now_ns);
  Slot* choose_slot(End& sender, std::uint64_t now_ns);
  bool step_slot(Peer& peer, End& sender, Slot& slot, std::uint64_t now_ns, std::uint64_t& budget_bytes);
  std::optional<Failure> guard(const Peer& peer, const TargetWrite& write, const Region*& ret_region) const;
  void copy_some(End& sender, Slot& slot, const Region& region, std::uint64_t& budget_bytes);
  bool finish_slot(Peer& peer, End& sender, Slot& slot, std::uint64_t now_ns);
  void answer_slot(Peer& peer, End& sender, Slot& slot, std::optional<Failure> failure, std::uint64_t now_ns);
  bool fenced(const Peer& peer, std::uint64_t room, std::uint32_t generation) const;

  // progress.cpp
  bool progress_peer(Peer& peer, std::uint64_t now_ns);
  bool pending(const Peer& peer, std::uint64_t now_ns) const;

  const kvferry_host host_;
  const Config config_;
  const Identity identity_;
  const std::shared_ptr<Doorbell> bell_;
  std::unordered_map<kvferry_region, Region> regions_;
  std::map<kvferry_peer, std::unique_ptr<Peer>> peers_;  ///< ordered: a seed must give the same run
  std::unordered_map<std::uint64_t, std::uint32_t> fences_of_all_;
  EventQueue events_;
  std::uint64_t control_events_ = 0;  ///< not polled yet
  std::uint64_t last_progress_ns_ = 0;
  bool dead_ = false;
  Counters counters_;

  // Faults.
  Random delay_draws_, reorder_draws_, accept_draws_, refuse_draws_, lose_draws_;
  std::uint64_t batches_sent_ = 0, writes_sent_ = 0, batches_examined_ = 0, batches_answered_ = 0, entry_calls_ = 0;
};

}  // namespace loopback
