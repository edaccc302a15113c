// Whether a neighbour's TCP worker can be reached, found out with sockets of our own before UCX connects.
//
// UCX 1.13 may end the process with an assertion when a wire-up fails. So the neighbour's descriptor names the sockets its worker listens on, and the
// connecting side opens and closes a connection to one of them first. The window between that and UCX's own connection stays open: docs/ucx.md.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "blob.h"
#include "../common/file_descriptor.h"

namespace kvferry::ucx {

using namespace plugins;

/// The descriptors this process has open, to find the listening sockets that a call opens.
class DescriptorSnapshot {
 public:
  DescriptorSnapshot();
  /// Listening TCP sockets opened since, those whose port stands in `address` (a packed UCX worker address).
  std::vector<Listener> listeners_since(std::span<const std::uint8_t> address) const;

 private:
  std::vector<int> open_;  ///< sorted
};

class ReachabilityTest {
 public:
  enum class State { trying, reached, failed };

  /// Starts connecting to every listener that can be meant from here (loopback only on the same host).
  void start(std::span<const Listener> listeners, bool same_host);
  bool started() const noexcept { return started_; }
  State step();
  /// Writable when there is something to step; closed by the test itself.
  std::vector<int> descriptors() const;
  /// What was tried and why it failed.
  const std::string& report() const noexcept { return report_; }

 private:
  struct Attempt {
    FileDescriptor socket;
    Listener listener;
  };
  void note(const Listener& listener, int error_number);
  std::vector<Attempt> attempts_;
  bool started_ = false;
  bool reached_ = false;
  std::string report_;
};

}  // namespace kvferry::ucx
