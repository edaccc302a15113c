/// Why the command ends without a result: an error of the library or of the user, what to do about it, and the exit status that follows.
///
///   Result<T> (library) ──► because(...) ──► Failure ──► one line on stderr, or {verdict: "error"} on stdout with --json
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "kvferry/result.h"

namespace kvferry::transfer_check {

/// What scripts rely on (docs/transfer-check.md, "Exit status").
enum class ExitStatus : int {
  holds = 0,       ///< the check holds
  fails = 1,       ///< it does not: wrong bytes, time-out, lost, killed or frozen peer
  wrong_use = 2,   ///< option, layout, list, page, unsupported kind
  host_lacks = 3,  ///< plugin missing or too new, no device, port in use, locked memory
};

/// The one table from error codes to exit statuses.
ExitStatus exit_status_of(ErrorCode code) noexcept;
/// What helps against a code where the place that failed knows nothing better; empty where nothing general can be said.
std::string_view general_remedy(ErrorCode code) noexcept;

struct Failure {
  Error error;
  std::string remedy;  ///< what the user can do; empty: the text says it
  std::string option;  ///< "--prefill"; empty where no option is to blame
  ExitStatus status = ExitStatus::fails;
};

template <class T>
using Outcome = tl::expected<T, Failure>;

/// Wrong use of one option: "--tokens=abc: not a whole number; give ...".
tl::unexpected<Failure> wrong_option(std::string_view option, std::string_view value, std::string_view cause, std::string_view remedy);

/// A library error, with what the command was doing and what helps. An empty remedy is filled with the general one.
tl::unexpected<Failure> because(const Error& error, std::string_view doing = {}, std::string_view remedy = {}, std::string_view option = {});

/// The one line without the command's name: text and remedy.
std::string one_line(const Failure& failure);

}  // namespace kvferry::transfer_check
