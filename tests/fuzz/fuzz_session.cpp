// Control messages from anybody: bytes → messages → bytes → messages gives the same, or a clean error, however the stream is cut.
//
//   input │ mode │ piece length │ ...
//           0: the rest is the stream as it comes from the network
//           1: the rest is a type (2 bytes) and a payload; the frame around it is made here, so that the checks do not hide the fields
//
// Seeds: corpus/session, the tables of docs/wire-format.md. Also called with damaged samples by the unit tests, in builds without a fuzzer.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "../unit/session/frames.h"
#include "kvferry/session.h"

namespace {

using kvferry::session::Decoder;
using kvferry::session::Message;

[[noreturn]] void broken() { std::abort(); }

/// Feeds in pieces of one length; the messages before the first error.
kvferry::test::Decoded decode_in_pieces(std::span<const std::uint8_t> bytes, std::size_t piece_bytes) {
  Decoder decoder;
  kvferry::test::Decoded decoded;
  while (!bytes.empty() && !decoded.error) {
    const auto piece = bytes.first(std::min(piece_bytes, bytes.size()));
    bytes = bytes.subspan(piece.size());
    if (!decoder.feed(piece)) broken();  // only an error before may refuse bytes
    kvferry::test::take_all(decoder, decoded);
  }
  return decoded;
}

void check_stream(std::span<const std::uint8_t> stream, std::size_t piece_bytes) {
  const auto decoded = decode_in_pieces(stream, piece_bytes);
  const auto at_once = kvferry::test::decode(stream);
  if (decoded.messages != at_once.messages || decoded.error.has_value() != at_once.error.has_value()) broken();
  if (decoded.error && decoded.error->text.empty()) broken();

  std::vector<std::uint8_t> again;
  std::uint64_t sequence = 0;
  for (const Message& message : decoded.messages) {
    if (!kvferry::session::encode(message, sequence++, again)) broken();
  }
  if (again.size() > stream.size()) broken();  // a message never says more than its bytes
  const auto reread = kvferry::test::decode(again);
  if (reread.error || reread.messages != decoded.messages) broken();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::uint8_t mode = data[0];
  const std::size_t piece_bytes = std::size_t{data[1]} + 1;
  const std::span<const std::uint8_t> rest(data + 2, size - 2);
  if (mode % 2 == 0) {
    check_stream(rest, piece_bytes);
  } else if (rest.size() >= 2) {
    const auto type = static_cast<std::uint16_t>(rest[0] | (rest[1] << 8));
    check_stream(kvferry::test::make_frame({.type = type}, rest.subspan(2)), piece_bytes);
  }
  return 0;
}
