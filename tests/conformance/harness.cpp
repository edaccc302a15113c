#include "harness.h"

#include <dirent.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace conformance {
namespace {

constexpr std::uint64_t kStepsMax = 50'000'000;
constexpr std::chrono::seconds kGuard{60};

int entries_of(const char* folder) {
  DIR* const stream = opendir(folder);
  if (stream == nullptr) FAIL("cannot read " << folder);
  int count = 0;
  while (readdir(stream) != nullptr) ++count;
  (void)closedir(stream);
  return count;
}

}  // namespace

std::uint64_t Clock::now_ns() const {
  if (step_ns_ != 0) return added_ns_.load();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()) + added_ns_.load();
}

Clock& test_clock() {
  static Clock clock;
  return clock;
}

std::uint64_t in_seconds(std::uint64_t seconds) { return test_clock().now_ns() + seconds * kSecond; }

const kvferry::Host& host() {
  static const kvferry::Host the_host({{}, [] { return test_clock().now_ns(); }, {}, {}});
  return the_host;
}

bool needs(const Backend& backend, std::uint32_t capability, const char* name) {
  if (backend.has(capability)) return true;
  skip(std::string("the backend does not have ") + name);
  return false;
}

Side::Side(const Settings& settings) {
  Settings all = kvferry::backend_settings_from_environment(environment().backend);
  for (const auto& [key, value] : settings) {
    std::erase_if(all, [&, key = key](const auto& given) { return given.first == key; });
    all.emplace_back(key, value);
  }
  backend_ = ok(Backend::create(plugin(), host(), all));
}

void Side::poll() {
  kvferry_event batch[16];
  for (;;) {
    const auto count = ok(backend_->poll(batch));
    events.insert(events.end(), batch, batch + count);
    if (count < std::size(batch)) return;
  }
}

void Side::step() {
  (void)ok(backend_->progress());
  poll();
}

std::size_t Side::count(std::uint32_t kind) const {
  return static_cast<std::size_t>(std::count_if(events.begin(), events.end(), [&](const auto& event) { return event.kind == kind; }));
}

std::size_t Side::count(std::uint32_t kind, kvferry_peer peer) const {
  return static_cast<std::size_t>(
      std::count_if(events.begin(), events.end(), [&](const auto& event) { return event.kind == kind && event.peer == peer; }));
}

const kvferry_event* Side::find(std::uint32_t kind, std::uint64_t tag) const {
  const auto found =
      std::find_if(events.begin(), events.end(), [&](const auto& event) { return event.kind == kind && (tag == 0 || event.tag == tag); });
  return found != events.end() ? &*found : nullptr;
}

const kvferry_event* Side::terminal(std::uint64_t tag) const {
  const kvferry_event* done = find(KVFERRY_EVENT_BATCH_DONE, tag);
  return done != nullptr ? done : find(KVFERRY_EVENT_BATCH_FAILED, tag);
}

std::uint8_t pattern(std::uint64_t salt, std::uint64_t offset) {
  std::uint64_t z = (salt * 0x9e3779b97f4a7c15u) ^ (offset * 0xd6e8feb86659fd93u);
  z ^= z >> 32;
  z *= 0xd6e8feb86659fd93u;
  return static_cast<std::uint8_t>(z >> 56);
}

Buffer::Buffer(Side& side, std::uint64_t bytes, std::uint32_t access, std::uint64_t misalignment)
    : memory_(bytes + 2 * kGuardBytes + misalignment, kGuardByte), data_(memory_.data() + kGuardBytes + misalignment), bytes_(bytes), side_(side) {
  region_ = ok(side->register_region({.address = reinterpret_cast<std::uint64_t>(data_), .length = bytes, .access = access}));
}

Buffer::~Buffer() {
  // The memory goes away: whatever still uses it ends with the backend or by draining.
  if (!side_.alive() || region_ == 0) return;
  for (int step = 0; step < 1'000'000; ++step) {
    const auto gone = side_->deregister_region(region_, KVFERRY_DEREGISTER_DRAIN);
    if (!gone || *gone) return;
    side_.step();
  }
}

void Buffer::fill(std::uint64_t salt) { fill(salt, 0, bytes_); }

void Buffer::fill(std::uint64_t salt, std::uint64_t offset, std::uint64_t length) {
  for (std::uint64_t i = 0; i < length; ++i) data_[offset + i] = pattern(salt, offset + i);
}

void Buffer::clear(std::uint8_t value) { std::memset(data_, value, bytes_); }

void Buffer::check_guards() const {
  for (const std::uint8_t* byte = memory_.data(); byte != data_; ++byte) {
    if (*byte != kGuardByte) FAIL("the byte " << data_ - byte << " before the buffer was changed");
  }
  for (const std::uint8_t* byte = data_ + bytes_; byte != memory_.data() + memory_.size(); ++byte) {
    if (*byte != kGuardByte) FAIL("the byte " << byte - (data_ + bytes_) << " behind the buffer was changed");
  }
}

void drive(const Sides& sides, const std::function<bool()>& condition, const std::string& what) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t step = 0; step < kStepsMax; ++step) {
    if (condition()) return;
    test_clock().tick();
    for (Side* side : sides) {
      if (side->alive()) side->step();
    }
    if (step % 1024 == 1023 && std::chrono::steady_clock::now() - begin > kGuard) break;
  }
  std::string said;
  for (Side* side : sides) {
    for (const auto& event : side->events) {
      if (event.error.code != 0) said += std::string("\n  ") + event.error.text;
    }
  }
  FAIL("does not happen: " << what << "; errors so far:" << said);
}

void drive_steps(const Sides& sides, int steps) {
  for (int step = 0; step < steps; ++step) {
    test_clock().tick();
    for (Side* side : sides) {
      if (side->alive()) side->step();
    }
  }
}

kvferry_peer new_peer(Side& side, std::uint64_t lease_ns) { return ok(side->peer_create({.lane = environment().lane, .lease_ns = lease_ns})); }

Connected connect(Side& first, Side& second, std::uint64_t lease_first_ns, std::uint64_t lease_second_ns) {
  const Connected peers{new_peer(first, lease_first_ns), new_peer(second, lease_second_ns)};
  const auto first_blob = ok(first->peer_export(peers.first));
  const auto second_blob = ok(second->peer_export(peers.second));
  ok(first->peer_connect(peers.first, second_blob, in_seconds(30)));
  ok(second->peer_connect(peers.second, first_blob, in_seconds(30)));
  drive(
      {&first, &second}, [&] { return first.count(KVFERRY_EVENT_PEER_UP, peers.first) > 0 && second.count(KVFERRY_EVENT_PEER_UP, peers.second) > 0; },
      "both sides of a new connection come up");
  return peers;
}

void share(Side& from, std::initializer_list<kvferry_region> regions, Side& to, kvferry_peer to_peer) {
  const auto blob = ok(from->export_regions({regions.begin(), regions.size()}));
  ok(to->import_regions(to_peer, blob));
}

Batch& Batch::gather(const std::vector<kvferry_piece>& from, kvferry_region target, std::uint64_t target_offset, std::uint32_t op) {
  kvferry_write write{};
  write.remote_region = target;
  write.remote_offset = target_offset;
  write.first_piece = static_cast<std::uint32_t>(pieces.size());
  write.piece_count = static_cast<std::uint32_t>(from.size());
  write.op = op;
  writes.push_back(write);
  pieces.insert(pieces.end(), from.begin(), from.end());
  return *this;
}

Batch& Batch::write(const Buffer& source, std::uint64_t source_offset, const Buffer& target, std::uint64_t target_offset, std::uint64_t length,
                    std::uint32_t op) {
  return gather({{source.region(), source_offset, length}}, target.region(), target_offset, op);
}

Batch& Batch::room(std::uint64_t number, std::uint32_t generation) {
  batch_.room = batch_.notification.room = number;
  batch_.generation = batch_.notification.generation = generation;
  return *this;
}

Batch& Batch::notify(std::uint32_t chunk, std::int32_t status) {
  batch_.flags |= KVFERRY_BATCH_NOTIFY;
  batch_.notification.chunk = chunk;
  batch_.notification.status = status;
  return *this;
}

Batch& Batch::tag(std::uint64_t tag) {
  batch_.tag = tag;
  return *this;
}

Batch& Batch::deadline(std::uint64_t deadline_ns) {
  batch_.deadline_ns = deadline_ns;
  return *this;
}

const kvferry_batch& Batch::c() {
  batch_.struct_size = sizeof(batch_);
  batch_.writes = writes.data();
  batch_.pieces = pieces.data();
  batch_.write_count = static_cast<std::uint32_t>(writes.size());
  batch_.piece_count = static_cast<std::uint32_t>(pieces.size());
  if (batch_.tag == 0) batch_.tag = next_tag();
  return batch_;
}

void Batch::drop_front(std::uint32_t count) {
  const std::uint32_t first_piece = count < writes.size() ? writes[count].first_piece : static_cast<std::uint32_t>(pieces.size());
  writes.erase(writes.begin(), writes.begin() + count);
  pieces.erase(pieces.begin(), pieces.begin() + first_piece);
  for (kvferry_write& write : writes) write.first_piece -= first_piece;
}

std::uint64_t next_tag() {
  static std::uint64_t last = 0;
  return last += 1'000;
}

std::uint64_t submit(Side& from, kvferry_peer peer, Batch& batch, const Sides& sides) {
  std::uint64_t tag = batch.c().tag;
  Backend::Accepted accepted;
  drive(
      sides,
      [&] {
        accepted = ok(from->submit(peer, batch.c()));
        if (accepted.all) return true;
        if (accepted.writes > 0) {
          batch.drop_front(accepted.writes);
          batch.tag(++tag);
        }
        return false;
      },
      "the window takes a batch");
  return tag;
}

kvferry_event run(Side& from, kvferry_peer peer, Batch& batch, const Sides& sides) {
  const std::uint64_t first = batch.c().tag;
  const std::uint64_t last = submit(from, peer, batch, sides);
  drive(
      sides,
      [&] {
        for (std::uint64_t tag = first; tag <= last; ++tag) {
          if (from.terminal(tag) == nullptr) return false;
        }
        return true;
      },
      "a batch ends");
  for (std::uint64_t tag = first; tag < last; ++tag) {
    if (from.terminal(tag)->kind == KVFERRY_EVENT_BATCH_FAILED) return *from.terminal(tag);
  }
  return *from.terminal(last);
}

void run_done(Side& from, kvferry_peer peer, Batch& batch, const Sides& sides) {
  const kvferry_event event = run(from, peer, batch, sides);
  if (event.kind != KVFERRY_EVENT_BATCH_DONE) FAIL("the batch failed: " << event.error.text);
}

Pair::Pair(std::uint64_t bytes, const Settings& settings_a, const Settings& settings_b)
    : a(settings_a),
      b(settings_b),
      source(a, bytes, KVFERRY_ACCESS_LOCAL),
      target(b, bytes, KVFERRY_ACCESS_REMOTE_WRITE | KVFERRY_ACCESS_REMOTE_READ),
      peers(connect(a, b)),
      both{&a, &b} {
  share(b, {target.region()}, a, to_b());
  source.fill(1);
  target.clear(0);
}

Pair::~Pair() {
  a.destroy();
  b.destroy();
}

int open_files() { return entries_of("/proc/self/fd"); }
int threads() { return entries_of("/proc/self/task"); }

}  // namespace conformance
