// The loader against plugins that are odd on purpose (plugins/odd_plugin.c), by path and by name.
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kvferry/backend.h"

using namespace kvferry;
namespace fs = std::filesystem;

namespace {

/// Where the test plugins were built.
fs::path plugins_folder() { return KVFERRY_TEST_PLUGINS; }
fs::path plugin_file(const std::string& variant) { return plugins_folder() / ("libkvferry_" + variant + ".so"); }

struct Logged {
  std::vector<std::string> lines;
  Host host{{.log = [this](LogLevel, std::string_view component,
                           std::string_view text) { lines.push_back(std::string(component) + ": " + std::string(text)); },
             .now_ns = {},
             .thread_start = {},
             .thread_stop = {}}};
  bool says(const std::string& part) const {
    for (const auto& line : lines) {
      if (line.find(part) != std::string::npos) return true;
    }
    return false;
  }
};

Result<Plugin> load(const std::string& variant) {
  Logged logged;
  return load_plugin_file(plugin_file(variant).string(), logged.host);
}

/// A folder that only its owner may write, gone at the end.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "kvferry-abi-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) FAIL("no temporary folder");
    path_ = fs::canonical(name);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }
  fs::path add(const std::string& variant, const std::string& name, const fs::path& below = {}) const {
    fs::create_directories(path_ / below);
    const fs::path file = path_ / below / ("libkvferry_" + name + ".so");
    fs::copy_file(plugin_file(variant), file);
    return file;
  }

 private:
  fs::path path_;
};

class SearchPath {
 public:
  explicit SearchPath(const std::string& value) {
    if (const char* before = getenv("KVFERRY_PLUGIN_PATH")) before_ = before;
    (void)setenv("KVFERRY_PLUGIN_PATH", value.c_str(), 1);
  }
  ~SearchPath() { (void)setenv("KVFERRY_PLUGIN_PATH", before_.c_str(), 1); }
  SearchPath(const SearchPath&) = delete;
  SearchPath& operator=(const SearchPath&) = delete;

 private:
  std::string before_;
};

void check_has(const std::string& text, const std::vector<std::string>& parts) {
  for (const auto& part : parts) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("a plugin that is wrong is refused with its path and the reason") {
  const std::string host_version = std::to_string(KVFERRY_BACKEND_ABI_MAJOR) + "." + std::to_string(KVFERRY_BACKEND_ABI_MINOR);
  const auto check = [](const char* variant, ErrorCode code, const std::vector<std::string>& parts) {
    const auto plugin = load(variant);
    if (plugin) FAIL(variant << " was loaded");
    INFO(plugin.error().text);
    CHECK(to_string(plugin.error().code) == to_string(code));
    check_has(plugin.error().text, {plugin_file(variant).string()});
    check_has(plugin.error().text, parts);
  };
  check("no_symbol", ErrorCode::unavailable, {"dlsym", "kvferry_backend_entry", "missing"});
  check("unresolved", ErrorCode::unavailable, {"dlopen", "undefined symbol", "kvferry_test_function_that_nobody_has"});
  check("wrong_magic", ErrorCode::unavailable, {"magic", "0x12345678", "0x5246564b"});
  check("newer_major", ErrorCode::version, {"2.3", host_version});
  check("older_major", ErrorCode::version, {"0.0", host_version});
  check("small", ErrorCode::unavailable, {"struct_size", "24", "40"});
  check("missing_required", ErrorCode::unavailable, {"required entry fence"});
  check("ends_early", ErrorCode::unavailable, {"required entry stats", "248"});
  check("no_name", ErrorCode::unavailable, {"no name"});
  check("refuses", ErrorCode::unavailable, {"the moon is full"});
  check("refuses_version", ErrorCode::version, {"abi 9.4 wanted", host_version});
  check("refuses_silently", ErrorCode::unavailable, {"no reason given"});
  check("refuses_at_length", ErrorCode::unavailable, {"xxxxx"});
  check("throwing", ErrorCode::internal, {"exception"});
}

TEST_CASE("a file that is no plugin at all is refused") {
  Folder folder;
  Logged logged;
  const fs::path text = folder.path() / "libkvferry_text.so";
  std::ofstream(text) << "not an object\n";
  const auto not_an_object = load_plugin_file(text.string(), logged.host);
  REQUIRE_FALSE(not_an_object);
  check_has(not_an_object.error().text, {text.string(), "dlopen"});
  const auto missing = load_plugin_file((folder.path() / "nothing.so").string(), logged.host);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == ErrorCode::unavailable);
  check_has(missing.error().text, {"nothing.so", "No such file"});
  const auto a_folder = load_plugin_file(folder.path().string(), logged.host);
  REQUIRE_FALSE(a_folder);
  check_has(a_folder.error().text, {"not a file"});
}

TEST_CASE("older and newer tables of the same major version work") {
  Logged logged;
  for (const std::string variant : {"older", "newer", "plain"}) {
    INFO(variant);
    const auto plugin = load(variant);
    REQUIRE(plugin);
    CHECK(plugin->name == variant);
    CHECK(plugin->path == fs::canonical(plugin_file(variant)).string());
    const auto backend = Backend::create(*plugin, logged.host, {});
    REQUIRE(backend);
    CHECK((*backend)->has(KVFERRY_CAP_WRITE));
    CHECK((*backend)->stats().peers == 7);
    CHECK(*(*backend)->effective_config() == "{}");
    // Entries that are NULL, or beyond the older table's end, are not supported and say so.
    const auto self_test = (*backend)->self_test();
    REQUIRE_FALSE(self_test);
    CHECK(self_test.error().code == ErrorCode::unsupported);
    check_has(self_test.error().text, {"backend " + variant, "self_test"});
    CHECK((*backend)->event_fd().error().code == ErrorCode::unsupported);
    CHECK((*backend)->allocate(10, 0).error().code == ErrorCode::unsupported);
    CHECK((*backend)->flush(1, 1).error().code == ErrorCode::unsupported);
    CHECK((*backend)->arm().error().code == ErrorCode::unsupported);
    // An error of the plugin arrives with the backend and the entry before its text.
    const auto refused = (*backend)->peer_create({});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::unsupported);
    CHECK(refused.error().text == "backend " + variant + ": peer_create: peer_create: this plugin is for tests");
  }
}

TEST_CASE("the template backend loads, says what it is, and refuses to work") {
  Logged logged;
  const auto plugin = load_plugin_file(KVFERRY_TEST_TEMPLATE, logged.host);
  REQUIRE(plugin);
  CHECK(plugin->name == "template");
  const auto devices = probe_devices(*plugin, logged.host, {{"example_limit", "3"}});
  REQUIRE(devices);
  REQUIRE(devices->size() == 1);
  CHECK((*devices)[0].usable == 0);
  CHECK(std::string((*devices)[0].reason) == "the template backend moves nothing");
  const auto backend = Backend::create(*plugin, logged.host, {});
  REQUIRE_FALSE(backend);
  CHECK(backend.error().code == ErrorCode::unsupported);
  check_has(backend.error().text, {"backend template: create: ", "fill it in"});
  for (const auto& settings : {Settings{{"example_limit", "0"}}, Settings{{"example_limit", "7x"}}, Settings{{"no_such", "1"}}}) {
    const auto refused = Backend::create(*plugin, logged.host, settings);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::invalid_argument);
    check_has(refused.error().text, {settings[0].first, settings[0].second});
  }
}

TEST_CASE("signal handlers of the host survive loading, and the log says which were changed") {
  struct sigaction ours {};
  ours.sa_handler = [](int) {};
  sigemptyset(&ours.sa_mask);
  sigaddset(&ours.sa_mask, SIGALRM);
  ours.sa_flags = SA_RESTART;
  struct sigaction before[65], after[65];
  struct sigaction segv {
  }, bus{};
  REQUIRE(sigaction(SIGSEGV, &ours, &segv) == 0);
  REQUIRE(sigaction(SIGBUS, &ours, &bus) == 0);
  for (int number = 1; number <= 64; ++number) (void)sigaction(number, nullptr, &before[number]);
  Logged logged;
  const auto plugin = load_plugin_file(plugin_file("signals").string(), logged.host);
  for (int number = 1; number <= 64; ++number) (void)sigaction(number, nullptr, &after[number]);
  (void)sigaction(SIGSEGV, &segv, nullptr);
  (void)sigaction(SIGBUS, &bus, nullptr);
  REQUIRE(plugin);
  for (int number = 1; number <= 64; ++number) {
    if (number == 32 || number == 33) continue;  // the C library's own
    INFO("signal " << number);
    CHECK(before[number].sa_handler == after[number].sa_handler);
    constexpr int kRestorer = 0x04000000;  // the C library's own mark
    CHECK((before[number].sa_flags & ~kRestorer) == (after[number].sa_flags & ~kRestorer));
    CHECK(sigismember(&before[number].sa_mask, SIGALRM) == sigismember(&after[number].sa_mask, SIGALRM));
  }
  for (const char* name : {"SIGSEGV", "SIGBUS", "SIGUSR1", "64"}) {
    INFO(name);
    CHECK(logged.says(name));
  }
  CHECK_FALSE(logged.says("SIGFPE"));
}

TEST_CASE("two plugins made from one template keep their own data") {
  const auto one = load("template_one");
  const auto two = load("template_two");
  REQUIRE(one);
  REQUIRE(two);
  CHECK(std::string(one->table->name) == "template_one");
  CHECK(std::string(two->table->name) == "template_two");
  CHECK(one->table != two->table);
}

TEST_CASE("a plugin is found by name in the folders of the setting, the first that is good wins") {
  Folder first, second, third;
  Logged logged;
  const auto bad = first.add("missing_required", "plain");
  const auto good = second.add("plain", "plain", "plain");  // in a folder of its own, as in the build tree
  third.add("plain", "plain");
  const SearchPath search(first.path().string() + "::" + second.path().string() + ":" + third.path().string() + ":");
  const auto plugin = load_plugin("plain", logged.host);
  REQUIRE(plugin);
  CHECK(plugin->path == good.string());
  CHECK(plugin->name == "plain");
  CHECK(logged.says(bad.string() + ": the required entry fence is missing"));
  CHECK(logged.lines.size() == 1);

  // The same name twice in a process: each path is its own object.
  const auto again = load_plugin_file((third.path() / "libkvferry_plain.so").string(), logged.host);
  REQUIRE(again);
  CHECK(again->table != plugin->table);
}

TEST_CASE("when nothing loads the error names every candidate with its reason") {
  Folder first, second, third;
  Logged logged;
  const auto newer = first.add("newer_major", "wanted");
  const auto unresolved = second.add("unresolved", "wanted");
  third.add("plain", "wanted");
  const SearchPath search(first.path().string() + ":" + second.path().string() + ":" + third.path().string() + ":/no/such/folder");
  const auto plugin = load_plugin("wanted", logged.host);
  REQUIRE_FALSE(plugin);
  CHECK(plugin.error().code == ErrorCode::version);
  check_has(plugin.error().text,
            {"load plugin wanted", newer.string() + ": ", "ABI 2.3", unresolved.string() + ": dlopen", "kvferry_test_function_that_nobody_has",
             "calls itself plain", "/no/such/folder/libkvferry_wanted.so: No such file or directory", "KVFERRY_PLUGIN_PATH"});

  const SearchPath nowhere("/no/such/folder");
  const auto none = load_plugin("wanted", logged.host);
  REQUIRE_FALSE(none);
  CHECK(none.error().code == ErrorCode::unavailable);
  check_has(none.error().text, {"/no/such/folder/libkvferry_wanted.so"});
}

TEST_CASE("a name that could lead elsewhere is refused before anything is opened") {
  Logged logged;
  const SearchPath search(plugins_folder().string());
  for (const std::string& name : std::vector<std::string>{"", "../evil", "a/b", "A", "plain.so", "pla in", std::string("pla\0in", 6), std::string("\xc3\xa4")}) {
    INFO(name);
    const auto plugin = load_plugin(name, logged.host);
    REQUIRE_FALSE(plugin);
    CHECK(plugin.error().code == ErrorCode::invalid_argument);
  }
  CHECK(load_plugin(std::string(65, 'a'), logged.host).error().code == ErrorCode::invalid_argument);
  CHECK(load_plugin("plain", logged.host));
}

TEST_CASE("folders and files that everybody may write are refused") {
  Folder folder;
  Logged logged;
  const auto file = folder.add("plain", "plain");
  const SearchPath search(folder.path().string());
  REQUIRE(chmod(folder.path().c_str(), 0777) == 0);
  auto plugin = load_plugin("plain", logged.host);
  REQUIRE_FALSE(plugin);
  CHECK(plugin.error().code == ErrorCode::unavailable);
  check_has(plugin.error().text, {"folder is writable by everybody", folder.path().string()});
  REQUIRE(chmod(folder.path().c_str(), 01777) == 0);
  CHECK_FALSE(load_plugin("plain", logged.host));
  CHECK_FALSE(load_plugin_file(file.string(), logged.host));
  REQUIRE(chmod(folder.path().c_str(), 0755) == 0);
  REQUIRE(chmod(file.c_str(), 0666) == 0);
  plugin = load_plugin("plain", logged.host);
  REQUIRE_FALSE(plugin);
  check_has(plugin.error().text, {"file is writable by everybody"});
  REQUIRE(chmod(file.c_str(), 0644) == 0);
  CHECK(load_plugin("plain", logged.host));
}

TEST_CASE("without the setting plugins are found beside the library, or in its build tree") {
  Folder folder;
  const SearchPath no_setting("");
  const auto folders_of = [&](const fs::path& below) {
    fs::create_directories(folder.path() / below);
    const fs::path library = folder.path() / below / "libkvferry_probe.so";
    fs::copy_file(KVFERRY_TEST_PROBE_LIBRARY, library);
    void* const object = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (object == nullptr) FAIL(dlerror());
    auto* const ask = reinterpret_cast<const char* (*)()>(dlsym(object, "probe_plugin_folders"));
    if (ask == nullptr) FAIL(dlerror());
    return std::string(ask());
  };
  const std::string root = folder.path().string();
  CHECK(folders_of("usr/lib") == root + "/usr/lib/kvferry\n");
  CHECK(folders_of("build/src") == root + "/build/src/kvferry\n");  // a folder named src is no build tree by itself
  fs::create_directories(folder.path() / "tree" / "plugins");
  CHECK(folders_of("tree/src") == root + "/tree/src/kvferry\n" + root + "/tree/plugins\n");
}

TEST_CASE("a program that links the loader itself looks beside its own file") {
  const SearchPath no_setting("");
  const auto folders = plugin_folders();
  REQUIRE_FALSE(folders.empty());
  CHECK(folders[0] == (fs::canonical("/proc/self/exe").parent_path() / "kvferry").string());
}
