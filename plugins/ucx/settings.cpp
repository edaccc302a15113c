#include "settings.h"

#include <charconv>
#include <optional>
#include <set>

namespace kvferry::ucx {
namespace {

struct NumberKey {
  std::string_view key;
  std::uint64_t Settings::*member;
  std::uint64_t standard, least, most;
};

// The table in docs/ucx.md says what each is for.
constexpr NumberKey kNumbers[] = {
    {"shm_segment_bytes", &Settings::shm_segment_bytes, 16 * 1024, 4 * 1024, 256 * 1024},
    {"tcp_segment_bytes", &Settings::tcp_segment_bytes, 128 * 1024, 8 * 1024, 1024 * 1024},
    {"messages_in_flight", &Settings::messages_in_flight, 512, 4, 4096},
    {"batches_in_flight", &Settings::batches_in_flight, 128, 1, 4096},
    {"window_bytes", &Settings::window_bytes, 64ull << 20, 64 * 1024, 16ull << 30},
    {"write_bytes_max", &Settings::write_bytes_max, 16ull << 20, 4096, 1ull << 30},
    {"regions_max", &Settings::regions_max, 65536, 1, 1u << 20},
    {"tcp_keepalive_ms", &Settings::tcp_keepalive_ms, 2000, 1000, 3600000},
    {"cancels_max", &Settings::cancels_max, 65536, 16, 1u << 24},
};

constexpr std::size_t kTextMax = 512;

Unexpected bad(std::string_view key, std::string_view value, std::string_view why) {
  return fail(ErrorCode::invalid_argument, "setting " + std::string(key) + " has the value \"" + std::string(value) + "\": " + std::string(why));
}

Result<std::uint64_t> parse_number(const NumberKey& key, std::string_view value) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (value.empty() || error != std::errc() || end != value.data() + value.size() || number < key.least || number > key.most) {
    return bad(key.key, value, "wanted a number from " + std::to_string(key.least) + " to " + std::to_string(key.most));
  }
  return number;
}

Result<void> check_devices(std::string_view value) {
  if (value.empty() || value.size() > 256) return bad("net_devices", value, "wanted device names with commas between them, or all");
  for (const char c : value) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-' || c == ',' ||
                      c == ':' || c == '@';
    if (!good) return bad("net_devices", value, "wanted device names with commas between them, or all");
  }
  return {};
}

Result<bool> set_one(Settings& settings, std::string_view key, std::string_view value) {
  for (const NumberKey& number : kNumbers) {
    if (number.key != key) continue;
    auto parsed = parse_number(number, value);
    if (!parsed) return fail(std::move(parsed.error()));
    settings.*number.member = *parsed;
    return true;
  }
  if (key == "lane") {
    auto lane = parse_lane(value, "setting lane");
    if (!lane) return fail(std::move(lane.error()));
    settings.lane = *lane;
    return true;
  }
  if (key == "mapped") {
    if (value != "auto" && value != "off") return bad(key, value, "wanted auto or off");
    settings.mapped = value == "auto";
    return true;
  }
  if (key == "net_devices") {
    if (auto checked = check_devices(value); !checked) return fail(std::move(checked.error()));
    settings.net_devices = std::string(value);
    return true;
  }
  return false;
}

}  // namespace

std::string_view to_string(LaneChoice choice) noexcept {
  switch (choice) {
    case LaneChoice::automatic:
      return "auto";
    case LaneChoice::shm:
      return "shm";
    case LaneChoice::tcp:
      return "tcp";
  }
  return "?";
}

Result<LaneChoice> parse_lane(std::string_view text, std::string_view what) {
  for (const LaneChoice choice : {LaneChoice::automatic, LaneChoice::shm, LaneChoice::tcp}) {
    if (text == to_string(choice)) return choice;
  }
  return fail(ErrorCode::invalid_argument,
              std::string(what) + " has the value \"" + std::string(text) + "\": wanted auto, shm or tcp (mapped is chosen on shm by itself)");
}

Result<Settings> Settings::parse(const kvferry_setting* list, std::uint32_t count) {
  Settings settings;
  for (const NumberKey& number : kNumbers) settings.*number.member = number.standard;
  settings.net_devices = "all";
  if (list == nullptr && count > 0) return fail(ErrorCode::invalid_argument, "settings: a null list of " + std::to_string(count));
  std::set<std::string_view> seen;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (list[i].key == nullptr || list[i].value == nullptr) {
      return fail(ErrorCode::invalid_argument, "settings: key or value " + std::to_string(i) + " is null");
    }
    const std::string_view key = std::string_view(list[i].key).substr(0, kTextMax), value = std::string_view(list[i].value).substr(0, kTextMax);
    if (!seen.insert(key).second) return bad(key, value, "the key is given twice");
    auto known = set_one(settings, key, value);
    if (!known) return fail(std::move(known.error()));
    if (!*known) return fail(ErrorCode::invalid_argument, "setting " + std::string(key) + " (value \"" + std::string(value) + "\") is not known to the ucx backend");
  }
  if (settings.write_bytes_max > settings.window_bytes) {
    return bad("write_bytes_max", std::to_string(settings.write_bytes_max), "it is above window_bytes, " + std::to_string(settings.window_bytes));
  }
  return settings;
}

std::string json_string(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string Settings::to_json(std::string_view extra) const {
  std::string out = "{\"lane\": " + json_string(to_string(lane)) + ", \"mapped\": " + json_string(mapped ? "auto" : "off") +
                    ", \"net_devices\": " + json_string(net_devices);
  for (const NumberKey& number : kNumbers) out += ", " + json_string(number.key) + ": " + std::to_string(this->*number.member);
  if (!extra.empty()) out += ", " + std::string(extra);
  return out + "}";
}

}  // namespace kvferry::ucx
