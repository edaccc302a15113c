#include "frame.h"

#include <boost/crc.hpp>

namespace kvferry::plugins {
namespace {

struct Frame {
  std::uint32_t magic;
  std::uint16_t kind;
  std::uint16_t version;
  std::uint32_t length_bytes;
  std::uint32_t crc;
};
static_assert(sizeof(Frame) == 16);

std::uint32_t crc_of(std::span<const std::uint8_t> body) {
  boost::crc_32_type crc;
  crc.process_bytes(body.data(), body.size());
  return crc.checksum();
}

}  // namespace

void append(std::vector<std::uint8_t>& out, const void* bytes, std::size_t count) {
  if (count == 0) return;
  const auto* first = static_cast<const std::uint8_t*>(bytes);
  out.insert(out.end(), first, first + count);
}

std::vector<std::uint8_t> framed(const FrameKind& kind, const std::vector<std::uint8_t>& body) {
  const Frame frame{kind.magic, kind.kind, kind.version, static_cast<std::uint32_t>(sizeof(Frame) + body.size()), crc_of(body)};
  std::vector<std::uint8_t> out;
  out.reserve(frame.length_bytes);
  append(out, &frame, sizeof(frame));
  append(out, body.data(), body.size());
  return out;
}

Unexpected broken(const FrameKind& kind, const std::string& why) {
  return fail(ErrorCode::invalid_argument, std::string("read ") + kind.what + " blob: " + why);
}

Result<std::span<const std::uint8_t>> unframe(std::span<const std::uint8_t> bytes, const FrameKind& kind) {
  if (bytes.size() < sizeof(Frame)) return broken(kind, std::to_string(bytes.size()) + " bytes are less than a frame");
  const auto frame = read_struct<Frame>(bytes.data());
  if (frame.magic != kind.magic) return broken(kind, std::string("it is not of the ") + kind.backend_name + " backend");
  if (frame.version != kind.version) {
    return fail(ErrorCode::version, std::string("read ") + kind.what + " blob: it has version " + std::to_string(frame.version) + ", this side speaks " +
                                        std::to_string(kind.version));
  }
  if (frame.kind != kind.kind) return broken(kind, "it is of kind " + std::to_string(frame.kind) + ", wanted " + std::to_string(kind.kind));
  if (frame.length_bytes != bytes.size()) {
    return broken(kind, "it says " + std::to_string(frame.length_bytes) + " bytes, there are " + std::to_string(bytes.size()));
  }
  const auto body = bytes.subspan(sizeof(Frame));
  if (crc_of(body) != frame.crc) return broken(kind, "the CRC does not match");
  return body;
}

}  // namespace kvferry::plugins
