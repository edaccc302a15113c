#include "mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

namespace kvferry::ucx {
namespace {

constexpr unsigned kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Unexpected system_failure(ErrorCode code, const std::string& what, const char* call, int error_number) {
  Error error(code, what + ": " + call + ": " + errno_text(error_number));
  error.sys_errno = error_number;
  return fail(std::move(error));
}

}  // namespace

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    address_ = std::exchange(other.address_, nullptr);
    length_ = std::exchange(other.length_, 0);
  }
  return *this;
}

void Mapping::reset() noexcept {
  if (address_ != nullptr) (void)munmap(std::exchange(address_, nullptr), length_);  // a mapping of ours: it cannot be refused
}

Result<Mapping> Mapping::map(int fd, std::uint64_t length, const std::string& what) {
  void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return system_failure(ErrorCode::no_memory, what, "mmap", errno);
  Mapping mapping;
  mapping.address_ = static_cast<std::uint8_t*>(memory);
  mapping.length_ = length;
  return mapping;
}

Result<SharedMemory> SharedMemory::create(const char* name, std::uint64_t length_bytes) {
  const std::string what = "share " + std::to_string(length_bytes) + " bytes of memory";
  SharedMemory memory;
  memory.descriptor = FileDescriptor(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = memory.descriptor.get();
  if (fd < 0) return system_failure(ErrorCode::limit, what, "memfd_create", errno);
  // Committed now: a host or a control group that is out of memory shows here, not as a fault in the middle of a transfer.
  int error_number = 0;
  do {
    error_number = posix_fallocate(fd, 0, static_cast<off_t>(length_bytes));
  } while (error_number == EINTR);
  if (error_number != 0) return system_failure(ErrorCode::no_memory, what, "posix_fallocate", error_number);
  if (fcntl(fd, F_ADD_SEALS, kSeals) != 0) return system_failure(ErrorCode::unavailable, what, "fcntl(F_ADD_SEALS)", errno);
  auto mapping = Mapping::map(fd, length_bytes, what);
  if (!mapping) return fail(std::move(mapping.error()));
  memory.mapping = std::move(*mapping);
  struct stat status {};
  if (fstat(fd, &status) != 0) return system_failure(ErrorCode::io, what, "fstat", errno);
  memory.file.device = status.st_dev;
  memory.file.inode = status.st_ino;
  memory.file.length_bytes = length_bytes;
  memory.file.descriptor = static_cast<std::uint32_t>(fd);
  memory.file.present = 1;
  return memory;
}

Result<Mapping> attach(std::uint32_t process, const SharedFile& file) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file.descriptor);
  const std::string what = "map " + std::to_string(file.length_bytes) + " bytes of " + path;
  const FileDescriptor descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!descriptor.valid()) return system_failure(ErrorCode::unavailable, what, "open", errno);
  struct stat status {};
  if (fstat(descriptor.get(), &status) != 0) return system_failure(ErrorCode::io, what, "fstat", errno);
  if (status.st_dev != file.device || status.st_ino != file.inode || static_cast<std::uint64_t>(status.st_size) != file.length_bytes) {
    return fail(ErrorCode::stale, what + ": it is another file by now");
  }
  // Without the seals the owner could cut the file while we write, which would kill this process.
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (static_cast<unsigned>(seals) & (F_SEAL_SHRINK | F_SEAL_SEAL)) != (F_SEAL_SHRINK | F_SEAL_SEAL)) {
    return fail(ErrorCode::refused, what + ": its size is not sealed");
  }
  return Mapping::map(descriptor.get(), file.length_bytes, what);
}

}  // namespace kvferry::ucx
