/// transfer-check bench: our lanes beside what they are made of, in one run.
#pragma once

#include "command_line.h"
#include "failure.h"

namespace kvferry::transfer_check {

Outcome<ExitStatus> run_bench(const Request& request);

}  // namespace kvferry::transfer_check
