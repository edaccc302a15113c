// The two descriptors that travel to the other engine. Little endian, lengths checked, CRC-32 over everything before it.
//
//   offset  bytes  field
//   0       4      magic "KVLB"
//   4       2      version, 1
//   6       2      kind: 1 endpoint, 2 regions
//   8       4      length of the whole blob
//   12      4      process id, for messages
//   16      8      process token: random, made once per process
//   24      8      backend instance
//   endpoint: 32  8  peer id                          regions: 32  4  count, 36  4  reserved, 0
//                                                              then per region: 8 id, 8 length, 4 access, 4 purpose
//   end     4      CRC-32
#pragma once

#include <cstdint>
#include <vector>

#include "failure.h"

namespace loopback {

struct Identity {
  std::uint32_t process_id = 0;
  std::uint64_t process_token = 0;
  std::uint64_t instance = 0;
};

struct EndpointBlob {
  Identity identity;
  kvferry_peer peer = 0;
};

struct RegionsBlob {
  struct Entry {
    kvferry_region id = 0;
    std::uint64_t length = 0;
    std::uint32_t access = 0;
    std::uint32_t purpose = 0;
  };
  Identity identity;
  std::vector<Entry> regions;
};

constexpr std::uint32_t kEndpointBlobBytes = 44;

std::vector<std::uint8_t> encode(const EndpointBlob& blob);
std::vector<std::uint8_t> encode(const RegionsBlob& blob);
Answer<EndpointBlob> decode_endpoint(const void* bytes, std::uint64_t length);
Answer<RegionsBlob> decode_regions(const void* bytes, std::uint64_t length, std::uint64_t regions_max);

}  // namespace loopback
