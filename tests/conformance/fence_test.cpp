// The end of a transfer that must not go on: cancel, fence, deregister, quiesce. Failed and quiesced are different facts.
#include <algorithm>

#include "harness.h"

using namespace conformance;

namespace {

std::vector<std::uint8_t> copy_of(const Buffer& buffer) { return {buffer.data(), buffer.data() + buffer.bytes()}; }

/// Lets everything that could still land do so, then compares.
void check_unchanged(const Sides& sides, const Buffer& target, const std::vector<std::uint8_t>& before) {
  drive_steps(sides, 2'000);
  if (!std::equal(before.begin(), before.end(), target.data())) FAIL("bytes landed after nothing could");
}

/// Many batches of one room, some accepted; none is waited for.
std::vector<std::uint64_t> start_many(Pair& pair, std::uint64_t room, std::uint32_t generation, int batches_max) {
  std::vector<std::uint64_t> tags;
  const std::uint64_t length = std::min<std::uint64_t>(pair.a->limits().message_bytes_max, 65'536);
  for (int i = 0; i < batches_max; ++i) {
    Batch batch;
    for (std::uint64_t at = 0; at + length <= pair.source.bytes() && batch.writes.size() < pair.a->limits().writes_per_batch_max; at += length) {
      batch.write(pair.source, at, pair.target, at, length);
    }
    batch.room(room, generation);
    const auto accepted = ok(pair.a->submit(pair.to_b(), batch.c()));
    if (accepted.writes == 0) break;
    tags.push_back(batch.c().tag);
  }
  REQUIRE_FALSE(tags.empty());
  return tags;
}

bool all_ended(const Side& side, const std::vector<std::uint64_t>& tags) {
  return std::all_of(tags.begin(), tags.end(), [&](std::uint64_t tag) { return side.terminal(tag) != nullptr; });
}

}  // namespace

TEST_CASE("a canceled room ends, its source is free, and after the fence nothing of it lands") {
  for (const int steps_before : {0, 1, 2, 5, 20}) {
    INFO(steps_before << " steps before the cancel");
    Pair pair(4u << 20);
    const auto tags = start_many(pair, 6, 1, 4);
    drive_steps(pair.both, steps_before);
    ok(pair.a->cancel(pair.to_b(), 6, 1));
    drive(
        pair.both, [&] { return pair.a.count(KVFERRY_EVENT_INITIATOR_QUIESCED) == 1 && all_ended(pair.a, tags); }, "the room is quiesced");
    const auto& quiesced = *pair.a.find(KVFERRY_EVENT_INITIATOR_QUIESCED);
    CHECK(quiesced.peer == pair.to_b());
    CHECK(quiesced.room == 6);
    CHECK(quiesced.generation == 1);
    CHECK(quiesced.error.code == 0);
    for (const auto tag : tags) {
      const auto* const end = pair.a.terminal(tag);
      CHECK(end < &quiesced);
      if (end->kind == KVFERRY_EVENT_BATCH_FAILED) CHECK(end->error.code == KVFERRY_ERROR_CANCELED);
    }
    // The source is ours again: what is written into it now must not be seen at the target, even if something is still on its way.
    pair.source.fill(0xbad);
    drive_steps(pair.both, 200);
    ok(pair.b->fence(pair.to_a(), 6, 1, 88, in_seconds(30)));
    drive(
        pair.both, [&] { return pair.b.find(KVFERRY_EVENT_FENCED, 88) != nullptr; }, "the room is fenced");
    CHECK(pair.b.find(KVFERRY_EVENT_FENCED, 88)->error.code == 0);
    const auto before = copy_of(pair.target);
    check_unchanged(pair.both, pair.target, before);
    for (std::uint64_t i = 0; i < before.size(); ++i) {
      if (before[i] != 0 && before[i] != pattern(1, i)) FAIL("the source was read after it was quiesced, offset " << i);
    }
    CHECK(pair.a.count(KVFERRY_EVENT_INITIATOR_QUIESCED) == 1);

    Batch late, other;
    late.write(pair.source, 0, pair.target, 0, 64).room(6, 1);
    (void)refused(pair.a->submit(pair.to_b(), late.c()), ErrorCode::canceled);
    other.write(pair.source, 0, pair.target, 0, 64).room(7, 1).notify();
    run_done(pair.a, pair.to_b(), other, pair.both);
    CHECK(std::equal(pair.source.data(), pair.source.data() + 64, pair.target.data()));
  }
}

TEST_CASE("canceling a room without batches, or again, is answered each time") {
  Pair pair;
  ok(pair.a->cancel(pair.to_b(), 11, 2));
  ok(pair.a->cancel(pair.to_b(), 11, 2));
  drive(
      pair.both, [&] { return pair.a.count(KVFERRY_EVENT_INITIATOR_QUIESCED) == 2; }, "both are answered");
  Batch same, next_generation;
  same.write(pair.source, 0, pair.target, 0, 1).room(11, 2);
  (void)refused(pair.a->submit(pair.to_b(), same.c()), ErrorCode::canceled);
  next_generation.write(pair.source, 0, pair.target, 0, 1).room(11, 3);
  run_done(pair.a, pair.to_b(), next_generation, pair.both);
}

TEST_CASE("a fenced room is refused at the target up to its generation, others pass") {
  Pair pair;
  if (!needs(*pair.b, KVFERRY_CAP_GUARDED_TARGET, "a guarded target")) return;
  ok(pair.b->fence(pair.to_a(), 21, 2, 90, in_seconds(30)));
  drive(
      pair.both, [&] { return pair.b.find(KVFERRY_EVENT_FENCED, 90) != nullptr; }, "the room is fenced");
  const auto& fenced = *pair.b.find(KVFERRY_EVENT_FENCED, 90);
  CHECK(fenced.error.code == 0);
  CHECK(fenced.room == 21);
  CHECK(fenced.generation == 2);
  for (const std::uint32_t generation : {1u, 2u}) {
    Batch batch;
    batch.write(pair.source, 0, pair.target, 0, 4096).room(21, generation).notify();
    const auto event = run(pair.a, pair.to_b(), batch, pair.both);
    CHECK(event.kind == KVFERRY_EVENT_BATCH_FAILED);
    CHECK(event.error.code == KVFERRY_ERROR_FENCED);
    Batch bare;
    bare.room(21, generation).notify();
    CHECK(run(pair.a, pair.to_b(), bare, pair.both).error.code == KVFERRY_ERROR_FENCED);
  }
  CHECK(pair.b.count(KVFERRY_EVENT_NOTIFICATION) == 0);
  CHECK(pair.b.count(KVFERRY_EVENT_PIECE_REFUSED) == 0);
  CHECK(pair.b->stats().pieces_fenced >= 1);
  CHECK(std::all_of(pair.target.data(), pair.target.data() + pair.target.bytes(), [](std::uint8_t byte) { return byte == 0; }));

  Batch newer, other;
  newer.write(pair.source, 0, pair.target, 0, 4096).room(21, 3).notify();
  other.write(pair.source, 8192, pair.target, 8192, 4096).room(22, 1).notify();
  run_done(pair.a, pair.to_b(), newer, pair.both);
  run_done(pair.a, pair.to_b(), other, pair.both);
  CHECK(std::equal(pair.source.data(), pair.source.data() + 4096, pair.target.data()));
  CHECK(std::equal(pair.source.data() + 8192, pair.source.data() + 12'288, pair.target.data() + 8192));
  // A lower fence does not lift a higher one.
  ok(pair.b->fence(pair.to_a(), 21, 1, 91, in_seconds(30)));
  Batch still;
  still.write(pair.source, 0, pair.target, 0, 64).room(21, 2);
  CHECK(run(pair.a, pair.to_b(), still, pair.both).error.code == KVFERRY_ERROR_FENCED);
}

TEST_CASE("a fence in mid-flight stops the room while another room goes on") {
  for (const int steps_before : {0, 1, 3, 10}) {
    INFO(steps_before << " steps before the fence");
    Pair pair(4u << 20);
    if (!needs(*pair.b, KVFERRY_CAP_GUARDED_TARGET, "a guarded target")) return;
    Buffer healthy(pair.b, 65'536, KVFERRY_ACCESS_REMOTE_WRITE);
    share(pair.b, {healthy.region()}, pair.a, pair.to_b());
    const auto tags = start_many(pair, 30, 5, 3);
    Batch other;
    other.write(pair.source, 0, healthy, 0, 65'536).room(31).notify(1);
    const auto other_tag = other.c().tag;
    const bool other_accepted = ok(pair.a->submit(pair.to_b(), other.c())).all;
    drive_steps(pair.both, steps_before);
    ok(pair.b->fence(pair.to_a(), 30, 5, 92, in_seconds(30)));
    drive(
        pair.both, [&] { return pair.b.find(KVFERRY_EVENT_FENCED, 92) != nullptr; }, "the room is fenced");
    const auto before = copy_of(pair.target);
    if (!other_accepted) (void)submit(pair.a, pair.to_b(), other, pair.both);
    drive(
        pair.both, [&] { return all_ended(pair.a, tags) && pair.a.terminal(other_tag) != nullptr; }, "everything ends");
    check_unchanged(pair.both, pair.target, before);
    for (const auto tag : tags) {
      const auto* const end = pair.a.terminal(tag);
      if (end->kind == KVFERRY_EVENT_BATCH_FAILED) CHECK(end->error.code == KVFERRY_ERROR_FENCED);
    }
    CHECK(pair.a.terminal(other_tag)->kind == KVFERRY_EVENT_BATCH_DONE);
    CHECK(std::equal(healthy.data(), healthy.data() + 65'536, pair.source.data()));
    CHECK(pair.b.count(KVFERRY_EVENT_NOTIFICATION) == 1);
  }
}

TEST_CASE("a fence of one peer leaves the others alone, a fence of all does not") {
  Pair pair;
  if (!needs(*pair.b, KVFERRY_CAP_GUARDED_TARGET, "a guarded target")) return;
  Side c;
  Buffer c_source(c, 4096, KVFERRY_ACCESS_LOCAL);
  c_source.fill(5);
  const Sides all{&pair.a, &pair.b, &c};
  const auto peers = connect(c, pair.b);
  share(pair.b, {pair.target.region()}, c, peers.first);
  ok(pair.b->fence(pair.to_a(), 40, 1, 93, in_seconds(30)));
  Batch from_a, from_c;
  from_a.write(pair.source, 0, pair.target, 0, 4096).room(40);
  from_c.write(c_source, 0, pair.target, 8192, 4096).room(40);
  CHECK(run(pair.a, pair.to_b(), from_a, all).error.code == KVFERRY_ERROR_FENCED);
  run_done(c, peers.first, from_c, all);
  CHECK(std::equal(c_source.data(), c_source.data() + 4096, pair.target.data() + 8192));

  ok(pair.b->fence(0, 41, 1, 94, in_seconds(30)));
  drive(
      all, [&] { return pair.b.find(KVFERRY_EVENT_FENCED, 94) != nullptr; }, "the room is fenced for all");
  Side d;  // connected after the fence
  Buffer d_source(d, 4096, KVFERRY_ACCESS_LOCAL);
  const auto late = connect(d, pair.b);
  share(pair.b, {pair.target.region()}, d, late.first);
  Batch a41, c41, d41;
  a41.write(pair.source, 0, pair.target, 0, 4096).room(41);
  c41.write(c_source, 0, pair.target, 0, 4096).room(41);
  d41.write(d_source, 0, pair.target, 0, 4096).room(41);
  const Sides everybody{&pair.a, &pair.b, &c, &d};
  CHECK(run(pair.a, pair.to_b(), a41, everybody).error.code == KVFERRY_ERROR_FENCED);
  CHECK(run(c, peers.first, c41, everybody).error.code == KVFERRY_ERROR_FENCED);
  CHECK(run(d, late.first, d41, everybody).error.code == KVFERRY_ERROR_FENCED);
}

TEST_CASE("after deregister nothing lands in the region, whatever is under way") {
  for (const int steps_before : {0, 1, 3, 10}) {
    INFO(steps_before << " steps before the deregistration");
    Pair pair(4u << 20);
    if (!needs(*pair.b, KVFERRY_CAP_REVOKES_ON_DEREGISTER, "revocation on deregister")) return;
    const auto tags = start_many(pair, 50, 1, 3);
    drive_steps(pair.both, steps_before);
    drive(
        pair.both, [&] { return ok(pair.b->deregister_region(pair.target.region(), KVFERRY_DEREGISTER_DRAIN)); }, "the target region goes");
    pair.target.set_region(0);
    const auto before = copy_of(pair.target);
    drive(
        pair.both, [&] { return all_ended(pair.a, tags); }, "every batch ends");
    check_unchanged(pair.both, pair.target, before);
    std::size_t refused_batches = 0;
    for (const auto tag : tags) {
      const auto* const end = pair.a.terminal(tag);
      if (end->kind != KVFERRY_EVENT_BATCH_FAILED) continue;
      ++refused_batches;
      CHECK(end->error.code == KVFERRY_ERROR_REFUSED);
    }
    if (pair.b->has(KVFERRY_CAP_GUARDED_TARGET)) {
      CHECK((pair.b.count(KVFERRY_EVENT_PIECE_REFUSED) > 0) == (refused_batches > 0));
      if (const auto* const event = pair.b.find(KVFERRY_EVENT_PIECE_REFUSED)) {
        CHECK(event->peer == pair.to_a());
        CHECK(event->room == 50);
        CHECK(event->error.code == KVFERRY_ERROR_REFUSED);
        CHECK(std::string(event->error.text).find(std::to_string(event->error.object)) != std::string::npos);
      }
    }
  }
}

TEST_CASE("a region that drains refuses what the peer writes into it") {
  Pair pair;
  if (!needs(*pair.b, KVFERRY_CAP_GUARDED_TARGET, "a guarded target")) return;
  Buffer at_a(pair.a, 4096, KVFERRY_ACCESS_REMOTE_WRITE);
  share(pair.a, {at_a.region()}, pair.b, pair.to_a());
  // The region is the source of a batch of its owner, which nobody has moved yet: it drains until it is asked again.
  Batch out, in;
  out.write(pair.target, 0, at_a, 0, 64).room(1);
  REQUIRE(ok(pair.b->submit(pair.to_a(), out.c())).all);
  CHECK_FALSE(ok(pair.b->deregister_region(pair.target.region(), KVFERRY_DEREGISTER_DRAIN)));
  in.write(pair.source, 0, pair.target, 0, 64).room(2);
  REQUIRE(ok(pair.a->submit(pair.to_b(), in.c())).all);
  drive(pair.both, [&] { return pair.b.count(KVFERRY_EVENT_PIECE_REFUSED) == 1; }, "the piece is refused");
  CHECK(pair.target.data()[0] == 0);
  drive(pair.both, [&] { return pair.a.terminal(in.c().tag) != nullptr; }, "the batch ends");
  CHECK(pair.a.terminal(in.c().tag)->error.code == KVFERRY_ERROR_REFUSED);
  drive(pair.both, [&] { return ok(pair.b->deregister_region(pair.target.region(), KVFERRY_DEREGISTER_DRAIN)); }, "the region drains");
  pair.target.set_region(0);
}

TEST_CASE("a quiesced region refuses the peer it is quiesced for") {
  Pair pair;
  if (pair.b->plugin().table->region_quiesce == nullptr) return skip("the plugin has no region_quiesce");
  if (!needs(*pair.b, KVFERRY_CAP_GUARDED_TARGET, "a guarded target")) return;
  Side c;
  Buffer c_source(c, 4096, KVFERRY_ACCESS_LOCAL);
  c_source.fill(5);
  const auto peers = connect(c, pair.b);
  const Sides all{&pair.a, &pair.b, &c};
  share(pair.b, {pair.target.region()}, c, peers.first);
  ok(pair.b->region_quiesce(pair.target.region(), pair.to_a(), 95, in_seconds(30)));
  drive(
      all, [&] { return pair.b.find(KVFERRY_EVENT_REGION_QUIESCED, 95) != nullptr; }, "the region is quiesced");
  CHECK(pair.b.find(KVFERRY_EVENT_REGION_QUIESCED, 95)->error.code == 0);
  Batch from_a, from_c, later;
  from_a.write(pair.source, 0, pair.target, 0, 4096);
  from_c.write(c_source, 0, pair.target, 0, 4096);
  later.write(c_source, 0, pair.target, 8192, 4096);
  CHECK(run(pair.a, pair.to_b(), from_a, all).error.code == KVFERRY_ERROR_REFUSED);
  run_done(c, peers.first, from_c, all);
  CHECK(std::equal(c_source.data(), c_source.data() + 4096, pair.target.data()));
  ok(pair.b->region_quiesce(pair.target.region(), 0, 96, in_seconds(30)));
  drive(
      all, [&] { return pair.b.find(KVFERRY_EVENT_REGION_QUIESCED, 96) != nullptr; }, "the region is quiesced for all");
  CHECK(run(c, peers.first, later, all).error.code == KVFERRY_ERROR_REFUSED);
  (void)refused(pair.b->region_quiesce(pair.target.region() + 1'000'000, 0, 97, 0), ErrorCode::not_found);
}

TEST_CASE("a withdrawn region is refused locally, the others stay") {
  Pair pair;
  Buffer second(pair.b, 4096, KVFERRY_ACCESS_REMOTE_WRITE);
  share(pair.b, {second.region()}, pair.a, pair.to_b());
  ok(pair.a->forget_regions(pair.to_b(), {{second.region(), second.region() + 1'000'000}}));
  Batch gone, stays;
  gone.write(pair.source, 0, second, 0, 64);
  stays.write(pair.source, 0, pair.target, 0, 64);
  (void)refused(pair.a->submit(pair.to_b(), gone.c()), ErrorCode::not_found);
  run_done(pair.a, pair.to_b(), stays, pair.both);
  share(pair.b, {second.region()}, pair.a, pair.to_b());
  run_done(pair.a, pair.to_b(), gone, pair.both);
}

TEST_CASE("a deadline ends a batch to a peer that stands still") {
  Pair pair;
  if (!needs(*pair.b, KVFERRY_CAP_NEEDS_TARGET_PROGRESS, "a target whose progress is needed")) return;
  Batch batch, forever;
  batch.write(pair.source, 0, pair.target, 0, 4096).room(60).deadline(in_seconds(5));
  forever.write(pair.source, 8192, pair.target, 8192, 4096).room(61);
  const auto tag = batch.c().tag;
  REQUIRE(ok(pair.a->submit(pair.to_b(), batch.c())).all);
  REQUIRE(ok(pair.a->submit(pair.to_b(), forever.c())).all);
  drive_steps({&pair.a}, 200);
  CHECK(pair.a.terminal(tag) == nullptr);
  test_clock().advance(6 * kSecond);
  drive(
      {&pair.a}, [&] { return pair.a.terminal(tag) != nullptr; }, "the deadline ends the batch");
  CHECK(pair.a.terminal(tag)->error.code == KVFERRY_ERROR_TIMEOUT);
  // Failed is not quiesced: the room ends by its cancel, and the healthy one goes on.
  ok(pair.a->cancel(pair.to_b(), 60, 1));
  drive(
      pair.both, [&] { return pair.a.count(KVFERRY_EVENT_INITIATOR_QUIESCED) == 1; }, "the failed room is quiesced");
  drive(
      pair.both, [&] { return pair.a.terminal(forever.c().tag) != nullptr; }, "the other batch ends");
  CHECK(pair.a.terminal(forever.c().tag)->kind == KVFERRY_EVENT_BATCH_DONE);
  CHECK(pair.a.count(KVFERRY_EVENT_BATCH_DONE) + pair.a.count(KVFERRY_EVENT_BATCH_FAILED) == 2);
}
