/// kvferry/backend.h: loading a backend plugin and calling it from C++.
///
/// `load_plugin` finds libkvferry_<name>.so, checks its ABI before anything else, protects the host (signal handlers kept across dlopen, RTLD_LOCAL,
/// never unloaded) and explains every candidate it refused. `Backend` owns one created backend and turns C statuses into Result.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvferry/backend_abi.h"
#include "kvferry/result.h"

namespace kvferry {

enum class LogLevel : std::int32_t { error = 0, warn = 1, info = 2, debug = 3 };
/// Called from any thread with preformatted text; empty: silent.
using LogFunction = std::function<void(LogLevel, std::string_view component, std::string_view text)>;

/// What the host gives to plugins. Keep it alive as long as any backend made with it.
class Host {
 public:
  struct Options {
    LogFunction log;
    std::function<std::uint64_t()> now_ns;  ///< empty: CLOCK_MONOTONIC
    std::function<void(const char* name)> thread_start;
    std::function<void()> thread_stop;
  };
  explicit Host(Options options);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  const kvferry_host* table() const noexcept { return &table_; }
  std::uint64_t now_ns() const;
  void log(LogLevel level, std::string_view component, std::string_view text) const;

 private:
  Options options_;
  kvferry_host table_{};
};

/// A loaded plugin; cheap to copy; the shared object stays loaded for the life of the process.
struct Plugin {
  const kvferry_backend_table* table = nullptr;
  std::string name;  ///< as asked for
  std::string path;  ///< of the shared object; empty for a static table
};

/// Folders searched, in order: KVFERRY_PLUGIN_PATH (colon separated; then nothing else is searched), else the folder "kvferry" beside the library
/// that holds this code (installed layout), then the build tree's plugins folder when this library runs from it. In each folder, libkvferry_<name>.so
/// and <name>/libkvferry_<name>.so. World-writable folders and files are refused; a candidate that is refused before another one loads is logged.
std::vector<std::string> plugin_folders();

/// Error `unavailable` names every path tried with its reason (dlerror text, missing symbol, refused ABI with both versions, missing required entry);
/// `version` when one of them was refused for its ABI version; `invalid_argument` for a name other than lower-case letters, digits, '_' and '-'.
Result<Plugin> load_plugin(std::string_view name, const Host& host);
/// By path, for tests and third parties.
Result<Plugin> load_plugin_file(const std::string& path, const Host& host);
/// Checks a table as load_plugin does; used for static tables too.
Result<Plugin> adopt_plugin(const kvferry_backend_table* table, std::string name);

using Settings = std::vector<std::pair<std::string, std::string>>;  ///< keys without prefix

/// From the environment: KVFERRY_<BACKEND>_<KEY>=value, key lowered. Read once by the caller at create.
Settings backend_settings_from_environment(std::string_view backend);

Result<std::vector<kvferry_device>> probe_devices(const Plugin& plugin, const Host& host, const Settings& settings);

/// Turns a filled C error into ours.
Error to_error(const kvferry_error& error);
/// Fills a C error; the text is cut at the buffer with "..." at its end.
void fill_error(kvferry_error* ret_error, const Error& error) noexcept;

/// One created backend. Same thread rules as the ABI: one thread at a time, except stats.
class Backend {
 public:
  static Result<std::unique_ptr<Backend>> create(const Plugin& plugin, const Host& host, const Settings& settings);
  ~Backend();  ///< forced destroy
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  const kvferry_limits& limits() const noexcept { return limits_; }
  bool has(std::uint32_t capability) const noexcept { return (limits_.capabilities & capability) != 0; }
  std::string_view name() const noexcept;
  Result<std::string> effective_config() const;
  const Plugin& plugin() const noexcept { return plugin_; }
  kvferry_backend* handle() const noexcept { return backend_; }  ///< for callers that speak C: plugin().table->...(handle(), ...)

  struct RegionRequest {
    std::uint64_t address = 0, length = 0;
    std::uint32_t purpose = KVFERRY_PURPOSE_KV;
    std::uint32_t memory_kind = KVFERRY_MEMORY_HOST;
    std::uint32_t access = KVFERRY_ACCESS_LOCAL;
  };
  Result<kvferry_region> register_region(const RegionRequest& request);
  /// true: gone; false: still draining, call again after progress.
  Result<bool> deregister_region(kvferry_region region, std::uint32_t mode);
  Result<void> region_quiesce(kvferry_region region, kvferry_peer peer, std::uint64_t tag, std::uint64_t deadline_ns);
  struct Allocation {
    void* address = nullptr;
    kvferry_region region = 0;
  };
  Result<Allocation> allocate(std::uint64_t length, std::uint32_t purpose);
  Result<bool> free_memory(kvferry_region region);
  Result<std::vector<std::uint8_t>> export_regions(std::span<const kvferry_region> regions) const;

  struct PeerOptions {
    std::string lane = "auto";
    std::uint64_t lease_ns = 0;
  };
  Result<kvferry_peer> peer_create(const PeerOptions& options);
  Result<std::vector<std::uint8_t>> peer_export(kvferry_peer peer) const;
  Result<void> peer_connect(kvferry_peer peer, std::span<const std::uint8_t> blob, std::uint64_t deadline_ns);
  Result<void> import_regions(kvferry_peer peer, std::span<const std::uint8_t> blob);
  Result<void> forget_regions(kvferry_peer peer, std::span<const kvferry_region> regions);
  Result<kvferry_peer_info> peer_state(kvferry_peer peer) const;
  Result<void> peer_close(kvferry_peer peer, std::uint32_t mode, std::uint64_t deadline_ns);

  /// What the backend took: the first `writes`; `all`: status OK with every write, and the notification if the batch has one. Nothing and not all:
  /// the window is full (KVFERRY_AGAIN). A batch of no writes that carries a notification is accepted with writes 0 and all true.
  struct Accepted {
    std::uint32_t writes = 0;
    bool all = false;
  };
  Result<Accepted> submit(kvferry_peer peer, const kvferry_batch& batch);
  Result<void> cancel(kvferry_peer peer, std::uint64_t room, std::uint32_t generation);
  Result<void> fence(kvferry_peer peer, std::uint64_t room, std::uint32_t generation, std::uint64_t tag, std::uint64_t deadline_ns);
  Result<void> flush(kvferry_peer peer, std::uint64_t tag);
  Result<bool> progress();
  Result<std::uint32_t> poll(std::span<kvferry_event> events);
  Result<int> event_fd();
  /// true: armed, wait; false: call progress.
  Result<bool> arm();
  kvferry_stats stats() const;
  Result<void> self_test();

 private:
  Backend(const Plugin& plugin, const Host& host, kvferry_backend* backend);
  Plugin plugin_;
  const Host& host_;
  kvferry_backend* backend_;
  kvferry_limits limits_{};
  std::int32_t process_id_;  ///< of the creator; another one is a forked child and is refused
};

}  // namespace kvferry
