// Two plugins made from one template: their static data must not be merged by the dynamic linker (each says its own name).
#include <cstdint>

#include "kvferry/backend_abi.h"

struct kvferry_backend {};

namespace plugin_sdk {

template <class Backend>
struct Instance {
  static kvferry_backend_table& table() {
    static kvferry_backend_table the_table = Backend::make();
    return the_table;
  }
};

template <class... Arguments>
kvferry_status nothing(Arguments...) {
  return KVFERRY_ERROR_UNSUPPORTED;
}

struct Engine {
  static kvferry_backend_table make() {
    kvferry_backend_table table{};
    table.struct_size = sizeof(table);
    table.magic = KVFERRY_BACKEND_MAGIC;
    table.abi_major = KVFERRY_BACKEND_ABI_MAJOR;
    table.name = ODD_NAME;
    table.version = "1";
    table.build = "for tests";
    table.probe = nothing;
    table.create = nothing;
    table.destroy = nothing;
    table.query = nothing;
    table.effective_config = nothing;
    table.register_region = nothing;
    table.deregister_region = nothing;
    table.export_regions = nothing;
    table.peer_create = nothing;
    table.peer_export = nothing;
    table.peer_connect = nothing;
    table.import_regions = nothing;
    table.forget_regions = nothing;
    table.peer_state = nothing;
    table.peer_close = nothing;
    table.submit = nothing;
    table.cancel = nothing;
    table.fence = nothing;
    table.progress = nothing;
    table.poll = nothing;
    table.stats = nothing;
    return table;
  }
};

}  // namespace plugin_sdk

extern "C" __attribute__((visibility("default"))) const kvferry_backend_table* kvferry_backend_entry(const kvferry_host*, char*, std::uint32_t) {
  return &plugin_sdk::Instance<plugin_sdk::Engine>::table();
}
