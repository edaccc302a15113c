// The UCX backend over the double of UCX: what the real library does rarely, from seeds, and each of its calls failing once.
//
// The oracle: success reported means that all bytes are right; failure reported means that after "quiesced" and "fenced" nothing changes any more. Every
// batch ends with exactly one event, every peer closes, and nothing of UCX is left over.
#include <catch2/catch.hpp>

#include <map>
#include <random>
#include <set>
#include <sstream>

#include "support/ucx_double.h"
#include "ucx_side.h"

extern "C" const kvferry_backend_table* kvferry_backend_entry(const kvferry_host* host, char* reason, uint32_t reason_capacity);

using namespace ucx_test;

namespace {

constexpr std::uint64_t kPool = 512 * 1024;
constexpr std::uint64_t kHour = 3'600'000'000'000;
constexpr std::uint64_t kRoom = 3;

const kvferry_backend_table* table() {
  static TestHost host;
  static const kvferry_backend_table* const the_table = kvferry_backend_entry(&host.table, nullptr, 0);
  return the_table;
}

struct PlannedBatch {
  std::vector<kvferry_write> writes;
  std::vector<kvferry_piece> pieces;
  bool notify = false;
};

/// One pair of sides and what they move: every byte of the target belongs to at most one write of one batch.
class Scene {
 public:
  Scene(std::uint64_t seed, const char* lane, bool mapped) : random_(seed), lane_(lane), mapped_(mapped), source_(kPool), plain_target_(kPool, 0xee) {
    for (auto& byte : source_) byte = static_cast<std::uint8_t>(random_());
  }

  /// Throws what was refused on the way, with the oracle already asked.
  void run() {
    a_ = std::make_unique<Side>(table(), Settings{{"mapped", mapped_ ? "auto" : "off"}, {"shm_segment_bytes", "8192"}, {"tcp_segment_bytes", "16384"}});
    b_ = std::make_unique<Side>(table(), Settings{{"mapped", mapped_ ? "auto" : "off"}, {"shm_segment_bytes", "8192"}, {"tcp_segment_bytes", "16384"}});
    source_region_ = a_->add(source_.data(), kPool, KVFERRY_ACCESS_LOCAL);
    target_ = plain_target_.data();
    if (mapped_) {
      std::tie(target_, target_region_) = b_->allocate(kPool);
      std::memset(target_, 0xee, kPool);
    } else {
      target_region_ = b_->add(target_, kPool);
    }
    to_b_ = a_->peer(lane_);
    to_a_ = b_->peer(lane_);
    const Blob a_blob = a_->export_peer(to_b_), b_blob = b_->export_peer(to_a_);
    a_->connect(to_b_, b_blob, real_now_ns() + kHour);
    b_->connect(to_a_, a_blob, real_now_ns() + kHour);
    connected_ = true;
    steps(200);
    a_->import_regions(to_b_, b_->export_regions({target_region_}));
    steps(20);
    plan();
    submit_all();
    steps(3000);
  }

  /// Everything ends now, whatever has happened; then nothing may change any more.
  void finish() {
    if (!connected_) return;
    expire();
    const bool quiesced = quiesce();
    check_done();
    if (quiesced) check_quiet();
    close_both();
  }

  std::size_t done() const { return a_ == nullptr ? 0 : a_->count(KVFERRY_EVENT_BATCH_DONE); }
  std::size_t failed() const { return a_ == nullptr ? 0 : a_->count(KVFERRY_EVENT_BATCH_FAILED); }
  std::size_t batches() const { return tags_.size(); }
  Side& a() { return *a_; }
  Side& b() { return *b_; }
  std::string all_texts() const {
    std::string all;
    for (const Side* side : {a_.get(), b_.get()}) {
      if (side == nullptr) continue;
      for (const auto& event : side->events) all += std::string(event.error.text) + "\n";
      all += side->host.all_lines();
    }
    return all;
  }

 private:
  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      (void)a_->progress();
      (void)b_->progress();
      if (i % 16 == 0) a_->sleep_ms(0), b_->sleep_ms(0);
    }
  }

  void plan() {
    std::uint64_t at = 0;
    while (at < kPool) {
      PlannedBatch batch;
      const std::uint64_t writes = 1 + random_() % 12;
      for (std::uint64_t i = 0; i < writes && at < kPool; ++i) {
        const std::uint64_t longest = random_() % 8 == 0 ? 40'000 : 3'000;
        const std::uint64_t length = std::min<std::uint64_t>(1 + random_() % longest, kPool - at);
        kvferry_write write{target_region_, at, static_cast<std::uint32_t>(batch.pieces.size()), 0, KVFERRY_OP_WRITE, 0};
        std::uint64_t left = length;
        while (left > 0 && write.piece_count < 8) {
          const std::uint64_t part = write.piece_count == 7 ? left : 1 + random_() % left;
          batch.pieces.push_back({source_region_, at + (length - left), part});
          left -= part;
          ++write.piece_count;
        }
        batch.writes.push_back(write);
        at += length + random_() % 100;  // the gaps must stay as they are
      }
      batch.notify = random_() % 3 == 0;
      plan_.push_back(std::move(batch));
    }
  }

  void submit_all() {
    for (const PlannedBatch& planned : plan_) {
      std::size_t taken = 0;
      for (int tries = 0; taken < planned.writes.size() && tries < 200; ++tries) {
        std::vector<kvferry_write> writes(planned.writes.begin() + static_cast<std::ptrdiff_t>(taken), planned.writes.end());
        kvferry_batch batch{};
        batch.struct_size = sizeof(batch);
        batch.writes = writes.data();
        batch.pieces = planned.pieces.data();
        batch.write_count = static_cast<std::uint32_t>(writes.size());
        batch.piece_count = static_cast<std::uint32_t>(planned.pieces.size());
        batch.room = batch.notification.room = kRoom;
        batch.generation = batch.notification.generation = 1;
        batch.tag = ++last_tag_;
        batch.deadline_ns = real_now_ns() + kHour;
        if (planned.notify) batch.flags = KVFERRY_BATCH_NOTIFY;
        const std::uint32_t accepted = a_->submit(to_b_, batch);
        if (accepted > 0) {
          const auto begin = planned.writes.begin() + static_cast<std::ptrdiff_t>(taken);
          tags_[last_tag_] = {begin, begin + accepted};
        }
        taken += accepted;
        (void)a_->progress();
        if (random_() % 2 == 0) (void)b_->progress();
      }
    }
  }

  /// What is still open ends at its deadline.
  void expire() {
    a_->host.own_skip_ns = 2 * kHour;
    steps(10);
    std::set<std::uint64_t> ended;
    for (const kvferry_event& event : a_->events) {
      if (event.kind != KVFERRY_EVENT_BATCH_DONE && event.kind != KVFERRY_EVENT_BATCH_FAILED) continue;
      if (!ended.insert(event.tag).second) FAIL("batch " << event.tag << " ended twice");
    }
    for (const auto& [tag, writes] : tags_) {
      if (ended.count(tag) == 0) FAIL("batch " << tag << " never ended");
    }
  }

  bool quiesce() {
    if (a_->find(KVFERRY_EVENT_PEER_CLOSED, to_b_) != nullptr || b_->find(KVFERRY_EVENT_PEER_CLOSED, to_a_) != nullptr) return false;
    kvferry_error error = fresh_error();
    check(table()->cancel(a_->get(), to_b_, kRoom, 1, &error), error);
    check(table()->fence(b_->get(), to_a_, kRoom, 1, 9, 0, &error), error);
    steps(10);
    if (a_->count(KVFERRY_EVENT_INITIATOR_QUIESCED) != 1) FAIL("the initiator is not quiesced");
    if (b_->find(KVFERRY_EVENT_FENCED, 9) == nullptr) FAIL("the room is not fenced");
    return true;
  }

  void check_done() const {
    for (const kvferry_event& event : a_->events) {
      if (event.kind != KVFERRY_EVENT_BATCH_DONE) continue;
      for (const kvferry_write& write : tags_.at(event.tag)) {
        // The pieces of a write follow each other in the source, at the offset of the target.
        const std::uint64_t length = length_of(write);
        if (std::memcmp(target_ + write.remote_offset, source_.data() + write.remote_offset, length) != 0) {
          FAIL("batch " << event.tag << " is done and " << length << " bytes at " << write.remote_offset << " are wrong");
        }
      }
    }
  }
  std::uint64_t length_of(const kvferry_write& write) const {
    for (const PlannedBatch& planned : plan_) {
      for (const kvferry_write& candidate : planned.writes) {
        if (candidate.remote_offset != write.remote_offset) continue;
        std::uint64_t length = 0;
        for (std::uint32_t i = 0; i < candidate.piece_count; ++i) length += planned.pieces[candidate.first_piece + i].length;
        return length;
      }
    }
    return 0;
  }

  void check_quiet() {
    const Blob before(target_, target_ + kPool);
    for (auto& byte : source_) byte = static_cast<std::uint8_t>(byte ^ 0xff);  // a late read would show
    ucx_double::faults().hold_sends = false;
    steps(500);
    if (!std::equal(before.begin(), before.end(), target_)) FAIL("bytes landed after the room was quiesced and fenced");
    std::vector<bool> written(kPool, false);
    for (const PlannedBatch& planned : plan_) {
      for (const kvferry_write& write : planned.writes) {
        const std::uint64_t length = length_of(write);
        std::fill_n(written.begin() + static_cast<std::ptrdiff_t>(write.remote_offset), length, true);
      }
    }
    for (std::uint64_t i = 0; i < kPool; ++i) {
      if (!written[i] && target_[i] != 0xee) FAIL("the byte at " << i << " belongs to no write and has changed");
    }
  }

  void close_both() {
    a_->close(to_b_, KVFERRY_CLOSE_FORCE);
    b_->close(to_a_, KVFERRY_CLOSE_DRAIN, 1);
    steps(20);
    if (a_->find(KVFERRY_EVENT_PEER_CLOSED, to_b_) == nullptr || b_->find(KVFERRY_EVENT_PEER_CLOSED, to_a_) == nullptr) FAIL("a peer does not close");
    a_->destroy(false);
    b_->destroy(false);
  }

  std::mt19937_64 random_;
  const char* lane_;
  bool mapped_;
  std::vector<std::uint8_t> source_, plain_target_;
  std::uint8_t* target_ = nullptr;
  std::unique_ptr<Side> a_, b_;
  kvferry_region source_region_ = 0, target_region_ = 0;
  kvferry_peer to_b_ = 0, to_a_ = 0;
  bool connected_ = false;
  std::vector<PlannedBatch> plan_;
  std::map<std::uint64_t, std::vector<kvferry_write>> tags_;
  std::uint64_t last_tag_ = 0;
};

struct LaneCase {
  const char* name;
  const char* lane;
  bool mapped;
};
constexpr LaneCase kLanes[] = {{"shm", "shm", false}, {"tcp", "tcp", false}, {"mapped", "shm", true}};

void check_nothing_left() {
  const ucx_double::Live live = ucx_double::live();
  if (live.total() != 0) {
    FAIL("left over: " << live.configurations << " configurations, " << live.contexts << " contexts, " << live.workers << " workers, " << live.endpoints
                       << " endpoints, " << live.requests << " requests, " << live.addresses << " addresses");
  }
}

std::uint64_t first_seed() {
  const char* text = std::getenv("KVFERRY_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

}  // namespace

TEST_CASE("without faults everything is done, on every lane") {
  for (const LaneCase& lane : kLanes) {
    INFO("lane " << lane.name);
    ucx_double::reset(1);
    {
      Scene scene(1, lane.lane, lane.mapped);
      scene.run();
      scene.finish();
      CHECK(scene.failed() == 0);
      CHECK(scene.done() == scene.batches());
      CHECK(scene.batches() >= 10);
    }
    check_nothing_left();
  }
}

TEST_CASE("whatever UCX does from a seed, done means right and quiesced means quiet") {
  constexpr std::uint64_t kSeeds = 120;
  std::size_t done = 0, failed = 0;
  for (std::uint64_t seed = first_seed(); seed < first_seed() + kSeeds; ++seed) {
    const LaneCase& lane = kLanes[seed % std::size(kLanes)];
    INFO("seed " << seed << ", lane " << lane.name << "; again with KVFERRY_TEST_SEED=" << seed);
    ucx_double::reset(seed);
    std::mt19937_64 random(seed * 31);
    ucx_double::Faults& faults = ucx_double::faults();
    faults.pending_per_mille = static_cast<std::uint32_t>(random() % 900);
    faults.reorder_per_mille = random() % 2 == 0 ? static_cast<std::uint32_t>(random() % 500) : 0;
    faults.busy_arms = static_cast<std::uint32_t>(random() % 20);
    faults.error_within_progress = random() % 2 == 0;
    switch (random() % 5) {
      case 0:
        faults.lose_after = 5 + random() % 60;
        break;
      case 1:
        faults.break_after = 5 + random() % 60;
        break;
      case 2:
        faults.slow_close = true;
        break;
      default:
        break;
    }
    {
      Scene scene(seed, lane.lane, lane.mapped);
      try {
        scene.run();
      } catch (const Refused& refused) {  // a submit after the peer was lost
        if (refused.status != KVFERRY_ERROR_PEER_LOST) FAIL("refused: " << refused.what());
      }
      if (random() % 3 == 0) faults.hold_sends = true;
      scene.finish();
      done += scene.done();
      failed += scene.failed();
    }
    check_nothing_left();
  }
  // Both halves of the oracle were asked.
  CHECK(done > 500);
  CHECK(failed > 100);
}

TEST_CASE("each call of UCX fails once, every time it is made, and the failure is told and leaves nothing behind") {
  const char* const calls[] = {"ucp_config_read",   "ucp_config_modify",  "ucp_init",       "ucp_worker_create", "ucp_worker_query", "ucp_worker_get_address",
                               "ucp_worker_get_efd", "ucp_worker_set_am_recv_handler", "ucp_ep_create", "ucp_am_send_nbx", "ucp_worker_arm", "ucp_ep_close_nbx"};
  for (const LaneCase& lane : kLanes) {
    for (const char* call : calls) {
      for (std::uint64_t nth = 1;; nth = nth < 40 ? nth + 1 : nth * 2) {
        ucx_double::reset(nth);
        ucx_double::faults().fail_call = call;
        ucx_double::faults().fail_nth = nth;
        INFO("lane " << lane.name << ", call " << nth << " of " << call);
        bool reached = false, told = false;
        {
          Scene scene(5, lane.lane, lane.mapped);
          try {
            scene.run();
          } catch (const Refused& refused) {
            told = std::string(refused.what()).find(call) != std::string::npos || refused.status == KVFERRY_ERROR_PEER_LOST;
            if (!told) FAIL("refused without naming the call: " << refused.what());
          }
          scene.finish();
          reached = ucx_double::calls(call) >= nth;
          const bool harmless = std::string(call) == "ucp_ep_close_nbx" || std::string(call) == "ucp_worker_arm";
          if (reached && !told && !harmless && scene.all_texts().find(call) == std::string::npos) FAIL("nobody was told");
        }
        check_nothing_left();
        if (!reached) break;
      }
    }
  }
}

TEST_CASE("a wire-up that fails ends in peer lost") {
  ucx_double::reset(1);
  ucx_double::faults().fail_wire_up = true;
  {
    Side a(table()), b(table());
    const kvferry_peer to_b = a.peer("tcp"), to_a = b.peer("tcp");
    const Blob a_blob = a.export_peer(to_b), b_blob = b.export_peer(to_a);
    a.connect(to_b, b_blob);
    b.connect(to_a, a_blob);
    run_until({&a, &b}, [&] { return a.find(KVFERRY_EVENT_PEER_LOST, to_b) != nullptr && b.find(KVFERRY_EVENT_PEER_LOST, to_a) != nullptr; });
    CHECK(std::string(a.find(KVFERRY_EVENT_PEER_LOST, to_b)->error.text).find("Connection reset") != std::string::npos);
    a.close(to_b, KVFERRY_CLOSE_FORCE);
    b.close(to_a, KVFERRY_CLOSE_FORCE);
    run_until({&a, &b}, [&] { return a.find(KVFERRY_EVENT_PEER_CLOSED, to_b) != nullptr && b.find(KVFERRY_EVENT_PEER_CLOSED, to_a) != nullptr; });
  }
  check_nothing_left();
}

TEST_CASE("a TCP neighbour whose sockets are gone is not handed to UCX at all") {
  ucx_double::reset(1);
  {
    Side a(table());
    Blob b_blob;
    {
      Side b(table());
      b_blob = b.export_peer(b.peer("tcp"));
    }
    const kvferry_peer to_b = a.peer("tcp");
    a.connect(to_b, b_blob);
    run_until({&a}, [&] { return a.find(KVFERRY_EVENT_PEER_LOST, to_b) != nullptr; });
    CHECK(std::string(a.find(KVFERRY_EVENT_PEER_LOST, to_b)->error.text).find("Connection refused") != std::string::npos);
    CHECK(ucx_double::calls("ucp_ep_create") == 0);
  }
  check_nothing_left();
}

TEST_CASE("a UCX that does not take the configuration is refused with its own words") {
  ucx_double::reset(1);
  ucx_double::faults().reject_configuration = true;
  {
    Side a(table());
    kvferry_error error = fresh_error();
    std::uint64_t bytes = 0;
    CHECK(table()->peer_export(a.get(), a.peer("shm"), nullptr, 0, &bytes, &error) == KVFERRY_ERROR_VERSION);
    CHECK(std::string(error.text).find("invalid configurations: MM_SEG_SIZE=16384") != std::string::npos);
  }
  check_nothing_left();
}

TEST_CASE("a close that UCX never finishes does not keep the peer") {
  ucx_double::reset(1);
  ucx_double::faults().slow_close = true;
  {
    Side a(table()), b(table());
    const auto [to_b, to_a] = connect_sides(a, b, "tcp");
    a.close(to_b, KVFERRY_CLOSE_FORCE);
    (void)a.progress();
    CHECK(a.find(KVFERRY_EVENT_PEER_CLOSED, to_b) != nullptr);
    run_until({&a, &b}, [&, peer = to_a] { return b.find(KVFERRY_EVENT_PEER_LOST, peer) != nullptr; });
  }
  check_nothing_left();
}
