/// operator new of this test program (counted_new.cpp): counts what this thread allocates and can refuse one allocation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvferry::test {

/// Allocations of this thread since the program began.
std::uint64_t allocations_count() noexcept;
/// Bytes this thread holds: allocated minus given back.
std::int64_t bytes_held() noexcept;

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
