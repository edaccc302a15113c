#include "bench.h"

#include <algorithm>
#include <cmath>

#include "backend_choice.h"
#include "bench_runners.h"
#include "progress_bar.h"
#include "report.h"
#include "values.h"

namespace kvferry::transfer_check {
namespace {

struct BenchRequest {
  std::string backend;
  bool in_one_process = false;
  std::vector<std::string> lanes;
  std::vector<std::uint64_t> piece_bytes;
  std::uint64_t pool_bytes = 0, rounds = 0, seed = 0;
  std::chrono::nanoseconds timeout{};
};

/// One line of the result: ours against one reference.
struct Row {
  std::uint64_t piece_bytes = 0;
  std::string asked, lane, reference;
  double ours = 0, theirs = 0, ratio = 0;  ///< GB/s; medians
  std::string missing;                     ///< why there is no reference figure
};

struct Reference {
  std::string name;
  std::unique_ptr<Runner> runner;
  std::string missing;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Outcome<BenchRequest> read_bench_request(const Request& request) {
  constexpr std::uint64_t kPoolMost = 64ull << 30;
  BenchRequest bench;
  auto backend = parse_backend(request);
  auto lanes = parse_list("--lane", request.text("--lane", "auto"));
  auto pool = parse_size("--pool-bytes", request.text("--pool-bytes", "256MiB"), {1u << 20, kPoolMost});
  auto rounds = parse_number("--rounds", request.text("--rounds", "9"), {1, 1000});
  auto seed = parse_number("--seed", request.text("--seed", "1"), {});
  auto timeout = parse_seconds("--timeout", request.text("--timeout", "60"));
  if (!backend) return tl::unexpected(backend.error());
  if (!lanes) return tl::unexpected(lanes.error());
  if (!pool) return tl::unexpected(pool.error());
  if (!rounds) return tl::unexpected(rounds.error());
  if (!seed) return tl::unexpected(seed.error());
  if (!timeout) return tl::unexpected(timeout.error());
  auto pieces = parse_sizes("--piece-bytes", request.text("--piece-bytes", "1KiB,4KiB,32KiB,1MiB"), {8, *pool / 4});
  if (!pieces) return tl::unexpected(pieces.error());
  for (const auto& lane : *lanes) {
    auto word = parse_word("--lane", lane, {"auto", "shm", "mapped", "tcp", "rc"});
    if (!word) return tl::unexpected(word.error());
  }
  bench.backend = *backend;
  bench.lanes = *lanes;
  bench.piece_bytes = *pieces;
  bench.pool_bytes = *pool;
  bench.rounds = *rounds;
  bench.seed = *seed;
  bench.timeout = *timeout;
  auto facts = query_backend(bench.backend);
  if (!facts) return tl::unexpected(facts.error());
  bench.in_one_process = (facts->limits.capabilities & KVFERRY_CAP_IN_PROCESS_ONLY) != 0;
  for (const auto& lane : bench.lanes) {
    if (auto usable = check_lane(bench.backend, lane); !usable) return tl::unexpected(usable.error());
  }
  constexpr std::uint64_t kPools = 6;  // Ours and the raw put's two each, memcpy's and the socket's target.
  if (auto fits = check_memory(kPools * bench.pool_bytes, "the benchmark"); !fits) return tl::unexpected(fits.error());
  return bench;
}

BenchOptions lane_options(const BenchRequest& bench, const std::string& lane) {
  const bool mapped = lane == "mapped";
  return {bench.backend, mapped ? "shm" : lane, mapped ? "allocated" : "user", bench.pool_bytes, bench.timeout, bench.in_one_process};
}

/// Nobody gets the figures of another lane than asked for.
Outcome<void> check_lane_in_use(const std::string& asked, const std::string& lane) {
  if (asked == "auto" || asked == lane) return {};
  return because(Error(ErrorCode::unavailable, "--lane=" + asked + ": the engines use " + lane + " between these processes"), {}, {}, "--lane");
}

Outcome<std::vector<Reference>> open_references(const BenchRequest& bench, const BenchOptions& options, OurEngine& ours) {
  std::vector<Reference> references;
  auto copy = MemoryCopy::open(ours.memory(), bench.pool_bytes);
  if (!copy) return tl::unexpected(copy.error());
  references.push_back({"memcpy", std::move(*copy), {}});
  if (!bench.in_one_process) {
    BenchOptions raw = options;
    raw.lane = ours.lane() == "mapped" ? "shm" : ours.lane();
    auto put = RawPut::open(raw);
    references.push_back({"raw put", put ? std::move(*put) : nullptr, put ? std::string() : one_line(put.error())});
  }
  if (ours.lane() == "tcp") references.push_back({"tcp socket", std::make_unique<PlainSocket>(ours), {}});
  return references;
}

/// Rounds of ours and of each reference by turns, so that what disturbs one disturbs all.
Outcome<std::vector<Row>> measure(const BenchRequest& bench, const std::string& lane, const PieceJob& job, OurEngine& ours,
                                  std::vector<Reference>& references) {
  const PieceList pieces = make_pieces(job);
  if (auto ready = ours.prepare(job, pieces); !ready) return tl::unexpected(ready.error());
  if (auto same = check_lane_in_use(lane, ours.lane()); !same) return tl::unexpected(same.error());
  for (auto& reference : references) {
    if (!reference.runner) continue;
    if (auto ready = reference.runner->prepare(job, pieces); !ready) return tl::unexpected(ready.error());
  }
  std::vector<double> our_rates;
  std::vector<std::vector<double>> rates(references.size()), ratios(references.size());
  const auto rate = [&job](double seconds) { return static_cast<double>(job.bytes()) / seconds / 1e9; };
  for (std::uint64_t round = 0; round < bench.rounds; ++round) {
    auto seconds = ours.round();
    if (!seconds) return tl::unexpected(seconds.error());
    our_rates.push_back(rate(*seconds));
    for (std::size_t i = 0; i < references.size(); ++i) {
      if (!references[i].runner) continue;
      auto theirs = references[i].runner->round();
      if (!theirs) return tl::unexpected(theirs.error());
      rates[i].push_back(rate(*theirs));
      ratios[i].push_back(*theirs / *seconds);
    }
  }
  std::vector<Row> rows;
  for (std::size_t i = 0; i < references.size(); ++i) {
    Row row;
    row.piece_bytes = job.piece_bytes;
    row.lane = ours.lane();
    row.reference = references[i].name;
    row.ours = median(our_rates);
    row.missing = references[i].missing;
    if (references[i].runner) {
      row.theirs = median(rates[i]);
      row.ratio = median(ratios[i]);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Outcome<void> measure_lane(const BenchRequest& bench, const std::string& lane, ProgressBar& bar, std::vector<Row>& ret_rows) {
  const BenchOptions options = lane_options(bench, lane);
  auto ours = OurEngine::open(options);
  if (!ours) return tl::unexpected(ours.error());
  auto references = open_references(bench, options, **ours);
  if (!references) return tl::unexpected(references.error());
  for (const auto piece_bytes : bench.piece_bytes) {
    bar.show(lane, ret_rows.size() + 1, bench.lanes.size() * bench.piece_bytes.size() * references->size());
    auto rows = measure(bench, lane, {piece_bytes, bench.pool_bytes, bench.seed}, **ours, *references);
    if (!rows) return tl::unexpected(rows.error());
    for (auto& row : *rows) {
      row.asked = lane;
      ret_rows.push_back(std::move(row));
    }
  }
  return {};
}

Json bench_document(const BenchRequest& bench, const std::vector<Row>& rows) {
  Json document = begin_document("bench", "pass");
  document["backend"] = bench.backend;
  document["pool_bytes"] = bench.pool_bytes;
  document["rounds"] = bench.rounds;
  document["in_one_process"] = bench.in_one_process;
  Json results = Json::array();
  for (const auto& row : rows) {
    const bool has = row.missing.empty();
    Json item = {{"piece_bytes", row.piece_bytes},
                 {"lane", row.lane},
                 {"lane_asked", row.asked},
                 {"reference", row.reference},
                 {"gigabytes_per_second", row.ours}};
    item["reference_gigabytes_per_second"] = has ? Json(row.theirs) : Json(nullptr);
    item["ratio"] = has ? Json(row.ratio) : Json(nullptr);
    if (!has) item["missing"] = row.missing;
    results.push_back(std::move(item));
  }
  document["results"] = std::move(results);
  return document;
}

std::string bench_text(const BenchRequest& bench, const std::vector<Row>& rows) {
  using enum Table::Align;
  std::string text = "backend " + bench.backend + (bench.in_one_process ? ", both engines in this one process" : ", two processes") +
                     "; random pieces over " + bytes_text(bench.pool_bytes) + ", half of it a round; medians of " + std::to_string(bench.rounds) +
                     " interleaved pairs\n\n";
  Table table({{"lane"}, {"piece bytes", right}, {"GB/s", right}, {"against"}, {"its GB/s", right}, {"ratio", right}});
  std::string missing;
  for (const auto& row : rows) {
    const bool has = row.missing.empty();
    table.add({row.lane, std::to_string(row.piece_bytes), fixed_text(row.ours, 2), row.reference, has ? fixed_text(row.theirs, 2) : "-",
               has ? fixed_text(row.ratio, 2) : "-"});
    if (!has) missing = row.reference + " is missing: " + row.missing + "\n";
  }
  return text + table.text() + (missing.empty() ? "" : "\n" + missing);
}

}  // namespace

Outcome<ExitStatus> run_bench(const Request& request) {
  auto bench = read_bench_request(request);
  if (!bench) return tl::unexpected(bench.error());
  std::vector<Row> rows;
  {
    ProgressBar bar;
    for (const auto& lane : bench->lanes) {
      if (auto measured = measure_lane(*bench, lane, bar, rows); !measured) return tl::unexpected(measured.error());
    }
  }
  auto printed = request.has("--json") ? print_document(bench_document(*bench, rows)) : print(bench_text(*bench, rows));
  if (!printed) return tl::unexpected(printed.error());
  return ExitStatus::holds;
}

}  // namespace kvferry::transfer_check
