// The C++ side of one backend: every call goes through `invoke`, which refuses a forked child, an entry that the plugin does not have and anything
// that is not a status of the ABI, and turns the caller-owned C error into ours with "backend NAME: entry" before it.
#include "kvferry/backend.h"

#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "entry_of.h"

namespace kvferry {
namespace {

using plugin::entry_of;
using Table = kvferry_backend_table;

constexpr std::uint32_t kDevicesMax = 4096;         // a probe that reports more is not believed
constexpr std::uint64_t kBlobBytesMax = 64u << 20;  // nor a blob or a text that is longer
constexpr pid_t kAnyProcess = 0;
constexpr int kSizeQueriesMax = 8;  // a size may grow between the query and the call, but not for ever

std::string place(std::string_view backend, const char* entry) { return "backend " + std::string(backend) + ": " + entry; }

/// A filled error, or what is wrong with an answer that has none.
Error error_of(std::string_view backend, const char* entry, kvferry_status status, const kvferry_error& error) {
  if (error.code != 0) return to_error(error).within(place(backend, entry));
  if (status >= KVFERRY_ERROR_INVALID_ARGUMENT && status <= KVFERRY_ERROR_CANNOT_PROMISE) {
    return Error(static_cast<ErrorCode>(status), "no reason given").within(place(backend, entry));
  }
  return Error(ErrorCode::internal, "answered status " + std::to_string(status) + ", which the ABI does not have").within(place(backend, entry));
}

Error forked(std::string_view backend, const char* entry, pid_t creator) {
  return Error(ErrorCode::forked, "process " + std::to_string(getpid()) + " is a fork of process " + std::to_string(creator) +
                                      ", which created the backend; a child must not use it")
      .within(place(backend, entry));
}

/// true: KVFERRY_OK; false: KVFERRY_AGAIN. `creator`: the only process that may call, or kAnyProcess.
template <class Function, class... Arguments>
Result<bool> invoke(const Plugin& plugin, pid_t creator, Function* Table::*member, const char* entry, Arguments... arguments) {
  if (creator != kAnyProcess && getpid() != creator) return fail(forked(plugin.name, entry, creator));
  Function* function = entry_of(*plugin.table, member);
  if (function == nullptr) return fail(Error(ErrorCode::unsupported, "the plugin does not have this entry").within(place(plugin.name, entry)));
  kvferry_error error;
  std::memset(&error, 0, offsetof(kvferry_error, text) + 1);  // the text is long and this is the hot path
  error.struct_size = sizeof(error);
  kvferry_status status = KVFERRY_ERROR_INTERNAL;
  try {
    status = function(arguments..., &error);
  } catch (...) {
    return fail(Error(ErrorCode::internal, "threw an exception").within(place(plugin.name, entry)));
  }
  if (status == KVFERRY_OK) return true;
  if (status == KVFERRY_AGAIN) return false;
  return fail(error_of(plugin.name, entry, status, error));
}

std::vector<kvferry_setting> c_settings(const Settings& settings) {
  std::vector<kvferry_setting> pairs;
  pairs.reserve(settings.size());
  for (const auto& [key, value] : settings) pairs.push_back({key.c_str(), value.c_str()});
  return pairs;
}

Result<void> nothing(Result<bool> answer, std::string_view backend, const char* entry) {
  if (!answer) return fail(std::move(answer.error()));
  if (!*answer) return fail(Error(ErrorCode::busy, ErrorClass::retry, "answered again").within(place(backend, entry)));
  return {};
}

/// The two-call size query: ask(capacity 0) for the size, then for the bytes, again while the size has grown in between.
template <class Size, class Ask>
Result<std::vector<std::uint8_t>> sized_bytes(const std::string& where, const Ask& ask) {
  std::vector<std::uint8_t> bytes;
  for (int query = 0; query < kSizeQueriesMax; ++query) {
    Size needed = 0;
    auto answer = ask(bytes.empty() ? nullptr : bytes.data(), static_cast<Size>(bytes.size()), &needed);
    if (!answer) return fail(std::move(answer.error()));
    if (needed > kBlobBytesMax) {
      return fail(ErrorCode::internal, where + ": wants " + std::to_string(needed) + " bytes, the limit is " + std::to_string(kBlobBytesMax));
    }
    if (needed <= bytes.size()) {
      bytes.resize(static_cast<std::size_t>(needed));
      return bytes;
    }
    bytes.resize(static_cast<std::size_t>(needed));
  }
  return fail(ErrorCode::internal, where + ": the size grew at each of " + std::to_string(kSizeQueriesMax) + " queries");
}

}  // namespace

Result<std::vector<kvferry_device>> probe_devices(const Plugin& plugin, const Host& host, const Settings& settings) {
  const auto pairs = c_settings(settings);
  std::vector<kvferry_device> devices;
  for (int query = 0; query < kSizeQueriesMax; ++query) {
    std::uint32_t count = 0;
    auto answer = invoke(plugin, kAnyProcess, &Table::probe, "probe", host.table(), pairs.data(), static_cast<std::uint32_t>(pairs.size()),
                         devices.empty() ? nullptr : devices.data(), static_cast<std::uint32_t>(devices.size()), &count);
    if (auto done = nothing(std::move(answer), plugin.name, "probe"); !done) return fail(std::move(done.error()));
    if (count > kDevicesMax) {
      return fail(ErrorCode::internal,
                  place(plugin.name, "probe") + ": reports " + std::to_string(count) + " devices, the limit is " + std::to_string(kDevicesMax));
    }
    const bool complete = count <= devices.size();
    devices.resize(count);
    if (complete) return devices;
    for (kvferry_device& device : devices) device.struct_size = sizeof(device);
  }
  return fail(ErrorCode::internal, place(plugin.name, "probe") + ": the number of devices grew at each query");
}

Backend::Backend(const Plugin& plugin, const Host& host, kvferry_backend* backend)
    : plugin_(plugin), host_(host), backend_(backend), process_id_(getpid()) {}

Result<std::unique_ptr<Backend>> Backend::create(const Plugin& plugin, const Host& host, const Settings& settings) {
  const auto pairs = c_settings(settings);
  kvferry_backend* created = nullptr;
  auto answer = invoke(plugin, kAnyProcess, &Table::create, "create", host.table(), pairs.data(), static_cast<std::uint32_t>(pairs.size()), &created);
  if (auto done = nothing(std::move(answer), plugin.name, "create"); !done) return fail(std::move(done.error()));
  if (created == nullptr) return fail(Error(ErrorCode::internal, "answered ok without a backend").within(place(plugin.name, "create")));
  std::unique_ptr<Backend> backend(new Backend(plugin, host, created));
  backend->limits_.struct_size = sizeof(backend->limits_);
  answer = invoke(plugin, kAnyProcess, &Table::query, "query", created, &backend->limits_);
  if (auto done = nothing(std::move(answer), plugin.name, "query"); !done) return fail(std::move(done.error()));

  const auto promised_but_missing = [&](std::uint32_t capability, bool present, const char* entries) -> std::string {
    return backend->has(capability) && !present ? entries : "";
  };
  const Table& table = *plugin.table;
  std::string missing =
      promised_but_missing(KVFERRY_CAP_EVENT_FD, entry_of(table, &Table::event_fd) != nullptr && entry_of(table, &Table::arm) != nullptr,
                           "EVENT_FD without event_fd and arm");
  missing +=
      promised_but_missing(KVFERRY_CAP_ALLOCATE, entry_of(table, &Table::allocate) != nullptr && entry_of(table, &Table::free_memory) != nullptr,
                           "ALLOCATE without allocate and free_memory");
  if (!missing.empty()) return fail(Error(ErrorCode::internal, "claims the capability " + missing).within(place(plugin.name, "query")));
  return backend;
}

Backend::~Backend() {
  if (getpid() != process_id_) return;  // a forked child: the backend is the parent's
  auto answer = invoke(plugin_, process_id_, &Table::destroy, "destroy", backend_, 1u);
  if (!answer) host_.log(LogLevel::error, "backend", answer.error().text);
}

std::string_view Backend::name() const noexcept { return plugin_.name; }

Result<std::string> Backend::effective_config() const {
  auto bytes = sized_bytes<std::uint32_t>(place(plugin_.name, "effective_config"), [&](void* text, std::uint32_t capacity, std::uint32_t* ret_bytes) {
    return invoke(plugin_, process_id_, &Table::effective_config, "effective_config", backend_, static_cast<char*>(text), capacity, ret_bytes);
  });
  if (!bytes) return fail(std::move(bytes.error()));
  while (!bytes->empty() && bytes->back() == 0) bytes->pop_back();
  return std::string(bytes->begin(), bytes->end());
}

Result<kvferry_region> Backend::register_region(const RegionRequest& request) {
  kvferry_region_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.purpose = request.purpose;
  desc.memory_kind = request.memory_kind;
  desc.access = request.access;
  desc.address = request.address;
  desc.length = request.length;
  desc.dmabuf_fd = -1;
  kvferry_region region = 0;
  auto done =
      nothing(invoke(plugin_, process_id_, &Table::register_region, "register_region", backend_, &desc, &region), plugin_.name, "register_region");
  if (!done) return fail(std::move(done.error()));
  return region;
}

Result<bool> Backend::deregister_region(kvferry_region region, std::uint32_t mode) {
  return invoke(plugin_, process_id_, &Table::deregister_region, "deregister_region", backend_, region, mode);
}

Result<void> Backend::region_quiesce(kvferry_region region, kvferry_peer peer, std::uint64_t tag, std::uint64_t deadline_ns) {
  return nothing(invoke(plugin_, process_id_, &Table::region_quiesce, "region_quiesce", backend_, region, peer, tag, deadline_ns), plugin_.name,
                 "region_quiesce");
}

Result<Backend::Allocation> Backend::allocate(std::uint64_t length, std::uint32_t purpose) {
  Allocation allocation;
  auto done = nothing(invoke(plugin_, process_id_, &Table::allocate, "allocate", backend_, length, purpose, &allocation.address, &allocation.region),
                      plugin_.name, "allocate");
  if (!done) return fail(std::move(done.error()));
  return allocation;
}

Result<bool> Backend::free_memory(kvferry_region region) {
  return invoke(plugin_, process_id_, &Table::free_memory, "free_memory", backend_, region);
}

Result<std::vector<std::uint8_t>> Backend::export_regions(std::span<const kvferry_region> regions) const {
  return sized_bytes<std::uint64_t>(place(plugin_.name, "export_regions"), [&](void* blob, std::uint64_t capacity, std::uint64_t* ret_bytes) {
    return invoke(plugin_, process_id_, &Table::export_regions, "export_regions", backend_, regions.data(),
                  static_cast<std::uint32_t>(regions.size()), blob, capacity, ret_bytes);
  });
}

Result<kvferry_peer> Backend::peer_create(const PeerOptions& options) {
  kvferry_peer_options c_options{};
  c_options.struct_size = sizeof(c_options);
  c_options.lane = options.lane.c_str();
  c_options.lease_ns = options.lease_ns;
  kvferry_peer peer = 0;
  auto done = nothing(invoke(plugin_, process_id_, &Table::peer_create, "peer_create", backend_, &c_options, &peer), plugin_.name, "peer_create");
  if (!done) return fail(std::move(done.error()));
  return peer;
}

Result<std::vector<std::uint8_t>> Backend::peer_export(kvferry_peer peer) const {
  return sized_bytes<std::uint64_t>(place(plugin_.name, "peer_export"), [&](void* blob, std::uint64_t capacity, std::uint64_t* ret_bytes) {
    return invoke(plugin_, process_id_, &Table::peer_export, "peer_export", backend_, peer, blob, capacity, ret_bytes);
  });
}

Result<void> Backend::peer_connect(kvferry_peer peer, std::span<const std::uint8_t> blob, std::uint64_t deadline_ns) {
  return nothing(invoke(plugin_, process_id_, &Table::peer_connect, "peer_connect", backend_, peer, static_cast<const void*>(blob.data()),
                        blob.size(), deadline_ns),
                 plugin_.name, "peer_connect");
}

Result<void> Backend::import_regions(kvferry_peer peer, std::span<const std::uint8_t> blob) {
  return nothing(
      invoke(plugin_, process_id_, &Table::import_regions, "import_regions", backend_, peer, static_cast<const void*>(blob.data()), blob.size()),
      plugin_.name, "import_regions");
}

Result<void> Backend::forget_regions(kvferry_peer peer, std::span<const kvferry_region> regions) {
  return nothing(invoke(plugin_, process_id_, &Table::forget_regions, "forget_regions", backend_, peer, regions.data(),
                        static_cast<std::uint32_t>(regions.size())),
                 plugin_.name, "forget_regions");
}

Result<kvferry_peer_info> Backend::peer_state(kvferry_peer peer) const {
  kvferry_peer_info info{};
  info.struct_size = sizeof(info);
  auto done = nothing(invoke(plugin_, process_id_, &Table::peer_state, "peer_state", backend_, peer, &info), plugin_.name, "peer_state");
  if (!done) return fail(std::move(done.error()));
  return info;
}

Result<void> Backend::peer_close(kvferry_peer peer, std::uint32_t mode, std::uint64_t deadline_ns) {
  return nothing(invoke(plugin_, process_id_, &Table::peer_close, "peer_close", backend_, peer, mode, deadline_ns), plugin_.name, "peer_close");
}

Result<Backend::Accepted> Backend::submit(kvferry_peer peer, const kvferry_batch& batch) {
  Accepted accepted;
  auto answer = invoke(plugin_, process_id_, &Table::submit, "submit", backend_, peer, &batch, &accepted.writes);
  if (!answer) return fail(std::move(answer.error()));
  if (!*answer) return Accepted{};
  accepted.all = accepted.writes == batch.write_count;
  return accepted;
}

Result<void> Backend::cancel(kvferry_peer peer, std::uint64_t room, std::uint32_t generation) {
  return nothing(invoke(plugin_, process_id_, &Table::cancel, "cancel", backend_, peer, room, generation), plugin_.name, "cancel");
}

Result<void> Backend::fence(kvferry_peer peer, std::uint64_t room, std::uint32_t generation, std::uint64_t tag, std::uint64_t deadline_ns) {
  return nothing(invoke(plugin_, process_id_, &Table::fence, "fence", backend_, peer, room, generation, tag, deadline_ns), plugin_.name, "fence");
}

Result<void> Backend::flush(kvferry_peer peer, std::uint64_t tag) {
  return nothing(invoke(plugin_, process_id_, &Table::flush, "flush", backend_, peer, tag), plugin_.name, "flush");
}

Result<bool> Backend::progress() {
  std::uint32_t worked = 0;
  auto done = nothing(invoke(plugin_, process_id_, &Table::progress, "progress", backend_, &worked), plugin_.name, "progress");
  if (!done) return fail(std::move(done.error()));
  return worked != 0;
}

Result<std::uint32_t> Backend::poll(std::span<kvferry_event> events) {
  for (kvferry_event& event : events) event.struct_size = sizeof(event);
  std::uint32_t count = 0;
  auto done = nothing(invoke(plugin_, process_id_, &Table::poll, "poll", backend_, events.data(), static_cast<std::uint32_t>(events.size()), &count),
                      plugin_.name, "poll");
  if (!done) return fail(std::move(done.error()));
  if (count > events.size()) {
    return fail(Error(ErrorCode::internal, "reports " + std::to_string(count) + " events for room of " + std::to_string(events.size()))
                    .within(place(plugin_.name, "poll")));
  }
  return count;
}

Result<int> Backend::event_fd() {
  std::int32_t fd = -1;
  auto done = nothing(invoke(plugin_, process_id_, &Table::event_fd, "event_fd", backend_, &fd), plugin_.name, "event_fd");
  if (!done) return fail(std::move(done.error()));
  return fd;
}

Result<bool> Backend::arm() { return invoke(plugin_, process_id_, &Table::arm, "arm", backend_); }

kvferry_stats Backend::stats() const {
  kvferry_stats stats{};
  stats.struct_size = sizeof(stats);
  (void)invoke(plugin_, process_id_, &Table::stats, "stats", backend_, &stats);  // figures that cannot be read are zero: nobody decides on them
  return stats;
}

Result<void> Backend::self_test() {
  return nothing(invoke(plugin_, process_id_, &Table::self_test, "self_test", backend_), plugin_.name, "self_test");
}

}  // namespace kvferry
