/// Plans against the slow oracle: every small configuration, then large random ones.
#include <catch2/catch.hpp>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "support/counted_new.h"
#include "plan_oracle.h"

using namespace kvferry;
using namespace kvferry::test;

namespace {

constexpr std::uint64_t kRegionBytes = 1 << 20;

/// Checks a property on `cases` random inputs. RapidCheck prints the seed; RC_PARAMS="seed=..." runs it again.
template <class Property>
bool holds(const std::string& what, int cases, Property property) {
  rc::detail::TestMetadata metadata;
  metadata.id = metadata.description = what;
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.maxSuccess = cases;
  const auto result = rc::detail::checkTestable(property, metadata, params);
  std::cerr << "- " << what << ", seed " << params.seed << std::endl;
  rc::detail::printResultMessage(result, std::cerr);
  std::cerr << std::endl;
  return result.template is<rc::detail::SuccessResult>();
}

std::uint64_t pick(std::uint64_t low, std::uint64_t high) { return *rc::gen::inRange(low, high + 1); }
template <class T>
T one_of(std::vector<T> values) {
  return *rc::gen::elementOf(std::move(values));
}

/// Index lists over `count` indices: a mix of steps by one on both sides, on one side, and jumps. Targets are distinct.
IndexLists random_lists(std::uint64_t source_count, std::uint64_t target_count, std::uint64_t length_max) {
  IndexLists lists;
  std::set<std::uint64_t> used;
  const std::uint64_t length = pick(0, std::min(length_max, target_count));
  while (lists.source.size() < length) {
    const bool source_steps = pick(0, 3) != 0, target_steps = pick(0, 3) != 0;
    std::uint64_t source = pick(0, source_count - 1), target = pick(0, target_count - 1);
    if (!lists.source.empty()) {
      if (source_steps) source = (lists.source.back() + 1) % source_count;
      if (target_steps) target = (lists.target.back() + 1) % target_count;
    }
    while (used.count(target) != 0) target = (target + 1) % target_count;
    used.insert(target);
    lists.source.push_back(source);
    lists.target.push_back(target);
  }
  return lists;
}

std::uint64_t span(std::uint64_t pitch, std::uint64_t count, std::uint64_t item) { return count == 0 ? 0 : (count - 1) * pitch + item; }

/// Entries laid out one after another in two regions of each side, some of them side by side.
Job random_job() {
  Job job;
  std::array<std::uint64_t, kIndexSpacesCount> source_counts{}, target_counts{};
  for (std::size_t space = 0; space < kIndexSpacesCount; ++space) {
    source_counts[space] = pick(1, 40);
    target_counts[space] = pick(1, 40);
  }
  const std::uint64_t spaces = pick(1, 3);
  for (std::size_t space = 0; space < spaces; ++space) job.lists[space] = random_lists(source_counts[space], target_counts[space], 30);
  std::map<kvferry_region, std::uint64_t> source_ends, target_ends;
  const std::uint64_t entries = pick(0, 6);
  for (std::uint64_t i = 0; i < entries; ++i) {
    PlanEntry entry;
    entry.space = static_cast<IndexSpace>(pick(0, spaces - 1));
    const auto space = static_cast<std::size_t>(entry.space);
    entry.item_length_bytes = one_of<std::uint64_t>({1, 2, 3, 5, 8, 16, 33});
    entry.source_pitch_bytes = entry.item_length_bytes + one_of<std::uint64_t>({0, 0, 0, 1, 7, entry.item_length_bytes});
    entry.target_pitch_bytes = entry.item_length_bytes + one_of<std::uint64_t>({0, 0, 0, 1, 7, entry.item_length_bytes});
    entry.source_index_count = source_counts[space];
    entry.target_index_count = target_counts[space];
    const kvferry_region source_region = pick(1, 2), target_region = pick(1, 2);
    entry.source = {source_region, source_ends[source_region] + one_of<std::uint64_t>({0, 0, 1, 9}), kRegionBytes};
    entry.target = {target_region, target_ends[target_region] + one_of<std::uint64_t>({0, 0, 1, 9}), kRegionBytes};
    source_ends[source_region] = entry.source.offset + span(entry.source_pitch_bytes, entry.source_index_count, entry.item_length_bytes);
    target_ends[target_region] = entry.target.offset + span(entry.target_pitch_bytes, entry.target_index_count, entry.item_length_bytes);
    entry.name = "entry " + std::to_string(i);
    job.entries.push_back(std::move(entry));
  }
  job.limits.message_bytes_max = one_of<std::uint64_t>({1, 2, 3, 7, 8, 16, 32, 33, 34, 100, 1000, 1 << 20});
  job.limits.pieces_per_write_max = one_of<std::uint32_t>({1, 1, 2, 3, 4, 16});
  return job;
}

/// Entries of the second pair lie in one of these ways to the first.
enum class Placement { one_entry, side_by_side, target_side_by_side, source_side_by_side, apart, other_regions, alternating, reversed };
constexpr Placement kPlacements[] = {Placement::one_entry,           Placement::side_by_side, Placement::target_side_by_side, Placement::source_side_by_side,
                                     Placement::apart,               Placement::other_regions, Placement::alternating,         Placement::reversed};

constexpr std::uint64_t kSmallCount = 3;

struct SmallShape {
  std::uint64_t item, source_padding, target_padding;
  Placement placement;
};

/// Empty where the shape cannot be laid out.
std::vector<PlanEntry> small_entries(const SmallShape& shape) {
  PlanEntry first;
  first.item_length_bytes = shape.item;
  first.source_pitch_bytes = shape.item + shape.source_padding;
  first.target_pitch_bytes = shape.item + shape.target_padding;
  first.source_index_count = first.target_index_count = kSmallCount;
  first.source = {1, 0, kRegionBytes};
  first.target = {2, 0, kRegionBytes};
  first.name = "first";
  PlanEntry second = first;
  second.name = "second";
  const std::uint64_t source_end = span(first.source_pitch_bytes, kSmallCount, shape.item), target_end = span(first.target_pitch_bytes, kSmallCount, shape.item);
  switch (shape.placement) {
    case Placement::one_entry: return {first};
    case Placement::side_by_side:
      second.source.offset = source_end;
      second.target.offset = target_end;
      break;
    case Placement::target_side_by_side:
      second.source.offset = source_end + 1;
      second.target.offset = target_end;
      break;
    case Placement::source_side_by_side:
      second.source.offset = source_end;
      second.target.offset = target_end + 1;
      break;
    case Placement::apart:
      second.source.offset = source_end + 1;
      second.target.offset = target_end + 1;
      break;
    case Placement::other_regions:
      second.source = {3, source_end, kRegionBytes};
      second.target = {4, target_end, kRegionBytes};
      break;
    case Placement::alternating:
      if (shape.source_padding < shape.item || shape.target_padding < shape.item) return {};
      second.source.offset = second.target.offset = shape.item;
      break;
    case Placement::reversed:
      first.source.offset = source_end;
      first.target.offset = target_end;
      break;
  }
  return {first, second};
}

/// All pairs of lists of up to three indices: sources may repeat, targets may not.
std::vector<IndexLists> small_lists() {
  std::vector<IndexLists> all = {{}};
  for (std::size_t done = 0; done < all.size(); ++done) {
    const IndexLists shorter = all[done];
    if (shorter.source.size() == kSmallCount) continue;
    for (std::uint64_t source = 0; source < kSmallCount; ++source) {
      for (std::uint64_t target = 0; target < kSmallCount; ++target) {
        if (std::find(shorter.target.begin(), shorter.target.end(), target) != shorter.target.end()) continue;
        IndexLists longer = shorter;
        longer.source.push_back(source);
        longer.target.push_back(target);
        all.push_back(longer);
      }
    }
  }
  return all;
}

std::string verify_job(const Job& job, std::uint64_t random) {
  const auto plan = Plan::make(job.entries, job.lists, job.limits);
  if (!plan) return plan.error().text;
  return verify(**plan, wanted_moves(job), random);
}

/// Whether two moves of the list write one target byte.
bool writes_a_byte_twice(const std::vector<ByteMove>& moves) {
  std::set<std::pair<kvferry_region, std::uint64_t>> written;
  return !std::all_of(moves.begin(), moves.end(), [&](const ByteMove& move) { return written.insert({move.target_region, move.target_offset}).second; });
}

}  // namespace

TEST_CASE("every small plan moves each wanted byte once, in order, with nothing left to merge, however it is given out") {
  const std::vector<IndexLists> lists = small_lists();
  // KVFERRY_TEST_EVERY=N looks at every Nth only, for builds that are slow.
  const char* const every_text = std::getenv("KVFERRY_TEST_EVERY");
  const std::uint64_t every = every_text != nullptr ? std::max(1ull, std::strtoull(every_text, nullptr, 10)) : 1;
  std::uint64_t seen = 0, checked = 0;
  Job job;
  for (const std::uint64_t item : {1u, 3u}) {
    for (const std::uint64_t source_padding : {0u, 1u}) {
      for (const std::uint64_t target_padding : {0u, 1u}) {
        for (const Placement placement : kPlacements) {
          job.entries = small_entries({item, source_padding, target_padding, placement});
          if (job.entries.empty()) continue;
          for (const IndexLists& pages : lists) {
            job.lists[0] = pages;
            for (const std::uint64_t message : {1u, 2u, 3u, 5u, 7u, 100u}) {
              for (const std::uint32_t pieces : {1u, 2u, 9u}) {
                if (seen++ % every != 0) continue;
                job.limits = {message, pieces};
                if (std::string wrong = verify_job(job, checked); !wrong.empty()) FAIL(wrong << describe(job));
                ++checked;
              }
            }
          }
        }
      }
    }
  }
  CHECK(seen > 100'000);
  CHECK(checked >= seen / every);
}

TEST_CASE("large random plans keep the same promises") {
  CHECK(holds("random plans", 4000, [] {
    const Job job = random_job();
    if (const std::string wrong = verify_job(job, pick(0, 1'000'000)); !wrong.empty()) RC_FAIL(wrong + describe(job));
  }));
}

TEST_CASE("a raw list gives the same writes as the entries it was made from") {
  CHECK(holds("raw and paged", 1000, [] {
    const Job job = random_job();
    const RawJob raw = as_raw(job);
    const auto paged_plan = Plan::make(job.entries, job.lists, job.limits);
    const auto raw_plan = Plan::make_raw(raw.list, raw.source, raw.target, job.limits);
    if (!paged_plan) RC_FAIL(paged_plan.error().text + describe(job));
    if (!raw_plan) RC_FAIL(raw_plan.error().text + describe(job));
    if (const std::string wrong = verify(**raw_plan, wanted_moves(job), pick(0, 1'000'000)); !wrong.empty()) RC_FAIL("raw: " + wrong + describe(job));
    std::vector<Element> from_pages, from_raw;
    const BatchSize size{5, 5 * std::size_t{job.limits.pieces_per_write_max}};
    RC_ASSERT(collect(**paged_plan, size, from_pages) == "");
    RC_ASSERT(collect(**raw_plan, size, from_raw) == "");
    RC_ASSERT(from_pages == from_raw);
    RC_ASSERT((*raw_plan)->counts().writes_before_merge == (*paged_plan)->counts().writes_before_merge);
  }));
}

TEST_CASE("entries are refused exactly when two of them would write one byte") {
  std::uint64_t refused = 0, made = 0;
  CHECK(holds("entries that share memory", 5000, [&] {
    Job job;
    for (std::size_t space = 0; space < 2; ++space) job.lists[space] = random_lists(5, 5, 4);
    const std::uint64_t entries = pick(2, 4);
    const std::uint64_t common_pitch = pick(0, 1) == 0 ? 0 : pick(4, 9);  // entries that alternate inside one pitch need a common one
    for (std::uint64_t i = 0; i < entries; ++i) {
      PlanEntry entry;
      entry.space = static_cast<IndexSpace>(pick(0, 1));
      entry.item_length_bytes = pick(1, 4);
      entry.source_pitch_bytes = entry.item_length_bytes;
      entry.target_pitch_bytes = common_pitch != 0 ? common_pitch : entry.item_length_bytes + pick(0, 4);
      entry.source_index_count = entry.target_index_count = 5;
      entry.source = {1, 0, kRegionBytes};
      entry.target = {pick(1, 8) == 1 ? 2u : 1u, pick(0, 40), kRegionBytes};
      entry.name = "entry " + std::to_string(i);
      job.entries.push_back(std::move(entry));
    }
    const bool expected = writes_a_byte_twice(wanted_moves(job));
    const auto plan = Plan::make(job.entries, job.lists, job.limits);
    if (plan.has_value() == expected) RC_FAIL((expected ? "not refused" : "refused: " + plan.error().text) + describe(job));
    if (plan) {
      if (const std::string wrong = verify(**plan, wanted_moves(job), 1); !wrong.empty()) RC_FAIL(wrong + describe(job));
    } else {
      RC_ASSERT(plan.error().text.find("would both write") != std::string::npos);
    }
    ++(expected ? refused : made);
  }));
  CHECK(refused > 500);
  CHECK(made > 500);
}

TEST_CASE("a raw list is refused exactly when its result depends on the order of its items") {
  std::uint64_t refused = 0, made = 0;
  CHECK(holds("raw items that share memory", 5000, [&] {
    constexpr std::uint64_t kSource = 1000, kTarget = UINT64_MAX - 63;
    RegionMap source, target;
    RC_ASSERT(source.add({1, kSource, 64}).has_value());
    RC_ASSERT(target.add({1, kTarget, 64}).has_value());
    std::vector<RawWrite> list;
    std::vector<ByteMove> moves;
    const std::uint64_t items = pick(1, 4);
    const std::uint64_t ops = pick(0, 2);  // writes, reads, both
    for (std::uint64_t i = 0; i < items; ++i) {
      const std::uint64_t length = pick(1, 12), offset = pick(0, 50), shift = pick(0, 2);
      const auto op = static_cast<std::uint32_t>(ops == 2 ? pick(0, 1) : ops);  // KVFERRY_OP_WRITE is 0, KVFERRY_OP_READ 1
      list.push_back({kSource + offset, kTarget + std::min<std::uint64_t>(offset + shift, 64 - length), length, op});
      for (std::uint64_t byte = 0; byte < length; ++byte) {
        moves.push_back({1, list.back().source_address - kSource + byte, 1, list.back().target_address - kTarget + byte, op});
      }
    }
    bool expected = false;
    for (const ByteMove& a : moves) {
      for (const ByteMove& b : moves) {
        const bool same_source = a.source_offset == b.source_offset, same_target = a.target_offset == b.target_offset;
        const bool a_writes = a.op == KVFERRY_OP_WRITE, b_writes = b.op == KVFERRY_OP_WRITE;
        expected = expected || (same_target && (a_writes || b_writes) && !(a_writes && b_writes && same_source));
        expected = expected || (same_source && (!a_writes || !b_writes) && !(!a_writes && !b_writes && same_target));
      }
    }
    const auto plan = Plan::make_raw(list, source, target, {pick(1, 100), static_cast<std::uint32_t>(pick(1, 3))});
    if (plan.has_value() == expected) RC_FAIL(expected ? "not refused" : "refused: " + plan.error().text);
    if (plan) {
      if (const std::string wrong = verify(**plan, moves, 1); !wrong.empty()) RC_FAIL(wrong);
    }
    ++(expected ? refused : made);
  }));
  CHECK(refused > 500);
  CHECK(made > 500);
}

TEST_CASE("doubled indices are found in lists of any size and order") {
  CHECK(holds("doubled indices", 500, [] {
    const auto bits = pick(1, 63);
    std::vector<std::uint64_t> indices;
    const auto length = pick(0, 1) == 0 ? pick(0, 40) : pick(200, 600);
    const auto step = *rc::gen::arbitrary<std::uint64_t>() | 1;
    for (std::uint64_t i = 0; i < length; ++i) indices.push_back((i * step) >> (63 - bits));
    const std::set<std::uint64_t> different(indices.begin(), indices.end());
    RC_ASSERT(check_unique(indices, "list").has_value() == (different.size() == indices.size()));
  }));
}

namespace {

/// A plan with scattered pages, gathers (first half) and splits.
Job allocation_job(std::uint64_t pages) {
  Job job;
  IndexLists& lists = job.lists[0];
  for (std::uint64_t i = 0; i < pages; ++i) {
    lists.source.push_back((i * 7919) % pages);
    lists.target.push_back(i < pages / 2 ? i : pages - 1 - (i - pages / 2));
  }
  for (std::uint64_t i = 0; i < 4; ++i) {
    PlanEntry entry;
    entry.item_length_bytes = 64;
    entry.source_pitch_bytes = i == 3 ? 80 : 64;
    entry.target_pitch_bytes = i == 2 ? 80 : 64;
    entry.source_index_count = entry.target_index_count = pages;
    entry.source = {1, i * pages * 100, 1ull << 40};
    entry.target = {2, i * pages * 100, 1ull << 40};
    entry.name = "entry " + std::to_string(i);
    job.entries.push_back(std::move(entry));
  }
  job.limits = {100, 4};
  return job;
}

}  // namespace

TEST_CASE("filling, skipping and copying cursors allocate nothing") {
  const Job job = allocation_job(4096);
  const RawJob raw = as_raw(job);
  for (const auto& made : {Plan::make(job.entries, job.lists, job.limits), Plan::make_raw(raw.list, raw.source, raw.target, job.limits)}) {
    REQUIRE(made);
    const Plan& plan = **made;
    std::vector<kvferry_write> writes(64);
    std::vector<kvferry_piece> pieces(64);
    const std::uint64_t before = allocations_count();
    std::uint64_t given = 0;
    WriteCursor cursor = plan.begin();
    while (!cursor.done()) {
      WriteCursor ahead = cursor;
      const auto filled = ahead.fill(writes, pieces);
      cursor.skip((filled.writes + 1) / 2);
      given += (filled.writes + 1) / 2;
    }
    const std::uint64_t allocated = allocations_count() - before;
    CHECK(allocated == 0);
    CHECK(given == plan.counts().writes);
    CHECK(given > 10'000);
  }
}

TEST_CASE("what a plan allocates does not grow with its writes but by the size of its lists") {
  const auto make = [](std::uint64_t pages, std::int64_t& ret_bytes) {
    const Job job = allocation_job(pages);
    std::vector<PlanEntry> entries = job.entries;
    const std::int64_t bytes_before = bytes_held();
    const std::uint64_t before = allocations_count();
    const auto plan = Plan::make(std::move(entries), job.lists, job.limits);
    REQUIRE(plan);
    ret_bytes = bytes_held() - bytes_before;
    return allocations_count() - before;
  };
  std::int64_t bytes_small = 0, bytes_large = 0;
  CHECK(make(4096, bytes_small) == make(65536, bytes_large));
  CHECK(bytes_large < 65536 * 24 + 8192);  // a run for each index at worst; entries and streams are the rest
}

TEST_CASE("memory that is refused at any point is an error and leaks nothing") {
  const Job job = allocation_job(300);
  const RawJob raw = as_raw(job);
  const auto refuse_each = [](const std::vector<PlanEntry>& entries, auto make) {
    std::uint64_t refusals = 0;
    for (bool made = false; !made && refusals < 1000; ++refusals) {
      const std::int64_t held_before = bytes_held();
      ErrorCode code{};
      bool refused = false;
      {
        std::vector<PlanEntry> copy = entries;  // before, so that only what make itself allocates is refused
        const RefuseAllocation refusal(refusals);
        const auto plan = make(std::move(copy));
        refused = refusal.refused();
        made = plan.has_value();
        if (!made) code = plan.error().code;
      }
      CHECK(bytes_held() == held_before);
      CHECK(made == !refused);
      if (!made) CHECK(code == ErrorCode::no_memory);
    }
    return refusals;
  };
  const auto make = [&](std::vector<PlanEntry> entries) { return Plan::make(std::move(entries), job.lists, job.limits); };
  const auto make_raw = [&](std::vector<PlanEntry>) { return Plan::make_raw(raw.list, raw.source, raw.target, job.limits); };
  const std::uint64_t paged_refusals = refuse_each(job.entries, make), raw_refusals = refuse_each({}, make_raw);
  CHECK(paged_refusals > 6);
  CHECK(paged_refusals < 1000);
  CHECK(raw_refusals > 4);
  CHECK(raw_refusals < 1000);
}
