// What a user of the engine core relies on, told as short stories on the virtual clock (support/world.h).
#include <catch2/catch.hpp>

#include "support/counted_new.h"
#include "support/test_pools.h"
#include "support/world.h"

namespace kvferry::test {
namespace {

constexpr std::size_t kPages = static_cast<std::size_t>(IndexSpace::pages), kWindow = static_cast<std::size_t>(IndexSpace::window_pages);
constexpr std::uint8_t kPoison = 0xEE;

EngineOptions options_for(EngineRole role, const Pool& pool, std::uint32_t pp_rank = 0) {
  EngineOptions options;
  options.role = role;
  options.pool = pool;
  options.writer = {0, pp_rank};
  options.writes_per_batch = 4;  // so that a small request is in flight for many steps
  options.batches_per_peer = 2;
  return options;
}

void register_memory(Actor& actor, PoolMemory& memory, std::uint32_t access) {
  Backend::RegionRequest request;
  request.address = memory.base();
  request.length = memory.length();
  request.access = access;
  const auto region = actor.engine->register_region(request);
  REQUIRE(region.has_value());
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// One prefill engine per stage and one decode engine, connected.
struct Pair {
  explicit Pair(std::vector<Stage> stages = {{0, 4}}, const Settings& prefill_settings = {}, const Settings& decode_settings = {}, bool connect = true,
                PoolShape decode_shape = {})
      : world(7) {
    decode_shape.stage = {0, decode_shape.layers_total};
    decode_memory = std::make_unique<PoolMemory>(decode_shape);
    std::fill(decode_memory->bytes.begin(), decode_memory->bytes.end(), kPoison);
    decode = &world.add("decode", options_for(EngineRole::decode, decode_memory->pool), decode_settings);
    register_memory(*decode, *decode_memory, KVFERRY_ACCESS_REMOTE_WRITE);
    for (std::uint32_t i = 0; i < stages.size(); ++i) {
      PoolShape shape;
      shape.layers_total = decode_shape.layers_total;
      shape.stage = stages[i];
      memory.push_back(std::make_unique<PoolMemory>(shape));
      prefill.push_back(&world.add("prefill" + std::to_string(i), options_for(EngineRole::prefill, memory.back()->pool, i), prefill_settings));
      register_memory(*prefill.back(), *memory.back(), KVFERRY_ACCESS_LOCAL);
      if (!connect) continue;
      const auto [there, back] = world.connect_up(*prefill.back(), *decode);
      to_decode.push_back(there);
      to_prefill.push_back(back);
    }
  }

  void fill(std::uint64_t room, const IndicesBySpace& indices) {
    for (auto& side : memory) {
      for (const Entry& entry : side->pool.entries) {
        const auto& list = indices[static_cast<std::size_t>(entry.space)];
        for (std::uint64_t i = 0; i < list.size(); ++i) {
          for (std::uint64_t offset = 0; offset < entry.item_length_bytes; ++offset) side->item(entry, list[i])[offset] = pattern_byte(room, entry, i, offset);
        }
      }
    }
  }

  std::uint64_t wrong_bytes(std::uint64_t room, const IndicesBySpace& indices) {
    std::uint64_t wrong = 0;
    for (const Entry& entry : decode_memory->pool.entries) {
      const auto& list = indices[static_cast<std::size_t>(entry.space)];
      for (std::uint64_t i = 0; i < list.size(); ++i) {
        for (std::uint64_t offset = 0; offset < entry.item_length_bytes; ++offset) {
          wrong += decode_memory->item(entry, list[i])[offset] != pattern_byte(room, entry, i, offset);
        }
      }
    }
    return wrong;
  }

  TransferId submit(std::size_t stage, std::uint64_t room, const IndicesBySpace& indices, std::uint64_t deadline_ns = 0) {
    PagedTransfer transfer;
    transfer.peer = to_decode[stage];
    transfer.room = room;
    transfer.indices = indices;
    transfer.deadline_ns = deadline_ns;
    const auto id = prefill[stage]->engine->submit(std::move(transfer));
    INFO((id ? "" : id.error().text));
    REQUIRE(id.has_value());
    return *id;
  }

  TransferId expect(std::uint64_t room, const IndicesBySpace& indices, std::uint64_t deadline_ns = 0) {
    Expectation expectation;
    expectation.room = room;
    expectation.writers = to_prefill;
    expectation.indices = indices;
    expectation.deadline_ns = deadline_ns;
    const auto id = decode->engine->expect(std::move(expectation));
    INFO((id ? "" : id.error().text));
    REQUIRE(id.has_value());
    return *id;
  }

  bool ended(Actor& actor, TransferId id) { return actor.has(EventKind::transfer_done, id) || actor.has(EventKind::transfer_failed, id); }
  bool quiesced(Actor& actor, TransferId id) { return actor.has(EventKind::transfer_quiesced, id); }
  bool run(const std::function<bool()>& done, std::uint64_t limit_ns = 20 * kSecond) { return world.run(done, limit_ns); }

  // A request in one chunk that must pass.
  void must_serve(std::uint64_t room) {
    IndicesBySpace source, target;
    source[kPages] = {room % 50, 51, 52};
    target[kPages] = {9, 3, 4};
    source[kWindow] = {1};
    target[kWindow] = {2};
    fill(room, source);
    const TransferId expected = expect(room, target, world.now_ns + 10 * kSecond);
    for (std::size_t stage = 0; stage < prefill.size(); ++stage) submit(stage, room, source, world.now_ns + 10 * kSecond);
    REQUIRE(run([&] { return ended(*decode, expected); }));
    const Event* failed = decode->find(EventKind::transfer_failed, expected);
    INFO((failed != nullptr ? failed->error->text : ""));
    REQUIRE(failed == nullptr);
    CHECK(wrong_bytes(room, target) == 0);
  }

  World world;
  std::unique_ptr<PoolMemory> decode_memory;
  std::vector<std::unique_ptr<PoolMemory>> memory;
  Actor* decode = nullptr;
  std::vector<Actor*> prefill;
  std::vector<PeerId> to_decode, to_prefill;
};

IndicesBySpace pages(std::vector<std::uint64_t> list, std::vector<std::uint64_t> window = {}) {
  IndicesBySpace indices;
  indices[kPages] = std::move(list);
  indices[kWindow] = std::move(window);
  return indices;
}

}  // namespace

TEST_CASE("two uneven stages fill one decode pool and nothing else of it changes") {
  Pair pair({{0, 3}, {3, 4}});
  const auto source = pages({5, 6, 9, 30}, {3, 1}), target = pages({60, 61, 2, 7}, {0, 15});
  pair.fill(42, source);
  const TransferId expected = pair.expect(42, target);
  const TransferId first = pair.submit(0, 42, source), second = pair.submit(1, 42, source);
  REQUIRE(pair.run([&] { return pair.ended(*pair.decode, expected) && pair.ended(*pair.prefill[0], first) && pair.ended(*pair.prefill[1], second); }));
  CHECK(pair.decode->count(EventKind::transfer_done, expected) == 1);
  CHECK(pair.decode->count(EventKind::transfer_quiesced, expected) == 1);
  CHECK(pair.wrong_bytes(42, target) == 0);
  std::uint64_t changed = 0;
  for (const std::uint8_t byte : pair.decode_memory->bytes) changed += byte != kPoison;
  const std::uint64_t moved = 4 * (2 * 4 * 256 + 2 * 96);
  CHECK(changed <= moved);
  CHECK(pair.decode->find(EventKind::transfer_done, expected)->figures.bytes == moved);
  CHECK(pair.prefill[0]->find(EventKind::transfer_done, first)->figures.bytes == moved / 4 * 3);
  CHECK(pair.prefill[0]->find(EventKind::transfer_done, first)->figures.writes_before_merge == 3 * (2 * 4 + 2));
}

TEST_CASE("chunks arrive in any number of submits and the target is done after the last one of every writer") {
  Pair pair;
  const auto source = pages({5, 6, 9, 30, 31}, {3}), target = pages({60, 61, 2, 7, 8}, {4});
  pair.fill(8, source);
  const TransferId expected = pair.expect(8, target);
  std::vector<TransferId> chunks;
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> cuts = {{0, 2}, {2, 0}, {2, 3}};
  for (std::uint32_t i = 0; i < cuts.size(); ++i) {
    PagedTransfer transfer;
    transfer.peer = pair.to_decode[0];
    transfer.room = 8;
    transfer.chunk = i;
    transfer.last = i + 1 == cuts.size();
    const auto from = source[kPages].begin() + static_cast<std::ptrdiff_t>(cuts[i].first);
    transfer.indices[kPages].assign(from, from + static_cast<std::ptrdiff_t>(cuts[i].second));
    transfer.target_first[kPages] = cuts[i].first;
    if (transfer.last) transfer.indices[kWindow] = source[kWindow];
    chunks.push_back(*pair.prefill[0]->engine->submit(std::move(transfer)));
    REQUIRE(pair.run([&] { return pair.ended(*pair.prefill[0], chunks.back()); }));
    CHECK(pair.decode->has(EventKind::transfer_done, expected) == (i + 1 == cuts.size()));
  }
  CHECK(pair.decode->count(EventKind::chunk_arrived, expected) == 3);
  CHECK(pair.wrong_bytes(8, target) == 0);
}

TEST_CASE("a request without pages still ends on both sides") {
  Pair pair;
  const TransferId expected = pair.expect(5, {}), sent = pair.submit(0, 5, {});
  REQUIRE(pair.run([&] { return pair.ended(*pair.decode, expected) && pair.ended(*pair.prefill[0], sent); }));
  CHECK(pair.decode->has(EventKind::transfer_done, expected));
  CHECK(pair.prefill[0]->find(EventKind::transfer_done, sent)->figures.bytes == 0);
}

TEST_CASE("it does not matter which side comes first") {
  Pair pair;
  const auto source = pages({1, 2}), target = pages({3, 4});
  pair.fill(6, source);
  const TransferId sent = pair.submit(0, 6, source);
  (void)pair.run([] { return false; }, 50 * kMillisecond);
  CHECK_FALSE(pair.ended(*pair.prefill[0], sent));
  const TransferId expected = pair.expect(6, target);
  REQUIRE(pair.run([&] { return pair.ended(*pair.decode, expected); }));
  CHECK(pair.wrong_bytes(6, target) == 0);

  const TransferId expected_first = pair.expect(7, target);
  (void)pair.run([] { return false; }, 50 * kMillisecond);
  pair.fill(7, source);
  pair.submit(0, 7, source);
  REQUIRE(pair.run([&] { return pair.ended(*pair.decode, expected_first); }));
  CHECK(pair.wrong_bytes(7, target) == 0);
}

TEST_CASE("submits made before the peer is up are kept and served") {
  Pair pair({{0, 4}}, {}, {}, false);
  pair.to_decode.push_back(pair.world.connect(*pair.prefill[0], "decode"));
  const auto source = pages({1, 2}), target = pages({3, 4});
  pair.fill(6, source);
  const TransferId sent = pair.submit(0, 6, source);
  REQUIRE(pair.run([&] { return pair.decode->peer_named("prefill0") != PeerId{}; }));
  pair.to_prefill.push_back(pair.decode->peer_named("prefill0"));
  const TransferId expected = pair.expect(6, target);
  REQUIRE(pair.run([&] { return pair.ended(*pair.decode, expected) && pair.ended(*pair.prefill[0], sent); }));
  CHECK(pair.wrong_bytes(6, target) == 0);
}

TEST_CASE("a submit that waits for a peer which never comes up fails with the peer's cause") {
  Pair pair({{0, 4}}, {}, {}, false);
  pair.to_decode.push_back(pair.world.connect(*pair.prefill[0], "nowhere"));
  const TransferId sent = pair.submit(0, 6, pages({1, 2}));
  REQUIRE(pair.run([&] { return pair.quiesced(*pair.prefill[0], sent); }));
  CHECK(contains(pair.prefill[0]->find(EventKind::transfer_failed, sent)->error->text, "nowhere"));
}

TEST_CASE("layouts that do not fit are refused at connect time, with both values, on both sides") {
  PoolShape wide;
  wide.item_bytes = wide.pitch_bytes = 512;
  Pair pair({{0, 4}}, {}, {}, false, wide);
  const PeerId there = pair.world.connect(*pair.prefill[0], "decode");
  REQUIRE(pair.run([&] { return pair.prefill[0]->find_peer(EventKind::peer_quiesced, there) != nullptr; }));
  const Event* lost = pair.prefill[0]->find_peer(EventKind::peer_lost, there);
  REQUIRE(lost != nullptr);
  INFO(lost->error->text);
  CHECK(lost->error->code == ErrorCode::mismatch);
  CHECK(contains(lost->error->text, "256"));
  CHECK(contains(lost->error->text, "512"));
  const bool decode_knows = std::any_of(pair.decode->log.begin(), pair.decode->log.end(), [](const Event& event) {
    return event.kind == EventKind::peer_lost && contains(event.error->text, "256") && contains(event.error->text, "512");
  });
  CHECK(decode_knows);
}

TEST_CASE("an engine without a layout and one with a layout do not connect") {
  Pair pair({{0, 4}}, {}, {}, false);
  EngineOptions bare;
  Actor& other = pair.world.add("bare", bare);
  const PeerId there = pair.world.connect(other, "decode");
  REQUIRE(pair.run([&] { return other.find_peer(EventKind::peer_lost, there) != nullptr; }));
  CHECK(other.find_peer(EventKind::peer_lost, there)->error->code == ErrorCode::mismatch);
}

TEST_CASE("nobody at the address and a peer that never answers are errors with the address and the step") {
  Pair pair;
  const PeerId nobody = pair.world.connect(*pair.prefill[0], "nowhere");
  REQUIRE(pair.run([&] { return pair.prefill[0]->find_peer(EventKind::peer_lost, nobody) != nullptr; }));
  CHECK(contains(pair.prefill[0]->find_peer(EventKind::peer_lost, nobody)->error->text, "nowhere"));

  Actor& mute = pair.world.add("mute", EngineOptions{});
  pair.world.freeze(mute);
  const std::uint64_t begin_ns = pair.world.now_ns;
  const PeerId silent = pair.world.connect(*pair.prefill[0], "mute", 2 * kSecond);
  REQUIRE(pair.run([&] { return pair.prefill[0]->find_peer(EventKind::peer_lost, silent) != nullptr; }));
  CHECK(pair.prefill[0]->find_peer(EventKind::peer_lost, silent)->error->code == ErrorCode::timeout);
  CHECK(pair.world.now_ns - begin_ns < 2 * kSecond + 10 * kMillisecond);
}

TEST_CASE("cancel by the writer ends both sides with the cause and the next request is right") {
  Pair pair({{0, 4}}, {{"delay_max_ns", "3000000"}, {"seed", "3"}});
  std::vector<std::uint64_t> many(40);
  for (std::uint64_t i = 0; i < many.size(); ++i) many[i] = (i * 7) % 64;
  const auto source = pages(many), target = pages(many);
  pair.fill(1, source);
  const TransferId expected = pair.expect(1, target), sent = pair.submit(0, 1, source);
  REQUIRE(pair.run([&] { return pair.prefill[0]->backend->stats().writes > 0; }));
  REQUIRE(pair.prefill[0]->engine->cancel(sent, "the user went away").has_value());
  REQUIRE(pair.run([&] { return pair.quiesced(*pair.decode, expected) && pair.quiesced(*pair.prefill[0], sent); }));
  const Event* at_target = pair.decode->find(EventKind::transfer_failed, expected);
  REQUIRE(at_target != nullptr);
  CHECK(contains(at_target->error->text, "the user went away"));
  CHECK(at_target->error->code == ErrorCode::canceled);
  const std::vector<std::uint8_t> then = pair.decode_memory->bytes;
  (void)pair.run([] { return false; }, kSecond);
  CHECK(pair.decode_memory->bytes == then);
  CHECK_FALSE(pair.prefill[0]->engine->cancel(sent).has_value());
  pair.must_serve(2);
}

TEST_CASE("cancel by the target ends both sides with the cause and the next request is right") {
  Pair pair({{0, 2}, {2, 4}}, {{"delay_max_ns", "3000000"}, {"seed", "3"}});
  const auto source = pages({1, 5, 9, 13}), target = pages({2, 6, 10, 14});
  pair.fill(1, source);
  const TransferId expected = pair.expect(1, target);
  const TransferId first = pair.submit(0, 1, source);
  REQUIRE(pair.run([&] { return pair.prefill[0]->backend->stats().writes > 0; }));
  REQUIRE(pair.decode->engine->cancel(expected, "the client hung up").has_value());
  REQUIRE(pair.run([&] { return pair.quiesced(*pair.decode, expected); }));
  const std::vector<std::uint8_t> then = pair.decode_memory->bytes;
  REQUIRE(pair.run([&] { return pair.ended(*pair.prefill[0], first); }));
  // The other stage submits after the abort reached it: it is refused at once, with the same cause.
  PagedTransfer late;
  late.peer = pair.to_decode[1];
  late.room = 1;
  late.indices = source;
  (void)pair.run([] { return false; }, 10 * kMillisecond);
  const auto refused = pair.prefill[1]->engine->submit(late);
  REQUIRE_FALSE(refused.has_value());
  CHECK(contains(refused.error().text, "the client hung up"));
  (void)pair.run([] { return false; }, kSecond);
  CHECK(pair.decode_memory->bytes == then);
  pair.must_serve(2);
}

TEST_CASE("a writer that timed out answers the late announcement at once, every time, without new state") {
  Pair pair;
  const auto source = pages({1}), target = pages({2});
  const TransferId sent = pair.submit(0, 9, source, pair.world.now_ns + 200 * kMillisecond);
  REQUIRE(pair.run([&] { return pair.quiesced(*pair.prefill[0], sent); }));
  const Event* timed_out = pair.prefill[0]->find(EventKind::transfer_failed, sent);
  CHECK(timed_out->error->code == ErrorCode::timeout);
  CHECK(contains(timed_out->error->text, "index lists"));
  (void)pair.run([] { return false; }, 300 * kMillisecond);
  const std::uint64_t begin_ns = pair.world.now_ns;
  Expectation expectation;
  expectation.room = 9;
  expectation.writers = pair.to_prefill;
  expectation.indices = target;
  const auto late = pair.decode->engine->expect(expectation);
  REQUIRE(late.has_value());
  REQUIRE(pair.run([&] { return pair.quiesced(*pair.decode, *late); }));
  CHECK(pair.world.now_ns - begin_ns < 20 * kMillisecond);
  CHECK(pair.decode->find(EventKind::transfer_failed, *late)->error->code == ErrorCode::timeout);
  pair.must_serve(10);
}

TEST_CASE("counts that do not fit fail that request with both counts and leave the peer alone") {
  Pair pair;
  SECTION("more source pages than announced") {
    const TransferId expected = pair.expect(1, pages({1, 2})), sent = pair.submit(0, 1, pages({1, 2, 3}));
    REQUIRE(pair.run([&] { return pair.quiesced(*pair.decode, expected) && pair.quiesced(*pair.prefill[0], sent); }));
    const std::string text = pair.decode->find(EventKind::transfer_failed, expected)->error->text;
    INFO(text);
    CHECK(contains(text, "3 source pages"));
    CHECK(contains(text, "announced 2"));
  }
  SECTION("the last chunk ends before the target's list") {
    const TransferId expected = pair.expect(1, pages({1, 2, 3})), sent = pair.submit(0, 1, pages({1, 2}));
    REQUIRE(pair.run([&] { return pair.quiesced(*pair.decode, expected) && pair.quiesced(*pair.prefill[0], sent); }));
    CHECK(contains(pair.prefill[0]->find(EventKind::transfer_failed, sent)->error->text, "last chunk ends at pages position 2"));
  }
  SECTION("a source page outside the pool") {
    const TransferId expected = pair.expect(1, pages({1})), sent = pair.submit(0, 1, pages({64}));
    REQUIRE(pair.run([&] { return pair.quiesced(*pair.decode, expected) && pair.quiesced(*pair.prefill[0], sent); }));
    CHECK(contains(pair.prefill[0]->find(EventKind::transfer_failed, sent)->error->text, "64"));
  }
  SECTION("a target page outside the pool is refused before anything is sent") {
    Expectation expectation;
    expectation.room = 1;
    expectation.writers = pair.to_prefill;
    expectation.indices = pages({3, 64});
    const auto refused = pair.decode->engine->expect(expectation);
    REQUIRE_FALSE(refused.has_value());
    CHECK(contains(refused.error().text, "64 at position 1"));
  }
  SECTION("a target page twice") {
    Expectation expectation;
    expectation.room = 1;
    expectation.writers = pair.to_prefill;
    expectation.indices = pages({3, 4, 3});
    REQUIRE_FALSE(pair.decode->engine->expect(expectation).has_value());
  }
  SECTION("room 0") {
    Expectation expectation;
    expectation.writers = pair.to_prefill;
    REQUIRE_FALSE(pair.decode->engine->expect(expectation).has_value());
  }
  pair.must_serve(20);
}

TEST_CASE("a killed decode is known to the writer, and its successor is served") {
  Pair pair({{0, 4}}, {{"delay_max_ns", "5000000"}, {"seed", "1"}});
  const auto source = pages({1, 5, 9, 13}), target = pages({2, 6, 10, 14});
  pair.expect(1, target);
  const TransferId sent = pair.submit(0, 1, source);
  REQUIRE(pair.run([&] { return pair.prefill[0]->backend->stats().writes > 0; }));
  pair.world.kill(*pair.decode);
  REQUIRE(pair.run([&] { return pair.quiesced(*pair.prefill[0], sent); }));
  CHECK(pair.prefill[0]->find(EventKind::transfer_failed, sent)->error->code == ErrorCode::peer_lost);
  REQUIRE(pair.run([&] { return pair.prefill[0]->find_peer(EventKind::peer_quiesced, pair.to_decode[0]) != nullptr; }));

  pair.decode = &pair.world.add("decode", options_for(EngineRole::decode, pair.decode_memory->pool));
  register_memory(*pair.decode, *pair.decode_memory, KVFERRY_ACCESS_REMOTE_WRITE);
  const auto [there, back] = pair.world.connect_up(*pair.prefill[0], *pair.decode);
  pair.to_decode = {there};
  pair.to_prefill = {back};
  pair.must_serve(2);
}

TEST_CASE("a frozen decode is lost after the lease, and fences before it applies anything when it wakes") {
  Pair pair({{0, 4}}, {{"delay_max_ns", "5000000"}, {"seed", "1"}});
  std::vector<std::uint64_t> many(60);
  for (std::uint64_t i = 0; i < many.size(); ++i) many[i] = (i * 7) % 64;
  pair.fill(1, pages(many));
  const TransferId expected = pair.expect(1, pages(many)), sent = pair.submit(0, 1, pages(many));
  REQUIRE(pair.run([&] { return pair.prefill[0]->backend->stats().writes > 0; }));
  const std::uint64_t frozen_ns = pair.world.now_ns;
  pair.world.freeze(*pair.decode);
  const std::vector<std::uint8_t> then = pair.decode_memory->bytes;
  REQUIRE(pair.run([&] { return pair.quiesced(*pair.prefill[0], sent); }));
  CHECK(pair.world.now_ns - frozen_ns < 5 * kSecond + 2 * kSecond);
  CHECK(pair.prefill[0]->find(EventKind::transfer_failed, sent)->error->code == ErrorCode::peer_lost);
  (void)pair.run([] { return false; }, 3 * kSecond);
  pair.world.thaw(*pair.decode);
  REQUIRE(pair.run([&] { return pair.quiesced(*pair.decode, expected); }));
  CHECK(pair.decode_memory->bytes == then);
  const std::string text = pair.decode->find(EventKind::transfer_failed, expected)->error->text;
  INFO(text);
  CHECK(contains(text, "stalled"));
  CHECK(contains(text, "lease of 5000 ms"));
  CHECK(pair.decode->engine->counters().stalls == 1);
  const auto [there, back] = pair.world.connect_up(*pair.prefill[0], *pair.decode);
  pair.to_decode = {there};
  pair.to_prefill = {back};
  pair.must_serve(2);
}

TEST_CASE("a frozen writer is lost at the target after the lease, and its successor's request is right") {
  Pair pair({{0, 4}}, {{"delay_max_ns", "5000000"}, {"seed", "1"}});
  const auto source = pages({1, 5, 9, 13}), target = pages({2, 6, 10, 14});
  const TransferId expected = pair.expect(1, target);
  pair.submit(0, 1, source);
  REQUIRE(pair.run([&] { return pair.prefill[0]->backend->stats().writes > 0; }));
  pair.world.freeze(*pair.prefill[0]);
  REQUIRE(pair.run([&] { return pair.quiesced(*pair.decode, expected); }));
  CHECK(pair.decode->find(EventKind::transfer_failed, expected)->error->code == ErrorCode::peer_lost);
  std::fill(pair.decode_memory->bytes.begin(), pair.decode_memory->bytes.end(), kPoison);
  pair.world.thaw(*pair.prefill[0]);
  (void)pair.run([] { return false; }, 2 * kSecond);
  CHECK(std::all_of(pair.decode_memory->bytes.begin(), pair.decode_memory->bytes.end(), [](std::uint8_t byte) { return byte == kPoison; }));
  const auto [there, back] = pair.world.connect_up(*pair.prefill[0], *pair.decode);
  pair.to_decode = {there};
  pair.to_prefill = {back};
  pair.must_serve(2);
}

TEST_CASE("one lost writer fails the request, tells the other writer, and harms no other peer") {
  Pair pair({{0, 2}, {2, 4}}, {{"delay_max_ns", "5000000"}, {"seed", "1"}});
  const auto source = pages({1, 5}), target = pages({2, 6});
  const TransferId expected = pair.expect(1, target);
  const TransferId second = pair.submit(1, 1, source);
  pair.world.kill(*pair.prefill[0]);
  REQUIRE(pair.run([&] { return pair.quiesced(*pair.decode, expected) && pair.ended(*pair.prefill[1], second); }));
  CHECK(pair.decode->find(EventKind::transfer_failed, expected)->error->code == ErrorCode::peer_lost);
  CHECK(pair.decode->engine->peer_info(pair.to_prefill[1])->state == PeerState::up);
}

TEST_CASE("a lost completion ends at the deadline on both sides and the next request is right") {
  Pair pair({{0, 4}}, {}, {{"lose_completion_nth", "1"}});
  const auto source = pages({1, 5}), target = pages({2, 6});
  const std::uint64_t deadline_ns = pair.world.now_ns + 500 * kMillisecond;
  const TransferId expected = pair.expect(1, target, deadline_ns), sent = pair.submit(0, 1, source, deadline_ns);
  REQUIRE(pair.run([&] { return pair.quiesced(*pair.prefill[0], sent) && pair.quiesced(*pair.decode, expected); }));
  CHECK(pair.prefill[0]->has(EventKind::transfer_failed, sent));
  CHECK(pair.prefill[0]->find(EventKind::transfer_failed, sent)->error->code == ErrorCode::timeout);
  CHECK(pair.world.now_ns < deadline_ns + 50 * kMillisecond);
  pair.must_serve(2);
}

TEST_CASE("only a room's own writer can end it") {
  Pair pair({{0, 4}});
  PoolShape shape;
  PoolMemory stranger_memory(shape);
  Actor& stranger = pair.world.add("stranger", options_for(EngineRole::prefill, stranger_memory.pool));
  register_memory(stranger, stranger_memory, KVFERRY_ACCESS_LOCAL);
  const auto [there, back] = pair.world.connect_up(stranger, *pair.decode);
  (void)back;
  const TransferId expected = pair.expect(1, pages({2}));
  PagedTransfer transfer;
  transfer.peer = there;
  transfer.room = 1;
  transfer.indices = pages({1});
  const auto id = stranger.engine->submit(transfer);
  REQUIRE(id.has_value());
  REQUIRE(stranger.engine->cancel(*id, "mischief").has_value());
  (void)pair.run([] { return false; }, 100 * kMillisecond);
  CHECK_FALSE(pair.ended(*pair.decode, expected));
  CHECK(pair.decode->engine->counters().messages_ignored == 1);
  pair.fill(1, pages({1}));
  pair.submit(0, 1, pages({1}));
  REQUIRE(pair.run([&] { return pair.ended(*pair.decode, expected); }));
  CHECK(pair.decode->has(EventKind::transfer_done, expected));
}

TEST_CASE("fence ends expectations of the room up to the generation") {
  Pair pair;
  const TransferId expected = pair.expect(1, pages({2}));
  REQUIRE(pair.decode->engine->fence(PeerId{}, 1, 1).has_value());
  REQUIRE(pair.run([&] { return pair.quiesced(*pair.decode, expected); }));
  CHECK(pair.decode->find(EventKind::transfer_failed, expected)->error->code == ErrorCode::fenced);
  pair.must_serve(2);
}

TEST_CASE("a graceful close waits for what is in flight and is no loss of data") {
  Pair pair;
  const auto source = pages({1, 5, 9}), target = pages({2, 6, 10});
  pair.fill(1, source);
  const TransferId expected = pair.expect(1, target), sent = pair.submit(0, 1, source);
  REQUIRE(pair.prefill[0]->engine->close_peer(pair.to_decode[0]).has_value());
  REQUIRE(pair.run([&] { return pair.prefill[0]->find_peer(EventKind::peer_quiesced, pair.to_decode[0]) != nullptr; }));
  CHECK(pair.prefill[0]->has(EventKind::transfer_done, sent));
  CHECK(pair.prefill[0]->find_peer(EventKind::peer_lost, pair.to_decode[0]) == nullptr);
  REQUIRE(pair.run([&] { return pair.ended(*pair.decode, expected); }));
  CHECK(pair.decode->has(EventKind::transfer_done, expected));
  REQUIRE(pair.run([&] { return pair.decode->find_peer(EventKind::peer_quiesced, pair.to_prefill[0]) != nullptr; }));
}

TEST_CASE("an idle pair of engines stays connected through its heartbeats") {
  Pair pair;
  (void)pair.run([] { return false; }, 20 * kSecond);
  CHECK(pair.decode->engine->peer_info(pair.to_prefill[0])->state == PeerState::up);
  pair.must_serve(3);
}

TEST_CASE("a wire that carries nothing any more is noticed by both sides within the lease") {
  Pair pair;
  const std::uint64_t begin_ns = pair.world.now_ns;
  pair.world.partition(*pair.prefill[0], *pair.decode);
  REQUIRE(pair.run([&] {
    return pair.prefill[0]->find_peer(EventKind::peer_lost, pair.to_decode[0]) != nullptr &&
           pair.decode->find_peer(EventKind::peer_lost, pair.to_prefill[0]) != nullptr;
  }));
  CHECK(pair.world.now_ns - begin_ns < 5 * kSecond + 50 * kMillisecond);
}

TEST_CASE("failures are counted once each by reason") {
  Pair pair;
  const std::uint64_t soon_ns = pair.world.now_ns + 10 * kMillisecond;
  const TransferId timed_out = pair.submit(0, 1, pages({1}), soon_ns), canceled = pair.submit(0, 2, pages({2}));
  const TransferId done = pair.submit(0, 3, pages({3}));
  REQUIRE(pair.prefill[0]->engine->cancel(canceled).has_value());
  pair.expect(3, pages({3}));
  REQUIRE(pair.run([&] {
    return pair.quiesced(*pair.prefill[0], timed_out) && pair.quiesced(*pair.prefill[0], canceled) && pair.quiesced(*pair.prefill[0], done);
  }));
  const EngineCounters& counters = pair.prefill[0]->engine->counters();
  CHECK(counters.submitted == 3);
  CHECK(counters.done == 1);
  CHECK(counters.failed_timeout == 1);
  CHECK(counters.failed_canceled == 1);
  CHECK(counters.failed_refused + counters.failed_peer_lost + counters.failed_by_peer + counters.failed_transport == 0);
}

// ---- without a layout

namespace {

struct BarePair {
  BarePair() : world(3), source(4096, 0x11), target(8192, kPoison) {
    a = &world.add("a", EngineOptions{});
    b = &world.add("b", EngineOptions{});
    Backend::RegionRequest request{address(source), source.size()};
    REQUIRE(a->engine->register_region(request).has_value());
    request = {address(target), 4096};
    request.access = KVFERRY_ACCESS_REMOTE_WRITE;
    REQUIRE(b->engine->register_region(request).has_value());
    to_b = world.connect_up(*a, *b).first;
  }
  static std::uint64_t address(const std::vector<std::uint8_t>& bytes) { return reinterpret_cast<std::uint64_t>(bytes.data()); }
  TransferId send(std::vector<RawWrite> writes, bool notify = false) {
    RawTransfer transfer;
    transfer.peer = to_b;
    transfer.writes = std::move(writes);
    transfer.notify = notify;
    const auto id = a->engine->submit(std::move(transfer));
    REQUIRE(id.has_value());
    REQUIRE(world.run([&] { return a->has(EventKind::transfer_quiesced, *id); }, 10 * kSecond));
    return *id;
  }
  World world;
  std::vector<std::uint8_t> source, target;
  Actor *a, *b;
  PeerId to_b{};
};

}  // namespace

TEST_CASE("a raw list is moved by addresses and notifies when asked") {
  BarePair pair;
  const TransferId id = pair.send({{pair.address(pair.source), pair.address(pair.target) + 100, 50}, {pair.address(pair.source) + 64, pair.address(pair.target) + 3000, 8}}, true);
  CHECK(pair.a->has(EventKind::transfer_done, id));
  std::uint64_t changed = 0;
  for (std::size_t i = 0; i < pair.target.size(); ++i) changed += pair.target[i] == 0x11;
  CHECK(changed == 58);
  CHECK(pair.target[100] == 0x11);
  CHECK(pair.target[3007] == 0x11);
  REQUIRE(pair.world.run([&] { return std::any_of(pair.b->log.begin(), pair.b->log.end(), [](const Event& e) { return e.kind == EventKind::notified; }); }, kSecond));
}

TEST_CASE("an address outside every region refuses the whole list before the first byte") {
  BarePair pair;
  const TransferId id = pair.send({{pair.address(pair.source), pair.address(pair.target), 50}, {pair.address(pair.source), pair.address(pair.target) + 4090, 8}});
  const Event* failed = pair.a->find(EventKind::transfer_failed, id);
  REQUIRE(failed != nullptr);
  INFO(failed->error->text);
  CHECK(contains(failed->error->text, "1"));
  CHECK(pair.target[0] == kPoison);
  CHECK(pair.a->engine->peer_info(pair.to_b)->state == PeerState::up);
  CHECK(pair.a->has(EventKind::transfer_done, pair.send({{pair.address(pair.source), pair.address(pair.target), 50}})));
}

TEST_CASE("a region registered a moment ago is found after one question to the peer") {
  BarePair pair;
  Backend::RegionRequest request{pair.address(pair.target) + 4096, 4096};
  request.access = KVFERRY_ACCESS_REMOTE_WRITE;
  const auto region = pair.b->engine->register_region(request);
  REQUIRE(region.has_value());
  CHECK(pair.a->has(EventKind::transfer_done, pair.send({{pair.address(pair.source), pair.address(pair.target) + 5000, 50}})));
  CHECK(pair.target[5000] == 0x11);
  bool gone = false;
  REQUIRE(pair.world.run([&] { return gone = gone || *pair.b->engine->deregister_region(*region); }, kSecond));
  CHECK(pair.a->has(EventKind::transfer_failed, pair.send({{pair.address(pair.source), pair.address(pair.target) + 6000, 50}})));
  CHECK(pair.target[6000] == kPoison);
}

TEST_CASE("posting allocates nothing per write") {
  BarePair pair;
  const auto allocations_for = [&](std::uint64_t count) {
    RawTransfer transfer;
    transfer.peer = pair.to_b;
    for (std::uint64_t k = 0; k < count; ++k) transfer.writes.push_back({pair.address(pair.source) + k * 8, pair.address(pair.target) + (k * 7 % 500) * 8, 4});
    const auto id = pair.a->engine->submit(std::move(transfer));
    REQUIRE(id.has_value());
    const std::uint64_t before = test::allocations_count();
    Event events[8];
    std::size_t done = 0;
    for (int step = 0; step < 100 && done == 0; ++step) {
      pair.world.now_ns += 10 * kMicrosecond;
      pair.a->engine->progress(pair.world.now_ns);
      pair.b->engine->progress(pair.world.now_ns);
      done = pair.a->engine->poll(events);
    }
    REQUIRE(done != 0);
    return test::allocations_count() - before;
  };
  (void)allocations_for(500);  // the first transfer sizes the peer's arrays
  const std::uint64_t few = allocations_for(2), many = allocations_for(500);
  CHECK(many == few);
}

TEST_CASE("many threads' worth of raw transfers to one peer share the window and all end") {
  BarePair pair;
  std::vector<TransferId> ids;
  for (std::uint64_t i = 0; i < 300; ++i) {
    RawTransfer transfer;
    transfer.peer = pair.to_b;
    for (std::uint64_t k = 0; k < 20; ++k) transfer.writes.push_back({pair.address(pair.source) + k * 16, pair.address(pair.target) + ((i + k * 13) % 400) * 10, 5});
    ids.push_back(*pair.a->engine->submit(std::move(transfer)));
  }
  REQUIRE(pair.world.run([&] { return std::all_of(ids.begin(), ids.end(), [&](TransferId id) { return pair.a->has(EventKind::transfer_done, id); }); }, 20 * kSecond));
}

}  // namespace kvferry::test
