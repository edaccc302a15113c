/// kvferry/pool_file.h: pools as JSON text (docs/pool-file.md). Schema "kvferry-pool", version 1.
#pragma once

#include <string>
#include <string_view>

#include "kvferry/pool.h"

namespace kvferry {

inline constexpr std::uint32_t kPoolFileVersion = 1;

/// Pretty-printed, stable order; parse_pool_file(write_pool_file(p)) == p.
std::string write_pool_file(const Pool& pool);

/// Errors name the JSON path, the value and what was expected. Unknown keys are errors. The result is validated (pool.h).
/// Layout exchange between engines uses the same text.
Result<Pool> parse_pool_file(std::string_view text);

}  // namespace kvferry
