// Descriptors come from another machine: every byte of them is checked before it is used.
#include <algorithm>
#include <random>

#include "harness.h"

using namespace conformance;

namespace {

using Blob = std::vector<std::uint8_t>;

/// Every truncation, extension and single-bit error of a good blob; `read` must refuse each.
void check_damaged(const Blob& good, const std::function<Result<void>(const Blob&)>& read) {
  const auto expect_refused = [&](const Blob& bad, const std::string& what) {
    if (const auto result = read(bad); result) FAIL("accepted with " << what);
  };
  for (std::size_t length = 0; length < good.size(); ++length) {
    expect_refused(Blob(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)), std::to_string(length) + " bytes");
  }
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Blob bad = good;
    bad[bit / 8] = static_cast<std::uint8_t>(bad[bit / 8] ^ (1u << (bit % 8)));
    expect_refused(bad, "bit " + std::to_string(bit) + " wrong");
  }
  for (const std::size_t extra : {1u, 4u, 100u}) {
    Blob bad = good;
    bad.resize(good.size() + extra);
    expect_refused(bad, std::to_string(extra) + " bytes more");
  }
  std::mt19937_64 random(environment().seed);
  for (int round = 0; round < 1'000; ++round) {
    Blob bad(random() % (2 * good.size()));
    for (auto& byte : bad) byte = static_cast<std::uint8_t>(random());
    if (bad != good) expect_refused(bad, "random bytes");
  }
}

}  // namespace

TEST_CASE("a damaged region table is refused and changes nothing") {
  Side a, b;
  const auto peers = connect(a, b);
  Buffer source(a, 4096, KVFERRY_ACCESS_LOCAL);
  Buffer one(b, 4096, KVFERRY_ACCESS_REMOTE_WRITE), two(b, 8192, KVFERRY_ACCESS_REMOTE_WRITE);
  const auto good = ok(b->export_regions({{one.region(), two.region()}}));
  check_damaged(good, [&](const Blob& bad) { return a->import_regions(peers.first, bad); });
  Batch batch;
  batch.write(source, 0, one, 0, 4096);
  (void)refused(a->submit(peers.first, batch.c()), ErrorCode::not_found);
  ok(a->import_regions(peers.first, good));
  run_done(a, peers.first, batch, {&a, &b});
  CHECK(std::equal(source.data(), source.data() + 4096, one.data()));
}

TEST_CASE("a damaged endpoint descriptor is refused and the peer can still be connected") {
  Side a, b;
  const auto at_a = new_peer(a);
  const auto at_b = new_peer(b);
  const auto good = ok(b->peer_export(at_b));
  CHECK(good.size() <= a->limits().endpoint_bytes_max);
  check_damaged(good, [&](const Blob& bad) { return a->peer_connect(at_a, bad, in_seconds(30)); });
  CHECK(ok(a->peer_state(at_a)).state == KVFERRY_PEER_CREATED);
  ok(b->peer_connect(at_b, ok(a->peer_export(at_a)), in_seconds(30)));
  ok(a->peer_connect(at_a, good, in_seconds(30)));
  drive(
      {&a, &b}, [&] { return a.count(KVFERRY_EVENT_PEER_UP) == 1 && b.count(KVFERRY_EVENT_PEER_UP) == 1; }, "the good descriptor connects");
}

TEST_CASE("descriptors of one kind are not taken for the other") {
  Side a, b;
  Buffer region(b, 4096, KVFERRY_ACCESS_REMOTE_WRITE);
  const auto at_a = new_peer(a);
  const auto at_b = new_peer(b);
  CHECK_FALSE(a->peer_connect(at_a, ok(b->export_regions({{region.region()}})), in_seconds(30)));
  CHECK_FALSE(a->import_regions(at_a, ok(b->peer_export(at_b))));
}

TEST_CASE("a peer's own descriptor does not connect it to itself") {
  Side a;
  const auto peer = new_peer(a);
  CHECK_FALSE(a->peer_connect(peer, ok(a->peer_export(peer)), in_seconds(30)));
}

TEST_CASE("a table of no regions is legal") {
  Side a, b;
  const auto peers = connect(a, b);
  ok(a->import_regions(peers.first, ok(b->export_regions({}))));
}

TEST_CASE("regions may be imported before the peer is connected, and added later") {
  Side a, b;
  Buffer source(a, 4096, KVFERRY_ACCESS_LOCAL);
  Buffer early(b, 4096, KVFERRY_ACCESS_REMOTE_WRITE), late(b, 4096, KVFERRY_ACCESS_REMOTE_WRITE);
  source.fill(9);
  const auto at_a = new_peer(a);
  const auto at_b = new_peer(b);
  share(b, {early.region()}, a, at_a);
  ok(a->peer_connect(at_a, ok(b->peer_export(at_b)), in_seconds(30)));
  ok(b->peer_connect(at_b, ok(a->peer_export(at_a)), in_seconds(30)));
  drive(
      {&a, &b}, [&] { return a.count(KVFERRY_EVENT_PEER_UP) == 1 && b.count(KVFERRY_EVENT_PEER_UP) == 1; }, "the peers come up");
  Batch to_early, to_late;
  to_early.write(source, 0, early, 0, 4096);
  to_late.write(source, 0, late, 0, 4096);
  run_done(a, at_a, to_early, {&a, &b});
  (void)refused(a->submit(at_a, to_late.c()), ErrorCode::not_found);
  share(b, {late.region()}, a, at_a);
  run_done(a, at_a, to_late, {&a, &b});
  CHECK(std::equal(source.data(), source.data() + 4096, early.data()));
  CHECK(std::equal(source.data(), source.data() + 4096, late.data()));
}
