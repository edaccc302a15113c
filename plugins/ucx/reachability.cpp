#include "reachability.h"

#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

namespace kvferry::ucx {
namespace {

std::vector<int> open_descriptors() {
  struct Closer {
    void operator()(DIR* folder) const noexcept { (void)closedir(folder); }  // read only: nothing to lose
  };
  std::vector<int> found;
  const std::unique_ptr<DIR, Closer> folder(opendir("/proc/self/fd"));
  while (folder) {
    const dirent* entry = readdir(folder.get());
    if (entry == nullptr) break;
    int fd = -1;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, fd).ptr == end && fd >= 0) found.push_back(fd);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<Listener> listener_of(int fd) {
  int listening = 0;
  socklen_t length = sizeof(listening);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 || listening == 0) return std::nullopt;
  sockaddr_storage address{};
  length = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return std::nullopt;
  Listener listener;
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    listener.family = 4;
    listener.port = ntohs(four.sin_port);
    std::memcpy(listener.address.data(), &four.sin_addr, sizeof(four.sin_addr));
    listener.loopback = listener.address[0] == 127 ? 1 : 0;
  } else if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    listener.family = 6;
    listener.port = ntohs(six.sin6_port);
    std::memcpy(listener.address.data(), &six.sin6_addr, sizeof(six.sin6_addr));
    listener.loopback = IN6_IS_ADDR_LOOPBACK(&six.sin6_addr) ? 1 : 0;
  } else {
    return std::nullopt;
  }
  return listener;
}

bool port_stands_in(std::uint32_t port, std::span<const std::uint8_t> address) {
  const std::uint8_t bytes[2] = {static_cast<std::uint8_t>(port >> 8), static_cast<std::uint8_t>(port)};
  return std::search(address.begin(), address.end(), std::begin(bytes), std::end(bytes)) != address.end();
}

/// 0 or the error of a connect that was started.
int start_connect(int fd, const Listener& listener) {
  sockaddr_storage storage{};
  socklen_t length = 0;
  if (listener.family == 4) {
    auto& four = reinterpret_cast<sockaddr_in&>(storage);
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<std::uint16_t>(listener.port));
    std::memcpy(&four.sin_addr, listener.address.data(), sizeof(four.sin_addr));
    length = sizeof(four);
  } else {
    auto& six = reinterpret_cast<sockaddr_in6&>(storage);
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(static_cast<std::uint16_t>(listener.port));
    std::memcpy(&six.sin6_addr, listener.address.data(), sizeof(six.sin6_addr));
    length = sizeof(six);
  }
  if (connect(fd, reinterpret_cast<const sockaddr*>(&storage), length) == 0 || errno == EINPROGRESS) return 0;
  return errno;
}

}  // namespace

DescriptorSnapshot::DescriptorSnapshot() : open_(open_descriptors()) {}

std::vector<Listener> DescriptorSnapshot::listeners_since(std::span<const std::uint8_t> address) const {
  std::vector<Listener> found;
  for (const int fd : open_descriptors()) {
    if (std::binary_search(open_.begin(), open_.end(), fd)) continue;
    const auto listener = listener_of(fd);
    if (listener && port_stands_in(listener->port, address)) found.push_back(*listener);
  }
  return found;
}

void ReachabilityTest::note(const Listener& listener, int error_number) {
  report_ += (report_.empty() ? "" : ", ") + to_string(listener) + ": " + errno_text(error_number);
}

void ReachabilityTest::start(std::span<const Listener> listeners, bool same_host) {
  started_ = true;
  for (const Listener& listener : listeners) {
    if (listener.loopback != 0 && !same_host) continue;
    FileDescriptor socket_fd(socket(listener.family == 6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int error_number = socket_fd.valid() ? start_connect(socket_fd.get(), listener) : errno;
    if (error_number != 0) {
      note(listener, error_number);
    } else {
      attempts_.push_back({std::move(socket_fd), listener});
    }
  }
  if (listeners.empty()) report_ = "its descriptor names no listening socket";
}

std::vector<int> ReachabilityTest::descriptors() const {
  std::vector<int> open;
  for (const Attempt& attempt : attempts_) open.push_back(attempt.socket.get());
  return open;
}

ReachabilityTest::State ReachabilityTest::step() {
  for (std::size_t i = 0; i < attempts_.size() && !reached_;) {
    pollfd poller{attempts_[i].socket.get(), POLLOUT, 0};
    if (poll(&poller, 1, 0) != 1) {
      ++i;
      continue;
    }
    int error_number = 0;
    socklen_t length = sizeof(error_number);
    if (getsockopt(attempts_[i].socket.get(), SOL_SOCKET, SO_ERROR, &error_number, &length) != 0) error_number = errno;
    if (error_number == 0) {
      reached_ = true;
    } else {
      note(attempts_[i].listener, error_number);
      attempts_.erase(attempts_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  if (reached_) {
    attempts_.clear();
    return State::reached;
  }
  return attempts_.empty() ? State::failed : State::trying;
}

}  // namespace kvferry::ucx
