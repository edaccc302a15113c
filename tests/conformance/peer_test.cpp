// Peers: connecting, closing, losing, and coming back.
#include <algorithm>

#include "harness.h"

using namespace conformance;

TEST_CASE("a connected peer is up on both sides, once, with the lane it uses") {
  Side a, b;
  const auto peers = connect(a, b);
  drive_steps({&a, &b}, 200);
  CHECK(a.count(KVFERRY_EVENT_PEER_UP) == 1);
  CHECK(b.count(KVFERRY_EVENT_PEER_UP) == 1);
  const auto info = ok(a->peer_state(peers.first));
  CHECK(info.state == KVFERRY_PEER_UP);
  CHECK(std::string(info.lane) != "");
  CHECK(std::string(info.lane) != "auto");
  CHECK(info.last_heard_ns != 0);
  CHECK(info.last_error.code == 0);
  CHECK(ok(b->peer_state(peers.second)).state == KVFERRY_PEER_UP);
}

TEST_CASE("what is submitted before the peer is up waits, and is not lost or taken") {
  Side a, b;
  Buffer source(a, 64, KVFERRY_ACCESS_LOCAL);
  Buffer target(b, 64, KVFERRY_ACCESS_REMOTE_WRITE);
  source.fill(2);
  const auto at_a = new_peer(a);
  const auto at_b = new_peer(b);
  share(b, {target.region()}, a, at_a);
  Batch batch;
  batch.write(source, 0, target, 0, 64);
  auto accepted = ok(a->submit(at_a, batch.c()));
  CHECK(accepted.writes == 0);
  CHECK_FALSE(accepted.all);
  ok(a->peer_connect(at_a, ok(b->peer_export(at_b)), in_seconds(30)));
  ok(b->peer_connect(at_b, ok(a->peer_export(at_a)), in_seconds(30)));
  run_done(a, at_a, batch, {&a, &b});
  CHECK(std::equal(source.data(), source.data() + 64, target.data()));
}

TEST_CASE("connecting to a side that does not answer ends at the deadline") {
  Side a, b;
  const auto at_a = new_peer(a);
  const auto at_b = new_peer(b);
  ok(a->peer_connect(at_a, ok(b->peer_export(at_b)), in_seconds(5)));
  drive_steps({&a, &b}, 200);
  CHECK(a.count(KVFERRY_EVENT_PEER_UP) == 0);
  test_clock().advance(6 * kSecond);
  drive(
      {&a, &b}, [&] { return a.count(KVFERRY_EVENT_PEER_LOST, at_a) == 1; }, "the deadline ends connecting");
  CHECK(a.find(KVFERRY_EVENT_PEER_LOST)->error.code == KVFERRY_ERROR_PEER_LOST);
  CHECK(ok(a->peer_state(at_a)).state == KVFERRY_PEER_FAILED);
  CHECK(ok(a->peer_state(at_a)).last_error.code == KVFERRY_ERROR_PEER_LOST);
  ok(a->peer_close(at_a, KVFERRY_CLOSE_FORCE, 0));
  drive(
      {&a, &b}, [&] { return a.count(KVFERRY_EVENT_PEER_CLOSED, at_a) == 1; }, "the failed peer closes");
}

TEST_CASE("a lane that the backend does not have is refused by name") {
  Side a;
  const auto error = refused(a->peer_create({.lane = "pigeon"}), ErrorCode::unsupported);
  CHECK(error.text.find("pigeon") != std::string::npos);
}

TEST_CASE("ids that are not known are not found, by any entry") {
  Pair pair;
  const kvferry_peer nobody = pair.to_b() + 1'000'000;
  Batch batch;
  batch.write(pair.source, 0, pair.target, 0, 1);
  const auto blob = ok(pair.b->peer_export(pair.to_a()));
  (void)refused(pair.a->submit(nobody, batch.c()), ErrorCode::not_found);
  (void)refused(pair.a->peer_export(nobody), ErrorCode::not_found);
  (void)refused(pair.a->peer_connect(nobody, blob, 0), ErrorCode::not_found);
  (void)refused(pair.a->import_regions(nobody, ok(pair.b->export_regions({}))), ErrorCode::not_found);
  (void)refused(pair.a->forget_regions(nobody, {}), ErrorCode::not_found);
  (void)refused(pair.a->peer_state(nobody), ErrorCode::not_found);
  (void)refused(pair.a->peer_close(nobody, KVFERRY_CLOSE_FORCE, 0), ErrorCode::not_found);
  (void)refused(pair.a->cancel(nobody, 1, 1), ErrorCode::not_found);
  (void)refused(pair.a->fence(nobody, 1, 1, 1, 0), ErrorCode::not_found);
  drive_steps(pair.both, 50);
  run_done(pair.a, pair.to_b(), batch, pair.both);
}

TEST_CASE("a drained close ends what is in flight first, and the other side learns") {
  Pair pair(1u << 20);
  std::vector<std::uint64_t> tags;
  for (int i = 0; i < 3; ++i) {
    Batch batch;
    batch.write(pair.source, 0, pair.target, 0, 262'144).room(1).notify(static_cast<std::uint32_t>(i));
    REQUIRE(ok(pair.a->submit(pair.to_b(), batch.c())).all);
    tags.push_back(batch.c().tag);
  }
  ok(pair.a->peer_close(pair.to_b(), KVFERRY_CLOSE_DRAIN, in_seconds(30)));
  Batch late;
  late.write(pair.source, 0, pair.target, 0, 1);
  (void)refused(pair.a->submit(pair.to_b(), late.c()), ErrorCode::canceled);
  drive(
      pair.both, [&] { return pair.a.count(KVFERRY_EVENT_PEER_CLOSED) == 1; }, "the peer closes");
  const auto* const closed = pair.a.find(KVFERRY_EVENT_PEER_CLOSED);
  CHECK(closed->error.code == 0);
  for (const auto tag : tags) {
    REQUIRE(pair.a.terminal(tag) != nullptr);
    CHECK(pair.a.terminal(tag)->kind == KVFERRY_EVENT_BATCH_DONE);
    CHECK(pair.a.terminal(tag) < closed);
  }
  drive(
      pair.both, [&] { return pair.b.count(KVFERRY_EVENT_PEER_LOST) == 1; }, "the other side learns of it");
  CHECK(pair.b.count(KVFERRY_EVENT_NOTIFICATION) == 3);
  (void)refused(pair.a->peer_state(pair.to_b()), ErrorCode::not_found);
  ok(pair.b->peer_close(pair.to_a(), KVFERRY_CLOSE_DRAIN, in_seconds(30)));
  drive(
      pair.both, [&] { return pair.b.count(KVFERRY_EVENT_PEER_CLOSED) == 1; }, "the other side closes");
  CHECK(pair.a.count(KVFERRY_EVENT_PEER_LOST) == 0);
  CHECK(pair.a->stats().peers == 0);
  CHECK(pair.b->stats().peers == 0);
}

TEST_CASE("a forced close ends everything at once, and nothing is read or landed after it") {
  for (const int steps_before : {0, 1, 5}) {
    INFO(steps_before << " steps before the close");
    Pair pair(4u << 20);
    std::vector<std::uint64_t> tags;
    const std::uint64_t length = std::min<std::uint64_t>(1u << 20, pair.a->limits().message_bytes_max);
    for (std::uint64_t i = 0; i < 4; ++i) {
      Batch batch;
      batch.write(pair.source, i << 20, pair.target, i << 20, length);
      const auto accepted = ok(pair.a->submit(pair.to_b(), batch.c()));
      if (accepted.all) tags.push_back(batch.c().tag);
    }
    drive_steps(pair.both, steps_before);
    ok(pair.a->peer_close(pair.to_b(), KVFERRY_CLOSE_FORCE, in_seconds(30)));
    ok(pair.a->peer_close(pair.to_b(), KVFERRY_CLOSE_FORCE, in_seconds(30)));
    drive(
        pair.both, [&] { return pair.a.count(KVFERRY_EVENT_PEER_CLOSED) == 1; }, "the peer closes");
    pair.source.fill(0xbad);  // nothing of ours is read for it any more
    for (const auto tag : tags) {
      REQUIRE(pair.a.terminal(tag) != nullptr);
      if (pair.a.terminal(tag)->kind == KVFERRY_EVENT_BATCH_FAILED) CHECK(pair.a.terminal(tag)->error.code == KVFERRY_ERROR_CANCELED);
    }
    drive(
        pair.both, [&] { return pair.b.count(KVFERRY_EVENT_PEER_LOST) == 1; }, "the other side learns of it");
    ok(pair.b->peer_close(pair.to_a(), KVFERRY_CLOSE_FORCE, in_seconds(30)));
    drive(
        pair.both, [&] { return pair.b.count(KVFERRY_EVENT_PEER_CLOSED) == 1; }, "the other side closes");
    const std::vector<std::uint8_t> before(pair.target.data(), pair.target.data() + pair.target.bytes());
    drive_steps(pair.both, 1'000);
    CHECK(std::equal(before.begin(), before.end(), pair.target.data()));
    for (std::uint64_t i = 0; i < before.size(); ++i) {
      if (before[i] != 0 && before[i] != pattern(1, i)) FAIL("the source was read after the close, offset " << i);
    }
    CHECK(pair.a.count(KVFERRY_EVENT_PEER_CLOSED) == 1);
  }
}

TEST_CASE("a drain that does not end is forced at its deadline") {
  Pair pair;
  if (!needs(*pair.b, KVFERRY_CAP_NEEDS_TARGET_PROGRESS, "a target whose progress is needed")) return;
  Batch batch;
  batch.write(pair.source, 0, pair.target, 0, 4096);
  REQUIRE(ok(pair.a->submit(pair.to_b(), batch.c())).all);
  ok(pair.a->peer_close(pair.to_b(), KVFERRY_CLOSE_DRAIN, in_seconds(5)));
  drive_steps({&pair.a}, 200);
  CHECK(pair.a.count(KVFERRY_EVENT_PEER_CLOSED) == 0);
  test_clock().advance(6 * kSecond);
  drive(
      {&pair.a}, [&] { return pair.a.count(KVFERRY_EVENT_PEER_CLOSED) == 1; }, "the deadline forces the close");
  CHECK(pair.a.terminal(batch.c().tag)->kind == KVFERRY_EVENT_BATCH_FAILED);
}

TEST_CASE("a peer that was never connected closes too") {
  Side a;
  const auto peer = new_peer(a);
  ok(a->peer_close(peer, KVFERRY_CLOSE_DRAIN, in_seconds(30)));
  drive(
      {&a}, [&] { return a.count(KVFERRY_EVENT_PEER_CLOSED, peer) == 1; }, "it closes");
  (void)refused(a->peer_close(peer, KVFERRY_CLOSE_DRAIN, 0), ErrorCode::not_found);
}

TEST_CASE("the same two sides connect again and again, and nothing is left over") {
  Side a, b;
  Buffer source(a, 4096, KVFERRY_ACCESS_LOCAL);
  Buffer target(b, 4096, KVFERRY_ACCESS_REMOTE_WRITE);
  const std::uint32_t cycles = std::max<std::uint32_t>(environment().rounds / 20, 20);
  int files_early = 0, threads_early = 0;
  for (std::uint32_t cycle = 0; cycle < cycles; ++cycle) {
    source.fill(cycle);
    const auto peers = connect(a, b);
    share(b, {target.region()}, a, peers.first);
    Batch batch;
    batch.write(source, 0, target, 0, 4096).room(cycle).notify();
    run_done(a, peers.first, batch, {&a, &b});
    if (!std::equal(source.data(), source.data() + 4096, target.data())) FAIL("wrong bytes in cycle " << cycle);
    ok(a->peer_close(peers.first, cycle % 2 == 0 ? KVFERRY_CLOSE_DRAIN : KVFERRY_CLOSE_FORCE, in_seconds(30)));
    ok(b->peer_close(peers.second, cycle % 3 == 0 ? KVFERRY_CLOSE_FORCE : KVFERRY_CLOSE_DRAIN, in_seconds(30)));
    drive(
        {&a, &b}, [&] { return a.count(KVFERRY_EVENT_PEER_CLOSED, peers.first) == 1 && b.count(KVFERRY_EVENT_PEER_CLOSED, peers.second) == 1; },
        "both sides close");
    a.events.clear();
    b.events.clear();
    if (cycle == 9) {
      files_early = open_files();
      threads_early = threads();
    }
  }
  CHECK(open_files() <= files_early);
  CHECK(threads() <= threads_early);
  CHECK(a->stats().peers == 0);
  CHECK(b->stats().peers == 0);
}

TEST_CASE("one peer that dies does not disturb the other") {
  Pair pair(1u << 20);
  Side c;
  Buffer c_target(c, 1u << 20, KVFERRY_ACCESS_REMOTE_WRITE);
  const auto peers = connect(pair.a, c);
  share(c, {c_target.region()}, pair.a, peers.first);
  const Sides all{&pair.a, &pair.b, &c};
  std::vector<std::uint64_t> to_b, to_c;
  for (std::uint64_t i = 0; i < 4; ++i) {
    Batch for_b, for_c;
    for_b.write(pair.source, i * 65'536, pair.target, i * 65'536, 65'536).room(1);
    for_c.write(pair.source, i * 65'536, c_target, i * 65'536, 65'536).room(1);
    if (ok(pair.a->submit(pair.to_b(), for_b.c())).all) to_b.push_back(for_b.c().tag);
    if (ok(pair.a->submit(peers.first, for_c.c())).all) to_c.push_back(for_c.c().tag);
  }
  pair.b.destroy();
  drive(
      all,
      [&] {
        const auto ended = [&](std::uint64_t tag) { return pair.a.terminal(tag) != nullptr; };
        return std::all_of(to_c.begin(), to_c.end(), ended);
      },
      "the batches to the healthy peer end");
  for (const auto tag : to_c) CHECK(pair.a.terminal(tag)->kind == KVFERRY_EVENT_BATCH_DONE);
  if (pair.a->has(KVFERRY_CAP_DETECTS_DEAD_PEER)) {
    drive(
        all, [&] { return pair.a.count(KVFERRY_EVENT_PEER_LOST, pair.to_b()) == 1; }, "the dead peer is noticed");
    const auto* const lost = pair.a.find(KVFERRY_EVENT_PEER_LOST);
    for (const auto tag : to_b) {
      REQUIRE(pair.a.terminal(tag) != nullptr);
      CHECK(pair.a.terminal(tag) < lost);
    }
    Batch late;
    late.write(pair.source, 0, pair.target, 0, 1);
    (void)refused(pair.a->submit(pair.to_b(), late.c()), ErrorCode::peer_lost);
    CHECK(ok(pair.a->peer_state(pair.to_b())).state == KVFERRY_PEER_FAILED);
  }
  ok(pair.a->peer_close(pair.to_b(), KVFERRY_CLOSE_FORCE, in_seconds(30)));
  drive(
      all, [&] { return pair.a.count(KVFERRY_EVENT_PEER_CLOSED, pair.to_b()) == 1; }, "the dead peer is closed");
  Batch again;
  again.write(pair.source, 0, c_target, 0, 65'536).room(2);
  run_done(pair.a, peers.first, again, all);
}

TEST_CASE("a side that stood still longer than its lease drops the peer before anything queued is applied") {
  Side a, b;
  Buffer source(a, 4096, KVFERRY_ACCESS_LOCAL);
  Buffer target(b, 4096, KVFERRY_ACCESS_REMOTE_WRITE);
  if (!needs(*b, KVFERRY_CAP_NEEDS_TARGET_PROGRESS, "a target whose progress is needed")) return;
  source.fill(1);
  target.clear(0);
  const auto peers = connect(a, b, 0, 5 * kSecond);
  share(b, {target.region()}, a, peers.first);
  drive_steps({&a, &b}, 50);
  Batch batch;
  batch.write(source, 0, target, 0, 4096).room(1).notify();
  REQUIRE(ok(a->submit(peers.first, batch.c())).all);
  drive_steps({&a}, 200);
  test_clock().advance(6 * kSecond);
  drive(
      {&b}, [&] { return b.count(KVFERRY_EVENT_PEER_LOST) == 1; }, "the stalled side drops the peer");
  drive(
      {&a, &b}, [&] { return a.count(KVFERRY_EVENT_PEER_LOST) == 1; }, "the other side learns of it");
  CHECK(b.count(KVFERRY_EVENT_NOTIFICATION) == 0);
  CHECK(std::all_of(target.data(), target.data() + 4096, [](std::uint8_t byte) { return byte == 0; }));
  CHECK(a.terminal(batch.c().tag)->kind == KVFERRY_EVENT_BATCH_FAILED);
}

TEST_CASE("a peer within its lease stays") {
  Side a, b;
  const auto peers = connect(a, b, 5 * kSecond, 5 * kSecond);
  for (int i = 0; i < 10; ++i) {
    test_clock().advance(3 * kSecond);
    drive_steps({&a, &b}, 20);
  }
  CHECK(a.count(KVFERRY_EVENT_PEER_LOST) == 0);
  CHECK(b.count(KVFERRY_EVENT_PEER_LOST) == 0);
  CHECK(ok(a->peer_state(peers.first)).state == KVFERRY_PEER_UP);
}
