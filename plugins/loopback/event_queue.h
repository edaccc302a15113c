// Events that wait to be polled, oldest first. A ring that grows and never shrinks: in steady state a push allocates nothing. Its length is bounded
// by those who push: batches by their slots, target events and answers by their limits, the rest by the number of peers.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "failure.h"

namespace loopback {

struct Event {
  std::uint32_t kind = KVFERRY_EVENT_NONE;
  kvferry_peer peer = 0;
  std::uint64_t room = 0;
  std::uint32_t generation = 0;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  kvferry_notification notification{};
  std::optional<Failure> failure;
  std::uint64_t sequence = 0;  ///< of the batch's slot, for its terminal events
};

class EventQueue {
 public:
  bool empty() const noexcept { return count_ == 0; }
  void push(Event event) {
    if (count_ == ring_.size()) grow();
    ring_[(first_ + count_++) % ring_.size()] = std::move(event);
  }
  Event pop() {
    Event event = std::move(ring_[first_]);
    first_ = (first_ + 1) % ring_.size();
    --count_;
    return event;
  }

 private:
  static constexpr std::size_t kFirstCapacity = 64;
  void grow() {
    std::vector<Event> larger(ring_.empty() ? kFirstCapacity : ring_.size() * 2);
    for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move(ring_[(first_ + i) % ring_.size()]);
    ring_ = std::move(larger);
    first_ = 0;
  }
  std::vector<Event> ring_;
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace loopback
