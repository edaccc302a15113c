#include "bench_worker.h"

#include <memory>
#include <thread>

#include "bench_pieces.h"
#include "host_memory.h"
#include "kvferry/node.h"
#include "plain_socket.h"

namespace kvferry::transfer_check {
namespace {


PieceJob job_of(const Json& command) {
  return {command.at("piece_bytes").get<std::uint64_t>(), command.at("pool_bytes").get<std::uint64_t>(), command.at("seed").get<std::uint64_t>()};
}

class BenchWorker {
 public:
  explicit BenchWorker(Channel channel) : channel_(std::move(channel)) {}
  ~BenchWorker() {
    if (socket_thread_.joinable()) socket_thread_.join();  // The command closed its end of the socket before it let go of this worker.
  }

  void run() {
    for (;;) {
      auto command = channel_.receive(deadline_in(std::chrono::hours(24)));
      if (!command) return;
      if (!*command) continue;
      const auto what = (*command)->at("do").get<std::string>();
      if (what == "quit") return;
      Outcome<void> done;
      if (what == "open") done = open(**command);
      if (what == "poison") poison(job_of(**command));
      if (what == "compare") compare(job_of(**command));
      if (what == "listen_socket") done = listen_socket(job_of(**command));
      if (!done) say({{"is", "failed"}, {"error", error_message(done.error())}});
    }
  }

 private:
  void say(const Json& message) { (void)channel_.send(message, deadline_in(kReportTimeout)); }  // The command is gone or stuck; it ends this worker.

  Outcome<void> open(const Json& command) {
    const auto pool_bytes = command.at("pool_bytes").get<std::uint64_t>();
    NodeOptions options;
    options.backend = command.at("backend").get<std::string>();
    options.listen = "127.0.0.1:0";
    options.engine.name = "bench target";
    options.engine.lane = command.at("lane").get<std::string>();
    auto node = Node::open(std::move(options));
    if (!node) return because(node.error());
    node_ = std::move(*node);
    if (command.at("memory").get<std::string>() == "allocated") {
      auto allocation = node_->allocate(pool_bytes, KVFERRY_PURPOSE_KV);
      if (!allocation) return because(allocation.error());
      memory_ = {static_cast<std::byte*>(allocation->address), pool_bytes};
    } else {
      auto mapping = Mapping::make(pool_bytes);
      if (!mapping) return tl::unexpected(mapping.error());
      mapping_ = std::move(*mapping);
      memory_ = mapping_.bytes();
      Backend::RegionRequest region;
      region.address = reinterpret_cast<std::uint64_t>(memory_.data());
      region.length = memory_.size();
      region.access = KVFERRY_ACCESS_REMOTE_WRITE;
      auto registered = node_->register_region(region);
      if (!registered) return because(registered.error());
    }
    say({{"is", "opened"}, {"address", node_->session_id()}, {"base", reinterpret_cast<std::uint64_t>(memory_.data())}});
    return {};
  }

  void poison(const PieceJob& job) {
    const Pattern pattern({{"bench source", piece_pool(job)}});
    Expected(pattern, {0}, {"bench target", piece_pool(job)}, source_piece_indices(job), target_piece_indices(job)).poison(memory_, {});
    say({{"is", "poisoned"}});
  }

  void compare(const PieceJob& job) {
    const Pattern pattern({{"bench source", piece_pool(job)}});
    const Expected expected(pattern, {0}, {"bench target", piece_pool(job)}, source_piece_indices(job), target_piece_indices(job));
    const auto verdict = expected.compare(memory_, {});
    say({{"is", "compared"}, {"bytes_wrong", verdict.bytes_wrong}, {"text", verdict.first_wrong ? verdict.first_wrong->text : ""}});
  }

  /// A thread that takes rounds of the job from one connection until that ends.
  Outcome<void> listen_socket(const PieceJob& job) {
    if (socket_thread_.joinable()) socket_thread_.join();
    if (socket_mapping_.bytes().empty()) {
      auto mapping = Mapping::make(job.pool_bytes);
      if (!mapping) return tl::unexpected(mapping.error());
      socket_mapping_ = std::move(*mapping);
    }
    auto listening = listen_on_loopback();
    if (!listening) return because(listening.error());
    const std::uint16_t port = listening->port;
    socket_thread_ = std::thread([this, job, listening = std::move(*listening)] {
      const auto pieces = make_pieces(job);
      auto socket = accept_one(listening.socket);
      while (socket && wait_readable(*socket)) {
        if (!receive_pieces(*socket, {socket_mapping_.bytes(), pieces.target, job.piece_bytes})) return;  // The sender sees the end of it.
      }
    });
    say({{"is", "socket"}, {"port", port}});
    return {};
  }

  Channel channel_;
  Mapping mapping_, socket_mapping_;
  std::span<std::byte> memory_;
  std::unique_ptr<Node> node_;
  std::thread socket_thread_;
};

}  // namespace

void run_bench_worker(Channel channel) { BenchWorker(std::move(channel)).run(); }

}  // namespace kvferry::transfer_check
