/// Frames made beside the library: the header by hand and a bitwise CRC, so that a test never asks the code under test what is right.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvferry/session.h"

namespace kvferry::test {

using Bytes = std::vector<std::uint8_t>;

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline constexpr std::uint32_t kCritical = 1;

inline std::uint32_t slow_crc32(std::span<const std::uint8_t> bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (const std::uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

inline void put(Bytes& bytes, std::uint64_t value, std::size_t bytes_count) {
  for (std::size_t i = 0; i < bytes_count; ++i) bytes.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

inline void put(Bytes& bytes, std::size_t at, std::uint64_t value, std::size_t bytes_count) {
  for (std::size_t i = 0; i < bytes_count; ++i) bytes[at + i] = static_cast<std::uint8_t>(value >> (8 * i));
}

struct FrameFields {
  std::uint16_t version = 1;
  std::uint16_t type = 0;
  std::uint32_t flags = 0;
  std::uint64_t sequence = 0;
  std::uint32_t length_announced = 0;  ///< 0: the payload's
};

/// A frame whose checks are right, whatever its fields say.
inline Bytes make_frame(const FrameFields& fields, std::span<const std::uint8_t> payload) {
  Bytes frame = {'K', 'V', 'F', 'W'};
  put(frame, fields.version, 2);
  put(frame, fields.type, 2);
  put(frame, fields.flags, 4);
  put(frame, fields.length_announced != 0 ? fields.length_announced : payload.size(), 4);
  put(frame, fields.sequence, 8);
  put(frame, slow_crc32(payload), 4);
  put(frame, slow_crc32(frame), 4);
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

/// The messages of the tables in docs/wire-format.md, with their type numbers.
struct Sample {
  std::uint16_t type;
  session::Message message;
};

inline std::vector<Sample> samples() {
  using namespace session;
  Hello hello;
  for (std::size_t i = 0; i < hello.engine.size(); ++i) hello.engine[i] = static_cast<std::uint8_t>(0x10 + i);
  hello.name = "prefill";
  hello.session_id = "[::1]:4000";
  hello.backend = "ucx";
  hello.lane = "auto";
  hello.writer = {3, 1};
  hello.heartbeat_interval_ns = 1'000'000'000;
  hello.lease_ns = 5'000'000'000;
  hello.pool = "{}";
  hello.layout_digest = 0x1122334455667788;
  hello.ratios_digest = 0x99aabbccddeeff00;
  hello.regions_generation = 2;
  hello.regions = {{9, 0x7f0000001000, 4096, KVFERRY_PURPOSE_STATE, KVFERRY_MEMORY_HOST}};
  hello.region_blob = {0xaa, 0xbb};
  hello.endpoint = {1, 2, 3};
  Announce announce;
  announce.room = 77;
  announce.generation = 2;
  announce.deadline_ms = 30000;
  announce.indices = {{{5, 6, 4096}, {}, {0xfffffffe}, {}, {1}}};
  return {
      {1, hello},
      {2, Ready{"shm"}},
      {3, Heartbeat{0x0102030405060708}},
      {4, RegionsAdded{3, {{10, 0x10000, 65536, KVFERRY_PURPOSE_KV, 0}, {11, 0x20000, 64, KVFERRY_PURPOSE_METADATA, KVFERRY_MEMORY_DEVICE}}, {0xcc}}},
      {5, RegionsRemoved{4, {10, 11}}},
      {6, announce},
      {7, Abort{77, 2, 110, "späť"}},
      {8, Quiesced{77, 2}},
      {9, Goodbye{-1, "version"}},
      {0x8000, Extension{0, false, {0xde, 0xad, 0xbe, 0xef}}},
  };
}

/// Everything a decoder says about some bytes.
struct Decoded {
  std::vector<session::Message> messages;
  std::optional<Error> error;
  std::uint64_t skipped = 0;
};

inline void take_all(session::Decoder& decoder, Decoded& decoded) {
  for (;;) {
    auto message = decoder.next();
    if (!message) {
      decoded.error = message.error();
      return;
    }
    if (!*message) break;
    decoded.messages.push_back(std::move(**message));
  }
  decoded.skipped = decoder.skipped_count();
}

inline Decoded decode(std::span<const std::uint8_t> bytes) {
  session::Decoder decoder;
  Decoded decoded;
  if (auto fed = decoder.feed(bytes); !fed) decoded.error = fed.error();
  else take_all(decoder, decoded);
  return decoded;
}

}  // namespace kvferry::test
