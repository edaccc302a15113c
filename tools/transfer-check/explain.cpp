#include "explain.h"

#include <algorithm>
#include <cmath>

#include "backend_choice.h"
#include "job_plan.h"
#include "kvferry/pool_file.h"
#include "layout.h"
#include "report.h"

namespace kvferry::transfer_check {
namespace {

/// 3899.25 stays a fraction; 131072 is written as a whole number.
Json number_document(double value) {
  const double whole = std::floor(value);
  if (whole == value && value >= 0 && value < 1e18) return static_cast<std::uint64_t>(whole);
  return value;
}

Json parallel_document(const Side& side) {
  Json ranks = Json::array();
  for (const auto& rank : side.ranks) {
    ranks.push_back({{"name", rank.name}, {"stage", {rank.pool.stage.first, rank.pool.stage.end}}, {"memory_bytes", rank.memory_bytes}});
  }
  return ranks;
}

Json entries_document(const Pool& pool) {
  Json entries = Json::array();
  for (const auto& entry : pool.entries) {
    Json item;
    item["component"] = to_string(entry.component);
    item["role"] = to_string(entry.role);
    item["layer"] = entry.layer;
    item["item_length"] = entry.item_length_bytes;
    item["index_space"] = to_string(entry.space);
    item["dtype"] = to_string(entry.dtype);
    entries.push_back(std::move(item));
  }
  return entries;
}

Json pairs_document(const Layout& layout, const JobPlan& plan) {
  Json pairs = Json::array();
  for (const auto& pair : plan.pairs) {
    Json item;
    item["source"] = layout.source.ranks[layout.pairs[pair.pair].source].name;
    item["target"] = layout.target.ranks[layout.pairs[pair.pair].target].name;
    item["entries"] = pair.counts.entries;
    item["runs"] = pair.counts.runs;
    item["writes_before_merge"] = pair.counts.writes_before_merge;
    item["writes"] = pair.counts.writes;
    item["pieces"] = pair.counts.pieces;
    item["bytes"] = pair.counts.bytes;
    pairs.push_back(std::move(item));
  }
  return pairs;
}

struct Explained {
  Layout layout;
  JobPlan plan;
  PlanLimits limits;
  std::string limits_of;  ///< backend, or "no backend"
};

Json explain_document(const Explained& explained) {
  const Layout& layout = explained.layout;
  const Pool& whole = layout.target.whole;
  Json document = begin_document("explain", "pass");
  document["model"] = layout.model;
  document["kind"] = whole.kind;
  document["variant"] = whole.variant;
  document["page_size"] = whole.page_size;
  document["layers"] = whole.layers_total;
  document["draft_layers"] = whole.draft_layers;
  document["request"] = {{"tokens", layout.request.tokens}, {"pages", layout.request.pages}};
  document["prefill"] = parallel_document(layout.source);
  document["decode"] = parallel_document(layout.target);
  document["kv_bytes_per_token"] = number_document(kv_bytes_per_token(whole));
  document["kv_bytes_per_token_growing"] = number_document(kv_bytes_per_token_growing(whole));
  if (const auto state = state_bytes_per_request(whole); state != 0) document["state_bytes_per_request"] = state;
  document["limits"] = {{"of", explained.limits_of},
                        {"message_bytes_max", explained.limits.message_bytes_max},
                        {"pieces_per_write_max", explained.limits.pieces_per_write_max}};
  document["writes_before_merge"] = explained.plan.writes_before_merge;
  document["writes"] = explained.plan.writes;
  document["pieces"] = explained.plan.pieces;
  document["bytes"] = explained.plan.bytes;
  document["plan_seconds"] = explained.plan.plan_seconds;
  document["pairs"] = pairs_document(layout, explained.plan);
  document["entries"] = entries_document(whole);
  return document;
}

/// Entries that differ in the layer only, as one line.
std::string entries_text(const Pool& pool) {
  struct Group {
    const Entry* first;
    std::uint32_t last_layer;
    std::size_t count;
  };
  std::vector<Group> groups;
  for (const auto& entry : pool.entries) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&entry](const Group& known) {
      return known.first->component == entry.component && known.first->role == entry.role &&
             known.first->item_length_bytes == entry.item_length_bytes;
    });
    if (group == groups.end()) {
      groups.push_back({&entry, entry.layer, 1});
    } else {
      group->last_layer = entry.layer;
      ++group->count;
    }
  }
  Table table({{"component"}, {"role"}, {"entries", Table::Align::right}, {"layers"}, {"bytes per item", Table::Align::right}, {"counted by"}});
  for (const auto& group : groups) {
    const Entry& entry = *group.first;
    const std::string layers = group.count == 1 ? std::to_string(entry.layer) : std::to_string(entry.layer) + ".." + std::to_string(group.last_layer);
    table.add({to_string(entry.component), std::string(to_string(entry.role)), std::to_string(group.count), layers,
               std::to_string(entry.item_length_bytes), std::string(to_string(entry.space))});
  }
  return table.text();
}

std::string pairs_text(const Explained& explained) {
  using enum Table::Align;
  const Layout& layout = explained.layout;
  Table table(
      {{"from"}, {"to"}, {"layers"}, {"entries", right}, {"runs", right}, {"writes before merge", right}, {"writes", right}, {"bytes", right}});
  for (const auto& pair : explained.plan.pairs) {
    const RankPool& source = layout.source.ranks[layout.pairs[pair.pair].source];
    const RankPool& target = layout.target.ranks[layout.pairs[pair.pair].target];
    table.add({source.name, target.name, std::to_string(source.pool.stage.first) + ".." + std::to_string(source.pool.stage.end - 1),
               std::to_string(pair.counts.entries), std::to_string(pair.counts.runs), std::to_string(pair.counts.writes_before_merge),
               std::to_string(pair.counts.writes), std::to_string(pair.counts.bytes)});
  }
  if (explained.plan.pairs.size() > 1) {
    table.add({"all", "", "", "", "", std::to_string(explained.plan.writes_before_merge), std::to_string(explained.plan.writes),
               std::to_string(explained.plan.bytes)});
  }
  return table.text();
}

/// Target entries that no pair writes: legal (a draft that only the decode side has), and worth a line.
std::string unwritten_text(const Layout& layout) {
  std::string text;
  for (std::size_t t = 0; t < layout.target.ranks.size(); ++t) {
    std::vector<bool> written(layout.target.ranks[t].pool.entries.size());
    for (const auto& pair : layout.pairs) {
      if (pair.target != t) continue;
      for (const auto& entry : pair.entries) written[entry.target] = true;
    }
    const auto missing = std::count(written.begin(), written.end(), false);
    if (missing == 0) continue;
    const auto first = static_cast<std::size_t>(std::find(written.begin(), written.end(), false) - written.begin());
    text += layout.target.ranks[t].name + ": " + std::to_string(missing) + " entries have no source and stay as they are, the first is " +
            describe(layout.target.ranks[t].pool.entries[first]) + "\n";
  }
  return text;
}

std::string explain_text(const Explained& explained) {
  const Layout& layout = explained.layout;
  const Pool& whole = layout.target.whole;
  std::string text = layout.model + ": " + whole.kind + (whole.variant.empty() ? "" : " (" + whole.variant + ")") + ", " +
                     std::to_string(whole.layers_total) + " layers" +
                     (whole.draft_layers == 0 ? "" : " and " + std::to_string(whole.draft_layers) + " draft layers") + ", " +
                     std::to_string(whole.page_size) + " tokens per page\n";
  text += "prefill " + layout.source.parallel_text + ", decode " + layout.target.parallel_text + "; request of " +
          std::to_string(layout.request.tokens) + " tokens: " + std::to_string(layout.request.pages) + " pages in runs of " +
          std::to_string(layout.request.run_length) + ", seed " + std::to_string(layout.request.seed) + "\n\n";
  text += pairs_text(explained) + "\n" + unwritten_text(layout);
  const std::string pieces =
      explained.limits.pieces_per_write_max == 1 ? "one piece" : std::to_string(explained.limits.pieces_per_write_max) + " pieces";
  text += "planned in " + seconds_text(explained.plan.plan_seconds) + "; a write has at most " + pieces + " and " +
          std::to_string(explained.limits.message_bytes_max) + " bytes (limits of " + explained.limits_of + ")\n\n";
  text += "The whole model on decode rank tp0:\n" + entries_text(whole);
  text += fixed_text(kv_bytes_per_token(whole), std::floor(kv_bytes_per_token(whole)) == kv_bytes_per_token(whole) ? 0 : 2) + " bytes per token";
  if (const auto state = state_bytes_per_request(whole); state != 0) text += ", " + std::to_string(state) + " bytes of state per request";
  return text + "\n";
}

Outcome<void> write_pool(const Request& request, const Layout& layout) {
  if (request.has("--write-pool-of") && !request.has("--write-pool")) {
    return wrong_option("--write-pool-of", request.text("--write-pool-of"), "there is no file to write", "add --write-pool=FILE");
  }
  if (!request.has("--write-pool")) return {};
  const std::string of = request.text("--write-pool-of", "decode,tp=0,pp=0");
  auto wanted = parse_rank("--write-pool-of", of);
  if (!wanted) return tl::unexpected(wanted.error());
  const Side& side = wanted->prefill ? layout.source : layout.target;
  for (const auto& rank : side.ranks) {
    if (rank.tp == wanted->tp && rank.pp == wanted->pp) return write_file("--write-pool", request.text("--write-pool"), write_pool_file(rank.pool));
  }
  std::string names;
  for (const auto& rank : side.ranks) names += (names.empty() ? "" : ", ") + rank.name;
  return wrong_option("--write-pool-of", of, "there is no such rank", "use one of " + names);
}

}  // namespace

Outcome<ExitStatus> run_explain(const Request& request) {
  if (request.has("--sglang-lists")) return run_explain_sglang_lists(request);
  Explained explained;
  explained.limits_of = "no backend in particular";
  if (request.has("--backend")) {
    auto name = parse_backend(request);
    if (!name) return tl::unexpected(name.error());
    auto facts = query_backend(*name);
    if (!facts) return tl::unexpected(facts.error());
    explained.limits = plan_limits(facts->limits);
    explained.limits_of = "backend " + *name;
  }
  auto layout = make_layout(request);
  if (!layout) return tl::unexpected(layout.error());
  explained.layout = std::move(*layout);
  auto plan = plan_job(explained.layout, explained.limits);
  if (!plan) return tl::unexpected(plan.error());
  explained.plan = std::move(*plan);
  if (auto written = write_pool(request, explained.layout); !written) return tl::unexpected(written.error());
  auto printed = request.has("--json") ? print_document(explain_document(explained)) : print(explain_text(explained));
  if (!printed) return tl::unexpected(printed.error());
  return ExitStatus::holds;
}

}  // namespace kvferry::transfer_check
