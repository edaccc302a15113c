/// What planning costs: making a plan, giving its writes in batches, going on from a copied cursor, resolving a raw list.
///
/// Every job has 102,400 pieces: 64 entries of scattered pages, of runs of four pages, and of pages whose targets are contiguous (gathered). The counters
/// are per write and per piece.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kvferry/plan.h"

namespace {

using namespace kvferry;

constexpr std::uint64_t kEntries = 64;
constexpr std::uint64_t kPieces = 102'400;
constexpr std::uint64_t kItemBytes = 65'536;
constexpr std::uint64_t kSourceBase = 0x7f00'0000'0000, kTargetBase = 0x7e00'0000'0000;
constexpr std::size_t kBatchWrites = 512;

enum Shape { scattered, runs_of_four, gathered, one_entry };

struct Job {
  std::vector<PlanEntry> entries;
  IndexListsBySpace lists;
  PlanLimits limits;
};

/// `count` blocks of `length` indices that step by one, in random order, no two of them neighbours.
std::vector<std::uint64_t> blocks(std::uint64_t count, std::uint64_t length, std::uint64_t seed) {
  std::vector<std::uint64_t> starts(count);
  for (std::uint64_t i = 0; i < count; ++i) starts[i] = i * (length + 1);
  std::mt19937_64 random(seed);
  for (std::uint64_t i = count; i > 1; --i) std::swap(starts[i - 1], starts[random() % i]);
  std::vector<std::uint64_t> indices;
  indices.reserve(count * length);
  for (const std::uint64_t start : starts) {
    for (std::uint64_t i = 0; i < length; ++i) indices.push_back(start + i);
  }
  return indices;
}

Job make_job(Shape shape) {
  Job job;
  const std::uint64_t run_length = shape == runs_of_four ? 4 : 1;
  const std::uint64_t entries = shape == one_entry ? 1 : kEntries;
  const std::uint64_t runs = kPieces / entries;
  IndexLists& pages = job.lists[static_cast<std::size_t>(IndexSpace::pages)];
  pages.source = blocks(runs, run_length, 1);
  pages.target = blocks(runs, run_length, 2);
  if (shape == gathered) {
    std::iota(pages.target.begin(), pages.target.end(), std::uint64_t{0});
    job.limits.pieces_per_write_max = 16;
  }
  const std::uint64_t index_count = runs * (run_length + 1);
  for (std::uint64_t i = 0; i < entries; ++i) {
    PlanEntry entry;
    entry.source_entry = entry.target_entry = static_cast<std::uint32_t>(i);
    entry.item_length_bytes = entry.source_pitch_bytes = entry.target_pitch_bytes = kItemBytes;
    entry.source_index_count = entry.target_index_count = index_count;
    const std::uint64_t span = index_count * kItemBytes;
    entry.source = {1, i * span, entries * span};
    entry.target = {2, i * span, entries * span};
    entry.name = "kv k layer " + std::to_string(i);
    job.entries.push_back(std::move(entry));
  }
  return job;
}

std::vector<RawWrite> raw_list(const Job& job) {
  const IndexLists& pages = job.lists[static_cast<std::size_t>(IndexSpace::pages)];
  std::vector<RawWrite> list;
  for (const PlanEntry& entry : job.entries) {
    for (std::size_t i = 0; i < pages.source.size(); ++i) {
      list.push_back({kSourceBase + entry.source.offset + pages.source[i] * kItemBytes, kTargetBase + entry.target.offset + pages.target[i] * kItemBytes,
                      kItemBytes, KVFERRY_OP_WRITE});
    }
  }
  return list;
}

/// One region for each entry and side.
RegionMap regions(const Job& job, std::uint64_t base, RegionSpan PlanEntry::*side) {
  RegionMap map;
  for (std::size_t i = 0; i < job.entries.size(); ++i) {
    const RegionSpan& place = job.entries[i].*side;
    if (!map.add({i + 1, base + place.offset, place.region_length / job.entries.size()})) std::fprintf(stderr, "add region %zu failed\n", i);
  }
  return map;
}

std::shared_ptr<const Plan> checked(Result<std::shared_ptr<const Plan>> plan, benchmark::State& state) {
  if (plan) return *plan;
  state.SkipWithError(plan.error().text.c_str());
  return nullptr;
}

std::uint64_t give_all(const Plan& plan, std::vector<kvferry_write>& writes, std::vector<kvferry_piece>& pieces) {
  std::uint64_t given = 0;
  for (WriteCursor cursor = plan.begin(); !cursor.done();) {
    given += cursor.fill(writes, pieces).writes;
    benchmark::DoNotOptimize(writes.data());
    benchmark::DoNotOptimize(pieces.data());
    benchmark::ClobberMemory();
  }
  return given;
}

void report(benchmark::State& state, const Plan& plan) {
  using benchmark::Counter;
  const PlanCounts& counts = plan.counts();
  const auto per = [](std::uint64_t count) { return Counter(static_cast<double>(count), Counter::kIsIterationInvariantRate | Counter::kInvert); };
  state.counters["per_write"] = per(counts.writes);
  state.counters["per_piece"] = per(counts.pieces);
  state.counters["writes"] = static_cast<double>(counts.writes);
  state.counters["pieces"] = static_cast<double>(counts.pieces);
}

struct Buffers {
  explicit Buffers(const PlanLimits& limits) : writes(kBatchWrites), pieces(kBatchWrites * limits.pieces_per_write_max) {}
  std::vector<kvferry_write> writes;
  std::vector<kvferry_piece> pieces;
};

void make(benchmark::State& state, Shape shape) {
  const Job job = make_job(shape);
  std::shared_ptr<const Plan> plan;
  for (auto _ : state) {
    plan = checked(Plan::make(job.entries, job.lists, job.limits), state);
    if (!plan) return;
  }
  report(state, *plan);
}

void fill(benchmark::State& state, Shape shape) {
  const Job job = make_job(shape);
  const auto plan = checked(Plan::make(job.entries, job.lists, job.limits), state);
  if (!plan) return;
  Buffers buffers(job.limits);
  for (auto _ : state) benchmark::DoNotOptimize(give_all(*plan, buffers.writes, buffers.pieces));
  report(state, *plan);
}

void make_and_fill(benchmark::State& state, Shape shape) {
  const Job job = make_job(shape);
  Buffers buffers(job.limits);
  std::shared_ptr<const Plan> plan;
  for (auto _ : state) {
    plan = checked(Plan::make(job.entries, job.lists, job.limits), state);
    if (!plan) return;
    benchmark::DoNotOptimize(give_all(*plan, buffers.writes, buffers.pieces));
  }
  report(state, *plan);
}

/// Batches of which the backend takes half: the cursor goes on from a copy.
void skip_half(benchmark::State& state, Shape shape) {
  const Job job = make_job(shape);
  const auto plan = checked(Plan::make(job.entries, job.lists, job.limits), state);
  if (!plan) return;
  Buffers buffers(job.limits);
  for (auto _ : state) {
    for (WriteCursor cursor = plan->begin(); !cursor.done();) {
      WriteCursor ahead = cursor;
      const auto filled = ahead.fill(buffers.writes, buffers.pieces);
      benchmark::DoNotOptimize(buffers.writes.data());
      cursor.skip(std::max(1u, filled.writes / 2));
    }
  }
  report(state, *plan);
}

void raw_make(benchmark::State& state, Shape shape) {
  const Job job = make_job(shape);
  std::vector<RawWrite> list = raw_list(job);
  const RegionMap source = regions(job, kSourceBase, &PlanEntry::source), target = regions(job, kTargetBase, &PlanEntry::target);
  std::shared_ptr<const Plan> plan;
  for (auto _ : state) {
    plan = checked(Plan::make_raw(list, source, target, job.limits), state);
    if (!plan) return;
  }
  report(state, *plan);
}

void raw_fill(benchmark::State& state, Shape shape) {
  const Job job = make_job(shape);
  const RegionMap source = regions(job, kSourceBase, &PlanEntry::source), target = regions(job, kTargetBase, &PlanEntry::target);
  const auto plan = checked(Plan::make_raw(raw_list(job), source, target, job.limits), state);
  if (!plan) return;
  Buffers buffers(job.limits);
  for (auto _ : state) benchmark::DoNotOptimize(give_all(*plan, buffers.writes, buffers.pieces));
  report(state, *plan);
}

/// What the writes would cost if nothing had to be worked out: the same structs copied batch by batch.
void copy_elements(benchmark::State& state) {
  const Job job = make_job(scattered);
  const auto plan = checked(Plan::make(job.entries, job.lists, job.limits), state);
  if (!plan) return;
  const auto count = static_cast<std::size_t>(plan->counts().writes);
  std::vector<kvferry_write> all_writes(count);
  std::vector<kvferry_piece> all_pieces(count);
  plan->begin().fill(all_writes, all_pieces);
  Buffers buffers(job.limits);
  for (auto _ : state) {
    for (std::size_t first = 0; first < count; first += kBatchWrites) {
      const auto batch = static_cast<std::ptrdiff_t>(std::min(kBatchWrites, count - first));
      const auto begin = static_cast<std::ptrdiff_t>(first);
      std::copy_n(all_writes.begin() + begin, batch, buffers.writes.begin());
      std::copy_n(all_pieces.begin() + begin, batch, buffers.pieces.begin());
      benchmark::DoNotOptimize(buffers.writes.data());
      benchmark::DoNotOptimize(buffers.pieces.data());
      benchmark::ClobberMemory();
    }
  }
  report(state, *plan);
}

BENCHMARK(copy_elements)->Unit(benchmark::kMillisecond);

#define FOR_EACH_SHAPE(function)                                                              \
  BENCHMARK_CAPTURE(function, scattered, scattered)->Unit(benchmark::kMillisecond);       \
  BENCHMARK_CAPTURE(function, runs_of_four, runs_of_four)->Unit(benchmark::kMillisecond); \
  BENCHMARK_CAPTURE(function, gathered, gathered)->Unit(benchmark::kMillisecond);         \
  BENCHMARK_CAPTURE(function, one_entry, one_entry)->Unit(benchmark::kMillisecond)

FOR_EACH_SHAPE(make_and_fill);
FOR_EACH_SHAPE(make);
FOR_EACH_SHAPE(fill);
FOR_EACH_SHAPE(skip_half);
FOR_EACH_SHAPE(raw_make);
FOR_EACH_SHAPE(raw_fill);

}  // namespace

BENCHMARK_MAIN();
