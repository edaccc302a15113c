#include "blob.h"

#include <arpa/inet.h>

#include <cstring>
#include <type_traits>

#include "../common/frame.h"
#include "wire.h"

namespace kvferry::ucx {
namespace {

constexpr FrameKind kEndpoint{0x5855564bu /* "KVUX" */, 1, kWireVersion, "ucx", "an endpoint"};
constexpr FrameKind kRegions{0x5855564bu, 2, kWireVersion, "ucx", "a regions"};
constexpr std::uint32_t kListenersMax = 64;
constexpr std::uint32_t kAddressBytesMax = 4096;

struct EndpointBody {
  std::uint64_t instance, token;
  HostIdentity identity;
  std::uint32_t lane, mapped, ucx_version, shm_message_bytes, tcp_message_bytes;
  std::uint32_t listener_count, shm_address_bytes, tcp_address_bytes;
  SharedFile control;
};
static_assert(sizeof(EndpointBody) == 176 && std::is_trivially_copyable_v<EndpointBody>);

struct RegionsBody {
  std::uint64_t instance;
  std::uint32_t region_count, reserved;
};
static_assert(sizeof(RegionsBody) == 16);

}  // namespace

std::string to_string(const Listener& listener) {
  char text[INET6_ADDRSTRLEN] = "?";
  (void)inet_ntop(listener.family == 6 ? AF_INET6 : AF_INET, listener.address.data(), text, sizeof(text));  // on failure the text stays "?"
  const std::string port = ":" + std::to_string(listener.port);
  return listener.family == 6 ? "[" + std::string(text) + "]" + port : text + port;
}

std::vector<std::uint8_t> encode(const EndpointBlob& blob) {
  EndpointBody body{};
  body.instance = blob.instance;
  body.token = blob.token;
  body.identity = blob.identity;
  body.lane = blob.lane;
  body.mapped = blob.mapped;
  body.ucx_version = blob.ucx_version;
  body.shm_message_bytes = blob.shm_message_bytes;
  body.tcp_message_bytes = blob.tcp_message_bytes;
  body.listener_count = static_cast<std::uint32_t>(blob.listeners.size());
  body.shm_address_bytes = static_cast<std::uint32_t>(blob.shm_address.size());
  body.tcp_address_bytes = static_cast<std::uint32_t>(blob.tcp_address.size());
  body.control = blob.control;
  std::vector<std::uint8_t> out;
  append(out, &body, sizeof(body));
  append(out, blob.listeners.data(), blob.listeners.size() * sizeof(Listener));
  append(out, blob.shm_address.data(), blob.shm_address.size());
  append(out, blob.tcp_address.data(), blob.tcp_address.size());
  return framed(kEndpoint, out);
}

std::vector<std::uint8_t> encode(const RegionsBlob& blob) {
  RegionsBody body{blob.instance, static_cast<std::uint32_t>(blob.regions.size()), 0};
  std::vector<std::uint8_t> out;
  append(out, &body, sizeof(body));
  append(out, blob.regions.data(), blob.regions.size() * sizeof(RegionRecord));
  return framed(kRegions, out);
}

Result<EndpointBlob> decode_endpoint(std::span<const std::uint8_t> bytes) {
  if (bytes.size() > kEndpointBlobBytesMax) return broken(kEndpoint, std::to_string(bytes.size()) + " bytes are above the limit");
  auto unframed = unframe(bytes, kEndpoint);
  if (!unframed) return fail(std::move(unframed.error()));
  auto rest = *unframed;
  if (rest.size() < sizeof(EndpointBody)) return broken(kEndpoint, "the body is too short");
  const auto body = take<EndpointBody>(rest);
  if (body.listener_count > kListenersMax || body.shm_address_bytes > kAddressBytesMax || body.tcp_address_bytes > kAddressBytesMax) {
    return broken(kEndpoint, "a length in it is above its limit");
  }
  const std::size_t wanted = body.listener_count * sizeof(Listener) + body.shm_address_bytes + body.tcp_address_bytes;
  if (rest.size() != wanted) return broken(kEndpoint, "its parts have " + std::to_string(wanted) + " bytes, there are " + std::to_string(rest.size()));
  if (body.instance == 0 || body.token == 0) return broken(kEndpoint, "instance or token is zero");
  if (body.lane > 2 || body.mapped > 1) return broken(kEndpoint, "an unknown lane or flag");
  if (body.identity.boot_id.back() != 0) return broken(kEndpoint, "the boot id has no end");
  EndpointBlob blob;
  blob.instance = body.instance;
  blob.token = body.token;
  blob.identity = body.identity;
  blob.lane = body.lane;
  blob.mapped = body.mapped;
  blob.ucx_version = body.ucx_version;
  blob.shm_message_bytes = body.shm_message_bytes;
  blob.tcp_message_bytes = body.tcp_message_bytes;
  blob.control = body.control;
  for (std::uint32_t i = 0; i < body.listener_count; ++i) {
    const auto listener = take<Listener>(rest);
    if ((listener.family != 4 && listener.family != 6) || listener.port == 0 || listener.port > 65535) return broken(kEndpoint, "a listener is malformed");
    blob.listeners.push_back(listener);
  }
  blob.shm_address.assign(rest.begin(), rest.begin() + body.shm_address_bytes);
  blob.tcp_address.assign(rest.begin() + body.shm_address_bytes, rest.end());
  return blob;
}

Result<RegionsBlob> decode_regions(std::span<const std::uint8_t> bytes, std::uint64_t regions_max) {
  auto unframed = unframe(bytes, kRegions);
  if (!unframed) return fail(std::move(unframed.error()));
  auto rest = *unframed;
  if (rest.size() < sizeof(RegionsBody)) return broken(kRegions, "the body is too short");
  const auto body = take<RegionsBody>(rest);
  if (body.region_count > regions_max) {
    return fail(ErrorCode::limit, "read a regions blob: " + std::to_string(body.region_count) + " regions, regions_max is " + std::to_string(regions_max));
  }
  if (rest.size() != body.region_count * sizeof(RegionRecord)) return broken(kRegions, "its length does not fit its count");
  if (body.instance == 0) return broken(kRegions, "the instance is zero");
  RegionsBlob blob;
  blob.instance = body.instance;
  blob.regions.reserve(body.region_count);
  for (std::uint32_t i = 0; i < body.region_count; ++i) {
    const auto record = take<RegionRecord>(rest);
    if (record.id == 0 || record.length_bytes == 0) return broken(kRegions, "a region has no id or no length");
    if (record.file.present > 1 || (record.file.present == 1 && record.file.length_bytes < record.length_bytes)) {
      return broken(kRegions, "a region is longer than its file");
    }
    blob.regions.push_back(record);
  }
  return blob;
}

}  // namespace kvferry::ucx
