/// Frames: what lies around the payloads of payload.h.
///
///   0       4         6      8       12       16         24            28           32
///   ┌───────┬─────────┬──────┬───────┬────────┬──────────┬─────────────┬────────────┬─────────
///   │ magic │ version │ type │ flags │ length │ sequence │ payload crc │ header crc │ payload
///   └───────┴─────────┴──────┴───────┴────────┴──────────┴─────────────┴────────────┴─────────
///
/// The header has a check of its own, so that a damaged length is an error at once and not a wait for bytes that nobody sends. Magic and version are
/// looked at first, as soon as their bytes are in: whoever speaks another protocol, or another version of this one, gets that answer and no other.
#include <algorithm>
#include <array>
#include <boost/crc.hpp>
#include <boost/endian/conversion.hpp>
#include <exception>
#include <new>
#include <utility>

#include "kvferry/session.h"
#include "payload.h"
#include "text.h"

namespace kvferry::session {
namespace {

using boost::endian::load_little_u16;
using boost::endian::load_little_u32;
using boost::endian::load_little_u64;
using boost::endian::store_little_u16;
using boost::endian::store_little_u32;
using boost::endian::store_little_u64;

constexpr std::array<std::uint8_t, 4> kMagic = {'K', 'V', 'F', 'W'};
constexpr std::uint32_t kFlagCritical = 1;

// Offsets in the header.
constexpr std::size_t kVersionAt = 4, kTypeAt = 6, kFlagsAt = 8, kLengthAt = 12, kSequenceAt = 16, kPayloadCrcAt = 24, kHeaderCrcAt = 28;
static_assert(kHeaderCrcAt + 4 == kFrameHeaderBytes);

constexpr std::size_t kFirstBytesShown = 16;      // of what is not a peer of ours
constexpr std::size_t kIdleBufferBytes = 64u << 10;  // kept between messages

// With a second version, encode needs the negotiated one; Hello and Goodbye stay in the oldest that the sender speaks.
static_assert(kProtocolVersionMin == kProtocolVersion);

std::uint32_t crc32(std::span<const std::uint8_t> bytes) {
  boost::crc_32_type crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

std::string version_range(std::uint16_t min, std::uint16_t max) {
  return min == max ? std::to_string(min) : std::to_string(min) + " to " + std::to_string(max);
}

/// Another version or another program will not change by trying again.
Error permanent(ErrorCode code, std::string text) { return Error(code, ErrorClass::permanent, std::move(text)); }

Error no_memory(std::string_view what) { return Error(ErrorCode::no_memory, std::string(what) + ": out of memory"); }

std::string describe_frame(std::uint64_t sequence, std::uint16_t type) { return "frame " + std::to_string(sequence) + " (" + describe_type(type) + ")"; }

}  // namespace

std::string to_string(const EngineId& id) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(id.size() * 2);
  for (const std::uint8_t byte : id) (text += kDigits[byte >> 4]) += kDigits[byte & 0xf];
  return text;
}

bool operator==(const Hello& a, const Hello& b) {
  const auto rest = [](const Hello& m) {
    return std::tie(m.version_min, m.version_max, m.engine, m.name, m.session_id, m.backend, m.lane, m.writer.tp_rank, m.writer.pp_rank,
                    m.heartbeat_interval_ns, m.lease_ns, m.pool, m.layout_digest, m.ratios_digest, m.regions_generation, m.regions, m.region_blob,
                    m.endpoint);
  };
  return rest(a) == rest(b);
}

std::string_view name_of(const Message& message) noexcept {
  struct {
    std::string_view operator()(const Hello&) const noexcept { return "hello"; }
    std::string_view operator()(const Ready&) const noexcept { return "ready"; }
    std::string_view operator()(const Heartbeat&) const noexcept { return "heartbeat"; }
    std::string_view operator()(const RegionsAdded&) const noexcept { return "regions_added"; }
    std::string_view operator()(const RegionsRemoved&) const noexcept { return "regions_removed"; }
    std::string_view operator()(const Announce&) const noexcept { return "announce"; }
    std::string_view operator()(const Abort&) const noexcept { return "abort"; }
    std::string_view operator()(const Quiesced&) const noexcept { return "quiesced"; }
    std::string_view operator()(const Goodbye&) const noexcept { return "goodbye"; }
    std::string_view operator()(const Extension&) const noexcept { return "extension"; }
  } name;
  return std::visit(name, message);
}

Result<std::uint16_t> negotiate_version(const Hello& theirs) {
  const std::uint16_t newest = std::min(theirs.version_max, kProtocolVersion);
  if (newest >= theirs.version_min && newest >= kProtocolVersionMin) return newest;
  return fail(permanent(ErrorCode::version, "peer speaks protocol version " + version_range(theirs.version_min, theirs.version_max) +
                                                ", this side " + version_range(kProtocolVersionMin, kProtocolVersion)));
}

Result<void> encode(const Message& message, std::uint64_t sequence, std::vector<std::uint8_t>& ret_bytes) {
  const auto measured = measure_payload(message);
  if (!measured) return fail(measured.error());
  const std::size_t begin = ret_bytes.size(), end = begin + kFrameHeaderBytes + *measured;
  try {
    if (end > ret_bytes.capacity()) ret_bytes.reserve(std::max(end, ret_bytes.capacity() * 2));
  } catch (const std::exception&) {  // bad_alloc, length_error
    return fail(no_memory("encode " + std::to_string(end - begin) + " bytes"));
  }
  ret_bytes.resize(begin + kFrameHeaderBytes);
  append_payload(message, ret_bytes);
  if (ret_bytes.size() != end) {  // never, unless the measure and the writer disagree: then nothing is sent, and the host goes on
    const std::size_t written = ret_bytes.size() - begin - kFrameHeaderBytes;
    ret_bytes.resize(begin);
    return fail(ErrorCode::internal, "encode " + std::string(name_of(message)) + ": measured " + std::to_string(*measured) + " bytes, wrote " + std::to_string(written));
  }
  const auto* extension = std::get_if<Extension>(&message);
  std::uint8_t* const header = ret_bytes.data() + begin;
  const std::span<const std::uint8_t> payload(header + kFrameHeaderBytes, *measured);
  std::copy(kMagic.begin(), kMagic.end(), header);
  store_little_u16(header + kVersionAt, kProtocolVersion);
  store_little_u16(header + kTypeAt, type_of(message));
  store_little_u32(header + kFlagsAt, extension && extension->critical ? kFlagCritical : 0);
  store_little_u32(header + kLengthAt, static_cast<std::uint32_t>(payload.size()));
  store_little_u64(header + kSequenceAt, sequence);
  store_little_u32(header + kPayloadCrcAt, crc32(payload));
  store_little_u32(header + kHeaderCrcAt, crc32({header, kHeaderCrcAt}));
  return {};
}

Result<void> Decoder::feed(std::span<const std::uint8_t> bytes) {
  if (failed_) return fail(*failed_);
  try {
    // What was given out is dropped only when it is at least half of the buffer: each byte is moved at most once on average.
    if (begin_ * 2 >= buffer_.size()) {
      buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(begin_));
      begin_ = 0;
    }
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  } catch (const std::bad_alloc&) {
    failed_ = no_memory("take in " + std::to_string(bytes.size()) + " bytes");
    return fail(*failed_);
  }
  return {};
}

Result<std::optional<Message>> Decoder::next() {
  if (failed_) return fail(*failed_);
  Result<std::optional<Message>> message = std::nullopt;
  try {
    message = parse_next();
  } catch (const std::bad_alloc&) {
    message = fail(no_memory("decode frame " + std::to_string(expected_sequence_)));
  }
  if (!message) failed_ = message.error();
  return message;
}

Result<std::optional<Message>> Decoder::parse_next() {
  for (;;) {
    if (!header_) {
      const auto complete = read_header();
      if (!complete) return fail(complete.error());
      if (!*complete) return std::nullopt;
    }
    if (buffered_bytes() < kFrameHeaderBytes + header_->length_bytes) return std::nullopt;
    const std::span<const std::uint8_t> payload(buffer_.data() + begin_ + kFrameHeaderBytes, header_->length_bytes);
    const std::uint16_t type = header_->type;
    const auto frame = [this, type] { return describe_frame(expected_sequence_, type); };
    if (crc32(payload) != header_->payload_crc) return fail(ErrorCode::io, frame() + ": payload does not match its crc");
    if (is_known(type)) {
      auto message = read_payload(type, header_->critical, payload);
      if (!message) return fail(message.error().within(frame()));
      drop_frame();
      return std::optional<Message>(std::move(*message));
    }
    if (header_->critical) return fail(permanent(ErrorCode::unsupported, frame() + ": unknown type that the peer marks as critical"));
    ++skipped_count_;
    drop_frame();
  }
}

Result<bool> Decoder::read_header() {
  const std::span<const std::uint8_t> bytes(buffer_.data() + begin_, buffered_bytes());
  const std::size_t magic_bytes = std::min(bytes.size(), kMagic.size());
  if (!std::equal(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(magic_bytes), kMagic.begin())) {
    const std::string first = quote_bytes(bytes.first(std::min(bytes.size(), kFirstBytesShown)));
    if (expected_sequence_ == 0) {
      return fail(permanent(ErrorCode::mismatch, "not a kvferry peer: first bytes " + first + " where " + quote_bytes(kMagic) + " was expected"));
    }
    return fail(ErrorCode::io, "frame " + std::to_string(expected_sequence_) + ": no frame starts with " + first);
  }
  if (bytes.size() < kTypeAt) return false;
  const std::uint16_t version = load_little_u16(bytes.data() + kVersionAt);
  if (version < kProtocolVersionMin || version > kProtocolVersion) {
    return fail(permanent(ErrorCode::version, "peer speaks protocol version " + std::to_string(version) + ", this side " +
                                                  version_range(kProtocolVersionMin, kProtocolVersion)));
  }
  if (bytes.size() < kFrameHeaderBytes) return false;
  if (crc32(bytes.first(kHeaderCrcAt)) != load_little_u32(bytes.data() + kHeaderCrcAt)) {
    return fail(ErrorCode::io, "frame " + std::to_string(expected_sequence_) + ": header does not match its crc");
  }
  const std::uint16_t type = load_little_u16(bytes.data() + kTypeAt);
  const std::uint32_t flags = load_little_u32(bytes.data() + kFlagsAt);
  const std::uint32_t length = load_little_u32(bytes.data() + kLengthAt);
  const std::uint64_t sequence = load_little_u64(bytes.data() + kSequenceAt);
  const auto frame = [sequence, type] { return describe_frame(sequence, type); };
  if (sequence != expected_sequence_) {
    return fail(ErrorCode::io, frame() + ": frame " + std::to_string(expected_sequence_) + " was expected; one was lost, repeated or forged");
  }
  if ((flags & ~kFlagCritical) != 0) return fail(ErrorCode::io, frame() + ": unknown flags " + std::to_string(flags));
  if (length > payload_bytes_max(type)) {
    return fail(ErrorCode::out_of_range,
                frame() + ": length " + std::to_string(length) + " exceeds the limit of " + std::to_string(payload_bytes_max(type)));
  }
  header_ = Header{type, (flags & kFlagCritical) != 0, length, load_little_u32(bytes.data() + kPayloadCrcAt)};
  return true;
}

void Decoder::drop_frame() {
  begin_ += kFrameHeaderBytes + header_->length_bytes;
  header_.reset();
  ++expected_sequence_;
  if (begin_ != buffer_.size()) return;
  begin_ = 0;
  buffer_.clear();
  if (buffer_.capacity() > kIdleBufferBytes) std::vector<std::uint8_t>().swap(buffer_);
}

}  // namespace kvferry::session
