#include "blob.h"

#include <boost/crc.hpp>

namespace loopback {
namespace {

constexpr std::uint32_t kMagic = 0x424c564b;  // "KVLB"
constexpr std::uint16_t kVersion = 1;
constexpr std::uint16_t kKindEndpoint = 1;
constexpr std::uint16_t kKindRegions = 2;
constexpr std::uint64_t kHeadBytes = 32;
constexpr std::uint64_t kCrcBytes = 4;
constexpr std::uint64_t kRegionsHeadBytes = 8;
constexpr std::uint64_t kRegionBytes = 24;

std::uint32_t crc32(const std::uint8_t* bytes, std::size_t length) {
  boost::crc_32_type crc;
  crc.process_bytes(bytes, length);
  return crc.checksum();
}

class Writer {
 public:
  template <class T>
  void put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<std::uint8_t>(static_cast<std::uint64_t>(value) >> (8 * i)));
  }
  void head(std::uint16_t kind, const Identity& identity) {
    put(kMagic);
    put(kVersion);
    put(kind);
    put(std::uint32_t{0});  // the length, set at the end
    put(identity.process_id);
    put(identity.process_token);
    put(identity.instance);
  }
  std::vector<std::uint8_t> finish() {
    const auto length = static_cast<std::uint32_t>(bytes_.size() + kCrcBytes);
    for (std::size_t i = 0; i < sizeof(length); ++i) bytes_[8 + i] = static_cast<std::uint8_t>(length >> (8 * i));
    put(crc32(bytes_.data(), bytes_.size()));
    return std::move(bytes_);
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

/// Reads fields in order; the caller has checked that they are there.
class Reader {
 public:
  explicit Reader(const std::uint8_t* bytes) : next_(bytes) {}
  template <class T>
  T get() {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<std::uint64_t>(next_[i]) << (8 * i);
    next_ += sizeof(T);
    return static_cast<T>(value);
  }

 private:
  const std::uint8_t* next_;
};

tl::unexpected<Failure> bad(const char* what, const std::string& why) {
  return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, std::string("read ") + what + ": " + why);
}

/// Everything that both kinds share; `reader` stands behind the head afterwards.
Answer<Identity> read_head(const char* what, std::uint16_t kind, const std::uint8_t* bytes, std::uint64_t length, std::uint64_t length_min) {
  if (bytes == nullptr) return bad(what, "null");
  if (length < length_min) return bad(what, std::to_string(length) + " bytes, at least " + std::to_string(length_min) + " expected");
  Reader reader(bytes);
  if (const auto magic = reader.get<std::uint32_t>(); magic != kMagic) return bad(what, "not a descriptor of the loopback backend");
  if (const auto version = reader.get<std::uint16_t>(); version != kVersion) {
    return refuse(KVFERRY_ERROR_VERSION,
                  std::string("read ") + what + ": version " + std::to_string(version) + ", this side speaks " + std::to_string(kVersion));
  }
  if (const auto found = reader.get<std::uint16_t>(); found != kind) {
    return bad(what, "kind " + std::to_string(found) + ", expected " + std::to_string(kind));
  }
  if (const auto stated = reader.get<std::uint32_t>(); stated != length) {
    return bad(what, "states " + std::to_string(stated) + " bytes, has " + std::to_string(length));
  }
  Identity identity;
  identity.process_id = reader.get<std::uint32_t>();
  identity.process_token = reader.get<std::uint64_t>();
  identity.instance = reader.get<std::uint64_t>();
  const auto covered = static_cast<std::size_t>(length - kCrcBytes);
  if (Reader(bytes + covered).get<std::uint32_t>() != crc32(bytes, covered)) return bad(what, "the CRC does not match");
  return identity;
}

}  // namespace

std::vector<std::uint8_t> encode(const EndpointBlob& blob) {
  Writer writer;
  writer.head(kKindEndpoint, blob.identity);
  writer.put(blob.peer);
  return writer.finish();
}

std::vector<std::uint8_t> encode(const RegionsBlob& blob) {
  Writer writer;
  writer.head(kKindRegions, blob.identity);
  writer.put(static_cast<std::uint32_t>(blob.regions.size()));
  writer.put(std::uint32_t{0});
  for (const RegionsBlob::Entry& region : blob.regions) {
    writer.put(region.id);
    writer.put(region.length);
    writer.put(region.access);
    writer.put(region.purpose);
  }
  return writer.finish();
}

Answer<EndpointBlob> decode_endpoint(const void* bytes, std::uint64_t length) {
  const auto* begin = static_cast<const std::uint8_t*>(bytes);
  auto identity = read_head("endpoint descriptor", kKindEndpoint, begin, length, kEndpointBlobBytes);
  if (!identity) return tl::unexpected<Failure>(std::move(identity.error()));
  if (length != kEndpointBlobBytes)
    return bad("endpoint descriptor", std::to_string(length) + " bytes, expected " + std::to_string(kEndpointBlobBytes));
  EndpointBlob blob;
  blob.identity = *identity;
  blob.peer = Reader(begin + kHeadBytes).get<std::uint64_t>();
  return blob;
}

Answer<RegionsBlob> decode_regions(const void* bytes, std::uint64_t length, std::uint64_t regions_max) {
  const auto* begin = static_cast<const std::uint8_t*>(bytes);
  constexpr std::uint64_t kFixedBytes = kHeadBytes + kRegionsHeadBytes + kCrcBytes;
  auto identity = read_head("region table", kKindRegions, begin, length, kFixedBytes);
  if (!identity) return tl::unexpected<Failure>(std::move(identity.error()));
  Reader reader(begin + kHeadBytes);
  const auto count = reader.get<std::uint32_t>();
  const auto reserved = reader.get<std::uint32_t>();
  if (reserved != 0) return bad("region table", "reserved field is " + std::to_string(reserved));
  if (count > regions_max) return bad("region table", std::to_string(count) + " regions, the limit is " + std::to_string(regions_max));
  if (length != kFixedBytes + count * kRegionBytes) {
    return bad("region table", std::to_string(count) + " regions in " + std::to_string(length) + " bytes");
  }
  RegionsBlob blob;
  blob.identity = *identity;
  blob.regions.resize(count);
  for (RegionsBlob::Entry& region : blob.regions) {
    region.id = reader.get<std::uint64_t>();
    region.length = reader.get<std::uint64_t>();
    region.access = reader.get<std::uint32_t>();
    region.purpose = reader.get<std::uint32_t>();
    if (region.id == 0 || region.length == 0)
      return bad("region table", "region " + std::to_string(region.id) + " of " + std::to_string(region.length) + " bytes");
  }
  return blob;
}

}  // namespace loopback
