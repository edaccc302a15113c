// self --fault: a rank is killed or frozen in mid-transfer, and everybody must learn it.
//
//   prefill ──── moves ────► a quarter of its bytes: the watcher says so ──► SIGKILL or SIGSTOP for the rank the user named
//   survivors: transfer failed(cause) ─► quiesced            times count from the signal
//   frozen:    SIGCONT ─► the frozen rank learns it too      and the target memory is compared with what it was when it was quiesced
#include <signal.h>

#include <algorithm>
#include <map>

#include "self.h"

namespace kvferry::transfer_check {
namespace {

constexpr auto kLearnMargin = std::chrono::seconds(10);  // Above lease and the engines' bound for a fence.
constexpr auto kWatchMemory = std::chrono::milliseconds(500);

struct Fault {
  Member* victim = nullptr;
  Member* trigger = nullptr;  ///< the prefill rank whose bytes are counted
  bool freezes = false;
  std::uint64_t at_ns = 0;
};

Fault choose(const SelfOptions& options, Crew& crew) {
  const RankPair& pair = options.layout.pairs.front();
  Fault fault;
  fault.freezes = options.fault.starts_with("freeze");
  const bool prefill = options.fault.ends_with("prefill");
  for (auto& member : crew.members()) {
    if (member.is_prefill && member.rank == pair.source) fault.trigger = &member;
    if (member.is_prefill == prefill && member.rank == (prefill ? pair.source : pair.target)) fault.victim = &member;
  }
  return fault;
}

bool is_survivor(const Fault& fault, const Member& member) { return &member != fault.victim; }

bool is_quiesced(const Member& member) {
  return member.is_over() && std::all_of(member.transfers.begin(), member.transfers.end(), [](const auto& item) { return item.second.quiesced; });
}

/// A digest of every target pool that was told to be quiesced: nothing of it may change any more.
void take_digests(Crew& crew) {
  std::map<const Member*, std::size_t> wanted;
  for (auto& member : crew.members()) {
    if (member.is_prefill || member.ending || member.child->is_stopped() || !is_quiesced(member)) continue;
    wanted[&member] = member.digests.size() + 1;
    crew.send(member, {{"do", "digest"}});
  }
  const auto answered = [&](const Member& member) { return wanted.count(&member) == 0 || member.digests.size() >= wanted[&member]; };
  (void)crew.settle(deadline_in(kLearnMargin), answered);  // A digest that is missing is reported as not looked at.
}

std::optional<bool> landed(const Crew& crew) {
  std::optional<bool> any;
  for (const auto& member : crew.members()) {
    if (member.digests.size() < 2) continue;
    any = any.value_or(false) || member.digests.front() != member.digests.back();
  }
  return any;
}

/// Waits for the moment, then does it. An error when everything was over before.
Outcome<void> strike(const SelfOptions& options, Crew& crew, Fault& ret) {
  for (auto& member : crew.members()) {
    if (member.is_prefill) crew.send(member, {{"do", "move"}, {"fault_at_bytes", &member == ret.trigger ? fault_point_bytes(options) : 0}});
  }
  const auto everything_over = [&] {
    return std::all_of(crew.members().begin(), crew.members().end(), [](const Member& member) { return member.is_over(); });
  };
  (void)crew.wait(deadline_in(options.timeout), [&] { return crew.fault_point().has_value() || everything_over(); });
  if (!crew.fault_point() || everything_over()) {
    return because(Error(ErrorCode::invalid_argument, "--fault=" + options.fault + ": the request was over before the fault came"), {},
                   "use more --tokens, or fewer bytes per page", "--fault");
  }
  ret.at_ns = monotonic_ns();
  ret.victim->child->signal(ret.freezes ? SIGSTOP : SIGKILL);
  return {};
}

/// Everybody who can has learned and said so; the frozen rank goes on and learns it too.
void let_learn(const SelfOptions& options, const Fault& fault, Crew& crew) {
  const auto deadline = deadline_in(options.lease() + kLearnMargin);
  const auto survivors_over = [&](const Member& member) { return !is_survivor(fault, member) || member.is_over(); };
  (void)crew.settle(deadline, survivors_over);  // Who is not over by then is reported as such.
  take_digests(crew);
  if (fault.freezes) {
    fault.victim->child->signal(SIGCONT);
    (void)crew.settle(deadline_in(options.lease() + kLearnMargin), [](const Member& member) { return member.is_over(); });  // As above.
    take_digests(crew);
  }
  (void)crew.wait(deadline_in(kWatchMemory), [] { return false; });
  take_digests(crew);
}

}  // namespace

Outcome<SelfResult> run_fault(const SelfOptions& options, Crew& crew) {
  Fault fault = choose(options, crew);
  if (auto struck = strike(options, crew, fault); !struck) return tl::unexpected(struck.error());
  let_learn(options, fault, crew);

  SelfResult result;
  result.learned = collect_learned(crew, fault.at_ns);
  result.fault = FaultReport{options.fault, fault.victim->name(), crew.fault_point()->bytes, landed(crew)};
  result.figures = collect_figures(options, crew);
  const std::string what = fault.victim->name() + (fault.freezes ? " was frozen" : " was killed") + " by --fault=" + options.fault + " after " +
                           bytes_text(crew.fault_point()->bytes);
  std::string silent;
  for (const auto& member : crew.members()) {
    if (!is_survivor(fault, member) && !fault.freezes) continue;
    if (!member.is_over()) silent += (silent.empty() ? "" : ", ") + member.name();
  }
  const bool told = silent.empty();
  const bool wrote = result.fault->landed_after_quiesced.value_or(false);
  Error error(ErrorCode::peer_lost,
              what + (told ? ", every other rank learned it" : ", and never told of it: " + silent) + (wrote ? "; bytes landed after quiesced" : ""));
  result.failure = because(error, {}, told && !wrote ? "this is what the fault must show" : "please report it with this line").value();
  return result;
}

}  // namespace kvferry::transfer_check
