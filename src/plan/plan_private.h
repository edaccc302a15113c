/// Plan::State for the two files that need it.
#pragma once

#include "plan_state.h"

namespace kvferry {

struct Plan::State : plan_detail::PlanState {};

}  // namespace kvferry
