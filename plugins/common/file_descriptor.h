// An owned file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace kvferry::plugins {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { reset(); }

  bool valid() const noexcept { return fd_ >= 0; }
  int get() const noexcept { return fd_; }
  void reset() noexcept {
    if (fd_ >= 0) (void)::close(std::exchange(fd_, -1));  // nothing here holds written data that a failed close could lose
  }

 private:
  int fd_ = -1;
};

}  // namespace kvferry::plugins
