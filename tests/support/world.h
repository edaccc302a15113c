// A world of engines on one thread and one virtual clock: real engine cores, the real session bytes, a real backend plugin (loopback), and wires that
// delay, and break. Everything random comes from one seed.
//
//   engine A ── SimLinks ══ frames, delayed, in order, may break ══ SimLinks ── engine B
//       └────── loopback backend ═══════ faults from its settings ═══════ backend ──┘
//
// Time only moves in step(). Nothing sleeps.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kvferry/engine.h"
#include "kvferry/session.h"

namespace kvferry::test {

inline constexpr std::uint64_t kMicrosecond = 1'000, kMillisecond = 1'000'000, kSecond = 1'000'000'000;

struct WireOptions {
  std::uint64_t delay_min_ns = 20 * kMicrosecond;
  std::uint64_t delay_max_ns = 200 * kMicrosecond;
};

class World;

/// One engine with its clock, links, jobs and an event log.
class Actor {
 public:
  Actor(World& world, std::string name);
  ~Actor();

  std::string name;
  std::unique_ptr<Host> host;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Engine> engine;
  std::vector<Event> log;         ///< everything polled, in order
  std::size_t log_read = 0;       ///< for callers that consume it
  bool frozen = false;            ///< not progressed, hears nothing
  bool dead = false;              ///< gone for good
  std::vector<std::uint64_t> event_times_ns;  ///< of log, the world's time when polled

  bool has(EventKind kind, TransferId transfer) const { return find(kind, transfer) != nullptr; }
  const Event* find(EventKind kind, TransferId transfer) const;
  const Event* find_peer(EventKind kind, PeerId peer) const;
  std::size_t count(EventKind kind, TransferId transfer) const;
  /// The peer that is up and called `peer_name`; PeerId{} if there is none.
  PeerId peer_named(const std::string& peer_name) const;

 private:
  friend class World;
  class Links;
  class Jobs;
  World& world_;
  std::unique_ptr<Links> links_;
  std::unique_ptr<Jobs> jobs_;
};

class World {
 public:
  explicit World(std::uint64_t seed, WireOptions wire = {});
  ~World();

  std::mt19937_64 random;
  std::uint64_t now_ns = kSecond;

  /// `settings` are the loopback backend's.
  Actor& add(std::string name, EngineOptions options, const Settings& settings = {});
  Actor& actor(const std::string& name);
  /// Connects `from` to `to` by name; the peer id at `from`.
  PeerId connect(Actor& from, const std::string& to, std::uint64_t timeout_ns = 5 * kSecond);
  /// connect and run until both are up; the ids at (from, to). Throws on failure.
  std::pair<PeerId, PeerId> connect_up(Actor& from, Actor& to);

  /// One step: due messages, jobs, progress of everybody who moves. Time advances by up to `quantum_ns`, or further to the next thing that is due.
  void step(std::uint64_t quantum_ns = 5 * kMicrosecond);
  /// Steps until `done` or until `limit_ns` of virtual time passed; whether `done`.
  bool run(const std::function<bool()>& done, std::uint64_t limit_ns);

  void freeze(Actor& actor) { actor.frozen = true; }
  void thaw(Actor& actor) { actor.frozen = false; }
  /// Process death: links of it break at the others after a delay, its backend goes away.
  void kill(Actor& actor);
  /// Breaks every link between two actors: both sides hear of it.
  void cut(Actor& a, Actor& b);
  /// From now on nothing is carried between the two, and nobody is told.
  void partition(Actor& a, Actor& b) { partitioned_.insert({std::min(&a, &b), std::max(&a, &b)}); }

 private:
  friend class Actor;
  struct Wire;
  struct Delivery {
    std::uint64_t at_ns = 0;
    std::uint64_t order = 0;
    std::function<void()> deliver;
    Actor* to = nullptr;
    friend bool operator>(const Delivery& a, const Delivery& b) { return std::pair(a.at_ns, a.order) > std::pair(b.at_ns, b.order); }
  };
  std::uint64_t delay();
  void deliver(Actor* to, std::uint64_t at_ns, std::function<void()> what);
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return std::uniform_int_distribution<std::uint64_t>(low, high)(random); }

  WireOptions options_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::vector<Delivery> queue_;  ///< heap
  std::vector<Delivery> held_;   ///< due, for actors that are frozen
  std::uint64_t order_ = 0;
  std::set<std::pair<Actor*, Actor*>> partitioned_;
};

}  // namespace kvferry::test
