/// kvferry/session.h: the control messages of two engines and their bytes (docs/wire-format.md).
///
///   ┌───────┬─────────┬──────┬───────┬────────┬──────────┬─────────────┬────────────┐
///   │ magic │ version │ type │ flags │ length │ sequence │ payload crc │ header crc │ payload (length bytes)
///   └───────┴─────────┴──────┴───────┴────────┴──────────┴─────────────┴────────────┘
///
/// Pure: bytes in, messages out. Every length is checked against a named limit before anything is allocated; a bad byte is an error that names the
/// field, its value and the limit, never a crash. The engine core owns the protocol (who sends what when, heartbeats, leases); the TCP shell moves the
/// bytes (tcp_links.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvferry/backend_abi.h"
#include "kvferry/pool.h"
#include "kvferry/result.h"

namespace kvferry::session {

inline constexpr std::uint16_t kProtocolVersion = 1;     ///< newest spoken
inline constexpr std::uint16_t kProtocolVersionMin = 1;  ///< oldest spoken
inline constexpr std::uint32_t kFrameHeaderBytes = 32;
inline constexpr std::uint32_t kPayloadBytesMax = 64u << 20;
inline constexpr std::uint32_t kTextBytesMax = 4096;          ///< names, causes: UTF-8 without control characters
inline constexpr std::uint32_t kPoolTextBytesMax = 32u << 20;
inline constexpr std::uint32_t kBlobBytesMax = 16u << 20;     ///< endpoint and region blobs
inline constexpr std::uint32_t kRegionsMax = 1u << 20;
inline constexpr std::uint32_t kIndicesMax = 8u << 20;        ///< per list

inline constexpr std::uint16_t kExtensionTypeFirst = 0x8000;
inline constexpr std::uint16_t kExtensionTagMax = 0x7fff;

/// Random per engine instance: a restarted peer has another one.
using EngineId = std::array<std::uint8_t, 16>;
std::string to_string(const EngineId& id);  ///< 32 hex digits

/// One registered region as the peer may address it.
struct RegionInfo {
  kvferry_region id = 0;
  std::uint64_t address = 0, length = 0;  ///< the owner's address space
  std::uint32_t purpose = KVFERRY_PURPOSE_KV;
  std::uint32_t memory_kind = KVFERRY_MEMORY_HOST;
  friend bool operator==(const RegionInfo&, const RegionInfo&) = default;
};

/// First message of both sides.
struct Hello {
  std::uint16_t version_min = kProtocolVersionMin, version_max = kProtocolVersion;
  EngineId engine{};
  std::string name;        ///< for messages: "prefill tp0 pp1"
  std::string session_id;  ///< "ip:port" this engine listens on; empty: does not listen
  std::string backend;     ///< "ucx"; must be equal on both sides
  std::string lane;        ///< asked for: "auto", ...
  kvferry_writer writer{};
  std::uint64_t heartbeat_interval_ns = 0, lease_ns = 0;
  std::optional<std::string> pool;  ///< pool file text; absent: layout-free
  std::uint64_t layout_digest = 0, ratios_digest = 0;
  std::uint64_t regions_generation = 0;
  std::vector<RegionInfo> regions;         ///< remote-accessible ones
  std::vector<std::uint8_t> region_blob;   ///< kvferry_backend_table.export_regions
  std::vector<std::uint8_t> endpoint;      ///< kvferry_backend_table.peer_export
  friend bool operator==(const Hello& a, const Hello& b);
};

/// The hello was read and fits; the sender's backend peer is up.
struct Ready {
  std::string lane;  ///< really in use
  friend bool operator==(const Ready&, const Ready&) = default;
};

struct Heartbeat {
  std::uint64_t count = 0;
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

struct RegionsAdded {
  std::uint64_t generation = 0;  ///< of the sender's table after this change
  std::vector<RegionInfo> regions;
  std::vector<std::uint8_t> blob;
  friend bool operator==(const RegionsAdded&, const RegionsAdded&) = default;
};
struct RegionsRemoved {
  std::uint64_t generation = 0;
  std::vector<kvferry_region> regions;
  friend bool operator==(const RegionsRemoved&, const RegionsRemoved&) = default;
};

/// Target to writer: where the room's indices go. At most 4 bytes per index on the wire.
struct Announce {
  std::uint64_t room = 0;
  std::uint32_t generation = 0;
  std::uint64_t deadline_ms = 0;  ///< left when sent; 0: none
  std::array<std::vector<std::uint32_t>, kIndexSpacesCount> indices;
  friend bool operator==(const Announce&, const Announce&) = default;
};

/// Either direction: the room and generation ended here with this cause.
struct Abort {
  std::uint64_t room = 0;
  std::uint32_t generation = 0;
  std::int32_t code = 0;  ///< ErrorCode
  std::string text;
  friend bool operator==(const Abort&, const Abort&) = default;
};

/// Writer to target: nothing of the room and generation leaves this side any more.
struct Quiesced {
  std::uint64_t room = 0;
  std::uint32_t generation = 0;
  friend bool operator==(const Quiesced&, const Quiesced&) = default;
};

/// The connection ends with this cause (0: a planned end). Sent instead of Hello or Ready when the peer is refused.
struct Goodbye {
  std::int32_t code = 0;
  std::string text;
  friend bool operator==(const Goodbye&, const Goodbye&) = default;
};

/// Tagged range for later messages. Unknown ones are skipped unless critical: the receiver of the message decides what it knows.
struct Extension {
  std::uint16_t tag = 0;  ///< up to kExtensionTagMax; the frame type is kExtensionTypeFirst + tag
  bool critical = false;
  std::vector<std::uint8_t> bytes;
  friend bool operator==(const Extension&, const Extension&) = default;
};

using Message = std::variant<Hello, Ready, Heartbeat, RegionsAdded, RegionsRemoved, Announce, Abort, Quiesced, Goodbye, Extension>;
std::string_view name_of(const Message& message) noexcept;  ///< "hello", ...

/// The newest version both sides speak. Error `version` with both ranges.
Result<std::uint16_t> negotiate_version(const Hello& theirs);

/// The text as a message may carry it: a byte that is not UTF-8 becomes '?', a control character a blank, and what is longer than kTextBytesMax ends in
/// " ...". For causes, whose length nobody can foresee; names beyond the limit are errors instead.
std::string fit_text(std::string_view text);

/// Appends one frame. Errors: a field beyond its limit; then nothing was appended.
Result<void> encode(const Message& message, std::uint64_t sequence, std::vector<std::uint8_t>& ret_bytes);

/// Feeds on any cut of the byte stream, at a cost linear in its bytes. Call `next` after each `feed` until it is empty: what is held is then less than one
/// frame, and never more than a small factor of what really arrived, whatever a header announces.
class Decoder {
 public:
  /// Takes bytes in. Errors are final for the connection.
  Result<void> feed(std::span<const std::uint8_t> bytes);
  /// Next whole message, if there is one. A bad header is an error as soon as the bytes that show it are in.
  Result<std::optional<Message>> next();

  /// Frames of unknown type without the critical flag, passed over.
  std::uint64_t skipped_count() const noexcept { return skipped_count_; }
  /// Bytes held that belong to no message given out yet.
  std::size_t buffered_bytes() const noexcept { return buffer_.size() - begin_; }

 private:
  struct Header {
    std::uint16_t type = 0;
    bool critical = false;
    std::uint32_t length_bytes = 0;
    std::uint32_t payload_crc = 0;
  };
  Result<std::optional<Message>> parse_next();
  Result<bool> read_header();  ///< false: not all of it is here
  void drop_frame();

  std::vector<std::uint8_t> buffer_;
  std::size_t begin_ = 0;
  std::uint64_t expected_sequence_ = 0;
  std::optional<Header> header_;  ///< of the frame at begin_
  std::optional<Error> failed_;
  std::uint64_t skipped_count_ = 0;
};

}  // namespace kvferry::session
