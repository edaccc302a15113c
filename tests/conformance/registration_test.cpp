// Memory: what may be registered, and what registering it means.
#include <sys/mman.h>

#include <algorithm>
#include <random>

#include "harness.h"

using namespace conformance;

namespace {

constexpr std::uint32_t kRemote = KVFERRY_ACCESS_REMOTE_WRITE | KVFERRY_ACCESS_REMOTE_READ;

Backend::RegionRequest request_of(const std::vector<std::uint8_t>& memory, std::uint32_t access = kRemote) {
  return {.address = reinterpret_cast<std::uint64_t>(memory.data()), .length = memory.size(), .access = access};
}

}  // namespace

TEST_CASE("a range that cannot be used is refused at registration and leaves nothing behind") {
  Side side;
  const std::vector<std::uint8_t> memory(4096);
  const auto address = reinterpret_cast<std::uint64_t>(memory.data());
  const auto check = [&](const Backend::RegionRequest& request, ErrorCode code, const char* reason) {
    INFO(reason);
    (void)refused(side->register_region(request), code);
    CHECK(side->stats().regions == 0);
  };
  check({.address = address, .length = 0}, ErrorCode::invalid_argument, "no byte");
  check({.address = 0, .length = 4096}, ErrorCode::invalid_argument, "null");
  check({.address = ~std::uint64_t{0} - 100, .length = 4096}, ErrorCode::invalid_argument, "wraps past 2^64");
  check({.address = address, .length = ~std::uint64_t{0}}, ErrorCode::invalid_argument, "wraps past 2^64 by its length");
  check({.address = address, .length = 4096, .purpose = 99}, ErrorCode::invalid_argument, "purpose that is not known");
  check({.address = address, .length = 4096, .memory_kind = 99}, ErrorCode::invalid_argument, "memory kind that is not known");
  check({.address = address, .length = 4096, .access = 1u << 7}, ErrorCode::invalid_argument, "access bit that is not known");
  const auto region = ok(side->register_region(request_of(memory)));
  CHECK(region != 0);
  CHECK(side->stats().regions == 1);
  CHECK(ok(side->deregister_region(region, KVFERRY_DEREGISTER_REFUSE_IF_BUSY)));
  CHECK(side->stats().regions == 0);
}

TEST_CASE("an equal range may be registered again, and each registration ends by itself") {
  Pair pair;
  const auto again =
      ok(pair.b->register_region({.address = reinterpret_cast<std::uint64_t>(pair.target.data()), .length = pair.target.bytes(), .access = kRemote}));
  CHECK(again != pair.target.region());
  share(pair.b, {again}, pair.a, pair.to_b());
  CHECK(ok(pair.b->deregister_region(again, KVFERRY_DEREGISTER_REFUSE_IF_BUSY)));

  Batch batch;
  batch.write(pair.source, 0, pair.target, 0, pair.source.bytes());
  run_done(pair.a, pair.to_b(), batch, pair.both);
  CHECK(std::equal(pair.source.data(), pair.source.data() + pair.source.bytes(), pair.target.data()));
}

TEST_CASE("overlapping, nested and adjacent ranges may be registered") {
  Side side;
  const std::vector<std::uint8_t> memory(0x4000);
  const auto base = reinterpret_cast<std::uint64_t>(memory.data());
  std::vector<kvferry_region> regions;
  for (const auto& [begin, end] : {std::pair{0x1000u, 0x3000u}, {0x1000u, 0x2000u}, {0x2000u, 0x4000u}, {0x3000u, 0x4000u}, {0u, 0x4000u}}) {
    regions.push_back(ok(side->register_region({.address = base + begin, .length = end - begin, .access = kRemote})));
  }
  std::sort(regions.begin(), regions.end());
  CHECK(std::unique(regions.begin(), regions.end()) == regions.end());
  for (const auto region : regions) CHECK(ok(side->deregister_region(region, KVFERRY_DEREGISTER_REFUSE_IF_BUSY)));
  CHECK(side->stats().regions == 0);
}

TEST_CASE("a region that is gone is not found") {
  Side side;
  const std::vector<std::uint8_t> memory(4096);
  const auto region = ok(side->register_region(request_of(memory)));
  CHECK(ok(side->deregister_region(region, KVFERRY_DEREGISTER_REFUSE_IF_BUSY)));
  (void)refused(side->deregister_region(region, KVFERRY_DEREGISTER_REFUSE_IF_BUSY), ErrorCode::not_found);
  (void)refused(side->deregister_region(0, KVFERRY_DEREGISTER_DRAIN), ErrorCode::not_found);
  (void)refused(side->export_regions({{region}}), ErrorCode::not_found);
  const auto next = ok(side->register_region(request_of(memory)));
  CHECK(next != region);
}

TEST_CASE("the same memory may be a source and a target under two registrations") {
  Pair pair;
  const auto source_only = ok(pair.b->register_region(
      {.address = reinterpret_cast<std::uint64_t>(pair.target.data()), .length = pair.target.bytes(), .access = KVFERRY_ACCESS_LOCAL}));
  (void)refused(pair.b->export_regions({{source_only}}), ErrorCode::invalid_argument);
  Batch batch;
  batch.write(pair.source, 0, pair.target, 0, 4096);
  run_done(pair.a, pair.to_b(), batch, pair.both);
  CHECK(std::equal(pair.source.data(), pair.source.data() + 4096, pair.target.data()));
  CHECK(ok(pair.b->deregister_region(source_only, KVFERRY_DEREGISTER_REFUSE_IF_BUSY)));
}

TEST_CASE("what is announced is exactly what was registered, wherever it starts") {
  constexpr std::uint64_t kLength = 1'000'448;
  Side a, b;
  Buffer source(a, 64, KVFERRY_ACCESS_LOCAL);
  Buffer target(b, kLength, kRemote, 0x800);
  source.fill(3);
  const auto peers = connect(a, b);
  share(b, {target.region()}, a, peers.first);
  Batch last;
  last.write(source, 0, target, kLength - 64, 64);
  run_done(a, peers.first, last, {&a, &b});
  CHECK(std::equal(source.data(), source.data() + 64, target.data() + kLength - 64));
  Batch beyond;
  beyond.write(source, 0, target, kLength - 63, 64);
  (void)refused(a->submit(peers.first, beyond.c()), ErrorCode::out_of_range);
  target.check_guards();
}

TEST_CASE("a long region is writable at every seam") {
  constexpr std::uint64_t kMebibyte = 1u << 20, kLength = 2 * kMebibyte + kMebibyte / 2, kPiece = 65536;
  Pair pair(kLength);
  for (const std::uint64_t offset : {kMebibyte, kMebibyte - kPiece / 2, kLength - kPiece}) {
    Batch batch;
    batch.write(pair.source, offset, pair.target, offset, kPiece);
    run_done(pair.a, pair.to_b(), batch, pair.both);
    CHECK(std::equal(pair.source.data() + offset, pair.source.data() + offset + kPiece, pair.target.data() + offset));
  }
  CHECK(pair.target.data()[kMebibyte - kPiece / 2 - 1] == 0);
  CHECK(pair.target.data()[kMebibyte + kPiece] == 0);
  pair.target.check_guards();
}

TEST_CASE("neighbours with a hole between them can be registered in any order, again and again") {
  constexpr std::uint64_t kLength = 65536, kHole = 4096;
  auto* const memory = static_cast<std::uint8_t*>(mmap(nullptr, 2 * kLength + kHole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(memory != MAP_FAILED);
  REQUIRE(munmap(memory + kLength, kHole) == 0);
  Side side;
  std::mt19937_64 random(environment().seed);
  for (int round = 0; round < 1'000; ++round) {
    const bool swapped = random() % 2 == 0;
    std::vector<kvferry_region> regions;
    for (const bool second : {swapped, !swapped}) {
      const auto address = reinterpret_cast<std::uint64_t>(memory + (second ? kLength + kHole : 0));
      regions.push_back(ok(side->register_region({.address = address, .length = kLength, .access = kRemote})));
    }
    if (random() % 2 == 0) std::swap(regions[0], regions[1]);
    for (const auto region : regions) {
      if (!ok(side->deregister_region(region, KVFERRY_DEREGISTER_REFUSE_IF_BUSY))) FAIL("an unused region does not go");
    }
  }
  CHECK(side->stats().regions == 0);
  CHECK(munmap(memory, kLength) == 0);
  CHECK(munmap(memory + kLength + kHole, kLength) == 0);
}

TEST_CASE("memory from allocate is zeroed, reachable for the peer, and ends with free_memory alone") {
  constexpr std::uint64_t kLength = 1'000'001;
  Pair pair(kLength);
  if (!needs(*pair.b, KVFERRY_CAP_ALLOCATE, "allocate")) return;
  const auto memory = ok(pair.b->allocate(kLength, KVFERRY_PURPOSE_KV));
  auto* const bytes = static_cast<std::uint8_t*>(memory.address);
  CHECK(std::all_of(bytes, bytes + kLength, [](std::uint8_t byte) { return byte == 0; }));
  CHECK(reinterpret_cast<std::uint64_t>(bytes) % std::max<std::uint64_t>(pair.b->limits().alignment_bytes, 1) == 0);
  share(pair.b, {memory.region}, pair.a, pair.to_b());

  Batch batch;
  batch.gather({{pair.source.region(), 0, kLength}}, memory.region, 0);
  run_done(pair.a, pair.to_b(), batch, pair.both);
  CHECK(std::equal(pair.source.data(), pair.source.data() + kLength, bytes));

  (void)refused(pair.b->deregister_region(memory.region, KVFERRY_DEREGISTER_DRAIN), ErrorCode::invalid_argument);
  (void)refused(pair.b->free_memory(pair.target.region()), ErrorCode::invalid_argument);
  drive(
      pair.both, [&] { return ok(pair.b->free_memory(memory.region)); }, "allocated memory goes");
  (void)refused(pair.b->free_memory(memory.region), ErrorCode::not_found);
  (void)refused(pair.b->allocate(0, KVFERRY_PURPOSE_KV), ErrorCode::invalid_argument);
  const auto too_much = pair.b->allocate(std::uint64_t{1} << 60, KVFERRY_PURPOSE_KV);
  CHECK_FALSE(too_much);
}

TEST_CASE("a region in use is busy, drains, and is not used again") {
  Pair pair;
  const auto source = reinterpret_cast<std::uint64_t>(pair.source.data());
  const auto region = ok(pair.a->register_region({.address = source, .length = 4096, .access = KVFERRY_ACCESS_LOCAL}));
  Batch batch;
  batch.gather({{region, 0, 4096}}, pair.target.region(), 0).room(5);
  const auto tag = batch.c().tag;
  REQUIRE(ok(pair.a->submit(pair.to_b(), batch.c())).all);  // nobody has moved it yet
  (void)refused(pair.a->deregister_region(region, KVFERRY_DEREGISTER_REFUSE_IF_BUSY), ErrorCode::busy);
  CHECK_FALSE(ok(pair.a->deregister_region(region, KVFERRY_DEREGISTER_DRAIN)));
  Batch late;
  late.gather({{region, 0, 1}}, pair.target.region(), 0);
  CHECK_FALSE(pair.a->submit(pair.to_b(), late.c()));  // draining: no new use
  drive(
      pair.both, [&] { return ok(pair.a->deregister_region(region, KVFERRY_DEREGISTER_DRAIN)); }, "a used region drains");
  drive(
      pair.both, [&] { return pair.a.terminal(tag) != nullptr; }, "the batch ends");
  CHECK(pair.a.terminal(tag)->kind == KVFERRY_EVENT_BATCH_DONE);
  (void)refused(pair.a->submit(pair.to_b(), late.c()), ErrorCode::not_found);
}
