// Finding and checking a plugin.
//
//   folders (environment, else beside the library, build tree)
//      └─ candidates: F/libkvferry_N.so, F/N/libkvferry_N.so        each one that is refused leaves "path: reason" behind
//           └─ stat: exists, is a file, neither it nor its folder writable by everybody
//                └─ dlopen(NOW | LOCAL | NODELETE), between two looks at the signal handlers
//                     └─ kvferry_backend_entry(host) ─► table or reason
//                          └─ magic ► major ► size ► name ► required entries
//
// Nothing of a table is read before its magic and major version are right. A shared object that was opened stays: what it left in the process
// (threads, hooks, thread-local state) may not survive its code.
#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "entry_of.h"
#include "kvferry/backend.h"
#include "signal_guard.h"

namespace kvferry {
namespace {

using plugin::entry_of;

constexpr std::size_t kNameBytesMax = 64;
constexpr std::size_t kReasonBytes = 512;
constexpr std::uint32_t kTableHeadBytes = offsetof(kvferry_backend_table, probe);
constexpr std::string_view kVersionRefusal = "abi ";  // how a reason of the entry begins when the version is the cause (backend_abi.h)

std::string version_text(std::uint32_t major, std::uint32_t minor) { return std::to_string(major) + "." + std::to_string(minor); }
std::string host_version_text() { return version_text(KVFERRY_BACKEND_ABI_MAJOR, KVFERRY_BACKEND_ABI_MINOR); }

std::string hex_text(std::uint32_t value) {
  std::array<char, 16> text{};
  (void)std::snprintf(text.data(), text.size(), "0x%08x", value);
  return text.data();
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += separator;
    text += part;
  }
  return text;
}

bool is_folder(const std::string& path) {
  struct stat facts {};
  return stat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode);
}

std::string parent_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string base_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string real_path(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return {};
  std::string text = resolved;
  std::free(resolved);
  return text;
}

/// The file that this code was loaded from: the shared library, or the program when it is linked statically.
std::string own_file() {
  Dl_info info{};
  void* extra = nullptr;
  if (dladdr1(reinterpret_cast<void*>(&own_file), &info, &extra, RTLD_DL_LINKMAP) == 0 || extra == nullptr) return {};
  const auto* map = static_cast<const link_map*>(extra);
  const bool is_program = map->l_name == nullptr || map->l_name[0] == '\0';
  return real_path(is_program ? "/proc/self/exe" : map->l_name);
}

/// Empty: fine. The path must exist, be of the wanted kind, and not be writable by everybody.
std::string refusal_of_path(const std::string& path, bool folder) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) return std::strerror(errno);
  if (folder ? !S_ISDIR(facts.st_mode) : !S_ISREG(facts.st_mode)) return folder ? "not a folder" : "not a file";
  if ((facts.st_mode & S_IWOTH) != 0) return folder ? "the folder is writable by everybody: " + path : "the file is writable by everybody";
  return {};
}

/// Empty: every required entry is there; else its name.
std::string missing_required_entry(const kvferry_backend_table& table) {
#define KVFERRY_REQUIRE(entry) \
  if (entry_of(table, &kvferry_backend_table::entry) == nullptr) return #entry
  KVFERRY_REQUIRE(probe);
  KVFERRY_REQUIRE(create);
  KVFERRY_REQUIRE(destroy);
  KVFERRY_REQUIRE(query);
  KVFERRY_REQUIRE(effective_config);
  KVFERRY_REQUIRE(register_region);
  KVFERRY_REQUIRE(deregister_region);
  KVFERRY_REQUIRE(export_regions);
  KVFERRY_REQUIRE(peer_create);
  KVFERRY_REQUIRE(peer_export);
  KVFERRY_REQUIRE(peer_connect);
  KVFERRY_REQUIRE(import_regions);
  KVFERRY_REQUIRE(forget_regions);
  KVFERRY_REQUIRE(peer_state);
  KVFERRY_REQUIRE(peer_close);
  KVFERRY_REQUIRE(submit);
  KVFERRY_REQUIRE(cancel);
  KVFERRY_REQUIRE(fence);
  KVFERRY_REQUIRE(progress);
  KVFERRY_REQUIRE(poll);
  KVFERRY_REQUIRE(stats);
#undef KVFERRY_REQUIRE
  return {};
}

/// The table, or its refusal: `version` when the plugin said that the version is why.
Result<const kvferry_backend_table*> ask_entry(kvferry_backend_entry_function entry, const Host& host) {
  std::array<char, kReasonBytes> reason{};
  const kvferry_backend_table* table = nullptr;
  try {
    table = entry(host.table(), reason.data(), static_cast<std::uint32_t>(reason.size()));
  } catch (...) {
    return fail(ErrorCode::internal, std::string(KVFERRY_BACKEND_ENTRY_SYMBOL) + " threw an exception");
  }
  if (table != nullptr) return table;
  reason.back() = '\0';
  const std::string text = reason[0] != '\0' ? reason.data() : "no reason given";
  const bool version = std::string_view(text).substr(0, kVersionRefusal.size()) == kVersionRefusal;
  return fail(version ? ErrorCode::version : ErrorCode::unavailable, "the plugin refuses this host: " + text);
}

/// Opens one file and takes its table. Errors carry the reason alone; the caller names the path.
Result<Plugin> open_file(const std::string& path, const Host& host) {
  if (std::string reason = refusal_of_path(path, false); !reason.empty()) return fail(ErrorCode::unavailable, std::move(reason));
  if (std::string reason = refusal_of_path(parent_of(path), true); !reason.empty()) return fail(ErrorCode::unavailable, std::move(reason));

  plugin::SignalGuard guard;
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  const char* open_error = object == nullptr ? dlerror() : nullptr;
  void* symbol = object != nullptr ? dlsym(object, KVFERRY_BACKEND_ENTRY_SYMBOL) : nullptr;
  Result<const kvferry_backend_table*> table = nullptr;
  if (symbol != nullptr) table = ask_entry(reinterpret_cast<kvferry_backend_entry_function>(symbol), host);
  if (const auto names = guard.restore(); !names.empty()) {
    host.log(LogLevel::warn, "loader", "loading " + path + " changed the handlers of " + join(names, ", ") + "; the host's were put back");
  }

  if (object == nullptr) return fail(ErrorCode::unavailable, std::string("dlopen: ") + (open_error != nullptr ? open_error : "no reason given"));
  if (symbol == nullptr) return fail(ErrorCode::unavailable, std::string("dlsym: the symbol ") + KVFERRY_BACKEND_ENTRY_SYMBOL + " is missing");
  if (!table) return fail(table.error());
  auto plugin = adopt_plugin(*table, {});
  if (plugin) plugin->path = path;
  return plugin;
}

bool valid_name(std::string_view name) {
  const auto legal = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= kNameBytesMax && std::all_of(name.begin(), name.end(), legal);
}

}  // namespace

std::vector<std::string> plugin_folders() {
  std::vector<std::string> folders;
  const char* setting = secure_getenv("KVFERRY_PLUGIN_PATH");
  if (setting != nullptr && setting[0] != '\0') {
    std::string_view rest = setting;
    while (!rest.empty()) {
      const auto colon = std::min(rest.find(':'), rest.size());
      if (colon > 0) folders.emplace_back(rest.substr(0, colon));
      rest.remove_prefix(std::min(colon + 1, rest.size()));
    }
    return folders;
  }
  const std::string file = own_file();
  if (file.empty()) return folders;
  const std::string folder = parent_of(file);
  folders.push_back(folder + "/kvferry");
  const std::string build_folder = parent_of(folder);
  if (base_of(folder) == "src" && is_folder(build_folder + "/plugins")) folders.push_back(build_folder + "/plugins");
  return folders;
}

Result<Plugin> adopt_plugin(const kvferry_backend_table* table, std::string name) {
  if (table == nullptr) return fail(ErrorCode::invalid_argument, "adopt a plugin: the table is null");
  if (table->magic != KVFERRY_BACKEND_MAGIC) {
    return fail(ErrorCode::unavailable, "the table's magic is " + hex_text(table->magic) + ", not " + hex_text(KVFERRY_BACKEND_MAGIC));
  }
  if (table->abi_major != KVFERRY_BACKEND_ABI_MAJOR) {
    return fail(ErrorCode::version,
                "the plugin speaks backend ABI " + version_text(table->abi_major, table->abi_minor) + ", this host " + host_version_text());
  }
  if (table->struct_size < kTableHeadBytes) {
    return fail(ErrorCode::unavailable, "the table's struct_size is " + std::to_string(table->struct_size) + ", its head alone has " +
                                            std::to_string(kTableHeadBytes) + " bytes");
  }
  if (table->name == nullptr || table->version == nullptr || table->build == nullptr) {
    return fail(ErrorCode::unavailable, "the table has no name, version or build text");
  }
  if (std::string missing = missing_required_entry(*table); !missing.empty()) {
    return fail(ErrorCode::unavailable, "the required entry " + missing + " is missing (table of " + std::to_string(table->struct_size) + " bytes)");
  }
  if (name.empty()) name = table->name;
  if (name != table->name) {
    return fail(ErrorCode::mismatch, "the plugin calls itself " + std::string(table->name) + ", asked for was " + name);
  }
  return Plugin{table, std::move(name), {}};
}

Result<Plugin> load_plugin_file(const std::string& path, const Host& host) {
  const std::string resolved = real_path(path);
  if (resolved.empty()) return fail(ErrorCode::unavailable, "load plugin " + path + ": " + std::strerror(errno));
  auto plugin = open_file(resolved, host);
  if (!plugin) return fail(plugin.error().within("load plugin " + path));
  return plugin;
}

Result<Plugin> load_plugin(std::string_view name, const Host& host) {
  if (!valid_name(name)) {
    return fail(ErrorCode::invalid_argument,
                "load plugin \"" + std::string(name.substr(0, kNameBytesMax)) + "\": a name has 1 to 64 lower-case letters, digits, '_' or '-'");
  }
  const std::string file = "libkvferry_" + std::string(name) + ".so";
  std::vector<std::string> refusals;
  std::vector<std::string> passed_over;
  bool version_refused = false;
  for (const std::string& folder : plugin_folders()) {
    for (const std::string& path : {folder + "/" + file, folder + "/" + std::string(name) + "/" + file}) {
      auto plugin = open_file(path, host);
      if (plugin && plugin->name != name) {
        plugin = fail(ErrorCode::mismatch, "the plugin calls itself " + plugin->name + ", asked for was " + std::string(name));
      }
      if (plugin) {
        for (const std::string& refusal : passed_over) host.log(LogLevel::warn, "loader", "passed over " + refusal);
        return plugin;
      }
      version_refused = version_refused || plugin.error().code == ErrorCode::version;
      refusals.push_back(path + ": " + plugin.error().text);
      if (access(path.c_str(), F_OK) == 0) passed_over.push_back(refusals.back());
    }
  }
  const std::string tried = refusals.empty() ? "no folder to search" : join(refusals, "; ");
  return fail(version_refused ? ErrorCode::version : ErrorCode::unavailable,
              "load plugin " + std::string(name) + ": " + tried + " (KVFERRY_PLUGIN_PATH names the folders to search)");
}

}  // namespace kvferry
