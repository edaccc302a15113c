// The notification: after the data, in order, never after a failure.
#include <algorithm>
#include <cstring>
#include <random>

#include "harness.h"

using namespace conformance;

namespace {

/// The next notification that `side` has been told since `seen`.
const kvferry_notification* next_notification(const Side& side, std::size_t& seen) {
  while (seen < side.events.size()) {
    const auto& event = side.events[seen++];
    if (event.kind == KVFERRY_EVENT_NOTIFICATION) return &event.notification;
  }
  return nullptr;
}

}  // namespace

TEST_CASE("whoever sees the notification sees every byte, in each of many rounds") {
  constexpr std::uint64_t kBytes = 1u << 20;
  Pair pair(kBytes);
  std::mt19937_64 random(environment().seed);
  const std::uint64_t lengths[] = {8, 4096, 8, 16'384, 1, 4095, 65'537};
  std::uint64_t salt = 1'000;
  for (std::uint32_t round = 0; round < environment().rounds; ++round) {
    const std::uint64_t length = round % 500 == 499 ? std::min<std::uint64_t>(kBytes, pair.a->limits().message_bytes_max) : lengths[round % 7];
    const std::uint64_t offset = random() % (kBytes - length + 1);
    pair.source.fill(++salt, offset, length);
    Batch batch;
    batch.write(pair.source, offset, pair.target, offset, length).room(1).notify(round);
    const auto tag = batch.c().tag;
    pair.a.events.clear();
    pair.b.events.clear();
    (void)submit(pair.a, pair.to_b(), batch, pair.both);
    std::size_t seen = 0;
    const kvferry_notification* notification = nullptr;
    // The bytes are compared in the very step in which the notification is polled.
    drive(
        pair.both,
        [&] {
          notification = next_notification(pair.b, seen);
          return notification != nullptr;
        },
        "a notification arrives");
    if (notification->chunk != round) FAIL("chunk " << notification->chunk << " in round " << round);
    if (std::memcmp(pair.source.data() + offset, pair.target.data() + offset, length) != 0) {
      FAIL("stale bytes in round " << round << ", " << length << " bytes at " << offset);
    }
    drive(
        pair.both, [&] { return pair.a.terminal(tag) != nullptr; }, "the batch ends");
    if (pair.a.terminal(tag)->kind != KVFERRY_EVENT_BATCH_DONE) FAIL(pair.a.terminal(tag)->error.text);
  }
  pair.target.check_guards();
}

TEST_CASE("a bare notification carries its record unchanged") {
  Pair pair;
  Batch batch;
  batch.room(0x1122334455667788u, 7).notify(3);
  kvferry_batch c = batch.c();
  c.notification.transfer = 0x99aabbccddeeff00u;
  c.notification.writer = {5, 6};
  c.notification.flags = KVFERRY_NOTIFY_LAST_CHUNK;
  c.notification.bytes = 0xfedcba9876543210u;
  const auto accepted = ok(pair.a->submit(pair.to_b(), c));
  REQUIRE(accepted.all);
  CHECK(accepted.writes == 0);
  drive(
      pair.both, [&] { return pair.b.count(KVFERRY_EVENT_NOTIFICATION) == 1 && pair.a.terminal(c.tag) != nullptr; }, "a bare notification arrives");
  CHECK(pair.a.terminal(c.tag)->kind == KVFERRY_EVENT_BATCH_DONE);
  const auto& event = *pair.b.find(KVFERRY_EVENT_NOTIFICATION);
  CHECK(event.peer == pair.to_a());
  CHECK(event.room == c.room);
  CHECK(event.generation == 7);
  CHECK(event.notification.room == c.room);
  CHECK(event.notification.generation == 7);
  CHECK(event.notification.transfer == c.notification.transfer);
  CHECK(event.notification.chunk == 3);
  CHECK(event.notification.writer.tp_rank == 5);
  CHECK(event.notification.writer.pp_rank == 6);
  CHECK(event.notification.status == KVFERRY_OK);
  CHECK(event.notification.flags == KVFERRY_NOTIFY_LAST_CHUNK);
  CHECK(event.notification.bytes == c.notification.bytes);
}

TEST_CASE("notifications of a room arrive in the order of submission, after the data before them") {
  constexpr std::uint32_t kCount = 500;
  constexpr std::uint64_t kPiece = 512;
  Pair pair(kCount * kPiece);
  std::uint32_t sent = 0, arrived = 0;
  std::size_t seen = 0;
  drive(
      pair.both,
      [&] {
        while (sent < kCount) {
          Batch batch;
          if (sent % 3 != 2) batch.write(pair.source, sent * kPiece, pair.target, sent * kPiece, kPiece);
          batch.room(8).notify(sent);
          if (!ok(pair.a->submit(pair.to_b(), batch.c())).all) break;
          ++sent;
        }
        while (const auto* notification = next_notification(pair.b, seen)) {
          if (notification->chunk != arrived) FAIL("chunk " << notification->chunk << " where " << arrived << " was due");
          for (std::uint32_t chunk = 0; chunk <= arrived; ++chunk) {
            if (chunk % 3 == 2) continue;
            if (std::memcmp(pair.source.data() + chunk * kPiece, pair.target.data() + chunk * kPiece, kPiece) != 0) {
              FAIL("the data of chunk " << chunk << " is not there at notification " << arrived);
            }
          }
          ++arrived;
        }
        return arrived == kCount;
      },
      "all notifications arrive");
}

TEST_CASE("a notification of success never follows a failed batch of its room") {
  Pair pair;
  if (!needs(*pair.b, KVFERRY_CAP_GUARDED_TARGET, "a guarded target")) return;
  Buffer doomed(pair.b, 4096, KVFERRY_ACCESS_REMOTE_WRITE);
  share(pair.b, {doomed.region()}, pair.a, pair.to_b());
  CHECK(ok(pair.b->deregister_region(doomed.region(), KVFERRY_DEREGISTER_REFUSE_IF_BUSY)));

  Batch bad, good, told, other_room;
  bad.write(pair.source, 0, doomed, 0, 4096).room(3);
  good.write(pair.source, 0, pair.target, 0, 4096).room(3).notify(1);
  told.room(3).notify(2, KVFERRY_ERROR_REFUSED);
  other_room.write(pair.source, 0, pair.target, 8192, 4096).room(4).notify(9);
  for (Batch* batch : {&bad, &good, &told, &other_room}) REQUIRE(ok(pair.a->submit(pair.to_b(), batch->c())).all);
  drive(
      pair.both,
      [&] {
        return pair.a.terminal(bad.c().tag) && pair.a.terminal(good.c().tag) && pair.a.terminal(told.c().tag) &&
               pair.a.terminal(other_room.c().tag) && pair.b.count(KVFERRY_EVENT_NOTIFICATION) == 2;
      },
      "all four batches end");
  CHECK(pair.a.terminal(bad.c().tag)->error.code == KVFERRY_ERROR_REFUSED);
  CHECK(pair.a.terminal(good.c().tag)->kind == KVFERRY_EVENT_BATCH_FAILED);
  CHECK(pair.a.terminal(good.c().tag)->error.code == KVFERRY_ERROR_REFUSED);
  CHECK(pair.a.terminal(told.c().tag)->kind == KVFERRY_EVENT_BATCH_DONE);
  CHECK(pair.a.terminal(other_room.c().tag)->kind == KVFERRY_EVENT_BATCH_DONE);
  for (const auto& event : pair.b.events) {
    if (event.kind == KVFERRY_EVENT_NOTIFICATION) CHECK((event.notification.chunk == 2 || event.notification.chunk == 9));
  }
  // Once the failure was polled the initiator knows: what it says then is its own.
  Batch retried;
  retried.write(pair.source, 0, pair.target, 0, 4096).room(3).notify(4);
  run_done(pair.a, pair.to_b(), retried, pair.both);
}

TEST_CASE("the target's queue holds the writer back instead of losing notifications") {
  Pair pair;
  std::uint32_t sent = 0;
  // The target makes progress but is not polled: the window must fill, and nothing may be lost.
  int refused_in_a_row = 0;
  while (sent < 200'000 && refused_in_a_row < 2'000) {
    Batch batch;
    batch.room(1).notify(sent);
    if (ok(pair.a->submit(pair.to_b(), batch.c())).all) {
      ++sent;
      refused_in_a_row = 0;
    } else {
      ++refused_in_a_row;
    }
    pair.a.step();
    pair.a.events.clear();
    (void)ok(pair.b->progress());
  }
  CHECK(sent < 200'000);
  std::uint32_t arrived = 0;
  drive(
      pair.both,
      [&] {
        for (const auto& event : pair.b.events) {
          if (event.kind == KVFERRY_EVENT_NOTIFICATION && event.notification.chunk != arrived++)
            FAIL("notification " << arrived - 1 << " is missing");
        }
        pair.b.events.clear();
        return arrived == sent;
      },
      "every notification arrives after all");
}
