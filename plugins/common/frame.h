// The frame of every descriptor that travels over the session:
//
//   | magic | kind | version | whole length | crc32 of everything behind it | body |
//
// Nothing of a body is looked at before its length and CRC are right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kvferry/result.h"

namespace kvferry::plugins {

struct FrameKind {
  std::uint32_t magic;         ///< of the backend
  std::uint16_t kind;
  std::uint16_t version;
  const char* backend_name;
  const char* what;            ///< "an endpoint"
};

std::vector<std::uint8_t> framed(const FrameKind& kind, const std::vector<std::uint8_t>& body);
/// The body.
Result<std::span<const std::uint8_t>> unframe(std::span<const std::uint8_t> bytes, const FrameKind& kind);
/// "read an endpoint blob: <why>".
Unexpected broken(const FrameKind& kind, const std::string& why);

void append(std::vector<std::uint8_t>& out, const void* bytes, std::size_t count);

template <class T>
T read_struct(const void* bytes) noexcept {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

/// The caller has checked that it is there.
template <class T>
T take(std::span<const std::uint8_t>& body) noexcept {
  const T value = read_struct<T>(body.data());
  body = body.subspan(sizeof(T));
  return value;
}

}  // namespace kvferry::plugins
