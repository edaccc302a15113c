/// The target of `transfer-check bench`: an engine with one pool, and a plain TCP socket as the measure of it.
///
///   command ──► open(backend, lane, memory, pool) poison(job) compare(job) listen_socket(job) quit
///   command ◄── opened(address, base) poisoned compared socket(port) failed
#pragma once

#include "channel.h"

namespace kvferry::transfer_check {

/// Until the channel ends.
void run_bench_worker(Channel channel);

}  // namespace kvferry::transfer_check
