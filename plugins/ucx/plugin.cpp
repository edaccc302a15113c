// The one exported symbol of the UCX backend.
#include <string>

#include "../common/entries.h"
#include "backend.h"

using namespace kvferry;

namespace {

const kvferry_backend_table& backend_table() {
  static const std::string build =
      ucx::bound_library().text() + ", built for " + std::to_string(UCP_API_MAJOR) + "." + std::to_string(UCP_API_MINOR);
  static const kvferry_backend_table table = plugins::Entries<ucx::Backend>::table("ucx", build.c_str());
  return table;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const kvferry_backend_table* kvferry_backend_entry(const kvferry_host* host, char* reason,
                                                                                                   uint32_t reason_capacity) {
  return plugins::give_table(host, reason, reason_capacity, [] { return ucx::check_library(ucx::bound_library()); }, backend_table);
}
