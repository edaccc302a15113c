// The C entries of a backend over its C++ class: checks what comes over the ABI, keeps exceptions on this side, fills the caller's error.
//
//   const kvferry_backend_table table = Entries<Backend>::table("ucx", "UCX 1.13.1");
//
// Backend has: SettingsType, probe, create, forked, limits, stats, effective_config, settings, host, the region entries, peer_create, find_peer (whose peers
// have export_endpoint, connect, import_regions, forget_region, info, close, initiator), submit, fence, progress, poll, event_fd, arm.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kvferry/backend_abi.h"
#include "kvferry/result.h"
#include "self_test.h"

namespace kvferry::plugins {

/// What the caller's struct has, the rest zero.
template <class T>
Result<T> read_sized(const T* in, const char* name) {
  if (in == nullptr) return fail(ErrorCode::invalid_argument, std::string(name) + " is null");
  if (in->struct_size == 0) return fail(ErrorCode::invalid_argument, std::string(name) + " has struct_size 0");
  T out{};
  std::memcpy(&out, in, std::min<std::size_t>(in->struct_size, sizeof(T)));
  return out;
}

/// As much as the caller's struct takes, what we do not know of it zero, its struct_size left alone.
template <class T>
void write_sized(T* out, const T& value) noexcept {
  const std::uint32_t size = out->struct_size;
  std::memset(out, 0, size);
  std::memcpy(out, &value, std::min<std::size_t>(size, sizeof(T)));
  out->struct_size = size;
}

inline void fill(kvferry_error* err, const Error& error, std::uint64_t object) noexcept {
  if (err == nullptr || err->struct_size == 0) return;
  kvferry_error filled{};
  filled.code = static_cast<std::int32_t>(error.code);
  filled.error_class = static_cast<std::int32_t>(error.error_class);
  filled.vendor_status = error.vendor_status;
  filled.sys_errno = error.sys_errno;
  filled.object = object;
  const std::size_t kept = std::min(error.text.size(), sizeof(filled.text) - 1);
  std::memcpy(filled.text, error.text.data(), kept);
  if (kept < error.text.size()) std::memcpy(filled.text + kept - 3, "...", 3);
  write_sized(err, filled);
}

inline kvferry_status refuse(kvferry_error* err, const Error& error, std::uint64_t object = 0) noexcept {
  fill(err, error, object);
  return static_cast<kvferry_status>(error.code);
}

/// Runs an entry's work, which returns Result<kvferry_status>; nothing thrown leaves.
template <class Work>
kvferry_status run(kvferry_error* err, const char* entry, std::uint64_t object, Work work) noexcept {
  try {
    Result<kvferry_status> result = work();
    return result ? *result : refuse(err, result.error(), object);
  } catch (const std::bad_alloc&) {
    kvferry_error filled{};
    filled.code = KVFERRY_ERROR_NO_MEMORY;
    filled.error_class = KVFERRY_CLASS_RETRY;
    std::strncpy(filled.text, entry, sizeof(filled.text) - 1);
    if (err != nullptr && err->struct_size != 0) write_sized(err, filled);
    return KVFERRY_ERROR_NO_MEMORY;
  } catch (const std::exception& thrown) {
    return refuse(err, Error(ErrorCode::internal, std::string(entry) + ": " + thrown.what()));
  }
}

inline Unexpected null_argument(const char* entry, const char* name) { return fail(ErrorCode::invalid_argument, std::string(entry) + ": " + name + " is null"); }

inline Result<kvferry_status> done(Result<void> result) {
  if (!result) return fail(std::move(result.error()));
  return KVFERRY_OK;
}

/// A blob into the caller's buffer; capacity 0 asks for the size.
inline Result<kvferry_status> give_bytes(const std::vector<std::uint8_t>& bytes, void* out, std::uint64_t capacity, std::uint64_t* ret_bytes, const char* entry) {
  if (ret_bytes == nullptr) return null_argument(entry, "ret_bytes");
  if (capacity != 0) {
    if (out == nullptr) return null_argument(entry, "the buffer");
    if (capacity < bytes.size()) {
      return fail(ErrorCode::limit, std::string(entry) + ": " + std::to_string(bytes.size()) + " bytes do not fit the buffer of " + std::to_string(capacity));
    }
    std::memcpy(out, bytes.data(), bytes.size());
  }
  *ret_bytes = bytes.size();
  return KVFERRY_OK;
}

inline Result<kvferry_host> take_host(const kvferry_host* host) {
  auto taken = read_sized(host, "the host table");
  if (taken && taken->now_ns == nullptr) return fail(ErrorCode::invalid_argument, "the host table has no clock");
  return taken;
}

template <class Backend>
struct Entries {
  static kvferry_backend_table table(const char* name, const char* build) {
    kvferry_backend_table entries{};
    entries.struct_size = sizeof(entries);
    entries.magic = KVFERRY_BACKEND_MAGIC;
    entries.abi_major = KVFERRY_BACKEND_ABI_MAJOR;
    entries.abi_minor = KVFERRY_BACKEND_ABI_MINOR;
    entries.name = name;
    entries.version = KVFERRY_VERSION;
    entries.build = build;
    entries.probe = probe;
    entries.create = create;
    entries.destroy = destroy;
    entries.query = query;
    entries.effective_config = effective_config;
    entries.register_region = register_region;
    entries.deregister_region = deregister_region;
    entries.region_quiesce = region_quiesce;
    entries.allocate = allocate;
    entries.free_memory = free_memory;
    entries.export_regions = export_regions;
    entries.peer_create = peer_create;
    entries.peer_export = peer_export;
    entries.peer_connect = peer_connect;
    entries.import_regions = import_regions;
    entries.forget_regions = forget_regions;
    entries.peer_state = peer_state;
    entries.peer_close = peer_close;
    entries.submit = submit;
    entries.cancel = cancel;
    entries.fence = fence;
    entries.flush = flush;
    entries.progress = progress;
    entries.poll = poll;
    entries.event_fd = event_fd;
    entries.arm = arm;
    entries.stats = stats;
    entries.self_test = self_test;
    return entries;
  }

 private:
  template <class Work>
  static kvferry_status enter(kvferry_backend* handle, kvferry_error* err, const char* entry, std::uint64_t object, Work work) noexcept {
    return run(err, entry, object, [&]() -> Result<kvferry_status> {
      if (handle == nullptr) return fail(ErrorCode::invalid_argument, std::string(entry) + ": the backend is null");
      Backend& self = *reinterpret_cast<Backend*>(handle);
      if (self.forked()) return fail(ErrorCode::forked, std::string(entry) + ": the backend belongs to the parent process");
      return work(self);
    });
  }

  static kvferry_status probe(const kvferry_host* host, const kvferry_setting* settings, uint32_t settings_count, kvferry_device* devices, uint32_t capacity,
                             uint32_t* ret_count, kvferry_error* err) {
    return run(err, "probe", 0, [&]() -> Result<kvferry_status> {
      auto taken = take_host(host);
      if (!taken) return fail(std::move(taken.error()));
      if (ret_count == nullptr || (capacity > 0 && devices == nullptr)) return null_argument("probe", "an output");
      auto parsed = Backend::SettingsType::parse(settings, settings_count);
      if (!parsed) return fail(std::move(parsed.error()));
      const std::vector<kvferry_device> found = Backend::probe(*parsed);
      const std::uint32_t stride = capacity > 0 ? devices[0].struct_size : 0;
      if (capacity > 0 && stride == 0) return fail(ErrorCode::invalid_argument, "probe: devices have struct_size 0");
      auto* place = reinterpret_cast<std::uint8_t*>(devices);
      for (std::uint32_t i = 0; i < capacity && i < found.size(); ++i, place += stride) {
        std::memset(place, 0, stride);
        std::memcpy(place, &found[i], std::min<std::size_t>(stride, sizeof(kvferry_device)));
        std::memcpy(place, &stride, sizeof(stride));
      }
      *ret_count = static_cast<std::uint32_t>(found.size());
      return KVFERRY_OK;
    });
  }

  static kvferry_status create(const kvferry_host* host, const kvferry_setting* settings, uint32_t settings_count, kvferry_backend** ret_backend,
                              kvferry_error* err) {
    return run(err, "create", 0, [&]() -> Result<kvferry_status> {
      auto taken = take_host(host);
      if (!taken) return fail(std::move(taken.error()));
      if (ret_backend == nullptr) return null_argument("create", "ret_backend");
      auto parsed = Backend::SettingsType::parse(settings, settings_count);
      if (!parsed) return fail(std::move(parsed.error()));
      auto backend = Backend::create(*taken, *parsed);
      if (!backend) return fail(std::move(backend.error()));
      *ret_backend = reinterpret_cast<kvferry_backend*>(backend->release());
      return KVFERRY_OK;
    });
  }

  static kvferry_status destroy(kvferry_backend* backend, uint32_t force, kvferry_error* err) {
    return enter(backend, err, "destroy", 0, [&](Backend& self) -> Result<kvferry_status> {
      if (force == 0 && self.has_open_peers()) return fail(ErrorCode::busy, "destroy: a peer is not closed");
      delete &self;
      return KVFERRY_OK;
    });
  }

  static kvferry_status query(kvferry_backend* backend, kvferry_limits* ret_limits, kvferry_error* err) {
    return enter(backend, err, "query", 0, [&](Backend& self) -> Result<kvferry_status> {
      if (auto sized = read_sized(ret_limits, "ret_limits"); !sized) return fail(std::move(sized.error()));
      write_sized(ret_limits, self.limits());
      return KVFERRY_OK;
    });
  }

  static kvferry_status effective_config(kvferry_backend* backend, char* text, uint32_t capacity, uint32_t* ret_bytes, kvferry_error* err) {
    return enter(backend, err, "effective_config", 0, [&](Backend& self) -> Result<kvferry_status> {
      if (ret_bytes == nullptr) return null_argument("effective_config", "ret_bytes");
      const std::string config = self.effective_config();
      std::uint64_t bytes = 0;
      std::vector<std::uint8_t> with_end(config.begin(), config.end());
      with_end.push_back(0);
      auto given = give_bytes(with_end, text, capacity, &bytes, "effective_config");
      if (given) *ret_bytes = static_cast<std::uint32_t>(bytes);
      return given;
    });
  }

  static kvferry_status register_region(kvferry_backend* backend, const kvferry_region_desc* desc, kvferry_region* ret_region, kvferry_error* err) {
    return enter(backend, err, "register_region", 0, [&](Backend& self) -> Result<kvferry_status> {
      auto taken = read_sized(desc, "the region description");
      if (!taken) return fail(std::move(taken.error()));
      if (ret_region == nullptr) return null_argument("register_region", "ret_region");
      auto region = self.register_region(*taken);
      if (!region) return fail(std::move(region.error()));
      *ret_region = *region;
      return KVFERRY_OK;
    });
  }

  static kvferry_status deregister_region(kvferry_backend* backend, kvferry_region region, uint32_t mode, kvferry_error* err) {
    return enter(backend, err, "deregister_region", region, [&](Backend& self) { return self.deregister_region(region, mode); });
  }

  static kvferry_status region_quiesce(kvferry_backend* backend, kvferry_region region, kvferry_peer peer, uint64_t tag, uint64_t deadline_ns,
                                      kvferry_error* err) {
    return enter(backend, err, "region_quiesce", region, [&](Backend& self) { return done(self.region_quiesce(region, peer, tag, deadline_ns)); });
  }

  static kvferry_status allocate(kvferry_backend* backend, uint64_t length, uint32_t purpose, void** ret_address, kvferry_region* ret_region,
                                kvferry_error* err) {
    return enter(backend, err, "allocate", 0, [&](Backend& self) -> Result<kvferry_status> {
      if (ret_address == nullptr || ret_region == nullptr) return null_argument("allocate", "an output");
      auto allocated = self.allocate(length, purpose);
      if (!allocated) return fail(std::move(allocated.error()));
      *ret_address = allocated->address;
      *ret_region = allocated->region;
      return KVFERRY_OK;
    });
  }

  static kvferry_status free_memory(kvferry_backend* backend, kvferry_region region, kvferry_error* err) {
    return enter(backend, err, "free_memory", region, [&](Backend& self) { return self.free_memory(region); });
  }

  static kvferry_status export_regions(kvferry_backend* backend, const kvferry_region* regions, uint32_t count, void* blob, uint64_t capacity,
                                      uint64_t* ret_bytes, kvferry_error* err) {
    return enter(backend, err, "export_regions", 0, [&](Backend& self) -> Result<kvferry_status> {
      auto bytes = self.export_regions(regions, count);
      if (!bytes) return fail(std::move(bytes.error()));
      return give_bytes(*bytes, blob, capacity, ret_bytes, "export_regions");
    });
  }

  static kvferry_status peer_create(kvferry_backend* backend, const kvferry_peer_options* options, kvferry_peer* ret_peer, kvferry_error* err) {
    return enter(backend, err, "peer_create", 0, [&](Backend& self) -> Result<kvferry_status> {
      auto taken = read_sized(options, "the peer options");
      if (!taken) return fail(std::move(taken.error()));
      if (ret_peer == nullptr) return null_argument("peer_create", "ret_peer");
      auto peer = self.peer_create(*taken);
      if (!peer) return fail(std::move(peer.error()));
      *ret_peer = *peer;
      return KVFERRY_OK;
    });
  }

  static kvferry_status peer_export(kvferry_backend* backend, kvferry_peer peer, void* blob, uint64_t capacity, uint64_t* ret_bytes, kvferry_error* err) {
    return enter(backend, err, "peer_export", peer, [&](Backend& self) -> Result<kvferry_status> {
      auto found = self.find_peer(peer, "peer_export");
      if (!found) return fail(std::move(found.error()));
      auto bytes = (*found)->export_endpoint();
      if (!bytes) return fail(std::move(bytes.error()));
      return give_bytes(*bytes, blob, capacity, ret_bytes, "peer_export");
    });
  }

  static kvferry_status peer_connect(kvferry_backend* backend, kvferry_peer peer, const void* blob, uint64_t bytes, uint64_t deadline_ns,
                                    kvferry_error* err) {
    return enter(backend, err, "peer_connect", peer, [&](Backend& self) -> Result<kvferry_status> {
      auto found = self.find_peer(peer, "peer_connect");
      if (!found) return fail(std::move(found.error()));
      if (blob == nullptr) return null_argument("peer_connect", "the descriptor");
      return done((*found)->connect({static_cast<const std::uint8_t*>(blob), bytes}, deadline_ns));
    });
  }

  static kvferry_status import_regions(kvferry_backend* backend, kvferry_peer peer, const void* blob, uint64_t bytes, kvferry_error* err) {
    return enter(backend, err, "import_regions", peer, [&](Backend& self) -> Result<kvferry_status> {
      auto found = self.find_peer(peer, "import_regions");
      if (!found) return fail(std::move(found.error()));
      if (blob == nullptr) return null_argument("import_regions", "the descriptor");
      return done((*found)->import_regions({static_cast<const std::uint8_t*>(blob), bytes}));
    });
  }

  static kvferry_status forget_regions(kvferry_backend* backend, kvferry_peer peer, const kvferry_region* regions, uint32_t count, kvferry_error* err) {
    return enter(backend, err, "forget_regions", peer, [&](Backend& self) -> Result<kvferry_status> {
      auto found = self.find_peer(peer, "forget_regions");
      if (!found) return fail(std::move(found.error()));
      if (regions == nullptr && count > 0) return null_argument("forget_regions", "the list");
      for (std::uint32_t i = 0; i < count; ++i) (*found)->forget_region(regions[i]);
      return KVFERRY_OK;
    });
  }

  static kvferry_status peer_state(kvferry_backend* backend, kvferry_peer peer, kvferry_peer_info* ret_info, kvferry_error* err) {
    return enter(backend, err, "peer_state", peer, [&](Backend& self) -> Result<kvferry_status> {
      auto found = self.find_peer(peer, "peer_state");
      if (!found) return fail(std::move(found.error()));
      if (auto sized = read_sized(ret_info, "ret_info"); !sized) return fail(std::move(sized.error()));
      write_sized(ret_info, (*found)->info());
      return KVFERRY_OK;
    });
  }

  static kvferry_status peer_close(kvferry_backend* backend, kvferry_peer peer, uint32_t mode, uint64_t deadline_ns, kvferry_error* err) {
    return enter(backend, err, "peer_close", peer, [&](Backend& self) -> Result<kvferry_status> {
      auto found = self.find_peer(peer, "peer_close");
      if (!found) return fail(std::move(found.error()));
      if (mode != KVFERRY_CLOSE_DRAIN && mode != KVFERRY_CLOSE_FORCE) {
        return fail(ErrorCode::invalid_argument, "close peer " + std::to_string(peer) + ": mode " + std::to_string(mode) + " is not known");
      }
      (*found)->close(mode, deadline_ns);
      return KVFERRY_OK;
    });
  }

  static kvferry_status submit(kvferry_backend* backend, kvferry_peer peer, const kvferry_batch* batch, uint32_t* ret_accepted, kvferry_error* err) {
    std::uint64_t object = 0;
    std::uint32_t accepted = 0;
    if (ret_accepted != nullptr) *ret_accepted = 0;
    const kvferry_status status = run(nullptr, "submit", 0, [&]() -> Result<kvferry_status> {
      return enter(backend, err, "submit", 0, [&](Backend& self) -> Result<kvferry_status> {
        if (ret_accepted == nullptr) return null_argument("submit", "ret_accepted");
        auto taken = read_sized(batch, "the batch");
        if (!taken) return fail(std::move(taken.error()));
        auto result = self.submit(peer, *taken, accepted, object);
        if (result) *ret_accepted = accepted;
        return result;
      });
    });
    if (status > KVFERRY_AGAIN && err != nullptr && err->struct_size >= offsetof(kvferry_error, text)) err->object = object;
    return status;
  }

  static kvferry_status cancel(kvferry_backend* backend, kvferry_peer peer, uint64_t room, uint32_t generation, kvferry_error* err) {
    return enter(backend, err, "cancel", peer, [&](Backend& self) -> Result<kvferry_status> {
      auto found = self.find_peer(peer, "cancel");
      if (!found) return fail(std::move(found.error()));
      return done((*found)->initiator().cancel(room, generation));
    });
  }

  static kvferry_status fence(kvferry_backend* backend, kvferry_peer peer, uint64_t room, uint32_t generation, uint64_t tag, uint64_t deadline_ns,
                             kvferry_error* err) {
    return enter(backend, err, "fence", peer, [&](Backend& self) { return done(self.fence(peer, room, generation, tag, deadline_ns)); });
  }

  static kvferry_status flush(kvferry_backend* backend, kvferry_peer peer, uint64_t tag, kvferry_error* err) {
    return enter(backend, err, "flush", peer, [&](Backend& self) -> Result<kvferry_status> {
      auto found = self.find_peer(peer, "flush");
      if (!found) return fail(std::move(found.error()));
      return done((*found)->initiator().flush(tag));
    });
  }

  static kvferry_status progress(kvferry_backend* backend, uint32_t* ret_worked, kvferry_error* err) {
    return enter(backend, err, "progress", 0, [&](Backend& self) -> Result<kvferry_status> {
      if (ret_worked == nullptr) return null_argument("progress", "ret_worked");
      *ret_worked = self.progress() ? 1 : 0;
      return KVFERRY_OK;
    });
  }

  static kvferry_status poll(kvferry_backend* backend, kvferry_event* events, uint32_t capacity, uint32_t* ret_count, kvferry_error* err) {
    return enter(backend, err, "poll", 0, [&](Backend& self) -> Result<kvferry_status> {
      if (ret_count == nullptr || (capacity > 0 && events == nullptr)) return null_argument("poll", "an output");
      const std::uint32_t stride = capacity > 0 ? events[0].struct_size : 0;
      if (capacity > 0 && stride < offsetof(kvferry_event, notification)) {
        return fail(ErrorCode::invalid_argument, "poll: events have struct_size " + std::to_string(stride));
      }
      *ret_count = self.poll(reinterpret_cast<std::uint8_t*>(events), stride, capacity);
      return KVFERRY_OK;
    });
  }

  static kvferry_status event_fd(kvferry_backend* backend, int32_t* ret_fd, kvferry_error* err) {
    return enter(backend, err, "event_fd", 0, [&](Backend& self) -> Result<kvferry_status> {
      if (ret_fd == nullptr) return null_argument("event_fd", "ret_fd");
      *ret_fd = self.event_fd();
      return KVFERRY_OK;
    });
  }

  static kvferry_status arm(kvferry_backend* backend, kvferry_error* err) {
    return enter(backend, err, "arm", 0, [&](Backend& self) -> Result<kvferry_status> { return self.arm() ? KVFERRY_OK : KVFERRY_AGAIN; });
  }

  static kvferry_status stats(kvferry_backend* backend, kvferry_stats* ret_stats, kvferry_error* err) {
    return enter(backend, err, "stats", 0, [&](Backend& self) -> Result<kvferry_status> {
      if (auto sized = read_sized(ret_stats, "ret_stats"); !sized) return fail(std::move(sized.error()));
      write_sized(ret_stats, self.stats());
      return KVFERRY_OK;
    });
  }

  static kvferry_status self_test(kvferry_backend* backend, kvferry_error* err) {
    return enter(backend, err, "self_test", 0, [&](Backend& self) { return done(plugins::self_test<Backend>(self.host(), self.settings())); });
  }
};

/// The body of kvferry_backend_entry. `check_library`: whether what the plugin needs of this host's libraries is there.
template <class CheckLibrary>
const kvferry_backend_table* give_table(const kvferry_host* host, char* reason, std::uint32_t reason_capacity, CheckLibrary check_library,
                                        const kvferry_backend_table& (*table)()) noexcept {
  const auto refuse_with = [&](const std::string& text) {
    if (reason == nullptr || reason_capacity == 0) return;
    const std::size_t kept = std::min<std::size_t>(text.size(), reason_capacity - 1);
    std::memcpy(reason, text.data(), kept);
    reason[kept] = 0;
  };
  try {
    if (host == nullptr || host->struct_size < offsetof(kvferry_host, reserved)) {
      refuse_with("no host table");
      return nullptr;
    }
    if (host->abi_major != KVFERRY_BACKEND_ABI_MAJOR) {
      refuse_with("abi " + std::to_string(KVFERRY_BACKEND_ABI_MAJOR) + "." + std::to_string(KVFERRY_BACKEND_ABI_MINOR) + " wanted, this host speaks " +
                  std::to_string(host->abi_major) + "." + std::to_string(host->abi_minor));
      return nullptr;
    }
    if (auto checked = check_library(); !checked) {
      refuse_with(checked.error().text);
      return nullptr;
    }
    return &table();
  } catch (...) {
    refuse_with("no memory");
    return nullptr;
  }
}

}  // namespace kvferry::plugins
