// The host table: C entry points over the owner's std::functions. A callback of the owner may throw; nothing crosses into a plugin, so each entry
// point swallows it: a log line or a thread hook that fails must not fail a transfer.
#include <ctime>
#include <utility>

#include "kvferry/backend.h"

namespace kvferry {
namespace {

const Host& host_of(void* user) { return *static_cast<const Host*>(user); }

void log_entry(void* user, std::int32_t level, const char* component, const char* text) noexcept {
  if (level < KVFERRY_LOG_ERROR || level > KVFERRY_LOG_DEBUG) level = KVFERRY_LOG_ERROR;
  host_of(user).log(static_cast<LogLevel>(level), component != nullptr ? component : "plugin", text != nullptr ? text : "");
}

std::uint64_t now_entry(void* user) noexcept { return host_of(user).now_ns(); }

std::uint64_t monotonic_now_ns() {
  timespec now{};
  (void)clock_gettime(CLOCK_MONOTONIC, &now);  // cannot fail for this clock and a valid pointer
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

Host::Host(Options options) : options_(std::move(options)) {
  table_.struct_size = sizeof(table_);
  table_.abi_major = KVFERRY_BACKEND_ABI_MAJOR;
  table_.abi_minor = KVFERRY_BACKEND_ABI_MINOR;
  table_.user = this;
  table_.log = log_entry;
  table_.now_ns = now_entry;
  table_.thread_start = [](void* user, const char* name) {
    try {
      const auto& hook = host_of(user).options_.thread_start;
      if (hook) hook(name != nullptr ? name : "kvferry");
    } catch (...) {  // see the top of this file
    }
  };
  table_.thread_stop = [](void* user) {
    try {
      const auto& hook = host_of(user).options_.thread_stop;
      if (hook) hook();
    } catch (...) {  // see the top of this file
    }
  };
}

Host::~Host() = default;

std::uint64_t Host::now_ns() const { return options_.now_ns ? options_.now_ns() : monotonic_now_ns(); }

void Host::log(LogLevel level, std::string_view component, std::string_view text) const {
  if (!options_.log) return;
  try {
    options_.log(level, component, text);
  } catch (...) {  // see the top of this file
  }
}

}  // namespace kvferry
