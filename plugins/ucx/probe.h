// What this host offers to the UCX backend, for `transfer-check devices`. Opens nothing.
#pragma once

#include <vector>

#include "kvferry/backend_abi.h"
#include "settings.h"

namespace kvferry::ucx {

std::vector<kvferry_device> probe_devices(const Settings& settings);

}  // namespace kvferry::ucx
