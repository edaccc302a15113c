/// strict_json.h (internal): JSON text from outside, read so that nothing in it is lost, doubled or guessed.
///
/// A general JSON reader keeps the last of two equal keys and turns an integer beyond 64 bits into a rounded one. Both are silent changes of a
/// layout, so this reader refuses doubled keys with their path, bounds depth and size before it builds anything, and leaves the type of a number to
/// the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kvferry/result.h"

namespace kvferry::strict_json {

struct Limits {
  std::size_t bytes_max = 0;
  std::size_t depth_max = 0;
  bool python_constants = false;  ///< NaN, Infinity and -Infinity as Python's json module writes them: read as null
};

/// One JSON value and nothing after it. Errors name the path, or the line and column.
Result<nlohmann::json> parse(std::string_view text, const Limits& limits);

/// The value as JSON text for a message, shortened in the middle of long ones.
std::string show(const nlohmann::json& value);
std::string show_text(std::string_view value);

}  // namespace kvferry::strict_json
