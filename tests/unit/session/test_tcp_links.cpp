// TCP links on the loopback interface. Everything runs in this thread: the io_context is run until a condition holds, under one generous guard.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "support/counted_new.h"
#include "frames.h"
#include "kvferry/tcp_links.h"

namespace kvferry::test {
namespace {

namespace asio = boost::asio;
using namespace session;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kGuard{60};

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch()).count());
}

/// Runs handlers until `done`; looks again at least every few milliseconds, because some conditions are about plain sockets.
void run_until(asio::io_context& context, const std::string& what, const std::function<bool()>& done) {
  const auto work = asio::make_work_guard(context);
  const auto end = steady_clock::now() + kGuard;
  while (!done()) {
    if (steady_clock::now() > end) FAIL("never happened: " << what);
    context.restart();
    context.run_one_for(std::chrono::milliseconds(2));
  }
}

std::set<int> open_descriptors() {
  std::set<int> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) open.insert(std::stoi(entry.path().filename()));
  std::erase_if(open, [](int fd) { return ::fcntl(fd, F_GETFD) < 0; });  // the one of the iteration itself
  return open;
}

/// One side: links and everything they brought.
struct Side {
  explicit Side(asio::io_context& context, TcpLinks::Options options = {}) : links(with_log(*this, std::move(options), context)) {
    TcpLinks::Receiver receiver;
    receiver.accepted = [this](std::string_view remote) {
      check_not_inside();
      accepted.emplace_back(next_id++, remote);
      return LinkId{accepted.back().first};
    };
    receiver.opened = [this](LinkId link) {
      check_not_inside();
      opened.push_back(link);
      if (on_opened) on_opened(link);
    };
    receiver.message = [this](LinkId link, Message message) {
      check_not_inside();
      if (messages_kept) messages[link].push_back(std::move(message));
      ++messages_count;
      if (on_message) on_message(link);
    };
    receiver.lost = [this](LinkId link, Error error) {
      check_not_inside();
      if (!lost.emplace(link, std::move(error)).second) lost_twice = true;
    };
    links.set_receiver(std::move(receiver));
  }

  HostPort listen(const std::string& host) {
    const auto bound = links.listen({host, 0});
    if (!bound) FAIL(bound.error().text);
    return *bound;
  }
  LinkId connect(const std::string& address, std::uint64_t deadline_ns = 0) {
    const LinkId link{next_id++};
    inside([&] { links.connect(link, address, deadline_ns); });
    return link;
  }
  LinkId connect(const HostPort& address) { return connect(to_string(address)); }
  void send(LinkId link, const Message& message) {
    inside([&] { links.send(link, message); });
  }
  void close(LinkId link) {
    inside([&] { links.close(link); });
  }
  std::string lost_text(LinkId link) const { return lost.contains(link) ? lost.at(link).text : "not lost"; }

  std::uint64_t next_id = 1;
  std::vector<std::pair<std::uint64_t, std::string>> accepted;
  std::vector<LinkId> opened;
  std::map<LinkId, std::vector<Message>> messages;
  std::size_t messages_count = 0;
  bool messages_kept = true;
  std::map<LinkId, Error> lost;
  std::vector<std::string> logged;
  bool lost_twice = false, reentered = false;
  std::function<void(LinkId)> on_opened, on_message;
  TcpLinks links;

 private:
  static TcpLinks with_log(Side& self, TcpLinks::Options options, asio::io_context& context) {
    options.log = [&self](LogLevel, std::string_view, std::string_view text) { self.logged.emplace_back(text); };
    return TcpLinks(context, std::move(options));
  }
  void inside(const std::function<void()>& call) {
    ++depth_;
    call();
    --depth_;
  }
  void check_not_inside() {
    if (depth_ != 0) reentered = true;
  }
  int depth_ = 0;
};

/// A plain socket: somebody who does not use our code.
class Plain {
 public:
  explicit Plain(int fd = -1) : fd_(fd) {}
  Plain(Plain&& other) noexcept : received(std::move(other.received)), ended(other.ended), fd_(std::exchange(other.fd_, -1)) {}
  Plain& operator=(Plain&&) = delete;
  ~Plain() { close(); }

  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  static Plain connect(std::uint16_t port) {
    Plain plain(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(port);
    REQUIRE(::connect(plain.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    return plain;
  }
  static Plain listen(int backlog) {
    Plain plain(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(0);
    REQUIRE(::bind(plain.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(plain.fd_, backlog) == 0);
    return plain;
  }
  int descriptor() const { return fd_; }
  std::uint16_t port() const {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    REQUIRE(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    return ntohs(address.sin_port);
  }

  void write(std::span<const std::uint8_t> bytes) { REQUIRE(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size())); }
  void write(std::string_view text) { write({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}); }
  void write(const Message& message, std::uint64_t sequence) {
    Bytes bytes;
    REQUIRE(encode(message, sequence, bytes));
    write(bytes);
  }
  /// Takes what is there; true once the other side has ended.
  bool at_end() {
    std::uint8_t bytes[4096];
    for (ssize_t count = 1; !ended && count > 0;) {
      count = ::recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
      if (count > 0) received.insert(received.end(), bytes, bytes + count);
      ended = count == 0 || (count < 0 && errno != EAGAIN);
    }
    return ended;
  }
  void end_output() { REQUIRE(::shutdown(fd_, SHUT_WR) == 0); }
  /// The other side gets a reset.
  void reset() {
    const linger now{1, 0};
    REQUIRE(::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    close();
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  Bytes received;
  bool ended = false;

 private:
  int fd_;
};

bool has_ipv6() {
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool bound = fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (fd >= 0) ::close(fd);
  return bound;
}

/// Two sides with one link between them.
struct Pair {
  explicit Pair(asio::io_context& context_, const std::string& host = "127.0.0.1", TcpLinks::Options options = {})
      : context(context_), client(context_, options), server(context_, options) {
    address = server.listen(host);
    client_link = client.connect(address);
    run_until(context, "the link is up on both sides", [this] { return client.opened.size() == 1 && server.accepted.size() == 1; });
    server_link = LinkId{server.accepted[0].first};
  }
  asio::io_context& context;
  Side client, server;
  HostPort address;
  LinkId client_link{}, server_link{};
};

/// A server and a plain client that said nothing yet.
struct PlainPair {
  explicit PlainPair(asio::io_context& context_, TcpLinks::Options options = {})
      : context(context_), server(context_, std::move(options)), plain(Plain::connect(server.listen("127.0.0.1").port)) {
    run_until(context, "the connection is accepted", [this] { return server.accepted.size() == 1; });
    link = LinkId{server.accepted[0].first};
  }
  const std::string& remote() const { return server.accepted[0].second; }
  void run_until_lost() {
    run_until(context, "the link is lost", [this] { return server.lost.contains(link); });
  }
  asio::io_context& context;
  Side server;
  Plain plain;
  LinkId link{};
};

Message message_of_bytes(std::size_t bytes_count, std::uint8_t fill = 1) { return Extension{1, false, Bytes(bytes_count, fill)}; }

// ---- addresses

TEST_CASE("addresses are split into host and port, or refused by the part that is wrong") {
  const auto good = [](const std::string& text, const std::string& host, std::uint16_t port) {
    const auto parsed = parse_host_port(text);
    if (!parsed) FAIL(parsed.error().text);
    CHECK(parsed->host == host);
    CHECK(parsed->port == port);
    CHECK(to_string(*parsed) == text);
  };
  good("127.0.0.1:0", "127.0.0.1", 0);
  good("[::1]:4000", "::1", 4000);
  good("[fe80::1%1]:4000", "fe80::1%1", 4000);
  good("host:1", "host", 1);
  good("prefill-0.pod.svc:65535", "prefill-0.pod.svc", 65535);

  const auto bad = [](const std::string& text, const std::string& expected) {
    const auto parsed = parse_host_port(text);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().text == expected);
    CHECK(parsed.error().code == ErrorCode::invalid_argument);
  };
  bad("", "address \"\": host is missing");
  bad(":80", "address \":80\": host is missing");
  bad("host", "address \"host\": port is missing");
  bad("host:", "address \"host:\": port is missing");
  bad("host:http", "address \"host:http\": port \"http\" is not a number from 0 to 65535");
  bad("host:-1", "address \"host:-1\": port \"-1\" is not a number from 0 to 65535");
  bad("host:+1", "address \"host:+1\": port \"+1\" is not a number from 0 to 65535");
  bad("host: 1", "address \"host: 1\": port \" 1\" is not a number from 0 to 65535");
  bad("host:1 ", "address \"host:1 \": port \"1 \" is not a number from 0 to 65535");
  bad("host:65536", "address \"host:65536\": port \"65536\" is not a number from 0 to 65535");
  bad("host:99999999999999999999", "address \"host:99999999999999999999\": port \"99999999999999999999\" is not a number from 0 to 65535");
  bad("::1:80", "address \"::1:80\": host is missing");
  bad("fe80::1:80", "address \"fe80::1:80\": port is not a number, and an IPv6 host needs brackets, as in [::1]:4000");
  bad("[::1]", "address \"[::1]\": port is missing");
  bad("[::1]80", "address \"[::1]80\": port is missing");
  bad("[::1:80", "address \"[::1:80\": host has no closing bracket");
  bad("[host]:80", "address \"[host]:80\": host in brackets is not an IPv6 address");
  bad("a\nb", "address \"a\\nb\": port is missing");
}

// ---- up, messages, order

TEST_CASE("messages arrive in order both ways over IPv4 and IPv6, on ports that were picked automatically") {
  const std::string host = GENERATE("127.0.0.1", "::1");
  if (host == "::1" && !has_ipv6()) {
    WARN("skipped: no IPv6 loopback address on this host");
    return;
  }
  asio::io_context context;
  Pair pair(context, host);
  CHECK(pair.address.host == host);
  CHECK(pair.address.port != 0);
  const auto remote = parse_host_port(pair.server.accepted[0].second);
  REQUIRE(remote);
  CHECK(remote->host == host);

  std::vector<Message> sent;
  for (const Sample& sample : samples()) {
    if (sample.type != 9) sent.push_back(sample.message);
  }
  std::mt19937_64 random(7);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    sent.push_back(Heartbeat{i});
    if (i % 100 == 0) sent.push_back(message_of_bytes(random() % (1u << 20), static_cast<std::uint8_t>(i)));
  }
  for (const Message& message : sent) {
    pair.client.send(pair.client_link, message);
    pair.server.send(pair.server_link, message);
  }
  run_until(context, "everything arrived", [&] {
    return pair.server.messages[pair.server_link].size() >= sent.size() && pair.client.messages[pair.client_link].size() >= sent.size();
  });
  CHECK(pair.server.messages[pair.server_link] == sent);
  CHECK(pair.client.messages[pair.client_link] == sent);
  CHECK((pair.client.lost.empty() && pair.server.lost.empty()));
}

TEST_CASE("what is sent before the link is up arrives once it is") {
  asio::io_context context;
  Side client(context), server(context);
  const LinkId link = client.connect(server.listen("127.0.0.1"));
  client.send(link, Heartbeat{1});
  client.send(link, Heartbeat{2});
  CHECK(client.opened.empty());
  run_until(context, "both arrived", [&] { return server.messages_count == 2; });
  CHECK(server.messages.begin()->second == std::vector<Message>{Heartbeat{1}, Heartbeat{2}});
}

TEST_CASE("a socket on all addresses takes IPv4 and IPv6 and names the real address of each") {
  if (!has_ipv6()) {
    WARN("skipped: no IPv6 loopback address on this host");
    return;
  }
  asio::io_context context;
  Side client(context), server(context);
  const HostPort bound = server.listen("::");
  CHECK(bound.host == "::");
  client.connect("127.0.0.1:" + std::to_string(bound.port));
  client.connect("[::1]:" + std::to_string(bound.port));
  run_until(context, "both are accepted", [&] { return server.accepted.size() == 2; });
  std::set<std::string> hosts;
  for (const auto& [id, remote] : server.accepted) hosts.insert(parse_host_port(remote)->host);
  CHECK(hosts == std::set<std::string>{"127.0.0.1", "::1"});
}

TEST_CASE("the links set what a control connection needs and leak no descriptor to child processes") {
  asio::io_context context;
  const auto before = open_descriptors();
  Pair pair(context);
  std::size_t connections = 0;
  for (const int fd : open_descriptors()) {
    if (before.contains(fd)) continue;
    INFO("descriptor " << fd);
    CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    ++connections;
    int no_delay = 0, keep_alive = 0;
    length = sizeof(int);
    REQUIRE(::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &length) == 0);
    REQUIRE(::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &keep_alive, &length) == 0);
    CHECK((no_delay != 0 && keep_alive != 0));
  }
  CHECK(connections == 2);
}

TEST_CASE("links without traffic run no handler at all") {
  asio::io_context context;
  Pair pair(context);
  pair.client.send(pair.client_link, Heartbeat{1});
  run_until(context, "the message arrived", [&] { return pair.server.messages_count == 1; });
  context.restart();
  while (context.poll() != 0) context.restart();
  for (int round = 0; round < 1000; ++round) {
    context.restart();
    if (context.poll() != 0) FAIL("a handler ran in round " << round);
  }
}

// ---- listening and connecting that fail

TEST_CASE("a port in use is refused with address, port and reason, and both keep working") {
  asio::io_context context;
  Side first(context), second(context);
  const HostPort bound = first.listen("127.0.0.1");
  const auto again = second.links.listen(bound);
  REQUIRE_FALSE(again);
  CHECK(again.error().code == ErrorCode::unavailable);
  CHECK(again.error().sys_errno == EADDRINUSE);
  CHECK(has(again.error().text, "listen on 127.0.0.1:" + std::to_string(bound.port) + ": "));
  CHECK(has(again.error().text, "address already in use (errno 98)"));
  CHECK(second.listen("127.0.0.1").port != bound.port);
}

TEST_CASE("a fixed port can be listened on again right after its connections ended") {
  asio::io_context context;
  HostPort bound;
  {
    Pair pair(context);
    bound = pair.address;
    pair.server.links.close_all();  // the side that ends first keeps the port in TIME_WAIT
    run_until(context, "the client sees the end", [&] { return pair.client.lost.size() == 1; });
  }
  Side restarted(context);
  const auto again = restarted.links.listen(bound);
  if (!again) FAIL(again.error().text);
  CHECK(again->port == bound.port);
}

TEST_CASE("an address that is not of this host is refused with its reason") {
  asio::io_context context;
  Side side(context);
  const auto bound = side.links.listen({"192.0.2.1", 0});  // reserved for documentation
  REQUIRE_FALSE(bound);
  CHECK(bound.error().text == "listen on 192.0.2.1:0: bind: cannot assign requested address (errno 99)");
}

TEST_CASE("a refused connection is lost with the address and the reason") {
  asio::io_context context;
  std::uint16_t port = 0;
  {
    const Plain taken = Plain::listen(1);
    port = taken.port();
  }
  Side client(context);
  const LinkId link = client.connect("127.0.0.1:" + std::to_string(port));
  run_until(context, "the link is lost", [&] { return client.lost.size() == 1; });
  const std::string address = "127.0.0.1:" + std::to_string(port);
  CHECK(client.lost_text(link) == "connect to " + address + ": " + address + " connection refused (errno 111)");
  CHECK(client.lost.at(link).code == ErrorCode::peer_lost);
  CHECK(client.lost.at(link).sys_errno == ECONNREFUSED);
  CHECK(client.opened.empty());
}

TEST_CASE("every address of a name is tried") {
  asio::io_context context;
  Side client(context), server(context);
  const HostPort bound = server.listen("127.0.0.1");
  client.connect("localhost:" + std::to_string(bound.port));  // usually ::1 first
  run_until(context, "the link is up", [&] { return client.opened.size() + client.lost.size() == 1; });
  CHECK(client.opened.size() == 1);
}

TEST_CASE("a name can be listened on, and the address told is the one bound") {
  asio::io_context context;
  Side client(context), server(context);
  const HostPort bound = server.listen("localhost");
  CHECK((bound.host == "127.0.0.1" || bound.host == "::1"));
  client.connect(bound);
  run_until(context, "the link is up", [&] { return client.opened.size() == 1; });
}

TEST_CASE("an address that names nobody is lost, not called") {
  asio::io_context context;
  Side client(context);
  const auto check = [&](const std::string& address, ErrorCode code, const std::string& expected) {
    const LinkId link = client.connect(address);
    CHECK_FALSE(client.lost.contains(link));  // told later, not from inside the call
    run_until(context, "the link is lost", [&] { return client.lost.contains(link); });
    CHECK(client.lost_text(link) == expected);
    CHECK(client.lost.at(link).code == code);
  };
  check("nonsense", ErrorCode::invalid_argument, "connect: address \"nonsense\": port is missing");
  check("127.0.0.1:0", ErrorCode::invalid_argument, "connect to 127.0.0.1:0: port 0 names nobody");
  const std::string too_long(300, 'x');  // no name server is asked for it
  const LinkId link = client.connect(too_long + ":1");
  run_until(context, "the link is lost", [&] { return client.lost.contains(link); });
  CHECK(has(client.lost_text(link), "connect to " + too_long + ":1: look up the name: "));
  CHECK(client.lost.at(link).code == ErrorCode::not_found);
  CHECK_FALSE(client.reentered);
}

TEST_CASE("connecting to somebody who never answers ends at the deadline, with the address") {
  asio::io_context context;
  // A full backlog: the kernel drops further calls without a word.
  Plain listener = Plain::listen(0);
  const Plain fills_it = Plain::connect(listener.port());
  Side client(context);
  const std::string address = "127.0.0.1:" + std::to_string(listener.port());
  const LinkId link = client.connect(address, now_ns() + 20'000'000);
  client.send(link, Heartbeat{1});
  run_until(context, "the link is lost", [&] { return client.lost.size() == 1; });
  CHECK(client.lost.at(link).code == ErrorCode::timeout);
  CHECK(has(client.lost_text(link), "connect to " + address + ": timed out, no answer in "));
  CHECK(client.opened.empty());
}

TEST_CASE("a deadline that has passed ends the call") {
  asio::io_context context;
  Plain listener = Plain::listen(0);
  const Plain fills_it = Plain::connect(listener.port());
  Side client(context);
  const LinkId link = client.connect("127.0.0.1:" + std::to_string(listener.port()), 1);
  run_until(context, "the link is lost", [&] { return client.lost.size() == 1; });
  CHECK(client.lost.at(link).code == ErrorCode::timeout);
}

TEST_CASE("a link can be closed while it connects, and is not reported") {
  asio::io_context context;
  Plain listener = Plain::listen(0);
  const Plain fills_it = Plain::connect(listener.port());
  Side client(context);
  client.listen("127.0.0.1");  // makes the io_context open its own descriptors
  const auto before = open_descriptors();
  const LinkId waiting = client.connect("127.0.0.1:" + std::to_string(listener.port()), now_ns() + 3'600'000'000'000);
  const LinkId wrong = client.connect("nonsense");
  client.close(waiting);
  client.close(wrong);
  client.close(LinkId{77});  // nobody
  CHECK(open_descriptors().size() == before.size());
  client.links.close_all();
  context.restart();
  context.run();  // nothing is left to wait for
  CHECK(client.lost.empty());
}

// ---- who is on the other side

TEST_CASE("another program on the port is one clear error and gets no answer") {
  asio::io_context context;
  PlainPair pair(context);
  pair.plain.write("GET / HTTP/1.1\r\nHost: example\r\n\r\n");
  pair.run_until_lost();
  CHECK(pair.server.lost_text(pair.link) == "input from " + pair.remote() + ": not a kvferry peer: first bytes \"GET / HTTP/1.1\\r\\n\" where \"KVFW\" was expected");
  run_until(context, "the connection is closed", [&] { return pair.plain.at_end(); });
  CHECK(pair.plain.received.empty());
  CHECK(pair.server.messages_count == 0);
}

TEST_CASE("ten megabytes of random bytes close the connection at the first ones") {
  asio::io_context context;
  PlainPair pair(context);
  std::mt19937_64 random(11);
  Bytes noise(10u << 20);
  for (auto& byte : noise) byte = static_cast<std::uint8_t>(random());
  noise[0] = 0x80;  // as a pickled object starts
  std::size_t written = 0;
  run_until(context, "the link is lost", [&] {
    const ssize_t count = written < noise.size() ? ::send(pair.plain.descriptor(), noise.data() + written, noise.size() - written, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    if (count > 0) written += static_cast<std::size_t>(count);
    return pair.server.lost.contains(pair.link);
  });
  CHECK(has(pair.server.lost_text(pair.link), "not a kvferry peer"));
  CHECK(pair.server.messages_count == 0);
}

TEST_CASE("bad frames end the link with the cause on both sides") {
  const auto check = [](const std::vector<Bytes>& sent, ErrorCode code, const std::string& expected) {
    asio::io_context context;
    PlainPair pair(context);
    for (const Bytes& frame : sent) pair.plain.write(frame);
    pair.run_until_lost();
    const std::string text = "input from " + pair.remote() + ": " + expected;
    CHECK(pair.server.lost_text(pair.link) == text);
    CHECK(pair.server.lost.at(pair.link).code == code);
    run_until(context, "the connection is closed", [&] { return pair.plain.at_end(); });
    CHECK(decode(pair.plain.received).messages == std::vector<Message>{Goodbye{static_cast<std::int32_t>(code), text}});
  };
  check({make_frame({.type = 1, .length_announced = 3221225472u}, {})}, ErrorCode::out_of_range,
        "frame 0 (hello): length 3221225472 exceeds the limit of 67108864");
  check({make_frame({.version = 2, .type = 1}, {})}, ErrorCode::version, "peer speaks protocol version 2, this side 1");
  check({make_frame({.type = 44, .flags = kCritical}, {})}, ErrorCode::unsupported, "frame 0 (type 44): unknown type that the peer marks as critical");
  Bytes heartbeat, repeated;
  REQUIRE(encode(Heartbeat{1}, 0, heartbeat));
  check({heartbeat, heartbeat}, ErrorCode::io, "frame 0 (heartbeat): frame 1 was expected; one was lost, repeated or forged");
}

TEST_CASE("an end after a goodbye, and an unexpected one can be told apart") {
  const auto check = [](const std::function<void(Plain&)>& end, const std::function<std::string(const std::string&)>& expected) {
    asio::io_context context;
    PlainPair pair(context);
    pair.plain.write(Heartbeat{1}, 0);
    end(pair.plain);
    pair.run_until_lost();
    CHECK(pair.server.lost_text(pair.link) == expected(pair.remote()));
    CHECK(pair.server.lost.at(pair.link).code == ErrorCode::peer_lost);
    CHECK(pair.server.messages[pair.link].at(0) == Message(Heartbeat{1}));
  };
  check(
      [](Plain& plain) {
        plain.write(Goodbye{0, "planned"}, 1);
        plain.close();
      },
      [](const std::string& remote) { return remote + " closed the connection after its goodbye: planned"; });
  check([](Plain& plain) { plain.close(); }, [](const std::string& remote) { return remote + " closed the connection unexpectedly, without a goodbye"; });
  check([](Plain& plain) { plain.end_output(); },
        [](const std::string& remote) { return remote + " closed the connection unexpectedly, without a goodbye"; });
}

TEST_CASE("an end inside a frame says how far it came") {
  asio::io_context context;
  PlainPair pair(context);
  Bytes frame;
  REQUIRE(encode(Heartbeat{1}, 0, frame));
  pair.plain.write(std::span(frame).first(35));
  pair.plain.close();
  pair.run_until_lost();
  CHECK(pair.server.lost_text(pair.link) == pair.remote() + " closed the connection unexpectedly, 35 bytes into a frame");
}

TEST_CASE("a reset connection is lost with its reason, after the messages that came before") {
  asio::io_context context;
  PlainPair pair(context);
  pair.plain.write(Heartbeat{1}, 0);
  run_until(context, "the message arrived", [&] { return pair.server.messages_count == 1; });
  pair.plain.reset();
  pair.run_until_lost();
  CHECK(pair.server.lost_text(pair.link) == "connection with " + pair.remote() + ": recv: connection reset by peer (errno 104)");
  CHECK(pair.server.lost.at(pair.link).sys_errno == ECONNRESET);
}

TEST_CASE("the goodbye of a peer that is gone is heard, although sending to it already fails") {
  asio::io_context context;
  PlainPair pair(context);
  const auto big = message_of_bytes(8u << 20);
  pair.server.send(pair.link, big);  // does not fit the socket: the peer leaves with unread input, which resets the connection
  pair.plain.write(Goodbye{static_cast<std::int32_t>(ErrorCode::mismatch), "another backend"}, 0);
  pair.plain.close();
  pair.run_until_lost();
  CHECK(pair.server.messages[pair.link] == std::vector<Message>{Goodbye{static_cast<std::int32_t>(ErrorCode::mismatch), "another backend"}});
  CHECK(has(pair.server.lost_text(pair.link), "after its goodbye: another backend"));
}

// ---- output, closing

TEST_CASE("a peer that does not read is lost at the output limit, and memory stays at it") {
  TcpLinks::Options options;
  options.output_bytes_max = 4u << 20;
  asio::io_context context;
  PlainPair pair(context, options);
  const auto message = message_of_bytes(256u << 10);
  const AllocationMeter meter;
  int sent = 0;
  run_until(context, "the link is lost", [&] {
    pair.server.send(pair.link, message);
    ++sent;
    return pair.server.lost.contains(pair.link);
  });
  CHECK(pair.server.lost.at(pair.link).code == ErrorCode::limit);
  CHECK(has(pair.server.lost_text(pair.link), "peer " + pair.remote() + " does not read: "));
  CHECK(has(pair.server.lost_text(pair.link), "bytes wait to be sent, the limit is 4194304"));
  CHECK(sent >= 16);
  CHECK(meter.peak_bytes() < 3 * options.output_bytes_max);
  CHECK_FALSE(pair.server.reentered);
  run_until(context, "the connection is closed", [&] { return pair.plain.at_end(); });
}

TEST_CASE("closing hands over everything that was sent, then ends") {
  TcpLinks::Options options;
  options.flush_timeout_ns = 3'600'000'000'000;
  asio::io_context context;
  Pair pair(context, "127.0.0.1", options);
  pair.server.messages_kept = false;
  for (int i = 0; i < 32; ++i) pair.client.send(pair.client_link, message_of_bytes(1u << 20));
  pair.client.send(pair.client_link, Goodbye{0, "done"});
  pair.client.close(pair.client_link);
  pair.client.send(pair.client_link, Heartbeat{1});  // after the end: nobody
  run_until(context, "the server sees the end", [&] { return pair.server.lost.size() == 1; });
  CHECK(pair.server.messages_count == 33);
  CHECK(has(pair.server.lost_text(pair.server_link), "closed the connection after its goodbye: done"));
  CHECK(pair.client.lost.empty());
}

TEST_CASE("closing hands over everything also to a peer that has ended its own side and only listens") {
  TcpLinks::Options options;
  options.flush_timeout_ns = 3'600'000'000'000;
  asio::io_context context;
  PlainPair pair(context, options);
  const auto message = message_of_bytes(8u << 20);
  pair.server.send(pair.link, message);
  pair.server.close(pair.link);
  pair.plain.end_output();
  for (int i = 0; i < 100; ++i) context.poll();  // the end of the peer's side is seen before its reading makes room
  run_until(context, "the plain side has everything", [&] { return pair.plain.at_end(); });
  CHECK(decode(pair.plain.received).messages == std::vector<Message>{message});
}

TEST_CASE("an incoming link that the receiver does not want is closed") {
  asio::io_context context;
  Side client(context);
  TcpLinks server(context, {});
  TcpLinks::Receiver receiver;
  receiver.accepted = [](std::string_view) { return LinkId{}; };
  server.set_receiver(std::move(receiver));
  client.connect(*server.listen({"127.0.0.1", 0}));
  run_until(context, "the client sees the end", [&] { return client.lost.size() == 1; });
  CHECK(has(client.lost.begin()->second.text, "closed the connection unexpectedly, without a goodbye"));
}

TEST_CASE("both sides may close at the same time") {
  TcpLinks::Options options;
  options.flush_timeout_ns = 3'600'000'000'000;
  asio::io_context context;
  Pair pair(context, "127.0.0.1", options);
  const std::size_t with_link = open_descriptors().size();
  for (Side* side : {&pair.client, &pair.server}) {
    const LinkId link = side == &pair.client ? pair.client_link : pair.server_link;
    side->send(link, message_of_bytes(4u << 20));
    side->send(link, Goodbye{0, "done"});
    side->close(link);
  }
  // Neither reads for anybody any more, so neither hears of anything; the connection is gone.
  run_until(context, "the descriptors are gone", [&] { return open_descriptors().size() == with_link - 2; });
  CHECK((pair.client.lost.empty() && pair.server.lost.empty()));
}

TEST_CASE("closing gives up on a peer that does not read, within its time") {
  TcpLinks::Options options;
  options.flush_timeout_ns = 20'000'000;
  asio::io_context context;
  PlainPair pair(context, options);
  const std::size_t with_link = open_descriptors().size();
  pair.server.send(pair.link, message_of_bytes(16u << 20));
  pair.server.close(pair.link);
  run_until(context, "the descriptor is gone", [&] { return open_descriptors().size() == with_link - 1; });
  CHECK(pair.server.lost.empty());
}

TEST_CASE("closing ends at once when the peer has already gone") {
  TcpLinks::Options options;
  options.flush_timeout_ns = 3'600'000'000'000;
  asio::io_context context;
  PlainPair pair(context, options);
  const std::size_t with_link = open_descriptors().size();
  pair.plain.reset();  // one descriptor here as well
  pair.server.close(pair.link);
  run_until(context, "the descriptor is gone", [&] { return open_descriptors().size() == with_link - 2; });
  CHECK(pair.server.lost.empty());
}

TEST_CASE("a link closed from inside a message callback delivers nothing more") {
  asio::io_context context;
  Pair pair(context);
  pair.server.on_message = [&](LinkId link) { pair.server.links.close(link); };
  for (std::uint64_t i = 0; i < 10; ++i) pair.client.send(pair.client_link, Heartbeat{i});
  run_until(context, "the client sees the end", [&] { return pair.client.lost.size() == 1; });
  CHECK(pair.server.messages_count == 1);
  CHECK(pair.server.lost.empty());
}

TEST_CASE("a link closed from inside its opened callback is gone") {
  asio::io_context context;
  Side client(context), server(context);
  client.on_opened = [&](LinkId link) {
    client.links.send(link, Goodbye{0, "changed my mind"});
    client.links.close(link);
  };
  client.connect(server.listen("127.0.0.1"));
  run_until(context, "the server sees the end", [&] { return server.lost.size() == 1; });
  CHECK(has(server.lost.begin()->second.text, "after its goodbye: changed my mind"));
  CHECK(client.lost.empty());
}

TEST_CASE("a message that cannot be sent loses the link and tells the peer why") {
  asio::io_context context;
  Pair pair(context);
  pair.client.send(pair.client_link, Ready{std::string(kTextBytesMax + 1, 'x')});
  pair.client.send(pair.client_link, Heartbeat{1});
  CHECK(pair.client.lost.empty());  // told later, not from inside the call
  run_until(context, "both are lost", [&] { return pair.client.lost.size() == 1 && pair.server.lost.size() == 1; });
  const std::string text = "send to " + to_string(pair.address) + ": ready: lane length 4097 exceeds the limit of 4096";
  CHECK(pair.client.lost_text(pair.client_link) == text);
  CHECK(pair.server.messages[pair.server_link] == std::vector<Message>{Goodbye{static_cast<std::int32_t>(ErrorCode::out_of_range), text}});
  CHECK_FALSE(pair.client.reentered);
}

TEST_CASE("closing a link before its loss was told takes the report back") {
  asio::io_context context;
  Pair pair(context);
  pair.client.send(pair.client_link, Ready{std::string(kTextBytesMax + 1, 'x')});
  pair.client.close(pair.client_link);
  run_until(context, "the server sees the end", [&] { return pair.server.lost.size() == 1; });
  CHECK(pair.client.lost.empty());
}

TEST_CASE("a thousand connections come and go without a descriptor left, whoever closes first") {
  asio::io_context context;
  Side client(context), server(context);
  const HostPort bound = server.listen("127.0.0.1");
  std::size_t descriptors = 0;
  for (std::size_t round = 0; round < 1000; ++round) {
    const LinkId link = client.connect(bound);
    run_until(context, "the link is up", [&] { return client.opened.size() == round + 1 && server.accepted.size() == round + 1; });
    const LinkId other{server.accepted.back().first};
    Side &first = round % 2 == 0 ? client : server, &second = round % 2 == 0 ? server : client;
    first.send(round % 2 == 0 ? link : other, Goodbye{0, "next"});
    first.close(round % 2 == 0 ? link : other);
    run_until(context, "the other side is told", [&] { return second.lost.contains(round % 2 == 0 ? other : link); });
    if (round == 9) {
      while (context.poll() != 0) context.restart();
      descriptors = open_descriptors().size();
    }
  }
  run_until(context, "the last descriptor is gone", [&] { return open_descriptors().size() <= descriptors; });
  CHECK(client.lost.size() + server.lost.size() == 1000);
  CHECK_FALSE((client.lost_twice || server.lost_twice));
}

TEST_CASE("closing all links hands over what was sent and leaves the io_context without work") {
  asio::io_context context;
  Side client(context), server(context);
  const HostPort bound = server.listen("127.0.0.1");
  for (int i = 0; i < 20; ++i) client.connect(bound);
  run_until(context, "all are up", [&] { return client.opened.size() == 20 && server.accepted.size() == 20; });
  for (const auto& [id, remote] : server.accepted) server.send(LinkId{id}, Goodbye{0, "shutdown"});
  server.links.close_all();
  run_until(context, "all are told", [&] { return client.lost.size() == 20; });
  for (const auto& [link, error] : client.lost) CHECK(has(error.text, "after its goodbye: shutdown"));
  client.links.close_all();
  context.restart();
  context.run();  // would not return if anything waited
  CHECK(server.lost.empty());
}

TEST_CASE("links may be destroyed at any moment, also from inside a callback") {
  asio::io_context context;
  const std::size_t before = Side(context).links.listen({"127.0.0.1", 0}) ? open_descriptors().size() : 0;  // with those of the io_context
  {
    auto client = std::make_unique<Side>(context);
    Side server(context);
    const HostPort bound = server.listen("127.0.0.1");
    const LinkId link = client->connect(bound);
    client->connect("localhost:" + std::to_string(bound.port));  // a look-up under way
    client->connect("nonsense");                                 // a report under way
    run_until(context, "the link is up", [&] { return client->opened.size() >= 1; });
    client->send(link, message_of_bytes(8u << 20));  // a write under way
    client.reset();
    run_until(context, "the server sees the end", [&] { return server.lost.size() >= 1; });
  }
  {
    Side client(context);
    auto server = std::make_unique<TcpLinks>(context, TcpLinks::Options{});
    TcpLinks::Receiver receiver;
    receiver.accepted = [](std::string_view) { return LinkId{1}; };
    receiver.message = [&server](LinkId, Message) { server.reset(); };
    server->set_receiver(std::move(receiver));
    const LinkId link = client.connect(*server->listen({"127.0.0.1", 0}));
    for (std::uint64_t i = 0; i < 3; ++i) client.send(link, Heartbeat{i});
    run_until(context, "the server is gone", [&] { return server == nullptr; });
  }
  {
    Side client(context);
    auto server = std::make_unique<TcpLinks>(context, TcpLinks::Options{});
    TcpLinks::Receiver receiver;
    receiver.accepted = [&server](std::string_view) {
      server.reset();
      return LinkId{1};
    };
    server->set_receiver(std::move(receiver));
    client.connect(*server->listen({"127.0.0.1", 0}));
    run_until(context, "the server is gone", [&] { return server == nullptr; });
  }
  context.restart();
  context.run();
  CHECK(open_descriptors().size() == before - 1);  // the listening socket is in the first count
}

// ---- limits of this host

TEST_CASE("beyond links_max an incoming link gets a goodbye with the limit, and room is found again") {
  TcpLinks::Options options;
  options.links_max = 2;
  asio::io_context context;
  Side client(context), server(context, options);
  const HostPort bound = server.listen("127.0.0.1");
  const LinkId first = client.connect(bound);
  client.connect(bound);
  run_until(context, "two are accepted", [&] { return server.accepted.size() == 2 && client.opened.size() == 2; });
  for (int i = 0; i < 3; ++i) {
    const LinkId refused = client.connect(bound);
    client.send(refused, Heartbeat{1});
    run_until(context, "the third is lost", [&] { return client.lost.contains(refused); });
    const Message expected = Goodbye{static_cast<std::int32_t>(ErrorCode::limit), "too many control links: the limit is 2"};
    CHECK(client.messages[refused] == std::vector<Message>{expected});
    CHECK(has(client.lost_text(refused), "after its goodbye: too many control links: the limit is 2"));
  }
  CHECK(server.logged.size() == 1);  // once, not per attempt
  CHECK(has(server.logged.at(0), "too many control links: the limit is 2"));
  client.close(first);
  run_until(context, "the server has room", [&] { return server.lost.size() == 1; });
  client.connect(bound);
  run_until(context, "the next is accepted", [&] { return server.accepted.size() == 3; });
}

TEST_CASE("beyond links_max an outgoing link is lost with the limit") {
  TcpLinks::Options options;
  options.links_max = 1;
  asio::io_context context;
  Side client(context, options), server(context);
  const HostPort bound = server.listen("127.0.0.1");
  client.connect(bound);
  const LinkId refused = client.connect(bound);
  run_until(context, "the second is lost", [&] { return client.lost.size() == 1 && client.opened.size() == 1; });
  CHECK(client.lost_text(refused) == "connect to " + to_string(bound) + ": too many control links: the limit is 1");
  CHECK(client.lost.at(refused).code == ErrorCode::limit);
}

TEST_CASE("unfinished messages of all links together are bounded") {
  TcpLinks::Options options;
  options.input_bytes_max = 1u << 20;
  asio::io_context context;
  Side server(context, options);
  const HostPort bound = server.listen("127.0.0.1");
  const Bytes header = make_frame({.type = 1, .length_announced = kPayloadBytesMax}, {});
  const Bytes part(64u << 10);
  std::vector<Plain> plains;
  for (std::size_t i = 0; i < 40; ++i) {
    plains.push_back(Plain::connect(bound.port));
    plains.back().write(header);
    plains.back().write(part);
    run_until(context, "the connection is accepted", [&] { return server.accepted.size() == i + 1; });
  }
  run_until(context, "links are lost", [&] { return !server.lost.empty(); });
  CHECK(has(server.lost.begin()->second.text, "bytes, the limit is 1048576"));
  CHECK(server.lost.begin()->second.code == ErrorCode::limit);
  plains.clear();
  run_until(context, "all are lost", [&] { return server.lost.size() == 40; });
  // Nothing of the ended ones counts any more: a large message passes.
  Side client(context);
  const LinkId link = client.connect(bound);
  client.send(link, message_of_bytes(900u << 10));
  run_until(context, "the message arrived", [&] { return server.messages_count == 1; });
}

TEST_CASE("without a free descriptor accepting waits, says so once, and goes on when there is one") {
  asio::io_context context;
  Side server(context);
  const HostPort bound = server.listen("127.0.0.1");
  Plain client = Plain::connect(bound.port);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none = {static_cast<rlim_t>(3), before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::size_t handlers = 0;
  const auto work = asio::make_work_guard(context);
  const auto end = steady_clock::now() + kGuard;
  while (server.logged.empty() && steady_clock::now() < end) handlers += context.run_one_for(std::chrono::milliseconds(2));
  // Several pauses long: an accept that did not wait would run thousands of handlers.
  const auto watch_end = steady_clock::now() + std::chrono::milliseconds(100);
  while (steady_clock::now() < watch_end) handlers += context.run_one_until(watch_end);
  Side other(context);
  const LinkId outgoing = other.connect(bound);
  while (other.lost.empty() && steady_clock::now() < end) context.run_one_for(std::chrono::milliseconds(2));
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);

  REQUIRE(server.logged.size() == 1);
  CHECK(server.logged[0] == "listen on " + to_string(bound) + ": accept: too many open files (errno 24); tried again in a while");
  CHECK(handlers < 20);
  CHECK(has(other.lost_text(outgoing), "too many open files (errno 24)"));
  CHECK(other.lost.at(outgoing).code == ErrorCode::limit);
  CHECK(server.accepted.empty());
  run_until(context, "the waiting connection is accepted", [&] { return server.accepted.size() == 1; });
  CHECK(server.logged.size() == 2);
  CHECK(has(server.logged[1], "accepts again"));
}

}  // namespace
}  // namespace kvferry::test
