// What moves the batches of a WriteQueue: the one interface above lanes that emulate RMA (scatter_sender.h) and lanes that have it.
//
// A sender that sends in order numbers what it sends: a batch knows the first and the last of its numbers and is delivered when everything up to its last
// is. A sender over several queue pairs counts per batch instead (Batch::outstanding), and batches are delivered in any order.
#pragma once

#include <cstdint>

#include "kvferry/backend_abi.h"
#include "kvferry/result.h"
#include "write_queue.h"

namespace kvferry::plugins {

/// What a sender asks of the owner of the queue.
class QueueOwner {
 public:
  /// The batch announces success although an earlier one of its room has failed: fail it instead of sending it. True: done, it has ended.
  virtual bool withhold(std::uint64_t batch) = 0;
  /// First sequence of the oldest batch whose failure would withhold this one's notification.
  virtual std::uint64_t since_sequence(std::uint64_t batch) = 0;
  /// First sequence of the oldest batch that is still of interest.
  virtual std::uint64_t oldest_sequence() = 0;

  /// The batch cannot be sent: it fails with this.
  virtual void fail_batch(std::uint64_t batch, const Error& error) = 0;

 protected:
  ~QueueOwner() = default;
};

enum class Pumped : std::uint8_t {
  idle,     ///< everything is sent
  waiting,  ///< for the neighbour or for UCX; a later progress goes on
  budget,   ///< more could be sent at once, call again
};

class Sender {
 public:
  virtual ~Sender() = default;
  /// Sends from the queue's cursor on as far as it goes without waiting, by a bounded amount.
  virtual Pumped pump(WriteQueue& queue, QueueOwner& owner) = 0;
  /// Everything of the batch is delivered (or was refused, which the owner was told before).
  virtual bool delivered(const Batch& batch) const noexcept = 0;
  /// A batch is never delivered before one that was submitted earlier.
  virtual bool in_order() const noexcept = 0;
  /// The batch, of which something was sent, has failed: what of it has not left yet does not leave, and its source is read no more if that can be helped.
  virtual void give_up(std::uint64_t number, const Batch& batch) = 0;
  /// Memory of the room, or of the region, is still read for what is on its way.
  virtual bool reads_room(std::uint64_t room, std::uint32_t generation) const = 0;
  virtual bool reads_region(kvferry_region region) const = 0;
};

}  // namespace kvferry::plugins
