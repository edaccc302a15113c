#include "self_test.h"

#include <array>
#include <vector>

namespace loopback {
namespace {

constexpr std::uint64_t kBytes = 64 * 1024;
constexpr std::uint64_t kRoom = 0x5e1f;
constexpr int kStepsMax = 100'000;

tl::unexpected<Failure> failed(const std::string& why) { return refuse(KVFERRY_ERROR_IO, "self test: " + why); }

/// Drives the backend until an event of this kind comes; any failure on the way ends it.
Answer<kvferry_event> wait_for(Backend& backend, std::uint32_t kind) {
  for (int step = 0; step < kStepsMax; ++step) {
    (void)backend.progress();
    kvferry_event event{};
    event.struct_size = sizeof(event);
    while (backend.poll(&event, 1) == 1) {
      if (event.kind == kind) return event;
      if (event.kind == KVFERRY_EVENT_BATCH_FAILED || event.kind == KVFERRY_EVENT_PEER_LOST) return failed(event.error.text);
    }
  }
  return failed("no event of kind " + std::to_string(kind) + " after " + std::to_string(kStepsMax) + " steps");
}

struct Pair {
  kvferry_peer writer = 0, reader = 0;
};

Answer<Pair> connect_to_itself(Backend& backend) {
  Pair pair;
  for (kvferry_peer* peer : {&pair.writer, &pair.reader}) {
    auto created = backend.peer_create(kvferry_peer_options{});
    if (!created) return tl::unexpected<Failure>(std::move(created.error()));
    *peer = *created;
  }
  for (const auto& [peer, other] : {std::pair{pair.writer, pair.reader}, std::pair{pair.reader, pair.writer}}) {
    auto blob = backend.peer_export(other);
    if (!blob) return tl::unexpected<Failure>(std::move(blob.error()));
    if (auto connected = backend.peer_connect(peer, blob->data(), blob->size(), 0); !connected) {
      return tl::unexpected<Failure>(std::move(connected.error()));
    }
  }
  for (int ups = 0; ups < 2; ++ups) {
    if (auto up = wait_for(backend, KVFERRY_EVENT_PEER_UP); !up) return tl::unexpected<Failure>(std::move(up.error()));
  }
  return pair;
}

Answer<void> move_once(Backend& backend, kvferry_peer peer, const kvferry_write& write, const kvferry_piece& piece) {
  kvferry_batch batch{};
  batch.struct_size = sizeof(batch);
  batch.write_count = batch.piece_count = 1;
  batch.flags = KVFERRY_BATCH_NOTIFY;
  batch.writes = &write;
  batch.pieces = &piece;
  batch.room = batch.notification.room = kRoom;
  std::uint32_t accepted = 0;
  auto submitted = backend.submit(peer, batch, accepted);
  if (!submitted) return tl::unexpected<Failure>(std::move(submitted.error()));
  if (accepted != 1) return failed("an empty window accepts nothing");
  bool notified = false;
  for (int step = 0; step < kStepsMax; ++step) {
    (void)backend.progress();
    kvferry_event event{};
    event.struct_size = sizeof(event);
    while (backend.poll(&event, 1) == 1) {
      if (event.kind == KVFERRY_EVENT_NOTIFICATION) notified = true;
      if (event.kind == KVFERRY_EVENT_BATCH_FAILED) return failed(event.error.text);
      if (event.kind == KVFERRY_EVENT_BATCH_DONE) return notified ? Answer<void>{} : failed("done before the notification");
    }
  }
  return failed("the batch does not end");
}

}  // namespace

Answer<void> self_test(const kvferry_host& host, const Config& config) {
  auto created = Backend::create(host, config.without_faults());
  if (!created) return tl::unexpected<Failure>(std::move(created.error()));
  Backend& backend = **created;
  const std::uint64_t bytes = std::min(kBytes, config.message_bytes_max);
  std::vector<std::uint8_t> source(bytes), target(bytes, 0xa5);
  for (std::uint64_t i = 0; i < bytes; ++i) source[i] = static_cast<std::uint8_t>(i * 131 + 7);

  std::array<kvferry_region, 2> regions{};
  const std::array<std::vector<std::uint8_t>*, 2> memory{&source, &target};
  for (std::size_t i = 0; i < regions.size(); ++i) {
    kvferry_region_desc desc{};
    desc.access = KVFERRY_ACCESS_REMOTE_READ | KVFERRY_ACCESS_REMOTE_WRITE;
    desc.address = reinterpret_cast<std::uint64_t>(memory[i]->data());
    desc.length = bytes;
    auto region = backend.register_region(desc);
    if (!region) return tl::unexpected<Failure>(std::move(region.error()));
    regions[i] = *region;
  }
  auto pair = connect_to_itself(backend);
  if (!pair) return tl::unexpected<Failure>(std::move(pair.error()));
  auto blob = backend.export_regions(regions.data(), static_cast<std::uint32_t>(regions.size()));
  if (!blob) return tl::unexpected<Failure>(std::move(blob.error()));
  if (auto imported = backend.import_regions(pair->writer, blob->data(), blob->size()); !imported) return imported;

  const kvferry_piece from_source{regions[0], 0, bytes};
  kvferry_write write{};
  write.remote_region = regions[1];
  write.piece_count = 1;
  if (auto moved = move_once(backend, pair->writer, write, from_source); !moved) return moved;
  if (source != target) return failed("the bytes written are not those of the source");

  std::fill(source.begin(), source.end(), std::uint8_t{0});
  write.op = KVFERRY_OP_READ;
  if (auto moved = move_once(backend, pair->writer, write, from_source); !moved) return moved;
  if (source != target) return failed("the bytes read are not those of the target");

  for (const kvferry_region region : regions) {
    auto released = backend.deregister_region(region, KVFERRY_DEREGISTER_REFUSE_IF_BUSY);
    if (!released) return tl::unexpected<Failure>(std::move(released.error()));
  }
  return {};
}

}  // namespace loopback
