// What two connected peers share: a link with two ends. Everything in it is guarded by the link's mutex, which is held for one bounded step.
//
//          end 0 (sent by peer A)                      end 1 (sent by peer B)
//   slots  [done][sent][sent][free]...                 [sent][free]...            one slot per batch in flight, in order of submission
//   window |====== bytes in flight ======|             |==|                       only touched by reads and by late landings
//
// The life of a slot has two independent halves, because a batch may end for its initiator (deadline, cancel) while its bytes are still on the way:
//
//   local (initiator's view):  free ─submit► open ─done, failed► ended ─event polled► free
//   wire  (target's view):     none ─submit► sent ─applied, refused► answered          (withdraw: sent ► none)
//
// A slot is used again when it is free locally and not on the wire. The bytes of a write are read from the source as late as possible, by the
// target's progress: a source that is reused too early shows as wrong bytes, as it would with a real device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "failure.h"

namespace loopback {

constexpr std::uint64_t kNever = ~std::uint64_t{0};

/// The event fd of a backend, shared with those who ring it. Rung only while armed, so the data path makes no system call.
class Doorbell {
 public:
  static Answer<std::shared_ptr<Doorbell>> open();
  ~Doorbell();
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;
  int fd() const noexcept { return fd_; }
  void arm() noexcept { armed_.store(true); }
  void ring() noexcept;
  /// Empties the fd.
  void answer() noexcept;

 private:
  explicit Doorbell(int fd) : fd_(fd) {}
  int fd_;
  std::atomic<bool> armed_{false};
  std::atomic<bool> rung_{false};
};

/// A run of bytes of the initiator's memory.
struct SourcePiece {
  std::uint8_t* address = nullptr;
  std::uint64_t length = 0;
  kvferry_region region = 0;
};

/// One write or read as the target sees it.
struct TargetWrite {
  kvferry_region region = 0;
  std::uint64_t offset = 0, length = 0;
  std::uint64_t batch_offset = 0;  ///< of its first byte in the batch
  std::uint32_t first_piece = 0, piece_count = 0;
  std::uint32_t op = KVFERRY_OP_WRITE;
};

/// How far the target has come.
struct Cursor {
  std::uint32_t write = 0;
  std::uint32_t piece = 0;         ///< within the write
  std::uint64_t piece_offset = 0;  ///< within the piece
  std::uint64_t write_offset = 0;  ///< within the write
};

struct Slot {
  enum class Local : std::uint8_t { free, open, ended };
  enum class Wire : std::uint8_t { none, sent, answered };

  Local local = Local::free;
  Wire wire = Wire::none;
  bool notify = false;
  bool buffered = false;  ///< the bytes still to come lie in the window: the source is read no more
  bool examined = false;  ///< the target has drawn whether it refuses it
  bool lose_answer = false;
  std::uint64_t sequence = 0;
  std::uint64_t room = 0;
  std::uint32_t generation = 0;
  std::uint64_t tag = 0;
  std::uint64_t deadline_ns = 0;
  kvferry_notification notification{};
  std::vector<TargetWrite> writes;  ///< of fixed size; the first `write_count` count
  std::vector<SourcePiece> pieces;
  std::uint32_t write_count = 0, piece_count = 0;
  std::uint64_t bytes = 0;
  std::uint64_t window_position = 0;  ///< of its first byte, counted without wrap
  Cursor cursor;
  std::uint64_t deliver_at_ns = 0;
  std::uint64_t answer_at_ns = kNever;
  std::uint64_t corrupt_write = kNever;  ///< index of the write of which one byte is flipped
  std::uint64_t corrupt_offset = 0;
  std::int32_t inherited_code = 0;  ///< an earlier batch of its room failed with it: no success may be announced
  std::optional<Failure> failure;   ///< how it ended, for the target or the initiator

  bool reads_source() const noexcept { return wire == Wire::sent && !buffered; }
  bool uses_source() const noexcept { return local == Local::open || reads_source(); }
  bool reusable() const noexcept { return local == Local::free && wire != Wire::sent; }
  bool same_room(const Slot& other) const noexcept { return room == other.room && generation == other.generation; }
};

/// Memory for the bytes in flight, mapped when first needed.
class Window {
 public:
  explicit Window(std::uint64_t bytes) : bytes_(bytes) {}
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  std::uint64_t bytes() const noexcept { return bytes_; }
  Answer<void> open();
  void write(std::uint64_t position, const std::uint8_t* source, std::uint64_t length) noexcept;
  void read(std::uint64_t position, std::uint8_t* target, std::uint64_t length) const noexcept;

 private:
  std::uint64_t bytes_;
  std::uint8_t* memory_ = nullptr;
};

struct EndOptions {
  std::uint32_t batches_in_flight_max = 0, writes_per_batch_max = 0, pieces_per_batch_max = 0;
  std::uint64_t window_bytes = 0;
};

/// What one peer sends, and what it tells the other.
struct End {
  End(const EndOptions& options, std::shared_ptr<Doorbell> owner_bell);

  std::shared_ptr<Doorbell> bell;  ///< of the backend that owns this end

  // Handshake: a probe each way, and an answer to each.
  bool probe_sent = false, answer_sent = false;
  std::uint64_t probe_at_ns = 0, answer_at_ns = 0;
  // The end of it.
  bool closed = false;
  std::uint64_t closed_at_ns = 0;
  bool silent = false;  ///< died: nothing of it arrives, nothing is taken
  std::uint64_t silent_until_ns = kNever;

  std::uint64_t fifo_ns = 0;  ///< nothing that keeps the order arrives before it
  std::vector<Slot> slots;
  std::uint64_t oldest = 0, next = 0;  ///< sequences; the slots in use are [oldest, next)
  std::uint64_t window_next = 0;       ///< position behind the newest batch
  Window window;

  Slot& slot(std::uint64_t sequence) noexcept { return slots[sequence % slots.size()]; }
  const Slot& slot(std::uint64_t sequence) const noexcept { return slots[sequence % slots.size()]; }
  bool full() const noexcept { return next - oldest == slots.size(); }
  std::uint64_t window_used() const noexcept { return oldest == next ? 0 : window_next - slot(oldest).window_position; }
  /// Gives back the slots at the old end that are not in use any more.
  void reclaim() noexcept;
  /// When something sent now arrives, in order.
  std::uint64_t arrival(std::uint64_t now_ns, std::uint64_t delay_ns) noexcept;
  /// Notes how a batch failed, and that no later batch of its room in flight may announce success.
  void fail(Slot& failed, Failure failure);
};

struct Link {
  std::mutex mutex;
  std::unique_ptr<End> ends[2];  ///< the second when its owner has joined
};

}  // namespace loopback
