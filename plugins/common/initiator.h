// The initiator's half of a peer: checks and takes batches in, lets the sender send them, ends each with exactly one event.
//
//   submit ─► checked, copied into the queue ─► Sender::pump ─► delivered() passes the batch's last sequence ─► BATCH_DONE
//                                                  └ refused, deadline, cancel, fence, peer lost ─────────────► BATCH_FAILED
//
// A batch that fails makes those behind it that would announce its room's success fail too, until its event was polled.
#pragma once

#include <deque>
#include <set>
#include <string>
#include <vector>

#include "counters.h"
#include "events.h"
#include "fences.h"
#include "region_table.h"
#include "sender.h"

namespace kvferry::plugins {

class Initiator final : public QueueOwner {
 public:
  struct Limits {
    std::uint64_t batches_in_flight = 0;
    std::uint64_t window_bytes = 0;     ///< accepted and not ended
    std::uint64_t write_bytes_max = 0;
    std::uint64_t cancels_max = 0;      ///< canceled rooms that are remembered
    std::uint32_t pieces_per_write_max = 0;
    bool reads = false;
  };
  struct Environment {
    kvferry_peer peer = 0;
    const char* backend_name = "";
    Limits limits;
    const LocalRegions& regions;
    const RemoteRegions& remote_regions;
    EventQueue& events;
    Counters& counters;
    std::uint64_t& control_events;  ///< of the backend: answers not polled yet
  };
  explicit Initiator(const Environment& environment) : env_(environment) {}

  /// From up to lost or closed; the sender must outlive that. Null: nothing is read or sent any more.
  void use(Sender* sender) noexcept { sender_ = sender; }

  /// Accepted writes; *ret_all: the whole batch is in. Error: error.text says why, *ret_object which write.
  struct Accepted {
    std::uint32_t writes = 0;
    bool all = false;
  };
  Result<Accepted> submit(const kvferry_batch& batch, std::uint64_t& ret_object);
  Result<void> cancel(std::uint64_t room, std::uint32_t generation);
  Result<void> flush(std::uint64_t tag);

  /// Sends and ends what can be. True: something happened.
  bool step(std::uint64_t now_ns);
  /// More could be sent at once.
  bool wants_progress() const noexcept { return last_pump_ == Pumped::budget; }

  /// The neighbour refused the message with this sequence.
  void on_refused(std::uint64_t sequence, ErrorCode code, const std::string& text);
  /// The neighbour fenced the room: batches of it with a generation up to this one fail.
  void on_fenced(std::uint64_t room, std::uint32_t generation);
  /// Every open batch fails. Called without a sender: cancels are answered.
  void end_everything(const Error& error);
  /// The event of this batch was polled.
  void polled(std::uint64_t batch);

  bool uses_region(kvferry_region region) const;
  std::uint32_t batches_in_flight() const noexcept { return batches_open_; }
  std::uint64_t bytes_in_flight() const noexcept { return queue_.bytes; }
  bool idle() const noexcept { return batches_open_ == 0; }
  WriteQueue& queue() noexcept { return queue_; }


  bool withhold(std::uint64_t batch) override;
  std::uint64_t since_sequence(std::uint64_t batch) override;
  std::uint64_t oldest_sequence() override;
  void fail_batch(std::uint64_t number, const Error& error) override { end_batch(number, &error); }

 private:
  using Room = std::pair<std::uint64_t, std::uint32_t>;
  struct Flush {
    std::uint64_t before = 0;
    std::uint64_t tag = 0;
  };

  Result<void> check(const kvferry_batch& batch, std::uint64_t& ret_object);
  bool resolve(const kvferry_batch& batch, std::uint32_t index) noexcept;
  Error objection(const kvferry_batch& batch, std::uint32_t index) const;
  Result<void> room_for_answer() const;
  void reserve();
  std::uint32_t take_writes(const kvferry_batch& batch);
  void inherit(Batch& batch, std::uint64_t number);
  void end_batch(std::uint64_t number, const Error* error);
  void deliver();
  void expire(std::uint64_t now_ns);
  void answer_cancels();
  void answer_flushes();
  void reclaim();

  const Environment env_;
  Sender* sender_ = nullptr;
  WriteQueue queue_;
  std::uint64_t delivery_cursor_ = 0;  ///< batches before it have ended
  std::uint32_t batches_open_ = 0;
  std::uint64_t next_deadline_ns_ = 0;  ///< 0: none
  Fences remote_fences_;                ///< of the neighbour, as far as it had to tell
  // Of the batch being submitted, checked.
  std::vector<std::uint64_t> lengths_;
  std::vector<const std::uint8_t*> addresses_;  ///< of its pieces
  std::set<Room> canceled_;
  std::deque<Room> canceled_order_;
  std::vector<Room> cancels_waiting_;  ///< for the sender to stop reading
  std::vector<Flush> flushes_;
  Pumped last_pump_ = Pumped::idle;
};

}  // namespace kvferry::plugins
