#include "setting_list.h"

#include <charconv>
#include <set>

namespace kvferry::plugins {
namespace {

constexpr std::size_t kTextMax = 512;

}  // namespace

Unexpected bad_setting(std::string_view key, std::string_view value, std::string_view why) {
  return fail(ErrorCode::invalid_argument, "setting " + std::string(key) + " has the value \"" + std::string(value) + "\": " + std::string(why));
}

Result<std::uint64_t> parse_number(std::string_view key, std::string_view value, std::uint64_t least, std::uint64_t most) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (value.empty() || error != std::errc() || end != value.data() + value.size() || number < least || number > most) {
    return bad_setting(key, value, "wanted a number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return number;
}

Result<void> read_settings(const kvferry_setting* list, std::uint32_t count, const char* backend_name, const SetOne& set) {
  if (list == nullptr && count > 0) return fail(ErrorCode::invalid_argument, "settings: a null list of " + std::to_string(count));
  std::set<std::string_view> seen;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (list[i].key == nullptr || list[i].value == nullptr) {
      return fail(ErrorCode::invalid_argument, "settings: key or value " + std::to_string(i) + " is null");
    }
    const std::string_view key = std::string_view(list[i].key).substr(0, kTextMax), value = std::string_view(list[i].value).substr(0, kTextMax);
    if (!seen.insert(key).second) return bad_setting(key, value, "the key is given twice");
    auto known = set(key, value);
    if (!known) return fail(std::move(known.error()));
    if (!*known) {
      return fail(ErrorCode::invalid_argument, "setting " + std::string(key) + " (value \"" + std::string(value) + "\") is not known to the " + backend_name +
                                                   " backend");
    }
  }
  return {};
}

}  // namespace kvferry::plugins
