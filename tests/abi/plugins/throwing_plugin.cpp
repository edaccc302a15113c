// A plugin that breaks the rule that no exception crosses the line: in its entry function.
#include <stdexcept>

#include "kvferry/backend_abi.h"

extern "C" __attribute__((visibility("default"))) const kvferry_backend_table* kvferry_backend_entry(const kvferry_host*, char*, std::uint32_t) {
  throw std::runtime_error("thrown by a plugin");
}
