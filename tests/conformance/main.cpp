// The conformance program: one suite for every backend.
//
//   KVFERRY_CONFORMANCE_BACKEND=ucx KVFERRY_CONFORMANCE_LANE=tcp conformance [Catch2 arguments]
//   KVFERRY_CONFORMANCE_CLOCK=virtual conformance '[faults]'                       what only loopback has
//
// Skipped cases are listed with their reason; the last line is the count.
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "harness.h"
#include "support/catch_run.h"
#include "support/counted_new.h"

namespace conformance {
namespace {

Environment the_environment;
std::optional<kvferry::Plugin> the_plugin;

struct Tally {
  std::string running;
  std::map<std::string, std::string> skipped;  // case: reason
  int passed = 0, failed = 0;
};
Tally tally;

struct Listener : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo& info) override { tally.running = info.name; }
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    if (!stats.totals.assertions.allOk()) {
      ++tally.failed;
      tally.skipped.erase(tally.running);
    } else if (tally.skipped.count(tally.running) == 0) {
      ++tally.passed;
    }
  }
};
CATCH_REGISTER_LISTENER(Listener)

constexpr std::uint64_t kVirtualStepNs = 1'000;

/// For the test of another process: prints an endpoint descriptor in hex.
int print_endpoint() {
  Side side;
  for (const std::uint8_t byte : ok(side->peer_export(new_peer(side)))) std::printf("%02x", byte);
  std::printf("\n");
  return 0;
}

const char* setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != '\0' ? value : nullptr;
}

}  // namespace

const Environment& environment() { return the_environment; }
const kvferry::Plugin& plugin() { return *the_plugin; }
void skip(const std::string& reason) { tally.skipped[tally.running] = reason; }
std::uint64_t allocations() { return kvferry::test::allocations_count(); }

}  // namespace conformance

int main(int argc, char** argv) {
  using namespace conformance;
  if (const char* value = setting("KVFERRY_CONFORMANCE_BACKEND")) the_environment.backend = value;
  if (const char* value = setting("KVFERRY_CONFORMANCE_LANE")) the_environment.lane = value;
  if (const char* value = setting("KVFERRY_CONFORMANCE_ROUNDS"))
    the_environment.rounds = static_cast<std::uint32_t>(std::strtoul(value, nullptr, 10));
  const char* seed = setting("KVFERRY_TEST_SEED");
  if (seed != nullptr) the_environment.seed = std::strtoull(seed, nullptr, 10);

  auto plugin = kvferry::load_plugin(the_environment.backend, host());
  if (!plugin) {
    std::fprintf(stderr, "%s\n", plugin.error().text.c_str());
    return 1;
  }
  the_plugin = std::move(*plugin);
  if (const char* clock = setting("KVFERRY_CONFORMANCE_CLOCK"); clock != nullptr && std::strcmp(clock, "virtual") == 0) {
    test_clock().make_virtual(kVirtualStepNs);
  }
  if (argc == 2 && std::strcmp(argv[1], "--print-endpoint") == 0) return print_endpoint();
  std::printf("conformance of %s (%s), lane %s, %u rounds, seed %llu\n", the_environment.backend.c_str(), the_plugin->path.c_str(),
              the_environment.lane.c_str(), the_environment.rounds, static_cast<unsigned long long>(the_environment.seed));
  const int result = kvferry::test::run_tests(argc, argv);
  for (const auto& [name, reason] : tally.skipped) std::printf("skipped: %s: %s\n", name.c_str(), reason.c_str());
  std::printf("%d passed, %d failed, %zu skipped\n", tally.passed, tally.failed, tally.skipped.size());
  return result;
}
