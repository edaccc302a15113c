#include "plain_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace kvferry::transfer_check {
namespace {

constexpr std::size_t kPiecesPerCall = 1024;  // IOV_MAX of Linux.

Unexpected failed(const char* call) {
  Error error(ErrorCode::io, std::string("plain TCP socket: ") + call + ": " + std::strerror(errno));
  error.sys_errno = errno;
  return fail(std::move(error));
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

void send_at_once(int socket) {
  const int on = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // Without it the reply is late by itself: the figure shows it.
}

/// All bytes of the vectors, however the calls cut them.
template <class Call>
Result<void> move_all(iovec* vectors, std::size_t count, const char* name, Call call) {
  while (count > 0) {
    const ssize_t moved = call(vectors, static_cast<int>(count));
    if (moved < 0 && errno == EINTR) continue;
    if (moved == 0) errno = ECONNRESET;
    if (moved <= 0) return failed(name);
    auto left = static_cast<std::size_t>(moved);
    while (count > 0 && left >= vectors->iov_len) {
      left -= vectors->iov_len;
      ++vectors;
      --count;
    }
    if (count == 0) break;
    vectors->iov_base = static_cast<std::byte*>(vectors->iov_base) + left;
    vectors->iov_len -= left;
  }
  return {};
}

template <class Call>
Result<void> each_call(const Pieces& pieces, const char* name, Call call) {
  std::array<iovec, kPiecesPerCall> vectors;
  for (std::size_t begin = 0; begin < pieces.offsets.size(); begin += kPiecesPerCall) {
    const std::size_t count = std::min(kPiecesPerCall, pieces.offsets.size() - begin);
    for (std::size_t i = 0; i < count; ++i) vectors[i] = {pieces.memory.data() + pieces.offsets[begin + i], pieces.piece_bytes};
    if (auto moved = move_all(vectors.data(), count, name, call); !moved) return moved;
  }
  return {};
}

}  // namespace

Result<Listening> listen_on_loopback() {
  Listening listening{Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), 0};
  if (listening.socket.get() < 0) return failed("socket");
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  if (::bind(listening.socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return failed("bind");
  if (::listen(listening.socket.get(), 1) != 0) return failed("listen");
  if (::getsockname(listening.socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return failed("getsockname");
  listening.port = ntohs(address.sin_port);
  return listening;
}

Result<Descriptor> accept_one(const Descriptor& listening) {
  Descriptor socket(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.get() < 0) return failed("accept4");
  send_at_once(socket.get());
  return socket;
}

Result<Descriptor> connect_to_loopback(std::uint16_t port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return failed("socket");
  sockaddr_in address = loopback(port);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return failed("connect");
  send_at_once(socket.get());
  return socket;
}

Result<void> send_pieces(const Descriptor& socket, const Pieces& pieces) {
  auto sent = each_call(pieces, "writev", [&](iovec* vectors, int count) { return ::writev(socket.get(), vectors, count); });
  if (!sent) return sent;
  char reply = 0;
  if (::recv(socket.get(), &reply, 1, MSG_WAITALL) != 1) return failed("recv");
  return {};
}

Result<void> receive_pieces(const Descriptor& socket, const Pieces& pieces) {
  auto received = each_call(pieces, "readv", [&](iovec* vectors, int count) { return ::readv(socket.get(), vectors, count); });
  if (!received) return received;
  const char reply = 1;
  if (::send(socket.get(), &reply, 1, MSG_NOSIGNAL) != 1) return failed("send");
  return {};
}

bool wait_readable(const Descriptor& socket) {
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, MSG_PEEK) == 1;
}

}  // namespace kvferry::transfer_check
