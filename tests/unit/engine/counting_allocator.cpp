// Counts what this program allocates; the tests are one thread. A file of its own, so that the compiler does not see through the pairs.
#include <cstdint>
#include <cstdlib>
#include <new>

std::uint64_t allocations = 0;

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
