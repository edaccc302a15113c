// The two forms of what `self` found: a table for people, fixed JSON keys for scripts.
#include <algorithm>
#include <set>

#include "self.h"

namespace kvferry::transfer_check {
namespace {

constexpr double kNanosecond = 1e-9;

bool holds(const SelfResult& result) { return !result.failure && result.figures.bytes_wrong == 0; }

Json quiesced_json(const Learned& learned) {
  if (learned.quiesced) return true;
  return learned.unquiesced.empty() ? Json(false) : Json("cannot promise");
}

Json learned_document(const std::vector<Learned>& learned) {
  Json list = Json::array();
  for (const auto& item : learned) {
    Json json;
    json["rank"] = item.rank;
    json["peer"] = item.peer;
    json["seconds"] = item.seconds;
    json["error"] = item.failure ? error_document(item.failure->error) : Json(nullptr);
    json["quiesced"] = quiesced_json(item);
    json["quiesced_seconds"] = item.quiesced_seconds;
    if (!item.unquiesced.empty()) json["unquiesced"] = item.unquiesced;
    list.push_back(std::move(json));
  }
  return list;
}

Json moves_document(const Crew& crew) {
  Json list = Json::array();
  for (const auto& member : crew.members()) {
    if (!member.is_prefill) continue;
    for (const auto& [id, transfer] : member.transfers) {
      const auto lane = member.lanes.find(transfer.peer);
      const auto detail = member.details.find(transfer.peer);
      list.push_back({{"source", member.name()},
                      {"target", transfer.peer},
                      {"lane", lane == member.lanes.end() ? "" : lane->second},
                      {"lane_detail", detail == member.details.end() ? "" : detail->second},
                      {"bytes", transfer.bytes},
                      {"writes_before_merge", transfer.writes_before_merge},
                      {"writes", transfer.writes},
                      {"plan_seconds", static_cast<double>(transfer.plan_ns) * kNanosecond}});
    }
  }
  return list;
}

Json self_document(const SelfOptions& options, const SelfResult& result, const Crew& crew) {
  const Figures& figures = result.figures;
  Json document = begin_document("self", holds(result) ? "pass" : "fail");
  document["model"] = options.layout.model;
  document["kind"] = options.layout.target.whole.kind;
  document["backend"] = options.backend_name;
  document["backend_build"] = options.backend.build;
  document["lane"] = figures.lane;
  document["memory"] = options.memory;
  document["in_one_process"] = options.in_one_process;
  document["request"] = {{"tokens", options.layout.request.tokens}, {"pages", options.layout.request.pages}};
  document["bytes"] = figures.bytes;
  document["bytes_compared"] = figures.bytes_compared;
  document["bytes_wrong"] = figures.bytes_wrong;
  document["writes_before_merge"] = figures.writes_before_merge;
  document["writes"] = figures.writes;
  document["plan_seconds"] = figures.plan_seconds;
  document["seconds"] = figures.seconds;
  document["gigabytes_per_second"] = figures.gigabytes_per_second();
  document["first_wrong"] = figures.first_wrong;
  document["moves"] = moves_document(crew);
  if (result.failure) {
    document["error"] = error_document(*result.failure);
    document["learned"] = learned_document(result.learned);
  }
  if (result.fault) {
    const auto& landed = result.fault->landed_after_quiesced;
    document["fault"] = {{"kind", result.fault->kind},
                         {"rank", result.fault->rank},
                         {"at_bytes", result.fault->at_bytes},
                         {"landed_after_quiesced", landed ? Json(*landed) : Json(nullptr)}};
  }
  return document;
}

std::string head_text(const SelfOptions& options, const Crew& crew) {
  const auto prefill = std::count_if(crew.members().begin(), crew.members().end(), [](const Member& member) { return member.is_prefill; });
  const auto decode = static_cast<std::ptrdiff_t>(crew.members().size()) - prefill;
  const Layout& layout = options.layout;
  std::string text = layout.model + ": " + layout.target.whole.kind + ", prefill " + layout.source.parallel_text + ", decode " +
                     layout.target.parallel_text + "; request of " + std::to_string(layout.request.tokens) +
                     " tokens: " + std::to_string(layout.request.pages) + " pages in runs of " + std::to_string(layout.request.run_length) + "\n";
  text += std::to_string(prefill) + " prefill and " + std::to_string(decode) + " decode " +
          (options.in_one_process ? "engines in this one process (backend " + options.backend_name + " cannot reach another)"
                                  : std::string("processes on this host")) +
          ", backend " + options.backend_name + (options.backend.build.empty() ? "" : " (" + options.backend.build + ")") + ", " +
          (options.memory == "user" ? "memory of the processes" : "memory from the backend") + "\n\n";
  return text;
}

std::string moves_text(const SelfResult& result, const Crew& crew) {
  using enum Table::Align;
  Table table({{"from"},
               {"to"},
               {"lane"},
               {"moved", right},
               {"writes before merge", right},
               {"writes", right},
               {"planned in", right},
               {"time", right},
               {"GB/s", right}});
  std::size_t rows = 0;
  for (const auto& member : crew.members()) {
    if (!member.is_prefill) continue;
    for (const auto& [id, transfer] : member.transfers) {
      const auto lane = member.lanes.find(transfer.peer);
      const double seconds = static_cast<double>(transfer.finished_ns - transfer.submitted_ns) * kNanosecond;
      table.add({member.name(), transfer.peer, lane == member.lanes.end() ? "" : lane->second, bytes_text(transfer.bytes),
                 std::to_string(transfer.writes_before_merge), std::to_string(transfer.writes),
                 seconds_text(static_cast<double>(transfer.plan_ns) * kNanosecond), seconds_text(seconds),
                 transfer.error ? "failed" : fixed_text(seconds > 0 ? static_cast<double>(transfer.bytes) / seconds / 1e9 : 0, 2)});
      ++rows;
    }
  }
  const Figures& figures = result.figures;
  if (rows > 1) {
    table.add({"all", "", figures.lane, bytes_text(figures.bytes), std::to_string(figures.writes_before_merge), std::to_string(figures.writes),
               seconds_text(figures.plan_seconds), seconds_text(figures.seconds), fixed_text(figures.gigabytes_per_second(), 2)});
  }
  return rows == 0 ? std::string() : table.text() + "\n";
}

std::string learned_text(const SelfResult& result) {
  std::string text;
  for (const auto& item : result.learned) {
    const std::string when = item.seconds > 0 ? " after " + seconds_text(item.seconds) : std::string();
    text += item.rank + (item.failure ? " learned" + when + ": " + item.failure->error.text : " came to its end" + when) + "\n";
    const std::string quiesced_when = item.quiesced_seconds > 0 ? " after " + seconds_text(item.quiesced_seconds) : std::string();
    text += "  " +
            (item.quiesced             ? "quiesced" + quiesced_when + ": nothing moves any more"
             : item.unquiesced.empty() ? std::string("not quiesced when the check ended")
                                       : "cannot promise that nothing moves any more: " + item.unquiesced) +
            "\n";
  }
  if (result.fault && result.fault->landed_after_quiesced) {
    text +=
        *result.fault->landed_after_quiesced ? "the target memory CHANGED after quiesced\n" : "the target memory stayed as it was after quiesced\n";
  }
  return text;
}

std::string self_text(const SelfOptions& options, const SelfResult& result, const Crew& crew) {
  std::string text = head_text(options, crew) + moves_text(result, crew);
  if (result.failure) return text + learned_text(result) + "\nFAIL\n";
  const Figures& figures = result.figures;
  text += "compared all " + bytes_text(figures.bytes_compared) + " of the target pools, those that nothing may touch too: ";
  if (figures.bytes_wrong == 0) return text + "every byte is right\n\nPASS\n";
  text += std::to_string(figures.bytes_wrong) + (figures.bytes_wrong == 1 ? " byte is" : " bytes are") + " wrong\n";
  return text + "first: " + figures.first_wrong.at("text").get<std::string>() + "\n\nFAIL\n";
}

/// The line on stderr for a check that does not hold.
Failure failure_line(const SelfOptions& options, const SelfResult& result) {
  if (result.failure) return *result.failure;
  const Figures& figures = result.figures;
  Error error(ErrorCode::mismatch, std::to_string(figures.bytes_wrong) + " of " + std::to_string(figures.bytes_compared) +
                                       (figures.bytes_wrong == 1 ? " bytes is wrong: " : " bytes are wrong, the first: ") +
                                       figures.first_wrong.at("text").get<std::string>());
  Failure failure =
      because(error, {},
              options.corrupt ? "one byte was flipped by --corrupt" : "do not serve with this set-up; please report it with the whole output")
          .value();
  failure.status = ExitStatus::fails;
  return failure;
}

}  // namespace

Figures collect_figures(const SelfOptions& options, const Crew& crew) {
  Figures figures;
  std::uint64_t first_ns = UINT64_MAX, last_ns = 0;
  std::set<std::string> lanes;
  for (const auto& member : crew.members()) {
    std::uint64_t plan_ns = 0;
    for (const auto& [id, transfer] : member.transfers) {
      last_ns = std::max(last_ns, transfer.finished_ns);
      if (!member.is_prefill) continue;
      if (transfer.submitted_ns != 0) first_ns = std::min(first_ns, transfer.submitted_ns);
      figures.bytes += transfer.bytes;
      figures.writes_before_merge += transfer.writes_before_merge;
      figures.writes += transfer.writes;
      plan_ns += transfer.plan_ns;
    }
    figures.plan_seconds = std::max(figures.plan_seconds, static_cast<double>(plan_ns) * kNanosecond);
    if (member.is_prefill) {
      for (const auto& [peer, lane] : member.lanes) lanes.insert(lane);
    }
    if (member.compared.is_null()) continue;
    figures.bytes_compared += member.compared.at("bytes_compared").get<std::uint64_t>();
    figures.bytes_wrong += member.compared.at("bytes_wrong").get<std::uint64_t>();
    if (figures.first_wrong.is_null()) figures.first_wrong = member.compared.at("first_wrong");
  }
  if (first_ns < last_ns) figures.seconds = static_cast<double>(last_ns - first_ns) * kNanosecond;
  for (const auto& lane : lanes) figures.lane += (figures.lane.empty() ? "" : ",") + lane;
  if (figures.lane.empty()) figures.lane = options.lane;
  return figures;
}

std::vector<Learned> collect_learned(const Crew& crew, std::uint64_t since_ns) {
  std::vector<Learned> learned;
  const auto seconds = [since_ns](std::uint64_t at_ns) {
    return since_ns == 0 || at_ns <= since_ns ? 0.0 : static_cast<double>(at_ns - since_ns) * kNanosecond;
  };
  for (const auto& member : crew.members()) {
    for (const auto& [id, transfer] : member.transfers) {
      if (!transfer.ended) continue;
      learned.push_back({member.name(), transfer.peer, seconds(transfer.ended_at_ns), transfer.error, transfer.quiesced,
                         seconds(transfer.quiesced_at_ns), transfer.unquiesced ? transfer.unquiesced->error.text : ""});
    }
  }
  return learned;
}

Outcome<ExitStatus> report_self(const SelfOptions& options, const SelfResult& result, const Crew& crew) {
  auto printed = options.json ? print_document(self_document(options, result, crew)) : print(self_text(options, result, crew));
  if (!printed) return tl::unexpected(printed.error());
  if (holds(result)) return ExitStatus::holds;
  const Failure failure = failure_line(options, result);
  if (options.json) return failure.status;
  return static_cast<ExitStatus>(report_failure(failure, "self", false));
}

}  // namespace kvferry::transfer_check
