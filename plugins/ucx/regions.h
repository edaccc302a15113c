// What this backend knows of a region beside its range: who may not write it, and the shared memory behind it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../common/region_table.h"
#include "blob.h"
#include "kvferry/backend_abi.h"
#include "mapping.h"

namespace kvferry::ucx {

using namespace plugins;

struct Region : LocalRegion {
  bool refuses_everybody = false;
  std::vector<kvferry_peer> refused_peers;
  SharedMemory shared;  ///< from allocate

  bool allocated() const noexcept { return shared.descriptor.valid(); }
  bool refuses(kvferry_peer peer) const noexcept {
    return draining || refuses_everybody || std::find(refused_peers.begin(), refused_peers.end(), peer) != refused_peers.end();
  }
};
using RegionTable = plugins::RegionTable<Region>;

struct RemoteRegion : RemoteRegionBase {
  SharedFile file;
  bool map_asked = false;
  std::uint64_t revoked_epoch = 0;  ///< a grant that is older counts no more
  std::uint64_t populated = 0;      ///< bytes of the mapping whose page table entries are there
  Mapping mapping;                  ///< while granted: the neighbour's memory
};
using RemoteRegionTable = plugins::RemoteRegionTable<RemoteRegion>;

}  // namespace kvferry::ucx
