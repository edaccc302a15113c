/// concatenate.h: one string from text and whole numbers, for messages.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvferry {

inline void append_part(std::string& text, std::string_view part) { text += part; }

template <std::integral Number>
void append_part(std::string& text, Number number) {
  static_assert(sizeof(Number) >= sizeof(std::uint32_t), "a char or bool is not a number in a message");
  text += std::to_string(number);
}

template <class... Parts>
std::string concatenate(const Parts&... parts) {
  std::string text;
  (append_part(text, parts), ...);
  return text;
}

/// "[16, 32)".
inline std::string range_text(std::uint64_t begin, std::uint64_t end) { return concatenate("[", begin, ", ", end, ")"); }

}  // namespace kvferry
