#include "config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <string_view>

namespace loopback {
namespace {

constexpr std::uint64_t kAny = ~std::uint64_t{0};

struct Setting {
  std::string_view key;
  std::uint64_t Config::*value;
  std::uint64_t min, max;
};

// Limits of the limits: 32-bit fields of kvferry_limits hold them, and a peer's memory stays below a GiB.
constexpr std::array kSettings = {
    Setting{"window_bytes", &Config::window_bytes, 1, 1u << 30},
    Setting{"message_bytes_max", &Config::message_bytes_max, 1, 1u << 30},
    Setting{"pieces_per_write_max", &Config::pieces_per_write_max, 1, 65536},
    Setting{"writes_per_batch_max", &Config::writes_per_batch_max, 1, 65536},
    Setting{"pieces_per_batch_max", &Config::pieces_per_batch_max, 1, 65536},
    Setting{"batches_in_flight_max", &Config::batches_in_flight_max, 1, 1024},
    Setting{"progress_bytes", &Config::progress_bytes, 1, 1u << 30},
    Setting{"target_events_max", &Config::target_events_max, 2, 1u << 20},
    Setting{"control_events_max", &Config::control_events_max, 1, 1u << 20},
    Setting{"regions_max", &Config::regions_max, 1, 1u << 24},
    Setting{"fences_max", &Config::fences_max, 1, 1u << 24},
    Setting{"cancels_max", &Config::cancels_max, 1, 1u << 24},
    Setting{"seed", &Config::seed, 0, kAny},
    Setting{"delay_min_ns", &Config::delay_min_ns, 0, kAny / 4},
    Setting{"delay_max_ns", &Config::delay_max_ns, 0, kAny / 4},
    Setting{"reorder_permille", &Config::reorder_permille, 0, 1000},
    Setting{"reorder_same_room", &Config::reorder_same_room, 0, 1},
    Setting{"partial_accept_permille", &Config::partial_accept_permille, 0, 1000},
    Setting{"refuse_permille", &Config::refuse_permille, 0, 1000},
    Setting{"refuse_nth_batch", &Config::refuse_nth_batch, 0, kAny},
    Setting{"lose_completion_permille", &Config::lose_completion_permille, 0, 1000},
    Setting{"lose_completion_nth", &Config::lose_completion_nth, 0, kAny},
    Setting{"die_after_batches", &Config::die_after_batches, 0, kAny},
    Setting{"die_notice_ns", &Config::die_notice_ns, 0, kAny / 4},
    Setting{"corrupt_nth_write", &Config::corrupt_nth_write, 0, kAny},
    Setting{"corrupt_offset", &Config::corrupt_offset, 0, kAny},
    Setting{"late_landing", &Config::late_landing, 0, 1},
    Setting{"fail_nth", &Config::fail_nth, 0, kAny},
};

// Entries that fail_entry may name: all but destroy, poll and stats, which a host cannot retry or whose loss is no fault of a transport.
constexpr std::array<std::string_view, 22> kFailEntries = {
    "create",         "query",        "effective_config", "register_region", "deregister_region",
    "region_quiesce", "allocate",     "free_memory",      "export_regions",  "peer_create",
    "peer_export",    "peer_connect", "import_regions",   "forget_regions",  "peer_state",
    "peer_close",     "submit",       "cancel",           "fence",           "flush",
    "progress",       "arm",
};

Answer<void> set_number(Config& config, const Setting& setting, std::string_view value) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || value.empty()) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT,
                  "setting " + std::string(setting.key) + ": \"" + std::string(value) + "\" is not an unsigned 64-bit number");
  }
  if (number < setting.min || number > setting.max) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "setting " + std::string(setting.key) + ": " + std::to_string(number) + " is outside " +
                                                      std::to_string(setting.min) + " to " + std::to_string(setting.max));
  }
  config.*setting.value = number;
  return {};
}

Answer<void> set_fail_entry(Config& config, std::string_view value) {
  if (std::find(kFailEntries.begin(), kFailEntries.end(), value) == kFailEntries.end()) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "setting fail_entry: \"" + std::string(value) + "\" is not an entry that can be made to fail");
  }
  config.fail_entry = value;
  return {};
}

Answer<void> check_relations(const Config& config) {
  const auto pair_error = [](const char* small, std::uint64_t small_value, const char* large, std::uint64_t large_value) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT,
                  std::string("setting ") + small + ": " + std::to_string(small_value) + " is above " + large + " " + std::to_string(large_value));
  };
  if (config.message_bytes_max > config.window_bytes) {
    return pair_error("message_bytes_max", config.message_bytes_max, "window_bytes", config.window_bytes);
  }
  if (config.delay_min_ns > config.delay_max_ns) return pair_error("delay_min_ns", config.delay_min_ns, "delay_max_ns", config.delay_max_ns);
  if (config.pieces_per_write_max > config.pieces_per_batch_max) {
    return pair_error("pieces_per_write_max", config.pieces_per_write_max, "pieces_per_batch_max", config.pieces_per_batch_max);
  }
  if (config.fail_entry.empty() != (config.fail_nth == 0)) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "settings fail_entry and fail_nth: one without the other");
  }
  return {};
}

}  // namespace

Answer<Config> parse_config(const kvferry_setting* settings, std::uint32_t count) {
  if (settings == nullptr && count > 0) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "settings: a null list of " + std::to_string(count));
  Config config;
  std::set<std::string_view> seen;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (settings[i].key == nullptr || settings[i].value == nullptr) {
      return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "setting " + std::to_string(i) + ": null key or value", i);
    }
    const std::string_view key = settings[i].key;
    const std::string_view value = settings[i].value;
    if (!seen.insert(key).second) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "setting " + std::string(key) + ": given twice", i);
    const auto known = std::find_if(kSettings.begin(), kSettings.end(), [&](const Setting& setting) { return setting.key == key; });
    Answer<void> done;
    if (known != kSettings.end()) {
      done = set_number(config, *known, value);
    } else if (key == "fail_entry") {
      done = set_fail_entry(config, value);
    } else {
      return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "setting " + std::string(key) + " (value \"" + std::string(value) + "\"): not known to loopback",
                    i);
    }
    if (!done) return tl::unexpected<Failure>(std::move(done.error()));
  }
  if (auto done = check_relations(config); !done) return tl::unexpected<Failure>(std::move(done.error()));
  return config;
}

std::string config_as_json(const Config& config) {
  std::string text = "{";
  for (const Setting& setting : kSettings) {
    text.append("\"").append(setting.key).append("\": ").append(std::to_string(config.*setting.value)).append(", ");
  }
  return text + "\"fail_entry\": \"" + config.fail_entry + "\"}";  // one of kFailEntries or empty: nothing to escape
}

Config Config::without_faults() const {
  Config clean;
  for (const Setting& setting : kSettings) {
    if (setting.value == &Config::seed) break;  // the faults follow it
    clean.*setting.value = this->*setting.value;
  }
  return clean;
}

}  // namespace loopback
