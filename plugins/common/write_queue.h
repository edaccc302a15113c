// What a peer has accepted and not ended: batches, their writes, their pieces, in three rings of fixed size.
//
//   batches  [ended][sent][sending][queued][queued]
//              │oldest          │cursor          │next
//   writes   [....][....][..▲..........][....]              ▲ the write being packed, with its piece and the bytes of it that are gone
//   pieces   [..............▲......................]
//
// submit copies a batch in (its arrays may be reused at once) and so says yes or no without blocking; the pump packs from here whenever UCX has room. A batch
// stays until its event was polled: so the rings bound the events too, and deregistration can see exactly which regions are in use.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "kvferry/backend_abi.h"

namespace kvferry::plugins {

template <class T>
class Ring {
 public:
  /// Room for at least `capacity`.
  void reserve(std::uint64_t capacity) { items_.resize(std::bit_ceil(capacity)); }
  std::uint64_t capacity() const noexcept { return items_.size(); }
  std::uint64_t oldest() const noexcept { return oldest_; }
  std::uint64_t next() const noexcept { return next_; }
  std::uint64_t size() const noexcept { return next_ - oldest_; }
  std::uint64_t free() const noexcept { return items_.size() - size(); }
  T& operator[](std::uint64_t number) noexcept { return items_[number & (items_.size() - 1)]; }
  const T& operator[](std::uint64_t number) const noexcept { return items_[number & (items_.size() - 1)]; }
  T& push() noexcept { return (*this)[next_++]; }
  void release_to(std::uint64_t number) noexcept { oldest_ = number; }

 private:
  std::vector<T> items_;
  std::uint64_t oldest_ = 0, next_ = 0;
};

struct QueuedPiece {
  const std::uint8_t* address = nullptr;
  std::uint64_t length = 0;
  kvferry_region region = 0;
};

struct QueuedWrite {
  kvferry_region region = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t first_piece = 0;
  std::uint32_t op = KVFERRY_OP_WRITE;
};

struct Batch {
  std::uint64_t tag = 0;
  std::uint64_t room = 0;
  std::uint32_t generation = 0;
  bool notify = false;
  bool sent = false;   ///< its last message is with UCX
  bool ended = false;  ///< its event is queued
  bool polled = false;
  std::int32_t inherited_code = 0;  ///< an earlier batch of the room failed with it: success may not be announced
  std::uint64_t first_write = 0, write_end = 0;
  std::uint64_t first_piece = 0, piece_end = 0;
  std::uint64_t bytes = 0;
  std::uint64_t deadline_ns = 0;
  std::uint64_t first_sequence = 0;  ///< 0: nothing was sent
  std::uint64_t last_sequence = 0;
  std::uint32_t outstanding = 0;     ///< work requests with the device: their memory is in use; the batch stays while there are any
  std::uint32_t waiting_again = 0;   ///< work requests whose queue pair failed, to be posted on another
  kvferry_notification notification{};

  bool same_room(const Batch& other) const noexcept { return room == other.room && generation == other.generation; }
};

struct WriteQueue {
  Ring<Batch> batches;
  Ring<QueuedWrite> writes;
  Ring<QueuedPiece> pieces;
  std::uint64_t bytes = 0;  ///< accepted and not ended

  // Where the pump stands. It never stands before the oldest batch.
  std::uint64_t cursor_batch = 0;
  std::uint64_t cursor_write = 0;
  std::uint64_t cursor_piece = 0;
  std::uint64_t piece_gone = 0;  ///< bytes of the piece
  std::uint64_t write_gone = 0;  ///< bytes of the write

  bool idle() const noexcept { return cursor_batch == batches.next(); }
};

}  // namespace kvferry::plugins
