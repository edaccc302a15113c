// The one thing that is shared by all backends of the process: who exists, and links that wait for their second end.
#pragma once

#include <cstdint>
#include <memory>

#include "blob.h"
#include "link.h"

namespace loopback {

/// Ids are never reused in a process.
std::uint64_t next_id() noexcept;

/// Identity of this process with a new backend instance; refused in the fork of a process that has used the plugin.
Answer<Identity> add_backend();
void remove_backend(std::uint64_t instance);
void add_peer(std::uint64_t instance, kvferry_peer peer);
void remove_peer(std::uint64_t instance, kvferry_peer peer);
bool has_peer(std::uint64_t instance, kvferry_peer peer);

struct Joined {
  std::shared_ptr<Link> link;
  int side = 0;  ///< our end
};
/// The link between two peers: made by the one that asks first, joined by the second.
Answer<Joined> join(const EndpointBlob& own, const EndpointBlob& remote, const EndOptions& options, const std::shared_ptr<Doorbell>& bell);

}  // namespace loopback
