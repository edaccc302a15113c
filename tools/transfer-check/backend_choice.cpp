#include "backend_choice.h"

#include "values.h"

namespace kvferry::transfer_check {
namespace {

constexpr std::string_view kPluginRemedy = "install the plugin, or set KVFERRY_PLUGIN_PATH to its folder";

}  // namespace

Outcome<std::string> parse_backend(const Request& request) {
  return parse_word("--backend", request.text("--backend", "ucx"), {"ucx", "verbs", "loopback"});
}

Outcome<BackendFacts> query_backend(const std::string& name) {
  const Host host{Host::Options{}};
  auto plugin = load_plugin(name, host);
  if (!plugin) return because(plugin.error(), "--backend=" + name, kPluginRemedy, "--backend");
  auto backend = Backend::create(*plugin, host, backend_settings_from_environment(name));
  if (!backend) return because(backend.error(), "--backend=" + name, {}, "--backend");
  BackendFacts facts;
  facts.limits = (*backend)->limits();
  facts.path = plugin->path;
  if (plugin->table->version != nullptr) facts.version = plugin->table->version;
  if (plugin->table->build != nullptr) facts.build = plugin->table->build;
  return facts;
}

PlanLimits plan_limits(const kvferry_limits& limits) { return {limits.message_bytes_max, limits.pieces_per_write_max}; }

Outcome<void> check_lane(const std::string& backend, const std::string& lane) {
  if (lane != "rc") return {};
  const Host host{Host::Options{}};
  auto plugin = load_plugin(backend, host);
  if (!plugin) return because(plugin.error(), "--backend=" + backend, kPluginRemedy, "--backend");
  auto devices = probe_devices(*plugin, host, backend_settings_from_environment(backend));
  if (!devices) return because(devices.error(), "--backend=" + backend);
  std::string reasons;
  for (const auto& device : *devices) {
    if (std::string_view(device.lane) != lane) continue;
    if (device.usable != 0) return {};
    reasons += (reasons.empty() ? "" : ", ") + std::string(device.name) + " (" + device.reason + ")";
  }
  return because(Error(ErrorCode::unavailable,
                       "--lane=" + lane + ": backend " + backend + " has no usable device for it" + (reasons.empty() ? "" : ": " + reasons)),
                 {}, "use --lane=auto, shm or tcp; transfer-check devices shows what this host offers", "--lane");
}

}  // namespace kvferry::transfer_check
