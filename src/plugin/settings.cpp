// Settings of a backend from the environment: KVFERRY_<BACKEND>_<KEY>=value gives (key, value), key in lower case. Which keys exist is the backend's
// business: it refuses those it does not know, by name.
#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "kvferry/backend.h"

namespace kvferry {
namespace {

char upper(char c) { return static_cast<char>(std::toupper(static_cast<unsigned char>(c))); }
char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

}  // namespace

Settings backend_settings_from_environment(std::string_view backend) {
  std::string prefix = "KVFERRY_";
  for (const char c : backend) prefix += c == '-' ? '_' : upper(c);
  prefix += '_';

  Settings settings;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos || equals <= prefix.size() || text.substr(0, prefix.size()) != prefix) continue;
    std::string key(text.substr(prefix.size(), equals - prefix.size()));
    std::transform(key.begin(), key.end(), key.begin(), lower);
    settings.emplace_back(std::move(key), std::string(text.substr(equals + 1)));
  }
  std::sort(settings.begin(), settings.end());  // the order of the environment is an accident
  return settings;
}

}  // namespace kvferry
