// The one descriptor the host waits on: an epoll over the event fds of all workers, the guards of neighbour processes, and sockets that are connecting.
#pragma once

#include <cstdint>
#include <vector>

#include "file_descriptor.h"
#include "kvferry/backend_abi.h"
#include "kvferry/result.h"

namespace kvferry::plugins {

class WakeSet {
 public:
  static Result<WakeSet> open();
  int fd() const noexcept { return epoll_.get(); }
  /// `writable`: also when it becomes writable.
  Result<void> add(int fd, bool writable);
  void remove(int fd) noexcept;

 private:
  explicit WakeSet(FileDescriptor epoll) : epoll_(std::move(epoll)) {}
  FileDescriptor epoll_;
};

}  // namespace kvferry::plugins
