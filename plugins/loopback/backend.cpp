#include "backend.h"

#include <sys/mman.h>

#include "registry.h"

namespace loopback {
namespace {

// Streams of Random.
enum : std::uint64_t { kDelayStream = 1, kReorderStream, kAcceptStream, kRefuseStream, kLoseStream };

}  // namespace

Answer<std::unique_ptr<Backend>> Backend::create(const kvferry_host& host, const Config& config) {
  auto bell = Doorbell::open();
  if (!bell) return tl::unexpected<Failure>(std::move(bell.error()));
  auto identity = add_backend();
  if (!identity) return tl::unexpected<Failure>(std::move(identity.error()));
  return std::unique_ptr<Backend>(new Backend(host, config, *identity, std::move(*bell)));
}

Backend::Backend(const kvferry_host& host, const Config& config, const Identity& identity, std::shared_ptr<Doorbell> bell)
    : host_(host),
      config_(config),
      identity_(identity),
      bell_(std::move(bell)),
      last_progress_ns_(now_ns()),
      delay_draws_(config.seed, kDelayStream),
      reorder_draws_(config.seed, kReorderStream),
      accept_draws_(config.seed, kAcceptStream),
      refuse_draws_(config.seed, kRefuseStream),
      lose_draws_(config.seed, kLoseStream) {}

Backend::~Backend() {
  const std::uint64_t now = now_ns();
  for (auto& [id, peer] : peers_) abandon(*peer, now);
  remove_backend(identity_.instance);
  for (auto& [id, region] : regions_) {
    if (region.mapped_bytes != 0) (void)munmap(region.address, region.mapped_bytes);  // our own mapping: it cannot be refused
  }
}

kvferry_limits Backend::limits() const {
  kvferry_limits limits{};
  limits.capabilities = KVFERRY_CAP_WRITE | KVFERRY_CAP_READ | KVFERRY_CAP_NEEDS_TARGET_PROGRESS | KVFERRY_CAP_REVOKES_ON_DEREGISTER |
                        KVFERRY_CAP_DETECTS_DEAD_PEER | KVFERRY_CAP_EVENT_FD | KVFERRY_CAP_ALLOCATE | KVFERRY_CAP_IN_PROCESS_ONLY |
                        KVFERRY_CAP_GUARDED_TARGET;
  limits.message_bytes_max = config_.message_bytes_max;
  limits.pieces_per_write_max = static_cast<std::uint32_t>(config_.pieces_per_write_max);
  limits.writes_per_batch_max = static_cast<std::uint32_t>(config_.writes_per_batch_max);
  limits.pieces_per_batch_max = static_cast<std::uint32_t>(config_.pieces_per_batch_max);
  limits.batches_in_flight_max = static_cast<std::uint32_t>(config_.batches_in_flight_max);
  limits.bytes_in_flight_max = config_.window_bytes;
  limits.endpoint_bytes_max = kEndpointBlobBytes;
  limits.regions_max = static_cast<std::uint32_t>(config_.regions_max);
  limits.alignment_bytes = 4096;
  std::strncpy(limits.done_means, "copied by the target's progress, its answer taken by ours", sizeof(limits.done_means) - 1);
  return limits;
}

kvferry_stats Backend::stats() const {
  const auto read = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  kvferry_stats stats{};
  stats.peers = static_cast<std::uint32_t>(read(counters_.peers));
  stats.regions = read(counters_.regions);
  stats.batches_submitted = read(counters_.batches_submitted);
  stats.batches_done = read(counters_.batches_done);
  stats.batches_failed = read(counters_.batches_failed);
  stats.writes = read(counters_.writes);
  stats.pieces = read(counters_.pieces);
  stats.bytes = read(counters_.bytes);
  stats.messages_sent = read(counters_.messages_sent);
  stats.messages_received = read(counters_.messages_received);
  stats.pieces_applied = read(counters_.pieces_applied);
  stats.bytes_applied = read(counters_.bytes_applied);
  stats.pieces_refused = read(counters_.pieces_refused);
  stats.pieces_fenced = read(counters_.pieces_fenced);
  stats.notifications_sent = read(counters_.notifications_sent);
  stats.notifications_received = read(counters_.notifications_received);
  stats.progress_calls = read(counters_.progress_calls);
  return stats;
}

std::optional<Failure> Backend::injected_failure(const char* entry) {
  if (config_.fail_entry != entry || ++entry_calls_ != config_.fail_nth) return std::nullopt;
  Failure failure;
  failure.code = KVFERRY_ERROR_IO;
  failure.text = "fault injected: call " + std::to_string(entry_calls_) + " of " + entry;
  return failure;
}

void Backend::log(std::int32_t level, const std::string& text) const {
  if (host_.log != nullptr) host_.log(host_.user, level, "loopback", text.c_str());
}

Answer<Peer*> Backend::find_peer(kvferry_peer peer, const char* what) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return refuse(KVFERRY_ERROR_NOT_FOUND, std::string(what) + ": no peer " + std::to_string(peer), peer);
  return found->second.get();
}

Answer<Region*> Backend::find_region(kvferry_region region, const char* what) {
  const auto found = regions_.find(region);
  if (found == regions_.end()) return refuse(KVFERRY_ERROR_NOT_FOUND, std::string(what) + ": no region " + std::to_string(region), region);
  return &found->second;
}

Answer<void> Backend::room_for_control_event() const {
  if (control_events_ < config_.control_events_max) return {};
  return refuse(KVFERRY_ERROR_BUSY,
                std::to_string(control_events_) + " answers wait to be polled, control_events_max is " + std::to_string(config_.control_events_max));
}

void Backend::push(Event event) {
  switch (event.kind) {
    case KVFERRY_EVENT_INITIATOR_QUIESCED:
    case KVFERRY_EVENT_FENCED:
    case KVFERRY_EVENT_REGION_QUIESCED:
    case KVFERRY_EVENT_FLUSHED:
      ++control_events_;
      break;
    default:
      break;
  }
  events_.push(std::move(event));
}

void Backend::push_peer(std::uint32_t kind, const Peer& peer, std::optional<Failure> failure) {
  Event event;
  event.kind = kind;
  event.peer = peer.id;
  event.failure = std::move(failure);
  push(std::move(event));
}

std::uint64_t Backend::draw_delay() {
  return config_.delay_min_ns +
         (config_.delay_max_ns > config_.delay_min_ns ? delay_draws_.below(config_.delay_max_ns - config_.delay_min_ns + 1) : 0);
}

}  // namespace loopback
