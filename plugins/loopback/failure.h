// Errors inside the plugin, and the sized structs of the ABI. The plugin does not link libkvferry, so it has its own small error value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "kvferry/backend_abi.h"

namespace loopback {

struct Failure {
  std::int32_t code = KVFERRY_ERROR_INTERNAL;
  std::string text;
  std::uint64_t object = 0;
  std::int32_t error_class = KVFERRY_CLASS_NONE;  ///< none: the one that fits the code
  std::int32_t sys_errno = 0;
};

template <class T>
using Answer = tl::expected<T, Failure>;

inline tl::unexpected<Failure> refuse(std::int32_t code, std::string text, std::uint64_t object = 0) {
  return tl::unexpected<Failure>(Failure{code, std::move(text), object, KVFERRY_CLASS_NONE, 0});
}

/// `call` failed with `error_number`.
tl::unexpected<Failure> refuse_errno(std::int32_t code, const std::string& what, const char* call, int error_number);

void write_error(kvferry_error* ret_error, const Failure& failure) noexcept;

/// The struct as far as both sides know it; a missing tail is zero.
template <class T>
T read_sized(const T* given) noexcept {
  T value{};
  std::memcpy(&value, given, std::min<std::size_t>(given->struct_size, sizeof(T)));
  return value;
}

/// Fills the caller's struct up to its size and keeps its struct_size.
template <class T>
void write_sized(T* ret_value, T value) noexcept {
  const std::uint32_t size = ret_value->struct_size;
  value.struct_size = size;
  std::memcpy(ret_value, &value, std::min<std::size_t>(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(reinterpret_cast<char*>(ret_value) + sizeof(T), 0, size - sizeof(T));
}

/// Element `index` of an array whose stride is the struct_size of its first element.
template <class T>
T* sized_element(T* first, std::uint32_t index) noexcept {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(first) + static_cast<std::size_t>(index) * first->struct_size);
}

}  // namespace loopback
