// Errors across the C line, both ways.
#include <algorithm>
#include <cstring>

#include "kvferry/backend.h"

namespace kvferry {
namespace {

bool known_code(std::int32_t code) { return code >= KVFERRY_ERROR_INVALID_ARGUMENT && code <= KVFERRY_ERROR_CANNOT_PROMISE; }
bool known_class(std::int32_t error_class) { return error_class >= KVFERRY_CLASS_RETRY && error_class <= KVFERRY_CLASS_BUG; }

/// The longest prefix of at most `bytes_max` that does not end inside a UTF-8 sequence.
std::size_t utf8_prefix_bytes(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text.size();
  std::size_t bytes = bytes_max;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0u) == 0x80u) --bytes;
  return bytes;
}

}  // namespace

Error to_error(const kvferry_error& error) {
  std::string text(error.text, strnlen(error.text, sizeof(error.text)));
  if (!known_code(error.code)) {
    return Error(ErrorCode::internal, "the plugin gave error code " + std::to_string(error.code) + ", which is none of ours: " + text);
  }
  Error ret(static_cast<ErrorCode>(error.code), std::move(text));
  if (known_class(error.error_class)) ret.error_class = static_cast<ErrorClass>(error.error_class);
  ret.vendor_status = error.vendor_status;
  ret.sys_errno = error.sys_errno;
  return ret;
}

void fill_error(kvferry_error* ret_error, const Error& error) noexcept {
  if (ret_error == nullptr) return;
  static constexpr std::string_view kCut = "...";
  *ret_error = kvferry_error{};
  ret_error->struct_size = sizeof(*ret_error);
  ret_error->code = static_cast<std::int32_t>(error.code);
  ret_error->error_class = static_cast<std::int32_t>(error.error_class);
  ret_error->vendor_status = error.vendor_status;
  ret_error->sys_errno = error.sys_errno;
  const std::size_t room = sizeof(ret_error->text) - 1;
  if (error.text.size() <= room) {
    std::memcpy(ret_error->text, error.text.data(), error.text.size());
    return;
  }
  const std::size_t kept = utf8_prefix_bytes(error.text, room - kCut.size());
  std::memcpy(ret_error->text, error.text.data(), kept);
  std::memcpy(ret_error->text + kept, kCut.data(), kCut.size());
}

}  // namespace kvferry
