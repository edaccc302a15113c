/// transfer-check devices: what this host offers.
#pragma once

#include "command_line.h"
#include "failure.h"

namespace kvferry::transfer_check {

Outcome<ExitStatus> run_devices(const Request& request);

}  // namespace kvferry::transfer_check
