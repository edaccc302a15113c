// Bytes: the right ones, in the right place, nothing else.
#include <algorithm>
#include <cstring>
#include <random>

#include "harness.h"

using namespace conformance;

namespace {

/// Whole target against what it should be; FAILs once, with the first wrong byte.
void check_bytes(const Buffer& target, const std::vector<std::uint8_t>& expected) {
  const auto wrong = std::mismatch(expected.begin(), expected.end(), target.data());
  if (wrong.first != expected.end()) {
    FAIL("offset " << wrong.first - expected.begin() << " is " << int{*wrong.second} << ", expected " << int{*wrong.first});
  }
  target.check_guards();
}

/// A write of any length: split at the backend's message limit.
Batch long_write(const Pair& pair, std::uint64_t message_bytes_max, std::uint64_t source_offset, std::uint64_t target_offset, std::uint64_t length) {
  Batch batch;
  for (std::uint64_t done = 0; done < length;) {
    const std::uint64_t part = std::min(length - done, message_bytes_max);
    batch.write(pair.source, source_offset + done, pair.target, target_offset + done, part);
    done += part;
  }
  return batch;
}

}  // namespace

TEST_CASE("every size lands whole and touches nothing around it") {
  constexpr std::uint64_t kMebibyte = 1u << 20;
  Pair pair(2 * kMebibyte);
  const auto limit = pair.a->limits().message_bytes_max;
  std::uint64_t salt = 100;
  for (const std::uint64_t length :
       {std::uint64_t{1}, std::uint64_t{7}, std::uint64_t{8}, std::uint64_t{63}, std::uint64_t{64}, std::uint64_t{65}, std::uint64_t{4095},
        std::uint64_t{4096}, std::uint64_t{4097}, std::uint64_t{16'999}, std::uint64_t{17'000}, std::uint64_t{17'001}, std::uint64_t{65'535},
        std::uint64_t{65'536}, std::uint64_t{65'537}, kMebibyte - 1, kMebibyte, kMebibyte + 1}) {
    for (const std::uint64_t target_offset : {std::uint64_t{0}, std::uint64_t{4095}, pair.target.bytes() - length}) {
      const std::uint64_t source_offset = length % 13;
      pair.source.fill(++salt);
      pair.target.clear(0x5a);
      std::vector<std::uint8_t> expected(pair.target.bytes(), 0x5a);
      std::copy_n(pair.source.data() + source_offset, length, expected.begin() + static_cast<std::ptrdiff_t>(target_offset));
      Batch batch = long_write(pair, limit, source_offset, target_offset, length);
      INFO("length " << length << " at " << target_offset);
      run_done(pair.a, pair.to_b(), batch, pair.both);
      check_bytes(pair.target, expected);
    }
  }
}

TEST_CASE("a write gathers its pieces in order, up to the limit") {
  Pair pair(1u << 20);
  const std::uint32_t most = pair.a->limits().pieces_per_write_max;
  std::mt19937_64 random(environment().seed);
  for (const std::uint32_t count : {1u, 2u, 3u, most / 2, most - 1, most}) {
    if (count == 0) continue;
    std::vector<kvferry_piece> pieces;
    std::vector<std::uint8_t> expected(pair.target.bytes(), 0);
    std::uint64_t filled = 77;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint64_t length = 1 + random() % 300;
      const std::uint64_t offset = random() % (pair.source.bytes() - length);
      pieces.push_back({pair.source.region(), offset, length});
      std::copy_n(pair.source.data() + offset, length, expected.begin() + static_cast<std::ptrdiff_t>(filled));
      filled += length;
    }
    pair.target.clear(0);
    Batch batch;
    batch.gather(pieces, pair.target.region(), 77);
    INFO(count << " pieces");
    run_done(pair.a, pair.to_b(), batch, pair.both);
    check_bytes(pair.target, expected);
  }
}

TEST_CASE("thousands of scattered writes land each in its place") {
  constexpr std::uint64_t kSlotBytes = 1500, kSlots = 2'000;
  Pair pair(kSlotBytes * kSlots);
  const auto& limits = pair.a->limits();
  std::mt19937_64 random(environment().seed);
  std::vector<std::uint64_t> target_slots(kSlots), source_slots(kSlots);
  for (std::uint64_t i = 0; i < kSlots; ++i) target_slots[i] = source_slots[i] = i;
  std::shuffle(target_slots.begin(), target_slots.end(), random);
  std::shuffle(source_slots.begin(), source_slots.end(), random);

  std::vector<std::uint8_t> expected(pair.target.bytes(), 0);
  const std::uint32_t batch_max = std::min(limits.writes_per_batch_max, limits.pieces_per_batch_max);
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < kSlots;) {
    Batch batch;
    for (; i < kSlots && batch.writes.size() < batch_max; ++i) {
      const std::uint64_t length = 1 + random() % kSlotBytes;
      batch.write(pair.source, source_slots[i] * kSlotBytes, pair.target, target_slots[i] * kSlotBytes, length);
      std::copy_n(pair.source.data() + source_slots[i] * kSlotBytes, length,
                  expected.begin() + static_cast<std::ptrdiff_t>(target_slots[i] * kSlotBytes));
      bytes += length;
    }
    (void)submit(pair.a, pair.to_b(), batch, pair.both);
  }
  drive(
      pair.both,
      [&] {
        const auto stats = pair.a->stats();
        return stats.batches_done + stats.batches_failed == stats.batches_submitted;
      },
      "every batch ends");
  CHECK(pair.a.count(KVFERRY_EVENT_BATCH_FAILED) == 0);
  CHECK(pair.a->stats().bytes == bytes);
  check_bytes(pair.target, expected);
}

TEST_CASE("reads bring the peer's bytes into the pieces, and nothing else changes") {
  Pair pair(1u << 20);
  if (!needs(*pair.a, KVFERRY_CAP_READ, "reads")) return;
  pair.target.fill(7);
  const std::vector<std::uint8_t> remote(pair.target.data(), pair.target.data() + pair.target.bytes());
  for (const std::uint64_t length : {1u, 63u, 4097u, 300'000u}) {
    pair.source.clear(0x11);
    Batch batch;
    batch.gather({{pair.source.region(), 500, length}, {pair.source.region(), 600'000, length}}, pair.target.region(), 1234, KVFERRY_OP_READ);
    run_done(pair.a, pair.to_b(), batch, pair.both);
    std::vector<std::uint8_t> expected(pair.source.bytes(), 0x11);
    std::copy_n(remote.begin() + 1234, length, expected.begin() + 500);
    std::copy_n(remote.begin() + 1234 + static_cast<std::ptrdiff_t>(length), length, expected.begin() + 600'000);
    check_bytes(pair.source, expected);
    check_bytes(pair.target, remote);
  }
  // Mixed with writes in one batch, and refused where the region allows writes only.
  Buffer write_only(pair.b, 4096, KVFERRY_ACCESS_REMOTE_WRITE);
  share(pair.b, {write_only.region()}, pair.a, pair.to_b());
  Batch mixed;
  mixed.write(pair.source, 0, write_only, 0, 4096).write(pair.source, 8192, pair.target, 0, 4096, KVFERRY_OP_READ);
  run_done(pair.a, pair.to_b(), mixed, pair.both);
  CHECK(std::equal(write_only.data(), write_only.data() + 4096, pair.source.data()));
  CHECK(std::equal(remote.begin(), remote.begin() + 4096, pair.source.data() + 8192));
  Batch forbidden;
  forbidden.write(pair.source, 0, write_only, 0, 1, KVFERRY_OP_READ);
  CHECK_FALSE(pair.a->submit(pair.to_b(), forbidden.c()));
}

TEST_CASE("one bad write refuses the whole batch with its index, and nothing of it lands") {
  Pair pair(1u << 16);
  Buffer read_only(pair.b, 4096, KVFERRY_ACCESS_REMOTE_READ);
  share(pair.b, {read_only.region()}, pair.a, pair.to_b());
  const auto source = pair.source.region();
  const auto target = pair.target.region();
  const std::uint64_t end = pair.source.bytes();
  const auto& limits = pair.a->limits();
  const auto* const table = pair.a->plugin().table;

  const auto check = [&](const char* reason, std::int32_t code, const std::function<void(Batch&)>& spoil) {
    constexpr std::uint32_t kBad = 3;
    Batch batch;
    for (std::uint32_t i = 0; i < kBad; ++i) batch.write(pair.source, 64u * i, pair.target, 64u * i, 64);
    spoil(batch);
    if (batch.writes.size() == kBad + 1) batch.write(pair.source, 1024, pair.target, 1024, 64);
    INFO(reason);
    kvferry_error error{};
    error.struct_size = sizeof(error);
    std::uint32_t accepted = 77;
    const auto status = table->submit(pair.a->handle(), pair.to_b(), &batch.c(), &accepted, &error);
    CHECK(status == code);
    CHECK(error.code == code);
    CHECK(error.object == kBad);
    CHECK(accepted == 0);
    CHECK(error.text[0] != '\0');
  };
  const auto one_piece = [&](kvferry_piece piece, kvferry_region region, std::uint64_t offset) {
    return [=](Batch& batch) { batch.gather({piece}, region, offset); };
  };
  constexpr std::uint64_t kTop = ~std::uint64_t{0};
  check("a source piece that ends outside", KVFERRY_ERROR_OUT_OF_RANGE, one_piece({source, end - 63, 64}, target, 0));
  check("a source piece that begins outside", KVFERRY_ERROR_OUT_OF_RANGE, one_piece({source, end, 1}, target, 0));
  check("a source piece that wraps", KVFERRY_ERROR_OUT_OF_RANGE, one_piece({source, kTop - 3, 8}, target, 0));
  check("a target that ends outside", KVFERRY_ERROR_OUT_OF_RANGE, one_piece({source, 0, 64}, target, end - 63));
  check("a target that begins outside", KVFERRY_ERROR_OUT_OF_RANGE, one_piece({source, 0, 1}, target, end));
  check("a target that wraps", KVFERRY_ERROR_OUT_OF_RANGE, one_piece({source, 0, 8}, target, kTop - 3));
  check("a local region that is not there", KVFERRY_ERROR_NOT_FOUND, one_piece({source + 1'000'000, 0, 64}, target, 0));
  check("a remote region that is not there", KVFERRY_ERROR_NOT_FOUND, one_piece({source, 0, 64}, target + 1'000'000, 0));
  check("no region at all", KVFERRY_ERROR_NOT_FOUND, one_piece({source, 0, 64}, 0, 0));
  check("a remote region without write access", KVFERRY_ERROR_INVALID_ARGUMENT, one_piece({source, 0, 64}, read_only.region(), 0));
  check("a piece of no byte", KVFERRY_ERROR_INVALID_ARGUMENT, one_piece({source, 0, 0}, target, 0));
  check("no piece", KVFERRY_ERROR_INVALID_ARGUMENT, [&](Batch& batch) { batch.gather({}, target, 0); });
  check("an op that is not known", KVFERRY_ERROR_INVALID_ARGUMENT, [&](Batch& batch) { batch.gather({{source, 0, 64}}, target, 0, 17); });
  check("a reserved field that is not zero", KVFERRY_ERROR_INVALID_ARGUMENT, [&](Batch& batch) {
    batch.gather({{source, 0, 64}}, target, 0);
    batch.writes.back().reserved = 1;
  });
  check("pieces outside the list", KVFERRY_ERROR_OUT_OF_RANGE, [&](Batch& batch) {
    batch.gather({{source, 0, 64}}, target, 0);
    batch.writes.back().first_piece = 0xffffffffu;
  });
  if (limits.pieces_per_batch_max > limits.pieces_per_write_max + 4) {
    check("one piece too many", KVFERRY_ERROR_LIMIT, [&](Batch& batch) {
      batch.gather(std::vector<kvferry_piece>(limits.pieces_per_write_max + 1u, kvferry_piece{source, 0, 1}), target, 0);
    });
  }
  drive_steps(pair.both, 200);
  CHECK(std::all_of(pair.target.data(), pair.target.data() + pair.target.bytes(), [](std::uint8_t byte) { return byte == 0; }));
  CHECK(pair.a->stats().batches_submitted == 0);
}

TEST_CASE("a batch beyond the limits, or without content, is refused") {
  Pair pair;
  const auto& limits = pair.a->limits();
  Batch many;
  many.writes.resize(limits.writes_per_batch_max + 1u, kvferry_write{pair.target.region(), 0, 0, 1, KVFERRY_OP_WRITE, 0});
  many.pieces.push_back({pair.source.region(), 0, 1});
  (void)refused(pair.a->submit(pair.to_b(), many.c()), ErrorCode::limit);
  Batch pieces;
  pieces.write(pair.source, 0, pair.target, 0, 1);
  pieces.pieces.resize(limits.pieces_per_batch_max + 1u, {pair.source.region(), 0, 1});
  (void)refused(pair.a->submit(pair.to_b(), pieces.c()), ErrorCode::limit);
  Batch nothing;
  (void)refused(pair.a->submit(pair.to_b(), nothing.c()), ErrorCode::invalid_argument);
  Batch mismatched;
  mismatched.room(4).notify();
  kvferry_batch c = mismatched.c();
  c.notification.room = 5;
  (void)refused(pair.a->submit(pair.to_b(), c), ErrorCode::invalid_argument);
  if (limits.message_bytes_max < (1u << 26)) {
    Pair large(limits.message_bytes_max + 1);
    Batch longer;
    longer.write(large.source, 0, large.target, 0, limits.message_bytes_max + 1);
    (void)refused(large.a->submit(large.to_b(), longer.c()), ErrorCode::limit);
    Batch longest;
    longest.write(large.source, 0, large.target, 1, limits.message_bytes_max);
    run_done(large.a, large.to_b(), longest, large.both);
    CHECK(std::memcmp(large.source.data(), large.target.data() + 1, limits.message_bytes_max) == 0);
  }
}

TEST_CASE("a full window takes nothing more, and takes again after progress") {
  constexpr std::uint64_t kBytes = 1u << 20;
  Pair pair(kBytes);
  const auto& limits = pair.a->limits();
  const std::uint64_t length = std::min<std::uint64_t>(limits.message_bytes_max, kBytes);
  std::vector<std::uint64_t> tags;
  bool full = false;
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i <= limits.batches_in_flight_max && !full; ++i) {  // nobody makes progress
    Batch batch;
    batch.write(pair.source, 0, pair.target, 0, length);
    const auto accepted = ok(pair.a->submit(pair.to_b(), batch.c()));
    full = accepted.writes == 0 && !accepted.all;
    if (full) continue;
    tags.push_back(batch.c().tag);
    bytes += length;
  }
  CHECK(full);
  CHECK_FALSE(tags.empty());
  if (limits.bytes_in_flight_max != 0) CHECK(bytes <= limits.bytes_in_flight_max);
  CHECK(ok(pair.a->peer_state(pair.to_b())).batches_in_flight == tags.size());
  for (const auto tag : tags)
    drive(
        pair.both, [&] { return pair.a.terminal(tag) != nullptr; }, "a batch of a full window ends");
  CHECK(pair.a.count(KVFERRY_EVENT_BATCH_DONE) == tags.size());
  CHECK(ok(pair.a->peer_state(pair.to_b())).batches_in_flight == 0);
  Batch again;
  again.write(pair.source, 0, pair.target, 0, length);
  run_done(pair.a, pair.to_b(), again, pair.both);
}

TEST_CASE("what is accepted of a batch is its front, and the rest can follow") {
  constexpr std::uint64_t kBytes = 8u << 20;
  Pair pair(kBytes);
  const auto& limits = pair.a->limits();
  const std::uint64_t length = std::min<std::uint64_t>(limits.message_bytes_max, 1u << 20);
  const std::uint64_t per_batch = std::min<std::uint64_t>({limits.writes_per_batch_max, limits.pieces_per_batch_max, kBytes / length});
  std::uint64_t salt = 40;
  for (int round = 0; round < 12; ++round) {
    pair.source.fill(++salt);
    pair.target.clear(0);
    Batch batch;
    for (std::uint64_t i = 0; i < per_batch; ++i) batch.write(pair.source, i * length, pair.target, i * length, length);
    run_done(pair.a, pair.to_b(), batch, pair.both);
    check_bytes(pair.target, std::vector<std::uint8_t>(pair.source.data(), pair.source.data() + per_batch * length));
  }
}

TEST_CASE("flush answers when everything submitted before has ended") {
  Pair pair(1u << 20);
  if (pair.a->plugin().table->flush == nullptr) return skip("the plugin has no flush");
  ok(pair.a->flush(pair.to_b(), 4711));
  drive(
      pair.both, [&] { return pair.a.find(KVFERRY_EVENT_FLUSHED, 4711) != nullptr; }, "an empty flush is answered");
  std::vector<std::uint64_t> tags;
  for (int i = 0; i < 3; ++i) {
    Batch batch;
    batch.write(pair.source, 0, pair.target, 0, 65'536);
    tags.push_back(submit(pair.a, pair.to_b(), batch, pair.both));
  }
  ok(pair.a->flush(pair.to_b(), 4712));
  drive(
      pair.both, [&] { return pair.a.find(KVFERRY_EVENT_FLUSHED, 4712) != nullptr; }, "a flush is answered");
  const auto* const flushed = pair.a.find(KVFERRY_EVENT_FLUSHED, 4712);
  for (const auto tag : tags) {
    REQUIRE(pair.a.terminal(tag) != nullptr);
    CHECK(pair.a.terminal(tag) < flushed);
  }
}

TEST_CASE("stats add up over a run") {
  Pair pair(1u << 20);
  std::uint64_t writes = 0, pieces = 0, bytes = 0;
  for (std::uint32_t i = 0; i < 50; ++i) {
    Batch batch;
    batch.write(pair.source, 0, pair.target, 0, 1000 + i).write(pair.source, 5000, pair.target, 9000, 17).room(i).notify(i);
    if (pair.a->limits().pieces_per_write_max >= 2) {
      batch.gather({{pair.source.region(), 0, 5}, {pair.source.region(), 50, 6}}, pair.target.region(), 20'000);
    }
    for (const auto& piece : batch.pieces) bytes += piece.length;
    writes += batch.writes.size();
    pieces += batch.pieces.size();
    run_done(pair.a, pair.to_b(), batch, pair.both);
  }
  const auto a = pair.a->stats();
  const auto b = pair.b->stats();
  CHECK(a.batches_submitted >= 50);
  CHECK(a.batches_done == a.batches_submitted);
  CHECK(a.batches_failed == 0);
  CHECK(a.writes == writes);
  CHECK(a.pieces == pieces);
  CHECK(a.bytes == bytes);
  CHECK(a.notifications_sent == 50);
  CHECK(b.notifications_received == 50);
  CHECK(b.batches_submitted == 0);
  CHECK(a.peers == 1);
  CHECK(a.progress_calls > 0);
  if (pair.a->has(KVFERRY_CAP_GUARDED_TARGET) && ok(pair.a->peer_state(pair.to_b())).mapped_regions == 0) {
    CHECK(b.bytes_applied == bytes);
    CHECK(b.pieces_refused == 0);
    CHECK(b.pieces_fenced == 0);
  }
}
