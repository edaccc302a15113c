// What the engine core and the C ABI add to each write: an engine over a backend that takes every batch and says "done" at the next progress, against
// a loop that only fills the same batches from the same plan. The difference per write is the goal of design.md section 12 (at most 30 ns).
#include <benchmark/benchmark.h>

#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <random>

#include "kvferry/engine.h"

namespace kvferry {
namespace {

// ---- a backend without a wire: accepts whole batches, completes them in order

struct Wireless {
  std::deque<kvferry_event> events;
  kvferry_peer next_peer = 1;
  kvferry_region next_region = 1;
};

Wireless& self(kvferry_backend* backend) { return *reinterpret_cast<Wireless*>(backend); }

kvferry_event event_of(std::uint32_t kind, kvferry_peer peer) {
  kvferry_event event{};
  event.struct_size = sizeof event;
  event.kind = kind;
  event.peer = peer;
  return event;
}

kvferry_status one_byte(void* blob, std::uint64_t capacity, std::uint64_t* ret_bytes) {
  if (capacity != 0) *static_cast<std::uint8_t*>(blob) = 1;
  *ret_bytes = 1;
  return KVFERRY_OK;
}

const kvferry_backend_table& wireless_table() {
  static const kvferry_backend_table table = [] {
    kvferry_backend_table t{};
    t.struct_size = sizeof t;
    t.magic = KVFERRY_BACKEND_MAGIC;
    t.abi_major = KVFERRY_BACKEND_ABI_MAJOR;
    t.abi_minor = KVFERRY_BACKEND_ABI_MINOR;
    t.name = "wireless";
    t.version = "1";
    t.build = "";
    t.probe = [](const kvferry_host*, const kvferry_setting*, std::uint32_t, kvferry_device*, std::uint32_t, std::uint32_t* count, kvferry_error*) {
      *count = 0;
      return kvferry_status{KVFERRY_OK};
    };
    t.create = [](const kvferry_host*, const kvferry_setting*, std::uint32_t, kvferry_backend** backend, kvferry_error*) {
      *backend = reinterpret_cast<kvferry_backend*>(new Wireless);
      return kvferry_status{KVFERRY_OK};
    };
    t.destroy = [](kvferry_backend* backend, std::uint32_t, kvferry_error*) {
      delete &self(backend);
      return kvferry_status{KVFERRY_OK};
    };
    t.query = [](kvferry_backend*, kvferry_limits* limits, kvferry_error*) {
      limits->capabilities = KVFERRY_CAP_WRITE;
      limits->message_bytes_max = 1u << 30;
      limits->pieces_per_write_max = 1;
      limits->writes_per_batch_max = limits->pieces_per_batch_max = 4096;
      limits->batches_in_flight_max = 64;
      limits->endpoint_bytes_max = 16;
      limits->regions_max = 1024;
      limits->alignment_bytes = 4096;
      return kvferry_status{KVFERRY_OK};
    };
    t.effective_config = [](kvferry_backend*, char* text, std::uint32_t capacity, std::uint32_t* bytes, kvferry_error*) {
      *bytes = 3;
      if (capacity >= 3) std::memcpy(text, "{}", 3);
      return kvferry_status{KVFERRY_OK};
    };
    t.register_region = [](kvferry_backend* backend, const kvferry_region_desc*, kvferry_region* region, kvferry_error*) {
      *region = self(backend).next_region++;
      return kvferry_status{KVFERRY_OK};
    };
    t.deregister_region = [](kvferry_backend*, kvferry_region, std::uint32_t, kvferry_error*) { return kvferry_status{KVFERRY_OK}; };
    t.export_regions = [](kvferry_backend*, const kvferry_region*, std::uint32_t, void* blob, std::uint64_t capacity, std::uint64_t* bytes,
                          kvferry_error*) { return one_byte(blob, capacity, bytes); };
    t.peer_create = [](kvferry_backend* backend, const kvferry_peer_options*, kvferry_peer* peer, kvferry_error*) {
      *peer = self(backend).next_peer++;
      return kvferry_status{KVFERRY_OK};
    };
    t.peer_export = [](kvferry_backend*, kvferry_peer, void* blob, std::uint64_t capacity, std::uint64_t* bytes, kvferry_error*) {
      return one_byte(blob, capacity, bytes);
    };
    t.peer_connect = [](kvferry_backend* backend, kvferry_peer peer, const void*, std::uint64_t, std::uint64_t, kvferry_error*) {
      self(backend).events.push_back(event_of(KVFERRY_EVENT_PEER_UP, peer));
      return kvferry_status{KVFERRY_OK};
    };
    t.import_regions = [](kvferry_backend*, kvferry_peer, const void*, std::uint64_t, kvferry_error*) { return kvferry_status{KVFERRY_OK}; };
    t.forget_regions = [](kvferry_backend*, kvferry_peer, const kvferry_region*, std::uint32_t, kvferry_error*) { return kvferry_status{KVFERRY_OK}; };
    t.peer_state = [](kvferry_backend*, kvferry_peer, kvferry_peer_info* info, kvferry_error*) {
      std::strcpy(info->lane, "none");
      return kvferry_status{KVFERRY_OK};
    };
    t.peer_close = [](kvferry_backend* backend, kvferry_peer peer, std::uint32_t, std::uint64_t, kvferry_error*) {
      self(backend).events.push_back(event_of(KVFERRY_EVENT_PEER_CLOSED, peer));
      return kvferry_status{KVFERRY_OK};
    };
    t.submit = [](kvferry_backend* backend, kvferry_peer peer, const kvferry_batch* batch, std::uint32_t* accepted, kvferry_error*) {
      benchmark::DoNotOptimize(batch->writes);
      kvferry_event event = event_of(KVFERRY_EVENT_BATCH_DONE, peer);
      event.tag = batch->tag;
      self(backend).events.push_back(event);
      *accepted = batch->write_count;
      return kvferry_status{KVFERRY_OK};
    };
    t.cancel = [](kvferry_backend*, kvferry_peer, std::uint64_t, std::uint32_t, kvferry_error*) { return kvferry_status{KVFERRY_OK}; };
    t.fence = [](kvferry_backend*, kvferry_peer, std::uint64_t, std::uint32_t, std::uint64_t, std::uint64_t, kvferry_error*) {
      return kvferry_status{KVFERRY_OK};
    };
    t.progress = [](kvferry_backend* backend, std::uint32_t* worked, kvferry_error*) {
      *worked = self(backend).events.empty() ? 0 : 1;
      return kvferry_status{KVFERRY_OK};
    };
    t.poll = [](kvferry_backend* backend, kvferry_event* events, std::uint32_t capacity, std::uint32_t* count, kvferry_error*) {
      auto& queue = self(backend).events;
      for (*count = 0; *count < capacity && !queue.empty(); ++*count) {
        events[*count] = queue.front();
        queue.pop_front();
      }
      return kvferry_status{KVFERRY_OK};
    };
    t.stats = [](kvferry_backend*, kvferry_stats*, kvferry_error*) { return kvferry_status{KVFERRY_OK}; };
    return t;
  }();
  return table;
}

// ---- two engines whose links are function calls

struct Wired final : LinkPort, JobPort {
  Engine* own = nullptr;
  Wired* other = nullptr;
  LinkId link{};
  std::deque<session::Message> inbox;
  void connect(LinkId id, std::string_view, std::uint64_t) override { link = id; }
  void send(LinkId, const session::Message& message) override { other->inbox.push_back(message); }
  void close(LinkId) override {}
  void run(std::uint64_t job, std::function<void()> work) override {
    work();
    own->job_done(job);
  }
  void deliver() {
    while (!inbox.empty()) {
      session::Message message = std::move(inbox.front());
      inbox.pop_front();
      own->link_message(link, std::move(message));
    }
  }
};

struct Pair {
  Pair() : host({}), memory(std::size_t{1} << 28) {
    const auto plugin = adopt_plugin(&wireless_table(), "wireless");
    for (int i = 0; i < 2; ++i) {
      backends[i] = std::move(*Backend::create(*plugin, host, {}));
      EngineOptions options;
      options.lease_ns = 3'600'000'000'000;
      engines[i] = std::move(*Engine::create(options, host, *backends[i], ports[i], ports[i]));
      ports[i].own = engines[i].get();
      ports[i].other = &ports[1 - i];
      Backend::RegionRequest request{reinterpret_cast<std::uint64_t>(memory.data()), memory.size()};
      request.access = KVFERRY_ACCESS_REMOTE_WRITE;
      (void)*engines[i]->register_region(request);
    }
    peer = engines[0]->open_peer("there", 0);
    ports[1].link = engines[1]->accept_link("here");
    engines[0]->link_opened(ports[0].link);
    for (int round = 0; round < 10; ++round) step();
  }
  void step() {
    for (int i = 0; i < 2; ++i) {
      ports[i].deliver();
      engines[i]->progress(host.now_ns());
    }
  }
  Host host;
  std::vector<std::uint8_t> memory;
  Wired ports[2];
  std::unique_ptr<Backend> backends[2];
  std::unique_ptr<Engine> engines[2];
  PeerId peer{};
};

std::vector<RawWrite> scattered(const Pair& pair, std::size_t count) {
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
  const auto base = reinterpret_cast<std::uint64_t>(pair.memory.data());
  std::vector<RawWrite> writes(count);
  for (std::size_t i = 0; i < count; ++i) writes[i] = {base + i * 1024, base + order[i] * 1024 + (std::uint64_t{1} << 27), 512};
  return writes;
}

void finish(benchmark::State& state, std::size_t writes) {
  state.counters["ns_per_write"] = benchmark::Counter(static_cast<double>(writes) * static_cast<double>(state.iterations()),
                                                      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// Fill only: what the raw loop over the same writes costs.
void BM_raw_loop(benchmark::State& state) {
  Pair pair;
  const auto writes = scattered(pair, static_cast<std::size_t>(state.range(0)));
  RegionMap regions;
  (void)regions.add({1, reinterpret_cast<std::uint64_t>(pair.memory.data()), pair.memory.size()});
  const auto plan = *Plan::make_raw(writes, regions, regions, {1u << 30, 1});
  std::vector<kvferry_write> elements(512);
  std::vector<kvferry_piece> pieces(1024);
  for (auto _ : state) {
    for (WriteCursor cursor = plan->begin(); !cursor.done();) benchmark::DoNotOptimize(cursor.fill(elements, pieces));
  }
  finish(state, writes.size());
}
BENCHMARK(BM_raw_loop)->Arg(100'000);

// Submit to done through engine and ABI; planning is taken off, it has a benchmark of its own.
void BM_engine(benchmark::State& state) {
  Pair pair;
  const auto writes = scattered(pair, static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    RawTransfer transfer;
    transfer.peer = pair.peer;
    transfer.writes = writes;
    bool done = false;
    std::uint64_t plan_ns = 0;
    const std::uint64_t begin_ns = pair.host.now_ns();
    (void)*pair.engines[0]->submit(std::move(transfer));
    while (!done) {
      pair.engines[0]->progress(pair.host.now_ns());
      Event events[8];
      const std::size_t count = pair.engines[0]->poll(events);
      for (std::size_t i = 0; i < count; ++i) {
        done |= events[i].kind == EventKind::transfer_done;
        if (done) plan_ns = std::max(plan_ns, events[i].figures.plan_ns);
        if (events[i].kind == EventKind::transfer_failed) state.SkipWithError(events[i].error->text.c_str());
      }
    }
    state.SetIterationTime(static_cast<double>(pair.host.now_ns() - begin_ns - plan_ns) * 1e-9);
  }
  finish(state, writes.size());
}
BENCHMARK(BM_engine)->Arg(100'000)->UseManualTime();

}  // namespace
}  // namespace kvferry

BENCHMARK_MAIN();
