/// The operator new of a test program that links counted_new: counts what each thread allocates and can refuse one allocation.
///
/// Not with clang's thread sanitizer, whose runtime brings an operator new of its own: there every count stays 0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvferry::test {

/// Allocations of this thread since the program began.
std::uint64_t allocations_count() noexcept;
/// Bytes this thread holds: allocated minus given back. Memory may be given back by another thread, so it may be negative.
std::int64_t bytes_held() noexcept;

/// What this thread allocates from the meter's beginning on; one meter at a time.
class AllocationMeter {
 public:
  AllocationMeter() noexcept;
  std::size_t peak_bytes() const noexcept;     ///< above what was held at the beginning
  std::size_t current_bytes() const noexcept;  ///< 0 where less is held than at the beginning
  std::size_t allocations_count() const noexcept;

 private:
  std::int64_t bytes_before_;
  std::uint64_t allocations_before_;
};

/// The allocation after `before` more throws std::bad_alloc, once. The destructor takes the order back.
class RefuseAllocation {
 public:
  explicit RefuseAllocation(std::uint64_t before) noexcept;
  ~RefuseAllocation();
  RefuseAllocation(const RefuseAllocation&) = delete;
  RefuseAllocation& operator=(const RefuseAllocation&) = delete;
  bool refused() const noexcept;
};

}  // namespace kvferry::test
