// A backend in a child process, driven by the parent through a socket, so that it can be killed and frozen in the middle of its work.
//
//   parent (the test)                          child
//   RemoteSide::call(request) ── socket ─────► between two progress calls: the request, on its Side
//              ◄──────────────────────────────  reply; the events polled so far come with every reply
//
// The child progresses all the time, and, when told to, keeps writing one batch after the other ("stream"). Nothing sleeps to synchronise: the parent asks until
// it sees the event it waits for, under one generous guard.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "ucx_side.h"

namespace ucx_test {

enum class Op : std::uint32_t {
  peer, export_peer, connect, import_regions, add, allocate, export_regions, stream, cancel, fence, quiesce, close, events, read_memory, state,
};

struct Request {
  Op op{};
  char lane[8] = "";
  std::uint64_t a = 0, b = 0, c = 0, d = 0, e = 0;
};

constexpr std::uint64_t kPageBytes = 4096;

/// The rest of a stream request.
struct StreamMore {
  std::uint8_t* source = nullptr;
  std::uint64_t bytes = 0, deadline_ns = 0;
};

struct Reply {
  std::uint32_t failed = 0;
  std::int32_t code = 0;
  std::uint64_t a = 0, b = 0, c = 0;
  char text[448] = "";
};

/// Whole messages over a stream socket; false when the other end is gone.
inline bool send_all(int fd, const void* bytes, std::size_t length) {
  const auto* at = static_cast<const char*>(bytes);
  while (length > 0) {
    const ssize_t sent = ::send(fd, at, length, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    length -= static_cast<std::size_t>(sent);
  }
  return true;
}

inline bool receive_all(int fd, void* bytes, std::size_t length) {
  auto* at = static_cast<char*>(bytes);
  while (length > 0) {
    pollfd poller{fd, POLLIN, 0};
    if (::poll(&poller, 1, static_cast<int>(kGuardNs / 1'000'000)) != 1) return false;
    const ssize_t got = ::recv(fd, at, length, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    length -= static_cast<std::size_t>(got);
  }
  return true;
}

inline bool send_blob(int fd, const Blob& blob) {
  const std::uint64_t length = blob.size();
  return send_all(fd, &length, sizeof(length)) && send_all(fd, blob.data(), blob.size());
}

inline bool receive_blob(int fd, Blob& blob) {
  std::uint64_t length = 0;
  if (!receive_all(fd, &length, sizeof(length))) return false;
  blob.resize(length);
  return receive_all(fd, blob.data(), length);
}

/// The child's half.
class SideServer {
 public:
  SideServer(int fd, const kvferry_backend_table* table, const Settings& settings, std::atomic<std::uint64_t>* skip_ns)
      : fd_(fd), side_(table, settings, skip_ns) {}

  /// Until the parent is gone.
  void serve() {
    for (;;) {
      pollfd poller{fd_, POLLIN, 0};
      if (::poll(&poller, 1, 0) == 1) {
        Request request;
        Blob blob;
        if (!receive_all(fd_, &request, sizeof(request)) || !receive_blob(fd_, blob)) return;
        if (!answer(request, blob)) return;
      }
      const bool worked = side_.progress();
      if (streaming_) stream_more();
      if (!worked && !streaming_) side_.sleep_ms(1);
    }
  }

 private:
  bool answer(const Request& request, const Blob& blob) {
    Reply reply;
    Blob out;
    try {
      run(request, blob, reply, out);
    } catch (const Refused& refused) {
      reply.failed = 1;
      reply.code = refused.status;
      std::strncpy(reply.text, refused.what(), sizeof(reply.text) - 1);
    } catch (const std::exception& other) {
      reply.failed = 1;
      std::strncpy(reply.text, other.what(), sizeof(reply.text) - 1);
    }
    return send_all(fd_, &reply, sizeof(reply)) && send_blob(fd_, out);
  }

  void run(const Request& request, const Blob& blob, Reply& reply, Blob& out) {
    kvferry_error error = fresh_error();
    switch (request.op) {
      case Op::peer:
        reply.a = side_.peer(request.lane, request.a);
        return;
      case Op::export_peer:
        out = side_.export_peer(request.a);
        return;
      case Op::connect:
        return side_.connect(request.a, blob, request.b);
      case Op::import_regions:
        return side_.import_regions(request.a, blob);
      case Op::add:
        reply.a = side_.add(reinterpret_cast<void*>(request.a), request.b, static_cast<std::uint32_t>(request.c));
        return;
      case Op::allocate: {
        const auto [address, region] = side_.allocate(request.a);
        reply.a = region;
        reply.b = reinterpret_cast<std::uint64_t>(address);
        return;
      }
      case Op::export_regions:
        out = side_.export_regions({request.a});
        return;
      case Op::stream:
        streaming_ = request.a != 0;
        stream_ = request;
        std::memcpy(&stream_more_, blob.data(), sizeof(stream_more_));
        return;
      case Op::cancel:
        streaming_ = false;
        return check(side_.table().cancel(side_.get(), request.a, request.b, static_cast<std::uint32_t>(request.c), &error), error);
      case Op::fence:
        return check(side_.table().fence(side_.get(), request.a, request.b, static_cast<std::uint32_t>(request.c), request.d, request.e, &error), error);
      case Op::quiesce:
        return check(side_.table().region_quiesce(side_.get(), request.a, request.b, request.c, request.d, &error), error);
      case Op::close:
        streaming_ = false;
        return side_.close(request.a, static_cast<std::uint32_t>(request.b), request.c);
      case Op::events:
        out.resize(side_.events.size() * sizeof(kvferry_event));
        if (!out.empty()) std::memcpy(out.data(), side_.events.data(), out.size());
        side_.events.clear();
        return;
      case Op::read_memory:
        out.assign(reinterpret_cast<const std::uint8_t*>(request.a), reinterpret_cast<const std::uint8_t*>(request.a) + request.b);
        return;
      case Op::state: {
        const kvferry_peer_info info = side_.info(request.a);
        reply.a = info.state;
        reply.b = info.mapped_regions;
        reply.c = info.batches_in_flight;
        std::strncpy(reply.text, info.lane, sizeof(reply.text) - 1);
        return;
      }
    }
  }

  /// One batch over the whole source after the other, each with its own number in every page. What is refused ends the stream.
  void stream_more() {
    std::vector<kvferry_write> writes;
    std::vector<kvferry_piece> pieces;
    ++stream_tag_;
    for (std::uint64_t at = 0; at < stream_more_.bytes; at += kPageBytes) {
      std::memcpy(stream_more_.source + at, &stream_tag_, sizeof(stream_tag_));
      pieces.push_back({stream_.b, at, kPageBytes});
      writes.push_back({stream_.c, at, static_cast<std::uint32_t>(writes.size()), 1, KVFERRY_OP_WRITE, 0});
    }
    kvferry_batch batch{};
    batch.struct_size = sizeof(batch);
    batch.writes = writes.data();
    batch.pieces = pieces.data();
    batch.write_count = batch.piece_count = static_cast<std::uint32_t>(writes.size());
    batch.room = stream_.d;
    batch.generation = static_cast<std::uint32_t>(stream_.e);
    batch.tag = stream_tag_;
    batch.deadline_ns = stream_more_.deadline_ns;
    try {
      (void)side_.submit(stream_.a, batch);
    } catch (const Refused&) {
      streaming_ = false;
    }
  }

  int fd_;
  Side side_;
  bool streaming_ = false;
  Request stream_;
  StreamMore stream_more_;
  std::uint64_t stream_tag_ = 0;
};

/// The parent's half. The child ends with this object.
class RemoteSide {
 public:
  /// `before` runs in the child first.
  explicit RemoteSide(const char* plugin_path, const Settings& settings = {}, const std::function<void()>& before = {}) {
    void* page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::runtime_error("mmap");
    skip_ns_ = new (page) std::atomic<std::uint64_t>(0);
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      ::close(ends[0]);
      (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
      int status = 0;
      try {
        if (before) before();
        SideServer(ends[1], load_plugin_table(plugin_path), settings, skip_ns_).serve();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        status = 1;
      }
      _exit(status);
    }
    ::close(ends[1]);
    fd_ = ends[0];
  }
  ~RemoteSide() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      reap();
    }
    ::close(fd_);
    munmap(skip_ns_, kPageBytes);
  }
  RemoteSide(const RemoteSide&) = delete;
  RemoteSide& operator=(const RemoteSide&) = delete;

  pid_t pid() const { return pid_; }
  void kill() {
    ::kill(pid_, SIGKILL);
    reap();
  }
  /// Returns when the child stands still.
  void freeze() {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    while (waitpid(pid_, &status, WUNTRACED) == pid_ && !WIFSTOPPED(status)) {
    }
  }
  void thaw() { ::kill(pid_, SIGCONT); }
  /// Moves the child's clock on; works while it is frozen.
  void skip_clock(std::uint64_t ns) { skip_ns_->fetch_add(ns); }

  Reply call(const Request& request, const Blob& blob = {}, Blob* out = nullptr) {
    Reply reply;
    Blob received;
    if (!send_all(fd_, &request, sizeof(request)) || !send_blob(fd_, blob) || !receive_all(fd_, &reply, sizeof(reply)) || !receive_blob(fd_, received)) {
      throw std::runtime_error("the child does not answer");
    }
    if (out != nullptr) *out = std::move(received);
    return reply;
  }
  Reply must(const Request& request, const Blob& blob = {}, Blob* out = nullptr) {
    const Reply reply = call(request, blob, out);
    if (reply.failed != 0) throw std::runtime_error(reply.text);
    return reply;
  }

  kvferry_peer peer(const char* lane, std::uint64_t lease_ns = 0) {
    Request request{Op::peer};
    std::strncpy(request.lane, lane, sizeof(request.lane) - 1);
    request.a = lease_ns;
    return must(request).a;
  }
  Blob export_peer(kvferry_peer peer) {
    Blob out;
    (void)must({Op::export_peer, "", peer}, {}, &out);
    return out;
  }
  void connect(kvferry_peer peer, const Blob& blob, std::uint64_t deadline_ns = 0) { (void)must({Op::connect, "", peer, deadline_ns}, blob); }
  kvferry_region add(void* address, std::uint64_t length, std::uint32_t access) {
    return must({Op::add, "", reinterpret_cast<std::uint64_t>(address), length, access}).a;
  }
  Blob export_region(kvferry_region region) {
    Blob out;
    (void)must({Op::export_regions, "", region}, {}, &out);
    return out;
  }
  void stream(kvferry_peer peer, kvferry_region source, kvferry_region target, std::uint64_t room, const StreamMore& more) {
    Blob blob(sizeof(more));
    std::memcpy(blob.data(), &more, sizeof(more));
    (void)must({Op::stream, "", peer, source, target, room, 1}, blob);
  }
  void stop_stream() { (void)must({Op::stream}, Blob(sizeof(StreamMore))); }
  Blob read_memory(std::uint64_t address, std::uint64_t length) {
    Blob out;
    (void)must({Op::read_memory, "", address, length}, {}, &out);
    return out;
  }

  /// Events so far, with those taken now.
  const std::vector<kvferry_event>& events() {
    Blob out;
    (void)must({Op::events}, {}, &out);
    const std::size_t count = out.size() / sizeof(kvferry_event), before = events_.size();
    events_.resize(before + count);
    if (count > 0) std::memcpy(events_.data() + before, out.data(), out.size());
    return events_;
  }
  std::size_t count(std::uint32_t kind) {
    const auto& all = events();
    return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [&](const kvferry_event& event) { return event.kind == kind; }));
  }
  /// Waits for the `nth` event of the kind.
  kvferry_event wait_for(std::uint32_t kind, const char* what, std::size_t nth = 1) {
    const std::uint64_t limit = real_now_ns() + kGuardNs;
    while (real_now_ns() < limit) {
      std::size_t seen = 0;
      for (const kvferry_event& event : events()) {
        if (event.kind == kind && ++seen == nth) return event;
      }
    }
    throw std::runtime_error(std::string("does not happen: ") + what);
  }

 private:
  void reap() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }
  pid_t pid_ = -1;
  int fd_ = -1;
  std::atomic<std::uint64_t>* skip_ns_ = nullptr;
  std::vector<kvferry_event> events_;
};

}  // namespace ucx_test
