// A double of the UCX calls that the UCX backend uses, linked in place of libucp: workers of one process, messages between their queues, and on request what
// the real library does rarely. Everything random comes from one seed.
//
//   ucp_am_send_nbx ─► packed at once, or pending until a later progress ─► queue of the neighbour's worker ─► its handler, in its progress
//                         └ never, lost, reported as sent although the endpoint fails, in another order
#pragma once

#include <cstdint>
#include <string>

#include <ucs/type/status.h>

namespace ucx_double {

struct Faults {
  std::string fail_call;  ///< the Nth call of this function fails
  std::uint64_t fail_nth = 0;
  ucs_status_t fail_status = UCS_ERR_NO_MEMORY;

  std::uint32_t pending_per_mille = 0;   ///< of sends: not packed before a later progress
  std::uint32_t reorder_per_mille = 0;   ///< of deliveries: a later message comes first
  bool hold_sends = false;               ///< pending sends are not packed: the neighbour takes nothing
  std::uint64_t lose_after = 0;          ///< messages from the Nth on vanish, reported as sent; 0: none
  std::uint64_t break_after = 0;         ///< the Nth message is reported as sent and its endpoint fails in the next progress; 0: never
  bool error_within_progress = false;    ///< that error comes between two deliveries of one progress call, else before all of them
  bool fail_wire_up = false;             ///< an endpoint fails in the first progress after its creation
  std::uint32_t busy_arms = 0;           ///< so many calls of arm say busy
  bool reject_configuration = false;     ///< warns of unknown keys when a worker is made, as UCX does
  bool slow_close = false;               ///< closing an endpoint never finishes
};

/// Starts over: no faults, counters at zero. Objects must be gone.
void reset(std::uint64_t seed);
Faults& faults();
std::uint64_t calls(const std::string& name);

struct Live {
  std::int64_t configurations = 0, contexts = 0, workers = 0, endpoints = 0, requests = 0, addresses = 0;
  std::int64_t total() const { return configurations + contexts + workers + endpoints + requests + addresses; }
};
Live live();
std::uint64_t messages_delivered();

}  // namespace ucx_double
