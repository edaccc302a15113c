#include "peer.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace kvferry::ucx {
namespace {

constexpr int kCloseRoundsMax = 64;                   // progress calls granted to UCX for closing an endpoint by force
constexpr std::uint64_t kPopulateBytes = 1ull << 20;  // of page table per progress
constexpr std::uint64_t kProofWaitNs = 1'000'000'000;  // for a writer in the middle of a chunk, where the close has no deadline
constexpr int kProofSpins = 200;
constexpr std::uint64_t kSpinMaxNs = 2'000'000;       // how long UCX may say "busy" without anything happening before we let the host sleep
constexpr std::size_t kControlBacklogMax = 64;        // acknowledgements wait while so much else does: they are cumulative

Initiator::Limits initiator_limits(const Settings& settings) {
  return {settings.batches_in_flight, settings.window_bytes, settings.write_bytes_max, settings.cancels_max, kPiecesPerWriteMax, false};
}

std::string milliseconds(std::uint64_t ns) { return std::to_string(ns / 1'000'000) + " ms"; }

}  // namespace

Result<std::shared_ptr<Context>> Lanes::open(LaneClass lane) {
  std::shared_ptr<Context>& kept = lane == LaneClass::shm ? shm_ : tcp_;
  if (kept == nullptr) {
    auto context = Context::open(lane, settings_);
    if (!context) return context;
    kept = std::move(*context);
  }
  return kept;
}

Peer::Peer(Shared& shared, const Options& options)
    : shared_(shared),
      options_(options),
      initiator_({options.id, "ucx", initiator_limits(shared.settings), shared.regions, remote_regions_, shared.events, shared.counters, shared.control_events}),
      target_({options.id, shared.regions, shared.fences_of_all, shared.events, shared.counters}) {}

Peer::~Peer() {
  drop_link(shm_link_);
  drop_link(tcp_link_);
}

// ---- descriptors --------------------------------------------------------------------------------------------------------------------------------

Result<void> Peer::add_link(LaneClass lane, std::unique_ptr<Link>& link) {
  auto context = shared_.lanes.open(lane);
  if (!context) return fail(std::move(context.error()));
  const DescriptorSnapshot before;
  auto created = Link::create(std::move(*context), *this);
  if (!created) return fail(std::move(created.error()));
  link = std::move(*created);
  if (lane != LaneClass::tcp) return {};
  auto address = link->address();
  if (!address) return fail(std::move(address.error()));
  listeners_ = before.listeners_since(*address);
  return {};
}

void Peer::drop_link(std::unique_ptr<Link>& link) noexcept {
  if (link == nullptr) return;
  shared_.wake.remove(link->event_fd());
  link.reset();
}

/// With lane auto one of the two may be missing, which decides for the other.
Result<void> Peer::create_links() {
  if (links_created_) return {};
  const bool want_shm = options_.lane != LaneChoice::tcp, want_tcp = options_.lane != LaneChoice::shm;
  Result<void> shm, tcp;
  if (want_shm) shm = add_link(LaneClass::shm, shm_link_);
  if (want_tcp) tcp = add_link(LaneClass::tcp, tcp_link_);
  if (!shm) shm_link_.reset();
  if (!tcp) tcp_link_.reset();
  if (shm_link_ == nullptr && tcp_link_ == nullptr) return !shm ? shm : tcp;
  if (!shm) shared_.log(KVFERRY_LOG_WARN, text() + ": no shared-memory lane is offered: " + shm.error().text);
  if (!tcp) shared_.log(KVFERRY_LOG_WARN, text() + ": no TCP lane is offered: " + tcp.error().text);
  links_created_ = true;
  return {};
}

Result<std::vector<std::uint8_t>> Peer::export_endpoint() {
  if (state_ > KVFERRY_PEER_UP) return fail(ErrorCode::peer_lost, "export " + text() + ": it is closing, closed or failed");
  if (auto created = create_links(); !created) return fail(created.error().within("export " + text()));
  EndpointBlob blob;
  blob.instance = shared_.instance;
  blob.token = options_.token;
  blob.identity = shared_.identity;
  blob.lane = static_cast<std::uint32_t>(options_.lane);
  blob.mapped = shared_.settings.mapped ? 1 : 0;
  blob.ucx_version = (shared_.library.major << 16) | shared_.library.minor;
  if (shm_link_ != nullptr) {
    auto address = shm_link_->address();
    if (!address) return address;
    blob.shm_address = std::move(*address);
    if (owner_ == nullptr) {
      auto owner = MapOwner::create();
      if (!owner) return fail(owner.error().within("export " + text()));
      owner_ = std::move(*owner);
    }
    blob.control = owner_->control_file();
    blob.shm_message_bytes = static_cast<std::uint32_t>(shm_link_->message_bytes_max());
  }
  if (tcp_link_ != nullptr) {
    auto address = tcp_link_->address();
    if (!address) return address;
    blob.tcp_address = std::move(*address);
    blob.tcp_message_bytes = static_cast<std::uint32_t>(tcp_link_->message_bytes_max());
    blob.listeners = listeners_;
  }
  return encode(blob);
}

Result<void> Peer::import_regions(std::span<const std::uint8_t> bytes) {
  auto blob = decode_regions(bytes, shared_.settings.regions_max);
  if (!blob) return fail(std::move(blob.error()));
  const std::uint64_t expected = remote_ ? remote_->instance : regions_instance_;
  if (expected != 0 && expected != blob->instance) {
    return fail(ErrorCode::mismatch, "import regions for " + text() + ": they come from instance " + std::to_string(blob->instance) +
                                         ", the peer is instance " + std::to_string(expected));
  }
  for (const RegionRecord& record : blob->regions) {
    if (slot_of(record.id) >= shared_.settings.regions_max) {
      return fail(ErrorCode::limit, "import region " + std::to_string(record.id) + " for " + text() + ": regions_max is " +
                                        std::to_string(shared_.settings.regions_max));
    }
  }
  regions_instance_ = blob->instance;
  for (const RegionRecord& record : blob->regions) {
    RemoteRegion& region = remote_regions_.place(record.id);
    region.length = record.length_bytes;
    region.access = record.access;
    region.file = record.file;
    if (state_ == KVFERRY_PEER_UP) ask_for_mapping(region);
  }
  return {};
}

// ---- connecting ---------------------------------------------------------------------------------------------------------------------------------

Result<void> Peer::check_remote(const EndpointBlob& remote) const {
  if (remote.token == options_.token) return fail(ErrorCode::invalid_argument, "connect " + text() + ": the descriptor is its own");
  if (regions_instance_ != 0 && regions_instance_ != remote.instance) {
    return fail(ErrorCode::mismatch, "connect " + text() + ": its regions came from instance " + std::to_string(regions_instance_) +
                                         ", the endpoint from instance " + std::to_string(remote.instance));
  }
  return {};
}

/// A process of this host is watched through a pidfd, on either lane; where that is not possible, acknowledgements and the connection must do.
Result<void> Peer::watch_process() {
  if (!difference(shared_.identity, remote_->identity).empty()) return {};
  auto guard = ProcessGuard::watch(remote_->identity);
  if (!guard) {
    if (guard.error().code == ErrorCode::peer_lost) return fail(std::move(guard.error()));
    shared_.log(KVFERRY_LOG_WARN, text() + ": its end is noticed by deadlines only: " + guard.error().text);
    return {};
  }
  guard_ = std::make_shared<const ProcessGuard>(std::move(*guard));
  if (owner_ != nullptr) owner_->watch(guard_);
  return shared_.wake.add(guard_->fd(), false);
}

Result<void> Peer::connect(std::span<const std::uint8_t> blob, std::uint64_t deadline_ns) {
  const std::string what = "connect " + text();
  if (state_ != KVFERRY_PEER_CREATED) return fail(ErrorCode::exists, what + ": it is connected or was; one peer connects once");
  auto remote = decode_endpoint(blob);
  if (!remote) return fail(remote.error().within(what));
  if (auto checked = check_remote(*remote); !checked) return checked;
  auto own = export_endpoint();
  if (!own) return fail(std::move(own.error()));
  auto chosen = choose_lane(*decode_endpoint(*own), *remote);
  if (!chosen) return fail(chosen.error().within(what));
  if (!chosen->warning.empty()) shared_.log(KVFERRY_LOG_WARN, text() + ": " + chosen->warning);
  remote_ = std::move(*remote);
  chosen_ = chosen->lane == LaneClass::shm ? &shm_link_ : &tcp_link_;
  drop_link(chosen->lane == LaneClass::shm ? tcp_link_ : shm_link_);
  if (chosen->lane != LaneClass::shm) owner_.reset();
  if (auto watched = shared_.wake.add(link()->event_fd(), false); !watched) return watched;
  state_ = KVFERRY_PEER_CONNECTING;
  connect_deadline_ns_ = deadline_ns;
  // From here on everything ends in an event.
  if (auto watched = watch_process(); !watched) {
    lose(watched.error().within(what));
    return {};
  }
  if (chosen->lane == LaneClass::shm) {
    if (auto opened = open_writer(); !opened) {
      lose(opened.error().within(what + " over shm"));
      return {};
    }
    start_link();
  } else {
    reachability_.start(remote_->listeners, same_boot(shared_.identity, remote_->identity));
    for (const int fd : reachability_.descriptors()) {
      if (auto watched = shared_.wake.add(fd, true); !watched) return watched;
    }
  }
  return {};
}

void Peer::start_link() {
  const bool shm = link()->lane() == LaneClass::shm;
  auto connected = link()->connect(shm ? remote_->shm_address : remote_->tcp_address);
  if (!connected) return lose(connected.error().within("connect " + text()));
  HelloMessage hello{};
  hello.instance = shared_.instance;
  send(MessageKind::hello, hello);
}

bool Peer::step_connecting(std::uint64_t now_ns) {
  const std::string what = "connect " + text() + " over " + to_string(link()->lane());
  if (connect_deadline_ns_ != 0 && now_ns >= connect_deadline_ns_) {
    lose(Error(ErrorCode::peer_lost, what + ": " +
                                         (!link()->connected() ? "not reached by the deadline (" + reachability_.report() + ")"
                                          : hello_taken_       ? "its probe came, its answer to ours did not, by the deadline"
                                                               : "no answer to the probe by the deadline")));
    return true;
  }
  if (link()->connected()) return false;
  switch (reachability_.step()) {
    case ReachabilityTest::State::trying:
      return false;
    case ReachabilityTest::State::failed:
      lose(Error(ErrorCode::peer_lost, what + ": it cannot be reached: " + reachability_.report()));
      return true;
    case ReachabilityTest::State::reached:
      start_link();
      return true;
  }
  return false;
}

void Peer::become_up() {
  state_ = KVFERRY_PEER_UP;
  const bool shm = link()->lane() == LaneClass::shm;
  ScatterSender::Options options;
  options.token = remote_->token;
  // The receiver's segment is the limit as much as the sender's: UCX checks neither against the other.
  const std::uint64_t theirs = shm ? remote_->shm_message_bytes : remote_->tcp_message_bytes;
  options.message_bytes = std::min(link()->message_bytes_max(), theirs);
  options.messages_in_flight = shared_.settings.messages_in_flight;
  sender_ = std::make_unique<ScatterSender>(*link(), options, remote_regions_, may_map() ? writer_.get() : nullptr, shared_.counters);
  initiator_.use(sender_.get());
  description_ = std::string(shm ? "error mode none" : "error mode peer") + ", messages of " + std::to_string(options.message_bytes) + " bytes, " +
                 (guard_ != nullptr ? "process " + std::to_string(remote_->identity.process) + " watched" : "process not watched") + ", " +
                 link()->description();
  shared_.log(KVFERRY_LOG_INFO, text() + ": up over " + to_string(link()->lane()) + ", " + description_);
  push_event(KVFERRY_EVENT_PEER_UP, nullptr);
  for (RemoteRegion& region : remote_regions_.all()) ask_for_mapping(region);
}

// ---- mapped memory ------------------------------------------------------------------------------------------------------------------------------

/// The other side's control page proves with the messages that memory is really shared.
Result<void> Peer::open_writer() {
  auto writer = MappedWriter::open(remote_->identity.process, remote_->control);
  if (!writer) return fail(std::move(writer.error()));
  writer_ = std::move(*writer);
  return {};
}

/// A writer that cannot be watched could not be proved to have stopped: then nothing is mapped, in either direction.
bool Peer::may_map() const noexcept { return shared_.settings.mapped && remote_->mapped != 0 && guard_ != nullptr && writer_ != nullptr; }

void Peer::ask_for_mapping(RemoteRegion& region) {
  if (!may_map() || region.id == 0 || region.file.present == 0 || region.map_asked || (region.access & KVFERRY_ACCESS_REMOTE_WRITE) == 0) return;
  region.map_asked = true;
  MapMessage message{};
  message.region = region.id;
  send(MessageKind::map_request, message);
}

/// A region that may not be mapped is not answered: its pieces go by message, and the guard speaks.
void Peer::grant(kvferry_region id) {
  const Region* region = shared_.regions.find(id);
  if (owner_ == nullptr || !may_map() || state_ > KVFERRY_PEER_UP || region == nullptr || !region->allocated() || region->refuses(options_.id)) return;
  const bool first = !owner_->active();
  owner_->grant(id);
  if (first) {  // the writer must know every fence before its first copy
    for (const auto& [room, generation] : shared_.fences_of_all.all()) tell_fence(room, generation);
    for (const auto& [room, generation] : target_.fences().all()) tell_fence(room, generation);
  }
  MapMessage message{};
  message.region = id;
  message.epoch = owner_->epoch();
  send(MessageKind::map_grant, message);
}

void Peer::take_map_message(MessageKind kind, std::span<const std::uint8_t> bytes) {
  if (bytes.size() != sizeof(MapMessage)) return protocol_error(Error(ErrorCode::internal, "a malformed message about mapped memory"));
  const auto message = read_struct<MapMessage>(bytes.data());
  if (kind == MessageKind::map_request) return grant(message.region);
  if (writer_ == nullptr) return protocol_error(Error(ErrorCode::internal, "an answer about mapped memory that nobody asked for"));
  if (kind == MessageKind::map_revoke) writer_->follow_epoch();
  RemoteRegion* region = remote_regions_.find(message.region);
  if (region == nullptr) return;
  if (kind == MessageKind::map_revoke) {
    region->revoked_epoch = message.epoch;
    return region->mapping.reset();
  }
  if (message.epoch < region->revoked_epoch) return;
  auto mapping = attach(remote_->identity.process, region->file);
  if (mapping) {
    region->mapping = std::move(*mapping);
    region->populated = 0;
  } else {
    shared_.log(KVFERRY_LOG_WARN, text() + ": its region " + std::to_string(region->id) + " is written by messages: " + mapping.error().text);
  }
}

void Peer::take_fence(std::span<const std::uint8_t> bytes) {
  if (bytes.size() != sizeof(FenceMessage) || writer_ == nullptr) return protocol_error(Error(ErrorCode::internal, "a fence out of place"));
  const auto fence = read_struct<FenceMessage>(bytes.data());
  writer_->follow_epoch();
  initiator_.on_fenced(fence.room, fence.generation);
}

void Peer::tell_fence(std::uint64_t room, std::uint32_t generation) {
  FenceMessage message{};
  message.epoch = owner_->raise_epoch();
  message.room = room;
  message.generation = generation;
  if (link() != nullptr && !deaf_) send(MessageKind::fence, message);
}

Peer::Proof Peer::stop_room(std::uint64_t room, std::uint32_t generation) {
  if (owner_ == nullptr || !owner_->active()) return {};
  if (state_ <= KVFERRY_PEER_CLOSING && !deaf_) tell_fence(room, generation);
  return {owner_, owner_->busy()};
}

Peer::Proof Peer::stop_region(kvferry_region region) {
  if (owner_ == nullptr || !owner_->granted(region)) return {};
  owner_->revoke(region);
  if (state_ <= KVFERRY_PEER_CLOSING && !deaf_) {
    MapMessage message{};
    message.region = region;
    message.epoch = owner_->raise_epoch();
    send(MessageKind::map_revoke, message);
  }
  return {owner_, owner_->busy()};
}

/// While there is nothing better to do. True: there may be more.
bool Peer::populate_mappings() {
  std::vector<RemoteRegion>& regions = remote_regions_.all();
  for (; populate_next_ < regions.size(); ++populate_next_) {
    RemoteRegion& region = regions[populate_next_];
    const std::uint64_t left = region.mapping.length() - region.populated;
    if (left == 0) continue;
    const std::uint64_t part = std::min(left, kPopulateBytes);
    region.populated = region.mapping.populate(region.populated, part) ? region.populated + part : region.mapping.length();
    return true;
  }
  return false;
}

// ---- messages -----------------------------------------------------------------------------------------------------------------------------------

template <class Message>
void Peer::send(MessageKind kind, Message message) {
  message.head.kind = static_cast<std::uint16_t>(kind);
  message.head.length_bytes = sizeof(Message);
  message.head.token = remote_->token;
  std::uint8_t bytes[sizeof(Message)];
  std::memcpy(bytes, &message, sizeof(Message));
  link()->send_control(bytes);
}

void Peer::protocol_error(Error error) {
  if (!protocol_error_) protocol_error_ = std::move(error);
}

void Peer::on_message(std::span<const std::uint8_t> bytes) {
  if (deaf_ || protocol_error_) return;
  if (bytes.size() < sizeof(MessageHead)) return protocol_error(Error(ErrorCode::internal, "a message of " + std::to_string(bytes.size()) + " bytes"));
  const auto head = read_struct<MessageHead>(bytes.data());
  if (head.token != options_.token) return protocol_error(Error(ErrorCode::stale, ErrorClass::reconnect, "a message for another generation of this peer"));
  if (head.length_bytes != bytes.size()) {
    return protocol_error(Error(ErrorCode::internal, "a message says " + std::to_string(head.length_bytes) + " bytes, " + std::to_string(bytes.size()) + " came"));
  }
  heard_ = true;
  switch (static_cast<MessageKind>(head.kind)) {
    case MessageKind::data:
      if (options_.lease_ns != 0 && stalled()) return;
      if (auto taken = target_.on_data(bytes); !taken) return protocol_error(std::move(taken.error()));
      // At once, not after the pass: the writer waits for it.
      if (target_.ack_due() && target_.refusals().empty() && link()->control_backlog() == 0) send(MessageKind::ack, target_.take_ack());
      return;
    case MessageKind::ack:
      return take_ack(bytes);
    case MessageKind::refused:
      return take_refused(bytes);
    case MessageKind::hello:
      return take_hello(bytes);
    case MessageKind::hello_answer:
      answer_taken_ = true;
      return;
    case MessageKind::goodbye:
      goodbye_ = true;
      return;
    case MessageKind::fence:
      return take_fence(bytes);
    case MessageKind::map_request:
    case MessageKind::map_grant:
    case MessageKind::map_revoke:
      return take_map_message(static_cast<MessageKind>(head.kind), bytes);
    default:
      return protocol_error(Error(ErrorCode::internal, "a message of unknown kind " + std::to_string(head.kind)));
  }
}

/// The process may have been stopped in the middle of a progress call, with messages still to come in it.
bool Peer::stalled() {
  const std::uint64_t now_ns = shared_.now_ns();
  if (now_ns - alive_ns_ > options_.lease_ns) {
    protocol_error(lease_error(now_ns - alive_ns_));
    return true;
  }
  alive_ns_ = now_ns;
  return false;
}

Error Peer::lease_error(std::uint64_t pause_ns) const {
  return {ErrorCode::peer_lost, text() + ": this process made no progress for " + milliseconds(pause_ns) + ", its lease is " +
                                    milliseconds(options_.lease_ns) + "; nothing that was queued is applied"};
}

void Peer::take_hello(std::span<const std::uint8_t> bytes) {
  if (bytes.size() != sizeof(HelloMessage)) return protocol_error(Error(ErrorCode::internal, "a malformed hello"));
  const auto hello = read_struct<HelloMessage>(bytes.data());
  if (hello.instance != remote_->instance) {
    return protocol_error(Error(ErrorCode::stale, ErrorClass::reconnect, "a hello of instance " + std::to_string(hello.instance) + ", the peer is instance " +
                                                                           std::to_string(remote_->instance)));
  }
  hello_taken_ = true;
  HelloMessage answer{};
  answer.instance = shared_.instance;
  send(MessageKind::hello_answer, answer);
}

void Peer::take_ack(std::span<const std::uint8_t> bytes) {
  if (bytes.size() != sizeof(AckMessage) || sender_ == nullptr) return protocol_error(Error(ErrorCode::internal, "an acknowledgement out of place"));
  if (auto taken = sender_->on_ack(read_struct<AckMessage>(bytes.data())); !taken) protocol_error(std::move(taken.error()));
}

void Peer::take_refused(std::span<const std::uint8_t> bytes) {
  if (bytes.size() != sizeof(RefusedMessage) || sender_ == nullptr) return protocol_error(Error(ErrorCode::internal, "a refusal out of place"));
  const auto refused = read_struct<RefusedMessage>(bytes.data());
  const auto code = static_cast<ErrorCode>(refused.code);
  if (code < ErrorCode::invalid_argument || code > ErrorCode::cannot_promise) return protocol_error(Error(ErrorCode::internal, "a refusal without a cause"));
  const std::string text(refused.text, strnlen(refused.text, sizeof(refused.text)));
  initiator_.on_refused(refused.sequence, code, text);
  sender_->on_refused();
}

/// What the target half owes the other side. Refusals go first, the acknowledgement counts them.
void Peer::send_replies() {
  if (!target_.ack_due()) return;  // every refusal makes one due
  for (const Target::Refusal& refusal : target_.refusals()) {
    RefusedMessage message{};
    message.sequence = refusal.sequence;
    message.code = static_cast<std::int32_t>(refusal.code);
    message.entry_index = refusal.entry_index;
    std::memcpy(message.text, refusal.text.data(), std::min(refusal.text.size(), sizeof(message.text) - 1));
    send(MessageKind::refused, message);
  }
  target_.refusals().clear();
  if (link()->control_backlog() < kControlBacklogMax) send(MessageKind::ack, target_.take_ack());
}

// ---- progress -----------------------------------------------------------------------------------------------------------------------------------

bool Peer::move_messages(std::uint64_t now_ns) {
  bool worked = false;
  // A host that does not poll pushes back: what arrives stays with UCX, and the other side's window fills.
  if (target_.events_waiting() < kTargetEventsMax) worked = link()->progress();
  if (!worked && writer_ != nullptr && writer_->owner_closed()) goodbye_ = true;
  if (heard_) last_heard_ns_ = now_ns;
  heard_ = false;
  if (link()->connected()) send_replies();
  return worked;
}

bool Peer::progress(std::uint64_t now_ns) {
  alive_ns_ = now_ns;
  if (state_ == KVFERRY_PEER_CREATED || state_ == KVFERRY_PEER_FAILED || state_ == KVFERRY_PEER_CLOSED) return false;
  if (state_ == KVFERRY_PEER_CLOSING && !draining_) return finish_close(now_ns);
  bool worked = false;
  if (link()->connected()) worked = move_messages(now_ns);
  const std::optional<Error> failure = protocol_error_ ? protocol_error_ : link()->failure();
  if (failure) {
    lose(failure->within(text()));
    return true;
  }
  if (state_ == KVFERRY_PEER_CONNECTING) {
    if (step_connecting(now_ns)) return true;
    const bool probed = hello_taken_ && answer_taken_;
    if (!probed && goodbye_) return lose_to_goodbye();
    if (!probed) return worked;
    become_up();
  }
  worked = initiator_.step(now_ns) || worked;
  if (link()->failure()) {
    lose(link()->failure()->within(text()));
    return true;
  }
  if (goodbye_) return lose_to_goodbye();
  if (state_ == KVFERRY_PEER_CLOSING) worked = step_closing(now_ns) || worked;
  if (writer_ != nullptr && !worked && state_ == KVFERRY_PEER_UP && initiator_.idle()) worked = populate_mappings();
  return worked;
}

bool Peer::lose_to_goodbye() {
  lose(Error(ErrorCode::peer_lost, text() + ": the other side closed the connection"));
  return true;
}

void Peer::process_ended(std::uint64_t now_ns) {
  if (links_closed_ || (state_ != KVFERRY_PEER_CONNECTING && state_ != KVFERRY_PEER_UP && state_ != KVFERRY_PEER_CLOSING)) return;
  if (link()->connected() && sender_ != nullptr) {  // what it acknowledged before it ended is done
    (void)link()->progress();
    (void)initiator_.step(now_ns);
  }
  lose(Error(ErrorCode::peer_lost, text() + ": process " + std::to_string(remote_->identity.process) + " has ended"));
}

bool Peer::arm(std::uint64_t now_ns) {
  if (state_ == KVFERRY_PEER_CREATED || state_ == KVFERRY_PEER_FAILED || state_ == KVFERRY_PEER_CLOSED) return true;
  if (state_ == KVFERRY_PEER_CLOSING && !draining_) return links_closed_ && proof_deadline_ns_ != 0;
  if (!link()->connected()) return true;  // the reachability test's sockets wake us
  if (target_.events_waiting() >= kTargetEventsMax) return true;  // polling comes first
  bool idle = !initiator_.wants_progress() && !target_.ack_due();
  if (idle) {
    auto armed = link()->arm();
    idle = armed && *armed;
  }
  if (idle) {
    busy_since_ns_ = 0;
    return true;
  }
  // UCX stays "busy" for as long as a frozen neighbour takes nothing from shared memory; a core is too much for that.
  if (busy_since_ns_ == 0) busy_since_ns_ = now_ns;
  return now_ns - busy_since_ns_ >= kSpinMaxNs;
}

// ---- the end ------------------------------------------------------------------------------------------------------------------------------------

void Peer::push_event(std::uint32_t kind, const Error* error) {
  Event event;
  event.kind = kind;
  event.peer = options_.id;
  if (error != nullptr) event.error = std::make_unique<Error>(*error);
  shared_.events.push(std::move(event));
}

/// The worker goes first: from there on nothing lands by message and nothing is read. A writer of mapped memory enters no further chunk. Then every batch
/// ends.
void Peer::stop_everything() {
  initiator_.use(nullptr);
  drop_link(shm_link_);
  drop_link(tcp_link_);
  sender_.reset();
  writer_.reset();
  for (RemoteRegion& region : remote_regions_.all()) region.mapping.reset();
  if (owner_ != nullptr) owner_->close();
  if (owner_ != nullptr && owner_->active() && open_proof_.owner == nullptr) open_proof_ = {owner_, owner_->busy()};
}

/// Then PEER_LOST; or on with closing, if we were.
void Peer::lose(Error error) {
  if (link() != nullptr && link()->connected() && !link()->failure() && !goodbye_) send(MessageKind::goodbye, GoodbyeMessage{});
  stop_everything();
  if (error.code != ErrorCode::peer_lost) error = Error(ErrorCode::peer_lost, ErrorClass::reconnect, error.text);
  last_error_ = error;
  initiator_.end_everything(error);
  if (state_ == KVFERRY_PEER_CLOSING) {
    draining_ = false;
    links_closed_ = true;
    return;
  }
  state_ = KVFERRY_PEER_FAILED;
  push_event(KVFERRY_EVENT_PEER_LOST, &error);
}

void Peer::drop_for_lease(std::uint64_t pause_ns) {
  if (links_closed_ || (state_ != KVFERRY_PEER_CONNECTING && state_ != KVFERRY_PEER_UP && state_ != KVFERRY_PEER_CLOSING)) return;
  lose(lease_error(pause_ns));
}

void Peer::close(std::uint32_t mode, std::uint64_t deadline_ns) {
  if (state_ == KVFERRY_PEER_CLOSED) return;
  const bool live = state_ == KVFERRY_PEER_UP || (state_ == KVFERRY_PEER_CLOSING && draining_);
  if (state_ != KVFERRY_PEER_CLOSING || (live && close_deadline_ns_ == 0)) close_deadline_ns_ = deadline_ns;
  draining_ = live && mode == KVFERRY_CLOSE_DRAIN;
  state_ = KVFERRY_PEER_CLOSING;
}

bool Peer::step_closing(std::uint64_t now_ns) {
  const bool late = close_deadline_ns_ != 0 && now_ns >= close_deadline_ns_;
  if (!late && (!initiator_.idle() || link()->control_backlog() != 0 || target_.ack_due())) return false;
  draining_ = false;
  return finish_close(now_ns);
}

void Peer::close_links() {
  deaf_ = links_closed_ = true;
  if (link() != nullptr && link()->connected()) {
    if (!link()->failure() && !goodbye_) send(MessageKind::goodbye, GoodbyeMessage{});
    (void)link()->progress();
    link()->begin_close();
    for (int round = 0; round < kCloseRoundsMax && !link()->close_finished(); ++round) (void)link()->progress();
  }
  stop_everything();
  initiator_.end_everything(Error(ErrorCode::canceled, text() + " was closed with the batch in flight"));
}

/// True: something happened. Waits for a writer that is in the middle of a chunk, until the deadline; then what cannot be promised is said.
bool Peer::finish_close(std::uint64_t now_ns) {
  const bool first = !links_closed_ || proof_deadline_ns_ == 0;
  if (!links_closed_) close_links();
  if (first) proof_deadline_ns_ = close_deadline_ns_ != 0 ? std::max(close_deadline_ns_, now_ns) : now_ns + kProofWaitNs;
  for (int spin = 0; spin < kProofSpins && !open_proof_.done(); ++spin) std::this_thread::yield();
  if (open_proof_.done() || now_ns >= proof_deadline_ns_) {
    report_closed();
    return true;
  }
  return first;
}

void Peer::report_closed() {
  state_ = KVFERRY_PEER_CLOSED;
  if (open_proof_.done()) {
    open_proof_ = {};
    if (guard_ != nullptr) shared_.wake.remove(guard_->fd());
    return push_event(KVFERRY_EVENT_PEER_CLOSED, nullptr);
  }
  const Error error(ErrorCode::cannot_promise, text() + " is closed, but process " + std::to_string(remote_->identity.process) +
                                                   " stands still in the middle of a copy into memory from allocate; it may still land");
  push_event(KVFERRY_EVENT_PEER_CLOSED, &error);
}

void Peer::abandon() {
  if (state_ != KVFERRY_PEER_CLOSED && !links_closed_) close_links();
}

kvferry_peer_info Peer::info() const {
  kvferry_peer_info info{};
  info.state = state_;
  info.batches_in_flight = initiator_.batches_in_flight();
  info.bytes_in_flight = initiator_.bytes_in_flight();
  info.last_heard_ns = last_heard_ns_;
  const auto copy = [](char* out, std::size_t capacity, const std::string& from) { std::memcpy(out, from.data(), std::min(from.size(), capacity - 1)); };
  for (const RemoteRegion& region : remote_regions_.all()) info.mapped_regions += region.mapping.address() != nullptr ? 1 : 0;
  if (link() != nullptr) copy(info.lane, sizeof(info.lane), info.mapped_regions > 0 ? "mapped" : to_string(link()->lane()));
  copy(info.detail, sizeof(info.detail), description_);
  info.last_error.struct_size = sizeof(info.last_error);
  if (last_error_) {
    info.last_error.code = static_cast<std::int32_t>(last_error_->code);
    info.last_error.error_class = static_cast<std::int32_t>(last_error_->error_class);
    info.last_error.vendor_status = last_error_->vendor_status;
    info.last_error.sys_errno = last_error_->sys_errno;
    copy(info.last_error.text, sizeof(info.last_error.text), last_error_->text);
  }
  return info;
}

}  // namespace kvferry::ucx
