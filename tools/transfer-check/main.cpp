// transfer-check: what an operator runs before and after anything else (docs/transfer-check.md).
//
//   arguments ──► command_line ──► explain | devices | self | bench ──► one result, or one Failure ──► exit status
#include <csignal>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "bench.h"
#include "child.h"
#include "command_line.h"
#include "devices.h"
#include "explain.h"
#include "report.h"
#include "self.h"
#include "worker.h"

namespace kvferry::transfer_check {
namespace {

Outcome<ExitStatus> run(const Request& request) {
  if (request.subcommand == "devices") return run_devices(request);
  if (request.subcommand == "explain") return run_explain(request);
  if (request.subcommand == "self") return run_self(request);
  return run_bench(request);
}

int run_command(const std::vector<std::string>& arguments) {
  const bool as_json = asks_for_json(arguments);
  auto parsed = parse_command_line(arguments);
  const std::string command = parsed ? parsed->request.subcommand : subcommand_of(arguments);
  if (!parsed) return report_failure(parsed.error(), command, as_json);
  if (!parsed->print.empty()) {
    auto printed = print(parsed->print);
    return printed ? 0 : report_failure(printed.error(), command, false);
  }
  auto status = run(parsed->request);
  return status ? static_cast<int>(*status) : report_failure(status.error(), command, as_json);
}

}  // namespace
}  // namespace kvferry::transfer_check

int main(int count, char** words) {
  using namespace kvferry;
  using namespace kvferry::transfer_check;
  (void)std::signal(SIGPIPE, SIG_IGN);  // A reader that went away is an error of write, told like any other.
  const std::vector<std::string> arguments(words + (count > 0 ? 1 : 0), words + count);
  try {
    if (!arguments.empty() && arguments.front() == kWorkerArgument) {
      return run_worker_process(arguments);
    }
    return run_command(arguments);
  } catch (const std::exception& error) {
    return report_failure(because(Error(ErrorCode::internal, error.what())).value(), {}, asks_for_json(arguments));
  }
}
