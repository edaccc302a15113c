#include "scatter_sender.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "bounds.h"
#include "prefetch.h"

namespace kvferry::ucx {
namespace {

constexpr std::size_t kSlots = 8;                     // messages that may wait inside UCX; more gain nothing, the wire is busy then
constexpr std::uint64_t kPumpBytesMax = 2ull << 20;   // per call: submit and progress stay short
constexpr std::uint64_t kCutBytesMin = 512;           // a longer write is not cut for less than this at the end of a message
constexpr std::uint64_t kChunkBytesMax = 128 * 1024;  // copied between two looks at the owner's epoch
constexpr std::uint32_t kChunkWritesMax = 64;
constexpr std::uint32_t kEntriesMax = 1024;
constexpr std::uint32_t kSourcesMax = 2048;

void append(SendSlot& slot, const void* bytes, std::uint32_t count) {
  std::memcpy(slot.head.data() + slot.head_bytes, bytes, count);
  slot.head_bytes += count;
}

}  // namespace

ScatterSender::ScatterSender(Link& link, const Options& options, RemoteRegionTable& remote_regions, MappedWriter* writer, Counters& counters)
    : link_(link),
      options_(options),
      remote_regions_(remote_regions),
      writer_(writer),
      counters_(counters),
      entries_max_(static_cast<std::uint32_t>(std::min<std::uint64_t>(kEntriesMax, options.message_bytes / sizeof(DataEntry)))),
      slots_(kSlots),
      ack_every_(std::max<std::uint64_t>(1, options.messages_in_flight / 4)),
      entries_upto_(std::bit_ceil(options.messages_in_flight + 1)) {
  for (SendSlot& slot : slots_) {
    slot.head.resize(sizeof(DataHead) + entries_max_ * sizeof(DataEntry) + sizeof(NotificationRecord));
    slot.sources.resize(kSourcesMax + kPiecesPerWriteMax);  // the last entry may take a whole write's pieces
  }
}

SendSlot* ScatterSender::free_slot() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    SendSlot& slot = slots_[(next_slot_ + i) % slots_.size()];
    if (slot.pending) continue;
    next_slot_ = (next_slot_ + i) % slots_.size();
    return &slot;
  }
  return nullptr;
}

bool ScatterSender::can_send() { return sequence_ - delivered_ < options_.messages_in_flight && !link_.failure(); }

void ScatterSender::skip_batch(WriteQueue& queue, const Batch& batch) {
  queue.cursor_write = batch.write_end;
  queue.cursor_piece = batch.piece_end;
  queue.write_gone = queue.piece_gone = 0;
  ++queue.cursor_batch;
}

Pumped ScatterSender::pump(WriteQueue& queue, QueueOwner& owner) {
  budget_ = kPumpBytesMax;
  while (!queue.idle()) {
    Batch& batch = queue.batches[queue.cursor_batch];
    if (batch.ended || owner.withhold(queue.cursor_batch)) {
      skip_batch(queue, batch);
      continue;
    }
    SendSlot* slot = can_send() ? free_slot() : nullptr;
    if (slot == nullptr) return Pumped::waiting;
    begin_message(*slot, batch);
    fill(queue, batch, *slot);
    const bool last = queue.cursor_write == batch.write_end;
    if (entry_count_ == 0 && !last) return stopped_ ? Pumped::waiting : Pumped::budget;
    if (last) ++queue.cursor_batch;
    send(queue, owner, batch, *slot, last);
    if (stopped_) return Pumped::waiting;
    if (budget_ == 0) return queue.idle() ? Pumped::idle : Pumped::budget;
  }
  return Pumped::idle;
}

void ScatterSender::begin_message(SendSlot& slot, const Batch& batch) {
  slot.head_bytes = sizeof(DataHead);
  slot.source_count = 0;
  entry_count_ = 0;
  payload_bytes_ = mapped_bytes_ = 0;
  marked_region_ = 0;
  stopped_ = false;
  room_left_ = options_.message_bytes - sizeof(DataHead) - (batch.notify ? sizeof(NotificationRecord) : 0);
}

void ScatterSender::fill(WriteQueue& queue, const Batch& batch, SendSlot& slot) {
  while (queue.cursor_write != batch.write_end && entry_count_ < entries_max_ && slot.source_count < kSourcesMax && budget_ > 0) {
    const QueuedWrite& write = queue.writes[queue.cursor_write];
    const bool more = mapping_of(write) != nullptr ? copy_mapped(queue, batch, slot) : add_piece(queue, slot, write);
    if (!more) return;
  }
}

void ScatterSender::add_entry(SendSlot& slot, const DataEntry& entry) {
  append(slot, &entry, sizeof(entry));
  ++entry_count_;
  room_left_ -= sizeof(entry);
}

void ScatterSender::finish_write(WriteQueue& queue, const QueuedWrite& write) {
  if (queue.write_gone != write.length) return;
  ++queue.cursor_write;
  queue.write_gone = 0;
}

/// As much of the write as the message takes. False: it is full.
bool ScatterSender::add_piece(WriteQueue& queue, SendSlot& slot, const QueuedWrite& write) {
  const std::uint64_t wanted = write.length - queue.write_gone;
  if (room_left_ < sizeof(DataEntry) + std::min(wanted, entry_count_ == 0 ? 1 : kCutBytesMin)) return false;
  const std::uint64_t length = std::min(wanted, room_left_ - sizeof(DataEntry));
  add_entry(slot, {write.region, write.offset + queue.write_gone, static_cast<std::uint32_t>(length), 0});
  add_sources(queue, slot, length);
  payload_bytes_ += length;
  room_left_ -= length;
  budget_ -= std::min(budget_, length);
  queue.write_gone += length;
  finish_write(queue, write);
  return true;
}

/// Null: its pieces go by message. A room for which the owner has a fence never comes here, its batches have ended.
const RemoteRegion* ScatterSender::mapping_of(const QueuedWrite& write) {
  if (writer_ == nullptr) return nullptr;
  const RemoteRegion* region = remote_regions_.find(write.region);
  const bool inside = region != nullptr && region->mapping.address() != nullptr && write.offset <= region->mapping.length() &&
                      write.length <= region->mapping.length() - write.offset;
  return inside ? region : nullptr;
}

/// One chunk of copies, of as many writes as it takes. False: the message is full, or the owner has stopped us.
bool ScatterSender::copy_mapped(WriteQueue& queue, const Batch& batch, SendSlot& slot) {
  if (!writer_->enter()) {
    stopped_ = true;
    return false;
  }
  bool more = true;
  std::uint64_t chunk_left = std::min(budget_, kChunkBytesMax);
  for (std::uint32_t writes = 0; chunk_left > 0 && writes < kChunkWritesMax && queue.cursor_write != batch.write_end;) {
    const QueuedWrite& write = queue.writes[queue.cursor_write];
    const RemoteRegion* region = mapping_of(write);
    if (region == nullptr) break;
    if (marked_region_ != write.region) {
      more = entry_count_ < entries_max_ && room_left_ >= sizeof(DataEntry);
      if (!more) break;
      add_entry(slot, {write.region, 0, 0, kEntryMapped});
      marked_region_ = write.region;
    }
    const QueuedPiece& piece = queue.pieces[queue.cursor_piece];
    const std::uint64_t length = std::min(chunk_left, piece.length - queue.piece_gone);
    if (queue.cursor_write + 1 != batch.write_end) {
      const QueuedWrite& next = queue.writes[queue.cursor_write + 1];
      prefetch_for_read(queue.pieces[next.first_piece].address, next.length);
      if (next.region == write.region) prefetch_for_write(region->mapping.address() + next.offset, next.length);
    }
    std::memcpy(region->mapping.address() + write.offset + queue.write_gone, piece.address + queue.piece_gone, length);
    queue.piece_gone += length;
    queue.write_gone += length;
    mapped_bytes_ += length;
    chunk_left -= length;
    budget_ -= length;
    if (queue.piece_gone == piece.length) {
      ++queue.cursor_piece;
      queue.piece_gone = 0;
    }
    if (queue.write_gone == write.length) ++writes;
    finish_write(queue, write);
  }
  writer_->leave();
  return more;
}

void ScatterSender::add_sources(WriteQueue& queue, SendSlot& slot, std::uint64_t length) {
  while (length > 0) {
    const QueuedPiece& piece = queue.pieces[queue.cursor_piece];
    const std::uint64_t part = std::min(length, piece.length - queue.piece_gone);
    slot.sources[slot.source_count++] = {piece.address + queue.piece_gone, part, piece.region};
    queue.piece_gone += part;
    length -= part;
    if (queue.piece_gone == piece.length) {
      ++queue.cursor_piece;
      queue.piece_gone = 0;
    }
  }
}

void ScatterSender::send(WriteQueue& queue, QueueOwner& owner, Batch& batch, SendSlot& slot, bool last) {
  DataHead head{};
  head.head.kind = static_cast<std::uint16_t>(MessageKind::data);
  head.head.token = options_.token;
  head.sequence = slot.sequence = ++sequence_;
  head.room = slot.room = batch.room;
  head.generation = slot.generation = batch.generation;
  head.entry_count = entry_count_;
  head.payload_bytes = payload_bytes_;
  head.mapped_bytes = mapped_bytes_;
  if (batch.first_sequence == 0) batch.first_sequence = sequence_;
  head.oldest_sequence = owner.oldest_sequence();
  if (last && batch.notify) {
    head.head.flags |= kDataNotify;
    head.since_sequence = owner.since_sequence(queue.cursor_batch - 1);
    const kvferry_notification& from = batch.notification;
    const NotificationRecord record{from.room,           from.transfer,       from.generation, from.chunk, from.writer.tp_rank,
                                    from.writer.pp_rank, from.status,         from.flags,      from.bytes};
    append(slot, &record, sizeof(record));
    counters_.notifications_sent.add(1);
  }
  if ((last && queue.idle()) || sequence_ % ack_every_ == 0) head.head.flags |= kDataWantsAck;
  slot.total_bytes = slot.head_bytes + payload_bytes_;
  head.head.length_bytes = static_cast<std::uint32_t>(slot.total_bytes);
  std::memcpy(slot.head.data(), &head, sizeof(head));
  entries_sent_ += entry_count_;
  entries_upto_[sequence_ & (entries_upto_.size() - 1)] = entries_sent_;
  batch.last_sequence = sequence_;
  batch.sent = last;
  link_.send_data(slot);
  next_slot_ = (next_slot_ + (slot.pending ? 1 : 0)) % slots_.size();
  counters_.messages_sent.add(1);
}

Result<void> ScatterSender::on_ack(const AckMessage& ack) {
  if (ack.sequence <= newest_ack_.sequence) return {};  // overtaken by a newer one, which says all of it
  if (ack.sequence > sequence_) {
    return fail(ErrorCode::internal, "the peer acknowledged message " + std::to_string(ack.sequence) + ", the newest sent is " + std::to_string(sequence_));
  }
  const std::uint64_t expected = entries_upto_[ack.sequence & (entries_upto_.size() - 1)];
  if (ack.entries_applied + ack.entries_skipped != expected) {
    return fail(ErrorCode::internal, "the peer has " + std::to_string(ack.entries_applied) + " pieces applied and " +
                                         std::to_string(ack.entries_skipped) + " skipped up to message " + std::to_string(ack.sequence) + ", " +
                                         std::to_string(expected) + " were sent");
  }
  newest_ack_ = ack;
  (void)take_ack();
  return {};
}

/// A refusal may come after the acknowledgement that counts it: until then the acknowledgement says nothing.
bool ScatterSender::take_ack() {
  if (newest_ack_.messages_refused > refused_received_) return false;
  delivered_ = std::max(delivered_, newest_ack_.sequence);
  return true;
}

void ScatterSender::give_up(std::uint64_t, const Batch& batch) {
  for (SendSlot& slot : slots_) {
    if (slot.pending && slot.sequence >= batch.first_sequence && slot.sequence <= batch.last_sequence) slot.voided = true;
  }
}

bool ScatterSender::reads_room(std::uint64_t room, std::uint32_t generation) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const SendSlot& slot) {
    return slot.pending && !slot.voided && slot.room == room && slot.generation == generation;
  });
}

bool ScatterSender::reads_region(kvferry_region region) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const SendSlot& slot) {
    const auto end = slot.sources.begin() + slot.source_count;
    return slot.pending && !slot.voided && std::any_of(slot.sources.begin(), end, [&](const SourcePiece& piece) { return piece.region == region; });
  });
}

}  // namespace kvferry::ucx
