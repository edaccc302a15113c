// One UCX backend: the peers, the regions, the events, and the order in which progress serves them.
//
//   plugin.cpp (C entries) ─► Backend ─► Peer ─► Initiator ─► ScatterSender ─► Link ─► UCX
//                                          └───► Target ◄──────────────────────┘
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "../common/process.h"
#include "peer.h"
#include "probe.h"

namespace kvferry::ucx {

class Backend {
 public:
  using SettingsType = Settings;
  static std::vector<kvferry_device> probe(const Settings& settings) { return probe_devices(settings); }
  static Result<std::unique_ptr<Backend>> create(const kvferry_host& host, const Settings& settings);
  ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// True in a forked child, where nothing may be used.
  bool forked() const noexcept { return fork_mark_.forked(); }
  kvferry_limits limits() const;
  kvferry_stats stats() const;
  std::string effective_config() const;
  const Settings& settings() const noexcept { return shared_.settings; }
  const kvferry_host& host() const noexcept { return shared_.host; }

  Result<kvferry_region> register_region(const kvferry_region_desc& desc);
  Result<kvferry_status> deregister_region(kvferry_region region, std::uint32_t mode);
  Result<void> region_quiesce(kvferry_region region, kvferry_peer peer, std::uint64_t tag, std::uint64_t deadline_ns);
  struct Allocation {
    void* address = nullptr;
    kvferry_region region = 0;
  };
  Result<Allocation> allocate(std::uint64_t length, std::uint32_t purpose);
  Result<kvferry_status> free_memory(kvferry_region region);
  Result<std::vector<std::uint8_t>> export_regions(const kvferry_region* regions, std::uint32_t count) const;

  Result<kvferry_peer> peer_create(const kvferry_peer_options& options);
  Result<Peer*> find_peer(kvferry_peer peer, const char* what) const;
  bool has_open_peers() const;

  Result<kvferry_status> submit(kvferry_peer peer, const kvferry_batch& batch, std::uint32_t& ret_accepted, std::uint64_t& ret_object);
  Result<void> fence(kvferry_peer peer, std::uint64_t room, std::uint32_t generation, std::uint64_t tag, std::uint64_t deadline_ns);

  bool progress();
  std::uint32_t poll(std::uint8_t* events, std::uint32_t stride, std::uint32_t capacity);
  int event_fd() const noexcept { return shared_.wake.fd(); }
  bool arm();

 private:
  Backend(const kvferry_host& host, const Settings& settings, WakeSet wake, std::uint64_t instance);
  std::uint64_t now_ns() const { return shared_.host.now_ns(shared_.host.user); }
  Result<Region*> find_region(kvferry_region region, const char* what);
  Result<kvferry_status> release(Region& region, std::uint32_t mode);
  Result<void> room_for_answer() const;
  /// An event that waits until writers of mapped memory are known to have stopped.
  struct Answer {
    Event event;
    std::uint64_t deadline_ns = 0;
    std::vector<Peer::Proof> proofs;
  };
  /// A closed peer whose writer is not known to have stopped.
  struct Unproved {
    kvferry_peer peer = 0;
    Peer::Proof proof;
    std::shared_ptr<const ProcessGuard> guard;
  };
  void give(Answer answer, kvferry_peer peer);
  void settle_answers(std::uint64_t now_ns);
  void taken(const Event& event);
  void check_leases(std::uint64_t now_ns);
  void check_processes(std::uint64_t now_ns);

  LogSink log_sink_;
  Shared shared_;
  std::map<kvferry_peer, std::unique_ptr<Peer>> peers_;
  std::vector<Peer*> order_;  ///< the same peers, for progress
  std::vector<Answer> answers_;
  std::vector<Unproved> unproved_;
  std::uint64_t last_progress_ns_ = 0;
  std::uint64_t last_process_check_ns_ = 0;
  bool armed_ = false;
  ForkMark fork_mark_;
};

}  // namespace kvferry::ucx
