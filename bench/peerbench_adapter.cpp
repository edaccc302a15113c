// Our engine on the job that the comparison harness gives to every engine: scatter the KV pages of one request from a prefill pool into a decode
// pool, between two processes of this machine, and compare every byte.
//
//   initiator (this process)                          target (forked child)
//   source pool, Node ══ session, lane ═════════════► Node, target pool
//         └──────────── control socket: commands ──────────┘
//
//   round:  fill source │ target: reset to 0xEE, expect the round's rooms │ clock starts │ submit, wait, repeat │ clock stops │ compare
//
// The clock starts when the initiator has both page lists. The target's list reaches it in the announcement of `expect`, which peers that take lists
// from their caller do not have; `--announce=timed` puts the announcement, and the control byte that asks for it, inside. Planning, session
// messages, posting and the wait for completion are always inside. `--mode=addresses` hands over (address, address, length) triples built per request.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvferry/node.h"

namespace {

using namespace kvferry;
using Clock = std::chrono::steady_clock;

constexpr std::uint8_t kUntouched = 0xEE;
constexpr std::chrono::seconds kGuard{60};  // a hang ends the run with an error instead
constexpr std::uint64_t kRoomsPerRound = 1'000'000;

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "peerbench_adapter: %s\n", what.c_str());
  std::_Exit(2);
}

template <class T>
T value_or_give_up(Result<T> result, const char* what) {
  if (!result) give_up(std::string(what) + ": " + result.error().text);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

struct Options {
  std::uint64_t entries = 0, pages = 0, bytes = 0, run_length = 1, seed = 1, target_pitch = 0;
  std::uint64_t rounds = 5, burst = 1;
  std::string tls = "default", backend = "ucx", memory = "private", mode = "pages", announce = "before";

  std::uint64_t pool_pages() const { return pages > 1 ? pages + (pages + 3) / 4 : 1; }
  std::string lane() const { return tls == "default" ? "auto" : tls; }
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// ---- the job: page lists, pattern, check (the harness has the same in words)

class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t state) : state_(state) {}
  std::uint64_t next() {
    std::uint64_t word = (state_ += 0x9E3779B97F4A7C15u);
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
  }

 private:
  std::uint64_t state_;
};

/// The first `pages` pages of a permutation of the pool that is made of runs.
std::vector<std::uint64_t> page_list(const Options& job, std::uint64_t seed) {
  struct Run {
    std::uint64_t begin, length;
  };
  SplitMix64 random(seed);
  std::vector<Run> runs;
  for (std::uint64_t begin = 0; begin < job.pool_pages();) {
    std::uint64_t length = 1;
    while (begin + length < job.pool_pages() && random.next() % job.run_length != 0) ++length;
    runs.push_back({begin, length});
    begin += length;
  }
  for (std::size_t i = runs.size() - 1; i > 0; --i) std::swap(runs[i], runs[random.next() % (i + 1)]);
  std::vector<std::uint64_t> order;
  for (const Run& run : runs) {
    for (std::uint64_t page = run.begin; page < run.begin + run.length; ++page) order.push_back(page);
  }
  order.resize(job.pages);
  return order;
}

/// The buffers of one side: one per entry, page aligned, each a region of its own.
struct Buffers {
  std::uint64_t pitch = 0, entry_bytes = 0;
  std::vector<std::uint8_t*> entries;
};

Buffers make_buffers(const Options& job, Node& node, bool is_target) {
  Buffers buffers;
  buffers.pitch = is_target ? job.target_pitch : job.bytes;
  buffers.entry_bytes = job.pool_pages() * buffers.pitch;
  for (std::uint64_t e = 0; e < job.entries; ++e) {
    if (is_target && job.memory == "allocated") {
      buffers.entries.push_back(static_cast<std::uint8_t*>(value_or_give_up(node.allocate(buffers.entry_bytes, KVFERRY_PURPOSE_KV), "allocate").address));
      continue;
    }
    void* memory = mmap(nullptr, buffers.entry_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) give_up("mmap of " + std::to_string(buffers.entry_bytes) + " bytes: " + std::strerror(errno));
    std::memset(memory, kUntouched, buffers.entry_bytes);
    Backend::RegionRequest region;
    region.address = reinterpret_cast<std::uint64_t>(memory);
    region.length = buffers.entry_bytes;
    region.access = is_target ? std::uint32_t{KVFERRY_ACCESS_REMOTE_WRITE} : std::uint32_t{KVFERRY_ACCESS_LOCAL};
    value_or_give_up(node.register_region(region), "register a region");
    buffers.entries.push_back(static_cast<std::uint8_t*>(memory));
  }
  return buffers;
}

Pool make_pool(const Options& job, const Buffers& buffers) {
  Pool pool;
  pool.model = "peerbench";
  pool.kind = "MLA";
  pool.layers_total = static_cast<std::uint32_t>(job.entries);
  pool.stage = {0, pool.layers_total};
  for (std::uint32_t layer = 0; layer < pool.layers_total; ++layer) {
    Entry entry;
    entry.role = Role::latent;
    entry.layer = layer;
    entry.dtype = DType::uint8;
    entry.base_address = reinterpret_cast<std::uint64_t>(buffers.entries[layer]);
    entry.pitch_bytes = buffers.pitch;
    entry.item_length_bytes = job.bytes;
    entry.index_count = job.pool_pages();
    pool.entries.push_back(entry);
  }
  return pool;
}

std::uint64_t pattern_word(const Options& job, std::uint64_t entry, std::uint64_t page, std::uint64_t word, std::uint64_t round) {
  return (((entry * job.pool_pages() + page) * (job.bytes / 8) + word + 1) * 0x9E3779B97F4A7C15u) ^ (round * 0xD1B54A32D192ED03u);
}

void fill_source(const Options& job, const Buffers& source, std::uint64_t round) {
  for (std::uint64_t e = 0; e < job.entries; ++e) {
    for (std::uint64_t page = 0; page < job.pool_pages(); ++page) {
      std::uint8_t* bytes = source.entries[e] + page * source.pitch;
      for (std::uint64_t w = 0; w < job.bytes / 8; ++w) {
        const std::uint64_t word = pattern_word(job, e, page, w, round);
        std::memcpy(bytes + w * 8, &word, 8);
      }
    }
  }
}

/// Every wanted byte arrived and no other byte of the pool changed.
bool target_is_right(const Options& job, const Buffers& target, std::uint64_t round) {
  constexpr std::uint64_t kNotWritten = ~std::uint64_t{0};
  const std::vector<std::uint64_t> from = page_list(job, 2 * job.seed + 1), to = page_list(job, 2 * job.seed + 2);
  std::vector<std::uint64_t> source_of(job.pool_pages(), kNotWritten);
  for (std::uint64_t i = 0; i < job.pages; ++i) source_of[to[i]] = from[i];
  for (std::uint64_t e = 0; e < job.entries; ++e) {
    for (std::uint64_t page = 0; page < job.pool_pages(); ++page) {
      const std::uint8_t* bytes = target.entries[e] + page * target.pitch;
      const std::uint64_t wanted = source_of[page] == kNotWritten ? 0 : job.bytes;
      for (std::uint64_t w = 0; w < wanted / 8; ++w) {
        const std::uint64_t word = pattern_word(job, e, source_of[page], w, round);
        if (std::memcmp(bytes + w * 8, &word, 8) != 0) return false;
      }
      if (!std::all_of(bytes + wanted, bytes + target.pitch, [](std::uint8_t byte) { return byte == kUntouched; })) return false;
    }
  }
  return true;
}

// ---- control socket between the two processes

enum class Order : std::uint64_t { reset, announce, check };
struct Command {
  Order order = Order::reset;
  std::uint64_t round = 0, first_room = 0, rooms = 0;
};
struct Answer {
  double cpu_s = 0;
  std::uint64_t right = 0;
};

void send_bytes(int socket, const void* bytes, std::size_t count) {
  if (send(socket, bytes, count, MSG_NOSIGNAL) != static_cast<ssize_t>(count)) give_up(std::string("control socket: send: ") + std::strerror(errno));
}
bool receive_bytes(int socket, void* bytes, std::size_t count) {
  return count == 0 || recv(socket, bytes, count, MSG_WAITALL) == static_cast<ssize_t>(count);
}
template <class T>
T receive(int socket) {
  T value{};
  if (!receive_bytes(socket, &value, sizeof value)) give_up("the target process ended");
  return value;
}

std::unique_ptr<Node> open_node(const Options& job, bool is_target) {
  NodeOptions options;
  options.backend = job.backend;
  options.engine.name = is_target ? "target" : "initiator";
  options.engine.lane = job.lane();
  options.listen = is_target ? "127.0.0.1:0" : "";
  return value_or_give_up(Node::open(std::move(options)), "open an engine");
}

void drop_events(Node& node) {
  std::vector<Event> events(64);
  while (node.poll(events) == events.size()) {
  }
}

// ---- target

class Target {
 public:
  Target(const Options& job, int control)
      : job_(job), control_(control), node_(open_node(job, true)), buffers_(make_buffers(job, *node_, true)), list_(page_list(job, 2 * job.seed + 2)) {
    if (job.mode == "pages") value_or_give_up(node_->set_pool(make_pool(job, buffers_)), "declare the target pool");
    const std::string& address = node_->session_id();
    const std::uint64_t length = address.size();
    send_bytes(control_, &length, sizeof length);
    send_bytes(control_, address.data(), address.size());
    send_bytes(control_, buffers_.entries.data(), buffers_.entries.size() * sizeof(std::uint8_t*));
    writers_ = value_or_give_up(node_->wait_peers(1, kGuard), "wait for the initiator");
  }

  void serve() {
    Command command;
    while (receive_bytes(control_, &command, sizeof command)) {
      if (command.order == Order::reset) {
        for (std::uint8_t* entry : buffers_.entries) std::memset(entry, kUntouched, buffers_.entry_bytes);
        if (job_.announce == "before") expect(command);
        send_bytes(control_, &(answer_ = {cpu_seconds(), 0}), sizeof answer_);
      } else if (command.order == Order::announce) {
        expect(command);
      } else {
        const double cpu_s = cpu_seconds();
        for (const TransferId id : expected_) {
          const Node::Outcome outcome = value_or_give_up(node_->wait(id, kGuard), "wait for the request's end at the target");
          if (outcome.error) give_up("request at the target: " + outcome.error->text);
        }
        expected_.clear();
        drop_events(*node_);
        send_bytes(control_, &(answer_ = {cpu_s, target_is_right(job_, buffers_, command.round) ? 1u : 0u}), sizeof answer_);
      }
    }
  }

 private:
  void expect(const Command& command) {
    if (job_.mode != "pages") return;
    for (std::uint64_t i = 0; i < command.rooms; ++i) {
      Expectation expectation;
      expectation.room = command.first_room + i;
      expectation.writers = writers_;
      expectation.indices[static_cast<std::size_t>(IndexSpace::pages)] = list_;
      expectation.deadline_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(kGuard).count());
      expected_.push_back(value_or_give_up(node_->expect(std::move(expectation)), "expect a request"));
    }
  }

  const Options& job_;
  int control_;
  std::unique_ptr<Node> node_;
  Buffers buffers_;
  std::vector<std::uint64_t> list_;
  std::vector<PeerId> writers_;
  std::vector<TransferId> expected_;
  Answer answer_;
};

// ---- initiator

class Initiator {
 public:
  Initiator(const Options& job, int control)
      : job_(job), control_(control), node_(open_node(job, false)), buffers_(make_buffers(job, *node_, false)),
        source_list_(page_list(job, 2 * job.seed + 1)), target_list_(page_list(job, 2 * job.seed + 2)), target_entries_(job.entries) {
    if (job.mode == "pages") value_or_give_up(node_->set_pool(make_pool(job, buffers_)), "declare the source pool");
    std::string address(receive<std::uint64_t>(control_), '\0');
    if (!receive_bytes(control_, address.data(), address.size()) ||
        !receive_bytes(control_, target_entries_.data(), target_entries_.size() * sizeof(std::uint64_t))) {
      give_up("the target process ended");
    }
    const Clock::time_point begin = Clock::now();
    peer_ = value_or_give_up(node_->open_peer(address, kGuard), "connect");
    lane_ = value_or_give_up(node_->wait_peer(peer_, kGuard), "connect").lane;
    connect_s_ = std::chrono::duration<double>(Clock::now() - begin).count();
  }

  struct Round {
    double seconds = 0, cpu_s = 0, target_cpu_s = 0;
    bool verified = false;
  };
  Round run(std::uint64_t round, std::uint64_t repeats) {
    Command command{Order::reset, round, round * kRoomsPerRound + 1, repeats};
    fill_source(job_, buffers_, round);
    send_bytes(control_, &command, sizeof command);
    const double target_before_s = receive<Answer>(control_).cpu_s;
    const double cpu_before_s = cpu_seconds();
    const Clock::time_point begin = Clock::now();
    for (std::uint64_t i = 0; i < repeats; ++i) request(command.first_room + i);
    Round result;
    const double count = static_cast<double>(repeats);
    result.seconds = std::chrono::duration<double>(Clock::now() - begin).count() / count;
    result.cpu_s = (cpu_seconds() - cpu_before_s) / count;
    command.order = Order::check;
    send_bytes(control_, &command, sizeof command);
    const Answer answer = receive<Answer>(control_);
    result.target_cpu_s = (answer.cpu_s - target_before_s) / count;
    result.verified = answer.right == 1;
    drop_events(*node_);
    return result;
  }

  const std::string& lane() const { return lane_; }
  double connect_s() const { return connect_s_; }

 private:
  void request(std::uint64_t room) {
    if (job_.mode == "pages" && job_.announce == "timed") {
      const Command command{Order::announce, 0, room, 1};
      send_bytes(control_, &command, sizeof command);
    }
    const TransferId id = job_.mode == "pages" ? submit_pages(room) : submit_addresses();
    const Node::Outcome outcome = value_or_give_up(node_->wait(id, kGuard), "wait for the request's end");
    if (outcome.error) give_up("request: " + outcome.error->text);
  }

  TransferId submit_pages(std::uint64_t room) {
    PagedTransfer transfer;
    transfer.peer = peer_;
    transfer.room = room;
    transfer.indices[static_cast<std::size_t>(IndexSpace::pages)] = source_list_;
    transfer.deadline_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(kGuard).count());
    return value_or_give_up(node_->submit(std::move(transfer)), "submit");
  }

  TransferId submit_addresses() {
    RawTransfer transfer;
    transfer.peer = peer_;
    transfer.writes.reserve(job_.entries * job_.pages);
    for (std::uint64_t e = 0; e < job_.entries; ++e) {
      const std::uint64_t source = reinterpret_cast<std::uint64_t>(buffers_.entries[e]), target = target_entries_[e];
      for (std::uint64_t i = 0; i < job_.pages; ++i) {
        transfer.writes.push_back({source + source_list_[i] * job_.bytes, target + target_list_[i] * job_.target_pitch, job_.bytes, KVFERRY_OP_WRITE});
      }
    }
    transfer.deadline_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(kGuard).count());
    return value_or_give_up(node_->submit(std::move(transfer)), "submit");
  }

  const Options& job_;
  int control_;
  std::unique_ptr<Node> node_;
  Buffers buffers_;
  std::vector<std::uint64_t> source_list_, target_list_, target_entries_;
  PeerId peer_{};
  std::string lane_;
  double connect_s_ = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool measure(const Options& job, int control) {
  Initiator initiator(job, control);
  const Initiator::Round first = initiator.run(0, 1);  // the first request ever is reported apart
  bool verified = first.verified;
  std::vector<double> seconds, cpu_s, target_cpu_s;
  for (std::uint64_t round = 1; round <= job.rounds; ++round) {
    const Initiator::Round result = initiator.run(round, job.burst);
    seconds.push_back(result.seconds);
    cpu_s.push_back(result.cpu_s);
    target_cpu_s.push_back(result.target_cpu_s);
    verified = verified && result.verified;
  }
  const nlohmann::ordered_json report = {
      {"engine", "kvferry"},
      {"mode", job.mode},
      {"tls", job.tls},
      {"lane", initiator.lane()},
      {"memory", job.memory},
      {"announce", job.announce},
      {"shape",
       {{"entries", job.entries}, {"pages", job.pages}, {"bytes", job.bytes}, {"run_length", job.run_length}, {"seed", job.seed},
        {"target_pitch", job.target_pitch}}},
      {"seconds", seconds},
      {"pieces", job.entries * job.pages},
      {"bytes", job.entries * job.pages * job.bytes},
      {"cpu_s", median(cpu_s)},
      {"target_cpu_s", median(target_cpu_s)},
      {"verified", verified},
      {"setup", {{"first_request_s", first.seconds}, {"connect_s", initiator.connect_s()}}},
  };
  std::printf("%s\n", report.dump().c_str());
  return verified;
}

void add_options(CLI::App& app, Options& job) {
  app.add_option("--entries", job.entries, "buffers per pool")->required()->check(CLI::Range(1u, 65536u));
  app.add_option("--pages", job.pages, "pages of a request")->required()->check(CLI::PositiveNumber);
  app.add_option("--bytes", job.bytes, "bytes per piece, a multiple of 8")->required()->check(CLI::PositiveNumber);
  app.add_option("--run-length", job.run_length, "mean length of page runs")->check(CLI::PositiveNumber);
  app.add_option("--seed", job.seed);
  app.add_option("--target-pitch", job.target_pitch, "bytes between target pages; 0: --bytes");
  app.add_option("--tls", job.tls, "lane: default, shm, tcp, mapped ...");
  app.add_option("--rounds", job.rounds)->check(CLI::Range(1u, 1000u));
  app.add_option("--burst", job.burst, "requests per round; a round reports their mean")->check(CLI::Range(1u, 100'000u));
  app.add_option("--backend", job.backend);
  app.add_option("--memory", job.memory, "of the target: private, or allocated by kvferry")->check(CLI::IsMember({"private", "allocated"}));
  app.add_option("--mode", job.mode, "a request is page lists, or a list of addresses")->check(CLI::IsMember({"pages", "addresses"}));
  app.add_option("--announce", job.announce, "the target's announcement is made before the clock starts, or timed")->check(CLI::IsMember({"before", "timed"}));
}

}  // namespace

int main(int argc, char** argv) {
  Options job;
  CLI::App app{"kvferry on the comparison harness's job; prints one JSON line"};
  add_options(app, job);
  CLI11_PARSE(app, argc, argv);
  if (job.target_pitch == 0) job.target_pitch = job.bytes;
  if (job.bytes % 8 != 0 || job.target_pitch < job.bytes) give_up("--bytes must be a multiple of 8 and --target-pitch at least --bytes");

  int control[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, control) != 0) give_up(std::string("socketpair: ") + std::strerror(errno));
  // The child is made before any engine exists: an engine refuses to work after fork.
  const pid_t child = fork();
  if (child < 0) give_up(std::string("fork: ") + std::strerror(errno));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(control[0]);
    Target(job, control[1]).serve();
    return 0;
  }
  close(control[1]);
  const bool verified = measure(job, control[0]);
  close(control[0]);  // the target's loop ends here
  int status = 0;
  waitpid(child, &status, 0);
  return verified && status == 0 ? 0 : 1;
}
