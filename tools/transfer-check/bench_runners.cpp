#include "bench_runners.h"

#include <cstring>
#include <filesystem>

#include "bench_worker.h"
#include "plain_socket.h"

namespace kvferry::transfer_check {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Json job_json(const char* what, const PieceJob& job) {
  return {{"do", what}, {"piece_bytes", job.piece_bytes}, {"pool_bytes", job.pool_bytes}, {"seed", job.seed}};
}

}  // namespace

Outcome<Json> ask_child(Child& child, const Json& message, std::string_view answer, std::chrono::nanoseconds timeout) {
  const auto deadline = deadline_in(timeout);
  if (auto sent = child.channel().send(message, deadline); !sent) return because(sent.error(), child.name());
  auto reply = child.channel().receive(deadline);
  if (!reply) {
    const auto ending = child.ended();
    const std::string said = child.said();
    return because(Error(ErrorCode::peer_lost, child.name() + " " + (ending ? ending->text() : "ended") + (said.empty() ? "" : ", saying: " + said)));
  }
  if (!*reply) {
    return because(Error(ErrorCode::timeout, child.name() + " did not answer in time" + (child.is_stopped() ? ": it is stopped by a signal" : "")));
  }
  if ((*reply)->at("is") == "failed") return tl::unexpected(failure_of((*reply)->at("error")));
  if ((*reply)->at("is") != answer) return because(Error(ErrorCode::internal, child.name() + " answered " + (*reply)->dump()));
  return std::move(**reply);
}

// ---- ours

Outcome<std::unique_ptr<OurEngine>> OurEngine::open(const BenchOptions& options) {
  std::unique_ptr<OurEngine> ours(new OurEngine(options));
  auto mapping = Mapping::make(options.pool_bytes);
  if (!mapping) return tl::unexpected(mapping.error());
  ours->mapping_ = std::move(*mapping);
  auto target = options.in_one_process ? Child::start_thread("bench target", run_bench_worker)
                                       : Child::spawn("bench target", program_path(), {kWorkerArgument, kBenchWorker});
  if (!target) return tl::unexpected(target.error());
  ours->target_ = std::move(*target);
  auto opened = ours->ask(
      {{"do", "open"}, {"backend", options.backend}, {"lane", options.lane}, {"memory", options.memory}, {"pool_bytes", options.pool_bytes}},
      "opened");
  if (!opened) return tl::unexpected(opened.error());
  ours->address_ = opened->at("address").get<std::string>();
  ours->target_base_ = opened->at("base").get<std::uint64_t>();
  if (auto connected = ours->connect(); !connected) return tl::unexpected(connected.error());
  return ours;
}

OurEngine::~OurEngine() = default;

Outcome<Json> OurEngine::ask(Json message, std::string_view answer) { return ask_child(*target_, message, answer, options_.timeout); }

Outcome<void> OurEngine::connect() {
  NodeOptions options;
  options.backend = options_.backend;
  options.engine.name = "bench source";
  options.engine.lane = options_.lane;
  auto node = Node::open(std::move(options));
  if (!node) return because(node.error());
  node_ = std::move(*node);
  Backend::RegionRequest region;
  region.address = reinterpret_cast<std::uint64_t>(memory().data());
  region.length = memory().size();
  if (auto registered = node_->register_region(region); !registered) return because(registered.error());
  auto peer = node_->open_peer(address_, options_.timeout);
  if (!peer) return because(peer.error());
  peer_ = *peer;
  auto info = node_->wait_peer(peer_, options_.timeout);
  if (!info) return because(info.error());
  lane_ = info->lane;
  return {};
}

Outcome<void> OurEngine::prepare(const PieceJob& job, const PieceList& pieces) {
  job_ = job;
  const Pattern pattern({{"bench source", piece_pool(job)}});
  pattern.fill(0, memory(), {});
  const auto source_base = reinterpret_cast<std::uint64_t>(memory().data());
  writes_.clear();
  for (std::size_t i = 0; i < pieces.source.size(); ++i) {
    writes_.push_back({source_base + pieces.source[i], target_base_ + pieces.target[i], job.piece_bytes, KVFERRY_OP_WRITE});
  }
  return verified_round();
}

Outcome<double> OurEngine::round() {
  RawTransfer transfer;
  transfer.peer = peer_;
  transfer.writes = writes_;
  transfer.deadline_ns = static_cast<std::uint64_t>(options_.timeout.count());
  const auto begin = Clock::now();
  auto id = node_->submit(std::move(transfer));
  if (!id) return because(id.error());
  auto outcome = node_->wait(*id, options_.timeout, true);
  const double seconds = seconds_since(begin);
  if (!outcome) return because(outcome.error());
  if (outcome->error) return because(*outcome->error);
  return seconds;
}

Outcome<void> OurEngine::verified_round() {
  if (auto poisoned = ask(job_json("poison", job_), "poisoned"); !poisoned) return tl::unexpected(poisoned.error());
  if (auto moved = round(); !moved) return tl::unexpected(moved.error());
  auto info = node_->peer_info(peer_);
  if (!info) return because(info.error());
  lane_ = info->lane;  // Only now: whether memory could be mapped shows when it is written.
  auto compared = ask(job_json("compare", job_), "compared");
  if (!compared) return tl::unexpected(compared.error());
  if (compared->at("bytes_wrong") == 0) return {};
  Failure failure = because(Error(ErrorCode::mismatch, std::to_string(compared->at("bytes_wrong").get<std::uint64_t>()) +
                                                           " bytes are wrong, the first: " + compared->at("text").get<std::string>()),
                            {}, "please report it with this line")
                        .value();
  failure.status = ExitStatus::fails;
  return tl::unexpected(std::move(failure));
}

Outcome<std::uint16_t> OurEngine::listen_socket() {
  auto socket = ask(job_json("listen_socket", job_), "socket");
  if (!socket) return tl::unexpected(socket.error());
  return socket->at("port").get<std::uint16_t>();
}

// ---- memcpy

Outcome<std::unique_ptr<MemoryCopy>> MemoryCopy::open(std::span<std::byte> source, std::uint64_t pool_bytes) {
  auto target = Mapping::make(pool_bytes);
  if (!target) return tl::unexpected(target.error());
  auto copy = std::make_unique<MemoryCopy>();
  copy->source_ = source;
  copy->target_ = std::move(*target);
  return copy;
}

Outcome<void> MemoryCopy::prepare(const PieceJob& job, const PieceList& pieces) {
  job_ = job;
  pieces_ = &pieces;
  std::memset(target_.bytes().data(), 0, target_.bytes().size());  // Pages are there before the clock runs.
  return {};
}

Outcome<double> MemoryCopy::round() {
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < pieces_->source.size(); ++i) {
    std::memcpy(target_.bytes().data() + pieces_->target[i], source_.data() + pieces_->source[i], job_.piece_bytes);
  }
  return seconds_since(begin);
}

// ---- one TCP connection

Outcome<void> PlainSocket::prepare(const PieceJob& job, const PieceList& pieces) {
  job_ = job;
  pieces_ = &pieces;
  socket_.close();
  auto port = ours_.listen_socket();
  if (!port) return tl::unexpected(port.error());
  auto socket = connect_to_loopback(*port);
  if (!socket) return because(socket.error());
  socket_ = std::move(*socket);
  if (auto warm = round(); !warm) return tl::unexpected(warm.error());
  return {};
}

Outcome<double> PlainSocket::round() {
  const auto begin = Clock::now();
  auto sent = send_pieces(socket_, {ours_.memory(), pieces_->source, job_.piece_bytes});
  if (!sent) return because(sent.error());
  return seconds_since(begin);
}

// ---- raw put

Outcome<std::unique_ptr<RawPut>> RawPut::open(const BenchOptions& options) {
  const std::filesystem::path here = std::filesystem::path(program_path()).parent_path();
  std::string tried;
  for (const auto& candidate : {here / "kvferry-raw-put", here / KVFERRY_HELPER_FOLDER / "kvferry-raw-put"}) {
    std::error_code error;
    tried += (tried.empty() ? "" : ", ") + candidate.lexically_normal().string();
    if (!std::filesystem::is_regular_file(candidate, error)) continue;
    std::unique_ptr<RawPut> put(new RawPut(options));
    for (const bool is_target : {true, false}) {
      const char* side = is_target ? "target" : "source";
      auto child =
          Child::spawn(std::string("raw put ") + side, candidate.string(), {side, options.lane, options.memory, std::to_string(options.pool_bytes)});
      if (!child) return tl::unexpected(child.error());
      (is_target ? put->target_ : put->source_) = std::move(*child);
    }
    auto described = put->ask(*put->target_, {{"do", "describe"}}, "described");
    if (!described) return tl::unexpected(described.error());
    Json connect = std::move(*described);
    connect["do"] = "connect";
    auto connected = put->ask(*put->source_, connect, "connected");
    if (!connected) return tl::unexpected(connected.error());
    return put;
  }
  return because(Error(ErrorCode::unavailable, "the helper program is not there, tried " + tried), {}, "build with UCX to have it");
}

Outcome<Json> RawPut::ask(Child& child, const Json& message, std::string_view answer) { return ask_child(child, message, answer, options_.timeout); }

Outcome<void> RawPut::prepare(const PieceJob& job, const PieceList& pieces) {
  (void)pieces;  // The helper makes the same lists from the same numbers.
  if (auto prepared = ask(*source_, job_json("prepare", job), "prepared"); !prepared) return tl::unexpected(prepared.error());
  if (auto warm = round(); !warm) return tl::unexpected(warm.error());
  return {};
}

/// The target spins only while a round runs: it would take a core from the others.
Outcome<double> RawPut::round() {
  if (auto serving = ask(*target_, {{"do", "serve"}}, "serving"); !serving) return tl::unexpected(serving.error());
  auto ran = ask(*source_, {{"do", "run"}}, "ran");
  if (!ran) return tl::unexpected(ran.error());
  if (auto rests = ask(*target_, {{"do", "rest"}}, "rests"); !rests) return tl::unexpected(rests.error());
  return ran->at("seconds").get<double>();
}

}  // namespace kvferry::transfer_check
