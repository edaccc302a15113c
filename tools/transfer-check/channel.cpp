#include "channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace kvferry::transfer_check {
namespace {

constexpr std::size_t kLineBytesMax = 1u << 30;

/// Milliseconds poll may wait; rounded up so that it does not spin in the last one.
int wait_ms(Deadline deadline) {
  if (deadline == Deadline::min()) return 0;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

/// Waits for `events`; false at the deadline.
bool wait_for(int descriptor, short events, Deadline deadline) {
  for (;;) {
    pollfd item{descriptor, events, 0};
    const int ready = ::poll(&item, 1, wait_ms(deadline));
    if (ready > 0) return true;
    if (ready == 0 && (deadline == Deadline::min() || std::chrono::steady_clock::now() >= deadline)) return false;
  }
}

Error lost(const char* call) {
  Error error(ErrorCode::peer_lost, std::string("talk to the other process: ") + call + ": " + std::strerror(errno));
  error.sys_errno = errno;
  return error;
}

}  // namespace

int Descriptor::release() {
  const int number = number_;
  number_ = -1;
  return number;
}

void Descriptor::close() {
  if (number_ >= 0) (void)::close(number_);  // Nothing is written behind: no error to lose.
  number_ = -1;
}

Channel::Channel(Descriptor descriptor) : descriptor_(std::move(descriptor)) {
  const int flags = ::fcntl(descriptor_.get(), F_GETFL);
  if (flags >= 0) (void)::fcntl(descriptor_.get(), F_SETFL, flags | O_NONBLOCK);  // Without it only a deadline would come late.
}

Outcome<std::pair<Channel, Channel>> Channel::make_pair() {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return because(Error(ErrorCode::limit, std::string("socketpair: ") + std::strerror(errno)));
  return std::pair<Channel, Channel>(Channel(Descriptor(ends[0])), Channel(Descriptor(ends[1])));
}

Result<void> Channel::send(const Json& message, Deadline deadline) {
  const std::string line = message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t sent = ::send(descriptor_.get(), left.data(), left.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      left.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return fail(lost("send"));
    if (!wait_for(descriptor_.get(), POLLOUT, deadline)) return fail(ErrorCode::timeout, "talk to the other process: it does not read");
  }
  return {};
}

Result<std::optional<Json>> Channel::take_line() {
  const auto end = buffer_.find('\n');
  if (end == std::string::npos) return std::optional<Json>{};
  Json message = Json::parse(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
  if (message.is_discarded())
    return fail(ErrorCode::internal, "talk to the other process: it sent '" + buffer_.substr(0, std::min<std::size_t>(end, 80)) + "'");
  buffer_.erase(0, end + 1);
  return std::optional<Json>(std::move(message));
}

Result<std::optional<Json>> Channel::receive(Deadline deadline) {
  for (;;) {
    auto line = take_line();
    if (!line || *line) return line;
    if (!wait_for(descriptor_.get(), POLLIN, deadline)) return std::optional<Json>{};
    const std::size_t had = buffer_.size();
    buffer_.resize(had + (1u << 16));
    const ssize_t got = ::recv(descriptor_.get(), buffer_.data() + had, buffer_.size() - had, 0);
    buffer_.resize(had + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return fail(ErrorCode::peer_lost, "talk to the other process: it closed the connection");
    if (got < 0 && errno != EINTR && errno != EAGAIN) return fail(lost("recv"));
    if (buffer_.size() > kLineBytesMax) return fail(ErrorCode::limit, "talk to the other process: a line has no end");
  }
}

Json error_message(const Failure& failure) {
  return {{"code", static_cast<std::int32_t>(failure.error.code)},
          {"class", static_cast<std::int32_t>(failure.error.error_class)},
          {"text", failure.error.text},
          {"vendor_status", failure.error.vendor_status},
          {"errno", failure.error.sys_errno},
          {"remedy", failure.remedy},
          {"option", failure.option},
          {"status", static_cast<int>(failure.status)}};
}

Failure failure_of(const Json& message) {
  Failure failure;
  failure.error.code = ErrorCode(message.at("code").get<std::int32_t>());
  failure.error.error_class = ErrorClass(message.at("class").get<std::int32_t>());
  failure.error.text = message.at("text").get<std::string>();
  failure.error.vendor_status = message.at("vendor_status").get<std::int32_t>();
  failure.error.sys_errno = message.at("errno").get<std::int32_t>();
  failure.remedy = message.at("remedy").get<std::string>();
  failure.option = message.at("option").get<std::string>();
  failure.status = ExitStatus(message.at("status").get<int>());
  return failure;
}

}  // namespace kvferry::transfer_check
