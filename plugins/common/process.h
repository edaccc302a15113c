// What a backend asks of its process and of the system's files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvferry/backend_abi.h"

namespace kvferry::plugins {

/// Never used twice in a process by one plugin, whichever of its backends asks.
kvferry_peer next_peer_id();

/// From the system's source; not 0.
std::uint64_t random_number();

/// Tells a forked child, without a system call.
class ForkMark {
 public:
  ForkMark();
  ~ForkMark();
  ForkMark(const ForkMark&) = delete;
  ForkMark& operator=(const ForkMark&) = delete;
  bool forked() const noexcept;

 private:
  std::uint32_t process_;
  std::uint8_t* page_;  ///< reads zero in a forked child; null: this kernel cannot
};

/// The start of a small file, as below /proc; empty when it cannot be read.
std::string read_small_file(const std::string& path);

/// "Permission denied (errno 13)".
std::string errno_text(int error_number);

/// `text` as a JSON string, with quotes.
std::string json_string(std::string_view text);

}  // namespace kvferry::plugins
