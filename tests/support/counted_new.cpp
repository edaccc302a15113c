#include "counted_new.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVFERRY_TEST_OWN_NEW 0
#endif
#endif
#ifndef KVFERRY_TEST_OWN_NEW
#define KVFERRY_TEST_OWN_NEW 1
#endif

namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

thread_local std::uint64_t allocations = 0;
thread_local std::int64_t held = 0, peak = 0;
thread_local std::uint64_t before_refusal = kNever;
thread_local bool has_refused = false;

#if KVFERRY_TEST_OWN_NEW
void* take(std::size_t size, std::size_t alignment) {
  if (before_refusal == 0) {
    before_refusal = kNever;
    has_refused = true;
    throw std::bad_alloc();
  }
  if (before_refusal != kNever) --before_refusal;
  void* memory = alignment == 0 ? std::malloc(size == 0 ? 1 : size) : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  ++allocations;
  held += static_cast<std::int64_t>(malloc_usable_size(memory));
  peak = std::max(peak, held);
  return memory;
}

void give(void* memory) noexcept {
  if (memory != nullptr) held -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
#endif

}  // namespace

#if KVFERRY_TEST_OWN_NEW
// The array forms of the standard library call these. The nothrow form is here because a sanitizer brings another one.
void* operator new(std::size_t size) { return take(size, 0); }
void* operator new(std::size_t size, std::align_val_t alignment) { return take(size, static_cast<std::size_t>(alignment)); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return take(size, 0);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { give(memory); }
void operator delete(void* memory, std::size_t) noexcept { give(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { give(memory); }
#endif

namespace kvferry::test {

std::uint64_t allocations_count() noexcept { return allocations; }
std::int64_t bytes_held() noexcept { return held; }

AllocationMeter::AllocationMeter() noexcept : bytes_before_(held), allocations_before_(allocations) { peak = held; }
std::size_t AllocationMeter::peak_bytes() const noexcept { return static_cast<std::size_t>(peak - bytes_before_); }
std::size_t AllocationMeter::current_bytes() const noexcept {
  return static_cast<std::size_t>(std::max<std::int64_t>(held - bytes_before_, 0));
}
std::size_t AllocationMeter::allocations_count() const noexcept { return allocations - allocations_before_; }

RefuseAllocation::RefuseAllocation(std::uint64_t before) noexcept {
  has_refused = false;
  before_refusal = before;
}
RefuseAllocation::~RefuseAllocation() { before_refusal = kNever; }
bool RefuseAllocation::refused() const noexcept { return has_refused; }

}  // namespace kvferry::test
