#include "worker.h"

#include <poll.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "bench_worker.h"
#include "child.h"
#include "host_memory.h"
#include "kvferry/model_config.h"
#include "kvferry/node.h"
#include "worker_config.h"

namespace kvferry::transfer_check {
namespace {

constexpr std::uint64_t kRoom = 1;
constexpr std::uint8_t kCorruption = 0x5a;  // Neither nothing nor all bits: it must not look like poison.
constexpr int kProgressMs = 100;

Json figures_json(const TransferFigures& figures) {
  return {{"bytes", figures.bytes},
          {"writes_before_merge", figures.writes_before_merge},
          {"writes", figures.writes},
          {"plan_ns", figures.plan_ns},
          {"submitted_ns", figures.submitted_ns},
          {"ended_ns", figures.ended_ns}};
}

Json place_json(const Pattern& pattern, const SourcePlace& place) {
  const NamedPool& source = pattern.sources()[place.rank];
  const Entry& entry = source.pool.entries[place.entry];
  return {{"rank", source.name},   {"component", to_string(entry.component)}, {"role", to_string(entry.role)},
          {"layer", entry.layer},  {"index_space", to_string(entry.space)},   {"page", place.index},
          {"offset", place.offset}};
}

/// `page` is the index in the entry's space, whatever that space counts.
Json wrong_json(const Pattern& pattern, const NamedPool& target, const Expected::Wrong& wrong) {
  Json json;
  json["rank"] = target.name;
  const Entry* entry = wrong.entry ? &target.pool.entries[*wrong.entry] : nullptr;
  json["component"] = entry == nullptr ? Json(nullptr) : Json(to_string(entry->component));
  json["role"] = entry == nullptr ? Json(nullptr) : Json(to_string(entry->role));
  json["layer"] = entry == nullptr ? Json(nullptr) : Json(entry->layer);
  json["index_space"] = entry == nullptr ? Json(nullptr) : Json(to_string(entry->space));
  json["page"] = entry == nullptr ? Json(nullptr) : Json(wrong.index);
  json["offset"] = entry == nullptr ? wrong.memory_offset : wrong.offset;
  json["expected"] = wrong.expected;
  json["found"] = wrong.found;
  json["wanted"] = wrong.wanted;
  json["nothing_written"] = wrong.is_poison;
  json["must_be"] = wrong.must_be ? place_json(pattern, *wrong.must_be) : Json(nullptr);
  json["belongs_to"] = wrong.belongs_to ? place_json(pattern, *wrong.belongs_to) : Json(nullptr);
  json["text"] = wrong.text;
  return json;
}

class Worker {
 public:
  explicit Worker(Channel channel) : channel_(std::move(channel)) {}
  ~Worker() { stop_watcher(); }

  void run();

 private:
  struct Moving {
    PeerId id{};       ///< prefill: the decode rank; decode: nobody in particular
    std::string peer;  ///< its name
  };

  void say(const Json& message);
  void say_failed(std::string_view step, const Failure& failure);
  bool handle(const Json& command);
  void handle_event(const Event& event);
  void drain_events();

  Outcome<void> start(const Json& config);
  Outcome<void> open_node();
  Outcome<void> take_memory();
  void fill();
  void flip_one_byte();
  Outcome<void> connect(const Json& command);
  Outcome<void> expect();
  Outcome<void> move(const Json& command);
  void compare();
  void watch(std::uint64_t bytes);
  void stop_watcher();
  Progress progress(const char* step);

  Channel channel_;
  std::mutex channel_mutex_;  ///< the watcher says one message from its own thread
  WorkerConfig config_;
  std::unique_ptr<Pattern> pattern_;
  std::unique_ptr<Expected> expected_;
  Mapping mapping_;
  std::span<std::byte> memory_;
  std::unique_ptr<Node> node_;  ///< after the memory: it lets go of it first
  std::map<PeerId, std::string> peers_;
  std::map<TransferId, Moving> moving_;
  std::thread watcher_;
  std::atomic<bool> watching_{false};
};

void Worker::say(const Json& message) {
  const std::lock_guard lock(channel_mutex_);
  (void)channel_.send(message, deadline_in(kReportTimeout));  // The command is gone or stuck; both end this worker from outside.
}

void Worker::say_failed(std::string_view step, const Failure& failure) { say({{"is", "failed"}, {"step", step}, {"error", error_message(failure)}}); }

void Worker::run() {
  for (;;) {
    std::array<pollfd, 2> items = {pollfd{channel_.descriptor(), POLLIN, 0}, pollfd{node_ ? node_->event_fd() : -1, POLLIN, 0}};
    const int ready = ::poll(items.data(), items.size(), moving_.empty() ? -1 : kProgressMs);
    if (ready == 0 && config_.show_progress && config_.is_prefill)
      say({{"is", "progress"}, {"step", "move"}, {"bytes", node_->backend_stats().bytes}});
    if (node_) drain_events();
    for (;;) {
      auto command = channel_.try_receive();
      if (!command) return;
      if (!*command) break;
      if (!handle(**command)) return;
    }
  }
}

bool Worker::handle(const Json& command) {
  const auto what = command.value("do", std::string());
  if (what == "quit") return false;
  Outcome<void> done;
  if (what == "start") done = start(command.at("config"));
  if (what == "connect") done = connect(command);
  if (what == "expect") done = expect();
  if (what == "move") done = move(command);
  if (what == "compare") compare();
  if (what == "digest") say({{"is", "digest"}, {"value", digest(memory_)}});
  if (!done) say_failed(what, done.error());
  return true;
}

Progress Worker::progress(const char* step) {
  if (!config_.show_progress) return {};
  return [this, step](std::uint64_t bytes) { say({{"is", "progress"}, {"step", step}, {"bytes", bytes}}); };
}

Outcome<void> Worker::start(const Json& config) {
  auto parsed = parse_worker_config(config);
  if (!parsed) return because(parsed.error());
  config_ = std::move(*parsed);
  pattern_ = std::make_unique<Pattern>(config_.sources);
  if (!config_.is_prefill) {
    expected_ = std::make_unique<Expected>(*pattern_, config_.writers, config_.target, config_.source_indices, config_.target_indices);
  }
  if (auto opened = open_node(); !opened) return opened;
  if (auto taken = take_memory(); !taken) return taken;
  fill();
  Pool pool = config_.is_prefill ? config_.sources[config_.source].pool : config_.target.pool;
  auto moved = rebase(pool, reinterpret_cast<std::uint64_t>(memory_.data()));
  if (!moved) return because(moved.error(), config_.name);
  auto declared = node_->set_pool(std::move(pool));
  if (!declared) return because(declared.error(), config_.name);
  say({{"is", "started"}, {"address", node_->session_id()}});
  return {};
}

Outcome<void> Worker::open_node() {
  NodeOptions options;
  options.backend = config_.backend;
  options.listen = config_.is_prefill ? "" : config_.listen;
  options.engine.name = config_.name;
  options.engine.lane = config_.lane;
  options.engine.role = config_.is_prefill ? EngineRole::prefill : EngineRole::decode;
  options.engine.writer = {config_.tp, config_.pp};
  options.engine.heartbeat_interval_ns = config_.heartbeat_ns;
  options.engine.lease_ns = config_.lease_ns;
  options.engine.connect_timeout_ns = config_.timeout_ns;
  auto node = Node::open(std::move(options));
  if (!node) {
    // The command loaded the plugin before it started workers: what is unavailable to a listening one is its port.
    const bool port = !config_.is_prefill && node.error().code == ErrorCode::unavailable;
    if (port) return because(node.error(), "--listen=" + config_.listen, "name a free port with --listen=HOST:PORT; port 0 picks one", "--listen");
    return because(node.error());
  }
  node_ = std::move(*node);
  return {};
}

Outcome<void> Worker::take_memory() {
  if (config_.memory == "allocated") {
    auto allocation = node_->allocate(config_.memory_bytes, KVFERRY_PURPOSE_KV);
    if (!allocation) return because(allocation.error(), config_.name, "use --memory=user, or fewer --tokens");
    memory_ = {static_cast<std::byte*>(allocation->address), config_.memory_bytes};
    return {};
  }
  auto mapping = Mapping::make(config_.memory_bytes);
  if (!mapping) return tl::unexpected(mapping.error());
  mapping_ = std::move(*mapping);
  memory_ = mapping_.bytes();
  Backend::RegionRequest region;
  region.address = reinterpret_cast<std::uint64_t>(memory_.data());
  region.length = memory_.size();
  region.purpose = KVFERRY_PURPOSE_KV;
  region.access = config_.is_prefill ? std::uint32_t{KVFERRY_ACCESS_LOCAL} : std::uint32_t{KVFERRY_ACCESS_REMOTE_WRITE};
  auto registered = node_->register_region(region);
  if (!registered) return because(registered.error(), config_.name, "raise the limit of locked memory (ulimit -l), or use fewer --tokens");
  return {};
}

void Worker::fill() {
  if (config_.is_prefill) {
    pattern_->fill(config_.source, memory_, progress("fill"));
    if (config_.corrupt) flip_one_byte();
  } else {
    expected_->poison(memory_, progress("fill"));
  }
}

/// One byte that will be sent, chosen by the seed.
void Worker::flip_one_byte() {
  const auto& entries = config_.sources[config_.source].pool.entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[(config_.seed + i) % entries.size()];
    const auto& indices = config_.source_indices[static_cast<std::size_t>(entry.space)];
    if (indices.empty()) continue;
    const std::uint64_t index = indices[config_.seed % indices.size()];
    memory_[entry.base_address + index * entry.pitch_bytes + config_.seed * 4099 % entry.item_length_bytes] ^= std::byte{kCorruption};
    return;
  }
}

Outcome<void> Worker::connect(const Json& command) {
  const std::chrono::nanoseconds timeout(config_.timeout_ns);
  std::vector<PeerId> ids;
  if (config_.is_prefill) {
    for (const auto& peer : command.at("peers")) {
      auto id = node_->open_peer(peer.at("address").get<std::string>(), timeout);
      if (!id) return because(id.error(), config_.name + " to " + peer.at("name").get<std::string>());
      peers_[*id] = peer.at("name").get<std::string>();
      ids.push_back(*id);
    }
  } else {
    auto up = node_->wait_peers(command.at("count").get<std::size_t>(), timeout);
    if (!up) return because(up.error(), config_.name);
    ids = *up;
  }
  Json lanes = Json::array();
  for (const PeerId id : ids) {
    auto info = node_->wait_peer(id, timeout);
    if (!info) return because(info.error(), config_.name + (config_.is_prefill ? " to " + peers_[id] : std::string()));
    if (!config_.is_prefill) peers_[id] = info->name;
    lanes.push_back({{"peer", peers_[id]}, {"lane", info->lane}, {"detail", info->detail}});
  }
  say({{"is", "connected"}, {"lanes", std::move(lanes)}});
  return {};
}

Outcome<void> Worker::expect() {
  Expectation expectation;
  expectation.room = kRoom;
  for (const auto& [id, name] : peers_) expectation.writers.push_back(id);
  expectation.indices = config_.target_indices;
  expectation.deadline_ns = config_.timeout_ns;
  auto id = node_->expect(std::move(expectation));
  if (!id) return because(id.error(), config_.name);
  moving_[*id] = {PeerId{}, "every writer"};
  say({{"is", "expecting"}});
  return {};
}

Outcome<void> Worker::move(const Json& command) {
  if (const auto point = command.at("fault_at_bytes").get<std::uint64_t>(); point != 0) watch(point);
  for (const auto& [peer, name] : peers_) {
    PagedTransfer transfer;
    transfer.peer = peer;
    transfer.room = kRoom;
    transfer.indices = config_.source_indices;
    transfer.deadline_ns = config_.timeout_ns;
    auto id = node_->submit(std::move(transfer));
    if (!id) return because(id.error(), config_.name + " to " + name);
    moving_[*id] = {peer, name};
  }
  return {};
}

void Worker::drain_events() {
  std::array<Event, 16> events;
  while (const std::size_t count = node_->poll(events)) {
    for (std::size_t i = 0; i < count; ++i) handle_event(events[i]);
  }
}

void Worker::handle_event(const Event& event) {
  const auto found = moving_.find(event.transfer);
  if (found == moving_.end()) return;
  Json message = {{"transfer", static_cast<std::uint64_t>(event.transfer)}, {"peer", found->second.peer}, {"at_ns", node_->now_ns()}};
  if (event.error) message["error"] = error_message(because(*event.error).value());
  switch (event.kind) {
    case EventKind::transfer_done:
    case EventKind::transfer_failed:
      message["is"] = "ended";
      message["figures"] = figures_json(event.figures);
      // Only now: whether memory could be mapped shows when it is written.
      if (auto info = node_->peer_info(found->second.id); info) message["lane"] = info->lane;
      break;
    case EventKind::transfer_quiesced:
      message["is"] = "quiesced";
      if (!event.error) moving_.erase(found);
      break;
    default: return;
  }
  say(message);
}

/// Says when the backend has accepted `bytes`: the command then does to this rank or its peer what the user asked for.
void Worker::watch(std::uint64_t bytes) {
  watching_ = true;
  watcher_ = std::thread([this, bytes] {
    while (watching_) {
      const std::uint64_t moved = node_->backend_stats().bytes;
      if (moved >= bytes) {
        say({{"is", "fault_point"}, {"bytes", moved}, {"at_ns", node_->now_ns()}});
        return;
      }
      std::this_thread::yield();
    }
  });
}

void Worker::stop_watcher() {
  watching_ = false;
  if (watcher_.joinable()) watcher_.join();
}

void Worker::compare() {
  const auto verdict = expected_->compare(memory_, progress("compare"));
  Json message = {{"is", "compared"}, {"bytes_compared", verdict.bytes_compared}, {"bytes_wrong", verdict.bytes_wrong}};
  message["first_wrong"] = verdict.first_wrong ? wrong_json(*pattern_, config_.target, *verdict.first_wrong) : Json(nullptr);
  say(message);
}

}  // namespace

void run_worker(Channel channel) { Worker(std::move(channel)).run(); }

int run_worker_process(const std::vector<std::string>& arguments) {
  Channel channel{Descriptor(kChannelNumber)};
  if (arguments.size() > 1 && arguments[1] == kBenchWorker) {
    run_bench_worker(std::move(channel));
  } else {
    run_worker(std::move(channel));
  }
  return 0;
}

}  // namespace kvferry::transfer_check
