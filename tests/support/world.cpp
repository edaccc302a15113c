#include "support/world.h"

#include <algorithm>
#include <utility>
#include <stdexcept>

#ifndef KVFERRY_TEST_LOOPBACK_PLUGIN
#error "the build gives the path of the loopback plugin just built"
#endif

namespace kvferry::test {
namespace {

void must(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

}  // namespace

// Both ends of one connection. Bytes cross in order per direction.
struct World::Wire {
  struct End {
    Actor* actor = nullptr;
    LinkId link{};
    session::Decoder decoder;
    std::uint64_t sequence = 0;
    std::uint64_t last_arrival_ns = 0;  // towards this end
    bool open = false;
  };
  End ends[2];
};

class Actor::Links final : public LinkPort {
 public:
  explicit Links(Actor& self) : self_(self) {}

  void connect(LinkId link, std::string_view address, std::uint64_t) override {
    World& world = self_.world_;
    Actor* self = &self_;
    world.deliver(self, world.now_ns + world.delay(), [self, link, to = std::string(address)] {
      World& w = self->world_;
      Actor* other = nullptr;
      for (auto& actor : w.actors_) {
        if (actor->name == to && !actor->dead) other = actor.get();
      }
      if (other == nullptr) return self->engine->link_lost(link, Error(ErrorCode::peer_lost, "connect to " + to + ": connection refused"));
      auto wire = std::make_shared<World::Wire>();
      wire->ends[0].actor = self;
      wire->ends[0].link = link;
      wire->ends[1].actor = other;
      const std::uint64_t at = w.now_ns + w.delay();
      w.deliver(other, at, [wire, self, other] {
        wire->ends[1].link = other->engine->accept_link(self->name);
        wire->ends[0].open = wire->ends[1].open = true;
        other->links_->wires_[static_cast<std::uint64_t>(wire->ends[1].link)] = {wire, 1};
        self->links_->wires_[static_cast<std::uint64_t>(wire->ends[0].link)] = {wire, 0};
        World& w2 = self->world_;
        w2.deliver(self, w2.now_ns + w2.delay(), [wire, self] { self->engine->link_opened(wire->ends[0].link); });
      });
    });
  }

  void send(LinkId link, const session::Message& message) override {
    const auto found = wires_.find(static_cast<std::uint64_t>(link));
    if (found == wires_.end()) return;
    auto [wire, side] = found->second;
    if (!wire->ends[side].open) return;
    std::vector<std::uint8_t> bytes;
    must(session::encode(message, wire->ends[side].sequence++, bytes).has_value(), "a message did not encode");
    carry(wire, 1 - side, [wire = wire, to = 1 - side, bytes = std::move(bytes)] {
      World::Wire::End& end = wire->ends[to];
      must(end.decoder.feed(bytes).has_value(), "bytes did not decode");
      while (true) {
        auto next = end.decoder.next();
        must(next.has_value(), "a frame did not decode");
        if (!*next) return;
        end.actor->engine->link_message(end.link, std::move(**next));
      }
    });
  }

  void close(LinkId link) override {
    const auto found = wires_.find(static_cast<std::uint64_t>(link));
    if (found == wires_.end()) return;
    auto [wire, side] = found->second;
    wires_.erase(found);
    if (!wire->ends[side].open) return;
    wire->ends[side].open = false;
    lose_later(wire, 1 - side, "the other side closed the connection");
  }

  /// This end is gone; the other one hears of it.
  void break_all(Actor* only_to, bool tell_self) {
    for (auto& [link, place] : std::exchange(wires_, {})) {
      auto& [wire, side] = place;
      if (only_to != nullptr && wire->ends[1 - side].actor != only_to) {
        wires_[link] = place;
        continue;
      }
      wire->ends[side].open = false;
      lose_later(wire, 1 - side, "connection reset by peer");
      if (tell_self) {
        const LinkId id = wire->ends[side].link;
        self_.world_.deliver(&self_, self_.world_.now_ns + self_.world_.delay(),
                             [self = &self_, id] { self->engine->link_lost(id, Error(ErrorCode::peer_lost, "connection reset by peer")); });
      }
    }
  }

 private:
  void carry(const std::shared_ptr<World::Wire>& wire, int to, std::function<void()> what) {
    World& world = self_.world_;
    Actor* other = wire->ends[to].actor;
    if (world.partitioned_.count({std::min(&self_, other), std::max(&self_, other)}) != 0) return;
    World::Wire::End& end = wire->ends[to];
    end.last_arrival_ns = std::max(end.last_arrival_ns + 1, world.now_ns + world.delay());
    world.deliver(other, end.last_arrival_ns, [wire, to, what = std::move(what)] {
      if (wire->ends[to].open) what();
    });
  }

  void lose_later(const std::shared_ptr<World::Wire>& wire, int to, const char* why) {
    carry(wire, to, [wire, to, why] {
      World::Wire::End& end = wire->ends[to];
      end.open = false;
      end.actor->links_->wires_.erase(static_cast<std::uint64_t>(end.link));
      end.actor->engine->link_lost(end.link, Error(ErrorCode::peer_lost, why));
    });
  }

  Actor& self_;
  std::map<std::uint64_t, std::pair<std::shared_ptr<World::Wire>, int>> wires_;
};

class Actor::Jobs final : public JobPort {
 public:
  explicit Jobs(Actor& self) : self_(self) {}
  void run(std::uint64_t job, std::function<void()> work) override {
    World& world = self_.world_;
    world.deliver(&self_, world.now_ns + world.delay(), [self = &self_, job, work = std::move(work)] {
      work();
      self->engine->job_done(job);
    });
  }

 private:
  Actor& self_;
};

Actor::Actor(World& world, std::string name_) : name(std::move(name_)), world_(world) {
  links_ = std::make_unique<Links>(*this);
  jobs_ = std::make_unique<Jobs>(*this);
}
Actor::~Actor() = default;

const Event* Actor::find(EventKind kind, TransferId transfer) const {
  for (const Event& event : log) {
    if (event.kind == kind && event.transfer == transfer) return &event;
  }
  return nullptr;
}

const Event* Actor::find_peer(EventKind kind, PeerId peer) const {
  for (const Event& event : log) {
    if (event.kind == kind && event.peer == peer) return &event;
  }
  return nullptr;
}

std::size_t Actor::count(EventKind kind, TransferId transfer) const {
  return static_cast<std::size_t>(std::count_if(log.begin(), log.end(), [&](const Event& event) { return event.kind == kind && event.transfer == transfer; }));
}

PeerId Actor::peer_named(const std::string& peer_name) const {
  for (const PeerId id : engine->peers()) {
    const auto info = engine->peer_info(id);
    if (info && info->name == peer_name && info->state == PeerState::up) return id;
  }
  return {};
}

World::World(std::uint64_t seed, WireOptions wire) : random(seed), options_(wire) {}
World::~World() {
  queue_.clear();
  // Engines go before backends, and backends know each other: all engines first.
  for (auto& actor : actors_) actor->engine.reset();
}

Actor& World::add(std::string name, EngineOptions options, const Settings& settings) {
  auto owned = std::make_unique<Actor>(*this, std::move(name));
  Actor& self = *owned;
  Host::Options host_options;
  host_options.now_ns = [this] { return now_ns; };
  self.host = std::make_unique<Host>(std::move(host_options));
  auto plugin = load_plugin_file(KVFERRY_TEST_LOOPBACK_PLUGIN, *self.host);
  must(plugin.has_value(), plugin ? "" : plugin.error().text);
  auto backend = Backend::create(*plugin, *self.host, settings);
  must(backend.has_value(), backend ? "" : backend.error().text);
  self.backend = std::move(*backend);
  options.name = self.name;
  for (auto& byte : options.id) byte = static_cast<std::uint8_t>(between(0, 255));
  auto engine = Engine::create(std::move(options), *self.host, *self.backend, *self.links_, *self.jobs_);
  must(engine.has_value(), engine ? "" : engine.error().text);
  self.engine = std::move(*engine);
  actors_.push_back(std::move(owned));
  return self;
}

Actor& World::actor(const std::string& name) {
  for (auto& actor : actors_) {
    if (actor->name == name && !actor->dead) return *actor;
  }
  throw std::runtime_error("no actor " + name);
}

PeerId World::connect(Actor& from, const std::string& to, std::uint64_t timeout_ns) { return from.engine->open_peer(to, now_ns + timeout_ns); }

std::pair<PeerId, PeerId> World::connect_up(Actor& from, Actor& to) {
  const PeerId there = connect(from, to.name);
  const bool up = run([&] { return from.find_peer(EventKind::peer_up, there) != nullptr && to.peer_named(from.name) != PeerId{}; }, 10 * kSecond);
  if (!up) {
    const Event* lost = from.find_peer(EventKind::peer_lost, there);
    throw std::runtime_error(from.name + " did not reach " + to.name + (lost != nullptr ? ": " + lost->error->text : ""));
  }
  return {there, to.peer_named(from.name)};
}

std::uint64_t World::delay() { return between(options_.delay_min_ns, options_.delay_max_ns); }

void World::deliver(Actor* to, std::uint64_t at_ns, std::function<void()> what) {
  queue_.push_back({at_ns, order_++, std::move(what), to});
  std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
}

void World::step(std::uint64_t quantum_ns) {
  now_ns += between(1, quantum_ns);
  for (Delivery& delivery : std::exchange(held_, {})) {  // with its time and order, so that streams stay streams
    queue_.push_back(std::move(delivery));
    std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
  }
  while (!queue_.empty() && queue_.front().at_ns <= now_ns) {
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    Delivery due = std::move(queue_.back());
    queue_.pop_back();
    if (due.to->dead) continue;
    if (due.to->frozen) {
      held_.push_back(std::move(due));  // the kernel keeps it for a stopped process
      continue;
    }
    due.deliver();
  }
  bool worked = false;
  std::uint64_t next_ns = queue_.empty() ? ~std::uint64_t{0} : queue_.front().at_ns;
  for (auto& actor : actors_) {
    if (actor->dead || actor->frozen) continue;
    worked |= actor->engine->progress(now_ns);
    next_ns = std::min(next_ns, actor->engine->next_deadline_ns());
    Event events[16];
    while (const std::size_t count = actor->engine->poll(events)) {
      for (std::size_t i = 0; i < count; ++i) {
        actor->log.push_back(std::move(events[i]));
        actor->event_times_ns.push_back(now_ns);
      }
    }
  }
  // Nothing to do now: go nearly to the next thing that is due, but not past what a backend's own delays may want.
  if (!worked && next_ns != ~std::uint64_t{0} && next_ns > now_ns) now_ns += std::min(next_ns - now_ns, kMillisecond);
  if (!worked && next_ns == ~std::uint64_t{0}) now_ns += kMillisecond;
}

bool World::run(const std::function<bool()>& done, std::uint64_t limit_ns) {
  const std::uint64_t end_ns = now_ns + limit_ns;
  while (!done()) {
    if (now_ns >= end_ns) return false;
    step();
  }
  return true;
}

void World::kill(Actor& actor) {
  actor.dead = true;
  actor.links_->break_all(nullptr, false);
  actor.engine.reset();
  actor.backend.reset();
}

void World::cut(Actor& a, Actor& b) { a.links_->break_all(&b, true); }

}  // namespace kvferry::test
