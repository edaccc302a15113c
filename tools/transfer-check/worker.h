/// One rank of `transfer-check self`: an engine of its own with its pool, told over its channel what to do.
///
///   command ──► start(config) connect(peers) expect move compare digest quit
///   command ◄── started connected expecting progress ended quiesced compared digest failed
///
/// In a process of its own, or in a thread where the backend needs both ends in one process.
#pragma once

#include <string>
#include <vector>

#include "channel.h"

namespace kvferry::transfer_check {

/// Until the channel ends.
void run_worker(Channel channel);

/// The whole life of a worker process: `arguments` are kWorkerArgument and, for another work than this one, its name.
int run_worker_process(const std::vector<std::string>& arguments);

}  // namespace kvferry::transfer_check
