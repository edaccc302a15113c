#include "signal_guard.h"

#include <cstring>

namespace kvferry::plugin {
namespace {

bool same_set(const sigset_t& a, const sigset_t& b) noexcept {
  for (int number = 1; number <= 64; ++number) {
    if (sigismember(&a, number) != sigismember(&b, number)) return false;
  }
  return true;
}

/// The C library sets this flag on what it installs (SA_RESTORER of the kernel's headers): it is not a difference.
constexpr int kRestorerFlag = 0x04000000;

bool same_action(const struct sigaction& a, const struct sigaction& b) noexcept {
  if ((a.sa_flags & ~kRestorerFlag) != (b.sa_flags & ~kRestorerFlag) || !same_set(a.sa_mask, b.sa_mask)) return false;
  if ((a.sa_flags & SA_SIGINFO) != 0) return a.sa_sigaction == b.sa_sigaction;
  return a.sa_handler == b.sa_handler;
}

}  // namespace

SignalGuard::SignalGuard() noexcept {
  for (int number = 1; number <= kSignalsMax; ++number) {
    saved_[number].known = sigaction(number, nullptr, &saved_[number].action) == 0;
  }
}

bool SignalGuard::changed(int signal_number) const noexcept {
  const Saved& saved = saved_[signal_number];
  struct sigaction now {};
  return saved.known && sigaction(signal_number, nullptr, &now) == 0 && !same_action(saved.action, now);
}

std::vector<std::string> SignalGuard::restore() {
  std::vector<std::string> names;
  for (int number = 1; number <= kSignalsMax; ++number) {
    if (!changed(number)) continue;
    (void)sigaction(number, &saved_[number].action, nullptr);  // it was read from the same signal: it cannot be refused
    const char* name = sigabbrev_np(number);
    names.push_back(name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(number));
  }
  return names;
}

void SignalGuard::restore_quietly() noexcept {
  for (int number = 1; number <= kSignalsMax; ++number) {
    if (changed(number)) (void)sigaction(number, &saved_[number].action, nullptr);  // as above
  }
}

}  // namespace kvferry::plugin
