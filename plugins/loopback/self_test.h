#pragma once

#include "backend.h"

namespace loopback {

/// Registers, connects to itself, writes, reads back, notifies, compares, deregisters; with fresh backends of the same limits and without faults, so
/// that peers and events of the caller are not touched.
Answer<void> self_test(const kvferry_host& host, const Config& config);

}  // namespace loopback
