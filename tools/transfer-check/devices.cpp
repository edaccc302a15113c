#include "devices.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "backend_choice.h"
#include "host_memory.h"
#include "kvferry/backend.h"
#include "report.h"

namespace kvferry::transfer_check {
namespace {

struct PluginReport {
  std::string name;
  std::optional<Plugin> plugin;
  std::optional<Error> error;  ///< of loading or probing
  std::vector<kvferry_device> devices;
  std::optional<kvferry_limits> limits;
  std::optional<Error> limits_error;
};

/// Names of the plugins that lie in the folders of the search, each once.
std::vector<std::string> plugin_names() {
  constexpr std::string_view kPrefix = "libkvferry_", kSuffix = ".so";
  std::vector<std::string> names;
  for (const auto& folder : plugin_folders()) {
    std::error_code error;
    for (auto entry = std::filesystem::directory_iterator(folder, error); !error && entry != std::filesystem::directory_iterator();
         entry.increment(error)) {
      const std::string file = entry->path().filename().string();
      if (!file.starts_with(kPrefix) || !file.ends_with(kSuffix) || file.size() <= kPrefix.size() + kSuffix.size()) continue;
      names.push_back(file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size()));
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

PluginReport look_at(const std::string& name, const Host& host) {
  PluginReport report;
  report.name = name;
  const auto settings = backend_settings_from_environment(name);
  auto plugin = load_plugin(name, host);
  if (!plugin) {
    report.error = plugin.error();
    return report;
  }
  report.plugin = *plugin;
  auto devices = probe_devices(*plugin, host, settings);
  if (!devices) {
    report.error = devices.error();
    return report;
  }
  report.devices = std::move(*devices);
  auto backend = Backend::create(*plugin, host, settings);
  if (!backend) {
    report.limits_error = backend.error();
  } else {
    report.limits = (*backend)->limits();
  }
  return report;
}

std::string text_of(const char* text) { return text == nullptr ? "" : text; }

/// Whether another process can be reached through it.
bool is_usable(const PluginReport& report) {
  return std::any_of(report.devices.begin(), report.devices.end(), [](const kvferry_device& device) { return device.usable != 0; });
}

struct Capability {
  std::uint32_t bit;
  std::string_view word;
};
constexpr Capability kCapabilities[] = {
    {KVFERRY_CAP_WRITE, "write"},
    {KVFERRY_CAP_READ, "read"},
    {KVFERRY_CAP_TRUE_ONE_SIDED, "true_one_sided"},
    {KVFERRY_CAP_NEEDS_TARGET_PROGRESS, "needs_target_progress"},
    {KVFERRY_CAP_REVOKES_ON_DEREGISTER, "revokes_on_deregister"},
    {KVFERRY_CAP_DETECTS_DEAD_PEER, "detects_dead_peer"},
    {KVFERRY_CAP_EVENT_FD, "event_fd"},
    {KVFERRY_CAP_ALLOCATE, "allocate"},
    {KVFERRY_CAP_IN_PROCESS_ONLY, "in_process_only"},
    {KVFERRY_CAP_GUARDED_TARGET, "guarded_target"},
    {KVFERRY_CAP_DEVICE_MEMORY, "device_memory"},
};

Json limits_document(const kvferry_limits& limits) {
  Json capabilities = Json::array();
  for (const auto& capability : kCapabilities) {
    if ((limits.capabilities & capability.bit) != 0) capabilities.push_back(capability.word);
  }
  Json document;
  document["capabilities"] = std::move(capabilities);
  document["message_bytes_max"] = limits.message_bytes_max;
  document["pieces_per_write_max"] = limits.pieces_per_write_max;
  document["writes_per_batch_max"] = limits.writes_per_batch_max;
  document["batches_in_flight_max"] = limits.batches_in_flight_max;
  document["bytes_in_flight_max"] = limits.bytes_in_flight_max;
  document["done_means"] = text_of(limits.done_means);
  return document;
}

Json plugin_document(const PluginReport& report) {
  Json document;
  document["name"] = report.name;
  document["path"] = report.plugin ? Json(report.plugin->path) : Json(nullptr);
  document["version"] = report.plugin ? Json(text_of(report.plugin->table->version)) : Json(nullptr);
  document["build"] = report.plugin ? Json(text_of(report.plugin->table->build)) : Json(nullptr);
  Json devices = Json::array();
  for (const auto& device : report.devices) {
    devices.push_back({{"name", text_of(device.name)},
                       {"lane", text_of(device.lane)},
                       {"usable", device.usable != 0},
                       {"detail", text_of(device.detail)},
                       {"reason", text_of(device.reason)}});
  }
  document["devices"] = std::move(devices);
  document["limits"] = report.limits ? limits_document(*report.limits) : Json(nullptr);
  if (report.error) document["error"] = error_document(*report.error);
  if (report.limits_error) document["error"] = error_document(*report.limits_error);
  return document;
}

struct HostLimits {
  std::uint64_t memory_bytes = 0;
  std::optional<std::uint64_t> locked_bytes;  ///< empty: no limit
  std::uint64_t descriptors = 0;
};

HostLimits host_limits() {
  HostLimits limits;
  limits.memory_bytes = available_memory_bytes();
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) limits.locked_bytes = limit.rlim_cur;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) limits.descriptors = limit.rlim_cur;
  return limits;
}

std::string devices_text(const std::vector<PluginReport>& reports) {
  std::string text;
  Table plugins({{"plugin"}, {"version"}, {"path, or why not"}});
  Table devices({{"plugin"}, {"device"}, {"lane"}, {"usable"}, {"detail, or why not"}});
  for (const auto& report : reports) {
    const bool loaded = report.plugin.has_value();
    plugins.add({report.name, loaded ? text_of(report.plugin->table->version) : "-",
                 loaded ? report.plugin->path + " (" + text_of(report.plugin->table->build) + ")" : report.error->text});
    if (loaded && report.error) devices.add({report.name, "-", "-", "no", report.error->text});
    if (report.limits_error) devices.add({report.name, "-", "-", "no", report.limits_error->text});
    for (const auto& device : report.devices) {
      const bool usable = device.usable != 0;
      devices.add({report.name, text_of(device.name), text_of(device.lane), usable ? "yes" : "no", text_of(usable ? device.detail : device.reason)});
    }
  }
  text = plugins.text() + "\n" + devices.text() + "\n";
  for (const auto& report : reports) {
    if (report.limits) text += report.name + ": done means " + text_of(report.limits->done_means) + "\n";
  }
  const auto limits = host_limits();
  text += "host: " + bytes_text(limits.memory_bytes) + " of memory available, locked memory " +
          (limits.locked_bytes ? "at most " + bytes_text(*limits.locked_bytes) + " (ulimit -l)" : std::string("without limit")) + ", " +
          std::to_string(limits.descriptors) + " open files (ulimit -n)\n";
  return text;
}

Json devices_document(const std::vector<PluginReport>& reports) {
  Json document = begin_document("devices", "pass");
  Json plugins = Json::array();
  for (const auto& report : reports) plugins.push_back(plugin_document(report));
  document["plugin_folders"] = plugin_folders();
  document["plugins"] = std::move(plugins);
  const auto limits = host_limits();
  document["host"] = {{"memory_available_bytes", limits.memory_bytes},
                      {"locked_memory_bytes_max", limits.locked_bytes ? Json(*limits.locked_bytes) : Json(nullptr)},
                      {"open_files_max", limits.descriptors}};
  return document;
}

}  // namespace

Outcome<ExitStatus> run_devices(const Request& request) {
  std::vector<std::string> names = plugin_names();
  if (request.has("--backend")) {
    auto name = parse_backend(request);
    if (!name) return tl::unexpected(name.error());
    names = {*name};
  }
  const Host host{Host::Options{}};
  std::vector<PluginReport> reports;
  for (const auto& name : names) reports.push_back(look_at(name, host));
  if (std::none_of(reports.begin(), reports.end(), is_usable)) {
    std::string cause;
    for (const auto& report : reports) {
      cause += (cause.empty() ? "" : "; ") + report.name + ": " + (report.error ? report.error->text : std::string("no usable device"));
    }
    std::string folders;
    for (const auto& folder : plugin_folders()) folders += (folders.empty() ? "" : ", ") + folder;
    if (reports.empty()) cause = "no plugin in " + (folders.empty() ? std::string("any folder of the search") : folders);
    return because(Error(ErrorCode::unavailable, cause), {}, "install a plugin, or set KVFERRY_PLUGIN_PATH to its folder");
  }
  auto printed = request.has("--json") ? print_document(devices_document(reports)) : print(devices_text(reports));
  if (!printed) return tl::unexpected(printed.error());
  return ExitStatus::holds;
}

}  // namespace kvferry::transfer_check
