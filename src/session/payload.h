/// What the frames of session.h carry: the fields of each message, one after another, little endian (docs/wire-format.md).
///
///   number   fixed width                        text    │ length u32 │ bytes │
///   list     │ count u32 │ elements │           blob    │ length u32 │ bytes │
///
/// No alignment, no padding, no field that is left out: both sides of a version agree on the list.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvferry/session.h"

namespace kvferry::session {

/// Numbers of the frame types. A message's place in the variant never decides its number.
enum class FrameType : std::uint16_t {
  hello = 1,
  ready = 2,
  heartbeat = 3,
  regions_added = 4,
  regions_removed = 5,
  announce = 6,
  abort = 7,
  quiesced = 8,
  goodbye = 9
};

std::uint16_t type_of(const Message& message) noexcept;

/// A type that read_payload takes: one of FrameType, or of the extension range.
bool is_known(std::uint16_t type) noexcept;

/// "hello", ..., "extension", "type 12".
std::string describe_type(std::uint16_t type);

/// The longest payload a frame of this type may announce.
std::uint32_t payload_bytes_max(std::uint16_t type) noexcept;

/// Bytes of the fields. Error: a field, or the whole, beyond its limit.
Result<std::size_t> measure_payload(const Message& message);

/// Appends the fields of a message that was measured. Allocates only where the capacity does not hold them.
void append_payload(const Message& message, std::vector<std::uint8_t>& bytes);

/// Reads the fields of a known type; all bytes must be used up.
Result<Message> read_payload(std::uint16_t type, bool critical, std::span<const std::uint8_t> bytes);

}  // namespace kvferry::session
