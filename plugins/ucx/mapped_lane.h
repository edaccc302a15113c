// The mapped lane: a writer of the same host copies straight into memory that its neighbour got from `allocate`. mapping.h has the protocol of the control
// page; these are its two ends.
//
//   writer: map_request(region) ─► owner: region of ours, open to this peer? then every fence so far, then map_grant ─► writer maps the region's file
//   writer: enter ─ copies ─ leave ... then a data message with one marker per region that it copied into; the guard checks the room and these regions, and
//           its acknowledgement ends the batch
//   owner:  fence, revoke: raise the epoch, tell the writer with one message; proved as soon as the writer is seen outside of a chunk, or dead
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "identity.h"
#include "mapping.h"
#include "regions.h"

namespace kvferry::ucx {

/// The owner's end, one per peer on shared memory, also where nothing may be mapped: it tells the other side that we have closed. Outlives the peer while a writer that is frozen in the middle of a chunk may still write.
class MapOwner {
 public:
  static Result<std::shared_ptr<MapOwner>> create();
  const SharedFile& control_file() const noexcept { return page_.file; }
  void watch(std::shared_ptr<const ProcessGuard> writer) noexcept { writer_ = std::move(writer); }

  /// The writer may copy into something.
  bool active() const noexcept { return active_; }
  bool granted(kvferry_region region) const { return granted_.count(region) != 0; }
  void grant(kvferry_region region) {
    granted_.insert(region);
    active_ = true;
  }
  void revoke(kvferry_region region) { granted_.erase(region); }

  std::uint64_t epoch() const noexcept { return epoch_; }
  /// From here on the writer enters no chunk until it has taken the message that carries this epoch.
  std::uint64_t raise_epoch() noexcept;
  /// It never enters one again.
  void close() noexcept;
  /// The state of the writer now; to be asked after raise_epoch or close.
  std::uint64_t busy() const noexcept { return page().busy.load(std::memory_order_seq_cst); }
  /// Nothing that the writer began before `busy` was read goes on.
  bool proved(std::uint64_t busy) const noexcept;

 private:
  explicit MapOwner(SharedMemory page) : page_(std::move(page)) {}
  ControlPage& page() const noexcept { return *reinterpret_cast<ControlPage*>(page_.mapping.address()); }
  SharedMemory page_;
  std::shared_ptr<const ProcessGuard> writer_;
  std::set<kvferry_region> granted_;
  std::uint64_t epoch_ = 1;
  bool active_ = false;
};

/// The writer's end, one per peer.
class MappedWriter {
 public:
  /// Error: the neighbour's control page cannot be mapped; then there is no mapped lane to it.
  static Result<std::unique_ptr<MappedWriter>> open(std::uint32_t process, const SharedFile& control);

  /// A fence or revoke message was followed.
  void follow_epoch() noexcept { ++epoch_; }
  /// The owner has closed the peer. Its goodbye says the same, unless the way for messages was blocked when it closed.
  bool owner_closed() const noexcept { return (page().epoch.load(std::memory_order_acquire) & kEpochClosed) != 0; }
  /// False: the owner has stopped us; its message is on the way, or it is gone.
  bool enter() noexcept;
  void leave() noexcept;

 private:
  explicit MappedWriter(Mapping page) : page_(std::move(page)) {}
  ControlPage& page() const noexcept { return *reinterpret_cast<ControlPage*>(page_.address()); }
  Mapping page_;
  std::uint64_t epoch_ = 1;
  std::uint64_t busy_ = 0;
};

}  // namespace kvferry::ucx
