/// transfer-check self: a request moved between processes of this host, every byte compared.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "backend_choice.h"
#include "command_line.h"
#include "crew.h"
#include "failure.h"
#include "job_plan.h"

namespace kvferry::transfer_check {

Outcome<ExitStatus> run_self(const Request& request);

/// What the user asked for, checked.
struct SelfOptions {
  Layout layout;
  JobPlan plan;
  BackendFacts backend;
  std::string backend_name, lane, memory, listen;
  std::uint16_t listen_port = 0;
  std::chrono::nanoseconds timeout{};
  bool json = false, corrupt = false, in_one_process = false;
  std::string fault;  ///< empty: none

  std::chrono::nanoseconds lease() const;
  std::chrono::nanoseconds heartbeat() const;
};
Outcome<SelfOptions> read_self_options(const Request& request);

/// What a run gave, for both forms of output.
struct Figures {
  std::uint64_t bytes = 0, bytes_compared = 0, bytes_wrong = 0, writes_before_merge = 0, writes = 0;
  double plan_seconds = 0, seconds = 0;
  std::string lane;
  Json first_wrong;  ///< null: none
  double gigabytes_per_second() const { return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0; }
};

/// When a rank learned that something went wrong.
struct Learned {
  std::string rank, peer;
  double seconds = 0;              ///< after the fault, where its time is known
  std::optional<Failure> failure;  ///< empty: it ended well
  bool quiesced = false;
  double quiesced_seconds = 0;
  std::string unquiesced;  ///< why that cannot be promised
};

struct FaultReport {
  std::string kind, rank;
  std::uint64_t at_bytes = 0;
  std::optional<bool> landed_after_quiesced;  ///< empty: not looked at
};

struct SelfResult {
  Figures figures;
  std::optional<Failure> failure;  ///< empty: every rank came to its end
  std::vector<Learned> learned;
  std::optional<FaultReport> fault;
};

/// What the workers reported, as sums over ranks.
Figures collect_figures(const SelfOptions& options, const Crew& crew);
/// What every rank knew in the end; times count from `since_ns` (0: not known).
std::vector<Learned> collect_learned(const Crew& crew, std::uint64_t since_ns);

/// Prints and gives the exit status.
Outcome<ExitStatus> report_self(const SelfOptions& options, const SelfResult& result, const Crew& crew);

/// The run with --fault: from all connected to everybody has learned.
Outcome<SelfResult> run_fault(const SelfOptions& options, Crew& crew);
/// Bytes after which the fault comes, for the rank that counts them.
std::uint64_t fault_point_bytes(const SelfOptions& options);

}  // namespace kvferry::transfer_check
