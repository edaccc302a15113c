/// Texts that come from a peer end in logs, terminals and JSON of the host: they are UTF-8 without control characters, or they are refused.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvferry::session {

/// What is wrong with a text of a message: "is not UTF-8 at byte 3", "has control character 0x1b at byte 3".
std::optional<std::string> text_problem(std::string_view text);

/// Bytes of unknown origin for a message: printable ASCII as it is, the rest as \n, \r or \xNN.
std::string quote_bytes(std::span<const std::uint8_t> bytes);

}  // namespace kvferry::session
