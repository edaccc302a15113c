#include "backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

#include "bounds.h"

namespace kvferry::ucx {
namespace {

constexpr std::uint64_t kProcessCheckNs = 1'000'000;  // between two looks at the guards while the host does not sleep

}  // namespace

Backend::Backend(const kvferry_host& host, const Settings& settings, WakeSet wake, std::uint64_t instance)
    : log_sink_(host),
      shared_{host, settings, own_identity(), instance, bound_library(), RegionTable(settings.regions_max, random_number() >> 24),
              Lanes(shared_.settings), std::move(wake), {}, {}, {}, 0},
      last_progress_ns_(now_ns()) {}

Result<std::unique_ptr<Backend>> Backend::create(const kvferry_host& host, const Settings& settings) {
  const Library library = bound_library();
  if (auto checked = check_library(library); !checked) return fail(std::move(checked.error()));
  auto wake = WakeSet::open();
  if (!wake) return fail(std::move(wake.error()));
  std::unique_ptr<Backend> backend(new Backend(host, settings, std::move(*wake), random_number()));
  backend->shared_.log(KVFERRY_LOG_INFO, "bound to " + library.text());
  return backend;
}

Backend::~Backend() {
  for (auto& [id, peer] : peers_) peer->abandon();
  peers_.clear();
}

kvferry_limits Backend::limits() const {
  kvferry_limits limits{};
  limits.capabilities = KVFERRY_CAP_WRITE | KVFERRY_CAP_NEEDS_TARGET_PROGRESS | KVFERRY_CAP_REVOKES_ON_DEREGISTER | KVFERRY_CAP_DETECTS_DEAD_PEER |
                        KVFERRY_CAP_EVENT_FD | KVFERRY_CAP_ALLOCATE | KVFERRY_CAP_GUARDED_TARGET;
  limits.message_bytes_max = shared_.settings.write_bytes_max;
  limits.pieces_per_write_max = kPiecesPerWriteMax;
  limits.writes_per_batch_max = kWritesPerBatchMax;
  limits.pieces_per_batch_max = kPiecesPerBatchMax;
  limits.batches_in_flight_max = static_cast<std::uint32_t>(shared_.settings.batches_in_flight);
  limits.bytes_in_flight_max = shared_.settings.window_bytes;
  limits.endpoint_bytes_max = kEndpointBlobBytesMax;
  limits.regions_max = static_cast<std::uint32_t>(shared_.settings.regions_max);
  limits.alignment_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  std::strncpy(limits.done_means, "applied by the target's guard, its acknowledgement taken", sizeof(limits.done_means) - 1);
  return limits;
}

kvferry_stats Backend::stats() const {
  const Counters& counters = shared_.counters;
  kvferry_stats stats{};
  stats.peers = static_cast<std::uint32_t>(counters.peers.get());
  stats.regions = counters.regions.get();
  stats.batches_submitted = counters.batches_submitted.get();
  stats.batches_done = counters.batches_done.get();
  stats.batches_failed = counters.batches_failed.get();
  stats.writes = counters.writes.get();
  stats.pieces = counters.pieces.get();
  stats.bytes = counters.bytes.get();
  stats.messages_sent = counters.messages_sent.get();
  stats.messages_received = counters.messages_received.get();
  stats.pieces_applied = counters.pieces_applied.get();
  stats.bytes_applied = counters.bytes_applied.get();
  stats.pieces_refused = counters.pieces_refused.get();
  stats.pieces_fenced = counters.pieces_fenced.get();
  stats.notifications_sent = counters.notifications_sent.get();
  stats.notifications_received = counters.notifications_received.get();
  stats.progress_calls = counters.progress_calls.get();
  return stats;
}

std::string Backend::effective_config() const {
  std::string extra = "\"library\": " + json_string(shared_.library.text());
  for (const LaneClass lane : {LaneClass::shm, LaneClass::tcp}) {
    const auto& context = shared_.lanes.opened(lane);
    extra += std::string(", \"ucx_") + to_string(lane) + "\": " + json_string(context != nullptr ? context->configuration() : "not opened yet");
  }
  return shared_.settings.to_json(extra);
}

Result<void> Backend::room_for_answer() const {
  if (shared_.control_events < kControlEventsMax) return {};
  return fail(Error(ErrorCode::busy, ErrorClass::retry, std::to_string(shared_.control_events) + " answers wait to be polled"));
}

// ---- regions ------------------------------------------------------------------------------------------------------------------------------------

Result<Region*> Backend::find_region(kvferry_region region, const char* what) {
  Region* found = shared_.regions.find(region);
  if (found == nullptr) return fail(ErrorCode::not_found, std::string(what) + ": no region " + std::to_string(region));
  return found;
}

Result<kvferry_region> Backend::register_region(const kvferry_region_desc& desc) {
  if (auto checked = check_region_desc(desc, false); !checked) return fail(std::move(checked.error()));
  auto region = shared_.regions.add(desc);
  if (!region) return fail(std::move(region.error()));
  const bool writable = (desc.access & KVFERRY_ACCESS_REMOTE_WRITE) != 0;
  if (auto mapped = check_mapped(desc.address, desc.length, writable); !mapped) {
    shared_.regions.remove(**region);
    return fail(std::move(mapped.error()));
  }
  shared_.counters.regions.set(shared_.regions.size());
  return (*region)->id;
}

Result<kvferry_status> Backend::release(Region& region, std::uint32_t mode) {
  if (mode == KVFERRY_DEREGISTER_DRAIN) region.draining = true;
  const bool used = std::any_of(order_.begin(), order_.end(), [&](const Peer* peer) { return peer->initiator().uses_region(region.id); });
  if (used) {
    if (mode == KVFERRY_DEREGISTER_DRAIN) return KVFERRY_AGAIN;
    return fail(ErrorCode::busy, "deregister region " + std::to_string(region.id) + ": a batch uses it");
  }
  // Allocated memory may be mapped by writers. What one of them copies from here on goes into pages that are nobody's any more, and its batch is refused.
  for (Peer* peer : order_) (void)peer->stop_region(region.id);
  shared_.regions.remove(region);
  shared_.counters.regions.set(shared_.regions.size());
  return KVFERRY_OK;
}

Result<kvferry_status> Backend::deregister_region(kvferry_region region, std::uint32_t mode) {
  auto found = find_region(region, "deregister");
  if (!found) return fail(std::move(found.error()));
  if (mode != KVFERRY_DEREGISTER_REFUSE_IF_BUSY && mode != KVFERRY_DEREGISTER_DRAIN) {
    return fail(ErrorCode::invalid_argument, "deregister region " + std::to_string(region) + ": mode " + std::to_string(mode) + " is not known");
  }
  if ((*found)->allocated()) {
    return fail(ErrorCode::invalid_argument, "deregister region " + std::to_string(region) + ": it comes from allocate and ends with free_memory");
  }
  return release(**found, mode);
}

Result<kvferry_status> Backend::free_memory(kvferry_region region) {
  auto found = find_region(region, "free");
  if (!found) return fail(std::move(found.error()));
  if (!(*found)->allocated()) return fail(ErrorCode::invalid_argument, "free region " + std::to_string(region) + ": it does not come from allocate");
  return release(**found, KVFERRY_DEREGISTER_DRAIN);
}

Result<void> Backend::region_quiesce(kvferry_region region, kvferry_peer peer, std::uint64_t tag, std::uint64_t deadline_ns) {
  auto found = find_region(region, "region_quiesce");
  if (!found) return fail(std::move(found.error()));
  if (peer != 0) {
    if (auto known = find_peer(peer, "region_quiesce"); !known) return fail(std::move(known.error()));
  }
  if (auto possible = room_for_answer(); !possible) return possible;
  if (peer == 0) {
    (*found)->refuses_everybody = true;
  } else if (!(*found)->refuses(peer)) {
    (*found)->refused_peers.push_back(peer);
  }
  Event event;
  event.kind = KVFERRY_EVENT_REGION_QUIESCED;
  event.peer = peer;
  event.tag = tag;
  Answer answer{std::move(event), deadline_ns, {}};
  for (Peer* each : order_) {
    if (peer == 0 || each->id() == peer) answer.proofs.push_back(each->stop_region(region));
  }
  give(std::move(answer), peer);
  return {};
}

Result<Backend::Allocation> Backend::allocate(std::uint64_t length, std::uint32_t purpose) {
  const std::string what = "allocate " + std::to_string(length) + " bytes";
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (length == 0) return fail(ErrorCode::invalid_argument, what + ": the length is zero");
  if (length > (std::uint64_t{1} << 62)) return fail(ErrorCode::invalid_argument, what + ": more than the address space");
  auto memory = SharedMemory::create("kvferry", (length + page - 1) / page * page);
  if (!memory) return fail(memory.error().within(what));
  kvferry_region_desc desc{};
  desc.purpose = purpose;
  desc.access = KVFERRY_ACCESS_REMOTE_WRITE | KVFERRY_ACCESS_REMOTE_READ;
  desc.address = reinterpret_cast<std::uint64_t>(memory->mapping.address());
  desc.length = length;
  if (auto checked = check_region_desc(desc, false); !checked) return fail(std::move(checked.error()));
  auto region = shared_.regions.add(desc);
  if (!region) return fail(std::move(region.error()));
  (*region)->shared = std::move(*memory);
  shared_.counters.regions.set(shared_.regions.size());
  return Allocation{(*region)->address, (*region)->id};
}

Result<std::vector<std::uint8_t>> Backend::export_regions(const kvferry_region* regions, std::uint32_t count) const {
  if (regions == nullptr && count > 0) return fail(ErrorCode::invalid_argument, "export regions: a null list of " + std::to_string(count));
  RegionsBlob blob;
  blob.instance = shared_.instance;
  blob.regions.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const Region* region = shared_.regions.find(regions[i]);
    if (region == nullptr) return fail(ErrorCode::not_found, "export regions: no region " + std::to_string(regions[i]));
    if (region->access == KVFERRY_ACCESS_LOCAL || region->draining) {
      return fail(ErrorCode::invalid_argument, "export region " + std::to_string(region->id) + ": " +
                                                   (region->draining ? "it is being deregistered" : "it has no remote access"));
    }
    blob.regions.push_back({region->id, region->length, region->access, region->purpose, region->shared.file});
  }
  return encode(blob);
}

// ---- peers --------------------------------------------------------------------------------------------------------------------------------------

Result<kvferry_peer> Backend::peer_create(const kvferry_peer_options& options) {
  Peer::Options peer_options;
  peer_options.lane = shared_.settings.lane;
  if (options.lane != nullptr) {
    auto lane = parse_lane(std::string_view(options.lane).substr(0, 64), "create a peer: lane");
    if (!lane) return fail(Error(ErrorCode::unsupported, lane.error().text));
    if (*lane != LaneChoice::automatic) peer_options.lane = *lane;
  }
  peer_options.id = next_peer_id();
  peer_options.lease_ns = options.lease_ns;
  peer_options.token = random_number();
  auto peer = std::make_unique<Peer>(shared_, peer_options);
  order_.push_back(peer.get());
  peers_.emplace(peer_options.id, std::move(peer));
  shared_.counters.peers.set(peers_.size());
  return peer_options.id;
}

Result<Peer*> Backend::find_peer(kvferry_peer peer, const char* what) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return fail(ErrorCode::not_found, std::string(what) + ": no peer " + std::to_string(peer));
  return found->second.get();
}

bool Backend::has_open_peers() const {
  return std::any_of(order_.begin(), order_.end(), [](const Peer* peer) { return peer->state() != KVFERRY_PEER_CLOSED; });
}

Result<kvferry_status> Backend::submit(kvferry_peer peer, const kvferry_batch& batch, std::uint32_t& ret_accepted, std::uint64_t& ret_object) {
  auto found = find_peer(peer, "submit");
  if (!found) return fail(std::move(found.error()));
  const std::string what = "submit to peer " + std::to_string(peer);
  switch ((*found)->state()) {
    case KVFERRY_PEER_UP:
      break;
    case KVFERRY_PEER_CREATED:
    case KVFERRY_PEER_CONNECTING:
      return KVFERRY_AGAIN;
    case KVFERRY_PEER_FAILED:
      return fail(ErrorCode::peer_lost, what + ": it has failed");
    default:
      return fail(ErrorCode::canceled, what + ": it is closing");
  }
  auto accepted = (*found)->initiator().submit(batch, ret_object);
  if (!accepted) return fail(std::move(accepted.error()));
  ret_accepted = accepted->writes;
  if (accepted->writes == 0 && !accepted->all) return KVFERRY_AGAIN;
  (void)(*found)->initiator().step(0);  // deadlines are progress's matter
  return KVFERRY_OK;
}

Result<void> Backend::fence(kvferry_peer peer, std::uint64_t room, std::uint32_t generation, std::uint64_t tag,
                            std::uint64_t deadline_ns) {
  if (auto possible = room_for_answer(); !possible) return possible;
  if (peer == 0) {
    shared_.fences_of_all.add(room, generation);
  } else {
    auto found = find_peer(peer, "fence");
    if (!found) return fail(std::move(found.error()));
    (*found)->target().fence(room, generation);
  }
  Event event;
  event.kind = KVFERRY_EVENT_FENCED;
  event.peer = peer;
  event.room = room;
  event.generation = generation;
  event.tag = tag;
  Answer answer{std::move(event), deadline_ns, {}};
  for (Peer* each : order_) {
    if (peer == 0 || each->id() == peer) answer.proofs.push_back(each->stop_room(room, generation));
  }
  give(std::move(answer), peer);
  return {};
}

/// Pieces that come by message are applied by our own progress only, which does not run now: the guard refuses them from here on. Writers of mapped memory
/// have been stopped; one in the middle of a chunk is waited for, also one whose peer is closed already.
void Backend::give(Answer answer, kvferry_peer peer) {
  for (const Unproved& gone : unproved_) {
    if (peer == 0 || gone.peer == peer) answer.proofs.push_back(gone.proof);
  }
  answers_.push_back(std::move(answer));
  settle_answers(now_ns());
}

void Backend::settle_answers(std::uint64_t now_ns) {
  std::erase_if(answers_, [&](Answer& answer) {
    std::erase_if(answer.proofs, [](const Peer::Proof& proof) { return proof.done(); });
    const bool late = answer.deadline_ns != 0 && now_ns >= answer.deadline_ns;
    if (!answer.proofs.empty() && !late) return false;
    if (!answer.proofs.empty()) {
      answer.event.error = std::make_unique<Error>(ErrorCode::cannot_promise, "a writer stands still in the middle of a copy into memory from allocate; it may still land");
    }
    ++shared_.control_events;
    shared_.events.push(std::move(answer.event));
    return true;
  });
  std::erase_if(unproved_, [&](const Unproved& gone) {
    if (!gone.proof.done()) return false;
    if (gone.guard != nullptr) shared_.wake.remove(gone.guard->fd());
    Event event;
    event.kind = KVFERRY_EVENT_PEER_CLOSED;
    event.peer = gone.peer;
    shared_.events.push(std::move(event));
    return true;
  });
}

// ---- progress, poll, arm ------------------------------------------------------------------------------------------------------------------------

/// Before anything that queued up in the pause is looked at.
void Backend::check_leases(std::uint64_t now_ns) {
  const std::uint64_t pause_ns = now_ns - last_progress_ns_;
  for (Peer* peer : order_) {
    if (peer->lease_ns() != 0 && pause_ns > peer->lease_ns()) peer->drop_for_lease(pause_ns);
  }
}

void Backend::check_processes(std::uint64_t now_ns) {
  if (!armed_ && now_ns - last_process_check_ns_ < kProcessCheckNs) return;
  last_process_check_ns_ = now_ns;
  for (Peer* peer : order_) {
    if (peer->guard() == nullptr || !peer->guard()->ended()) continue;
    shared_.wake.remove(peer->guard()->fd());  // it stays readable
    peer->process_ended(now_ns);
  }
}

bool Backend::progress() {
  shared_.counters.progress_calls.add(1);
  const std::uint64_t now = now_ns();
  const std::uint64_t events_before = shared_.events.size();
  check_leases(now);
  last_progress_ns_ = now;
  bool worked = false;
  for (std::size_t i = 0; i < order_.size(); ++i) worked = order_[i]->progress(now) || worked;
  check_processes(now);
  if (!answers_.empty() || !unproved_.empty()) settle_answers(now);
  armed_ = false;
  return worked || shared_.events.size() != events_before;
}

std::uint32_t Backend::poll(std::uint8_t* events, std::uint32_t stride, std::uint32_t capacity) {
  std::uint32_t count = 0;
  for (; count < capacity && !shared_.events.empty(); ++count) {
    Event event = shared_.events.pop();
    kvferry_event out{};
    out.struct_size = stride;
    out.kind = event.kind;
    out.peer = event.peer;
    out.room = event.room;
    out.generation = event.generation;
    out.tag = event.tag;
    out.bytes = event.bytes;
    out.notification = event.notification;
    out.error.struct_size = sizeof(out.error);
    if (event.error != nullptr) {
      out.error.code = static_cast<std::int32_t>(event.error->code);
      out.error.error_class = static_cast<std::int32_t>(event.error->error_class);
      out.error.vendor_status = event.error->vendor_status;
      out.error.sys_errno = event.error->sys_errno;
      out.error.object = event.error_object;
      std::memcpy(out.error.text, event.error->text.data(), std::min(event.error->text.size(), sizeof(out.error.text) - 1));
    }
    std::uint8_t* place = events + std::size_t{count} * stride;
    std::memset(place, 0, stride);
    std::memcpy(place, &out, std::min<std::size_t>(stride, sizeof(out)));
    taken(event);
  }
  return count;
}

void Backend::taken(const Event& event) {
  const auto found = peers_.find(event.peer);
  Peer* peer = found == peers_.end() ? nullptr : found->second.get();
  switch (event.kind) {
    case KVFERRY_EVENT_BATCH_DONE:
    case KVFERRY_EVENT_BATCH_FAILED:
      if (peer != nullptr) peer->initiator().polled(event.batch);
      return;
    case KVFERRY_EVENT_NOTIFICATION:
    case KVFERRY_EVENT_PIECE_REFUSED:
      if (peer != nullptr) peer->target().event_polled();
      return;
    case KVFERRY_EVENT_PEER_CLOSED:
      if (peer == nullptr) return;  // the second one
      if (peer->open_proof().owner != nullptr) unproved_.push_back({peer->id(), peer->open_proof(), peer->guard()});
      std::erase(order_, peer);
      peers_.erase(found);
      shared_.counters.peers.set(peers_.size());
      return;
    case KVFERRY_EVENT_PEER_UP:
    case KVFERRY_EVENT_PEER_LOST:
      return;
    default:
      --shared_.control_events;
      return;
  }
}

bool Backend::arm() {
  if (!shared_.events.empty()) return false;
  const std::uint64_t now = now_ns();
  for (Peer* peer : order_) {
    if (!peer->arm(now)) return false;
  }
  armed_ = true;
  return true;
}

}  // namespace kvferry::ucx
