// The loopback backend's faults, each by its setting, and its limits. Run with KVFERRY_CONFORMANCE_CLOCK=virtual and the tag [faults]: time is
// virtual, a step is a microsecond.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "harness.h"

using namespace conformance;

namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;

/// (kind, tag or chunk) of everything a side was told, in order.
std::vector<std::pair<std::uint32_t, std::uint64_t>> trace_of(const Side& side, std::uint64_t first_tag) {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> trace;
  for (const auto& event : side.events) {
    const bool batch = event.kind == KVFERRY_EVENT_BATCH_DONE || event.kind == KVFERRY_EVENT_BATCH_FAILED;
    const bool notification = event.kind == KVFERRY_EVENT_NOTIFICATION;
    trace.emplace_back(event.kind, notification ? event.notification.chunk : (batch ? event.tag - first_tag : event.tag));
  }
  return trace;
}

std::vector<std::uint32_t> chunks_of(const Side& side, std::uint64_t room) {
  std::vector<std::uint32_t> chunks;
  for (const auto& event : side.events) {
    if (event.kind == KVFERRY_EVENT_NOTIFICATION && event.room == room) chunks.push_back(event.notification.chunk);
  }
  return chunks;
}

}  // namespace

TEST_CASE("settings that make no sense are refused by name", "[.faults]") {
  const auto check = [](const Settings& settings, const std::vector<std::string>& parts) {
    const auto error = refused(Backend::create(plugin(), host(), settings), ErrorCode::invalid_argument);
    for (const auto& part : parts) CHECK(error.text.find(part) != std::string::npos);
  };
  check({{"seed", ""}}, {"seed", "\"\""});
  check({{"seed", "-1"}}, {"seed", "-1"});
  check({{"seed", "12x"}}, {"seed", "12x"});
  check({{"seed", "18446744073709551616"}}, {"seed", "18446744073709551616"});
  check({{"seed", " 5"}}, {"seed"});
  check({{"seed", "1"}, {"seed", "2"}}, {"seed", "twice"});
  check({{"reorder_permille", "1001"}}, {"reorder_permille", "1001", "1000"});
  check({{"window_bytes", "0"}}, {"window_bytes", "0"});
  check({{"message_bytes_max", "4096"}, {"window_bytes", "1024"}}, {"message_bytes_max", "4096", "window_bytes", "1024"});
  check({{"delay_min_ns", "10"}, {"delay_max_ns", "9"}}, {"delay_min_ns", "10", "delay_max_ns", "9"});
  check({{"fail_entry", "submit"}}, {"fail_entry", "fail_nth"});
  check({{"fail_nth", "1"}}, {"fail_entry", "fail_nth"});
  check({{"fail_entry", "sumbit"}, {"fail_nth", "1"}}, {"sumbit"});
  Side side({{"seed", "18446744073709551615"}, {"fail_entry", "fence"}, {"fail_nth", "9"}});
  const auto config = nlohmann::json::parse(ok(side->effective_config()));
  CHECK(config.at("seed") == 18446744073709551615u);
  CHECK(config.at("fail_entry") == "fence");
  CHECK(config.at("window_bytes") == 32u << 20);
}

TEST_CASE("an endpoint of another process is refused with both process ids", "[.faults]") {
  Side side;
  FILE* const other = popen((std::string("/proc/") + std::to_string(getpid()) + "/exe --print-endpoint").c_str(), "r");
  REQUIRE(other != nullptr);
  char hex[512] = {};
  CHECK(std::fgets(hex, sizeof(hex), other) != nullptr);
  CHECK(pclose(other) == 0);
  std::vector<std::uint8_t> blob;
  for (const char* digits = hex; digits[0] > ' ' && digits[1] > ' '; digits += 2) {
    blob.push_back(static_cast<std::uint8_t>(std::stoul(std::string(digits, 2), nullptr, 16)));
  }
  REQUIRE(blob.size() == side->limits().endpoint_bytes_max);
  const auto peer = new_peer(side);
  const auto error = refused(side->peer_connect(peer, blob, 0), ErrorCode::unsupported);
  CHECK(error.text.find("this is process " + std::to_string(getpid())) != std::string::npos);
  CHECK(error.text.find("one process only") != std::string::npos);
  CHECK(ok(side->peer_state(peer)).state == KVFERRY_PEER_CREATED);
}

TEST_CASE("a window takes exactly what fits, as a prefix", "[.faults]") {
  Pair pair(16'384, {{"window_bytes", "4096"}, {"message_bytes_max", "1024"}});
  const auto eight = [&](std::uint64_t length) {
    Batch batch;
    for (std::uint64_t i = 0; i < 8; ++i) batch.write(pair.source, i * 1024, pair.target, i * 1024, length);
    return batch;
  };
  Batch batch = eight(1024);
  auto accepted = ok(pair.a->submit(pair.to_b(), batch.c()));
  CHECK(accepted.writes == 4);
  CHECK_FALSE(accepted.all);
  CHECK(ok(pair.a->submit(pair.to_b(), batch.c())).writes == 0);
  CHECK(ok(pair.a->peer_state(pair.to_b())).bytes_in_flight == 4096);
  drive(
      pair.both, [&] { return pair.a.terminal(batch.c().tag) != nullptr; }, "the prefix ends");
  CHECK(pair.a.terminal(batch.c().tag)->bytes == 4096);
  CHECK(std::memcmp(pair.source.data(), pair.target.data(), 4096) == 0);
  CHECK(pair.target.data()[4096] == 0);
  Batch odd = eight(1000);
  CHECK(ok(pair.a->submit(pair.to_b(), odd.c())).writes == 4);  // 4000 of 4096
  Batch small;
  small.write(pair.source, 0, pair.target, 0, 97);
  CHECK(ok(pair.a->submit(pair.to_b(), small.c())).writes == 0);
  Batch smaller;
  smaller.write(pair.source, 0, pair.target, 0, 96);
  CHECK(ok(pair.a->submit(pair.to_b(), smaller.c())).writes == 1);
}

TEST_CASE("the number of batches in flight is what the limit says", "[.faults]") {
  Pair pair(4096, {{"batches_in_flight_max", "3"}});
  for (int i = 0; i < 4; ++i) {
    Batch batch;
    batch.write(pair.source, 0, pair.target, 0, 1);
    CHECK(ok(pair.a->submit(pair.to_b(), batch.c())).writes == (i < 3 ? 1u : 0u));
  }
}

TEST_CASE("nothing arrives before its delay, and without reordering in the order of sending", "[.faults]") {
  Pair pair(4096, {{"seed", "5"}, {"delay_min_ns", "2000000"}, {"delay_max_ns", "9000000"}});
  const auto sent_ns = test_clock().now_ns();
  std::vector<std::uint64_t> tags;
  for (std::uint32_t i = 0; i < 10; ++i) {
    Batch batch;
    batch.write(pair.source, i, pair.target, i, 1).room(i % 3).notify(i);
    tags.push_back(batch.c().tag);
    REQUIRE(ok(pair.a->submit(pair.to_b(), batch.c())).all);
  }
  drive(
      pair.both, [&] { return pair.b.count(KVFERRY_EVENT_NOTIFICATION) > 0; }, "the first arrives");
  CHECK(test_clock().now_ns() - sent_ns >= 2 * kMillisecond);
  drive(
      pair.both, [&] { return pair.a.terminal(tags.back()) != nullptr; }, "the last ends");
  CHECK(test_clock().now_ns() - sent_ns <= 40 * kMillisecond);
  std::vector<std::uint32_t> chunks;
  for (const auto& event : pair.b.events) {
    if (event.kind == KVFERRY_EVENT_NOTIFICATION) chunks.push_back(event.notification.chunk);
  }
  CHECK(std::is_sorted(chunks.begin(), chunks.end()));
  CHECK(chunks.size() == 10);
}

TEST_CASE("with reordering rooms overtake each other, and no notification comes before its data or out of its room's order", "[.faults]") {
  std::size_t overtaken = 0;
  for (const char* same_room : {"0", "1"}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      INFO("seed " << seed << ", reorder_same_room " << same_room);
      const Settings faults = {{"seed", std::to_string(seed)},   {"delay_max_ns", "50000"},       {"reorder_permille", "500"},
                               {"reorder_same_room", same_room}, {"batches_in_flight_max", "32"}, {"progress_bytes", "700"}};
      Pair pair(64 * 512, faults, faults);
      std::vector<std::uint64_t> tags;
      for (std::uint32_t i = 0; i < 30; ++i) {
        Batch batch;
        batch.write(pair.source, i * 512u, pair.target, i * 512u, 512).room(i % 4).notify(i);
        tags.push_back(batch.c().tag);
        REQUIRE(ok(pair.a->submit(pair.to_b(), batch.c())).all);
      }
      std::size_t seen = 0;
      std::uint32_t last = 0;
      drive(
          pair.both,
          [&] {
            for (; seen < pair.b.events.size(); ++seen) {
              const auto& event = pair.b.events[seen];
              if (event.kind != KVFERRY_EVENT_NOTIFICATION) continue;
              for (std::uint32_t i = static_cast<std::uint32_t>(event.room); i <= event.notification.chunk; i += 4) {
                if (std::memcmp(pair.source.data() + i * 512u, pair.target.data() + i * 512u, 512) != 0) FAIL("notified before the data of " << i);
              }
              if (event.notification.chunk < last) ++overtaken;
              last = event.notification.chunk;
            }
            return std::all_of(tags.begin(), tags.end(), [&](auto tag) { return pair.a.terminal(tag) != nullptr; });
          },
          "all batches end");
      for (std::uint64_t room = 0; room < 4; ++room) {
        const auto chunks = chunks_of(pair.b, room);
        CHECK(std::is_sorted(chunks.begin(), chunks.end()));
      }
      CHECK(pair.b.count(KVFERRY_EVENT_NOTIFICATION) == 30);
    }
  }
  CHECK(overtaken > 100);
}

TEST_CASE("partial acceptance takes a front of any length, and what follows completes it", "[.faults]") {
  Pair pair(1u << 18, {{"seed", "3"}, {"partial_accept_permille", "700"}});
  std::set<std::uint32_t> counts;
  for (int round = 0; round < 60; ++round) {
    pair.target.clear(0);
    Batch batch;
    for (std::uint64_t i = 0; i < 64; ++i) batch.write(pair.source, i * 4096, pair.target, i * 4096, 4096);
    batch.room(1).notify(static_cast<std::uint32_t>(round));
    std::size_t left = 64;
    while (left > 0) {
      const auto accepted = ok(pair.a->submit(pair.to_b(), batch.c()));
      counts.insert(accepted.writes);
      batch.drop_front(accepted.writes);
      batch.tag(next_tag());
      left -= accepted.writes;
      if (accepted.all != (left == 0)) FAIL("all is " << accepted.all << " with " << left << " left");
      drive_steps(pair.both, 1);
    }
    drive(
        pair.both, [&] { return pair.b.count(KVFERRY_EVENT_NOTIFICATION) == static_cast<std::size_t>(round) + 1; }, "the notification arrives");
    if (std::memcmp(pair.source.data(), pair.target.data(), 1u << 18) != 0) FAIL("wrong bytes in round " << round);
  }
  CHECK(counts.size() > 20);
  CHECK(counts.count(0) == 1);
  CHECK(counts.count(64) == 1);
}

TEST_CASE("the target refuses the batch it was told to, and only that", "[.faults]") {
  Pair pair(4096, {}, {{"refuse_nth_batch", "3"}});
  for (std::uint32_t i = 1; i <= 5; ++i) {
    Batch batch;
    batch.write(pair.source, 0, pair.target, 0, 64).room(i).notify(i);
    const auto event = run(pair.a, pair.to_b(), batch, pair.both);
    CHECK((event.kind == KVFERRY_EVENT_BATCH_FAILED) == (i == 3));
    if (i == 3) {
      CHECK(event.error.code == KVFERRY_ERROR_REFUSED);
      CHECK(std::string(event.error.text).find("fault injected") != std::string::npos);
    }
  }
  REQUIRE(pair.b.count(KVFERRY_EVENT_PIECE_REFUSED) == 1);
  CHECK(pair.b.find(KVFERRY_EVENT_PIECE_REFUSED)->room == 3);
  CHECK(chunks_of(pair.b, 3).empty());
}

TEST_CASE("a lost completion leaves the batch to its deadline, and the window comes back", "[.faults]") {
  Pair pair(4096, {{"batches_in_flight_max", "2"}}, {{"lose_completion_nth", "2"}});
  Batch first, lost, third;
  first.write(pair.source, 0, pair.target, 0, 64).room(1);
  run_done(pair.a, pair.to_b(), first, pair.both);
  lost.write(pair.source, 64, pair.target, 64, 64).room(2).notify(2).deadline(test_clock().now_ns() + 50 * kMillisecond);
  (void)submit(pair.a, pair.to_b(), lost, pair.both);
  drive(
      pair.both, [&] { return pair.b.count(KVFERRY_EVENT_NOTIFICATION) == 1; }, "the data of the lost completion arrives");
  CHECK(std::memcmp(pair.source.data() + 64, pair.target.data() + 64, 64) == 0);
  drive_steps(pair.both, 100);
  CHECK(pair.a.terminal(lost.c().tag) == nullptr);
  third.write(pair.source, 128, pair.target, 128, 64).room(3);
  run_done(pair.a, pair.to_b(), third, pair.both);
  test_clock().advance(50 * kMillisecond);
  drive(
      pair.both, [&] { return pair.a.terminal(lost.c().tag) != nullptr; }, "the deadline ends it");
  CHECK(pair.a.terminal(lost.c().tag)->error.code == KVFERRY_ERROR_TIMEOUT);
  for (int i = 0; i < 5; ++i) {
    Batch again;
    again.write(pair.source, 0, pair.target, 0, 64).room(4);
    run_done(pair.a, pair.to_b(), again, pair.both);
  }
}

TEST_CASE("a backend that dies is noticed after the time that was set, or never", "[.faults]") {
  for (const char* notice : {"5000000", "0"}) {
    INFO("notice " << notice);
    Pair pair(4096, {{"die_after_batches", "2"}, {"die_notice_ns", notice}});
    Batch first, last;
    first.write(pair.source, 0, pair.target, 0, 64).room(1).notify(1);
    run_done(pair.a, pair.to_b(), first, pair.both);
    last.write(pair.source, 64, pair.target, 64, 64).room(2).notify(2).deadline(test_clock().now_ns() + 10 * kMillisecond);
    REQUIRE(ok(pair.a->submit(pair.to_b(), last.c())).all);
    // What the dead one had in flight does not arrive, and what is sent to it is not answered.
    Buffer back(pair.a, 64, KVFERRY_ACCESS_REMOTE_WRITE);
    share(pair.a, {back.region()}, pair.b, pair.to_a());
    Buffer answer(pair.b, 64, KVFERRY_ACCESS_LOCAL);
    answer.fill(9);
    back.clear(0);
    Batch reply;
    reply.write(answer, 0, back, 0, 64).room(3).notify(3);
    REQUIRE(ok(pair.b->submit(pair.to_a(), reply.c())).all);
    drive_steps(pair.both, 4'000);
    CHECK(pair.b.count(KVFERRY_EVENT_NOTIFICATION) == 1);
    CHECK(pair.b.count(KVFERRY_EVENT_PEER_LOST) == 0);
    drive_steps(pair.both, 2'000);
    CHECK(pair.b.count(KVFERRY_EVENT_PEER_LOST) == (notice[0] == '5' ? 1u : 0u));
    drive_steps(pair.both, 6'000);
    CHECK(pair.b.count(KVFERRY_EVENT_PEER_LOST) == (notice[0] == '5' ? 1u : 0u));
    CHECK(pair.target.data()[64] == 0);
    CHECK(back.data()[0] == 0);
    REQUIRE(pair.a.terminal(last.c().tag) != nullptr);
    CHECK(pair.a.terminal(last.c().tag)->error.code == KVFERRY_ERROR_TIMEOUT);
    pair.a.destroy();
    pair.b.destroy();
  }
}

TEST_CASE("corruption flips exactly the byte it was asked for", "[.faults]") {
  for (const auto& [offset, expected] : {std::pair{"0", 0u}, {"77", 77u}, {"1000000", 999u}}) {
    Pair pair(16'384, {{"corrupt_nth_write", "5"}, {"corrupt_offset", offset}, {"seed", "1"}}, {{"progress_bytes", "100"}});
    Batch batch;
    for (std::uint64_t i = 0; i < 8; ++i) batch.write(pair.source, i * 1000, pair.target, i * 1000, 1000);
    batch.room(1).notify(1);
    run_done(pair.a, pair.to_b(), batch, pair.both);
    std::vector<std::uint64_t> wrong;
    for (std::uint64_t i = 0; i < 8'000; ++i) {
      if (pair.source.data()[i] != pair.target.data()[i]) wrong.push_back(i);
    }
    CHECK(wrong == std::vector<std::uint64_t>{4 * 1000 + expected});
    CHECK(pair.b.count(KVFERRY_EVENT_NOTIFICATION) == 1);
  }
}

TEST_CASE("with late landing what had left lands after the cancel, from the bytes of then, until the fence", "[.faults]") {
  for (const bool fence_first : {false, true}) {
    INFO((fence_first ? "fenced" : "not fenced"));
    Pair pair(65'536, {{"late_landing", "1"}, {"delay_min_ns", "1000000"}, {"delay_max_ns", "1000000"}});
    Batch batch;
    batch.write(pair.source, 0, pair.target, 0, 65'536).room(1).notify(1);
    REQUIRE(ok(pair.a->submit(pair.to_b(), batch.c())).all);
    drive_steps(pair.both, 10);
    ok(pair.a->cancel(pair.to_b(), 1, 0));
    ok(pair.a->cancel(pair.to_b(), 1, 1));
    drive(
        pair.both, [&] { return pair.a.count(KVFERRY_EVENT_INITIATOR_QUIESCED) == 2; }, "quiesced");
    CHECK(pair.a.terminal(batch.c().tag)->error.code == KVFERRY_ERROR_CANCELED);
    const std::vector<std::uint8_t> before(pair.source.data(), pair.source.data() + 65'536);
    pair.source.fill(0xbad);
    if (fence_first) ok(pair.b->fence(pair.to_a(), 1, 1, 9, 0));
    drive_steps(pair.both, 3'000);
    if (fence_first) {
      CHECK(std::all_of(pair.target.data(), pair.target.data() + 65'536, [](auto byte) { return byte == 0; }));
    } else {
      CHECK(std::equal(before.begin(), before.end(), pair.target.data()));
    }
    Batch next;
    next.write(pair.source, 0, pair.target, 0, 64).room(2);
    run_done(pair.a, pair.to_b(), next, pair.both);
  }
  // The same with a forced close: it lands until the goodbye arrives, never after.
  Pair pair(65'536, {{"late_landing", "1"}, {"delay_min_ns", "1000000"}, {"delay_max_ns", "1000000"}});
  Batch batch;
  batch.write(pair.source, 0, pair.target, 0, 65'536).room(1);
  REQUIRE(ok(pair.a->submit(pair.to_b(), batch.c())).all);
  drive_steps(pair.both, 500);
  ok(pair.a->peer_close(pair.to_b(), KVFERRY_CLOSE_FORCE, 0));
  drive(
      pair.both, [&] { return pair.a.count(KVFERRY_EVENT_PEER_CLOSED) == 1; }, "closed");
  pair.source.fill(0xbad);
  drive(
      pair.both, [&] { return pair.b.count(KVFERRY_EVENT_PEER_LOST) == 1; }, "the goodbye arrives");
  CHECK(pair.target.data()[0] == pattern(1, 0));
  const std::vector<std::uint8_t> landed(pair.target.data(), pair.target.data() + 65'536);
  drive_steps(pair.both, 3'000);
  CHECK(std::equal(landed.begin(), landed.end(), pair.target.data()));
}

TEST_CASE("the entry that is told to fail does so once, by name, and works before and after", "[.faults]") {
  const std::vector<std::pair<std::string, std::function<bool(Pair&)>>> calls = {
      {"effective_config", [](Pair& pair) { return bool(pair.a->effective_config()); }},
      {"register_region",
       [](Pair& pair) { return bool(pair.a->register_region({.address = reinterpret_cast<std::uint64_t>(pair.source.data()), .length = 1})); }},
      {"region_quiesce", [](Pair& pair) { return bool(pair.a->region_quiesce(pair.source.region(), 0, 1, 0)); }},
      {"allocate", [](Pair& pair) { return bool(pair.a->allocate(1, 0)); }},
      {"export_regions", [](Pair& pair) { return bool(pair.a->export_regions({})); }},
      {"peer_create", [](Pair& pair) { return bool(pair.a->peer_create({})); }},
      {"peer_export", [](Pair& pair) { return bool(pair.a->peer_export(pair.to_b())); }},
      {"forget_regions", [](Pair& pair) { return bool(pair.a->forget_regions(pair.to_b(), {})); }},
      {"peer_state", [](Pair& pair) { return bool(pair.a->peer_state(pair.to_b())); }},
      {"submit",
       [](Pair& pair) {
         Batch batch;
         batch.write(pair.source, 0, pair.target, 0, 1);
         return bool(pair.a->submit(pair.to_b(), batch.c()));
       }},
      {"cancel", [](Pair& pair) { return bool(pair.a->cancel(pair.to_b(), 1, 1)); }},
      {"fence", [](Pair& pair) { return bool(pair.a->fence(pair.to_b(), 1, 1, 1, 0)); }},
      {"flush", [](Pair& pair) { return bool(pair.a->flush(pair.to_b(), 1)); }},
      {"progress", [](Pair& pair) { return bool(pair.a->progress()); }},
      {"arm", [](Pair& pair) { return bool(pair.a->arm()); }},
  };
  for (const auto& [entry, call] : calls) {
    INFO(entry);
    // Connecting calls some of the entries already: the failing one is far enough behind.
    constexpr int kNth = 200;
    Pair pair(4096, {{"fail_entry", entry}, {"fail_nth", std::to_string(kNth)}});
    int failures = 0;
    for (int i = 0; i < 2 * kNth + 100; ++i) {
      if (!call(pair)) ++failures;
      if (entry == "submit" || entry == "flush") drive_steps(pair.both, 1);
      if (i % 50 == 0 && entry != "progress") pair.a.step();
    }
    CHECK(failures == 1);
  }
  const auto created = Backend::create(plugin(), host(), {{"fail_entry", "create"}, {"fail_nth", "1"}});
  CHECK(refused(created, ErrorCode::io).text.find("fault injected") != std::string::npos);
}

TEST_CASE("answers that are not polled are limited, not lost", "[.faults]") {
  Pair pair(4096, {{"control_events_max", "4"}, {"fences_max", "2"}, {"cancels_max", "2"}});
  for (std::uint64_t room = 0; room < 4; ++room) ok(pair.a->cancel(pair.to_b(), room, 1));
  const auto busy = refused(pair.a->cancel(pair.to_b(), 5, 1), ErrorCode::busy);
  CHECK(busy.error_class == kvferry::ErrorClass::retry);
  (void)refused(pair.a->fence(0, 1, 1, 1, 0), ErrorCode::busy);
  (void)refused(pair.a->flush(pair.to_b(), 1), ErrorCode::busy);
  (void)refused(pair.a->region_quiesce(pair.source.region(), 0, 1, 0), ErrorCode::busy);
  drive(
      pair.both, [&] { return pair.a.count(KVFERRY_EVENT_INITIATOR_QUIESCED) == 4; }, "the answers are polled");
  ok(pair.a->cancel(pair.to_b(), 5, 1));
  pair.a.step();
  // Of the canceled rooms only the last two are remembered; of the fenced ones all, or the fence is refused.
  Batch first, last;
  first.write(pair.source, 0, pair.target, 0, 1).room(0, 1);
  last.write(pair.source, 0, pair.target, 0, 1).room(5, 1);
  run_done(pair.a, pair.to_b(), first, pair.both);
  (void)refused(pair.a->submit(pair.to_b(), last.c()), ErrorCode::canceled);
  ok(pair.a->fence(0, 10, 1, 1, 0));
  ok(pair.a->fence(0, 11, 1, 1, 0));
  ok(pair.a->fence(0, 10, 2, 1, 0));
  const auto full = refused(pair.a->fence(0, 12, 1, 1, 0), ErrorCode::limit);
  CHECK(full.text.find("fences_max") != std::string::npos);
}

TEST_CASE("in steady state nothing is allocated, per write or per batch", "[.faults]") {
  Pair pair(1u << 20);
  Batch batch;
  for (std::uint64_t i = 0; i < 512; ++i) batch.write(pair.source, i * 2048, pair.target, i * 2048, 1024);
  batch.room(1).notify(1);
  const kvferry_batch& c = batch.c();
  const auto* const table = plugin().table;
  kvferry_event event;
  std::uint32_t accepted = 0, worked = 0, count = 0;
  std::uint64_t ended = 0;
  const auto round = [&] {
    if (table->submit(pair.a->handle(), pair.to_b(), &c, &accepted, nullptr) != KVFERRY_OK) FAIL("not accepted");
    for (std::uint64_t before = ended; ended == before;) {
      for (Side* side : pair.both) {
        if (table->progress((*side)->handle(), &worked, nullptr) != KVFERRY_OK) FAIL("no progress");
        event.struct_size = sizeof(event);
        if (table->poll((*side)->handle(), &event, 1, &count, nullptr) != KVFERRY_OK) FAIL("no poll");
        if (count == 1 && event.kind == KVFERRY_EVENT_BATCH_DONE) ++ended;
      }
    }
  };
  for (int i = 0; i < 200; ++i) round();
  const std::uint64_t before = allocations();
  for (int i = 0; i < 1'000; ++i) round();
  const std::uint64_t made = allocations() - before;
  CHECK(made == 0);
  std::vector<int> counted(100);  // the counter itself works
  CHECK(allocations() > before);
}

namespace {

/// Everything at once: rooms of batches, some canceled, some fenced, over a faulty wire. What must hold: done means every byte is right; after
/// the fence of a failed room no byte of it changes any more; nothing hangs past its deadline; nothing is answered twice.
struct Soak {
  explicit Soak(std::uint64_t seed) : random(seed), pair(kRooms * kRoomBytes, faults(seed, 1), faults(seed, 2)) {}

  static constexpr std::uint64_t kRooms = 24, kRoomBytes = 8'192, kPiece = 512;
  static Settings faults(std::uint64_t seed, std::uint64_t side) {
    return {{"seed", std::to_string(seed * 2 + side)},
            {"delay_max_ns", "40000"},
            {"reorder_permille", "200"},
            {"reorder_same_room", "1"},
            {"refuse_permille", "20"},
            {"lose_completion_permille", "30"},
            {"partial_accept_permille", "300"},
            {"late_landing", "1"},
            {"progress_bytes", "1500"},
            {"batches_in_flight_max", "8"},
            {"target_events_max", "3"},
            {"window_bytes", "16384"},
            {"message_bytes_max", "4096"}};
  }

  struct Room {
    std::uint64_t next = 0;  ///< byte to send next
    std::set<std::uint64_t> open, done;
    bool failed = false, canceled = false, quiesced = false, fenced = false, notified = false, announced = false;
    std::vector<std::uint8_t> frozen;  ///< its bytes at the moment it was fenced
  };

  void send(std::uint64_t number) {
    Room& room = rooms[number];
    if (room.failed || room.announced) return;
    Batch batch;
    std::uint64_t at = room.next;
    for (int i = 0; i < 4 && at < kRoomBytes; ++i, at += kPiece) {
      batch.write(pair.source, number * kRoomBytes + at, pair.target, number * kRoomBytes + at, kPiece);
    }
    batch.room(number).deadline(test_clock().now_ns() + 2 * kMillisecond);
    const bool last = at == kRoomBytes;
    if (last) batch.notify(static_cast<std::uint32_t>(number));
    const std::uint64_t tag = batch.c().tag;
    const auto accepted = ok(pair.a->submit(pair.to_b(), batch.c()));
    room.next += accepted.writes * kPiece;
    room.announced = accepted.all && last;
    if (accepted.writes > 0 || accepted.all) {
      room.open.insert(tag);
      tag_rooms[tag] = number;
    }
  }

  void fail(std::uint64_t number) {
    Room& room = rooms[number];
    room.failed = true;
    if (room.canceled) return;
    room.canceled = true;
    ok(pair.a->cancel(pair.to_b(), number, 1));
  }

  void look_at_initiator() {
    for (; seen_a < pair.a.events.size(); ++seen_a) {
      const auto& event = pair.a.events[seen_a];
      if (event.kind == KVFERRY_EVENT_BATCH_DONE || event.kind == KVFERRY_EVENT_BATCH_FAILED) {
        const auto number = tag_rooms.at(event.tag);
        Room& room = rooms[number];
        if (room.open.erase(event.tag) != 1) FAIL("batch " << event.tag << " ended twice");
        if (room.quiesced) FAIL("room " << number << " had a batch after it was quiesced");
        room.done.insert(event.tag);
        if (event.kind == KVFERRY_EVENT_BATCH_FAILED) fail(number);
      } else if (event.kind == KVFERRY_EVENT_INITIATOR_QUIESCED) {
        Room& room = rooms[event.room];
        if (room.quiesced) FAIL("room " << event.room << " was quiesced twice");
        if (!room.open.empty()) FAIL("room " << event.room << " was quiesced with open batches");
        room.quiesced = true;
        // The source is free: what is written into it now must never be seen at the target.
        pair.source.fill(0xbad, event.room * kRoomBytes, kRoomBytes);
        ok(pair.b->fence(pair.to_a(), event.room, 1, 100 + event.room, 0));
      } else {
        FAIL("event " << event.kind << ": " << event.error.text);
      }
    }
  }

  void look_at_target() {
    for (; seen_b < pair.b.events.size(); ++seen_b) {
      const auto& event = pair.b.events[seen_b];
      Room& room = rooms[event.room];
      if (event.kind == KVFERRY_EVENT_NOTIFICATION) {
        if (room.notified || room.fenced) FAIL("room " << event.room << " was notified twice, or after its fence");
        room.notified = true;
        for (std::uint64_t i = event.room * kRoomBytes; i < (event.room + 1) * kRoomBytes; ++i) {
          if (pair.target.data()[i] != pattern(1, i)) FAIL("room " << event.room << " was notified with a wrong byte at " << i);
        }
      } else if (event.kind == KVFERRY_EVENT_FENCED) {
        room.fenced = true;
        const auto* const begin = pair.target.data() + event.room * kRoomBytes;
        room.frozen.assign(begin, begin + kRoomBytes);
      } else if (event.kind != KVFERRY_EVENT_PIECE_REFUSED) {
        FAIL("event " << event.kind << ": " << event.error.text);
      }
    }
    for (const auto& [number, room] : rooms) {
      if (room.fenced && !std::equal(room.frozen.begin(), room.frozen.end(), pair.target.data() + number * kRoomBytes)) {
        FAIL("bytes landed in room " << number << " after its fence");
      }
    }
  }

  void run() {
    for (std::uint64_t number = 0; number < kRooms; ++number) rooms[number];
    seen_a = pair.a.events.size();  // coming up
    seen_b = pair.b.events.size();
    const auto begin_ns = test_clock().now_ns();
    bool finished = false;
    while (!finished) {
      if (test_clock().now_ns() - begin_ns > kSecond) FAIL("a room hangs");
      const auto number = random() % kRooms;
      if (random() % 100 < 2) fail(number);
      send(number);
      test_clock().tick();
      (random() % 2 == 0 ? pair.a : pair.b).step();
      look_at_initiator();
      look_at_target();
      finished = std::all_of(rooms.begin(), rooms.end(), [](const auto& entry) {
        const Room& room = entry.second;
        return room.failed ? room.fenced : room.announced && room.open.empty();
      });
    }
    drive_steps(pair.both, 500);
    look_at_initiator();
    look_at_target();
    for (const auto& [number, room] : rooms) {
      if (!room.failed && !room.notified) FAIL("room " << number << " was done without its notification");
      succeeded += room.failed ? 0 : 1;
    }
    const auto stats = pair.a->stats();
    CHECK(stats.batches_submitted == stats.batches_done + stats.batches_failed);
  }

  std::mt19937_64 random;
  Pair pair;
  std::map<std::uint64_t, Room> rooms;
  std::map<std::uint64_t, std::uint64_t> tag_rooms;
  std::size_t seen_a = 0, seen_b = 0;
  int succeeded = 0;
};

}  // namespace

TEST_CASE("over a faulty wire success means right bytes, and a fenced room does not change any more", "[.faults]") {
  int succeeded = 0, failed = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed + environment().seed);
    Soak soak(seed + environment().seed);
    soak.run();
    succeeded += soak.succeeded;
    failed += static_cast<int>(Soak::kRooms) - soak.succeeded;
  }
  CHECK(succeeded > 200);
  CHECK(failed > 200);
}

TEST_CASE("the same seed gives the same run, another one another", "[.faults]") {
  const auto trace = [](std::uint64_t seed) {
    Soak soak(seed);
    const auto first_tag = next_tag();
    soak.run();
    auto events = trace_of(soak.pair.a, first_tag);
    const auto of_b = trace_of(soak.pair.b, first_tag);
    events.insert(events.end(), of_b.begin(), of_b.end());
    return events;
  };
  const bool same = trace(7) == trace(7);
  const bool other = trace(7) != trace(8);
  CHECK(same);
  CHECK(other);
}
