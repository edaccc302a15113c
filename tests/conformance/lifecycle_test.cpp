// The backend as an object: create, settings, structs of other sizes, wrong calls, waiting, threads, fork, end.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "harness.h"

using namespace conformance;

namespace {

const kvferry_backend_table& table() { return *plugin().table; }

kvferry_backend* create_raw() {
  kvferry_backend* backend = nullptr;
  kvferry_error error{};
  error.struct_size = sizeof(error);
  if (table().create(host().table(), nullptr, 0, &backend, &error) != KVFERRY_OK) FAIL(error.text);
  return backend;
}

}  // namespace

TEST_CASE("a setting that is not known is refused by its name and value") {
  const auto error = refused(Backend::create(plugin(), host(), {{"no_such_setting", "forty-two"}}), ErrorCode::invalid_argument);
  CHECK(error.text.find("no_such_setting") != std::string::npos);
  CHECK(error.text.find("forty-two") != std::string::npos);
  (void)refused(kvferry::probe_devices(plugin(), host(), {{"no_such_setting", "1"}}), ErrorCode::invalid_argument);
}

TEST_CASE("the effective configuration is one JSON object, whatever the capacity of the first call") {
  Side side;
  const auto config = nlohmann::json::parse(ok(side->effective_config()));
  CHECK(config.is_object());
  CHECK_FALSE(config.empty());
  std::uint32_t needed = 0;
  char text[4] = {'x', 'x', 'x', 'x'};
  kvferry_error error{};
  error.struct_size = sizeof(error);
  CHECK(table().effective_config(side->handle(), nullptr, 0, &needed, &error) == KVFERRY_OK);
  CHECK(needed > sizeof(text));
  CHECK(table().effective_config(side->handle(), text, sizeof(text), &needed, &error) >= KVFERRY_ERROR_INVALID_ARGUMENT);
  CHECK(std::string(text, 4) == "xxxx");
}

TEST_CASE("probe names every device, and the reason where it is not usable") {
  const auto devices = ok(kvferry::probe_devices(plugin(), host(), {}));
  CHECK_FALSE(devices.empty());
  for (const auto& device : devices) {
    INFO(device.name);
    CHECK(device.name[0] != '\0');
    CHECK((device.reason[0] != '\0') == (device.usable == 0));
    if (device.usable != 0) CHECK(device.lane[0] != '\0');
  }
}

TEST_CASE("limits are usable") {
  Side side;
  const auto& limits = side->limits();
  CHECK(limits.message_bytes_max >= 4096);
  CHECK(limits.pieces_per_write_max >= 1);
  CHECK(limits.writes_per_batch_max >= 1);
  CHECK(limits.pieces_per_batch_max >= limits.pieces_per_write_max);
  CHECK(limits.batches_in_flight_max >= 1);
  CHECK((limits.bytes_in_flight_max == 0 || limits.bytes_in_flight_max >= limits.message_bytes_max));
  CHECK(limits.endpoint_bytes_max >= 1);
  CHECK(limits.regions_max >= 1);
  CHECK(limits.done_means[0] != '\0');
  CHECK(side->has(KVFERRY_CAP_WRITE));
  CHECK(side->has(KVFERRY_CAP_TRUE_ONE_SIDED) != side->has(KVFERRY_CAP_NEEDS_TARGET_PROGRESS));
}

TEST_CASE("a backend with an open peer is destroyed by force alone") {
  kvferry_backend* const backend = create_raw();
  kvferry_peer_options options{};
  options.struct_size = sizeof(options);
  const std::string lane = environment().lane;
  options.lane = lane.c_str();
  kvferry_peer peer = 0;
  REQUIRE(table().peer_create(backend, &options, &peer, nullptr) == KVFERRY_OK);
  kvferry_error error{};
  error.struct_size = sizeof(error);
  CHECK(table().destroy(backend, 0, &error) == KVFERRY_ERROR_BUSY);
  CHECK(error.code == KVFERRY_ERROR_BUSY);
  CHECK(error.text[0] != '\0');
  CHECK(table().peer_close(backend, peer, KVFERRY_CLOSE_FORCE, 0, nullptr) == KVFERRY_OK);
  kvferry_status status = KVFERRY_ERROR_BUSY;
  for (int step = 0; step < 1'000'000 && status == KVFERRY_ERROR_BUSY; ++step) {
    std::uint32_t worked = 0;
    CHECK(table().progress(backend, &worked, nullptr) == KVFERRY_OK);
    status = table().destroy(backend, 0, nullptr);
  }
  CHECK(status == KVFERRY_OK);

  kvferry_backend* const second = create_raw();
  REQUIRE(table().peer_create(second, &options, &peer, nullptr) == KVFERRY_OK);
  CHECK(table().destroy(second, 1, nullptr) == KVFERRY_OK);
}

TEST_CASE("a backend can be destroyed at any moment, and nothing is left of it") {
  const auto cycle = [](int phase) {
    Pair pair(1u << 18);
    if (phase >= 1) {
      Batch batch;
      batch.write(pair.source, 0, pair.target, 0, 1u << 18).room(1).notify();
      if (phase >= 2) {
        run_done(pair.a, pair.to_b(), batch, pair.both);
      } else {
        REQUIRE(ok(pair.a->submit(pair.to_b(), batch.c())).writes > 0);
        drive_steps(pair.both, 1);
      }
    }
  };
  for (int warm_up = 0; warm_up < 6; ++warm_up) cycle(warm_up % 3);
  const int files = open_files();
  const int running = threads();
  const int cycles = static_cast<int>(std::max<std::uint32_t>(environment().rounds / 100, 20));
  for (int i = 0; i < cycles; ++i) cycle(i % 3);
  CHECK(open_files() <= files);
  CHECK(threads() <= running);
}

TEST_CASE("creating fails without leaving anything behind") {
  const int files = open_files();
  const int running = threads();
  for (int i = 0; i < 20; ++i) CHECK_FALSE(Backend::create(plugin(), host(), {{"no_such_setting", "1"}}));
  CHECK(open_files() <= files);
  CHECK(threads() <= running);
}

TEST_CASE("the self test passes, beside a peer that is at work") {
  Pair pair;
  if (table().self_test == nullptr) return skip("the plugin has no self_test");
  Batch batch;
  batch.write(pair.source, 0, pair.target, 0, 4096).room(1).notify();
  REQUIRE(ok(pair.a->submit(pair.to_b(), batch.c())).all);
  ok(pair.a->self_test());
  drive(
      pair.both, [&] { return pair.a.terminal(batch.c().tag) != nullptr && pair.b.count(KVFERRY_EVENT_NOTIFICATION) == 1; },
      "the batch ends beside a self test");
  CHECK(pair.a.terminal(batch.c().tag)->kind == KVFERRY_EVENT_BATCH_DONE);
  ok(pair.a->self_test());
}

TEST_CASE("a forked child is refused and the parent goes on") {
  Pair pair;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Plain calls and _exit only: the child of a process with threads may do little else.
    std::uint32_t worked = 0;
    const bool raw = table().progress(pair.a->handle(), &worked, nullptr) == KVFERRY_ERROR_FORKED;
    const auto wrapped = pair.a->progress();
    _exit(raw && !wrapped && wrapped.error().code == ErrorCode::forked ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  Batch batch;
  batch.write(pair.source, 0, pair.target, 0, 4096);
  run_done(pair.a, pair.to_b(), batch, pair.both);
}

TEST_CASE("whoever waits on the armed event fd is woken by the other side") {
  Pair pair;
  if (!needs(*pair.b, KVFERRY_CAP_EVENT_FD, "an event fd")) return;
  const int fd = ok(pair.b->event_fd());
  for (std::uint32_t round = 0; round < 50; ++round) {
    drive(
        pair.both, [&] { return ok(pair.b->arm()); }, "an idle backend can be armed");
    Batch batch;
    batch.write(pair.source, 0, pair.target, 0, 64).room(1).notify(round);
    REQUIRE(ok(pair.a->submit(pair.to_b(), batch.c())).all);
    pollfd wait{fd, POLLIN, 0};
    for (int turn = 0; turn < 3'000 && (wait.revents & POLLIN) == 0; ++turn) {  // one generous guard, in turns of 10 ms
      pair.a.step();
      (void)poll(&wait, 1, 10);
    }
    if ((wait.revents & POLLIN) == 0) FAIL("not woken in round " << round);
    drive(
        pair.both, [&] { return pair.b.count(KVFERRY_EVENT_NOTIFICATION) == round + 1; }, "the notification arrives");
  }
  // Events that were not polled are work: waiting would be wrong.
  Batch last;
  last.room(1).notify(50);
  REQUIRE(ok(pair.a->submit(pair.to_b(), last.c())).all);
  for (int step = 0; step < 1'000'000 && pair.b->stats().notifications_received < 51; ++step) {
    pair.a.step();
    (void)ok(pair.b->progress());
  }
  CHECK_FALSE(ok(pair.b->arm()));
}

TEST_CASE("stats may be read by any thread while the backend works") {
  Pair pair(1u << 18);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> reads{0};
  std::thread reader([&] {
    std::uint64_t last = 0;
    while (!stop) {
      const auto stats = pair.a->stats();
      if (stats.bytes < last) return;  // never going back is what a reader can check; the count below shows it
      last = stats.bytes;
      ++reads;
    }
    reads |= std::uint64_t{1} << 63;
  });
  for (int i = 0; i < 200 || reads < 100; ++i) {
    Batch batch;
    batch.write(pair.source, 0, pair.target, 0, 4096);
    run_done(pair.a, pair.to_b(), batch, pair.both);
    pair.a.events.clear();
  }
  stop = true;
  reader.join();
  CHECK((reads >> 63) == 1);
}

TEST_CASE("two backends on two threads move data and keep their promises") {
  constexpr std::uint64_t kPiece = 4096, kPieces = 64;
  const std::uint32_t rounds = std::max<std::uint32_t>(environment().rounds / 20, 50);
  Pair pair(kPiece * kPieces);
  std::atomic<bool> failed{false};
  // The target's thread: sees a notification, checks the bytes, says so by a notification of its own.
  std::thread target([&] {
    std::uint32_t expected = 0;
    for (std::uint64_t step = 0; step < 200'000'000 && expected < rounds && !failed; ++step) {
      kvferry_event events[8];
      const auto worked = pair.b->progress();
      const auto count = pair.b->poll(events);
      if (!worked || !count) failed = true;
      for (std::uint32_t i = 0; count && i < *count; ++i) {
        if (events[i].kind != KVFERRY_EVENT_NOTIFICATION) continue;
        const std::uint64_t at = (expected % kPieces) * kPiece;
        for (std::uint64_t byte = 0; byte < kPiece; ++byte) {
          if (pair.target.data()[at + byte] != pattern(expected, at + byte)) failed = true;
        }
        if (events[i].notification.chunk != expected) failed = true;
        ++expected;
        kvferry_batch answer{};
        answer.struct_size = sizeof(answer);
        answer.flags = KVFERRY_BATCH_NOTIFY;
        answer.room = answer.notification.room = 2;
        answer.notification.chunk = expected;
        for (auto accepted = pair.b->submit(pair.to_a(), answer); accepted && !accepted->all; accepted = pair.b->submit(pair.to_a(), answer)) {
          (void)pair.b->progress();
        }
      }
    }
    if (expected != rounds) failed = true;
    while (!failed && pair.b->stats().batches_done < rounds) (void)pair.b->progress();
  });
  std::uint32_t answered = 0;
  for (std::uint32_t round = 0; round < rounds && !failed; ++round) {
    const std::uint64_t at = (round % kPieces) * kPiece;
    pair.source.fill(round, at, kPiece);
    Batch batch;
    batch.write(pair.source, at, pair.target, at, kPiece).room(1).notify(round);
    (void)submit(pair.a, pair.to_b(), batch, {&pair.a});
    const auto answers = [&] {
      answered += static_cast<std::uint32_t>(pair.a.count(KVFERRY_EVENT_NOTIFICATION));
      pair.a.events.clear();
      return answered > round || failed;
    };
    drive({&pair.a}, answers, "the other thread answers");
  }
  target.join();
  CHECK_FALSE(failed);
  CHECK(answered == rounds);
}

TEST_CASE("structs of an older or newer host are filled as far as both know them") {
  Pair pair;
  kvferry_backend* const backend = pair.a->handle();
  kvferry_limits limits;
  std::memset(&limits, 0x77, sizeof(limits));
  limits.struct_size = 16;  // struct_size, capabilities, message_bytes_max
  REQUIRE(table().query(backend, &limits, nullptr) == KVFERRY_OK);
  CHECK(limits.struct_size == 16);
  CHECK(limits.capabilities == pair.a->limits().capabilities);
  CHECK(limits.message_bytes_max == pair.a->limits().message_bytes_max);
  CHECK(limits.pieces_per_write_max == 0x77777777u);

  struct {
    kvferry_stats known;
    std::uint64_t newer[4];
  } stats;
  std::memset(&stats, 0x77, sizeof(stats));
  stats.known.struct_size = sizeof(stats);
  REQUIRE(table().stats(backend, &stats.known, nullptr) == KVFERRY_OK);
  CHECK(stats.known.struct_size == sizeof(stats));
  CHECK(stats.known.peers == 1);
  for (const auto word : stats.newer) CHECK(word == 0);

  Batch batch;
  batch.write(pair.source, 0, pair.target, 0, 64).room(1).notify(1);
  kvferry_batch older = batch.c();
  older.struct_size = static_cast<std::uint32_t>(offsetof(kvferry_batch, notification));
  older.flags = 0;
  for (int i = 0; i < 3; ++i) {
    std::uint32_t accepted = 0;
    older.tag = next_tag();
    REQUIRE(table().submit(backend, pair.to_b(), &older, &accepted, nullptr) == KVFERRY_OK);
    CHECK(accepted == 1);
  }
  for (int step = 0; step < 1'000'000 && pair.a->stats().batches_done < 3; ++step) {
    (void)ok(pair.a->progress());
    (void)ok(pair.b->progress());
  }
  struct Event {
    kvferry_event known;
    std::uint64_t newer[2];
  } events[4];
  std::memset(events, 0x77, sizeof(events));
  for (auto& event : events) event.known.struct_size = sizeof(event);
  std::uint32_t count = 0, polled = 0;
  for (int step = 0; step < 1'000 && polled < 3; ++step) {
    REQUIRE(table().poll(backend, &events[polled].known, 4 - polled, &count, nullptr) == KVFERRY_OK);
    polled += count;
    (void)ok(pair.a->progress());
  }
  REQUIRE(polled == 3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    CHECK(events[i].known.kind == KVFERRY_EVENT_BATCH_DONE);
    CHECK(events[i].known.peer == pair.to_b());
    CHECK(events[i].newer[0] == 0);
    CHECK(events[i].newer[1] == 0);
  }
}

TEST_CASE("a call without what it needs is refused, not crashed") {
  Pair pair;
  kvferry_backend* const backend = pair.a->handle();
  const kvferry_peer peer = pair.to_b();
  const kvferry_status bad = KVFERRY_ERROR_INVALID_ARGUMENT;
  kvferry_batch batch{};
  batch.struct_size = sizeof(batch);
  batch.write_count = 1;
  std::uint32_t accepted = 0;
  CHECK(table().create(nullptr, nullptr, 0, nullptr, nullptr) == bad);
  CHECK(table().create(host().table(), nullptr, 0, nullptr, nullptr) == bad);
  CHECK(table().query(backend, nullptr, nullptr) == bad);
  CHECK(table().effective_config(backend, nullptr, 0, nullptr, nullptr) == bad);
  CHECK(table().register_region(backend, nullptr, nullptr, nullptr) == bad);
  CHECK(table().export_regions(backend, nullptr, 1, nullptr, 0, nullptr, nullptr) == bad);
  CHECK(table().peer_create(backend, nullptr, nullptr, nullptr) == bad);
  CHECK(table().peer_export(backend, peer, nullptr, 0, nullptr, nullptr) == bad);
  CHECK(table().import_regions(backend, peer, nullptr, 100, nullptr) == bad);
  CHECK(table().forget_regions(backend, peer, nullptr, 1, nullptr) == bad);
  CHECK(table().peer_state(backend, peer, nullptr, nullptr) == bad);
  CHECK(table().peer_close(backend, peer, 17, 0, nullptr) == bad);
  CHECK(table().submit(backend, peer, nullptr, &accepted, nullptr) == bad);
  CHECK(table().submit(backend, peer, &batch, nullptr, nullptr) == bad);
  CHECK(table().submit(backend, peer, &batch, &accepted, nullptr) == bad);
  CHECK(table().progress(backend, nullptr, nullptr) == bad);
  CHECK(table().poll(backend, nullptr, 4, &accepted, nullptr) == bad);
  CHECK(table().stats(backend, nullptr, nullptr) == bad);
  CHECK(table().progress(nullptr, &accepted, nullptr) == bad);
  kvferry_limits sizeless{};
  CHECK(table().query(backend, &sizeless, nullptr) == bad);
  Batch good;
  good.write(pair.source, 0, pair.target, 0, 64);
  run_done(pair.a, pair.to_b(), good, pair.both);
}

TEST_CASE("poll gives the oldest first, as many as there is room for") {
  Pair pair;
  for (std::uint32_t i = 0; i < 5; ++i) {
    Batch batch;
    batch.room(1).notify(i);
    REQUIRE(ok(pair.a->submit(pair.to_b(), batch.c())).all);
  }
  for (int step = 0; step < 1'000'000 && pair.b->stats().notifications_received < 5; ++step) {
    pair.a.step();
    (void)ok(pair.b->progress());
  }
  CHECK(ok(pair.b->poll({})) == 0);
  std::uint32_t expected = 0;
  for (const std::size_t room : {1u, 3u, 8u}) {
    std::vector<kvferry_event> events(room);
    const auto count = ok(pair.b->poll(events));
    for (std::uint32_t i = 0; i < count; ++i) {
      if (events[i].kind == KVFERRY_EVENT_NOTIFICATION) CHECK(events[i].notification.chunk == expected++);
    }
  }
  CHECK(expected == 5);
}
