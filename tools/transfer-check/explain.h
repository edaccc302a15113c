/// transfer-check explain: what would move, without moving it.
#pragma once

#include "command_line.h"
#include "failure.h"

namespace kvferry::transfer_check {

Outcome<ExitStatus> run_explain(const Request& request);

/// The form with --sglang-lists (sglang_lists_file.cpp).
Outcome<ExitStatus> run_explain_sglang_lists(const Request& request);

}  // namespace kvferry::transfer_check
