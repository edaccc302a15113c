#include "identity.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

namespace kvferry::ucx {
namespace {


std::uint64_t inode_of(const char* path) {
  struct stat status {};
  return stat(path, &status) == 0 ? static_cast<std::uint64_t>(status.st_ino) : 0;
}

std::uint64_t shm_device() {
  struct stat status {};
  return stat("/dev/shm", &status) == 0 ? static_cast<std::uint64_t>(status.st_dev) : 0;
}

std::uint64_t permitted_capabilities() {
  const std::string status = read_small_file("/proc/self/status");
  const std::size_t at = status.find("CapPrm:");
  if (at == std::string::npos) return 0;
  const std::size_t begin = status.find_first_not_of(" \t", at + std::strlen("CapPrm:"));
  std::uint64_t value = 0;
  if (begin != std::string::npos) (void)std::from_chars(status.data() + begin, status.data() + status.size(), value, 16);
  return value;
}

/// Field 22 of /proc/<process>/stat. The name in field 2 may hold anything, so fields are counted behind its closing bracket.
std::optional<std::uint64_t> start_ticks_of(const std::string& process) {
  constexpr int kFieldsBetween = 19;
  const std::string stat_text = read_small_file("/proc/" + process + "/stat");
  std::size_t at = stat_text.rfind(')');
  if (at == std::string::npos) return std::nullopt;
  ++at;
  for (int field = 0; field < kFieldsBetween; ++field) {
    at = stat_text.find(' ', at + 1);
    if (at == std::string::npos) return std::nullopt;
  }
  std::uint64_t ticks = 0;
  const char* begin = stat_text.data() + at + 1;
  const auto [end, error] = std::from_chars(begin, stat_text.data() + stat_text.size(), ticks);
  if (error != std::errc() || end == begin) return std::nullopt;
  return ticks;
}

}  // namespace

HostIdentity own_identity() {
  HostIdentity identity{};
  const std::string boot_id = read_small_file("/proc/sys/kernel/random/boot_id");
  std::memcpy(identity.boot_id.data(), boot_id.data(), std::min(boot_id.size(), identity.boot_id.size() - 1));
  identity.pid_namespace = inode_of("/proc/self/ns/pid");
  identity.user_namespace = inode_of("/proc/self/ns/user");
  identity.shm_device = shm_device();
  identity.capabilities = permitted_capabilities();
  identity.user = static_cast<std::uint32_t>(geteuid());
  identity.inspectable = prctl(PR_GET_DUMPABLE) == 1 ? 1 : 0;
  identity.process = static_cast<std::uint32_t>(getpid());
  identity.start_ticks = start_ticks_of("self").value_or(0);
  return identity;
}

bool same_boot(const HostIdentity& one, const HostIdentity& other) noexcept { return one.boot_id[0] != 0 && one.boot_id == other.boot_id; }

std::string difference(const HostIdentity& one, const HostIdentity& other) {
  if (one.boot_id[0] == 0 || other.boot_id[0] == 0) return "the boot id cannot be read";
  if (!same_boot(one, other)) return "they run on different hosts";
  if (one.pid_namespace == 0 || one.pid_namespace != other.pid_namespace) return "the pid namespaces differ";
  if (one.user_namespace != other.user_namespace) return "the user namespaces differ";
  if (one.shm_device == 0 || one.shm_device != other.shm_device) return "/dev/shm is missing or not the same";
  if (one.user != other.user) return "the users differ";
  if (one.capabilities != other.capabilities) return "the capabilities differ";
  if (one.inspectable != 1 || other.inspectable != 1) return "one of them may not be looked at through /proc";
  if (one.start_ticks == 0 || other.start_ticks == 0) return "/proc tells no start time";
  return {};
}

Result<ProcessGuard> ProcessGuard::watch(const HostIdentity& neighbour) {
  const std::string what = "watch process " + std::to_string(neighbour.process);
  FileDescriptor descriptor(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(neighbour.process), 0u)));
  if (!descriptor.valid()) {
    const int error_number = errno;
    const ErrorCode code = error_number == ESRCH ? ErrorCode::peer_lost : ErrorCode::unavailable;
    return fail(code, what + ": pidfd_open: " + errno_text(error_number));
  }
  // The descriptor now names one process for good; the start time tells whether it is the right one.
  const auto ticks = start_ticks_of(std::to_string(neighbour.process));
  if (!ticks || *ticks != neighbour.start_ticks) return fail(ErrorCode::peer_lost, what + ": it has ended, the id is free or another process by now");
  return ProcessGuard(std::move(descriptor));
}

bool ProcessGuard::ended() const noexcept {
  if (!watching()) return false;
  pollfd poller{descriptor_.get(), POLLIN, 0};
  return poll(&poller, 1, 0) == 1 && (poller.revents & POLLIN) != 0;
}

}  // namespace kvferry::ucx
