// The C line of the loopback backend: one table, one exported symbol. Every entry goes through `guarded`: no exception leaves, a forked child is
// refused, the fault "fail the Nth call" is applied, errors land in the caller's struct.
#include <unistd.h>

#include <cstdio>
#include <new>

#include "backend.h"
#include "self_test.h"

struct kvferry_backend {
  std::unique_ptr<loopback::Backend> backend;
};

namespace loopback {
namespace {

kvferry_status fail_with(kvferry_error* err, const Failure& failure) noexcept {
  write_error(err, failure);
  return failure.code;
}

/// `body` gives Answer<kvferry_status> or Answer<void>.
template <class Body>
kvferry_status run(kvferry_error* err, const Body& body) noexcept {
  try {
    auto answer = body();
    if (!answer) return fail_with(err, answer.error());
    if constexpr (std::is_same_v<decltype(answer), Answer<kvferry_status>>) {
      return *answer;
    } else {
      return KVFERRY_OK;
    }
  } catch (const std::bad_alloc&) {
    Failure failure;
    failure.code = KVFERRY_ERROR_NO_MEMORY;
    return fail_with(err, failure);
  } catch (...) {
    return fail_with(err, Failure{});
  }
}

template <class Body>
kvferry_status guarded(const char* entry, kvferry_backend* handle, kvferry_error* err, const Body& body) noexcept {
  return run(err, [&]() -> decltype(body(*handle->backend)) {
    if (handle == nullptr) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "the backend is null");
    Backend& backend = *handle->backend;
    if (static_cast<std::uint32_t>(getpid()) != backend.process_id()) {
      return refuse(KVFERRY_ERROR_FORKED, "process " + std::to_string(getpid()) + " is a fork of process " + std::to_string(backend.process_id()) +
                                              ", which created the backend");
    }
    if (!backend.config().fail_entry.empty()) {
      if (auto injected = backend.injected_failure(entry)) return tl::unexpected<Failure>(std::move(*injected));
    }
    return body(backend);
  });
}

/// An output or input that must be there.
template <class... Pointers>
Answer<void> present(const Pointers*... pointers) {
  const bool missing = ((pointers == nullptr) || ...);
  if (missing) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "a pointer that is needed is null");
  return {};
}

template <class T>
Answer<void> sized(const T* value) {
  if (value == nullptr || value->struct_size < sizeof(std::uint32_t)) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, value == nullptr ? "a struct that is needed is null" : "a struct without its struct_size");
  }
  return {};
}

#define LOOPBACK_CHECK(check) \
  if (auto checked = (check); !checked) return tl::unexpected<Failure>(std::move(checked.error()))

/// The bytes, or their number when there is no room.
template <class Size>
Answer<kvferry_status> give_bytes(const void* bytes, std::size_t length, void* ret_bytes, Size capacity, Size* ret_length) {
  LOOPBACK_CHECK(present(ret_length));
  if (capacity != 0 && capacity < length) {
    return refuse(KVFERRY_ERROR_LIMIT, std::to_string(length) + " bytes are needed, the capacity is " + std::to_string(capacity));
  }
  if (capacity != 0) {
    LOOPBACK_CHECK(present(ret_bytes));
    std::memcpy(ret_bytes, bytes, length);
  }
  *ret_length = static_cast<Size>(length);
  return KVFERRY_OK;
}

kvferry_status probe(const kvferry_host*, const kvferry_setting* settings, std::uint32_t settings_count, kvferry_device* devices,
                     std::uint32_t capacity, std::uint32_t* ret_count, kvferry_error* err) {
  return run(err, [&]() -> Answer<void> {
    LOOPBACK_CHECK(parse_config(settings, settings_count));
    LOOPBACK_CHECK(present(ret_count));
    if (capacity > 0) {
      LOOPBACK_CHECK(sized(devices));
      kvferry_device device{};
      device.usable = 1;
      std::strncpy(device.name, "memory", sizeof(device.name) - 1);
      std::strncpy(device.lane, "loopback", sizeof(device.lane) - 1);
      std::strncpy(device.detail, "both ends in one process", sizeof(device.detail) - 1);
      write_sized(devices, device);
    }
    *ret_count = 1;
    return {};
  });
}

kvferry_status create(const kvferry_host* host, const kvferry_setting* settings, std::uint32_t settings_count, kvferry_backend** ret_backend,
                      kvferry_error* err) {
  return run(err, [&]() -> Answer<void> {
    LOOPBACK_CHECK(sized(host));
    LOOPBACK_CHECK(present(ret_backend));
    const kvferry_host known = read_sized(host);
    if (known.now_ns == nullptr) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "the host has no now_ns");
    auto config = parse_config(settings, settings_count);
    if (!config) return tl::unexpected<Failure>(std::move(config.error()));
    if (config->fail_entry == "create") return refuse(KVFERRY_ERROR_IO, "fault injected: create fails");
    auto backend = Backend::create(known, *config);
    if (!backend) return tl::unexpected<Failure>(std::move(backend.error()));
    *ret_backend = new kvferry_backend{std::move(*backend)};
    return {};
  });
}

kvferry_status destroy(kvferry_backend* handle, std::uint32_t force, kvferry_error* err) {
  return guarded("destroy", handle, err, [&](Backend& backend) -> Answer<void> {
    if (force == 0 && backend.has_open_peers()) return refuse(KVFERRY_ERROR_BUSY, "a peer is not closed");
    delete handle;
    return {};
  });
}

kvferry_status query(kvferry_backend* handle, kvferry_limits* ret_limits, kvferry_error* err) {
  return guarded("query", handle, err, [&](Backend& backend) -> Answer<void> {
    LOOPBACK_CHECK(sized(ret_limits));
    write_sized(ret_limits, backend.limits());
    return {};
  });
}

kvferry_status effective_config(kvferry_backend* handle, char* text, std::uint32_t capacity, std::uint32_t* ret_bytes, kvferry_error* err) {
  return guarded("effective_config", handle, err, [&](Backend& backend) {
    const std::string json = config_as_json(backend.config());
    return give_bytes(json.c_str(), json.size() + 1, text, capacity, ret_bytes);
  });
}

kvferry_status register_region(kvferry_backend* handle, const kvferry_region_desc* desc, kvferry_region* ret_region, kvferry_error* err) {
  return guarded("register_region", handle, err, [&](Backend& backend) -> Answer<void> {
    LOOPBACK_CHECK(sized(desc));
    LOOPBACK_CHECK(present(ret_region));
    auto region = backend.register_region(read_sized(desc));
    if (!region) return tl::unexpected<Failure>(std::move(region.error()));
    *ret_region = *region;
    return {};
  });
}

kvferry_status deregister_region(kvferry_backend* handle, kvferry_region region, std::uint32_t mode, kvferry_error* err) {
  return guarded("deregister_region", handle, err, [&](Backend& backend) { return backend.deregister_region(region, mode); });
}

kvferry_status region_quiesce(kvferry_backend* handle, kvferry_region region, kvferry_peer peer, std::uint64_t tag, std::uint64_t,
                              kvferry_error* err) {
  return guarded("region_quiesce", handle, err, [&](Backend& backend) { return backend.region_quiesce(region, peer, tag); });
}

kvferry_status allocate(kvferry_backend* handle, std::uint64_t length, std::uint32_t purpose, void** ret_address, kvferry_region* ret_region,
                        kvferry_error* err) {
  return guarded("allocate", handle, err, [&](Backend& backend) -> Answer<void> {
    LOOPBACK_CHECK(present(ret_address, ret_region));
    auto memory = backend.allocate(length, purpose);
    if (!memory) return tl::unexpected<Failure>(std::move(memory.error()));
    *ret_address = memory->first;
    *ret_region = memory->second;
    return {};
  });
}

kvferry_status free_memory(kvferry_backend* handle, kvferry_region region, kvferry_error* err) {
  return guarded("free_memory", handle, err, [&](Backend& backend) { return backend.free_memory(region); });
}

kvferry_status export_regions(kvferry_backend* handle, const kvferry_region* regions, std::uint32_t count, void* blob, std::uint64_t capacity,
                              std::uint64_t* ret_bytes, kvferry_error* err) {
  return guarded("export_regions", handle, err, [&](Backend& backend) -> Answer<kvferry_status> {
    auto bytes = backend.export_regions(regions, count);
    if (!bytes) return tl::unexpected<Failure>(std::move(bytes.error()));
    return give_bytes(bytes->data(), bytes->size(), blob, capacity, ret_bytes);
  });
}

kvferry_status peer_create(kvferry_backend* handle, const kvferry_peer_options* options, kvferry_peer* ret_peer, kvferry_error* err) {
  return guarded("peer_create", handle, err, [&](Backend& backend) -> Answer<void> {
    LOOPBACK_CHECK(sized(options));
    LOOPBACK_CHECK(present(ret_peer));
    auto peer = backend.peer_create(read_sized(options));
    if (!peer) return tl::unexpected<Failure>(std::move(peer.error()));
    *ret_peer = *peer;
    return {};
  });
}

kvferry_status peer_export(kvferry_backend* handle, kvferry_peer peer, void* blob, std::uint64_t capacity, std::uint64_t* ret_bytes,
                           kvferry_error* err) {
  return guarded("peer_export", handle, err, [&](Backend& backend) -> Answer<kvferry_status> {
    auto bytes = backend.peer_export(peer);
    if (!bytes) return tl::unexpected<Failure>(std::move(bytes.error()));
    return give_bytes(bytes->data(), bytes->size(), blob, capacity, ret_bytes);
  });
}

kvferry_status peer_connect(kvferry_backend* handle, kvferry_peer peer, const void* blob, std::uint64_t bytes, std::uint64_t deadline_ns,
                            kvferry_error* err) {
  return guarded("peer_connect", handle, err, [&](Backend& backend) { return backend.peer_connect(peer, blob, bytes, deadline_ns); });
}

kvferry_status import_regions(kvferry_backend* handle, kvferry_peer peer, const void* blob, std::uint64_t bytes, kvferry_error* err) {
  return guarded("import_regions", handle, err, [&](Backend& backend) { return backend.import_regions(peer, blob, bytes); });
}

kvferry_status forget_regions(kvferry_backend* handle, kvferry_peer peer, const kvferry_region* regions, std::uint32_t count, kvferry_error* err) {
  return guarded("forget_regions", handle, err, [&](Backend& backend) { return backend.forget_regions(peer, regions, count); });
}

kvferry_status peer_state(kvferry_backend* handle, kvferry_peer peer, kvferry_peer_info* ret_info, kvferry_error* err) {
  return guarded("peer_state", handle, err, [&](Backend& backend) -> Answer<void> {
    LOOPBACK_CHECK(sized(ret_info));
    auto info = backend.peer_state(peer);
    if (!info) return tl::unexpected<Failure>(std::move(info.error()));
    write_sized(ret_info, *info);
    return {};
  });
}

kvferry_status peer_close(kvferry_backend* handle, kvferry_peer peer, std::uint32_t mode, std::uint64_t deadline_ns, kvferry_error* err) {
  return guarded("peer_close", handle, err, [&](Backend& backend) { return backend.peer_close(peer, mode, deadline_ns); });
}

kvferry_status submit(kvferry_backend* handle, kvferry_peer peer, const kvferry_batch* batch, std::uint32_t* ret_accepted, kvferry_error* err) {
  if (ret_accepted != nullptr) *ret_accepted = 0;
  return guarded("submit", handle, err, [&](Backend& backend) -> Answer<kvferry_status> {
    LOOPBACK_CHECK(sized(batch));
    LOOPBACK_CHECK(present(ret_accepted));
    return backend.submit(peer, read_sized(batch), *ret_accepted);
  });
}

kvferry_status cancel(kvferry_backend* handle, kvferry_peer peer, std::uint64_t room, std::uint32_t generation, kvferry_error* err) {
  return guarded("cancel", handle, err, [&](Backend& backend) { return backend.cancel(peer, room, generation); });
}

kvferry_status fence(kvferry_backend* handle, kvferry_peer peer, std::uint64_t room, std::uint32_t generation, std::uint64_t tag, std::uint64_t,
                     kvferry_error* err) {
  return guarded("fence", handle, err, [&](Backend& backend) { return backend.fence(peer, room, generation, tag); });
}

kvferry_status flush(kvferry_backend* handle, kvferry_peer peer, std::uint64_t tag, kvferry_error* err) {
  return guarded("flush", handle, err, [&](Backend& backend) { return backend.flush(peer, tag); });
}

kvferry_status progress(kvferry_backend* handle, std::uint32_t* ret_worked, kvferry_error* err) {
  return guarded("progress", handle, err, [&](Backend& backend) -> Answer<void> {
    LOOPBACK_CHECK(present(ret_worked));
    *ret_worked = backend.progress() ? 1 : 0;
    return {};
  });
}

kvferry_status poll(kvferry_backend* handle, kvferry_event* events, std::uint32_t capacity, std::uint32_t* ret_count, kvferry_error* err) {
  return guarded("poll", handle, err, [&](Backend& backend) -> Answer<void> {
    LOOPBACK_CHECK(present(ret_count));
    if (capacity > 0) LOOPBACK_CHECK(sized(events));
    *ret_count = backend.poll(events, capacity);
    return {};
  });
}

kvferry_status event_fd(kvferry_backend* handle, std::int32_t* ret_fd, kvferry_error* err) {
  return guarded("event_fd", handle, err, [&](Backend& backend) -> Answer<void> {
    LOOPBACK_CHECK(present(ret_fd));
    *ret_fd = backend.event_fd();
    return {};
  });
}

kvferry_status arm(kvferry_backend* handle, kvferry_error* err) {
  return guarded("arm", handle, err, [&](Backend& backend) -> Answer<kvferry_status> { return backend.arm() ? KVFERRY_OK : KVFERRY_AGAIN; });
}

kvferry_status stats(kvferry_backend* handle, kvferry_stats* ret_stats, kvferry_error* err) {
  return guarded("stats", handle, err, [&](Backend& backend) -> Answer<void> {
    LOOPBACK_CHECK(sized(ret_stats));
    write_sized(ret_stats, backend.stats());
    return {};
  });
}

kvferry_status self_test_entry(kvferry_backend* handle, kvferry_error* err) {
  return guarded("self_test", handle, err, [&](Backend& backend) { return self_test(backend.host(), backend.config()); });
}

constexpr kvferry_backend_table make_table() {
  kvferry_backend_table table{};
  table.struct_size = sizeof(table);
  table.magic = KVFERRY_BACKEND_MAGIC;
  table.abi_major = KVFERRY_BACKEND_ABI_MAJOR;
  table.abi_minor = KVFERRY_BACKEND_ABI_MINOR;
  table.name = "loopback";
  table.version = KVFERRY_VERSION;
  table.build = "no libraries";
  table.probe = probe;
  table.create = create;
  table.destroy = destroy;
  table.query = query;
  table.effective_config = effective_config;
  table.register_region = register_region;
  table.deregister_region = deregister_region;
  table.region_quiesce = region_quiesce;
  table.allocate = allocate;
  table.free_memory = free_memory;
  table.export_regions = export_regions;
  table.peer_create = peer_create;
  table.peer_export = peer_export;
  table.peer_connect = peer_connect;
  table.import_regions = import_regions;
  table.forget_regions = forget_regions;
  table.peer_state = peer_state;
  table.peer_close = peer_close;
  table.submit = submit;
  table.cancel = cancel;
  table.fence = fence;
  table.flush = flush;
  table.progress = progress;
  table.poll = poll;
  table.event_fd = event_fd;
  table.arm = arm;
  table.stats = stats;
  table.self_test = self_test_entry;
  return table;
}

constexpr kvferry_backend_table kTable = make_table();

}  // namespace
}  // namespace loopback

extern "C" __attribute__((visibility("default"))) const kvferry_backend_table* kvferry_backend_entry(const kvferry_host* host, char* reason,
                                                                                                     std::uint32_t reason_capacity) {
  const bool known = host != nullptr && host->abi_major == KVFERRY_BACKEND_ABI_MAJOR;
  if (known) return &loopback::kTable;
  if (reason != nullptr && reason_capacity > 0) {
    (void)std::snprintf(reason, reason_capacity, "abi %u.%u wanted, this host speaks %u.%u", KVFERRY_BACKEND_ABI_MAJOR, KVFERRY_BACKEND_ABI_MINOR,
                        host != nullptr ? host->abi_major : 0, host != nullptr ? host->abi_minor : 0);
  }
  return nullptr;
}
