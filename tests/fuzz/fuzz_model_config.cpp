// Any bytes as a config.json: a clean error, or a model whose pool is laid out or refused without a crash. libFuzzer (clang).

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvferry/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto model = kvferry::parse_model_config(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!model) {
    if (model.error().text.empty() || model.error().code == kvferry::ErrorCode::internal) __builtin_trap();
    return 0;
  }
  for (const std::uint32_t page_size : {64u, 256u}) {
    kvferry::PoolOptions options;
    options.page_size = page_size;
    options.dtype = kvferry::DType::bf16;
    options.draft_layers = 1;
    const auto pool = kvferry::build_whole_pool(*model, options);
    if (pool && !kvferry::validate(*pool)) __builtin_trap();
  }
  return 0;
}
