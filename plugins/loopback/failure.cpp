#include "failure.h"

#include <cerrno>

namespace loopback {
namespace {

std::int32_t class_of(std::int32_t code) {
  switch (code) {
    case KVFERRY_ERROR_BUSY:
    case KVFERRY_ERROR_NO_MEMORY:
    case KVFERRY_ERROR_TIMEOUT:
      return KVFERRY_CLASS_RETRY;
    case KVFERRY_ERROR_PEER_LOST:
    case KVFERRY_ERROR_IO:
      return KVFERRY_CLASS_RECONNECT;
    case KVFERRY_ERROR_STALE:
      return KVFERRY_CLASS_REREGISTER;
    case KVFERRY_ERROR_INTERNAL:
      return KVFERRY_CLASS_BUG;
    default:
      return KVFERRY_CLASS_PERMANENT;
  }
}

}  // namespace

tl::unexpected<Failure> refuse_errno(std::int32_t code, const std::string& what, const char* call, int error_number) {
  Failure failure;
  failure.code = code;
  failure.text = what + ": " + call + ": " + std::strerror(error_number) + " (errno " + std::to_string(error_number) + ")";
  failure.sys_errno = error_number;
  return tl::unexpected<Failure>(std::move(failure));
}

void write_error(kvferry_error* ret_error, const Failure& failure) noexcept {
  if (ret_error == nullptr || ret_error->struct_size == 0) return;
  kvferry_error error{};
  error.code = failure.code;
  error.error_class = failure.error_class != KVFERRY_CLASS_NONE ? failure.error_class : class_of(failure.code);
  error.sys_errno = failure.sys_errno;
  error.object = failure.object;
  const std::size_t kept = std::min<std::size_t>(failure.text.size(), sizeof(error.text) - 1);
  std::memcpy(error.text, failure.text.data(), kept);
  if (kept < failure.text.size()) std::memcpy(error.text + kept - 3, "...", 3);
  write_sized(ret_error, error);
}

}  // namespace loopback
