// The two descriptors that travel over the session: an endpoint and a table of regions.
//
//   | magic | kind | version | whole length | crc32 of everything behind it | body |
//
// UCX trusts the bytes of a worker address; nothing of a blob reaches UCX, mmap or open before every length and the CRC are checked here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "identity.h"
#include "kvferry/backend_abi.h"
#include "kvferry/result.h"

namespace kvferry::ucx {

constexpr std::uint32_t kEndpointBlobBytesMax = 16 * 1024;

/// A file in memory that a neighbour opens through /proc/<process>/fd/<descriptor> and accepts only if device, inode and length are these.
struct SharedFile {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t length_bytes = 0;
  std::uint32_t descriptor = 0;
  std::uint32_t present = 0;
};
static_assert(sizeof(SharedFile) == 32);

/// Where a TCP worker listens; for the reachability test before UCX connects.
struct Listener {
  std::uint32_t family = 0;  ///< 4 or 6
  std::uint32_t loopback = 0;
  std::uint32_t port = 0;
  std::uint32_t scope = 0;
  std::array<std::uint8_t, 16> address{};  ///< network order, four bytes for family 4
};
static_assert(sizeof(Listener) == 32);

std::string to_string(const Listener& listener);

struct EndpointBlob {
  std::uint64_t instance = 0;  ///< random, of the backend
  std::uint64_t token = 0;     ///< random, of the peer object: every message to it carries it
  HostIdentity identity{};
  std::uint32_t lane = 0;      ///< LaneChoice asked for
  std::uint32_t mapped = 0;    ///< 1: maps and lets map
  std::uint32_t ucx_version = 0;  ///< major << 16 | minor
  std::uint32_t shm_message_bytes = 0;
  std::uint32_t tcp_message_bytes = 0;
  SharedFile control;
  std::vector<Listener> listeners;
  std::vector<std::uint8_t> shm_address;  ///< UCX worker addresses; empty: not offered
  std::vector<std::uint8_t> tcp_address;
};

struct RegionRecord {
  std::uint64_t id = 0;
  std::uint64_t length_bytes = 0;
  std::uint32_t access = 0;
  std::uint32_t purpose = 0;
  SharedFile file;
};
static_assert(sizeof(RegionRecord) == 56);

struct RegionsBlob {
  std::uint64_t instance = 0;
  std::vector<RegionRecord> regions;
};

std::vector<std::uint8_t> encode(const EndpointBlob& blob);
std::vector<std::uint8_t> encode(const RegionsBlob& blob);
Result<EndpointBlob> decode_endpoint(std::span<const std::uint8_t> bytes);
Result<RegionsBlob> decode_regions(std::span<const std::uint8_t> bytes, std::uint64_t regions_max);

}  // namespace kvferry::ucx
