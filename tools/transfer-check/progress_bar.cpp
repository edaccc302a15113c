#include "progress_bar.h"

#include <unistd.h>

#include <algorithm>

#include "report.h"

namespace kvferry::transfer_check {
namespace {

constexpr std::size_t kCells = 40;
constexpr auto kInterval = std::chrono::milliseconds(100);

void draw(const std::string& text) {
  (void)!::write(STDERR_FILENO, text.data(), text.size());  // A bar that is not seen is no loss.
}

}  // namespace

bool ProgressBar::is_wanted() { return ::isatty(STDERR_FILENO) == 1; }

void ProgressBar::show(const std::string& step, std::uint64_t done, std::uint64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!is_wanted() || now < next_ || total == 0 || done == 0) return;
  next_ = now + kInterval;
  const double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const auto full = static_cast<std::size_t>(part * static_cast<double>(kCells));
  draw("\r" + step + " [" + std::string(full, '#') + std::string(kCells - full, '.') + "] " + fixed_text(part * 100, 0) + " % of " +
       bytes_text(total) + "\x1b[K");
  drawn_ = true;
}

void ProgressBar::clear() {
  if (drawn_) draw("\r\x1b[K");
  drawn_ = false;
}

}  // namespace kvferry::transfer_check
