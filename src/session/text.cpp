#include "text.h"

#include <boost/locale/utf.hpp>

#include "kvferry/session.h"

namespace kvferry::session {
namespace {

namespace utf = boost::locale::utf;

constexpr std::string_view kHexDigits = "0123456789abcdef";

/// C0 and C1: both can start a terminal's escape sequence.
bool is_control(utf::code_point point) { return point < 0x20 || (point >= 0x7f && point < 0xa0); }

std::string hex_byte(std::uint8_t byte) { return {kHexDigits[byte >> 4], kHexDigits[byte & 0xf]}; }

}  // namespace

std::optional<std::string> text_problem(std::string_view text) {
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    const auto offset = std::to_string(at - text.data());
    const utf::code_point point = utf::utf_traits<char>::decode(at, end);
    if (point == utf::illegal || point == utf::incomplete) return "is not UTF-8 at byte " + offset;
    if (is_control(point)) return "has control character 0x" + hex_byte(static_cast<std::uint8_t>(point)) + " at byte " + offset;
  }
  return std::nullopt;
}

std::string quote_bytes(std::span<const std::uint8_t> bytes) {
  std::string text = "\"";
  for (const std::uint8_t byte : bytes) {
    if (byte == '\n') text += "\\n";
    else if (byte == '\r') text += "\\r";
    else if (byte == '"' || byte == '\\') (text += '\\') += static_cast<char>(byte);
    else if (byte >= 0x20 && byte < 0x7f) text += static_cast<char>(byte);
    else text += "\\x" + hex_byte(byte);
  }
  return text + "\"";
}

std::string fit_text(std::string_view text) {
  constexpr std::string_view kCut = " ...";
  std::string fitted;
  std::size_t fitted_before_cut = 0;  // bytes of whole characters that leave room for kCut
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    const char* const begin = at;
    const utf::code_point point = utf::utf_traits<char>::decode(at, end);
    if (point == utf::illegal || point == utf::incomplete) {
      at = begin + 1;
      fitted += '?';
    } else if (is_control(point)) {
      fitted += ' ';
    } else {
      fitted.append(begin, at);
    }
    if (fitted.size() <= kTextBytesMax - kCut.size()) fitted_before_cut = fitted.size();
    if (fitted.size() > kTextBytesMax) {
      fitted.resize(fitted_before_cut);
      return fitted.append(kCut);
    }
  }
  return fitted;
}

}  // namespace kvferry::session
