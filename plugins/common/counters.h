// What `stats` tells. Written by the backend's thread only, read by any.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvferry::plugins {

class Counter {
 public:
  void add(std::uint64_t amount) noexcept { value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed); }
  void set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct Counters {
  Counter peers, regions, batches_submitted, batches_done, batches_failed, writes, pieces, bytes, messages_sent, messages_received, pieces_applied,
      bytes_applied, pieces_refused, pieces_fenced, notifications_sent, notifications_received, progress_calls;
};

}  // namespace kvferry::plugins
