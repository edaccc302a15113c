/// How messages of the planner name a range of memory.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>

namespace kvferry::plan_detail {

/// "0x7f1c00000000"
inline std::string hex(std::uint64_t value) {
  char digits[16];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value, 16).ptr;
  return "0x" + std::string(digits, end);
}

/// "4096 bytes at 0x7f1c00000000"
inline std::string range_text(std::uint64_t address, std::uint64_t length) { return std::to_string(length) + " bytes at " + hex(address); }

}  // namespace kvferry::plan_detail
