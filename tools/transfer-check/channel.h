/// JSON lines over a socket pair: how the command and its workers talk.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "failure.h"
#include "report.h"

namespace kvferry::transfer_check {

/// A descriptor that is closed once.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      number_ = other.release();
    }
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }
  int release();
  void close();

 private:
  int number_;
};

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline deadline_in(std::chrono::nanoseconds time) {
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(time);
}

/// For a worker's messages to the command: when it passes, the command is gone or stuck.
constexpr auto kReportTimeout = std::chrono::seconds(30);

/// One end. Not thread-safe.
class Channel {
 public:
  Channel() = default;
  explicit Channel(Descriptor descriptor);
  static Outcome<std::pair<Channel, Channel>> make_pair();

  int descriptor() const { return descriptor_.get(); }
  int release() { return descriptor_.release(); }
  bool is_open() const { return descriptor_.get() >= 0; }
  void close() { descriptor_.close(); }

  /// Errors: `peer_lost` when the other end is gone, `timeout` when it does not read.
  Result<void> send(const Json& message, Deadline deadline);
  /// The next message; nothing at the deadline. Error `peer_lost` when the other end is gone.
  Result<std::optional<Json>> receive(Deadline deadline);
  /// The next message if it is here already.
  Result<std::optional<Json>> try_receive() { return receive(Deadline::min()); }

 private:
  Result<std::optional<Json>> take_line();
  Descriptor descriptor_;
  std::string buffer_;
};

/// An error as a message, and back.
Json error_message(const Failure& failure);
Failure failure_of(const Json& message);

}  // namespace kvferry::transfer_check
