// What moves the batches of a WriteQueue: the one interface above lanes that emulate RMA (scatter_sender.h) and lanes that have it.
//
// A sender numbers what it sends. A batch knows the first and the last of its numbers; it is delivered when everything up to its last is, and only then.
// A lane with real RMA (rc) numbers its puts, counts a number as delivered when the flush behind it is complete and the endpoint has not failed, and sends
// notifications as messages after that.
#pragma once

#include <cstdint>

#include "kvferry/backend_abi.h"
#include "write_queue.h"

namespace kvferry::ucx {

/// What a sender asks of the owner of the queue.
class QueueOwner {
 public:
  /// The batch announces success although an earlier one of its room has failed: fail it instead of sending it. True: done, it has ended.
  virtual bool withhold(std::uint64_t batch) = 0;
  /// First sequence of the oldest batch whose failure would withhold this one's notification.
  virtual std::uint64_t since_sequence(std::uint64_t batch) = 0;
  /// First sequence of the oldest batch that is still of interest.
  virtual std::uint64_t oldest_sequence() = 0;

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
  /// Everything up to this sequence is delivered (or was refused, which the owner was told before).
  virtual std::uint64_t delivered() const noexcept = 0;
  /// The batch that these belong to has failed: what of them has not left yet does not leave, and its source is read no more if that can be helped.
  virtual void give_up(std::uint64_t first_sequence, std::uint64_t last_sequence) = 0;
  /// Memory of the room, or of the region, is still read for what is on its way.
  virtual bool reads_room(std::uint64_t room, std::uint32_t generation) const = 0;
  virtual bool reads_region(kvferry_region region) const = 0;
};

}  // namespace kvferry::ucx
