// Two peers of one throw-away backend, connected to each other: memory goes over, is announced and compared.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kvferry/backend_abi.h"
#include "kvferry/result.h"

namespace kvferry::plugins {
namespace self_test_detail {

inline constexpr std::uint64_t kLimitNs = 10'000'000'000;
inline constexpr std::uint64_t kBytes = 300'000;  // several messages on every lane
inline constexpr std::uint64_t kRoom = 1;

/// Not the host's clock: a virtual one would not move while we block.
inline std::uint64_t real_now_ns() {
  timespec time{};
  (void)clock_gettime(CLOCK_MONOTONIC, &time);  // cannot fail for this clock
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_nsec);
}

struct Seen {
  int up = 0;
  bool done = false, notified = false;
  int closed = 0;
};

/// Progresses until `finished(seen)`.
template <class Backend, class Finished>
Result<void> wait(Backend& backend, Seen& seen, std::uint64_t limit_ns, const char* what, Finished finished) {
  while (!finished(seen)) {
    if (real_now_ns() > limit_ns) return fail(ErrorCode::timeout, std::string("self test: ") + what + " took more than ten seconds");
    (void)backend.progress();
    kvferry_event event{};
    while (backend.poll(reinterpret_cast<std::uint8_t*>(&event), sizeof(event), 1) == 1) {
      if (event.error.code != 0 && event.kind != KVFERRY_EVENT_PEER_CLOSED) {
        return fail(static_cast<ErrorCode>(event.error.code), std::string("self test: ") + what + ": " + event.error.text);
      }
      seen.up += event.kind == KVFERRY_EVENT_PEER_UP ? 1 : 0;
      seen.done = seen.done || event.kind == KVFERRY_EVENT_BATCH_DONE;
      seen.notified = seen.notified || (event.kind == KVFERRY_EVENT_NOTIFICATION && event.notification.room == kRoom);
      seen.closed += event.kind == KVFERRY_EVENT_PEER_CLOSED ? 1 : 0;
    }
  }
  return {};
}

template <class Backend>
Result<kvferry_region> register_bytes(Backend& backend, std::vector<std::uint8_t>& bytes, std::uint32_t access) {
  kvferry_region_desc desc{};
  desc.address = reinterpret_cast<std::uint64_t>(bytes.data());
  desc.length = bytes.size();
  desc.access = access;
  return backend.register_region(desc);
}

template <class Backend>
Result<void> connect_pair(Backend& backend, kvferry_peer (&ret_peers)[2]) {
  kvferry_peer_options options{};
  for (kvferry_peer& peer : ret_peers) {
    auto created = backend.peer_create(options);
    if (!created) return fail(std::move(created.error()));
    peer = *created;
  }
  auto& one = **backend.find_peer(ret_peers[0], "self test");
  auto& other = **backend.find_peer(ret_peers[1], "self test");
  auto one_blob = one.export_endpoint();
  if (!one_blob) return fail(std::move(one_blob.error()));
  auto other_blob = other.export_endpoint();
  if (!other_blob) return fail(std::move(other_blob.error()));
  if (auto connected = one.connect(*other_blob, 0); !connected) return connected;
  return other.connect(*one_blob, 0);
}

template <class Backend>
Result<void> write_once(Backend& backend, kvferry_peer peer, kvferry_region source, kvferry_region target, Seen& seen, std::uint64_t limit_ns) {
  const kvferry_piece piece{source, 0, kBytes};
  const kvferry_write write{target, 0, 0, 1, KVFERRY_OP_WRITE, 0};
  kvferry_batch batch{};
  batch.write_count = batch.piece_count = 1;
  batch.flags = KVFERRY_BATCH_NOTIFY;
  batch.writes = &write;
  batch.pieces = &piece;
  batch.room = batch.notification.room = kRoom;
  std::uint32_t accepted = 0;
  std::uint64_t object = 0;
  auto submitted = backend.submit(peer, batch, accepted, object);
  if (!submitted) return fail(submitted.error().within("self test"));
  return wait(backend, seen, limit_ns, "a write", [](const Seen& now) { return now.done && now.notified; });
}

}  // namespace self_test_detail

/// May take up to ten seconds. The backend it is asked of is not touched.
template <class Backend>
Result<void> self_test(const kvferry_host& host, const typename Backend::SettingsType& settings) {
  using namespace self_test_detail;
  const std::uint64_t limit_ns = real_now_ns() + kLimitNs;
  auto backend = Backend::create(host, settings);
  if (!backend) return fail(std::move(backend.error()));
  std::vector<std::uint8_t> source(kBytes), target(kBytes, 0);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint8_t>(i * 131 + i / 251 + 1);
  auto source_region = register_bytes(**backend, source, KVFERRY_ACCESS_LOCAL);
  if (!source_region) return fail(std::move(source_region.error()));
  auto target_region = register_bytes(**backend, target, KVFERRY_ACCESS_REMOTE_WRITE);
  if (!target_region) return fail(std::move(target_region.error()));
  kvferry_peer peers[2] = {0, 0};
  if (auto connected = connect_pair(**backend, peers); !connected) return fail(connected.error().within("self test"));
  Seen seen;
  if (auto up = wait(**backend, seen, limit_ns, "connecting", [](const Seen& now) { return now.up == 2; }); !up) return up;
  auto table = (*backend)->export_regions(&*target_region, 1);
  if (!table) return fail(std::move(table.error()));
  if (auto imported = (*(*backend)->find_peer(peers[0], "self test"))->import_regions(*table); !imported) return imported;
  if (auto written = write_once(**backend, peers[0], *source_region, *target_region, seen, limit_ns); !written) return written;
  const auto wrong = std::mismatch(source.begin(), source.end(), target.begin());
  if (wrong.first != source.end()) {
    return fail(ErrorCode::internal, "self test: byte " + std::to_string(wrong.first - source.begin()) + " is " + std::to_string(*wrong.second) +
                                         ", expected " + std::to_string(*wrong.first));
  }
  for (const kvferry_peer peer : peers) (*(*backend)->find_peer(peer, "self test"))->close(KVFERRY_CLOSE_DRAIN, 0);
  if (auto closed = wait(**backend, seen, limit_ns, "closing", [](const Seen& now) { return now.closed == 2; }); !closed) return closed;
  for (const kvferry_region region : {*source_region, *target_region}) {
    auto removed = (*backend)->deregister_region(region, KVFERRY_DEREGISTER_REFUSE_IF_BUSY);
    if (!removed) return fail(std::move(removed.error()));
  }
  return {};
}

}  // namespace kvferry::plugins
