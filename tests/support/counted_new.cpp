#include "counted_new.h"

#include <malloc.h>

#include <cstdlib>
#include <limits>
#include <new>

namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

thread_local std::uint64_t allocations = 0;
thread_local std::int64_t held = 0;
thread_local std::uint64_t before_refusal = kNever;
thread_local bool has_refused = false;

void* take(std::size_t size) {
  if (before_refusal == 0) {
    before_refusal = kNever;
    has_refused = true;
    throw std::bad_alloc();
  }
  if (before_refusal != kNever) --before_refusal;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  ++allocations;
  held += static_cast<std::int64_t>(malloc_usable_size(memory));
  return memory;
}

void give(void* memory) noexcept {
  if (memory != nullptr) held -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// The array and nothrow forms of the standard library call these; over-aligned types keep its own.
void* operator new(std::size_t size) { return take(size); }
void operator delete(void* memory) noexcept { give(memory); }
void operator delete(void* memory, std::size_t) noexcept { give(memory); }

namespace kvferry::test {

std::uint64_t allocations_count() noexcept { return allocations; }
std::int64_t bytes_held() noexcept { return held; }

RefuseAllocation::RefuseAllocation(std::uint64_t before) noexcept {
  has_refused = false;
  before_refusal = before;
}
RefuseAllocation::~RefuseAllocation() { before_refusal = kNever; }
bool RefuseAllocation::refused() const noexcept { return has_refused; }

}  // namespace kvferry::test
