// The UCX backend in real processes that are killed and frozen in the middle of a transfer.
//
// The oracle in every story: success said means every byte is right; failure said means that nothing changes any more after "quiesced" or "closed"; the side
// that lives learns it; a neighbour is not harmed; a restarted peer is served.
#include <catch2/catch.hpp>

#include <cstdlib>

#include "ucx_remote_side.h"

using namespace ucx_test;

namespace {

constexpr std::uint64_t kPoolBytes = 2u << 20;
constexpr std::uint64_t kRoom = 7;
constexpr std::uint64_t kHour = 3'600'000'000'000;

const char* plugin_path() {
  const char* path = std::getenv("KVFERRY_UCX_PLUGIN");
  if (path == nullptr) throw std::runtime_error("KVFERRY_UCX_PLUGIN names the plugin");
  return path;
}

/// Memory that the parent sees too, whatever becomes of the child that registers it.
class SharedPool {
 public:
  explicit SharedPool(std::uint8_t fill) {
    void* memory = mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap");
    bytes = static_cast<std::uint8_t*>(memory);
    std::memset(bytes, fill, kPoolBytes);
  }
  ~SharedPool() { munmap(bytes, kPoolBytes); }
  SharedPool(const SharedPool&) = delete;
  SharedPool& operator=(const SharedPool&) = delete;
  Blob copy() const { return {bytes, bytes + kPoolBytes}; }
  std::uint8_t* bytes;
};

void fill_pattern(SharedPool& pool, std::uint64_t salt) {
  for (std::uint64_t i = 0; i < kPoolBytes; ++i) pool.bytes[i] = static_cast<std::uint8_t>((i * 0x9e3779b9u + salt * 0x85ebca6bu) >> 13);
}

struct Lane {
  const char* name;
  const char* asked;
  bool mapped;
};
constexpr Lane kLanes[] = {{"shm", "shm", false}, {"tcp", "tcp", false}, {"mapped", "shm", true}};

Settings settings_of(const Lane& lane) { return {{"mapped", lane.mapped ? "auto" : "off"}}; }

/// A writer and a target in processes of their own, connected; the target's memory is a shared pool, or allocated by its backend on the mapped lane.
struct Story {
  explicit Story(const Lane& lane_, std::uint64_t target_lease_ns = 0) : lane(lane_), source(0), memory(0xee) {
    fill_pattern(source, 1);
    writer = std::make_unique<RemoteSide>(plugin_path(), settings_of(lane));
    target = std::make_unique<RemoteSide>(plugin_path(), settings_of(lane));
    source_region = writer->add(source.bytes, kPoolBytes, KVFERRY_ACCESS_LOCAL);
    register_target();
    join(target_lease_ns);
  }

  void register_target() {
    if (lane.mapped) {
      const Reply allocated = target->must({Op::allocate, "", kPoolBytes});
      target_region = allocated.a;
      allocated_at = allocated.b;
    } else {
      target_region = target->add(memory.bytes, kPoolBytes, KVFERRY_ACCESS_REMOTE_WRITE);
    }
  }
  void join(std::uint64_t target_lease_ns = 0) {
    const std::size_t writer_ups = writer->count(KVFERRY_EVENT_PEER_UP), target_ups = target->count(KVFERRY_EVENT_PEER_UP);
    to_target = writer->peer(lane.asked);
    to_writer = target->peer(lane.asked, target_lease_ns);
    const Blob writer_blob = writer->export_peer(to_target), target_blob = target->export_peer(to_writer);
    writer->connect(to_target, target_blob);
    target->connect(to_writer, writer_blob);
    (void)writer->wait_for(KVFERRY_EVENT_PEER_UP, "the writer is up", writer_ups + 1);
    (void)target->wait_for(KVFERRY_EVENT_PEER_UP, "the target is up", target_ups + 1);
    (void)writer->must({Op::import_regions, "", to_target}, target->export_region(target_region));
    const std::uint64_t limit = real_now_ns() + kGuardNs;
    while (lane.mapped && writer->must({Op::state, "", to_target}).b == 0 && real_now_ns() < limit) {
    }
    REQUIRE(std::string(writer->must({Op::state, "", to_target}).text) == lane.name);
  }
  void stream(std::uint64_t deadline_ns = 0) {
    const std::size_t before = writer->count(KVFERRY_EVENT_BATCH_DONE);
    writer->stream(to_target, source_region, target_region, kRoom, {source.bytes, kPoolBytes, deadline_ns});
    (void)writer->wait_for(KVFERRY_EVENT_BATCH_DONE, "the transfer is under way", before + 20);
  }
  Blob target_memory() { return lane.mapped ? target->read_memory(allocated_at, kPoolBytes) : memory.copy(); }

  Lane lane;
  SharedPool source, memory;
  std::unique_ptr<RemoteSide> writer, target;
  kvferry_region source_region = 0, target_region = 0;
  std::uint64_t allocated_at = 0;
  kvferry_peer to_target = 0, to_writer = 0;
};

/// Streams to a peer, stops, waits until everything has ended: then the target has what the source has.
void check_served(Story& story, kvferry_peer peer, kvferry_region region, std::uint64_t room, const std::function<Blob()>& landed) {
  fill_pattern(story.source, room);
  const std::size_t done = story.writer->count(KVFERRY_EVENT_BATCH_DONE);
  story.writer->stream(peer, story.source_region, region, room, {story.source.bytes, kPoolBytes, 0});
  (void)story.writer->wait_for(KVFERRY_EVENT_BATCH_DONE, "the peer is served", done + 2);
  story.writer->stop_stream();
  const std::uint64_t limit = real_now_ns() + kGuardNs;
  while (story.writer->must({Op::state, "", peer}).c != 0 && real_now_ns() < limit) {
  }
  const Blob now = landed();
  CHECK(std::equal(now.begin(), now.end(), story.source.bytes));
}

void check_served(Story& story, std::uint64_t room) {
  check_served(story, story.to_target, story.target_region, room, [&] { return story.target_memory(); });
}

std::size_t pages_changed(const Blob& before, const Blob& after) {
  std::size_t changed = 0;
  for (std::size_t at = 0; at < before.size(); at += kPageBytes) changed += std::memcmp(before.data() + at, after.data() + at, kPageBytes) != 0 ? 1 : 0;
  return changed;
}

/// Everything the writer was told is closed by exactly one event.
void check_batches_ended(RemoteSide& writer) {
  std::vector<std::uint64_t> tags;
  for (const kvferry_event& event : writer.events()) {
    if (event.kind == KVFERRY_EVENT_BATCH_DONE || event.kind == KVFERRY_EVENT_BATCH_FAILED) tags.push_back(event.tag);
  }
  std::sort(tags.begin(), tags.end());
  CHECK(std::adjacent_find(tags.begin(), tags.end()) == tags.end());
}

}  // namespace

TEST_CASE("a killed target is reported to the writer, its neighbour is served on, and so is its successor") {
  for (const Lane& lane : kLanes) {
    INFO("lane " << lane.name);
    Story story(lane);
    // A second target of the same writer.
    SharedPool other_memory(0x11);
    RemoteSide other(plugin_path(), settings_of(lane));
    const kvferry_region other_region = other.add(other_memory.bytes, kPoolBytes, KVFERRY_ACCESS_REMOTE_WRITE);
    const kvferry_peer to_other = story.writer->peer(lane.asked), from_other = other.peer(lane.asked);
    const Blob writer_blob = story.writer->export_peer(to_other), other_blob = other.export_peer(from_other);
    story.writer->connect(to_other, other_blob);
    other.connect(from_other, writer_blob);
    (void)story.writer->wait_for(KVFERRY_EVENT_PEER_UP, "the second peer is up", 2);
    (void)story.writer->must({Op::import_regions, "", to_other}, other.export_region(other_region));

    story.stream();
    story.target->kill();
    const kvferry_event lost = story.writer->wait_for(KVFERRY_EVENT_PEER_LOST, "the writer learns of the death");
    CHECK(lost.peer == story.to_target);
    CHECK(lost.error.code == KVFERRY_ERROR_PEER_LOST);
    CHECK(std::string(lost.error.text) != "");
    story.writer->stop_stream();
    (void)story.writer->must({Op::close, "", story.to_target, KVFERRY_CLOSE_FORCE});
    const kvferry_event closed = story.writer->wait_for(KVFERRY_EVENT_PEER_CLOSED, "the dead peer closes");
    CHECK(closed.error.code == 0);
    check_batches_ended(*story.writer);
    for (const kvferry_event& event : story.writer->events()) {
      if (event.kind == KVFERRY_EVENT_BATCH_FAILED) CHECK(event.error.code == KVFERRY_ERROR_PEER_LOST);
    }

    check_served(story, to_other, other_region, 99, [&] { return other_memory.copy(); });

    story.target = std::make_unique<RemoteSide>(plugin_path(), settings_of(lane));
    story.register_target();
    story.join();
    check_served(story, 2);
  }
}

TEST_CASE("a killed writer is reported to the target, nothing lands after the close, and its successor is served") {
  for (const Lane& lane : kLanes) {
    INFO("lane " << lane.name);
    Story story(lane);
    story.stream();
    story.writer->kill();
    const kvferry_event lost = story.target->wait_for(KVFERRY_EVENT_PEER_LOST, "the target learns of the death");
    CHECK(lost.error.code == KVFERRY_ERROR_PEER_LOST);
    (void)story.target->must({Op::close, "", story.to_writer, KVFERRY_CLOSE_FORCE});
    const kvferry_event closed = story.target->wait_for(KVFERRY_EVENT_PEER_CLOSED, "the dead peer closes");
    CHECK(closed.error.code == 0);
    const Blob before = story.target_memory();
    for (int i = 0; i < 100; ++i) (void)story.target->events();
    CHECK(story.target_memory() == before);

    story.writer = std::make_unique<RemoteSide>(plugin_path(), settings_of(lane));
    story.source_region = story.writer->add(story.source.bytes, kPoolBytes, KVFERRY_ACCESS_LOCAL);
    story.join();
    check_served(story, 3);
  }
}

TEST_CASE("batches to a frozen target end at their deadline, its room is quiesced and its peer closed without it") {
  for (const Lane& lane : kLanes) {
    INFO("lane " << lane.name);
    Story story(lane);
    story.stream(real_now_ns() + kHour);
    story.target->freeze();
    story.writer->stop_stream();
    story.writer->skip_clock(2 * kHour);
    const kvferry_event failed = story.writer->wait_for(KVFERRY_EVENT_BATCH_FAILED, "the deadline ends what is in flight");
    CHECK(failed.error.code == KVFERRY_ERROR_TIMEOUT);
    (void)story.writer->must({Op::cancel, "", story.to_target, kRoom, 1});
    (void)story.writer->wait_for(KVFERRY_EVENT_INITIATOR_QUIESCED, "the canceled room is quiesced");
    (void)story.writer->must({Op::close, "", story.to_target, KVFERRY_CLOSE_FORCE});
    CHECK(story.writer->wait_for(KVFERRY_EVENT_PEER_CLOSED, "the peer closes").error.code == 0);
    check_batches_ended(*story.writer);
    story.target->thaw();
    (void)story.target->wait_for(KVFERRY_EVENT_PEER_LOST, "the target learns of it when it goes on");
  }
}

TEST_CASE("a target that stood still longer than its lease applies nothing of what was queued") {
  for (const Lane& lane : kLanes) {
    if (lane.mapped) continue;  // nothing is queued there: a copy is in memory at once, and a frozen target's room is not fenced yet
    INFO("lane " << lane.name);
    Story story(lane, kHour);
    story.stream();
    story.target->freeze();
    story.writer->stop_stream();
    const Blob before = story.target_memory();
    story.target->skip_clock(2 * kHour);
    story.target->thaw();
    const kvferry_event lost = story.target->wait_for(KVFERRY_EVENT_PEER_LOST, "the target drops the peer");
    CHECK(std::string(lost.error.text).find("lease") != std::string::npos);
    // It may have been stopped in the middle of one message, which then is finished.
    const std::size_t pages_of_a_message = lane.name == std::string("tcp") ? 33 : 5;
    CHECK(pages_changed(before, story.target_memory()) <= pages_of_a_message);
    (void)story.writer->wait_for(KVFERRY_EVENT_PEER_LOST, "the writer learns of the drop");
  }
}

TEST_CASE("the room of a frozen writer is fenced, and nothing of it lands when the writer goes on") {
  for (const Lane& lane : kLanes) {
    INFO("lane " << lane.name);
    Story story(lane);
    story.stream();
    story.writer->freeze();
    (void)story.target->must({Op::fence, "", story.to_writer, kRoom, 1, 55, real_now_ns() + kHour});
    if (lane.mapped) {
      // It may stand in the middle of a copy: then there is no promise before the deadline.
      story.target->skip_clock(2 * kHour);
    }
    const kvferry_event fenced = story.target->wait_for(KVFERRY_EVENT_FENCED, "the room is fenced");
    CHECK(fenced.tag == 55);
    CHECK((fenced.error.code == 0 || (lane.mapped && fenced.error.code == KVFERRY_ERROR_CANNOT_PROMISE)));
    const bool promised = fenced.error.code == 0;
    const Blob before = story.target_memory();
    story.writer->thaw();
    (void)story.writer->wait_for(KVFERRY_EVENT_BATCH_FAILED, "the writer hears of the fence");
    for (const kvferry_event& event : story.writer->events()) {
      if (event.kind == KVFERRY_EVENT_BATCH_FAILED) CHECK(event.error.code == KVFERRY_ERROR_FENCED);
    }
    for (int i = 0; i < 100; ++i) (void)story.writer->events();
    if (promised) CHECK(story.target_memory() == before);
    // Another room of the same writer goes on.
    story.writer->stop_stream();
    check_served(story, 4);
  }
}
