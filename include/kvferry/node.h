/// kvferry/node.h: an engine with everything around it: plugin, backend, control links, one thread, a submit queue for many producers, waits.
///
///   any thread ── submit queue ──► ┌ kvferry thread ─────────────────────────────┐
///   any thread ◄── event queue ─── │ links (Asio) ─► engine ─► backend.progress  │ ── jobs thread
///   event fd  ◄─────────────────── └─────────────────────────────────────────────┘
///
/// All functions may be called from any thread. No call waits without a deadline. Nothing is written to stdout or stderr. After fork the child's calls
/// fail with `forked`.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvferry/engine.h"

namespace kvferry {

struct NodeOptions {
  EngineOptions engine;
  std::string backend = "ucx";
  std::string plugin_file;           ///< full path instead of the search, for tests and third parties
  Settings backend_settings;         ///< over those from the environment
  std::string listen = "";           ///< "host:port", port 0: automatic; empty: does not listen
  LogFunction log;                   ///< silent by default
  std::vector<int> affinity;         ///< CPUs of the engine thread; empty: inherits
  std::chrono::microseconds spin{50};  ///< how long the thread spins when something is in flight before it sleeps on the event fd
};

class Node {
 public:
  static Result<std::unique_ptr<Node>> open(NodeOptions options);
  /// Closes peers (forced), joins the threads, at most a few seconds.
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& session_id() const noexcept;  ///< "ip:port" as bound; empty: not listening
  Result<std::string> effective_config() const;    ///< JSON
  kvferry_limits limits() const;
  kvferry_stats backend_stats() const;
  EngineCounters counters() const;

  Result<kvferry_region> register_region(const Backend::RegionRequest& request);
  Result<void> deregister_region(kvferry_region region, std::chrono::nanoseconds timeout);
  Result<Backend::Allocation> allocate(std::uint64_t length, std::uint32_t purpose);
  Result<void> set_pool(Pool pool);

  Result<PeerId> open_peer(std::string address, std::chrono::nanoseconds timeout);
  /// Waits for peer_up or the cause why not.
  Result<PeerInfo> wait_peer(PeerId peer, std::chrono::nanoseconds timeout);
  /// Waits until `count` peers are up (those that connected to us).
  Result<std::vector<PeerId>> wait_peers(std::size_t count, std::chrono::nanoseconds timeout);
  Result<PeerInfo> peer_info(PeerId peer) const;
  Result<void> close_peer(PeerId peer);

  /// Deadlines in the transfer structs are relative here: nanoseconds from now; 0: none.
  Result<TransferId> submit(PagedTransfer transfer);
  Result<TransferId> submit(RawTransfer transfer);
  Result<TransferId> expect(Expectation expectation);
  Result<void> cancel(TransferId transfer, std::string why = "canceled by the caller");
  Result<void> fence(PeerId peer, std::uint64_t room, std::uint32_t generation);

  struct Outcome {
    std::optional<Error> error;  ///< empty: done
    bool quiesced = false;
    TransferFigures figures;
  };
  /// Waits for the end (and, with `quiesced`, until nothing can move any more). Error `timeout` leaves the transfer as it is.
  Result<Outcome> wait(TransferId transfer, std::chrono::nanoseconds timeout, bool quiesced = false);

  /// Events not consumed by `wait`, oldest first. event_fd becomes readable when there are some.
  std::size_t poll(std::span<Event> events);
  int event_fd() const noexcept;
  std::uint64_t now_ns() const;

 private:
  struct State;
  explicit Node(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvferry
