// Events on their way to poll, oldest first. A ring that grows when it must, so that nothing is ever dropped and nothing is allocated once it has its size.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kvferry/backend_abi.h"
#include "kvferry/result.h"

namespace kvferry::plugins {

struct Event {
  std::uint32_t kind = KVFERRY_EVENT_NONE;
  std::uint32_t generation = 0;
  kvferry_peer peer = 0;
  std::uint64_t room = 0;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t batch = 0;  ///< its number in the peer's queue, for BATCH_DONE and BATCH_FAILED
  kvferry_notification notification{};
  std::unique_ptr<Error> error;
  std::uint64_t error_object = 0;
};

class EventQueue {
 public:
  EventQueue() : ring_(kFirstCapacity) {}
  bool empty() const noexcept { return next_ == oldest_; }
  std::uint64_t size() const noexcept { return next_ - oldest_; }
  void push(Event event) {
    if (size() == ring_.size()) grow();
    ring_[next_++ & (ring_.size() - 1)] = std::move(event);
  }
  Event pop() { return std::move(ring_[oldest_++ & (ring_.size() - 1)]); }

 private:
  static constexpr std::size_t kFirstCapacity = 256;  // a power of two, as every later one
  void grow() {
    std::vector<Event> larger(ring_.size() * 2);
    const std::uint64_t count = size();
    for (std::uint64_t i = 0; i < count; ++i) larger[i] = pop();
    ring_ = std::move(larger);
    oldest_ = 0;
    next_ = count;
  }
  std::vector<Event> ring_;
  std::uint64_t oldest_ = 0, next_ = 0;
};

}  // namespace kvferry::plugins
