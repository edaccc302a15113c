// Reads the list of settings that a backend is created with. Every key is checked, an unknown one is an error that names key and value.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "kvferry/backend_abi.h"
#include "kvferry/result.h"

namespace kvferry::plugins {

/// A setting that is a number; S: the backend's struct of settings.
template <class S>
struct NumberKey {
  std::string_view key;
  std::uint64_t S::*member;
  std::uint64_t standard, least, most;
};

/// "setting K has the value "V": why".
Unexpected bad_setting(std::string_view key, std::string_view value, std::string_view why);

Result<std::uint64_t> parse_number(std::string_view key, std::string_view value, std::uint64_t least, std::uint64_t most);

/// Calls `set` for each; it says false for a key that it does not know.
using SetOne = std::function<Result<bool>(std::string_view key, std::string_view value)>;
Result<void> read_settings(const kvferry_setting* list, std::uint32_t count, const char* backend_name, const SetOne& set);

}  // namespace kvferry::plugins
