/// kvferry/result.h: errors as values.
///
/// A function that can fail returns `Result<T>`. An `Error` says what was tried, on what, which call failed and why, and what the caller should do
/// about it. Library code returns errors and does not log them. "Would block" and "queue full" are results, not errors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace kvferry {

/// The numbers are those of `KVFERRY_ERROR_...` in backend_abi.h and never change.
enum class ErrorCode : std::int32_t {
  invalid_argument = 101,  ///< the caller's value is wrong
  out_of_range = 102,      ///< outside a region, a list or a limit of its type
  mismatch = 103,          ///< two sides disagree; the text has both values
  unsupported = 104,       ///< known and refused by name
  not_found = 105,
  exists = 106,
  busy = 107,
  limit = 108,      ///< a limit of this host, device or library is reached
  no_memory = 109,
  timeout = 110,
  peer_lost = 111,  ///< dead, frozen past its lease, or disconnected
  refused = 112,    ///< the target refused a piece
  fenced = 113,     ///< the room and generation are fenced at the target
  canceled = 114,
  stale = 115,        ///< a generation that has passed
  unavailable = 116,  ///< this host lacks something: plugin, device, port, locked memory
  version = 117,
  io = 118,
  internal = 119,
  forked = 120,
  cannot_promise = 121,  ///< quiescence cannot be proved: the memory stays in quarantine
};

/// What the caller should do; numbers are those of `KVFERRY_CLASS_...`.
enum class ErrorClass : std::int32_t { retry = 1, reconnect = 2, reregister = 3, permanent = 4, bug = 5 };

/// "invalid_argument", "peer_lost", ...
std::string_view to_string(ErrorCode code) noexcept;
std::string_view to_string(ErrorClass error_class) noexcept;

/// The class that fits a code when the callee knows nothing better.
ErrorClass default_class(ErrorCode code) noexcept;

struct Error {
  ErrorCode code = ErrorCode::internal;
  ErrorClass error_class = ErrorClass::bug;
  std::string text;  ///< lower case, no full stop: what we tried, on what, the failing call, its own reason
  std::int32_t vendor_status = 0;
  std::int32_t sys_errno = 0;

  Error() = default;
  Error(ErrorCode code_, std::string text_) : code(code_), error_class(default_class(code_)), text(std::move(text_)) {}
  Error(ErrorCode code_, ErrorClass class_, std::string text_) : code(code_), error_class(class_), text(std::move(text_)) {}

  /// The same error with "what: " before its text.
  [[nodiscard]] Error within(std::string_view what) const {
    Error outer = *this;
    outer.text = std::string(what) + ": " + text;
    return outer;
  }
};

template <class T>
using Result = tl::expected<T, Error>;

using Unexpected = tl::unexpected<Error>;

[[nodiscard]] inline Unexpected fail(ErrorCode code, std::string text) { return Unexpected(Error(code, std::move(text))); }
[[nodiscard]] inline Unexpected fail(Error error) { return Unexpected(std::move(error)); }

/// Checked 64-bit arithmetic for sizes and offsets that come from outside. False on overflow; `ret` is set on success only.
[[nodiscard]] constexpr bool checked_add(std::uint64_t a, std::uint64_t b, std::uint64_t& ret) noexcept {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return false;
  ret = sum;
  return true;
}
[[nodiscard]] constexpr bool checked_multiply(std::uint64_t a, std::uint64_t b, std::uint64_t& ret) noexcept {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return false;
  ret = product;
  return true;
}

}  // namespace kvferry
