#include "settings.h"

#include "../common/process.h"
#include "../common/setting_list.h"

namespace kvferry::ucx {

using namespace plugins;
namespace {

// The table in docs/ucx.md says what each is for.
constexpr NumberKey<Settings> kNumbers[] = {
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

Result<void> check_devices(std::string_view value) {
  if (value.empty() || value.size() > 256) return bad_setting("net_devices", value, "wanted device names with commas between them, or all");
  for (const char c : value) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-' || c == ',' ||
                      c == ':' || c == '@';
    if (!good) return bad_setting("net_devices", value, "wanted device names with commas between them, or all");
  }
  return {};
}

Result<bool> set_one(Settings& settings, std::string_view key, std::string_view value) {
  for (const auto& number : kNumbers) {
    if (number.key != key) continue;
    auto parsed = parse_number(key, value, number.least, number.most);
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
    if (value != "auto" && value != "off") return bad_setting(key, value, "wanted auto or off");
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
  for (const auto& number : kNumbers) settings.*number.member = number.standard;
  settings.net_devices = "all";
  auto read = read_settings(list, count, "ucx", [&](std::string_view key, std::string_view value) { return set_one(settings, key, value); });
  if (!read) return fail(std::move(read.error()));
  if (settings.write_bytes_max > settings.window_bytes) {
    return bad_setting("write_bytes_max", std::to_string(settings.write_bytes_max), "it is above window_bytes, " + std::to_string(settings.window_bytes));
  }
  return settings;
}

std::string Settings::to_json(std::string_view extra) const {
  std::string out = "{\"lane\": " + json_string(to_string(lane)) + ", \"mapped\": " + json_string(mapped ? "auto" : "off") +
                    ", \"net_devices\": " + json_string(net_devices);
  for (const auto& number : kNumbers) out += ", " + json_string(number.key) + ": " + std::to_string(this->*number.member);
  if (!extra.empty()) out += ", " + std::string(extra);
  return out + "}";
}

}  // namespace kvferry::ucx
