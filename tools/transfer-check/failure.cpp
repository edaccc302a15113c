#include "failure.h"

#include <algorithm>
#include <array>

namespace kvferry::transfer_check {
namespace {

struct CodeRule {
  ErrorCode code;
  ExitStatus status;
  std::string_view remedy;
};

constexpr std::array kRules = {
    CodeRule{ErrorCode::invalid_argument, ExitStatus::wrong_use, "see --help"},
    CodeRule{ErrorCode::out_of_range, ExitStatus::wrong_use, "keep it inside the pool"},
    CodeRule{ErrorCode::mismatch, ExitStatus::wrong_use, "describe both sides alike"},
    CodeRule{ErrorCode::unsupported, ExitStatus::wrong_use, "docs/status.md lists what this version does"},
    CodeRule{ErrorCode::not_found, ExitStatus::wrong_use, ""},
    CodeRule{ErrorCode::exists, ExitStatus::wrong_use, ""},
    CodeRule{ErrorCode::busy, ExitStatus::fails, "try again"},
    CodeRule{ErrorCode::limit, ExitStatus::host_lacks, "raise the limit or make the job smaller"},
    CodeRule{ErrorCode::no_memory, ExitStatus::host_lacks, "free memory or make the job smaller"},
    CodeRule{ErrorCode::timeout, ExitStatus::fails, "see whether the peer still works, or raise --timeout"},
    CodeRule{ErrorCode::peer_lost, ExitStatus::fails, "see why the peer ended or stopped, then run the check again"},
    CodeRule{ErrorCode::refused, ExitStatus::fails, ""},
    CodeRule{ErrorCode::fenced, ExitStatus::fails, ""},
    CodeRule{ErrorCode::canceled, ExitStatus::fails, ""},
    CodeRule{ErrorCode::stale, ExitStatus::fails, ""},
    CodeRule{ErrorCode::unavailable, ExitStatus::host_lacks, "transfer-check devices shows what this host offers"},
    CodeRule{ErrorCode::version, ExitStatus::host_lacks, "use builds of one version on both sides"},
    CodeRule{ErrorCode::io, ExitStatus::fails, ""},
    CodeRule{ErrorCode::internal, ExitStatus::fails, "please report it with this line"},
    CodeRule{ErrorCode::forked, ExitStatus::fails, "please report it with this line"},
    CodeRule{ErrorCode::cannot_promise, ExitStatus::fails, ""},
};

const CodeRule* find_rule(ErrorCode code) noexcept {
  const auto rule = std::find_if(kRules.begin(), kRules.end(), [code](const CodeRule& candidate) { return candidate.code == code; });
  return rule == kRules.end() ? nullptr : &*rule;
}

}  // namespace

ExitStatus exit_status_of(ErrorCode code) noexcept {
  const CodeRule* rule = find_rule(code);
  return rule == nullptr ? ExitStatus::fails : rule->status;
}

std::string_view general_remedy(ErrorCode code) noexcept {
  const CodeRule* rule = find_rule(code);
  return rule == nullptr ? std::string_view{} : rule->remedy;
}

tl::unexpected<Failure> wrong_option(std::string_view option, std::string_view value, std::string_view cause, std::string_view remedy) {
  Failure failure;
  std::string text(option);
  if (!value.empty()) text.append("=").append(value);
  text.append(": ").append(cause);
  failure.error = Error(ErrorCode::invalid_argument, std::move(text));
  failure.remedy = remedy;
  failure.option = option;
  failure.status = ExitStatus::wrong_use;
  return tl::unexpected<Failure>(std::move(failure));
}

tl::unexpected<Failure> because(const Error& error, std::string_view doing, std::string_view remedy, std::string_view option) {
  Failure failure;
  failure.error = doing.empty() ? error : error.within(doing);
  failure.remedy = remedy.empty() ? general_remedy(error.code) : remedy;
  failure.option = option;
  failure.status = exit_status_of(error.code);
  return tl::unexpected<Failure>(std::move(failure));
}

std::string one_line(const Failure& failure) {
  std::string line = failure.error.text;
  if (!failure.remedy.empty()) line += "; " + failure.remedy;
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

}  // namespace kvferry::transfer_check
