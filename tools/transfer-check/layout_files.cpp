// Pools from pool files: one rank a side, as the file says it.
#include <algorithm>
#include <filesystem>

#include "kvferry/pool_file.h"
#include "layout_parts.h"

namespace kvferry::transfer_check {
namespace {

Outcome<void> side_from_file(std::string_view option, const std::string& path, Side& ret) {
  auto text = read_file(option, path);
  if (!text) return tl::unexpected(text.error());
  auto pool = parse_pool_file(*text);
  if (!pool) return because(pool.error(), std::string(option) + "=" + path, "docs/pool-file.md describes the file", option);
  ret.parallel_text = std::filesystem::path(path).filename().string();
  ret.tp_size = pool->rank.tp_size;
  const Rank place = pool->rank;
  auto rank = make_rank(ret, place.tp_rank, place.pp_rank, std::move(*pool));
  if (!rank) return tl::unexpected(rank.error());
  ret.whole = rank->pool;
  ret.ranks.push_back(std::move(*rank));
  return {};
}

}  // namespace

Outcome<void> sides_from_files(const Request& request, Layout& ret) {
  const std::string_view source_option = request.has("--pool") ? "--pool" : "--source-pool";
  const std::string_view target_option = request.has("--pool") ? "--pool" : "--target-pool";
  if (auto source = side_from_file(source_option, request.text(source_option), ret.source); !source) return source;
  if (auto target = side_from_file(target_option, request.text(target_option), ret.target); !target) return target;
  ret.model = ret.target.whole.model;
  return {};
}

Outcome<RankPool> make_rank(const Side& side, std::uint32_t tp, std::uint32_t pp, Pool pool) {
  constexpr std::uint64_t kAlignment = 4096;
  RankPool rank;
  rank.name = std::string(side.name()) + " tp" + std::to_string(tp) + " pp" + std::to_string(pp);
  rank.tp = tp;
  rank.pp = pp;
  std::uint64_t lowest = UINT64_MAX;
  for (const auto& entry : pool.entries) lowest = std::min(lowest, entry.base_address);
  lowest -= lowest % kAlignment;  // Entries keep their place within a page of memory.
  for (auto& entry : pool.entries) {
    entry.base_address = entry.base_address - lowest + kGuardBytes;
    auto bytes = span_bytes(entry);
    std::uint64_t end = 0;
    if (!bytes || !checked_add(entry.base_address, *bytes, end)) {
      return because(Error(ErrorCode::out_of_range, rank.name + ": " + describe(entry) + " ends beyond 64 bits"));
    }
    rank.memory_bytes = std::max(rank.memory_bytes, end);
  }
  rank.memory_bytes += kGuardBytes;
  rank.pool = std::move(pool);
  return rank;
}

}  // namespace kvferry::transfer_check
