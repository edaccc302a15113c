// Two peers of one throw-away backend, connected to each other: memory goes over, is announced and compared.
#pragma once

#include "kvferry/backend_abi.h"
#include "kvferry/result.h"
#include "settings.h"

namespace kvferry::ucx {

/// May take up to ten seconds. The backend it is asked of is not touched.
Result<void> self_test(const kvferry_host& host, const Settings& settings);

}  // namespace kvferry::ucx
