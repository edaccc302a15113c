// The one place that reads an entry of a table. The table of an older plugin is shorter than ours: what lies beyond its struct_size is not there.
#pragma once

#include <cstddef>

#include "kvferry/backend_abi.h"

namespace kvferry::plugin {

/// The entry, or nullptr when the plugin does not have it.
template <class Function>
Function* entry_of(const kvferry_backend_table& table, Function* kvferry_backend_table::*member) noexcept {
  const auto* begin = reinterpret_cast<const char*>(&table);
  const auto* field = reinterpret_cast<const char*>(&(table.*member));
  const auto end = static_cast<std::size_t>(field - begin) + sizeof(Function*);
  return end <= table.struct_size ? table.*member : nullptr;
}

}  // namespace kvferry::plugin
