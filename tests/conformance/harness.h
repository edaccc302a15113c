// Two backends of one plugin in one process, driven by one thread.
//
//   Side a ── backend, buffers, events polled ──┐
//                                               ├── drive(condition): a.step(), b.step(), a.step() ... until it holds
//   Side b ── backend, buffers, events polled ──┘       bounded by a number of steps and by a generous guard on the real clock
//
// The host's clock is the real one plus what a test adds with Clock::advance: a deadline or a lease passes without waiting. A test asks for the
// capabilities it needs; where the backend lacks one the case is a named skip, never a silent pass.
#pragma once

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvferry/backend.h"

namespace conformance {

using kvferry::Backend;
using kvferry::ErrorCode;
using kvferry::Result;
using kvferry::Settings;

struct Environment {
  std::string backend = "loopback";  ///< KVFERRY_CONFORMANCE_BACKEND
  std::string lane = "auto";         ///< KVFERRY_CONFORMANCE_LANE
  std::uint32_t rounds = 10'000;     ///< KVFERRY_CONFORMANCE_ROUNDS, of the long loops
  std::uint64_t seed = 1;            ///< KVFERRY_TEST_SEED, printed
};
const Environment& environment();
const kvferry::Plugin& plugin();

/// Notes the running case as skipped. `if (!needs(...)) return;`
void skip(const std::string& reason);
bool needs(const Backend& backend, std::uint32_t capability, const char* name);

/// The real clock plus what tests add; or, for tests of the plugin that needs no real one, only what they add and a little at each step.
class Clock {
 public:
  std::uint64_t now_ns() const;
  void advance(std::uint64_t ns) { added_ns_ += ns; }
  void make_virtual(std::uint64_t step_ns) { step_ns_ = step_ns; }
  void tick() { added_ns_ += step_ns_; }

 private:
  std::atomic<std::uint64_t> added_ns_{1};
  std::uint64_t step_ns_ = 0;  ///< 0: real
};
Clock& test_clock();
constexpr std::uint64_t kSecond = 1'000'000'000;
std::uint64_t in_seconds(std::uint64_t seconds);  ///< a deadline

const kvferry::Host& host();

/// The error of a call that must fail with this code; the text is shown when it does not.
template <class T>
kvferry::Error refused(const Result<T>& result, ErrorCode code) {
  if (result) FAIL("the call succeeded, expected " << kvferry::to_string(code));
  INFO(result.error().text);
  CHECK(kvferry::to_string(result.error().code) == kvferry::to_string(code));
  CHECK_FALSE(result.error().text.empty());
  return result.error();
}
template <class T>
T ok(Result<T> result) {
  if (!result) FAIL(result.error().text);
  return std::move(*result);
}
inline void ok(const Result<void>& result) {
  if (!result) FAIL(result.error().text);
}

class Side;
using Sides = std::vector<Side*>;

/// One backend and what it has said.
class Side {
 public:
  explicit Side(const Settings& settings = {});
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  Backend& operator*() { return *backend_; }
  Backend* operator->() { return backend_.get(); }
  bool alive() const { return backend_ != nullptr; }
  void destroy() { backend_.reset(); }
  /// One progress, then everything there is to poll.
  void step();
  void poll();

  std::size_t count(std::uint32_t kind) const;
  std::size_t count(std::uint32_t kind, kvferry_peer peer) const;
  /// The first event of the kind (and tag, where it is not 0).
  const kvferry_event* find(std::uint32_t kind, std::uint64_t tag = 0) const;
  const kvferry_event* terminal(std::uint64_t tag) const;  ///< DONE or FAILED of a batch
  std::vector<kvferry_event> events;

 private:
  std::unique_ptr<Backend> backend_;
};

/// Memory between two guards, filled with a pattern that names (salt, offset).
class Buffer {
 public:
  Buffer(Side& side, std::uint64_t bytes, std::uint32_t access, std::uint64_t misalignment = 0);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::uint8_t* data() { return data_; }
  const std::uint8_t* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  kvferry_region region() const { return region_; }
  void set_region(kvferry_region region) { region_ = region; }
  void fill(std::uint64_t salt);
  void fill(std::uint64_t salt, std::uint64_t offset, std::uint64_t length);
  void clear(std::uint8_t value);
  /// FAILs when a guard byte has changed.
  void check_guards() const;

 private:
  static constexpr std::uint64_t kGuardBytes = 4096;
  static constexpr std::uint8_t kGuardByte = 0xee;
  std::vector<std::uint8_t> memory_;
  std::uint8_t* data_;
  std::uint64_t bytes_;
  Side& side_;
  kvferry_region region_ = 0;
};
std::uint8_t pattern(std::uint64_t salt, std::uint64_t offset);

/// Steps every side that is alive until the condition holds; FAILs with `what` when it does not.
void drive(const Sides& sides, const std::function<bool()>& condition, const std::string& what);
/// A number of steps, to let happen what must not.
void drive_steps(const Sides& sides, int steps);

/// Makes, connects and waits; gives the peer of each side.
struct Connected {
  kvferry_peer first = 0, second = 0;
};
Connected connect(Side& first, Side& second, std::uint64_t lease_first_ns = 0, std::uint64_t lease_second_ns = 0);
kvferry_peer new_peer(Side& side, std::uint64_t lease_ns = 0);
/// `to` may write these regions of `from`.
void share(Side& from, std::initializer_list<kvferry_region> regions, Side& to, kvferry_peer to_peer);

/// A batch under construction.
class Batch {
 public:
  Batch& write(const Buffer& source, std::uint64_t source_offset, const Buffer& target, std::uint64_t target_offset, std::uint64_t length,
               std::uint32_t op = KVFERRY_OP_WRITE);
  Batch& gather(const std::vector<kvferry_piece>& from, kvferry_region target, std::uint64_t target_offset, std::uint32_t op = KVFERRY_OP_WRITE);
  Batch& room(std::uint64_t number, std::uint32_t generation = 1);
  Batch& notify(std::uint32_t chunk = 0, std::int32_t status = KVFERRY_OK);
  Batch& tag(std::uint64_t tag);
  Batch& deadline(std::uint64_t deadline_ns);
  const kvferry_batch& c();
  /// Without the first `count` writes: what is left after a prefix was accepted.
  void drop_front(std::uint32_t count);
  std::vector<kvferry_write> writes;
  std::vector<kvferry_piece> pieces;

 private:
  kvferry_batch batch_{};
};

/// Submits all of it (the rest of an accepted prefix again, under tag + 1, ...); gives the last tag used.
std::uint64_t submit(Side& from, kvferry_peer peer, Batch& batch, const Sides& sides);
/// Submits and waits for the terminal event of every part; gives the last one.
kvferry_event run(Side& from, kvferry_peer peer, Batch& batch, const Sides& sides);
void run_done(Side& from, kvferry_peer peer, Batch& batch, const Sides& sides);
std::uint64_t next_tag();

/// Two sides that are connected, with a source at a and a target at b that a may write and read.
struct Pair {
  explicit Pair(std::uint64_t bytes = 1u << 16, const Settings& settings_a = {}, const Settings& settings_b = {});
  ~Pair();  ///< the backends go before the memory, whatever is in flight
  Side a, b;
  Buffer source, target;
  Connected peers;
  kvferry_peer to_b() const { return peers.first; }
  kvferry_peer to_a() const { return peers.second; }
  Sides both;
};

int open_files();
int threads();
/// Calls of operator new of this thread so far, those of the plugin included: the program exports its own (support/counted_new.h).
std::uint64_t allocations();

}  // namespace conformance
