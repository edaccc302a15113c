#include "registry.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <set>
#include <vector>

namespace loopback {
namespace {

struct Waiting {
  EndpointBlob from, to;
  std::weak_ptr<Link> link;
};

struct Registry {
  std::mutex mutex;
  std::uint64_t process_token = 0;
  std::set<std::pair<std::uint64_t, kvferry_peer>> peers;
  std::vector<Waiting> waiting;
};

std::atomic<std::uint64_t> last_id{0};
std::atomic<pid_t> owner{0};

/// Never destroyed: a backend may outlive the static objects of its process.
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

bool same(const EndpointBlob& a, const EndpointBlob& b) { return a.identity.instance == b.identity.instance && a.peer == b.peer; }

}  // namespace

std::uint64_t next_id() noexcept { return last_id.fetch_add(1) + 1; }

Answer<Identity> add_backend() {
  const pid_t process = getpid();
  pid_t first = 0;
  // Before the mutex: in a forked child it may be held for ever by a thread that is not there.
  if (!owner.compare_exchange_strong(first, process) && first != process) {
    return refuse(KVFERRY_ERROR_FORKED,
                  "create in process " + std::to_string(process) + ", a fork of process " + std::to_string(first) + ", which has used the plugin");
  }
  Registry& shared = registry();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  if (shared.process_token == 0) {
    std::uint64_t token = 0;
    if (getrandom(&token, sizeof(token), 0) != static_cast<ssize_t>(sizeof(token))) {
      return refuse_errno(KVFERRY_ERROR_UNAVAILABLE, "make a process token", "getrandom", errno);
    }
    shared.process_token = token | 1;  // 0 means none
  }
  return Identity{static_cast<std::uint32_t>(process), shared.process_token, next_id()};
}

void remove_backend(std::uint64_t instance) {
  Registry& shared = registry();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  auto& peers = shared.peers;
  peers.erase(peers.lower_bound({instance, 0}), peers.lower_bound({instance + 1, 0}));
}

void add_peer(std::uint64_t instance, kvferry_peer peer) {
  Registry& shared = registry();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  shared.peers.emplace(instance, peer);
}

void remove_peer(std::uint64_t instance, kvferry_peer peer) {
  Registry& shared = registry();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  shared.peers.erase({instance, peer});
}

bool has_peer(std::uint64_t instance, kvferry_peer peer) {
  Registry& shared = registry();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  return shared.peers.count({instance, peer}) != 0;
}

Answer<Joined> join(const EndpointBlob& own, const EndpointBlob& remote, const EndOptions& options, const std::shared_ptr<Doorbell>& bell) {
  Registry& shared = registry();
  if (remote.identity.process_token != own.identity.process_token) {
    return refuse(KVFERRY_ERROR_UNSUPPORTED, "the endpoint belongs to process " + std::to_string(remote.identity.process_id) + ", this is process " +
                                                 std::to_string(own.identity.process_id) + "; loopback connects ends of one process only");
  }
  if (same(own, remote)) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "the endpoint is the peer's own", own.peer);

  const std::lock_guard<std::mutex> lock(shared.mutex);
  auto& waiting = shared.waiting;
  waiting.erase(std::remove_if(waiting.begin(), waiting.end(), [](const Waiting& entry) { return entry.link.expired(); }), waiting.end());
  for (auto entry = waiting.begin(); entry != waiting.end(); ++entry) {
    if (!same(entry->from, remote) || !same(entry->to, own)) continue;
    Joined joined{entry->link.lock(), 1};
    waiting.erase(entry);
    if (joined.link == nullptr) break;
    const std::lock_guard<std::mutex> link_lock(joined.link->mutex);
    joined.link->ends[1] = std::make_unique<End>(options, bell);
    joined.link->ends[0]->bell->ring();
    return joined;
  }
  Joined joined{std::make_shared<Link>(), 0};
  joined.link->ends[0] = std::make_unique<End>(options, bell);
  waiting.push_back({own, remote, joined.link});
  return joined;
}

}  // namespace loopback
