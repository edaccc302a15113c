/// One way to move the pieces of a round: ours, and what it is measured against. Each is opened once per lane and run many times per piece size.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "bench_pieces.h"
#include "child.h"
#include "failure.h"
#include "host_memory.h"
#include "kvferry/node.h"

namespace kvferry::transfer_check {

class Runner {
 public:
  virtual ~Runner() = default;
  /// Before the rounds of a job.
  virtual Outcome<void> prepare(const PieceJob& job, const PieceList& pieces) = 0;
  /// Seconds from the lists being known to the last byte being there.
  virtual Outcome<double> round() = 0;
};

struct BenchOptions {
  std::string backend, lane, memory;  ///< lane as the engine knows it
  std::uint64_t pool_bytes = 0;
  std::chrono::nanoseconds timeout{};
  bool in_one_process = false;
};

/// Our engine: a raw list submitted to a node here, a node in another process as target.
class OurEngine final : public Runner {
 public:
  static Outcome<std::unique_ptr<OurEngine>> open(const BenchOptions& options);
  ~OurEngine() override;

  const std::string& lane() const { return lane_; }
  std::span<std::byte> memory() const { return mapping_.bytes(); }
  Outcome<void> prepare(const PieceJob& job, const PieceList& pieces) override;
  Outcome<double> round() override;
  /// The first round of a job: every byte of the target compared after it.
  Outcome<void> verified_round();
  /// Port of a plain socket in the target process that takes the same job.
  Outcome<std::uint16_t> listen_socket();

 private:
  explicit OurEngine(BenchOptions options) : options_(std::move(options)) {}
  Outcome<Json> ask(Json message, std::string_view answer);
  Outcome<void> connect();

  BenchOptions options_;
  PieceJob job_;
  Mapping mapping_;
  std::unique_ptr<Child> target_;
  std::unique_ptr<Node> node_;
  PeerId peer_{};
  std::string address_, lane_;
  std::uint64_t target_base_ = 0;
  std::vector<RawWrite> writes_;
};

/// The same pieces copied by one thread of this process.
class MemoryCopy final : public Runner {
 public:
  static Outcome<std::unique_ptr<MemoryCopy>> open(std::span<std::byte> source, std::uint64_t pool_bytes);
  Outcome<void> prepare(const PieceJob& job, const PieceList& pieces) override;
  Outcome<double> round() override;

 private:
  std::span<std::byte> source_;
  Mapping target_;
  PieceJob job_;
  const PieceList* pieces_ = nullptr;
};

/// One TCP connection to the target process.
class PlainSocket final : public Runner {
 public:
  PlainSocket(OurEngine& ours) : ours_(ours) {}
  Outcome<void> prepare(const PieceJob& job, const PieceList& pieces) override;
  Outcome<double> round() override;

 private:
  OurEngine& ours_;
  Descriptor socket_;
  PieceJob job_;
  const PieceList* pieces_ = nullptr;
};

/// ucp_put_nbx in a loop and one flush, in two processes of a helper program that is there where UCX was when we were built.
class RawPut final : public Runner {
 public:
  static Outcome<std::unique_ptr<RawPut>> open(const BenchOptions& options);
  Outcome<void> prepare(const PieceJob& job, const PieceList& pieces) override;
  Outcome<double> round() override;

 private:
  explicit RawPut(BenchOptions options) : options_(std::move(options)) {}
  Outcome<Json> ask(Child& child, const Json& message, std::string_view answer);

  BenchOptions options_;
  std::unique_ptr<Child> source_, target_;
};

/// One answer of a child that does nothing unasked; its end, its error and the deadline are failures that name it.
Outcome<Json> ask_child(Child& child, const Json& message, std::string_view answer, std::chrono::nanoseconds timeout);

}  // namespace kvferry::transfer_check
