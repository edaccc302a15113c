#include "target.h"

#include <algorithm>
#include <cstring>

#include "prefetch.h"

namespace kvferry::ucx {
namespace {

constexpr std::size_t kRefusedMax = 65536;  // an initiator that goes on after so many refusals is broken

Unexpected malformed(const std::string& why) { return fail(ErrorCode::internal, "a data message of the peer is malformed: " + why); }

}  // namespace

Result<void> Target::check_layout(const DataHead& head, std::span<const std::uint8_t> bytes, std::uint64_t& ret_payload_offset) const {
  const bool notify = (head.head.flags & kDataNotify) != 0;
  const std::uint64_t payload_offset = sizeof(DataHead) + std::uint64_t{head.entry_count} * sizeof(DataEntry) + (notify ? sizeof(NotificationRecord) : 0);
  if (payload_offset > bytes.size() || bytes.size() - payload_offset != head.payload_bytes) {
    return malformed(std::to_string(bytes.size()) + " bytes for " + std::to_string(head.entry_count) + " entries and a payload of " +
                     std::to_string(head.payload_bytes));
  }
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < head.entry_count; ++i) {
    sum += read_struct<DataEntry>(bytes.data() + sizeof(DataHead) + i * sizeof(DataEntry)).length;
  }
  if (sum != head.payload_bytes) return malformed("its entries add up to " + std::to_string(sum) + ", not " + std::to_string(head.payload_bytes));
  ret_payload_offset = payload_offset;
  return {};
}

/// Every sequence once, and not too far ahead.
Result<void> Target::admit(std::uint64_t sequence) const {
  if (sequence <= done_upto_ || sequence - done_upto_ > kMessagesAheadMax || ahead_.count(sequence) != 0) {
    return malformed("sequence " + std::to_string(sequence) + ", all up to " + std::to_string(done_upto_) + " are done");
  }
  return {};
}

Result<void> Target::on_data(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < sizeof(DataHead)) return malformed(std::to_string(bytes.size()) + " bytes are less than its head");
  const auto head = read_struct<DataHead>(bytes.data());
  std::uint64_t payload_offset = 0;
  if (auto checked = check_layout(head, bytes, payload_offset); !checked) return checked;
  if (auto admitted = admit(head.sequence); !admitted) return admitted;
  env_.counters.messages_received.add(1);
  if ((head.head.flags & kDataWantsAck) != 0) ack_wanted_ = true;
  if (!refused_.empty()) std::erase_if(refused_, [&](const Refused& refused) { return refused.sequence < head.oldest_sequence; });
  if (refused_.size() >= kRefusedMax) return malformed("it follows " + std::to_string(refused_.size()) + " refused ones");
  Applied applied;
  if ((head.head.flags & kDataVoid) != 0) {
    applied.skipped = head.entry_count;
    remember({head.room, head.sequence, head.generation, ErrorCode::canceled});
  } else {
    if ((head.head.flags & kDataNotify) != 0) {
      applied.notify = true;
      applied.since = head.since_sequence;
      applied.record = read_struct<NotificationRecord>(bytes.data() + payload_offset - sizeof(NotificationRecord));
      if (applied.record.room != head.room || applied.record.generation != head.generation) return malformed("its notification is for another room");
    }
    apply(head, bytes.data() + sizeof(DataHead), bytes.data() + payload_offset, applied);
  }
  if (head.sequence != done_upto_ + 1) {
    ahead_.emplace(head.sequence, applied);
    return {};
  }
  settle(head.sequence, applied);
  while (!ahead_.empty() && ahead_.begin()->first == done_upto_ + 1) {
    settle(ahead_.begin()->first, ahead_.begin()->second);
    ahead_.erase(ahead_.begin());
  }
  return {};
}

/// A hint only: the entry is checked when its turn comes.
void Target::prefetch_entry(const DataEntry& entry) const noexcept {
  const Region* region = env_.regions.find(entry.region);
  if (region != nullptr && entry.offset < region->length) prefetch_for_write(region->address + entry.offset, entry.length);
}

/// Why a piece that the guard has stopped may not be written.
std::string Target::objection(const Region* region, const DataEntry& entry) const {
  if (region == nullptr) return "is not registered here (any more)";
  if (region->refuses(env_.peer)) return region->draining ? "is being deregistered" : "is quiesced for this peer";
  if ((region->access & KVFERRY_ACCESS_REMOTE_WRITE) == 0) return "has no remote write access";
  if (entry.offset > region->length || entry.length > region->length - entry.offset) return "has " + std::to_string(region->length) + " bytes";
  return "is named by an entry of unknown form";
}

void Target::apply(const DataHead& head, const std::uint8_t* entries, const std::uint8_t* payload, Applied& applied) {
  if (fenced(head.room, head.generation)) {
    env_.counters.pieces_fenced.add(head.entry_count);
    applied.skipped = head.entry_count;
    applied.refused = true;
    return refuse(head, 0, ErrorCode::fenced, "room " + std::to_string(head.room) + " generation " + std::to_string(head.generation) + " is fenced");
  }
  std::uint64_t bytes_applied = head.mapped_bytes;
  for (std::uint32_t i = 0; i < head.entry_count; ++i) {
    const auto entry = read_struct<DataEntry>(entries + i * sizeof(DataEntry));
    const Region* region = env_.regions.find(entry.region);
    if (i + 1 < head.entry_count) prefetch_entry(read_struct<DataEntry>(entries + (i + 1) * sizeof(DataEntry)));
    const bool good = region != nullptr && !region->refuses(env_.peer) && (region->access & KVFERRY_ACCESS_REMOTE_WRITE) != 0 &&
                      entry.offset <= region->length && entry.length <= region->length - entry.offset &&
                      (entry.flags == 0 || (entry.flags == kEntryMapped && entry.length == 0 && region->allocated()));
    if (!good) {
      env_.counters.pieces_refused.add(1);
      applied.skipped = head.entry_count - i;
      applied.refused = true;
      refuse(head, i, ErrorCode::refused, "the target refused a piece of room " + std::to_string(head.room) + ": offset " + std::to_string(entry.offset) +
                                              ", " + std::to_string(entry.length) + " bytes, region " + std::to_string(entry.region) + " " +
                                              objection(region, entry),
             entry.region);
      break;
    }
    std::memcpy(region->address + entry.offset, payload, entry.length);
    payload += entry.length;
    bytes_applied += entry.length;
    ++applied.entries;
  }
  env_.counters.pieces_applied.add(applied.entries);
  env_.counters.bytes_applied.add(bytes_applied);
}

/// The first refusal of a message: the initiator hears the text, our host gets an event unless the room is fenced.
void Target::refuse(const DataHead& head, std::uint32_t index, ErrorCode code, std::string text, kvferry_region region) {
  remember({head.room, head.sequence, head.generation, code});
  if (code == ErrorCode::refused) {
    Event event;
    event.kind = KVFERRY_EVENT_PIECE_REFUSED;
    event.peer = env_.peer;
    event.room = head.room;
    event.generation = head.generation;
    event.error = std::make_unique<Error>(code, ErrorClass::reregister, text);
    event.error_object = region;
    ++events_waiting_;
    env_.events.push(std::move(event));
  }
  ++messages_refused_;
  ack_wanted_ = true;
  refusals_out_.push_back({head.sequence, code, index, std::move(text)});
}

void Target::remember(const Refused& refused) {
  refused_.push_back(refused);
}

void Target::settle(std::uint64_t sequence, const Applied& applied) {
  entries_applied_ += applied.entries;
  entries_skipped_ += applied.skipped;
  done_upto_ = sequence;
  if (applied.notify && !applied.refused) notify(sequence, applied);
}

/// Everything before it is dealt with; whether it may be delivered depends on how.
void Target::notify(std::uint64_t sequence, const Applied& applied) {
  const NotificationRecord& record = applied.record;
  DataHead head{};
  head.sequence = sequence;
  head.room = record.room;
  head.generation = record.generation;
  const std::string room = "room " + std::to_string(record.room) + " generation " + std::to_string(record.generation);
  if (fenced(record.room, record.generation)) return refuse(head, 0, ErrorCode::fenced, room + " is fenced");
  const auto cause = std::find_if(refused_.begin(), refused_.end(), [&](const Refused& refused) {
    return refused.room == record.room && refused.generation == record.generation && refused.sequence >= applied.since && refused.sequence < sequence;
  });
  if (record.status == KVFERRY_OK && cause != refused_.end()) {
    ++messages_refused_;
    ack_wanted_ = true;
    refusals_out_.push_back({sequence, cause->code, 0, "notification withheld: it announces " + room + " as complete, an earlier batch of it failed"});
    return;
  }
  Event event;
  event.kind = KVFERRY_EVENT_NOTIFICATION;
  event.peer = env_.peer;
  event.room = record.room;
  event.generation = record.generation;
  event.bytes = record.bytes;
  event.notification = {record.room, record.transfer, record.generation, record.chunk, {record.tp_rank, record.pp_rank}, record.status, record.flags,
                        record.bytes};
  ++events_waiting_;
  env_.counters.notifications_received.add(1);
  env_.events.push(std::move(event));
}

AckMessage Target::take_ack() noexcept {
  AckMessage ack{};
  ack.sequence = acked_ = done_upto_;
  ack.entries_applied = entries_applied_;
  ack.entries_skipped = entries_skipped_;
  ack.messages_refused = messages_refused_;
  ack_wanted_ = false;
  return ack;
}

}  // namespace kvferry::ucx
