// Registered memory. Nothing is pinned and nothing is rounded: what is registered is exactly what the guard lets through.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "backend.h"
#include "registry.h"

namespace loopback {
namespace {

constexpr std::uint32_t kAccessBits = KVFERRY_ACCESS_REMOTE_WRITE | KVFERRY_ACCESS_REMOTE_READ;

std::string range_text(std::uint64_t address, std::uint64_t length) {
  char text[64];
  (void)std::snprintf(text, sizeof(text), "%llu bytes at 0x%llx", static_cast<unsigned long long>(length), static_cast<unsigned long long>(address));
  return text;
}

}  // namespace

Answer<kvferry_region> Backend::register_region(const kvferry_region_desc& desc) {
  const std::string what = "register " + range_text(desc.address, desc.length);
  if (desc.address == 0) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, what + ": the address is null");
  if (desc.length == 0) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, what + ": the length is zero");
  std::uint64_t end = 0;
  if (__builtin_add_overflow(desc.address, desc.length, &end)) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, what + ": the range wraps around the end of the address space");
  }
  if (desc.purpose > KVFERRY_PURPOSE_STAGING) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, what + ": purpose " + std::to_string(desc.purpose) + " is not known");
  }
  if (desc.memory_kind == KVFERRY_MEMORY_DEVICE) return refuse(KVFERRY_ERROR_UNSUPPORTED, what + ": loopback has host memory only");
  if (desc.memory_kind != KVFERRY_MEMORY_HOST) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, what + ": memory kind " + std::to_string(desc.memory_kind) + " is not known");
  }
  if ((desc.access & ~kAccessBits) != 0) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, what + ": access bits " + std::to_string(desc.access) + " are not known");
  }
  if (regions_.size() >= config_.regions_max) {
    return refuse(KVFERRY_ERROR_LIMIT,
                  what + ": " + std::to_string(regions_.size()) + " regions, regions_max is " + std::to_string(config_.regions_max));
  }
  Region region;
  region.id = next_id();
  region.address = reinterpret_cast<std::uint8_t*>(desc.address);
  region.length = desc.length;
  region.access = desc.access;
  region.purpose = desc.purpose;
  regions_.emplace(region.id, region);
  counters_.regions.store(regions_.size(), std::memory_order_relaxed);
  return region.id;
}

bool Backend::in_use(kvferry_region region) const {
  for (const auto& [id, peer] : peers_) {
    if (peer->link == nullptr) continue;
    const std::lock_guard<std::mutex> lock(peer->link->mutex);
    const End& own = peer->own_end();
    for (std::uint64_t sequence = own.oldest; sequence != own.next; ++sequence) {
      const Slot& slot = own.slot(sequence);
      if (!slot.uses_source()) continue;
      const auto end = slot.pieces.begin() + slot.piece_count;
      if (std::any_of(slot.pieces.begin(), end, [&](const SourcePiece& piece) { return piece.region == region; })) return true;
    }
  }
  return false;
}

Answer<kvferry_status> Backend::release(Region& region, std::uint32_t mode) {
  if (mode == KVFERRY_DEREGISTER_DRAIN) region.draining = true;
  if (in_use(region.id)) {
    if (mode == KVFERRY_DEREGISTER_DRAIN) return KVFERRY_AGAIN;
    return refuse(KVFERRY_ERROR_BUSY, "deregister region " + std::to_string(region.id) + ": a batch uses it", region.id);
  }
  if (region.mapped_bytes != 0) (void)munmap(region.address, region.mapped_bytes);  // our own mapping: it cannot be refused
  regions_.erase(region.id);
  counters_.regions.store(regions_.size(), std::memory_order_relaxed);
  return KVFERRY_OK;
}

Answer<kvferry_status> Backend::deregister_region(kvferry_region region, std::uint32_t mode) {
  auto found = find_region(region, "deregister");
  if (!found) return tl::unexpected<Failure>(std::move(found.error()));
  if (mode != KVFERRY_DEREGISTER_REFUSE_IF_BUSY && mode != KVFERRY_DEREGISTER_DRAIN) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "deregister region " + std::to_string(region) + ": mode " + std::to_string(mode) + " is not known");
  }
  if ((*found)->mapped_bytes != 0) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT,
                  "deregister region " + std::to_string(region) + ": it comes from allocate and ends with free_memory", region);
  }
  return release(**found, mode);
}

Answer<void> Backend::region_quiesce(kvferry_region region, kvferry_peer peer, std::uint64_t tag) {
  auto found = find_region(region, "region_quiesce");
  if (!found) return tl::unexpected<Failure>(std::move(found.error()));
  if (peer != 0) {
    if (auto known = find_peer(peer, "region_quiesce"); !known) return tl::unexpected<Failure>(std::move(known.error()));
  }
  if (auto room = room_for_control_event(); !room) return room;
  if (peer == 0) {
    (*found)->refuses_everybody = true;
  } else {
    (*found)->refused_peers.push_back(peer);
  }
  // Pieces are applied by our own progress only, which does not run now: from here on the guard refuses them.
  Event event;
  event.kind = KVFERRY_EVENT_REGION_QUIESCED;
  event.peer = peer;
  event.tag = tag;
  push(std::move(event));
  return {};
}

Answer<std::pair<void*, kvferry_region>> Backend::allocate(std::uint64_t length, std::uint32_t purpose) {
  const std::string what = "allocate " + std::to_string(length) + " bytes";
  if (length == 0) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, what + ": the length is zero");
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (length > ~std::uint64_t{0} - page) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, what + ": more than the address space");
  const std::uint64_t mapped_bytes = (length + page - 1) / page * page;
  // Both ends live in this process: plain private memory is shared already.
  void* memory = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return refuse_errno(KVFERRY_ERROR_NO_MEMORY, what, "mmap", errno);
  kvferry_region_desc desc{};
  desc.purpose = purpose;
  desc.access = kAccessBits;
  desc.address = reinterpret_cast<std::uint64_t>(memory);
  desc.length = length;
  auto region = register_region(desc);
  if (!region) {
    (void)munmap(memory, mapped_bytes);  // our own mapping: it cannot be refused
    return tl::unexpected<Failure>(std::move(region.error()));
  }
  regions_.at(*region).mapped_bytes = mapped_bytes;
  return std::pair<void*, kvferry_region>{memory, *region};
}

Answer<kvferry_status> Backend::free_memory(kvferry_region region) {
  auto found = find_region(region, "free_memory");
  if (!found) return tl::unexpected<Failure>(std::move(found.error()));
  if ((*found)->mapped_bytes == 0) {
    return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "free region " + std::to_string(region) + ": it does not come from allocate", region);
  }
  return release(**found, KVFERRY_DEREGISTER_DRAIN);
}

Answer<std::vector<std::uint8_t>> Backend::export_regions(const kvferry_region* regions, std::uint32_t count) const {
  if (regions == nullptr && count > 0) return refuse(KVFERRY_ERROR_INVALID_ARGUMENT, "export regions: a null list of " + std::to_string(count));
  RegionsBlob blob;
  blob.identity = identity_;
  blob.regions.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto found = regions_.find(regions[i]);
    if (found == regions_.end()) return refuse(KVFERRY_ERROR_NOT_FOUND, "export regions: no region " + std::to_string(regions[i]), regions[i]);
    const Region& region = found->second;
    if (region.access == KVFERRY_ACCESS_LOCAL || region.draining) {
      return refuse(KVFERRY_ERROR_INVALID_ARGUMENT,
                    "export region " + std::to_string(region.id) + ": " + (region.draining ? "it is being deregistered" : "it has no remote access"),
                    region.id);
    }
    blob.regions.push_back({region.id, region.length, region.access, region.purpose});
  }
  return encode(blob);
}

}  // namespace loopback
