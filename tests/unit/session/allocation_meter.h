/// Counts what this thread allocates: the test program replaces the global operator new, or asks the sanitizer's allocator (allocation_meter.cpp).
#pragma once

#include <cstddef>

namespace kvferry::test {

/// Of this thread since the meter began.
class AllocationMeter {
 public:
  AllocationMeter();
  std::size_t peak_bytes() const;     ///< above what was held at the beginning
  std::size_t current_bytes() const;  ///< 0 where less is held than at the beginning
  std::size_t allocations_count() const;

 private:
  std::ptrdiff_t bytes_before_;
  std::size_t allocations_before_;
};

}  // namespace kvferry::test
