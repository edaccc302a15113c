// Any bytes as a pool file: a clean error, or a pool that is written and read back as itself. libFuzzer (clang).

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvferry/pool_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto pool = kvferry::parse_pool_file(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!pool) {
    if (pool.error().text.empty() || pool.error().code == kvferry::ErrorCode::internal) __builtin_trap();
    return 0;
  }
  const auto again = kvferry::parse_pool_file(kvferry::write_pool_file(*pool));
  if (!again || *again != *pool || kvferry::layout_digest(*again) != kvferry::layout_digest(*pool)) __builtin_trap();
  return 0;
}
