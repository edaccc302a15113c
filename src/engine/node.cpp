// The shell around the engine core: one thread that owns links, engine and backend, one thread for jobs, and two doors for everybody else.
//
//   loop:  run ready handlers (commands, sockets, jobs done) ─► engine.progress(now) ─► hand out events ─► worked? again
//                                                                                                       └► spin a little, arm, sleep on the fds
//
// Commands of other threads are posted to the io_context, which is the many-producer queue and wakes the loop. Results come back through outcomes (for
// wait) and the event queue (for poll). The sleep is bounded even when nothing is armed, so a missed wake-up costs milliseconds, not a night.
#include "kvferry/node.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cctype>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <unordered_map>

#include "kvferry/tcp_links.h"

namespace kvferry {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

constexpr std::uint64_t kFirstNodeId = 1ull << 40;      // transfer ids given out here; the core's own stay below
constexpr std::size_t kEventsPerRound = 64;
constexpr std::size_t kEventsKept = 1u << 16;           // unpolled
constexpr std::size_t kOutcomesKept = 1u << 16;         // ended, neither waited for nor polled
constexpr std::string_view kBackendPrefixes[] = {"KVFERRY_LOOPBACK_", "KVFERRY_UCX_", "KVFERRY_VERBS_"};
constexpr auto kSleepMax = 100ms;
constexpr auto kCallTimeout = 30s;                      // of a command that only needs the loop to come round
constexpr auto kCloseTimeout = 2s;

// Runs the jobs of one engine, in order, on a thread of its own that is started with the first job.
class JobThread final : public JobPort {
 public:
  JobThread(std::function<void(std::uint64_t)> done, std::function<void()> on_start) : done_(std::move(done)), on_start_(std::move(on_start)) {}
  ~JobThread() override { stop(); }

  void run(std::uint64_t job, std::function<void()> work) override {
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(job, std::move(work));
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
    wake_.notify_one();
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void loop() {
    on_start_();
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      auto [job, work] = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      work();
      done_(job);
      lock.lock();
    }
  }

  std::function<void(std::uint64_t)> done_;
  std::function<void()> on_start_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<std::uint64_t, std::function<void()>>> jobs_;
  std::thread thread_;
  bool stopping_ = false;
};

// Threads of a library in somebody else's process take no signals.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

// A misspelt setting must not be silence. Keys of the backend in use are checked by the backend itself.
void name_unknown_settings(const Host& host, std::string_view backend) {
  std::string own = "KVFERRY_" + std::string(backend) + "_";
  std::transform(own.begin(), own.end(), own.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::string_view name = text.substr(0, text.find('='));
    if (name.substr(0, 8) != "KVFERRY_" || name == "KVFERRY_PLUGIN_PATH" || name.substr(0, own.size()) == own) continue;
    const bool other = std::any_of(std::begin(kBackendPrefixes), std::end(kBackendPrefixes),
                                   [&](std::string_view prefix) { return name.substr(0, prefix.size()) == prefix; });
    if (!other) host.log(LogLevel::warn, "node", "setting " + std::string(name) + " is not known and has no effect");
  }
}

void name_this_thread(const std::string& name) { pthread_setname_np(pthread_self(), name.substr(0, 15).c_str()); }

}  // namespace

struct Node::State {
  NodeOptions options;
  pid_t process = getpid();
  Host host;
  std::unique_ptr<Backend> backend;
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(context);  // an idle context must not stop
  std::unique_ptr<TcpLinks> links;
  std::unique_ptr<JobThread> jobs;
  std::unique_ptr<Engine> engine;
  std::optional<asio::posix::stream_descriptor> backend_events;  // borrows the backend's descriptor
  std::string session_id;
  std::string backend_config;
  int event_fd = -1;
  std::thread thread;
  std::atomic<std::uint64_t> next_transfer{kFirstNodeId};
  bool stopping = false;        // engine thread
  bool waiting_backend = false; // engine thread

  struct Entry {
    Outcome outcome;
    bool ended = false;
  };
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<std::uint64_t, Entry> outcomes;
  std::deque<std::uint64_t> ended_order;
  std::map<PeerId, std::optional<Error>> peers;  // up, or lost with its cause
  std::deque<Event> events;
  std::uint64_t events_dropped = 0;

  explicit State(NodeOptions options_)
      : options(std::move(options_)), host({options.log, {}, {}, {}}) {}
  ~State() { shut(); }

  Result<void> open();
  void shut();
  void loop();
  void wait_for_work();
  void watch_backend();
  void hand_out_events();
  void hand_out(Event event);
  void hand_out_refusal(TransferId id, std::uint64_t room, std::uint32_t generation, const Error& cause);
  Result<void> here(std::string_view what) const;

  /// Runs `function` on the engine's thread and waits for its answer.
  template <class Function>
  auto call(std::string_view what, Function function) -> decltype(function()) {
    using Answer = decltype(function());
    if (auto ours = here(what); !ours) return fail(ours.error());
    auto promise = std::make_shared<std::promise<Answer>>();
    auto future = promise->get_future();
    asio::post(context, [promise, function = std::move(function)]() mutable { promise->set_value(function()); });
    if (future.wait_for(kCallTimeout) != std::future_status::ready) {
      return fail(ErrorCode::timeout, std::string(what) + ": the engine thread did not answer within " +
                                          std::to_string(std::chrono::seconds(kCallTimeout).count()) + " s");
    }
    return future.get();
  }

  template <class Request>
  Result<TransferId> start(Request request, Result<TransferId> (Engine::*begin)(Request));
};

Result<void> Node::State::here(std::string_view what) const {
  if (getpid() == process) return {};
  return fail(ErrorCode::forked, std::string(what) + ": process " + std::to_string(getpid()) + " was forked from " + std::to_string(process) +
                                     ", which opened this node: open a new one after fork");
}

// ---- opening and closing

Result<void> Node::State::open() {
  auto plugin = options.plugin_file.empty() ? load_plugin(options.backend, host) : load_plugin_file(options.plugin_file, host);
  if (!plugin) return fail(plugin.error());
  name_unknown_settings(host, plugin->table->name);
  Settings settings = backend_settings_from_environment(plugin->table->name);
  for (const auto& given : options.backend_settings) {
    const auto same = std::find_if(settings.begin(), settings.end(), [&](const auto& setting) { return setting.first == given.first; });
    if (same == settings.end()) {
      settings.push_back(given);
    } else {
      same->second = given.second;
    }
  }
  auto made = Backend::create(*plugin, host, settings);
  if (!made) return fail(made.error());
  backend = std::move(*made);
  auto config = backend->effective_config();
  if (!config) return fail(config.error());
  backend_config = std::move(*config);

  event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_fd < 0) return fail(ErrorCode::limit, "open node " + options.engine.name + ": eventfd: " + std::strerror(errno));
  links = std::make_unique<TcpLinks>(context, TcpLinks::Options{});
  jobs = std::make_unique<JobThread>([this](std::uint64_t job) { asio::post(context, [this, job] { engine->job_done(job); }); },
                                     [name = options.engine.name] { name_this_thread("kvfj-" + name); });
  if (!options.listen.empty()) {
    auto address = parse_host_port(options.listen);
    if (!address) return fail(address.error());
    auto bound = links->listen(*address);
    if (!bound) return fail(bound.error());
    session_id = to_string(*bound);
    if (options.engine.session_id.empty()) options.engine.session_id = session_id;
  }
  auto core = Engine::create(options.engine, host, *backend, *links, *jobs);
  if (!core) return fail(core.error());
  engine = std::move(*core);
  links->set_receiver({[this](std::string_view remote) { return engine->accept_link(remote); }, [this](LinkId link) { engine->link_opened(link); },
                       [this](LinkId link, session::Message message) { engine->link_message(link, std::move(message)); },
                       [this](LinkId link, Error error) { engine->link_lost(link, std::move(error)); }});
  if (auto fd = backend->event_fd(); fd) {
    boost::system::error_code code;
    backend_events.emplace(context);
    backend_events->assign(*fd, code);
    if (code) backend_events.reset();
  }
  const SignalsBlocked blocked;
  thread = std::thread([this] {
    name_this_thread("kvf-" + options.engine.name);
    if (!options.affinity.empty()) {
      cpu_set_t set;
      CPU_ZERO(&set);
      for (const int cpu : options.affinity) CPU_SET(static_cast<unsigned>(cpu), &set);
      if (const int status = pthread_setaffinity_np(pthread_self(), sizeof set, &set); status != 0) {
        host.log(LogLevel::warn, "node", options.engine.name + ": pthread_setaffinity_np: " + std::strerror(status));
      }
    }
    loop();
  });
  return {};
}

void Node::State::shut() {
  if (thread.joinable()) {
    asio::post(context, [this] { stopping = true; });
    thread.join();
  }
  if (jobs) jobs->stop();
  if (backend_events) (void)backend_events->release();
  engine.reset();
  links.reset();
  backend.reset();
  if (event_fd >= 0) (void)::close(event_fd);  // an eventfd's close has nothing to report
  event_fd = -1;
}

// ---- the loop

void Node::State::loop() {
  watch_backend();
  std::uint64_t last_work_ns = host.now_ns();
  std::uint64_t stop_at_ns = 0;
  const auto spin_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(options.spin).count());
  while (true) {
    const bool handled = context.poll() != 0;
    const std::uint64_t now_ns = host.now_ns();
    const bool worked = engine->progress(now_ns);
    hand_out_events();
    if (stopping) {
      if (stop_at_ns == 0) {
        stop_at_ns = now_ns + static_cast<std::uint64_t>(std::chrono::nanoseconds(kCloseTimeout).count());
        for (const PeerId peer : engine->peers()) (void)engine->close_peer(peer);
      }
      if (engine->peers().empty() || now_ns >= stop_at_ns) break;
    }
    if (worked || handled) {
      last_work_ns = now_ns;
    } else if (now_ns - last_work_ns > spin_ns) {
      wait_for_work();
    } else {
      sched_yield();  // two engines of one host may share a core
    }
  }
  links->close_all();
  context.poll();
}

void Node::State::watch_backend() {
  if (!backend_events || waiting_backend) return;
  waiting_backend = true;
  backend_events->async_wait(asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code&) { waiting_backend = false; });
}

void Node::State::wait_for_work() {
  if (auto armed = backend->arm(); armed && !*armed) return;
  watch_backend();
  const std::uint64_t now_ns = host.now_ns(), next_ns = engine->next_deadline_ns();
  auto bound = std::chrono::duration_cast<std::chrono::nanoseconds>(backend_events ? kSleepMax : 1ms);
  bound = std::min(bound, std::chrono::nanoseconds(options.engine.lease_ns / 4));
  if (next_ns <= now_ns) return;
  if (next_ns - now_ns < static_cast<std::uint64_t>(bound.count())) bound = std::chrono::nanoseconds(next_ns - now_ns);
  context.run_one_for(bound);
}

void Node::State::hand_out_events() {
  std::array<Event, kEventsPerRound> round;
  while (const std::size_t count = engine->poll(round)) {
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < count; ++i) hand_out(std::move(round[i]));
    changed.notify_all();
    const std::uint64_t one = 1;
    (void)!write(event_fd, &one, sizeof one);  // full means that it is readable already
  }
}

// Under the mutex.
void Node::State::hand_out(Event event) {
  if (event.kind == EventKind::peer_up) peers[event.peer] = std::nullopt;
  if (event.kind == EventKind::peer_lost) peers[event.peer] = event.error;
  const auto found = outcomes.find(static_cast<std::uint64_t>(event.transfer));
  if (found != outcomes.end()) {
    Entry& entry = found->second;
    switch (event.kind) {
      case EventKind::transfer_done:
        entry.ended = true;
        entry.outcome.figures = event.figures;
        break;
      case EventKind::transfer_failed:
        entry.ended = true;
        entry.outcome.error = event.error;
        entry.outcome.figures = event.figures;
        break;
      case EventKind::transfer_quiesced:
        if (event.error) break;
        entry.outcome.quiesced = true;
        ended_order.push_back(found->first);
        break;
      default: break;
    }
    while (ended_order.size() > kOutcomesKept) {
      outcomes.erase(ended_order.front());
      ended_order.pop_front();
    }
  }
  if (events.size() >= kEventsKept) {
    events.pop_front();
    if (events_dropped++ == 0) {
      host.log(LogLevel::warn, "node", options.engine.name + ": nobody polls: the oldest of " + std::to_string(kEventsKept) + " events is dropped");
    }
  }
  events.push_back(std::move(event));
}

// ---- the doors

Node::Node(std::unique_ptr<State> state) : state_(std::move(state)) {}
Node::~Node() {
  // The child of a fork has none of the threads and must not touch the backend: it lets go of everything.
  if (getpid() != state_->process) (void)state_.release();
}

Result<std::unique_ptr<Node>> Node::open(NodeOptions options) {
  const std::string what = "open node " + options.engine.name;
  try {
    auto state = std::make_unique<State>(std::move(options));
    if (auto opened = state->open(); !opened) return fail(opened.error().within(what));
    return std::unique_ptr<Node>(new Node(std::move(state)));
  } catch (const std::exception& error) {  // std::thread, std::bad_alloc, Asio's constructors
    return fail(ErrorCode::limit, what + ": " + error.what());
  }
}

const std::string& Node::session_id() const noexcept { return state_->session_id; }

Result<std::string> Node::effective_config() const {
  nlohmann::ordered_json json;
  const auto& options = state_->options;
  json["name"] = options.engine.name;
  json["session_id"] = state_->session_id;
  json["lane"] = options.engine.lane;
  json["heartbeat_interval_ms"] = options.engine.heartbeat_interval_ns / 1'000'000;
  json["lease_ms"] = options.engine.lease_ns / 1'000'000;
  json["connect_timeout_ms"] = options.engine.connect_timeout_ns / 1'000'000;
  json["quiesce_timeout_ms"] = options.engine.quiesce_timeout_ns / 1'000'000;
  json["writes_per_batch"] = options.engine.writes_per_batch;
  json["batches_per_peer"] = options.engine.batches_per_peer;
  json["spin_us"] = options.spin.count();
  json["backend"] = std::string(state_->backend->name());
  json["backend_settings"] = nlohmann::ordered_json::parse(state_->backend_config, nullptr, false);
  return json.dump(2);
}

kvferry_limits Node::limits() const { return state_->backend->limits(); }
kvferry_stats Node::backend_stats() const { return state_->backend->stats(); }

EngineCounters Node::counters() const {
  State& state = *state_;
  const auto answer = state.call("counters", [&state]() -> Result<EngineCounters> { return state.engine->counters(); });
  return answer.value_or(EngineCounters{});
}

Result<kvferry_region> Node::register_region(const Backend::RegionRequest& request) {
  State& state = *state_;
  return state.call("register region", [&state, request] { return state.engine->register_region(request); });
}

Result<void> Node::deregister_region(kvferry_region region, std::chrono::nanoseconds timeout) {
  State& state = *state_;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    auto gone = state.call("deregister region", [&state, region] { return state.engine->deregister_region(region); });
    if (!gone) return fail(gone.error());
    if (*gone) return {};
    if (std::chrono::steady_clock::now() >= deadline) {
      return fail(ErrorCode::busy, "deregister region " + std::to_string(region) + ": transfers still use it after " +
                                       std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()) + " ms");
    }
    std::this_thread::sleep_for(1ms);
  }
}

Result<Backend::Allocation> Node::allocate(std::uint64_t length, std::uint32_t purpose) {
  State& state = *state_;
  return state.call("allocate", [&state, length, purpose] { return state.engine->allocate(length, purpose); });
}

Result<void> Node::set_pool(Pool pool) {
  State& state = *state_;
  return state.call("set pool", [&state, pool = std::move(pool)]() mutable { return state.engine->set_pool(std::move(pool)); });
}

Result<PeerId> Node::open_peer(std::string address, std::chrono::nanoseconds timeout) {
  State& state = *state_;
  const std::uint64_t deadline_ns = state.host.now_ns() + static_cast<std::uint64_t>(std::max<std::int64_t>(1, timeout.count()));
  return state.call("open peer", [&state, address = std::move(address), deadline_ns]() -> Result<PeerId> {
    if (auto parsed = parse_host_port(address); !parsed) return fail(parsed.error());
    return state.engine->open_peer(address, deadline_ns);
  });
}

Result<PeerInfo> Node::wait_peer(PeerId peer, std::chrono::nanoseconds timeout) {
  State& state = *state_;
  if (auto ours = state.here("wait for a peer"); !ours) return fail(ours.error());
  {
    std::unique_lock lock(state.mutex);
    const bool told = state.changed.wait_for(lock, timeout, [&] { return state.peers.count(peer) != 0; });
    if (!told) {
      return fail(ErrorCode::timeout, "wait for peer " + std::to_string(static_cast<std::uint64_t>(peer)) + ": neither up nor lost after " +
                                          std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()) + " ms");
    }
    if (state.peers[peer]) return fail(*state.peers[peer]);
  }
  return peer_info(peer);
}

Result<std::vector<PeerId>> Node::wait_peers(std::size_t count, std::chrono::nanoseconds timeout) {
  State& state = *state_;
  if (auto ours = state.here("wait for peers"); !ours) return fail(ours.error());
  std::unique_lock lock(state.mutex);
  std::vector<PeerId> up;
  const auto enough = [&] {
    up.clear();
    for (const auto& [id, cause] : state.peers) {
      if (!cause) up.push_back(id);
    }
    return up.size() >= count;
  };
  if (state.changed.wait_for(lock, timeout, enough)) return up;
  std::string text = "wait for " + std::to_string(count) + " peers: " + std::to_string(up.size()) + " are up after " +
                     std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()) + " ms";
  for (const auto& [id, cause] : state.peers) {
    if (cause) return fail(Error(cause->code, cause->error_class, text + "; " + cause->text));
  }
  return fail(ErrorCode::timeout, std::move(text));
}

Result<PeerInfo> Node::peer_info(PeerId peer) const {
  State& state = *state_;
  return state.call("peer info", [&state, peer] { return state.engine->peer_info(peer); });
}

Result<void> Node::close_peer(PeerId peer) {
  State& state = *state_;
  return state.call("close peer", [&state, peer] { return state.engine->close_peer(peer); });
}

// The id is given out at once; a refusal by the core becomes the transfer's outcome.
template <class Request>
Result<TransferId> Node::State::start(Request request, Result<TransferId> (Engine::*begin)(Request)) {
  if (auto ours = here("submit"); !ours) return fail(ours.error());
  const TransferId id{next_transfer.fetch_add(1)};
  request.id = id;
  if (request.deadline_ns != 0) request.deadline_ns += host.now_ns();
  {
    const std::lock_guard lock(mutex);
    outcomes.emplace(static_cast<std::uint64_t>(id), Entry{});
  }
  asio::post(context, [this, id, begin, request = std::move(request)]() mutable {
    const std::uint64_t room = request.room;
    const std::uint32_t generation = request.generation;
    auto begun = (engine.get()->*begin)(std::move(request));
    if (!begun) hand_out_refusal(id, room, generation, begun.error());
  });
  return id;
}

// A transfer that the core did not take: it failed, and nothing of it ever started.
void Node::State::hand_out_refusal(TransferId id, std::uint64_t room, std::uint32_t generation, const Error& cause) {
  const std::lock_guard lock(mutex);
  for (const EventKind kind : {EventKind::transfer_failed, EventKind::transfer_quiesced}) {
    Event event;
    event.kind = kind;
    event.transfer = id;
    event.room = room;
    event.generation = generation;
    if (kind == EventKind::transfer_failed) event.error.emplace(cause);
    hand_out(std::move(event));
  }
  changed.notify_all();
  const std::uint64_t one = 1;
  (void)!write(event_fd, &one, sizeof one);
}

Result<TransferId> Node::submit(PagedTransfer transfer) { return state_->start(std::move(transfer), &Engine::submit); }
Result<TransferId> Node::submit(RawTransfer transfer) { return state_->start(std::move(transfer), &Engine::submit); }
Result<TransferId> Node::expect(Expectation expectation) { return state_->start(std::move(expectation), &Engine::expect); }

Result<void> Node::cancel(TransferId transfer, std::string why) {
  State& state = *state_;
  return state.call("cancel", [&state, transfer, why = std::move(why)] { return state.engine->cancel(transfer, why); });
}

Result<void> Node::fence(PeerId peer, std::uint64_t room, std::uint32_t generation) {
  State& state = *state_;
  return state.call("fence", [&state, peer, room, generation] { return state.engine->fence(peer, room, generation); });
}

Result<Node::Outcome> Node::wait(TransferId transfer, std::chrono::nanoseconds timeout, bool quiesced) {
  State& state = *state_;
  if (auto ours = state.here("wait"); !ours) return fail(ours.error());
  const auto id = static_cast<std::uint64_t>(transfer);
  std::unique_lock lock(state.mutex);
  const auto found = state.outcomes.find(id);
  if (found == state.outcomes.end()) {
    return fail(ErrorCode::not_found, "wait for transfer " + std::to_string(id) + ": no such transfer, or its end was taken already");
  }
  const auto over = [&] {
    const auto entry = state.outcomes.find(id);
    return entry == state.outcomes.end() || (entry->second.ended && (!quiesced || entry->second.outcome.quiesced));
  };
  if (!state.changed.wait_for(lock, timeout, over)) {
    return fail(ErrorCode::timeout, "wait for transfer " + std::to_string(id) + ": " + (state.outcomes.find(id)->second.ended ? "ended, but not quiesced" : "not ended") +
                                        " after " + std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()) +
                                        " ms; it goes on");
  }
  const auto entry = state.outcomes.find(id);
  if (entry == state.outcomes.end()) return fail(ErrorCode::not_found, "wait for transfer " + std::to_string(id) + ": its end was taken by another waiter");
  Outcome outcome = entry->second.outcome;
  if (outcome.quiesced) {
    state.outcomes.erase(entry);
    std::erase(state.ended_order, id);
    std::erase_if(state.events, [&](const Event& event) { return event.transfer == transfer; });
  }
  return outcome;
}

std::size_t Node::poll(std::span<Event> events) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  std::uint64_t ignored = 0;
  (void)!read(state.event_fd, &ignored, sizeof ignored);
  std::size_t count = 0;
  while (count < events.size() && !state.events.empty()) {
    events[count] = std::move(state.events.front());
    state.events.pop_front();
    if (events[count].kind == EventKind::transfer_quiesced && !events[count].error) {
      state.outcomes.erase(static_cast<std::uint64_t>(events[count].transfer));
    }
    ++count;
  }
  if (!state.events.empty()) {
    const std::uint64_t one = 1;
    (void)!write(state.event_fd, &one, sizeof one);
  }
  return count;
}

int Node::event_fd() const noexcept { return state_->event_fd; }
std::uint64_t Node::now_ns() const { return state_->host.now_ns(); }

}  // namespace kvferry
