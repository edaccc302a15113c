#include "allocation_meter.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVFERRY_TEST_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVFERRY_TEST_SANITIZED
#endif
#endif

#ifdef KVFERRY_TEST_SANITIZED
#include <sanitizer/allocator_interface.h>
#else
#include <malloc.h>
#endif

namespace {

// Memory may be freed by another thread than the one that took it, so one thread's sum may be negative.
thread_local std::ptrdiff_t bytes_held = 0, bytes_peak = 0;
thread_local std::size_t allocations = 0;

void count_taken(std::size_t size) noexcept {
  bytes_held += static_cast<std::ptrdiff_t>(size);
  bytes_peak = std::max(bytes_peak, bytes_held);
  ++allocations;
}

void count_given(std::size_t size) noexcept { bytes_held -= static_cast<std::ptrdiff_t>(size); }

}  // namespace

#ifdef KVFERRY_TEST_SANITIZED

// The sanitizers keep operator new for themselves and call these.
namespace {
void on_malloc(const volatile void*, std::size_t size) { count_taken(size); }
void on_free(const volatile void* memory) {
  if (memory != nullptr) count_given(__sanitizer_get_allocated_size(memory));
}
[[maybe_unused]] const int installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
}  // namespace

#else

namespace {
void* take(std::size_t size, std::size_t alignment) {
  void* memory = alignment == 0 ? std::malloc(size == 0 ? 1 : size) : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  count_taken(malloc_usable_size(memory));
  return memory;
}

void give(void* memory) noexcept {
  if (memory != nullptr) count_given(malloc_usable_size(memory));
  std::free(memory);
}
}  // namespace

// The array and nothrow forms of the standard library call these.
void* operator new(std::size_t size) { return take(size, 0); }
void* operator new(std::size_t size, std::align_val_t alignment) { return take(size, static_cast<std::size_t>(alignment)); }
void operator delete(void* memory) noexcept { give(memory); }
void operator delete(void* memory, std::size_t) noexcept { give(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give(memory); }

#endif

namespace kvferry::test {

AllocationMeter::AllocationMeter() : bytes_before_(bytes_held), allocations_before_(allocations) { bytes_peak = bytes_held; }
std::size_t AllocationMeter::peak_bytes() const { return static_cast<std::size_t>(bytes_peak - bytes_before_); }
std::size_t AllocationMeter::current_bytes() const { return static_cast<std::size_t>(std::max<std::ptrdiff_t>(bytes_held - bytes_before_, 0)); }
std::size_t AllocationMeter::allocations_count() const { return allocations - allocations_before_; }

}  // namespace kvferry::test
