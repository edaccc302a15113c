#include <catch2/catch.hpp>
#include <functional>
#include <rapidcheck.h>

#include "support/counted_new.h"
#include "frames.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace kvferry::test {
namespace {

using namespace session;

Bytes encoded(const Message& message, std::uint64_t sequence = 0) {
  Bytes bytes;
  const auto result = encode(message, sequence, bytes);
  if (!result) FAIL(result.error().text);
  return bytes;
}

Bytes payload_of(const Message& message) {
  Bytes frame = encoded(message);
  return {frame.begin() + kFrameHeaderBytes, frame.end()};
}

std::string text_of(const Decoded& decoded) { return decoded.error ? decoded.error->text : "no error"; }

// ---- round trips

TEST_CASE("every message survives the round trip, also several in one stream") {
  Bytes stream;
  std::vector<Message> sent;
  for (const Sample& sample : samples()) {
    REQUIRE(encode(sample.message, sent.size(), stream));
    sent.push_back(sample.message);
  }
  const Decoded decoded = decode(stream);
  CHECK(text_of(decoded) == "no error");
  CHECK(decoded.messages == sent);
}

TEST_CASE("a message with nothing in it survives the round trip") {
  const std::vector<Message> empty = {Hello{}, Ready{}, Heartbeat{}, RegionsAdded{}, RegionsRemoved{}, Announce{}, Abort{}, Quiesced{}, Goodbye{}, Extension{}};
  for (const Message& message : empty) CHECK(decode(encoded(message)).messages == std::vector<Message>{message});
}

TEST_CASE("a layout-free hello and one with an empty pool text are different things") {
  Hello hello;
  CHECK_FALSE(std::get<Hello>(decode(encoded(hello)).messages.at(0)).pool.has_value());
  hello.pool = "";
  CHECK(std::get<Hello>(decode(encoded(hello)).messages.at(0)).pool == "");
}

TEST_CASE("an announcement takes at most four bytes per index") {
  Announce announce;
  for (std::uint32_t page = 0; page < 15000; ++page) announce.indices[0].push_back(page * 3);
  CHECK(encoded(announce).size() == kFrameHeaderBytes + 24 + kIndexSpacesCount * 4 + 15000 * 4);
}

rc::Gen<std::string> any_text() {
  return rc::gen::map(rc::gen::container<std::string>(rc::gen::inRange<char>(0x20, 0x7f)), [](std::string text) { return text + "é"; });
}

template <class Number>
rc::Gen<std::vector<Number>> any_list() {
  return rc::gen::container<std::vector<Number>>(rc::gen::arbitrary<Number>());
}

rc::Gen<RegionInfo> any_region() {
  return rc::gen::exec([] {
    RegionInfo region;
    region.id = *rc::gen::nonZero<std::uint64_t>();
    region.address = *rc::gen::arbitrary<std::uint64_t>();
    region.length = 1 + *rc::gen::arbitrary<std::uint64_t>() % std::max<std::uint64_t>(~region.address, 1);
    region.purpose = *rc::gen::arbitrary<std::uint32_t>();
    region.memory_kind = *rc::gen::arbitrary<std::uint32_t>();
    if (region.address == ~std::uint64_t{0}) region.address = 0;
    return region;
  });
}

rc::Gen<std::vector<RegionInfo>> any_regions() { return rc::gen::container<std::vector<RegionInfo>>(any_region()); }

Hello any_hello() {
  Hello m;
  m.version_min = *rc::gen::inRange<std::uint16_t>(1, 9);
  m.version_max = *rc::gen::inRange<std::uint16_t>(m.version_min, 0xffff);
  for (auto& byte : m.engine) byte = *rc::gen::arbitrary<std::uint8_t>();
  m.name = *any_text();
  m.session_id = *any_text();
  m.backend = *any_text();
  m.lane = *any_text();
  m.writer = {*rc::gen::arbitrary<std::uint32_t>(), *rc::gen::arbitrary<std::uint32_t>()};
  m.heartbeat_interval_ns = *rc::gen::arbitrary<std::uint64_t>();
  m.lease_ns = *rc::gen::arbitrary<std::uint64_t>();
  if (*rc::gen::arbitrary<bool>()) m.pool = *rc::gen::arbitrary<std::string>();
  m.layout_digest = *rc::gen::arbitrary<std::uint64_t>();
  m.ratios_digest = *rc::gen::arbitrary<std::uint64_t>();
  m.regions_generation = *rc::gen::arbitrary<std::uint64_t>();
  m.regions = *any_regions();
  m.region_blob = *any_list<std::uint8_t>();
  m.endpoint = *any_list<std::uint8_t>();
  return m;
}

rc::Gen<Message> any_message() {
  return rc::gen::exec([]() -> Message {
    const auto u64 = [] { return *rc::gen::arbitrary<std::uint64_t>(); };
    const auto u32 = [] { return *rc::gen::arbitrary<std::uint32_t>(); };
    switch (*rc::gen::inRange(0, 10)) {
      case 0: return any_hello();
      case 1: return Ready{*any_text()};
      case 2: return Heartbeat{u64()};
      case 3: return RegionsAdded{u64(), *any_regions(), *any_list<std::uint8_t>()};
      case 4: return RegionsRemoved{u64(), *any_list<std::uint64_t>()};
      case 5: {
        Announce m{u64(), u32(), u64(), {}};
        for (auto& list : m.indices) list = *any_list<std::uint32_t>();
        return m;
      }
      case 6: return Abort{u64(), u32(), *rc::gen::arbitrary<std::int32_t>(), *any_text()};
      case 7: return Quiesced{u64(), u32()};
      case 8: return Goodbye{*rc::gen::arbitrary<std::int32_t>(), *any_text()};
      default: return Extension{*rc::gen::inRange<std::uint16_t>(0, kExtensionTagMax + 1), *rc::gen::arbitrary<bool>(), *any_list<std::uint8_t>()};
    }
  });
}

TEST_CASE("any message survives the round trip") {
  CHECK(rc::check("decode(encode(m)) == m", [] {
    const Message message = *any_message();
    const auto sequence = std::uint64_t{0};
    Bytes bytes;
    const auto result = encode(message, sequence, bytes);
    RC_ASSERT(result.has_value());
    const Decoded decoded = decode(bytes);
    RC_ASSERT(!decoded.error.has_value());
    RC_ASSERT(decoded.messages == std::vector<Message>{message});
  }));
}

TEST_CASE("the messages do not depend on how the stream is cut") {
  CHECK(rc::check("any cut of any stream", [] {
    const auto messages = *rc::gen::container<std::vector<Message>>(any_message());
    Bytes stream;
    for (std::size_t i = 0; i < messages.size(); ++i) RC_ASSERT(encode(messages[i], i, stream).has_value());
    Decoder decoder;
    Decoded decoded;
    for (std::size_t at = 0; at < stream.size();) {
      const auto bytes_count = std::min(*rc::gen::inRange<std::size_t>(0, 100), stream.size() - at);
      RC_ASSERT(decoder.feed(std::span(stream).subspan(at, bytes_count)).has_value());
      at += bytes_count;
      if (*rc::gen::arbitrary<bool>()) take_all(decoder, decoded);
    }
    take_all(decoder, decoded);
    RC_ASSERT(!decoded.error.has_value());
    RC_ASSERT(decoded.messages == messages);
    RC_ASSERT(decoder.buffered_bytes() == 0u);
  }));
}

// ---- damage

TEST_CASE("a stream cut short is no message and no error, and goes on with the rest") {
  for (const Sample& sample : samples()) {
    const Bytes frame = encoded(sample.message);
    for (std::size_t cut = 0; cut < frame.size(); ++cut) {
      Decoder decoder;
      Decoded decoded;
      REQUIRE(decoder.feed(std::span(frame).first(cut)));
      take_all(decoder, decoded);
      if (decoded.error || !decoded.messages.empty()) FAIL(name_of(sample.message) << " cut at " << cut << ": " << text_of(decoded));
      REQUIRE(decoder.feed(std::span(frame).subspan(cut)));
      take_all(decoder, decoded);
      if (decoded.messages != std::vector<Message>{sample.message}) FAIL(name_of(sample.message) << " after a cut at " << cut);
    }
  }
}

TEST_CASE("a payload that ends early is an error at every length, and names the message") {
  for (const Sample& sample : samples()) {
    if (sample.type == kExtensionTypeFirst) continue;  // any length is right
    const Bytes payload = payload_of(sample.message);
    for (std::size_t cut = 0; cut < payload.size(); ++cut) {
      const Decoded decoded = decode(make_frame({.type = sample.type}, std::span(payload).first(cut)));
      if (!decoded.error || !decoded.messages.empty()) FAIL(name_of(sample.message) << " of " << cut << " bytes was taken");
      if (!has(text_of(decoded), "frame 0 (" + std::string(name_of(sample.message)) + "): ")) FAIL(text_of(decoded));
      if (decoded.error->code != ErrorCode::io) FAIL(text_of(decoded));
    }
  }
}

TEST_CASE("a payload with bytes left over is an error") {
  for (const Sample& sample : samples()) {
    if (sample.type == kExtensionTypeFirst) continue;
    Bytes payload = payload_of(sample.message);
    payload.push_back(0);
    const Decoded decoded = decode(make_frame({.type = sample.type}, payload));
    INFO(name_of(sample.message) << ": " << text_of(decoded));
    CHECK((has(text_of(decoded), "left over after the last field: 1") || has(text_of(decoded), "exceeds the limit")));
  }
}

TEST_CASE("no single bit of a frame can flip unnoticed") {
  for (const Sample& sample : samples()) {
    const Bytes frame = encoded(sample.message);
    for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
      Bytes damaged = frame;
      damaged[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
      const Decoded decoded = decode(damaged);
      if (!decoded.error || !decoded.messages.empty() || decoded.skipped != 0) FAIL(name_of(sample.message) << " with bit " << bit << " flipped was taken");
    }
  }
}

TEST_CASE("a forged bit with the right checks is an error, or a message that says what its bytes say") {
  for (const Sample& sample : samples()) {
    const Bytes payload = payload_of(sample.message);
    for (std::size_t bit = 0; bit < payload.size() * 8; ++bit) {
      Bytes forged = payload;
      forged[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
      const Bytes frame = make_frame({.type = sample.type}, forged);
      const Decoded decoded = decode(frame);
      if (decoded.error) continue;
      if (decoded.messages.size() != 1 || decoded.messages[0] == sample.message) FAIL(name_of(sample.message) << " with bit " << bit << " forged");
      if (encoded(decoded.messages[0]) != frame) FAIL(name_of(sample.message) << " with bit " << bit << " forged reads as something else");
    }
  }
}

TEST_CASE("a damaged length is an error at once, not a wait for bytes that nobody sends") {
  Bytes frame = encoded(Heartbeat{1});
  frame[13] ^= 1;  // 264 bytes instead of 8
  CHECK(has(text_of(decode(frame)), "header does not match its crc"));
}

TEST_CASE("lost, repeated and foreign frames are errors") {
  const auto check = [](std::vector<std::uint64_t> sequences, std::size_t good, const std::string& expected) {
    Bytes stream;
    for (const std::uint64_t sequence : sequences) REQUIRE(encode(Heartbeat{sequence}, sequence, stream));
    const Decoded decoded = decode(stream);
    CHECK(decoded.messages.size() == good);
    CHECK(has(text_of(decoded), expected));
  };
  check({0, 1, 2}, 3, "no error");
  check({1}, 0, "frame 1 (heartbeat): frame 0 was expected");
  check({0, 1, 1}, 2, "frame 1 (heartbeat): frame 2 was expected");
  check({0, 1, 3}, 2, "frame 3 (heartbeat): frame 2 was expected");
  check({0, 1, 0}, 2, "frame 0 (heartbeat): frame 2 was expected");
  check({~std::uint64_t{0}}, 0, "frame 18446744073709551615 (heartbeat): frame 0 was expected");
}

TEST_CASE("an error is final: no later frame is given out") {
  Decoder decoder;
  Bytes frame = encoded(Heartbeat{1});
  frame.back() ^= 1;
  REQUIRE(decoder.feed(frame));
  const auto first = decoder.next();
  REQUIRE_FALSE(first);
  CHECK(has(first.error().text, "frame 0 (heartbeat): payload does not match its crc"));
  CHECK_FALSE(decoder.feed(encoded(Heartbeat{1})));
  const auto second = decoder.next();
  REQUIRE_FALSE(second);
  CHECK(second.error().text == first.error().text);
}

TEST_CASE("messages before a damaged frame are given out") {
  Bytes stream = encoded(Heartbeat{1});
  stream.push_back('X');
  const Decoded decoded = decode(stream);
  CHECK(decoded.messages.size() == 1);
  CHECK(text_of(decoded) == "frame 1: no frame starts with \"X\"");
}

// ---- other programs, other versions

TEST_CASE("another program is named by its first bytes, as soon as they differ") {
  const auto check = [](std::string_view bytes, const std::string& expected) {
    const Decoded decoded = decode({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
    CHECK(text_of(decoded) == expected);
    if (decoded.error) CHECK(decoded.error->error_class == ErrorClass::permanent);
  };
  check("GET / HTTP/1.1\r\nHost: x\r\n", "not a kvferry peer: first bytes \"GET / HTTP/1.1\\r\\n\" where \"KVFW\" was expected");
  check("G", "not a kvferry peer: first bytes \"G\" where \"KVFW\" was expected");
  check("KVFX", "not a kvferry peer: first bytes \"KVFX\" where \"KVFW\" was expected");
  check(std::string_view("\x16\x03\x01\x00\x1b\"", 6), "not a kvferry peer: first bytes \"\\x16\\x03\\x01\\x00\\x1b\\\"\" where \"KVFW\" was expected");
  check("KV", "no error");
  check("", "no error");
}

TEST_CASE("a frame of another version is an error with both versions, before anything else of it is looked at") {
  for (const std::uint16_t version : {std::uint16_t{0}, std::uint16_t{2}, std::uint16_t{0x4321}}) {
    const Bytes frame = make_frame({.version = version, .type = 3}, payload_of(Heartbeat{1}));
    const Decoded decoded = decode(std::span(frame).first(6));
    CHECK(text_of(decoded) == "peer speaks protocol version " + std::to_string(version) + ", this side 1");
    CHECK(decoded.error->code == ErrorCode::version);
    CHECK(decoded.error->error_class == ErrorClass::permanent);
  }
}

TEST_CASE("versions are negotiated to the newest that both speak, or refused with both ranges") {
  const auto check = [](std::uint16_t min, std::uint16_t max, std::uint16_t expected, const std::string& error) {
    Hello hello;
    hello.version_min = min;
    hello.version_max = max;
    const auto version = negotiate_version(hello);
    if (expected != 0) CHECK(version == expected);
    else CHECK((!version && version.error().text == error && version.error().code == ErrorCode::version));
  };
  check(1, 1, 1, "");
  check(1, 7, 1, "");
  check(2, 7, 0, "peer speaks protocol version 2 to 7, this side 1");
  check(3, 3, 0, "peer speaks protocol version 3, this side 1");
}

TEST_CASE("a hello with an empty version range is an error") {
  for (const auto& [min, max] : {std::pair<std::uint16_t, std::uint16_t>{0, 1}, {2, 1}}) {
    Hello hello;
    hello.version_min = min;
    hello.version_max = max;
    Bytes bytes;
    CHECK_FALSE(encode(hello, 0, bytes));
    Bytes payload = payload_of(Hello{});
    put(payload, 0, min, 2);
    put(payload, 2, max, 2);
    const Decoded decoded = decode(make_frame({.type = 1}, payload));
    CHECK(has(text_of(decoded), "version range " + std::to_string(min) + " to " + std::to_string(max) + " is empty"));
  }
}

TEST_CASE("an unknown type is skipped and counted, unless it is critical") {
  const Bytes unknown_payload = {1, 2, 3};
  Bytes stream = make_frame({.type = 10}, unknown_payload);
  const Bytes unknown = make_frame({.type = 0x7fff, .sequence = 1}, {});
  stream.insert(stream.end(), unknown.begin(), unknown.end());
  REQUIRE(encode(Heartbeat{1}, 2, stream));
  Decoded decoded = decode(stream);
  CHECK(text_of(decoded) == "no error");
  CHECK(decoded.messages == std::vector<Message>{Heartbeat{1}});
  CHECK(decoded.skipped == 2);

  for (const std::uint16_t type : {std::uint16_t{0}, std::uint16_t{10}}) {
    decoded = decode(make_frame({.type = type, .flags = kCritical}, unknown_payload));
    CHECK(text_of(decoded) == "frame 0 (type " + std::to_string(type) + "): unknown type that the peer marks as critical");
    CHECK(decoded.error->code == ErrorCode::unsupported);
  }
}

TEST_CASE("extensions carry their tag and their critical flag to whoever may know them") {
  for (const bool critical : {false, true}) {
    for (const std::uint16_t tag : {std::uint16_t{0}, std::uint16_t{1}, kExtensionTagMax}) {
      const Message message = Extension{tag, critical, {7}};
      CHECK(encoded(message) == make_frame({.type = static_cast<std::uint16_t>(0x8000 + tag), .flags = critical ? kCritical : 0}, Bytes{7}));
      CHECK(decode(encoded(message)).messages == std::vector<Message>{message});
    }
  }
  Bytes bytes;
  const auto refused = encode(Extension{0x8000, false, {}}, 0, bytes);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().text == "extension tag 32768 exceeds the limit of 32767");
}

TEST_CASE("flags that this version does not know are an error") {
  for (std::uint32_t bit = 1; bit < 32; ++bit) {
    CHECK(has(text_of(decode(make_frame({.type = 3, .flags = 1u << bit}, payload_of(Heartbeat{1})))), "unknown flags"));
  }
  CHECK(decode(make_frame({.type = 3, .flags = kCritical}, payload_of(Heartbeat{1}))).messages.size() == 1);
}

// ---- limits

TEST_CASE("a sender refuses what is beyond a limit, names field and limit, and appends nothing") {
  const auto check = [](const Message& message, const std::string& expected) {
    Bytes bytes = {1, 2};
    const auto result = encode(message, 0, bytes);
    INFO(expected);
    REQUIRE_FALSE(result);
    CHECK(result.error().text == expected);
    CHECK(bytes == Bytes{1, 2});
  };
  Hello hello;
  hello.name.assign(kTextBytesMax + 1, 'n');
  check(hello, "hello: name length 4097 exceeds the limit of 4096");
  hello = {};
  hello.pool = std::string(kPoolTextBytesMax + 1, ' ');
  check(hello, "hello: pool length 33554433 exceeds the limit of 33554432");
  hello = {};
  hello.endpoint.resize(kBlobBytesMax + 1);
  check(hello, "hello: endpoint length 16777217 exceeds the limit of 16777216");
  hello = {};
  hello.pool = std::string(kPoolTextBytesMax, ' ');
  hello.endpoint.resize(kBlobBytesMax);
  hello.region_blob.resize(kBlobBytesMax);
  check(hello, "hello payload length 67108968 exceeds the limit of 67108864");
  check(RegionsRemoved{1, std::vector<kvferry_region>(kRegionsMax + 1, 1)}, "regions_removed: region count 1048577 exceeds the limit of 1048576");
  check(RegionsAdded{1, std::vector<RegionInfo>(kRegionsMax + 1), {}}, "regions_added: region count 1048577 exceeds the limit of 1048576");
  Announce announce;
  announce.indices[2].resize(kIndicesMax + 1);
  check(announce, "announce: index count 8388609 exceeds the limit of 8388608");
  check(Extension{1, false, Bytes(kBlobBytesMax + 1)}, "extension length 16777217 exceeds the limit of 16777216");
  check(RegionsAdded{1, {{0, 4096, 1, 0, 0}}, {}}, "regions_added: region 0 at 0x1000, 1 bytes, has id 0");
  check(RegionsAdded{1, {{7, 4096, 0, 0, 0}}, {}}, "regions_added: region 7 at 0x1000, 0 bytes, is empty");
  check(RegionsAdded{1, {{7, ~std::uint64_t{0}, 1, 0, 0}}, {}}, "regions_added: region 7 at 0xffffffffffffffff, 1 bytes, wraps around the address space");
  check(Abort{1, 1, 1, "a\x1b[31m"}, "abort: text has control character 0x1b at byte 1");
  check(Abort{1, 1, 1, "a\xc2\x9b"}, "abort: text has control character 0x9b at byte 1");
  check(Abort{1, 1, 1, "ab\xff"}, "abort: text is not UTF-8 at byte 2");
}

TEST_CASE("fields at their limits pass") {
  Announce announce;
  announce.indices[4].assign(kIndicesMax, 0xabcdef01u);
  CHECK(decode(encoded(announce)).messages.at(0) == Message(announce));
  CHECK(decode(encoded(Ready{std::string(kTextBytesMax, 'x')})).messages.size() == 1);
  CHECK(decode(encoded(RegionsAdded{1, std::vector<RegionInfo>(kRegionsMax, RegionInfo{1, 1, 1, 0, 0}), Bytes(kBlobBytesMax)})).messages.size() == 1);
  CHECK(decode(encoded(RegionsRemoved{1, std::vector<kvferry_region>(kRegionsMax, 3)})).messages.size() == 1);
  CHECK(decode(encoded(Extension{1, false, Bytes(kBlobBytesMax)})).messages.size() == 1);
}

TEST_CASE("a text of a peer is UTF-8 without control characters, or refused") {
  const auto check = [](const std::string& text, const std::string& expected) {
    Bytes payload;
    put(payload, text.size(), 4);
    payload.insert(payload.end(), text.begin(), text.end());
    CHECK(text_of(decode(make_frame({.type = 2}, payload))) == (expected.empty() ? "no error" : "frame 0 (ready): ready: lane " + expected));
  };
  check("", "");
  check("grüße 你好 \xf0\x9f\x9a\xa2", "");
  check("a\nb", "has control character 0x0a at byte 1");
  check(std::string("a\0b", 3), "has control character 0x00 at byte 1");
  check("\x7f", "has control character 0x7f at byte 0");
  check("\xc0\xaf", "is not UTF-8 at byte 0");          // '/' in two bytes
  check("\xed\xa0\x80", "is not UTF-8 at byte 0");      // half of a surrogate pair
  check("\xf4\x90\x80\x80", "is not UTF-8 at byte 0");  // beyond U+10FFFF
  check("ok\xe4\xbd", "is not UTF-8 at byte 2");        // cut off
}

TEST_CASE("any cause can be made to fit, and what is cut says so") {
  const auto check = [](const std::string& text, const std::string& expected) {
    CHECK(fit_text(text) == expected);
    Bytes bytes;
    CHECK(encode(Abort{1, 1, 1, fit_text(text)}, 0, bytes));
  };
  check("", "");
  check("connect to [::1]:4000: connection refused", "connect to [::1]:4000: connection refused");
  check("two\nlines\x1b", "two lines ");
  check("caf\xe9, \xe4\xbd", "caf?, ??");
  check(std::string(4096, 'x'), std::string(4096, 'x'));
  check(std::string(4097, 'x'), std::string(4092, 'x') + " ...");
  check(std::string(4091, 'x') + "é and more", std::string(4091, 'x') + " ...");  // no half character
  check(std::string(1 << 20, '\xff'), std::string(4092, '?') + " ...");
}

TEST_CASE("a header that announces too much is refused before any payload") {
  const auto check = [](std::uint16_t type, std::uint32_t length, const std::string& expected) {
    const AllocationMeter meter;
    const Bytes header = make_frame({.type = type, .length_announced = length}, {});
    Decoder decoder;
    Decoded decoded;
    REQUIRE(decoder.feed(header));
    take_all(decoder, decoded);
    CHECK(text_of(decoded) == expected);
    CHECK(meter.peak_bytes() < 4096);
  };
  check(1, 3221225472u, "frame 0 (hello): length 3221225472 exceeds the limit of 67108864");
  check(1, 67108865, "frame 0 (hello): length 67108865 exceeds the limit of 67108864");
  check(1, 67108864, "no error");
  check(3, 9, "frame 0 (heartbeat): length 9 exceeds the limit of 8");
  check(7, 4117, "frame 0 (abort): length 4117 exceeds the limit of 4116");
  check(8, 13, "frame 0 (quiesced): length 13 exceeds the limit of 12");
  check(9, 4105, "frame 0 (goodbye): length 4105 exceeds the limit of 4104");
  check(2, 4101, "frame 0 (ready): length 4101 exceeds the limit of 4100");
  check(5, (8u << 20) + 13, "frame 0 (regions_removed): length 8388621 exceeds the limit of 8388620");
  check(4, (48u << 20) + 17, "frame 0 (regions_added): length 50331665 exceeds the limit of 50331664");
  check(0x8001, (16u << 20) + 1, "frame 0 (extension 1): length 16777217 exceeds the limit of 16777216");
  check(77, 0xffffffffu, "frame 0 (type 77): length 4294967295 exceeds the limit of 67108864");
}

TEST_CASE("the allocation meter counts") {
  const AllocationMeter meter;
  void* const memory = ::operator new(100'000);  // a plain call: the compiler may leave out a new expression
  CHECK(meter.current_bytes() >= 100'000);
  CHECK(meter.allocations_count() >= 1);
  ::operator delete(memory);
  CHECK(meter.current_bytes() < 100'000);
  CHECK(meter.peak_bytes() >= 100'000);
}

TEST_CASE("memory follows the bytes that arrived, not the length announced") {
  const Bytes header = make_frame({.type = 6, .length_announced = kPayloadBytesMax}, {});
  const AllocationMeter meter;
  Decoder decoder;
  REQUIRE(decoder.feed(header));
  REQUIRE(decoder.next());
  CHECK(meter.peak_bytes() < 1024);
  const Bytes chunk(64u << 10);
  for (std::size_t arrived = chunk.size(); arrived <= (4u << 20); arrived += chunk.size()) {
    REQUIRE(decoder.feed(chunk));
    const auto message = decoder.next();
    REQUIRE((message && !*message));
    if (meter.peak_bytes() > 3 * (arrived + header.size()) + 1024) FAIL(meter.peak_bytes() << " bytes taken for " << arrived);
  }
}

TEST_CASE("a count is refused before anything is allocated for it") {
  // Every place of a count in the samples, and what is written over it.
  const auto check = [](const Message& message, std::size_t at, std::uint32_t count, const std::string& expected) {
    Bytes payload = payload_of(message);
    put(payload, at, count, 4);
    const std::uint16_t type = static_cast<std::uint16_t>(message.index() + 1);
    const Bytes frame = make_frame({.type = type}, payload);
    const AllocationMeter meter;
    const Decoded decoded = decode(frame);
    INFO(text_of(decoded));
    CHECK(has(text_of(decoded), expected));
    CHECK(meter.peak_bytes() < 4096);
  };
  const auto all = samples();
  const Message &hello = all[0].message, &added = all[3].message, &removed = all[4].message, &announce = all[5].message;
  constexpr std::uint32_t kHuge = 0xffffffffu;
  check(hello, 68, kHuge, "hello: name length 4294967295 exceeds the limit of 4096");
  check(hello, 68, 4096, "hello: name of 4096 bytes where 95 bytes of the payload are left");
  check(hello, 108, 2, "hello: pool presence is 2, not 0 or 1");
  check(hello, 112, kHuge, "hello: pool length 4294967295 exceeds the limit of 33554432");
  check(hello, 112, kPoolTextBytesMax, "hello: pool of 33554432 bytes where");
  check(hello, 118, kHuge, "hello: region count 4294967295 exceeds the limit of 1048576");
  check(hello, 118, kRegionsMax, "hello: region of 33554432 bytes where");
  check(hello, 118, 2, "hello: region of 64 bytes where");
  check(added, 8, kRegionsMax, "regions_added: region of 33554432 bytes where");
  check(removed, 8, kRegionsMax, "regions_removed: region of 8388608 bytes where 16 bytes of the payload are left");
  check(removed, 8, kHuge, "regions_removed: region count 4294967295 exceeds the limit of 1048576");
  check(announce, 20, 6, "announce: index space count 6 where this version has 5");
  check(announce, 20, kHuge, "announce: index space count 4294967295 where this version has 5");
  check(announce, 24, kHuge, "announce: index count 4294967295 exceeds the limit of 8388608");
  check(announce, 24, kIndicesMax, "announce: index of 33554432 bytes where");
  check(announce, 24, 0x40000001u, "exceeds the limit");  // times four wraps around 32 bits
}

TEST_CASE("bytes one at a time cost no more allocations than all at once, and the buffer goes with the message") {
  Announce announce;
  announce.indices[0].assign(1u << 20, 7);
  const Bytes stream = encoded(announce);
  const AllocationMeter meter;
  {
    Decoder decoder;
    Decoded decoded;
    for (const std::uint8_t byte : stream) {
      REQUIRE_FALSE(!decoder.feed({&byte, 1}));
      take_all(decoder, decoded);
    }
    REQUIRE(decoded.messages.size() == 1);
    CHECK(meter.allocations_count() < 100);
    decoded.messages.clear();
    CHECK(meter.current_bytes() < (128u << 10));
    CHECK(decoder.buffered_bytes() == 0);
  }
  CHECK(meter.current_bytes() == 0);
}

TEST_CASE("a long backlog is worked off at a cost linear in its bytes") {
  // No clock: a decoder that moves the rest of the backlog with each message would take hours.
  constexpr std::uint64_t kMessages = 400'000;
  Bytes stream;
  for (std::uint64_t i = 0; i < kMessages; ++i) REQUIRE_FALSE(!encode(Heartbeat{i}, i, stream));
  Decoder decoder;
  REQUIRE(decoder.feed(stream));
  const AllocationMeter meter;
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    auto message = decoder.next();
    if (!message || !*message || **message != Message(Heartbeat{i})) FAIL("message " << i);
    if (!decoder.feed({})) FAIL("feed " << i);
  }
  CHECK(meter.allocations_count() == 0);
  CHECK(decoder.buffered_bytes() == 0);
}

TEST_CASE("ids and messages have names") {
  CHECK(to_string(EngineId{0x00, 0x01, 0xab}) == "0001ab00000000000000000000000000");
  std::vector<std::string> names;
  for (const Sample& sample : samples()) names.emplace_back(name_of(sample.message));
  CHECK(names == std::vector<std::string>{"hello", "ready", "heartbeat", "regions_added", "regions_removed", "announce", "abort", "quiesced", "goodbye",
                                          "extension"});
}

TEST_CASE("the fuzz target holds on every sample and on random damage of it") {
  const auto run = [](std::uint8_t mode, std::uint8_t pieces, std::span<const std::uint8_t> rest) {
    Bytes input = {mode, pieces};
    input.insert(input.end(), rest.begin(), rest.end());
    CHECK(LLVMFuzzerTestOneInput(input.data(), input.size()) == 0);
  };
  LLVMFuzzerTestOneInput(nullptr, 0);
  CHECK(rc::check("damage anywhere", [&run] {
    const auto all = samples();
    const Sample& sample = all[*rc::gen::inRange<std::size_t>(0, all.size())];
    Bytes frame = encoded(sample.message);
    Bytes forged;
    put(forged, sample.type, 2);
    forged.insert(forged.end(), frame.begin() + kFrameHeaderBytes, frame.end());
    for (Bytes* bytes : {&frame, &forged}) {
      const auto flips = *rc::gen::inRange<std::size_t>(0, 4);
      for (std::size_t i = 0; i < flips; ++i) (*bytes)[*rc::gen::inRange<std::size_t>(0, bytes->size())] ^= *rc::gen::arbitrary<std::uint8_t>();
    }
    run(0, *rc::gen::arbitrary<std::uint8_t>(), frame);
    run(1, *rc::gen::arbitrary<std::uint8_t>(), forged);
  }));
}

}  // namespace
}  // namespace kvferry::test
