#include "wake_set.h"

#include <sys/epoll.h>

#include <cerrno>
#include <string>

#include "process.h"

namespace kvferry::plugins {

Result<WakeSet> WakeSet::open() {
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return fail(ErrorCode::limit, "open the event fd: epoll_create1: " + errno_text(errno));
  return WakeSet(std::move(epoll));
}

Result<void> WakeSet::add(int fd, bool writable) {
  epoll_event event{};
  event.events = EPOLLIN | (writable ? static_cast<std::uint32_t>(EPOLLOUT) : 0u);
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return fail(ErrorCode::limit, "watch descriptor " + std::to_string(fd) + ": epoll_ctl: " + errno_text(errno));
}

void WakeSet::remove(int fd) noexcept { (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }  // gone already is as good

}  // namespace kvferry::plugins
