#include "crew.h"

#include <poll.h>

#include <algorithm>

#include "worker.h"

namespace kvferry::transfer_check {
namespace {

constexpr auto kListenMax = std::chrono::milliseconds(200);  // A stopped worker says nothing: look at the kernel's word for it now and then.
constexpr auto kOrderTimeout = std::chrono::seconds(5);
constexpr auto kDismissTimeout = std::chrono::seconds(3);

void take_ended(TransferState& transfer, const Json& message) {
  transfer.ended = true;
  message.at("at_ns").get_to(transfer.ended_at_ns);
  const Json& figures = message.at("figures");
  figures.at("bytes").get_to(transfer.bytes);
  figures.at("writes_before_merge").get_to(transfer.writes_before_merge);
  figures.at("writes").get_to(transfer.writes);
  figures.at("plan_ns").get_to(transfer.plan_ns);
  figures.at("submitted_ns").get_to(transfer.submitted_ns);
  figures.at("ended_ns").get_to(transfer.finished_ns);
  if (message.contains("error")) transfer.error = failure_of(message.at("error"));
}

void take_quiesced(TransferState& transfer, const Json& message) {
  message.at("at_ns").get_to(transfer.quiesced_at_ns);
  if (message.contains("error")) {
    transfer.unquiesced = failure_of(message.at("error"));
  } else {
    transfer.quiesced = true;
  }
}

std::string stopped_text(const Member& member) {
  return member.name() + " (process " + std::to_string(member.child->process()) + ") is stopped by a signal";
}

}  // namespace

std::uint64_t monotonic_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

bool Member::is_over() const {
  return transfers.size() == transfers_expected &&
         std::all_of(transfers.begin(), transfers.end(), [](const auto& item) { return item.second.over(); });
}

Outcome<void> Crew::add(const WorkerConfig& config, std::size_t rank, std::size_t transfers_expected) {
  auto child = in_one_process_ ? Child::start_thread(config.name, run_worker) : Child::spawn(config.name, program_path(), {kWorkerArgument});
  if (!child) return tl::unexpected(child.error());
  Member member;
  member.child = std::move(*child);
  member.is_prefill = config.is_prefill;
  member.rank = rank;
  member.transfers_expected = transfers_expected;
  members_.push_back(std::move(member));
  send(members_.back(), {{"do", "start"}, {"config", to_json(config)}});
  return {};
}

void Crew::send(Member& member, const Json& message) {
  if (member.child->channel().is_open()) (void)member.child->channel().send(message, deadline_in(kOrderTimeout));  // Its end will be heard.
}

void Crew::send_all(const Json& message) {
  for (auto& member : members_) send(member, message);
}

void Crew::listen(Deadline deadline) {
  std::vector<pollfd> items;
  for (const auto& member : members_) {
    items.push_back({member.child->channel().descriptor(), POLLIN, 0});
    items.push_back({member.child->error_descriptor(), POLLIN, 0});
  }
  const auto bound = std::min(deadline, deadline_in(kListenMax));
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(bound - std::chrono::steady_clock::now()).count();
  (void)::poll(items.data(), items.size(), static_cast<int>(std::max<std::int64_t>(0, left)));  // Interrupted: the caller comes back.
  for (std::size_t i = 0; i < members_.size(); ++i) hear(i);
  if (heard_) heard_();
}

void Crew::hear(std::size_t index) {
  Member& member = members_[index];
  (void)member.child->said();  // Emptied, so that a worker that writes much is not held up.
  while (member.child->channel().is_open()) {
    auto message = member.child->channel().try_receive();
    if (!message) {
      member.child->channel().close();
      member.gone_at_ns = monotonic_ns();
      break;
    }
    if (!*message) break;
    take(index, **message);
  }
  if (member.child->channel().is_open() || member.ending) return;
  member.ending = member.child->ended();
  if (!member.ending && member.child->process() == 0) member.ending = Ending{};  // A thread ends in silence.
}

void Crew::take(std::size_t index, const Json& message) {
  Member& member = members_[index];
  const auto what = message.at("is").get<std::string>();
  if (what == "started") {
    member.started = true;
    message.at("address").get_to(member.address);
  } else if (what == "connected") {
    member.connected = true;
    for (const auto& lane : message.at("lanes")) {
      const auto peer = lane.at("peer").get<std::string>();
      member.lanes[peer] = lane.at("lane").get<std::string>();
      member.details[peer] = lane.at("detail").get<std::string>();
    }
  } else if (what == "expecting") {
    member.expecting = true;
  } else if (what == "ended" || what == "quiesced") {
    TransferState& transfer = member.transfers[message.at("transfer").get<std::uint64_t>()];
    message.at("peer").get_to(transfer.peer);
    what == "ended" ? take_ended(transfer, message) : take_quiesced(transfer, message);
    if (message.contains("lane")) message.at("lane").get_to(member.lanes[transfer.peer]);
  } else if (what == "compared") {
    member.compared = message;
  } else if (what == "digest") {
    member.digests.push_back(message.at("value").get<std::uint64_t>());
  } else if (what == "progress") {
    message.at("step").get_to(member.progress_step);
    message.at("bytes").get_to(member.progress_bytes);
  } else if (what == "fault_point") {
    fault_point_ = FaultPoint{index, message.at("bytes").get<std::uint64_t>()};
  } else if (what == "failed") {
    member.failed = failure_of(message.at("error"));
    message.at("step").get_to(member.failed_step);
  }
}

std::optional<Failure> Crew::trouble(std::string_view doing) const {
  for (const auto& member : members_) {
    if (!member.ending) continue;
    const std::string said = member.child->said();
    Error error(ErrorCode::peer_lost,
                member.name() + " " + member.ending->text() + " during " + std::string(doing) + (said.empty() ? "" : ", saying: " + said));
    return because(error).value();
  }
  for (const auto& member : members_) {
    if (member.failed) return member.failed;
  }
  // The first in time is the cause, what others were told is its effect.
  const TransferState* first = nullptr;
  const Member* of = nullptr;
  for (const auto& member : members_) {
    for (const auto& [id, transfer] : member.transfers) {
      if (!transfer.error || (first != nullptr && first->ended_at_ns <= transfer.ended_at_ns)) continue;
      first = &transfer;
      of = &member;
    }
  }
  if (first == nullptr) return std::nullopt;
  Failure failure = *first->error;
  failure.error.text = of->name() + (of->is_prefill ? " to " : " from ") + first->peer + ": " + failure.error.text;
  for (const auto& member : members_) {
    if (member.child->is_stopped()) failure.error.text += "; " + stopped_text(member);
  }
  return failure;
}

Outcome<void> Crew::advance(std::string_view doing, Deadline deadline, const Arrived& arrived) {
  for (;;) {
    if (const auto failure = trouble(doing)) return tl::unexpected(*failure);
    if (std::all_of(members_.begin(), members_.end(), arrived)) return {};
    if (std::chrono::steady_clock::now() >= deadline) break;
    listen(deadline);
  }
  std::string late;
  for (const auto& member : members_) {
    if (arrived(member)) continue;
    late += (late.empty() ? "" : ", ") + (member.child->is_stopped() ? stopped_text(member) : member.name());
  }
  return because(Error(ErrorCode::timeout, std::string(doing) + " did not end in time, still missing: " + late));
}

bool Crew::settle(Deadline deadline, const Arrived& arrived) {
  return wait(deadline, [&] {
    return std::all_of(members_.begin(), members_.end(),
                       [&](const Member& member) { return member.ending || member.failed || arrived(member) || member.child->is_stopped(); });
  });
}

bool Crew::wait(Deadline deadline, const std::function<bool()>& done) {
  while (!done()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    listen(deadline);
  }
  return true;
}

void Crew::dismiss() {
  send_all({{"do", "quit"}});
  (void)settle(deadline_in(kDismissTimeout), [](const Member& member) { return member.ending.has_value(); });  // Who is left is killed.
  for (auto& member : members_) member.child->end();
}

}  // namespace kvferry::transfer_check
