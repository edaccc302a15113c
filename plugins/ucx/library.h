// The bound UCX: its version and path, its log, and one context per lane class.
//
// Contexts are configured through ucp_config_modify with a private prefix, never through the environment. UCX accepts any key there and only warns when
// the first worker is created ("invalid configurations: ..."); that warning is caught and made an error.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <vector>

#include "kvferry/backend_abi.h"
#include "kvferry/result.h"
#include "settings.h"

namespace kvferry::ucx {

enum class LaneClass : std::uint32_t { shm = 1, tcp = 2 };
const char* to_string(LaneClass lane) noexcept;

struct Library {
  unsigned major = 0, minor = 0, release = 0;
  std::string path;
  std::string text() const;  ///< "ucx 1.13.1 (/usr/lib/x86_64-linux-gnu/libucp.so.0)"
};
Library bound_library();
/// Error version when the library is of another major version than the headers, or older than this plugin needs.
Result<void> check_library(const Library& library);

/// While one lives, UCX's log goes to its host, and nothing is printed. UCX has one log per process: with several backends the first one gets it.
class LogSink {
 public:
  explicit LogSink(const kvferry_host& host);
  ~LogSink();
  LogSink(const LogSink&) = delete;
  LogSink& operator=(const LogSink&) = delete;

 private:
  kvferry_host host_;
};

/// The text of a status, with what UCX logged about it on this thread since the last call of forget_log ("Destination is unreachable; no usable ...").
std::string status_text(ucs_status_t status);
void forget_log();
/// What UCX logged on this thread at level warn or worse since forget_log; empty: nothing.
const std::string& logged_text();

/// "what: ucp_call: reason", with the code that fits the status.
Unexpected ucx_failure(const std::string& what, const char* call, ucs_status_t status);

struct ContextDeleter {
  void operator()(ucp_context_h context) const noexcept { ucp_cleanup(context); }
};
struct WorkerDeleter {
  void operator()(ucp_worker_h worker) const noexcept { ucp_worker_destroy(worker); }
};
using ContextHandle = std::unique_ptr<std::remove_pointer_t<ucp_context_h>, ContextDeleter>;
using WorkerHandle = std::unique_ptr<std::remove_pointer_t<ucp_worker_h>, WorkerDeleter>;

/// One lane class. Kept alive by every worker made from it.
class Context {
 public:
  static Result<std::shared_ptr<Context>> open(LaneClass lane, const Settings& settings);
  ucp_context_h get() const noexcept { return handle_.get(); }
  LaneClass lane() const noexcept { return lane_; }
  /// What was set, "TLS=posix PROTO_ENABLE=n ...", for logs and the effective configuration.
  const std::string& configuration() const noexcept { return configuration_; }

 private:
  Context(LaneClass lane, ContextHandle handle, std::string configuration)
      : lane_(lane), handle_(std::move(handle)), configuration_(std::move(configuration)) {}
  LaneClass lane_;
  ContextHandle handle_;
  std::string configuration_;
};

}  // namespace kvferry::ucx
