// docs/wire-format.md is what others write against: its tables are read here and compared with the code.
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <regex>
#include <string>

#include "frames.h"

namespace kvferry::test {
namespace {

/// Example bytes of each table under the last word of the heading above it.
std::map<std::string, Bytes> read_tables() {
  std::ifstream document(KVFERRY_WIRE_FORMAT_DOCUMENT);
  REQUIRE(document);
  const std::regex heading("^##+ (?:.* )?([A-Za-z_]+)$"), row("^\\|[^|]*\\|([^|]*)\\|[^|]*\\| `([0-9a-f ]+)` \\|.*$");
  std::map<std::string, Bytes> tables;
  std::string line, section;
  while (std::getline(document, line)) {
    std::smatch match;
    if (std::regex_match(line, match, heading)) section = match[1];
    if (!std::regex_match(line, match, row)) continue;
    const std::size_t before = tables[section].size();
    std::istringstream bytes(match[2]);
    for (unsigned byte = 0; bytes >> std::hex >> byte;) tables[section].push_back(static_cast<std::uint8_t>(byte));
    const std::string size = match[1];
    INFO(line);
    if (size.find_first_not_of(" 0123456789") == std::string::npos) CHECK(tables[section].size() - before == std::stoul(size));
  }
  return tables;
}

TEST_CASE("every message has the bytes of its table in the documentation, both ways") {
  const auto tables = read_tables();
  for (const Sample& sample : samples()) {
    const std::string name(name_of(sample.message));
    INFO(name);
    REQUIRE(tables.contains(name));
    const Bytes frame = make_frame({.type = sample.type}, tables.at(name));
    const Decoded decoded = decode(frame);
    if (decoded.error) FAIL(decoded.error->text);
    REQUIRE(decoded.messages.size() == 1);
    CHECK(decoded.messages[0] == sample.message);
    Bytes encoded;
    REQUIRE(session::encode(sample.message, 0, encoded));
    CHECK(encoded == frame);
  }
  CHECK(tables.size() == samples().size() + 2);  // frame and region have tables of their own
}

TEST_CASE("the frame of the documentation is what the library writes, checks included") {
  const Bytes frame = read_tables().at("Frame");
  REQUIRE(frame.size() == session::kFrameHeaderBytes + 8);
  Bytes encoded;
  REQUIRE(session::encode(session::Heartbeat{7}, 5, encoded));
  CHECK(encoded == frame);
}

TEST_CASE("a region has the bytes of its table") {
  const Bytes region = read_tables().at("region");
  Bytes encoded;
  REQUIRE(session::encode(samples()[0].message, 0, encoded));
  CHECK(std::search(encoded.begin(), encoded.end(), region.begin(), region.end()) != encoded.end());
}

TEST_CASE("the limits of the documentation are those of the library") {
  std::ifstream document(KVFERRY_WIRE_FORMAT_DOCUMENT);
  const std::string text((std::istreambuf_iterator<char>(document)), std::istreambuf_iterator<char>());
  const auto says = [&text](const std::string& words) { return text.find(words) != std::string::npos; };
  CHECK((says("| 4,096 bytes; UTF-8") && session::kTextBytesMax == 4096));
  CHECK((says("bytes | 32 MiB; JSON") && session::kPoolTextBytesMax == 32u << 20));
  CHECK((says("| blob | length (4), bytes | 16 MiB |") && session::kBlobBytesMax == 16u << 20));
  CHECK((says("| 1,048,576 elements |") && session::kRegionsMax == 1048576));
  CHECK((says("| 8,388,608 indices |") && session::kIndicesMax == 8388608));
  CHECK((says("| payload of a frame | | 64 MiB") && session::kPayloadBytesMax == 64u << 20));
  CHECK((says("Types from 32768 (0x8000) up are extensions") && session::kExtensionTypeFirst == 32768));
}

}  // namespace
}  // namespace kvferry::test
