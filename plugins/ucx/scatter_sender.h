// Sends batches as scatter messages: many pieces to a message, packed by UCX straight from the source into its own buffer, applied by the neighbour's guard.
//
//   write  |-------- 300 KiB --------|    |1 KiB| |1 KiB| |1 KiB|
//   message [head|1 entry |  15 KiB  ] ... [head|3 entries| 1 KiB | 1 KiB | 1 KiB]
//
// A message stays within one fragment of the lane (a longer one is five times slower over TCP and ends the target in an assertion over shared memory), so
// long writes are cut. The number of messages that are not acknowledged is bounded; acknowledgements are cumulative and come when the queue runs dry, and
// four times per window.
//
// Where the neighbour has granted a mapping of a region, its pieces are copied there by us instead; the message then carries a marker for the region.
#pragma once

#include <string>
#include <vector>

#include "../common/counters.h"
#include "kvferry/result.h"
#include "link.h"
#include "mapped_lane.h"
#include "../common/sender.h"

namespace kvferry::ucx {

using namespace plugins;

class ScatterSender final : public Sender {
 public:
  struct Options {
    std::uint64_t token = 0;  ///< of the neighbour
    std::uint64_t message_bytes = 0;
    std::uint64_t messages_in_flight = 0;
  };
  /// `writer` may be null: nothing is mapped.
  ScatterSender(Link& link, const Options& options, RemoteRegionTable& remote_regions, MappedWriter* writer, Counters& counters);

  Pumped pump(WriteQueue& queue, QueueOwner& owner) override;
  bool delivered(const Batch& batch) const noexcept override { return batch.last_sequence <= delivered_; }
  bool in_order() const noexcept override { return true; }
  void give_up(std::uint64_t number, const Batch& batch) override;
  bool reads_room(std::uint64_t room, std::uint32_t generation) const override;
  bool reads_region(kvferry_region region) const override;

  /// Error: the neighbour counts differently than we do; nothing it says can be believed.
  Result<void> on_ack(const AckMessage& ack);
  void on_refused() { ++refused_received_; (void)take_ack(); }
  std::uint64_t sent() const noexcept { return sequence_; }

 private:
  SendSlot* free_slot();
  bool can_send();
  void skip_batch(WriteQueue& queue, const Batch& batch);
  void fill(WriteQueue& queue, const Batch& batch, SendSlot& slot);
  void begin_message(SendSlot& slot, const Batch& batch);
  bool add_piece(WriteQueue& queue, SendSlot& slot, const QueuedWrite& write);
  const RemoteRegion* mapping_of(const QueuedWrite& write);
  bool copy_mapped(WriteQueue& queue, const Batch& batch, SendSlot& slot);
  void add_entry(SendSlot& slot, const DataEntry& entry);
  static void finish_write(WriteQueue& queue, const QueuedWrite& write);
  void add_sources(WriteQueue& queue, SendSlot& slot, std::uint64_t length);
  void send(WriteQueue& queue, QueueOwner& owner, Batch& batch, SendSlot& slot, bool last);
  bool take_ack();

  Link& link_;
  const Options options_;
  RemoteRegionTable& remote_regions_;
  MappedWriter* const writer_;
  Counters& counters_;
  const std::uint32_t entries_max_;
  std::vector<SendSlot> slots_;
  std::size_t next_slot_ = 0;
  std::uint64_t sequence_ = 0;   ///< of the newest message
  std::uint64_t delivered_ = 0;
  std::uint64_t ack_every_;
  std::vector<std::uint64_t> entries_upto_;  ///< per message in flight: entries sent up to and with it
  std::uint64_t entries_sent_ = 0;
  // Of the message being filled.
  std::uint32_t entry_count_ = 0;
  std::uint64_t payload_bytes_ = 0;
  std::uint64_t room_left_ = 0;
  std::uint64_t mapped_bytes_ = 0;
  kvferry_region marked_region_ = 0;
  bool stopped_ = false;  ///< by the owner of mapped memory
  std::uint64_t budget_ = 0;
  std::uint64_t refused_received_ = 0;
  AckMessage newest_ack_{};  ///< waits while a refusal it counts has not arrived
};

}  // namespace kvferry::ucx
