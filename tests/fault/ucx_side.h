// One side of a transfer for tests of the UCX backend: a created backend behind its C table, with the events it gave.
#pragma once

#include <dlfcn.h>
#include <poll.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvferry/backend_abi.h"

namespace ucx_test {

using Settings = std::vector<std::pair<std::string, std::string>>;
using Blob = std::vector<std::uint8_t>;

inline std::uint64_t real_now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_nsec);
}

/// Longest wait for anything; never a measure of success.
constexpr std::uint64_t kGuardNs = 120'000'000'000;

/// A host whose log is kept and whose clock may be moved on.
struct TestHost {
  kvferry_host table{};
  std::vector<std::pair<std::int32_t, std::string>> lines;
  std::atomic<std::uint64_t> own_skip_ns{0};
  std::atomic<std::uint64_t>* skip_ns = &own_skip_ns;  ///< added to the real clock; may lie in memory that another process writes

  explicit TestHost(std::uint32_t abi_major = KVFERRY_BACKEND_ABI_MAJOR) {
    table.struct_size = sizeof(table);
    table.abi_major = abi_major;
    table.user = this;
    table.now_ns = [](void* user) { return real_now_ns() + static_cast<TestHost*>(user)->skip_ns->load(); };
    table.log = [](void* user, std::int32_t level, const char* component, const char* text) {
      static_cast<TestHost*>(user)->lines.emplace_back(level, std::string(component) + ": " + text);
    };
  }
  TestHost(const TestHost&) = delete;
  TestHost& operator=(const TestHost&) = delete;
  std::string all_lines() const {
    std::string all;
    for (const auto& [level, text] : lines) all += std::to_string(level) + " " + text + "\n";
    return all;
  }
};

struct Refused : std::runtime_error {
  Refused(kvferry_status status_, const kvferry_error& error_) : std::runtime_error(error_.text), status(status_), error(error_) {}
  kvferry_status status;
  kvferry_error error;
};

inline void check(kvferry_status status, const kvferry_error& error) {
  if (status > KVFERRY_AGAIN) throw Refused(status, error);
}

inline kvferry_error fresh_error() {
  kvferry_error error{};
  error.struct_size = sizeof(error);
  return error;
}

class Side {
 public:
  Side(const kvferry_backend_table* table, const Settings& settings = {}, std::atomic<std::uint64_t>* skip_ns = nullptr) : table_(table) {
    if (skip_ns != nullptr) host.skip_ns = skip_ns;
    std::vector<kvferry_setting> list;
    for (const auto& [key, value] : settings) list.push_back({key.c_str(), value.c_str()});
    kvferry_error error = fresh_error();
    check(table->create(&host.table, list.data(), static_cast<std::uint32_t>(list.size()), &backend_, &error), error);
    for (kvferry_event& event : polled_) event.struct_size = sizeof(event);
  }
  ~Side() {
    if (backend_ != nullptr) table_->destroy(backend_, 1, nullptr);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  const kvferry_backend_table& table() const { return *table_; }
  kvferry_backend* get() const { return backend_; }
  void destroy(bool force) {
    kvferry_error error = fresh_error();
    check(table_->destroy(backend_, force ? 1 : 0, &error), error);
    backend_ = nullptr;
  }

  kvferry_region add(void* address, std::uint64_t length, std::uint32_t access = KVFERRY_ACCESS_REMOTE_WRITE) {
    kvferry_region_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.address = reinterpret_cast<std::uint64_t>(address);
    desc.length = length;
    desc.access = access;
    desc.dmabuf_fd = -1;
    kvferry_region region = 0;
    kvferry_error error = fresh_error();
    check(table_->register_region(backend_, &desc, &region, &error), error);
    return region;
  }
  std::pair<std::uint8_t*, kvferry_region> allocate(std::uint64_t length) {
    void* address = nullptr;
    kvferry_region region = 0;
    kvferry_error error = fresh_error();
    check(table_->allocate(backend_, length, KVFERRY_PURPOSE_KV, &address, &region, &error), error);
    return {static_cast<std::uint8_t*>(address), region};
  }
  kvferry_status deregister(kvferry_region region, std::uint32_t mode) {
    kvferry_error error = fresh_error();
    return table_->deregister_region(backend_, region, mode, &error);
  }
  Blob export_regions(const std::vector<kvferry_region>& regions) {
    std::uint64_t bytes = 0;
    kvferry_error error = fresh_error();
    check(table_->export_regions(backend_, regions.data(), static_cast<std::uint32_t>(regions.size()), nullptr, 0, &bytes, &error), error);
    Blob blob(bytes);
    check(table_->export_regions(backend_, regions.data(), static_cast<std::uint32_t>(regions.size()), blob.data(), blob.size(), &bytes, &error), error);
    return blob;
  }

  kvferry_peer peer(const char* lane = nullptr, std::uint64_t lease_ns = 0) {
    kvferry_peer_options options{};
    options.struct_size = sizeof(options);
    options.lane = lane;
    options.lease_ns = lease_ns;
    kvferry_peer created = 0;
    kvferry_error error = fresh_error();
    check(table_->peer_create(backend_, &options, &created, &error), error);
    return created;
  }
  Blob export_peer(kvferry_peer peer) {
    std::uint64_t bytes = 0;
    kvferry_error error = fresh_error();
    check(table_->peer_export(backend_, peer, nullptr, 0, &bytes, &error), error);
    Blob blob(bytes);
    check(table_->peer_export(backend_, peer, blob.data(), blob.size(), &bytes, &error), error);
    return blob;
  }
  void connect(kvferry_peer peer, const Blob& blob, std::uint64_t deadline_ns = 0) {
    kvferry_error error = fresh_error();
    check(table_->peer_connect(backend_, peer, blob.data(), blob.size(), deadline_ns, &error), error);
  }
  void import_regions(kvferry_peer peer, const Blob& blob) {
    kvferry_error error = fresh_error();
    check(table_->import_regions(backend_, peer, blob.data(), blob.size(), &error), error);
  }
  void close(kvferry_peer peer, std::uint32_t mode, std::uint64_t deadline_ns = 0) {
    kvferry_error error = fresh_error();
    check(table_->peer_close(backend_, peer, mode, deadline_ns, &error), error);
  }
  kvferry_peer_info info(kvferry_peer peer) {
    kvferry_peer_info info{};
    info.struct_size = sizeof(info);
    kvferry_error error = fresh_error();
    check(table_->peer_state(backend_, peer, &info, &error), error);
    return info;
  }
  kvferry_stats stats() {
    kvferry_stats stats{};
    stats.struct_size = sizeof(stats);
    kvferry_error error = fresh_error();
    check(table_->stats(backend_, &stats, &error), error);
    return stats;
  }
  kvferry_limits limits() {
    kvferry_limits limits{};
    limits.struct_size = sizeof(limits);
    kvferry_error error = fresh_error();
    check(table_->query(backend_, &limits, &error), error);
    return limits;
  }

  /// Accepted writes; throws what was refused.
  std::uint32_t submit(kvferry_peer peer, const kvferry_batch& batch, kvferry_status* ret_status = nullptr) {
    std::uint32_t accepted = 0;
    kvferry_error error = fresh_error();
    const kvferry_status status = table_->submit(backend_, peer, &batch, &accepted, &error);
    check(status, error);
    if (ret_status != nullptr) *ret_status = status;
    return accepted;
  }

  bool progress() {
    std::uint32_t worked = 0, count = 0, polled = 0;
    check(table_->progress(backend_, &worked, &error_), error_);
    do {
      check(table_->poll(backend_, polled_.data(), static_cast<std::uint32_t>(polled_.size()), &count, &error_), error_);
      events.insert(events.end(), polled_.begin(), polled_.begin() + count);
      polled += count;
    } while (count == polled_.size());
    return worked != 0 || polled != 0;
  }
  /// Waits on the event fd, as an engine does.
  void sleep_ms(int timeout_ms) {
    kvferry_error error = fresh_error();
    const kvferry_status status = table_->arm(backend_, &error);
    check(status, error);
    if (status == KVFERRY_AGAIN) return;
    std::int32_t fd = -1;
    check(table_->event_fd(backend_, &fd, &error), error);
    pollfd poller{fd, POLLIN, 0};
    (void)::poll(&poller, 1, timeout_ms);
  }

  const kvferry_event* find(std::uint32_t kind, std::uint64_t tag_or_peer) const {
    for (const kvferry_event& event : events) {
      const bool by_peer = kind == KVFERRY_EVENT_PEER_UP || kind == KVFERRY_EVENT_PEER_LOST || kind == KVFERRY_EVENT_PEER_CLOSED ||
                           kind == KVFERRY_EVENT_NOTIFICATION || kind == KVFERRY_EVENT_PIECE_REFUSED;
      if (event.kind == kind && (by_peer ? event.peer : event.tag) == tag_or_peer) return &event;
    }
    return nullptr;
  }
  std::size_t count(std::uint32_t kind) const {
    std::size_t number = 0;
    for (const kvferry_event& event : events) number += event.kind == kind ? 1 : 0;
    return number;
  }

  TestHost host;
  std::vector<kvferry_event> events;

 private:
  const kvferry_backend_table* table_;
  kvferry_backend* backend_ = nullptr;
  kvferry_error error_ = fresh_error();
  std::vector<kvferry_event> polled_ = std::vector<kvferry_event>(64);
};

/// Progresses all sides until `finished`; throws when the guard time is over.
inline void run_until(const std::vector<Side*>& sides, const std::function<bool()>& finished, const char* what = "run_until") {
  const std::uint64_t limit = real_now_ns() + kGuardNs;
  while (!finished()) {
    bool worked = false;
    for (Side* side : sides) worked = side->progress() || worked;
    if (!worked && !finished()) sides.front()->sleep_ms(1);
    if (real_now_ns() > limit) throw std::runtime_error(std::string(what) + ": the guard time is over");
  }
}

inline const kvferry_backend_table* load_plugin_table(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<kvferry_backend_entry_function>(dlsym(library, KVFERRY_BACKEND_ENTRY_SYMBOL));
  if (entry == nullptr) throw std::runtime_error("no entry symbol");
  static TestHost host;
  char reason[256] = "";
  const kvferry_backend_table* table = entry(&host.table, reason, sizeof(reason));
  if (table == nullptr) throw std::runtime_error(reason);
  return table;
}

/// Connects two sides and waits until both are up.
inline std::pair<kvferry_peer, kvferry_peer> connect_sides(Side& one, Side& other, const char* lane = nullptr, std::uint64_t lease_ns = 0) {
  const kvferry_peer a = one.peer(lane, lease_ns), b = other.peer(lane, lease_ns);
  const Blob a_blob = one.export_peer(a), b_blob = other.export_peer(b);
  one.connect(a, b_blob);
  other.connect(b, a_blob);
  run_until({&one, &other}, [&] {
    if (const kvferry_event* lost = one.find(KVFERRY_EVENT_PEER_LOST, a)) throw std::runtime_error(lost->error.text);
    if (const kvferry_event* lost = other.find(KVFERRY_EVENT_PEER_LOST, b)) throw std::runtime_error(lost->error.text);
    return one.find(KVFERRY_EVENT_PEER_UP, a) != nullptr && other.find(KVFERRY_EVENT_PEER_UP, b) != nullptr;
  });
  return {a, b};
}

}  // namespace ucx_test
