// Who this process is, as far as a neighbour must know it to share memory with it, and whether a neighbour still lives.
//
// Same host is decided by identity, never by address: two processes may share memory when the kernel's boot id, the pid and user namespaces, the device
// behind /dev/shm, the user and the capabilities are the same and both may be looked at through /proc. Both sides compute that from the two endpoint
// blobs, so both come to the same answer; the probe then proves it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "../common/file_descriptor.h"
#include "../common/process.h"
#include "kvferry/result.h"

namespace kvferry::ucx {

using namespace plugins;

/// Travels in the endpoint blob as it is.
struct HostIdentity {
  std::array<std::uint8_t, 40> boot_id;  ///< text of the kernel's random boot id, zero padded
  std::uint64_t pid_namespace;
  std::uint64_t user_namespace;
  std::uint64_t shm_device;  ///< st_dev of /dev/shm, 0: there is none
  std::uint64_t capabilities;
  std::uint32_t user;
  std::uint32_t inspectable;  ///< 1: /proc/<pid>/fd of this process is open to equals
  std::uint32_t process;
  std::uint32_t reserved;
  std::uint64_t start_ticks;  ///< since boot: tells a reused process id
};
static_assert(sizeof(HostIdentity) == 96);

HostIdentity own_identity();

/// Empty: they may share memory. Else the first difference, for a log line ("the pid namespaces differ").
std::string difference(const HostIdentity& one, const HostIdentity& other);
bool same_boot(const HostIdentity& one, const HostIdentity& other) noexcept;

/// A neighbour process: readable when it has ended.
class ProcessGuard {
 public:
  /// Error peer_lost: it is gone already (or its id is another process by now). Error unavailable: this kernel cannot watch it.
  static Result<ProcessGuard> watch(const HostIdentity& neighbour);
  ProcessGuard() = default;
  bool watching() const noexcept { return descriptor_.valid(); }
  int fd() const noexcept { return descriptor_.get(); }
  /// True once it has ended (a zombie counts: it runs no instruction any more).
  bool ended() const noexcept;

 private:
  explicit ProcessGuard(FileDescriptor descriptor) : descriptor_(std::move(descriptor)) {}
  FileDescriptor descriptor_;
};

}  // namespace kvferry::ucx
