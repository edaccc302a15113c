#include "library.h"

#include <dlfcn.h>
#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>
#include <mutex>

namespace kvferry::ucx {
namespace {

constexpr unsigned kOldestMinor = 12;  // of major version 1: active messages with user headers, ucp_worker_address_query
constexpr std::size_t kLogTextMax = 1024;

// UCX has one log per process, so this is the one place with process-wide state. The handler stays pushed once it was (UCX can only pop the newest one,
// which may be somebody else's by then) and lets everything pass to UCX's own handler while no backend of ours lives.
std::mutex sinks_mutex;
std::vector<const kvferry_host*>& sinks() {
  static auto* list = new std::vector<const kvferry_host*>();  // never destroyed: UCX's own thread may log until the process ends
  return *list;
}
bool handler_pushed = false;

std::string& thread_text() {
  thread_local std::string text;
  return text;
}

std::int32_t level_for(ucs_log_level_t level) {
  // What UCX calls an error is often the expected end of a peer; the outcome is reported by us, its text is detail.
  if (level <= UCS_LOG_LEVEL_WARN) return KVFERRY_LOG_WARN;
  return level <= UCS_LOG_LEVEL_INFO ? KVFERRY_LOG_INFO : KVFERRY_LOG_DEBUG;
}

ucs_log_func_rc_t take_log(const char* file, unsigned line, const char* /*function*/, ucs_log_level_t level,
                           const ucs_log_component_config_t* component, const char* format, va_list arguments) {
  const std::lock_guard<std::mutex> lock(sinks_mutex);
  if (sinks().empty()) return UCS_LOG_FUNC_RC_CONTINUE;
  if (component != nullptr && level > component->log_level) return UCS_LOG_FUNC_RC_STOP;
  char text[kLogTextMax];
  va_list copy;
  va_copy(copy, arguments);
  const int length = std::vsnprintf(text, sizeof(text), format, copy);
  va_end(copy);
  if (length < 0) return UCS_LOG_FUNC_RC_STOP;
  if (level <= UCS_LOG_LEVEL_DIAG) {
    std::string& kept = thread_text();
    if (kept.size() < kLogTextMax) kept += (kept.empty() ? "" : "; ") + std::string(text);
  }
  const kvferry_host* host = sinks().front();
  if (host->log != nullptr) {
    const std::string_view path = file != nullptr ? file : "?";
    const std::string message = std::string(path.substr(path.rfind('/') + 1)) + ":" + std::to_string(line) + " " + text;
    host->log(host->user, level_for(level), "ucx.library", message.c_str());
  }
  return UCS_LOG_FUNC_RC_STOP;
}

ErrorCode code_for(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_NO_MEMORY:
      return ErrorCode::no_memory;
    case UCS_ERR_TIMED_OUT:
      return ErrorCode::timeout;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_SHMEM_SEGMENT:
      return ErrorCode::unavailable;
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
      return ErrorCode::peer_lost;
    case UCS_ERR_EXCEEDS_LIMIT:
    case UCS_ERR_NO_RESOURCE:
      return ErrorCode::limit;
    case UCS_ERR_IO_ERROR:
      return ErrorCode::io;
    default:
      return ErrorCode::internal;
  }
}

struct ConfigDeleter {
  void operator()(ucp_config_t* config) const noexcept { ucp_config_release(config); }
};
using ConfigHandle = std::unique_ptr<ucp_config_t, ConfigDeleter>;

using Keys = std::vector<std::pair<std::string, std::string>>;

/// Transport keys stand without the transport's name ("TX_SEG_SIZE"): so UCX 1.13 looks them up in the tables of the few transports a context has.
Keys keys_for(LaneClass lane, const Settings& settings) {
  Keys keys = {{"PROTO_ENABLE", "n"}, {"RNDV_THRESH", "inf"}, {"ZCOPY_THRESH", "inf"}, {"MAX_EAGER_RAILS", "1"}, {"UNIFIED_MODE", "n"}};
  if (lane == LaneClass::shm) {
    // A FIFO has 64 places, each with a buffer of its own in /dev/shm; growing by the standard 512 at once would take eight times that per peer.
    keys.insert(keys.end(), {{"TLS", "posix"},
                             {"MM_SEG_SIZE", std::to_string(settings.shm_segment_bytes)},
                             {"MM_FIFO_SIZE", "64"},
                             {"MM_RX_BUFS_GROW", "72"}});
  } else {
    const std::string idle = std::to_string(settings.tcp_keepalive_ms) + "ms";
    keys.insert(keys.end(), {{"TLS", "tcp"},
                             {"TX_SEG_SIZE", std::to_string(settings.tcp_segment_bytes)},
                             {"RX_SEG_SIZE", std::to_string(settings.tcp_segment_bytes)},
                             {"KEEPIDLE", idle},
                             {"KEEPINTVL", idle},
                             {"CONN_NB", "y"},
                             {"KEEPALIVE_INTERVAL", idle}});
    if (!settings.net_devices.empty() && settings.net_devices != "all") keys.emplace_back("NET_DEVICES", settings.net_devices);
  }
  return keys;
}

/// A worker is made and thrown away, because only the first one shows whether UCX took the keys.
Result<void> check_keys(ucp_context_h context, const std::string& what) {
  forget_log();
  ucp_worker_params_t parameters{};
  ucp_worker_h worker = nullptr;
  const ucs_status_t status = ucp_worker_create(context, &parameters, &worker);
  if (status != UCS_OK) return ucx_failure(what, "ucp_worker_create", status);
  const WorkerHandle handle(worker);
  if (logged_text().find("invalid configurations") != std::string::npos) {
    return fail(ErrorCode::version, what + ": this UCX does not take our settings: " + logged_text());
  }
  return {};
}

}  // namespace

const char* to_string(LaneClass lane) noexcept { return lane == LaneClass::shm ? "shm" : "tcp"; }

std::string Library::text() const {
  return "ucx " + std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release) + " (" + path + ")";
}

Library bound_library() {
  Library library;
  ucp_get_version(&library.major, &library.minor, &library.release);
  Dl_info info{};
  const bool found = dladdr(reinterpret_cast<const void*>(&ucp_worker_progress), &info) != 0;
  library.path = found && info.dli_fname != nullptr ? info.dli_fname : "path unknown";
  return library;
}

Result<void> check_library(const Library& library) {
  if (library.major != UCP_API_MAJOR) {
    return fail(ErrorCode::version, "use " + library.text() + ": built for major version " + std::to_string(UCP_API_MAJOR));
  }
  if (library.major == 1 && library.minor < kOldestMinor) {
    return fail(ErrorCode::version, "use " + library.text() + ": version 1." + std::to_string(kOldestMinor) + " is the oldest that works");
  }
  return {};
}

LogSink::LogSink(const kvferry_host& host) : host_(host) {
  const std::lock_guard<std::mutex> lock(sinks_mutex);
  sinks().push_back(&host_);
  if (!handler_pushed) ucs_log_push_handler(take_log);
  handler_pushed = true;
}

LogSink::~LogSink() {
  const std::lock_guard<std::mutex> lock(sinks_mutex);
  std::erase(sinks(), &host_);
}

void forget_log() { thread_text().clear(); }
const std::string& logged_text() { return thread_text(); }

std::string status_text(ucs_status_t status) {
  const std::string text = ucs_status_string(status);
  return thread_text().empty() ? text : text + " (" + thread_text() + ")";
}

Unexpected ucx_failure(const std::string& what, const char* call, ucs_status_t status) {
  Error error(code_for(status), what + ": " + call + ": " + status_text(status));
  error.vendor_status = status;
  return fail(std::move(error));
}

Result<std::shared_ptr<Context>> Context::open(LaneClass lane, const Settings& settings) {
  const std::string what = std::string("open the ") + to_string(lane) + " lane";
  forget_log();
  ucp_config_t* raw_config = nullptr;
  ucs_status_t status = ucp_config_read("KVFERRY", nullptr, &raw_config);
  if (status != UCS_OK) return ucx_failure(what, "ucp_config_read", status);
  const ConfigHandle config(raw_config);
  std::string configuration;
  for (const auto& [key, value] : keys_for(lane, settings)) {
    status = ucp_config_modify(config.get(), key.c_str(), value.c_str());
    if (status != UCS_OK) return ucx_failure(what + ": set " + key + " to " + value, "ucp_config_modify", status);
    configuration += (configuration.empty() ? "" : " ") + key + "=" + value;
  }
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  parameters.name = "kvferry";
  ucp_context_h raw_context = nullptr;
  status = ucp_init(&parameters, config.get(), &raw_context);
  if (status != UCS_OK) return ucx_failure(what, "ucp_init", status);
  ContextHandle context(raw_context);
  if (auto checked = check_keys(context.get(), what); !checked) return fail(std::move(checked.error()));
  return std::shared_ptr<Context>(new Context(lane, std::move(context), std::move(configuration)));
}

}  // namespace kvferry::ucx
