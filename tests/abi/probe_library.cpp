// A shared library with the loader in it, as libkvferry is: the test copies it into folders and asks where it would look.
#include "kvferry/backend.h"

extern "C" const char* probe_plugin_folders() {
  static std::string text;
  text.clear();
  for (const std::string& folder : kvferry::plugin_folders()) text += folder + "\n";
  return text.c_str();
}
