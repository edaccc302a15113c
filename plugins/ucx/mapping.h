// Memory that two processes of one host share: what `allocate` gives out, and the control page with which its owner stops a writer.
//
//   owner (target)                                              writer (initiator)
//   memfd, sealed: its size never changes        ◄── opened through /proc, device, inode, size and seals checked, mapped
//   control page, one per peer:
//     epoch   written by the owner ─────────────► read by the writer before every chunk of copies
//     busy    read by the owner   ◄───────────── odd while the writer copies
//
// The writer raises `busy`, then reads `epoch`; it copies only if that is the epoch up to which it has followed the owner's messages. The owner raises `epoch`,
// then reads `busy`. Both use sequentially consistent accesses, so at least one of them sees the other: either the writer stays out, or the owner waits until
// `busy` has moved on. So a fence is proved without any answer, even when the writer is frozen, unless it is frozen in the middle of a chunk; then only its
// death or its next step can prove it. A page whose epoch has kEpochClosed set is never written under again.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "blob.h"
#include "../common/file_descriptor.h"
#include "kvferry/result.h"

namespace kvferry::ucx {

using namespace plugins;

/// A shared mapping, of ours or of a neighbour's file.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), length_(std::exchange(other.length_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { reset(); }

  std::uint8_t* address() const noexcept { return address_; }
  std::uint64_t length() const noexcept { return length_; }
  void reset() noexcept;

  /// Fills the page table for [offset, offset + length), so that the first copy does not fault. False: this kernel cannot.
  bool populate(std::uint64_t offset, std::uint64_t length) const noexcept;

  static Result<Mapping> map(int fd, std::uint64_t length, const std::string& what);

 private:
  std::uint8_t* address_ = nullptr;
  std::uint64_t length_ = 0;
};

/// A memfd with its memory committed and its size sealed, mapped here.
struct SharedMemory {
  FileDescriptor descriptor;
  Mapping mapping;
  SharedFile file;  ///< what a neighbour needs

  static Result<SharedMemory> create(const char* name, std::uint64_t length_bytes);
};

/// Maps a neighbour's file: refused unless device, inode, length and seals are as announced.
Result<Mapping> attach(std::uint32_t process, const SharedFile& file);

constexpr std::uint64_t kEpochClosed = std::uint64_t{1} << 63;

struct ControlPage {
  alignas(64) std::atomic<std::uint64_t> epoch;
  alignas(64) std::atomic<std::uint64_t> busy;
};
constexpr std::uint64_t kControlPageBytes = 4096;
static_assert(sizeof(ControlPage) <= kControlPageBytes && std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace kvferry::ucx
