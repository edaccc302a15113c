// docs/settings.md against the backends: every setting a backend takes has a row, every row is a setting, and the defaults are the real ones.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "kvferry/backend.h"

using namespace kvferry;

namespace {

/// Cells of a table row, without the blanks around them.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::stringstream stream(line.substr(1));
  for (std::string cell; std::getline(stream, cell, '|');) {
    const auto begin = cell.find_first_not_of(' '), end = cell.find_last_not_of(' ');
    cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
  }
  return cells;
}

std::string without_quotes(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), '`'), text.end());
  return text;
}

/// Documented settings of a backend: key in lower case, default.
std::map<std::string, std::string> documented(const std::string& prefix) {
  std::ifstream file(KVFERRY_SETTINGS_DOCUMENT);
  REQUIRE(file);
  std::map<std::string, std::string> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `" + prefix, 0) != 0) continue;
    const std::vector<std::string> cells = cells_of(line);
    REQUIRE(cells.size() == 4);
    std::string key = without_quotes(cells[0]).substr(prefix.size());
    std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    INFO("row " << line);
    CHECK(rows.emplace(key, without_quotes(cells[1])).second);
  }
  return rows;
}

void check_backend(const std::string& name, const std::string& prefix, const std::string& plugin_file) {
  const Host host({});
  const auto plugin = load_plugin_file(plugin_file, host);
  if (!plugin) FAIL(plugin.error().text);
  const auto backend = Backend::create(*plugin, host, {});
  if (!backend) FAIL(backend.error().text);
  const auto text = (*backend)->effective_config();
  if (!text) FAIL(text.error().text);
  const nlohmann::json config = nlohmann::json::parse(*text);
  const std::map<std::string, std::string> rows = documented(prefix);
  REQUIRE(!rows.empty());

  for (const auto& [key, standard] : rows) {
    INFO(name << " setting " << key);
    REQUIRE(config.contains(key));
    const std::string real = config[key].is_string() ? config[key].get<std::string>() : config[key].dump();
    CHECK(real == (standard == "unset" ? "" : standard));
  }
  for (const auto& [key, value] : config.items()) {
    if (rows.count(key) != 0) continue;
    // The effective configuration may tell more than settings (versions, devices): those a backend refuses as keys.
    INFO(name << " takes the setting " << key << ", which " << KVFERRY_SETTINGS_DOCUMENT << " does not have");
    const std::string real = value.is_string() ? value.get<std::string>() : value.dump();
    const auto taken = Backend::create(*plugin, host, {{key, real}});
    REQUIRE(!taken);
    CHECK(taken.error().text.find("not known") != std::string::npos);
  }
}

}  // namespace

TEST_CASE("every setting of the loopback backend is in the table of settings, with its default") {
  check_backend("loopback", "KVFERRY_LOOPBACK_", KVFERRY_TEST_LOOPBACK_PLUGIN);
}

#ifdef KVFERRY_TEST_UCX_PLUGIN
TEST_CASE("every setting of the ucx backend is in the table of settings, with its default") {
  check_backend("ucx", "KVFERRY_UCX_", KVFERRY_TEST_UCX_PLUGIN);
}
#endif
