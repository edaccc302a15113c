/// The workers of one `self`: started together, listened to together, ended together.
///
/// Nothing here waits without a deadline, and nobody is waited for who is dead or stopped: `advance` returns when every worker is where it should be,
/// when one failed, ended or stopped, or at the deadline, and says who and why.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "child.h"
#include "layout.h"
#include "worker_config.h"

namespace kvferry::transfer_check {

/// How one transfer of a worker went.
struct TransferState {
  std::string peer;
  bool ended = false, quiesced = false;
  std::optional<Failure> error;
  std::optional<Failure> unquiesced;  ///< it cannot be promised that nothing moves any more
  std::uint64_t ended_at_ns = 0, quiesced_at_ns = 0;
  std::uint64_t bytes = 0, writes_before_merge = 0, writes = 0, plan_ns = 0, submitted_ns = 0, finished_ns = 0;

  /// Nothing more will be heard of it.
  bool over() const { return ended && (quiesced || unquiesced); }
};

struct Member {
  std::unique_ptr<Child> child;
  bool is_prefill = false;
  std::size_t rank = 0;  ///< in its side
  std::size_t transfers_expected = 0;
  bool started = false, connected = false, expecting = false;
  std::string address;
  std::map<std::string, std::string> lanes;  ///< by peer
  std::map<std::string, std::string> details;
  std::map<std::uint64_t, TransferState> transfers;
  std::optional<Failure> failed;
  std::string failed_step;
  std::optional<Ending> ending;  ///< it is gone
  std::uint64_t gone_at_ns = 0;
  Json compared;  ///< null until it is
  std::vector<std::uint64_t> digests;
  std::string progress_step;  ///< "fill", "move", "compare"
  std::uint64_t progress_bytes = 0;

  const std::string& name() const { return child->name(); }
  bool is_over() const;  ///< all transfers are
};

struct FaultPoint {
  std::size_t member = 0;
  std::uint64_t bytes = 0;
};

class Crew {
 public:
  explicit Crew(bool in_one_process) : in_one_process_(in_one_process) {}

  Outcome<void> add(const WorkerConfig& config, std::size_t rank, std::size_t transfers_expected);
  std::vector<Member>& members() { return members_; }
  const std::vector<Member>& members() const { return members_; }

  /// Failures of sending show as the member's end.
  void send(Member& member, const Json& message);
  void send_all(const Json& message);

  using Arrived = std::function<bool(const Member&)>;
  /// Until every member arrived. `doing` is for the message: "connect".
  Outcome<void> advance(std::string_view doing, Deadline deadline, const Arrived& arrived);
  /// Until every living, running member arrived, failed or ended; true: all of them did before the deadline.
  bool settle(Deadline deadline, const Arrived& arrived);
  /// Until `done`; false at the deadline. Failures of members do not end it.
  bool wait(Deadline deadline, const std::function<bool()>& done);

  std::optional<FaultPoint>& fault_point() { return fault_point_; }
  /// Called after everything that was heard, for a progress bar.
  void on_heard(std::function<void()> heard) { heard_ = std::move(heard); }
  /// Asks all to quit, waits a moment, kills the rest.
  void dismiss();

 private:
  /// Waits for something to happen, at most until the deadline, and takes it in.
  void listen(Deadline deadline);
  void hear(std::size_t index);
  void take(std::size_t index, const Json& message);
  std::optional<Failure> trouble(std::string_view doing) const;

  bool in_one_process_;
  std::vector<Member> members_;
  std::optional<FaultPoint> fault_point_;
  std::function<void()> heard_;
};

/// Monotonic nanoseconds: the clock of the engines.
std::uint64_t monotonic_ns();

}  // namespace kvferry::transfer_check
