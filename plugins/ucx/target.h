// The target's half of a peer: the guard. Everything that lands here lands through `on_data`, on the backend's thread, after it was checked:
//
//   message ─► lengths ─► sequence new? ─► room fenced? ─► per piece: region current, open to this peer, range inside ─► copy
//                                              └────────────────┴─ refused: the rest of the message is skipped, the initiator is told
//
// So a fence, a deregistration and a quiesced region hold from the moment they are asked for: no handler runs then.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "../common/counters.h"
#include "../common/events.h"
#include "../common/fences.h"
#include "bounds.h"
#include "regions.h"
#include "wire.h"

namespace kvferry::ucx {

using namespace plugins;

class Target {
 public:
  /// What the peer must send to the initiator.
  struct Refusal {
    std::uint64_t sequence = 0;
    ErrorCode code = ErrorCode::refused;
    std::uint32_t entry_index = 0;
    std::string text;
  };
  struct Environment {
    kvferry_peer peer = 0;
    RegionTable& regions;
    const Fences& fences_of_all;
    EventQueue& events;
    Counters& counters;
  };
  explicit Target(const Environment& environment) : env_(environment) {}

  /// Error: the message is malformed, or its sequence cannot be; the peer must be dropped. `bytes` has at least a MessageHead and its right length.
  Result<void> on_data(std::span<const std::uint8_t> bytes);

  void fence(std::uint64_t room, std::uint32_t generation) { fences_.add(room, generation); }
  const Fences& fences() const noexcept { return fences_; }

  /// Refusals since the last call, to be sent before the acknowledgement that counts them.
  std::vector<Refusal>& refusals() noexcept { return refusals_out_; }
  /// An acknowledgement is due: asked for, and not given since.
  bool ack_due() const noexcept { return ack_wanted_ && done_upto_ != acked_; }
  AckMessage take_ack() noexcept;

  std::uint64_t events_waiting() const noexcept { return events_waiting_; }
  void event_polled() noexcept { --events_waiting_; }

 private:
  struct Refused {
    std::uint64_t room = 0;
    std::uint64_t sequence = 0;
    std::uint32_t generation = 0;
    ErrorCode code = ErrorCode::refused;
  };
  /// A message that was applied; settled when everything before it is.
  struct Applied {
    std::uint64_t entries = 0, skipped = 0;
    std::uint64_t since = 0;
    bool notify = false;
    bool refused = false;
    NotificationRecord record{};
  };

  Result<void> check_layout(const DataHead& head, std::span<const std::uint8_t> bytes, std::uint64_t& ret_payload_offset) const;
  Result<void> admit(std::uint64_t sequence) const;
  void apply(const DataHead& head, const std::uint8_t* entries, const std::uint8_t* payload, Applied& applied);
  void prefetch_entry(const DataEntry& entry) const noexcept;
  std::string objection(const Region* region, const DataEntry& entry) const;
  void refuse(const DataHead& head, std::uint32_t index, ErrorCode code, std::string text, kvferry_region region = 0);
  void remember(const Refused& refused);
  void settle(std::uint64_t sequence, const Applied& applied);
  void notify(std::uint64_t sequence, const Applied& applied);
  bool fenced(std::uint64_t room, std::uint32_t generation) const {
    return fences_.holds(room, generation) || env_.fences_of_all.holds(room, generation);
  }

  const Environment env_;
  Fences fences_;
  std::uint64_t done_upto_ = 0;       ///< every message up to here is dealt with, its notification too
  std::map<std::uint64_t, Applied> ahead_;  ///< applied, with one before it still missing
  std::vector<Refused> refused_;            ///< of interest to notifications to come
  std::vector<Refusal> refusals_out_;
  std::uint64_t acked_ = 0;
  bool ack_wanted_ = false;
  std::uint64_t entries_applied_ = 0, entries_skipped_ = 0, messages_refused_ = 0;
  std::uint64_t events_waiting_ = 0;
};

}  // namespace kvferry::ucx
