// Keeps the host's signal handlers across the load of foreign code.
//
// Libraries below a plugin (UCX's is one) install handlers for SIGSEGV and its like in their constructors, over those of the host. The guard notes
// every disposition before, compares after, puts back what changed and says which.
#pragma once

#include <csignal>
#include <string>
#include <vector>

namespace kvferry::plugin {

class SignalGuard {
 public:
  SignalGuard() noexcept;
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  ~SignalGuard() { restore_quietly(); }

  /// Puts back what changed since construction; the names of those signals.
  std::vector<std::string> restore();

 private:
  static constexpr int kSignalsMax = 64;
  struct Saved {
    bool known = false;  ///< false: the C library keeps this signal for itself
    struct sigaction action {};
  };
  bool changed(int signal_number) const noexcept;
  void restore_quietly() noexcept;
  Saved saved_[kSignalsMax + 1];
};

}  // namespace kvferry::plugin
