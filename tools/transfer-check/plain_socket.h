/// One plain TCP connection over the loopback device that moves the pieces of a round with writev and readv: what a lane over TCP is measured
/// against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "channel.h"

namespace kvferry::transfer_check {

/// A listening socket on 127.0.0.1 and its port.
struct Listening {
  Descriptor socket;
  std::uint16_t port = 0;
};
Result<Listening> listen_on_loopback();
Result<Descriptor> accept_one(const Descriptor& listening);
Result<Descriptor> connect_to_loopback(std::uint16_t port);

struct Pieces {
  std::span<std::byte> memory;
  const std::vector<std::uint64_t>& offsets;
  std::uint64_t piece_bytes = 0;
};
/// All pieces, then one byte back from the other side.
Result<void> send_pieces(const Descriptor& socket, const Pieces& pieces);
Result<void> receive_pieces(const Descriptor& socket, const Pieces& pieces);
/// Waits until a round begins; false when the other side is gone.
bool wait_readable(const Descriptor& socket);

}  // namespace kvferry::transfer_check
