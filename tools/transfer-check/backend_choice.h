/// Which plugin an option names, and what it can do.
#pragma once

#include <string>

#include "command_line.h"
#include "failure.h"
#include "kvferry/backend.h"
#include "kvferry/plan.h"

namespace kvferry::transfer_check {

/// ucx, verbs, loopback; default ucx.
Outcome<std::string> parse_backend(const Request& request);

struct BackendFacts {
  kvferry_limits limits{};
  std::string version, build, path;
};
/// Loads the plugin, creates a backend with the environment's settings and asks it. `host` outlives nothing here.
Outcome<BackendFacts> query_backend(const std::string& name);

PlanLimits plan_limits(const kvferry_limits& limits);

/// Nothing where the lane may be tried; else what the devices say about it (exit status 3).
Outcome<void> check_lane(const std::string& backend, const std::string& lane);

}  // namespace kvferry::transfer_check
