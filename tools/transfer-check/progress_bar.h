/// A progress bar on stderr, on a terminal only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kvferry::transfer_check {

class ProgressBar {
 public:
  ProgressBar() = default;
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  static bool is_wanted();
  /// Draws at most a few times a second.
  void show(const std::string& step, std::uint64_t done, std::uint64_t total);
  /// Takes the bar away, so that what follows starts at the left.
  void clear();

 private:
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace kvferry::transfer_check
