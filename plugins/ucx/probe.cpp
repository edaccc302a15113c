#include "probe.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "identity.h"

namespace kvferry::ucx {
namespace {

kvferry_device device(const std::string& name, const std::string& lane, const std::string& detail, const std::string& reason) {
  kvferry_device made{};
  made.struct_size = sizeof(made);
  made.usable = reason.empty() ? 1 : 0;
  const auto copy = [](char* out, std::size_t capacity, const std::string& from) { std::memcpy(out, from.data(), std::min(from.size(), capacity - 1)); };
  copy(made.name, sizeof(made.name), name);
  copy(made.lane, sizeof(made.lane), lane);
  copy(made.detail, sizeof(made.detail), detail);
  copy(made.reason, sizeof(made.reason), reason);
  return made;
}

struct DirectoryCloser {
  void operator()(DIR* folder) const noexcept { (void)closedir(folder); }  // read only: nothing to lose
};
using Directory = std::unique_ptr<DIR, DirectoryCloser>;

/// /dev/shm holds the receive buffers of the shared-memory lane: one FIFO of segments per peer.
kvferry_device shm_device(const Settings& settings) {
  const HostIdentity identity = own_identity();
  const std::uint64_t per_peer = settings.shm_segment_bytes * 72;
  struct statvfs status {};
  std::string reason = difference(identity, identity);
  std::string detail = "about " + std::to_string(per_peer / 1024) + " KiB of /dev/shm per peer";
  if (statvfs("/dev/shm", &status) != 0) {
    reason = "/dev/shm: " + errno_text(errno);
  } else {
    const std::uint64_t free_bytes = std::uint64_t{status.f_bavail} * status.f_frsize;
    detail += ", " + std::to_string(free_bytes >> 20) + " MiB are free";
    if (free_bytes < per_peer) reason = "/dev/shm has " + std::to_string(free_bytes / 1024) + " KiB left, one peer needs " + std::to_string(per_peer / 1024);
  }
  if (settings.lane == LaneChoice::tcp) reason = "setting lane is tcp";
  return device("memory", "shm", detail, reason);
}

kvferry_device mapped_device(const Settings& settings) {
  std::string reason = difference(own_identity(), own_identity());
  if (!settings.mapped) reason = "setting mapped is off";
  return device("memory", "mapped", "one copy by the writer, into memory from allocate", reason);
}

bool chosen(const Settings& settings, const std::string& name) {
  if (settings.net_devices == "all") return true;
  const std::string list = "," + settings.net_devices + ",";
  return list.find("," + name + ",") != std::string::npos;
}

void add_interfaces(const Settings& settings, std::vector<kvferry_device>& devices) {
  std::string without_sys;
  // UCX 1.13 finds its TCP devices there.
  if (!Directory(opendir("/sys/class/net"))) without_sys = "/sys/class/net: " + errno_text(errno) + "; UCX finds no TCP device without it";
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    devices.push_back(device("net", "tcp", "", "getifaddrs: " + errno_text(errno)));
    return;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_addr->sa_family != AF_INET && each->ifa_addr->sa_family != AF_INET6)) continue;
    char text[INET6_ADDRSTRLEN] = "?";
    const void* address = each->ifa_addr->sa_family == AF_INET ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr)
                                                               : &reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr;
    (void)inet_ntop(each->ifa_addr->sa_family, address, text, sizeof(text));  // on failure the text stays "?"
    std::string reason = without_sys;
    if ((each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_RUNNING) == 0) reason = "it is down";
    if (!chosen(settings, each->ifa_name)) reason = "not named by setting net_devices";
    if (settings.lane == LaneChoice::shm) reason = "setting lane is shm";
    devices.push_back(device(each->ifa_name, "tcp", text, reason));
  }
}

void add_rdma_devices(std::vector<kvferry_device>& devices) {
  const Directory folder(opendir("/sys/class/infiniband"));
  while (folder) {
    const dirent* entry = readdir(folder.get());
    if (entry == nullptr) return;
    if (entry->d_name[0] == '.') continue;
    devices.push_back(device(entry->d_name, "rc", "", "lane rc is not part of this version"));
  }
}

}  // namespace

std::vector<kvferry_device> probe_devices(const Settings& settings) {
  std::vector<kvferry_device> devices;
  devices.push_back(shm_device(settings));
  devices.push_back(mapped_device(settings));
  add_interfaces(settings, devices);
  add_rdma_devices(devices);
  return devices;
}

}  // namespace kvferry::ucx
