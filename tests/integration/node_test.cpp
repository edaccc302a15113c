// Nodes as an engine's process uses them: real threads, real TCP control links, the loopback backend. Also run under the thread sanitizer.
#include <catch2/catch.hpp>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "kvferry/node.h"
#include "support/test_pools.h"

namespace kvferry::test {
namespace {

using namespace std::chrono_literals;
constexpr auto kGuard = 30s;  // generous: a test that reaches it has failed
constexpr std::size_t kPages = static_cast<std::size_t>(IndexSpace::pages);

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

NodeOptions loopback(const std::string& name, EngineRole role = EngineRole::any) {
  NodeOptions options;
  options.engine.name = name;
  options.engine.role = role;
  options.backend = "loopback";
  options.plugin_file = KVFERRY_TEST_LOOPBACK_PLUGIN;
  return options;
}

std::unique_ptr<Node> must_open(NodeOptions options) {
  auto node = Node::open(std::move(options));
  INFO((node ? "" : node.error().text));
  REQUIRE(node.has_value());
  return std::move(*node);
}

struct Served {
  Served() : source(PoolShape{}), target(PoolShape{}) {
    NodeOptions options = loopback("decode", EngineRole::decode);
    options.listen = "127.0.0.1:0";
    options.engine.pool = target.pool;
    decode = must_open(std::move(options));
    options = loopback("prefill", EngineRole::prefill);
    options.engine.pool = source.pool;
    prefill = must_open(std::move(options));
    Backend::RegionRequest request{source.base(), source.length()};
    REQUIRE(prefill->register_region(request).has_value());
    request = {target.base(), target.length()};
    request.access = KVFERRY_ACCESS_REMOTE_WRITE;
    REQUIRE(decode->register_region(request).has_value());
    const auto peer = prefill->open_peer(decode->session_id(), kGuard);
    REQUIRE(peer.has_value());
    const auto info = prefill->wait_peer(*peer, kGuard);
    INFO((info ? "" : info.error().text));
    REQUIRE(info.has_value());
    to_decode = *peer;
    const auto peers = decode->wait_peers(1, kGuard);
    REQUIRE(peers.has_value());
    to_prefill = peers->front();
  }

  Result<TransferId> expect(std::uint64_t room, std::vector<std::uint64_t> pages, std::chrono::nanoseconds deadline = kGuard) {
    Expectation expectation;
    expectation.room = room;
    expectation.writers = {to_prefill};
    expectation.indices[kPages] = std::move(pages);
    expectation.deadline_ns = static_cast<std::uint64_t>(deadline.count());
    return decode->expect(std::move(expectation));
  }
  Result<TransferId> submit(std::uint64_t room, std::vector<std::uint64_t> pages, std::chrono::nanoseconds deadline = kGuard) {
    PagedTransfer transfer;
    transfer.peer = to_decode;
    transfer.room = room;
    transfer.indices[kPages] = std::move(pages);
    transfer.deadline_ns = static_cast<std::uint64_t>(deadline.count());
    return prefill->submit(std::move(transfer));
  }

  PoolMemory source, target;
  std::unique_ptr<Node> decode, prefill;
  PeerId to_decode{}, to_prefill{};
};

}  // namespace

TEST_CASE("two nodes move a request and both sides wait for its end") {
  Served served;
  for (std::size_t i = 0; i < served.source.bytes.size(); ++i) served.source.bytes[i] = static_cast<std::uint8_t>(i * 31 + 7);
  const auto expected = served.expect(1, {7, 9, 11}), sent = served.submit(1, {1, 2, 30});
  REQUIRE(expected.has_value());
  REQUIRE(sent.has_value());
  const auto at_target = served.decode->wait(*expected, kGuard, true), at_source = served.prefill->wait(*sent, kGuard, true);
  REQUIRE(at_target.has_value());
  REQUIRE(at_source.has_value());
  CHECK_FALSE(at_target->error.has_value());
  CHECK(at_target->quiesced);
  CHECK(at_source->figures.bytes == 3 * 8 * 256);
  for (std::size_t e = 0; e < served.source.pool.entries.size(); ++e) {
    const Entry &from = served.source.pool.entries[e], &to = served.target.pool.entries[e];
    if (from.space != IndexSpace::pages) continue;
    CHECK(std::memcmp(served.source.item(from, 30), served.target.item(to, 11), 256) == 0);
  }
  CHECK_FALSE(served.decode->wait(*expected, 1s).has_value());  // its end was taken
}

TEST_CASE("a wait that runs out leaves the transfer as it is, and cancel ends it") {
  Served served;
  const auto expected = served.expect(1, {7});
  const auto early = served.decode->wait(*expected, 1ms);
  REQUIRE_FALSE(early.has_value());
  CHECK(early.error().code == ErrorCode::timeout);
  REQUIRE(served.decode->cancel(*expected, "the client left").has_value());
  const auto outcome = served.decode->wait(*expected, kGuard, true);
  REQUIRE(outcome.has_value());
  REQUIRE(outcome->error.has_value());
  CHECK(contains(outcome->error->text, "the client left"));
}

TEST_CASE("a refused submit is the transfer's outcome, with the reason") {
  Served served;
  const auto sent = served.submit(0, {1});
  REQUIRE(sent.has_value());
  const auto outcome = served.prefill->wait(*sent, kGuard, true);
  REQUIRE(outcome.has_value());
  REQUIRE(outcome->error.has_value());
  CHECK(contains(outcome->error->text, "room 0"));
}

TEST_CASE("deadlines end requests whose other half never comes") {
  Served served;
  const auto sent = served.submit(77, {1}, 50ms);
  const auto outcome = served.prefill->wait(*sent, kGuard, true);
  REQUIRE(outcome.has_value());
  REQUIRE(outcome->error.has_value());
  CHECK(outcome->error->code == ErrorCode::timeout);
  CHECK(served.prefill->counters().failed_timeout == 1);
}

TEST_CASE("many threads submit and wait at once") {
  Served served;
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 25; ++i) {
        const std::uint64_t room = 1 + t * 100 + i;
        const auto expected = served.expect(room, {t * 8 + i % 8}), sent = served.submit(room, {i});
        if (!expected || !sent) return;
        const auto at_target = served.decode->wait(*expected, kGuard, true), at_source = served.prefill->wait(*sent, kGuard, true);
        if (at_target && at_source && !at_target->error && !at_source->error) ++good;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(good == 200);
}

TEST_CASE("the event descriptor becomes readable and poll gives the events in order") {
  Served served;
  const auto expected = served.expect(1, {7}), sent = served.submit(1, {1});
  std::vector<EventKind> kinds;
  const auto limit = std::chrono::steady_clock::now() + kGuard;
  while (std::find(kinds.begin(), kinds.end(), EventKind::transfer_quiesced) == kinds.end() && std::chrono::steady_clock::now() < limit) {
    pollfd ready{served.decode->event_fd(), POLLIN, 0};
    REQUIRE(::poll(&ready, 1, static_cast<int>(std::chrono::milliseconds(kGuard).count())) == 1);
    Event events[4];
    const std::size_t count = served.decode->poll(events);
    for (std::size_t i = 0; i < count; ++i) {
      if (events[i].transfer == *expected) kinds.push_back(events[i].kind);
    }
  }
  CHECK(kinds == std::vector<EventKind>{EventKind::chunk_arrived, EventKind::transfer_done, EventKind::transfer_quiesced});
  (void)served.prefill->wait(*sent, kGuard, true);
}

TEST_CASE("a node that goes away in mid-request ends the other side's half with a cause") {
  Served served;
  const auto expected = served.expect(1, {7});
  served.prefill.reset();
  const auto outcome = served.decode->wait(*expected, kGuard, true);
  REQUIRE(outcome.has_value());
  REQUIRE(outcome->error.has_value());
  CHECK(outcome->error->code == ErrorCode::peer_lost);
}

TEST_CASE("nodes open and close in every state without leaving threads or descriptors") {
  const auto descriptors = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()); };
  const auto threads = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator()); };
  { Served warm_up; }
  const auto fds_before = descriptors();
  const auto threads_before = threads();
  for (int i = 0; i < 20; ++i) {
    { auto unused = must_open(loopback("unused")); }
    {
      Served served;
      if (i % 2 == 0) (void)served.expect(1, {7});
    }
  }
  CHECK(descriptors() <= fds_before);
  CHECK(threads() <= threads_before);
}

TEST_CASE("a port in use, a missing plugin, an unknown setting and a bad address are named") {
  NodeOptions options = loopback("first");
  options.listen = "127.0.0.1:0";
  auto first = must_open(options);
  options = loopback("second");
  options.listen = first->session_id();
  const auto in_use = Node::open(options);
  REQUIRE_FALSE(in_use.has_value());
  CHECK(in_use.error().code == ErrorCode::unavailable);
  CHECK(contains(in_use.error().text, first->session_id().substr(first->session_id().rfind(':') + 1)));

  options = loopback("third");
  options.plugin_file.clear();
  options.backend = "nothing_here";
  const auto missing = Node::open(options);
  REQUIRE_FALSE(missing.has_value());
  CHECK(missing.error().code == ErrorCode::unavailable);
  CHECK(contains(missing.error().text, "nothing_here"));

  options = loopback("fourth");
  options.backend_settings = {{"no_such_key", "1"}};
  const auto unknown = Node::open(options);
  REQUIRE_FALSE(unknown.has_value());
  CHECK(contains(unknown.error().text, "no_such_key"));

  const auto bad = first->open_peer("no port here", 1s);
  REQUIRE_FALSE(bad.has_value());
  CHECK(contains(bad.error().text, "no port here"));
}

TEST_CASE("an address where nobody listens is refused with the address") {
  NodeOptions options = loopback("gone");
  options.listen = "127.0.0.1:0";
  auto gone = must_open(options);
  const std::string address = gone->session_id();
  gone.reset();
  auto node = must_open(loopback("caller"));
  const auto peer = node->open_peer(address, 5s);
  REQUIRE(peer.has_value());
  const auto info = node->wait_peer(*peer, kGuard);
  REQUIRE_FALSE(info.has_value());
  CHECK(contains(info.error().text, address));
}

TEST_CASE("the child of a fork is refused") {
  auto node = must_open(loopback("parent"));
  const pid_t child = fork();
  if (child == 0) {
    const auto refused = node->open_peer("127.0.0.1:1", 1s);
    _exit(!refused.has_value() && refused.error().code == ErrorCode::forked ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a misspelt setting is named in the log") {
  setenv("KVFERRY_NO_SUCH_THING", "1", 1);
  std::string told;
  NodeOptions options = loopback("speller");
  options.log = [&](LogLevel, std::string_view, std::string_view text) { told += text; };
  { auto node = must_open(std::move(options)); }
  unsetenv("KVFERRY_NO_SUCH_THING");
  CHECK(contains(told, "KVFERRY_NO_SUCH_THING"));
}

TEST_CASE("effective settings are readable and name the backend's") {
  auto node = must_open(loopback("reader"));
  const auto config = node->effective_config();
  REQUIRE(config.has_value());
  CHECK(contains(*config, "\"lease_ms\": 5000"));
  CHECK(contains(*config, "backend_settings"));
}

}  // namespace kvferry::test
