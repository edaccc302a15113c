#include "self.h"

#include <algorithm>
#include <cmath>

#include "host_memory.h"
#include "kvferry/tcp_links.h"
#include "progress_bar.h"
#include "values.h"

namespace kvferry::transfer_check {
namespace {

constexpr auto kHeartbeat = std::chrono::seconds(1);
constexpr auto kLease = std::chrono::seconds(5);
// A fault is shown in a second rather than five.
constexpr auto kFaultHeartbeat = std::chrono::milliseconds(200);
constexpr auto kFaultLease = std::chrono::seconds(1);
constexpr auto kSettleMargin = std::chrono::seconds(8);  // Above the engines' own bound for a fence that does not end.
constexpr std::uint64_t kFaultBytesMin = 256u << 20;     // Less may be over before it can be caught.
constexpr std::uint64_t kFaultPart = 4;                  // The fault comes after this part of a rank's bytes.

Outcome<void> read_listen(const Request& request, SelfOptions& ret) {
  ret.listen = request.text("--listen", "127.0.0.1:0");
  auto address = parse_host_port(ret.listen);
  if (!address) return because(address.error(), "--listen=" + ret.listen, "write HOST:PORT, such as 127.0.0.1:0 or [::1]:18515", "--listen");
  ret.listen_port = address->port;
  const std::uint64_t last = address->port + ret.layout.target.ranks.size() - 1;
  if (address->port != 0 && last > UINT16_MAX) {
    return wrong_option("--listen", ret.listen,
                        std::to_string(ret.layout.target.ranks.size()) + " decode ranks would need ports up to " + std::to_string(last),
                        "name a lower port, or port 0 for automatic ones");
  }
  return {};
}

Outcome<void> read_fault(const Request& request, SelfOptions& ret) {
  if (!request.has("--fault")) return {};
  auto fault = parse_word("--fault", request.text("--fault"), {"kill-decode", "kill-prefill", "freeze-decode", "freeze-prefill"});
  if (!fault) return tl::unexpected(fault.error());
  ret.fault = *fault;
  if (ret.corrupt)
    return wrong_option("--fault", ret.fault, "cannot stand beside --corrupt: only a request that arrives is compared", "leave one of the two out");
  if (ret.in_one_process) {
    return wrong_option("--fault", ret.fault, "backend " + ret.backend_name + " has both ends in one process", "use --backend=ucx");
  }
  const std::uint64_t bytes = fault_point_bytes(ret) * kFaultPart;
  if (bytes < kFaultBytesMin) {
    const double more = static_cast<double>(kFaultBytesMin) / static_cast<double>(std::max<std::uint64_t>(1, bytes));
    const auto tokens = static_cast<std::uint64_t>(std::ceil(static_cast<double>(ret.layout.request.tokens) * more));
    return wrong_option("--fault", ret.fault,
                        ret.layout.source.ranks[ret.layout.pairs.front().source].name + " has " + bytes_text(bytes) +
                            " to send, which may be over before it can be caught half-way; " + bytes_text(kFaultBytesMin) + " are needed",
                        "use --tokens=" + std::to_string(tokens) + " or more");
  }
  return {};
}

std::uint64_t target_memory_bytes(const Layout& layout) {
  std::uint64_t bytes = 0;
  for (const auto& rank : layout.target.ranks) bytes += rank.memory_bytes;
  return bytes;
}

std::uint64_t job_memory_bytes(const Layout& layout) {
  std::vector<bool> writes(layout.source.ranks.size());
  for (const auto& pair : layout.pairs) writes[pair.source] = true;
  std::uint64_t bytes = target_memory_bytes(layout);
  for (std::size_t i = 0; i < writes.size(); ++i) bytes += writes[i] ? layout.source.ranks[i].memory_bytes : 0;
  return bytes;
}

Outcome<void> check_workers(const SelfOptions& options) {
  constexpr std::size_t kWorkersMax = 256;
  const std::size_t workers = options.layout.source.ranks.size() + options.layout.target.ranks.size();
  if (workers <= kWorkersMax) return check_memory(job_memory_bytes(options.layout), "the job");
  return because(Error(ErrorCode::invalid_argument,
                       "--prefill and --decode make " + std::to_string(workers) + " ranks, one host runs at most " + std::to_string(kWorkersMax)),
                 {}, "use fewer ranks, or explain, which starts none");
}

// ---- the workers

WorkerConfig common_config(const SelfOptions& options) {
  WorkerConfig config;
  config.backend = options.backend_name;
  config.lane = options.lane;
  config.memory = options.memory;
  config.timeout_ns = static_cast<std::uint64_t>(options.timeout.count());
  config.heartbeat_ns = static_cast<std::uint64_t>(options.heartbeat().count());
  config.lease_ns = static_cast<std::uint64_t>(options.lease().count());
  config.show_progress = ProgressBar::is_wanted();
  config.seed = options.layout.request.seed;
  for (const auto& rank : options.layout.source.ranks) config.sources.push_back({rank.name, rank.pool});
  config.source_indices = options.layout.source.indices;
  config.target_indices = options.layout.target.indices;
  return config;
}

void name_rank(const RankPool& rank, WorkerConfig& ret) {
  ret.name = rank.name;
  ret.tp = rank.tp;
  ret.pp = rank.pp;
  ret.memory_bytes = rank.memory_bytes;
}

std::string listen_address(const SelfOptions& options, std::size_t rank) {
  auto address = parse_host_port(options.listen).value_or(HostPort{"127.0.0.1", 0});  // It was parsed before.
  if (address.port != 0) address.port = static_cast<std::uint16_t>(address.port + rank);
  return to_string(address);
}

/// Decode first, so that it listens when prefill comes. Prefill ranks that send nothing (identical copies under tensor parallelism) are not started.
Outcome<void> add_workers(const SelfOptions& options, Crew& ret) {
  const Layout& layout = options.layout;
  WorkerConfig config = common_config(options);
  for (std::size_t t = 0; t < layout.target.ranks.size(); ++t) {
    WorkerConfig decode = config;
    name_rank(layout.target.ranks[t], decode);
    decode.listen = listen_address(options, t);
    decode.target = {layout.target.ranks[t].name, layout.target.ranks[t].pool};
    for (const auto& pair : layout.pairs) {
      if (pair.target == t) decode.writers.push_back(pair.source);
    }
    if (auto added = ret.add(decode, t, 1); !added) return added;
  }
  for (std::size_t s = 0; s < layout.source.ranks.size(); ++s) {
    const auto targets =
        static_cast<std::size_t>(std::count_if(layout.pairs.begin(), layout.pairs.end(), [s](const RankPair& pair) { return pair.source == s; }));
    if (targets == 0) continue;
    WorkerConfig prefill = config;
    name_rank(layout.source.ranks[s], prefill);
    prefill.is_prefill = true;
    prefill.source = s;
    prefill.corrupt = options.corrupt && s == layout.pairs.front().source;
    if (auto added = ret.add(prefill, s, targets); !added) return added;
  }
  return {};
}

void send_connect(const Layout& layout, Crew& crew) {
  for (auto& member : crew.members()) {
    std::size_t count = 0;
    Json peers = Json::array();
    for (const auto& pair : layout.pairs) {
      if ((member.is_prefill ? pair.source : pair.target) != member.rank) continue;
      ++count;
      if (!member.is_prefill) continue;
      for (const auto& other : crew.members()) {
        if (!other.is_prefill && other.rank == pair.target) peers.push_back({{"name", other.name()}, {"address", other.address}});
      }
    }
    crew.send(member, {{"do", "connect"}, {"count", count}, {"peers", std::move(peers)}});
  }
}

Outcome<void> start_and_connect(const SelfOptions& options, Crew& crew) {
  if (auto added = add_workers(options, crew); !added) return added;
  if (auto started = crew.advance("start", deadline_in(options.timeout), [](const Member& member) { return member.started; }); !started)
    return started;
  send_connect(options.layout, crew);
  if (auto up = crew.advance("connect", deadline_in(options.timeout), [](const Member& member) { return member.connected; }); !up) return up;
  for (auto& member : crew.members()) {
    if (!member.is_prefill) crew.send(member, {{"do", "expect"}});
  }
  return crew.advance("announce the request", deadline_in(options.timeout),
                      [](const Member& member) { return member.is_prefill || member.expecting; });
}

/// Every rank to its end, then the target pools compared.
Outcome<void> move_and_compare(const SelfOptions& options, Crew& crew) {
  for (auto& member : crew.members()) {
    if (member.is_prefill) crew.send(member, {{"do", "move"}, {"fault_at_bytes", 0}});
  }
  // The engines keep the deadline of the transfers; this bound is for an engine that does not.
  if (auto moved = crew.advance("move", deadline_in(options.timeout + kSettleMargin), [](const Member& member) { return member.is_over(); }); !moved)
    return moved;
  for (auto& member : crew.members()) {
    if (!member.is_prefill) crew.send(member, {{"do", "compare"}});
  }
  return crew.advance("compare", deadline_in(options.timeout), [](const Member& member) { return member.is_prefill || !member.compared.is_null(); });
}

/// The sums the engines report against the plan that was made before: what was not moved cannot be right.
Outcome<void> check_sums(const SelfOptions& options, const Figures& figures) {
  if (figures.bytes == options.plan.bytes && figures.writes_before_merge == options.plan.writes_before_merge) return {};
  return because(Error(ErrorCode::internal, "the engines report " + std::to_string(figures.bytes) + " bytes in " +
                                                std::to_string(figures.writes_before_merge) + " writes before merge, the plan has " +
                                                std::to_string(options.plan.bytes) + " in " + std::to_string(options.plan.writes_before_merge)));
}

SelfResult run_check(const SelfOptions& options, Crew& crew) {
  SelfResult result;
  auto done = move_and_compare(options, crew);
  if (!done) {
    const std::uint64_t now_ns = monotonic_ns();
    (void)crew.settle(deadline_in(options.lease() + kSettleMargin),
                      [](const Member& member) { return member.is_over(); });  // What they learned by then is told.
    std::uint64_t since_ns = 0;
    for (const auto& member : crew.members()) since_ns = member.ending ? std::min(now_ns, member.gone_at_ns) : since_ns;
    result.learned = collect_learned(crew, since_ns);
    result.failure = done.error();
  }
  result.figures = collect_figures(options, crew);
  if (done) {
    if (auto sums = check_sums(options, result.figures); !sums) result.failure = sums.error();
  }
  return result;
}

/// The step that the last worker is in, and how far all are in it.
void show_progress(const SelfOptions& options, const Crew& crew, ProgressBar& bar) {
  for (const std::string step : {"fill", "move", "compare"}) {
    std::uint64_t bytes = 0;
    for (const auto& member : crew.members()) bytes += member.progress_step == step ? member.progress_bytes : 0;
    const std::uint64_t total = step == "fill"   ? job_memory_bytes(options.layout)
                                : step == "move" ? options.plan.bytes
                                                 : target_memory_bytes(options.layout);
    if (bytes != 0) bar.show(step, bytes, total);
  }
}

}  // namespace

std::chrono::nanoseconds SelfOptions::lease() const {
  return fault.empty() ? std::chrono::nanoseconds(kLease) : std::chrono::nanoseconds(kFaultLease);
}

std::chrono::nanoseconds SelfOptions::heartbeat() const {
  return fault.empty() ? std::chrono::nanoseconds(kHeartbeat) : std::chrono::nanoseconds(kFaultHeartbeat);
}

std::uint64_t fault_point_bytes(const SelfOptions& options) {
  const std::size_t source = options.layout.pairs.front().source;
  std::uint64_t bytes = 0;
  for (const auto& pair : options.plan.pairs) {
    if (options.layout.pairs[pair.pair].source == source) bytes += pair.counts.bytes;
  }
  return bytes / kFaultPart;
}

Outcome<SelfOptions> read_self_options(const Request& request) {
  SelfOptions options;
  options.json = request.has("--json");
  options.corrupt = request.has("--corrupt");
  auto backend = parse_backend(request);
  auto lane = parse_word("--lane", request.text("--lane", "auto"), {"auto", "shm", "tcp", "rc"});
  auto memory = parse_word("--memory", request.text("--memory", "user"), {"user", "allocated"});
  auto timeout = parse_seconds("--timeout", request.text("--timeout", "60"));
  if (!backend) return tl::unexpected(backend.error());
  if (!lane) return tl::unexpected(lane.error());
  if (!memory) return tl::unexpected(memory.error());
  if (!timeout) return tl::unexpected(timeout.error());
  options.backend_name = *backend;
  options.lane = *lane;
  options.memory = *memory;
  options.timeout = *timeout;

  auto layout = make_layout(request);
  if (!layout) return tl::unexpected(layout.error());
  options.layout = std::move(*layout);
  auto facts = query_backend(options.backend_name);
  if (!facts) return tl::unexpected(facts.error());
  options.backend = std::move(*facts);
  options.in_one_process = (options.backend.limits.capabilities & KVFERRY_CAP_IN_PROCESS_ONLY) != 0;
  if (auto usable = check_lane(options.backend_name, options.lane); !usable) return tl::unexpected(usable.error());
  auto plan = plan_job(options.layout, plan_limits(options.backend.limits));
  if (!plan) return tl::unexpected(plan.error());
  options.plan = std::move(*plan);
  if (auto listen = read_listen(request, options); !listen) return tl::unexpected(listen.error());
  if (auto fault = read_fault(request, options); !fault) return tl::unexpected(fault.error());
  if (auto fits = check_workers(options); !fits) return tl::unexpected(fits.error());
  return options;
}

Outcome<ExitStatus> run_self(const Request& request) {
  auto options = read_self_options(request);
  if (!options) return tl::unexpected(options.error());
  Crew crew(options->in_one_process);
  ProgressBar bar;
  crew.on_heard([&] { show_progress(*options, crew, bar); });
  if (auto connected = start_and_connect(*options, crew); !connected) return tl::unexpected(connected.error());
  SelfResult result;
  if (options->fault.empty()) {
    result = run_check(*options, crew);
  } else {
    auto faulted = run_fault(*options, crew);
    if (!faulted) return tl::unexpected(faulted.error());
    result = std::move(*faulted);
  }
  bar.clear();
  auto reported = report_self(*options, result, crew);
  crew.dismiss();
  return reported;
}

}  // namespace kvferry::transfer_check
