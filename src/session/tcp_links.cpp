/// Control links over TCP: one connection per link, everything on the thread that runs the io_context.
///
///    listen ─► accept ─┐                                       fail: lost is posted
///                      ├─► open ── bytes ► Decoder ► receiver ──────────────────────────────┐
///    connect ─► connecting ──────────────────────────────────────────────────────────────── ┤
///                      │                                                                    ▼
///                      └─ close ─► closing: output leaves ► end of output sent ► peer's end ► gone
///                                  └──────────── at most flush_timeout_ns ──────────────┘
///
/// - A connection under `closing` has no id any more: nothing is reported of it. It reads on, and drops what it reads, because closing a socket with
///   unread input makes the kernel reset the connection, and the reset can overtake the goodbye that the peer should read.
/// - Nothing calls the receiver from inside connect, send or close: what they find out is posted.
/// - Input goes through one buffer for all links; a link holds only the part of a frame that has arrived. An idle link costs no memory and no wake-up.
#include "kvferry/tcp_links.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <limits>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "text.h"

namespace kvferry {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Bytes = std::span<const std::uint8_t>;

constexpr std::size_t kInputBytes = 64u << 10;        // one read
constexpr int kReadsPerTurn = 16;                     // then the other links have their turn
constexpr int kReadsAfterWriteError = 64;             // for the peer's last words
constexpr int kAcceptsPerTurn = 64;
constexpr std::size_t kIdleOutputBytes = 64u << 10;   // kept between messages
constexpr std::chrono::milliseconds kAcceptPauseMin{10}, kAcceptPauseMax{1000};
constexpr int kKeepaliveIdleSeconds = 30, kKeepaliveIntervalSeconds = 5, kKeepaliveProbes = 3;
constexpr std::string_view kLogComponent = "links";

Bytes as_bytes(std::string_view text) { return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}; }

/// "connection refused (errno 111)".
std::string reason(const error_code& code) {
  std::string text = code.message();
  if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  if (code.category() == boost::system::system_category()) text += " (errno " + std::to_string(code.value()) + ")";
  return text;
}

error_code last_errno() { return {errno, boost::system::system_category()}; }

Error system_error(ErrorCode code, std::string text, const error_code& cause) {
  Error error(code, std::move(text) + ": " + reason(cause));
  if (cause.category() == boost::system::system_category()) error.sys_errno = cause.value();
  return error;
}

/// An IPv4 peer of a socket that takes both families shows its own address.
HostPort to_host_port(const tcp::endpoint& endpoint) {
  const auto address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return {asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string(), endpoint.port()};
  }
  return {address.to_string(), endpoint.port()};
}

std::string describe(const tcp::endpoint& endpoint) { return to_string(to_host_port(endpoint)); }

/// Asio opens sockets that a child process would inherit, and with them the port.
int open_socket(const tcp::endpoint& endpoint) {
  return ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
}

/// An error of accept that used up one connection and says nothing about the next.
bool concerns_connection(int number) {
  switch (number) {
    case EINTR:
    case ECONNABORTED:
    case EPROTO:
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case ENETUNREACH: return true;
    default: return false;
  }
}

enum class Phase : std::uint8_t { connecting, open, closing, gone };

struct Link {
  explicit Link(asio::io_context& context) : socket(context), timer(context), resolver(context) {}

  LinkId id{};
  bool outgoing = false;
  Phase phase = Phase::connecting;
  std::string name;  // of the other side, for messages
  tcp::socket socket;
  asio::steady_timer timer;  // deadline of connect, then of closing

  // connecting
  tcp::resolver resolver;
  std::vector<tcp::endpoint> endpoints;
  std::size_t endpoints_tried = 0;
  std::string attempts;  // "[::1]:4000 connection refused (errno 111), ..."
  error_code last_cause;

  // input
  session::Decoder decoder;
  std::uint64_t input_bytes_held = 0;  // in the decoder, as counted in State
  bool read_waiting = false;
  std::optional<std::string> goodbye;  // the peer announced its end

  // output
  std::uint64_t sequence = 0;
  std::vector<std::uint8_t> queued, writing;
  bool write_in_flight = false;

  std::uint64_t output_bytes() const noexcept { return queued.size() + writing.size(); }
};
using LinkPtr = std::shared_ptr<Link>;

struct Listener {
  explicit Listener(asio::io_context& context) : acceptor(context), timer(context) {}
  tcp::acceptor acceptor;
  asio::steady_timer timer;
  std::string name;
  std::chrono::milliseconds pause{0};  // not 0: this host could not accept lately
};
using ListenerPtr = std::shared_ptr<Listener>;

}  // namespace

Result<HostPort> parse_host_port(std::string_view text) {
  const auto refuse = [text](std::string_view what) {
    return fail(ErrorCode::invalid_argument, "address " + session::quote_bytes(as_bytes(text)) + ": " + std::string(what));
  };
  std::string_view host, rest;
  if (text.starts_with('[')) {
    const std::size_t bracket = text.find(']');
    if (bracket == std::string_view::npos) return refuse("host has no closing bracket");
    host = text.substr(1, bracket - 1);
    rest = text.substr(bracket + 1);
    error_code ec;
    (void)asio::ip::make_address_v6(std::string(host), ec);
    if (ec) return refuse("host in brackets is not an IPv6 address");
  } else {
    const std::size_t colon = text.find(':');
    host = text.substr(0, colon);
    rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon);
    if (host.empty()) return refuse("host is missing");
    if (rest.find(':', 1) != std::string_view::npos) return refuse("port is not a number, and an IPv6 host needs brackets, as in [::1]:4000");
  }
  if (rest.size() < 2 || rest[0] != ':') return refuse("port is missing");
  rest.remove_prefix(1);
  std::uint16_t port = 0;
  const auto [end, status] = std::from_chars(rest.data(), rest.data() + rest.size(), port);
  if (status != std::errc{} || end != rest.data() + rest.size()) {
    return refuse("port " + session::quote_bytes(as_bytes(rest)) + " is not a number from 0 to 65535");
  }
  return HostPort{std::string(host), port};
}

std::string to_string(const HostPort& address) {
  const bool brackets = address.host.find(':') != std::string::npos;
  return (brackets ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

struct TcpLinks::State : std::enable_shared_from_this<TcpLinks::State> {
  State(asio::io_context& context_, Options options_) : context(context_), options(std::move(options_)), input(kInputBytes) {}

  asio::io_context& context;
  const Options options;
  Receiver receiver;
  std::vector<std::uint8_t> input;
  std::uint64_t input_bytes_held = 0;  // parts of frames, all links
  std::unordered_map<std::uint64_t, LinkPtr> links;
  std::unordered_set<LinkPtr> closing;
  std::vector<ListenerPtr> listeners;
  bool refusing = false;  // at links_max: logged once until there is room again

  // A handler that fires late finds the state gone, or the link in another phase, and does nothing.
  template <class Function>
  auto handler(Function function) {
    return [weak = weak_from_this(), function = std::move(function)](auto&&... arguments) {
      if (const auto state = weak.lock()) function(*state, arguments...);
    };
  }

  void log(LogLevel level, const std::string& text) const {
    if (options.log) options.log(level, kLogComponent, text);
  }
  std::size_t links_count() const noexcept { return links.size() + closing.size(); }

  Result<HostPort> listen(const HostPort& address);
  Result<HostPort> listen_on(const tcp::endpoint& endpoint);
  void wait_accept(const ListenerPtr& listener);
  void accept_some(const ListenerPtr& listener);
  void pause_accept(const ListenerPtr& listener, const error_code& cause);
  void accepted(const ListenerPtr& listener, int fd, const tcp::endpoint& remote);
  void refuse(int fd, const std::string& name);

  void connect(LinkId id, std::string_view address, std::uint64_t deadline_ns);
  void resolve(const LinkPtr& link, const HostPort& address);
  void try_endpoint(const LinkPtr& link);
  void connected(const LinkPtr& link, const tcp::endpoint& endpoint, error_code ec);
  void opened(const LinkPtr& link);

  void wait_read(const LinkPtr& link);
  void read_some(const LinkPtr& link);
  void count_input(const LinkPtr& link);
  bool deliver(const LinkPtr& link, Bytes bytes);
  void input_ended(const LinkPtr& link, const error_code& cause);
  void drain(const LinkPtr& link);

  void send(const LinkPtr& link, const session::Message& message);
  void write(const LinkPtr& link);
  void written(const LinkPtr& link, const error_code& ec);
  void write_failed(const LinkPtr& link, const error_code& ec);
  void end_output(const LinkPtr& link);

  void close(LinkId id);
  void begin_closing(const LinkPtr& link);
  void drop(const LinkPtr& link);
  void fail_link(const LinkPtr& link, Error error);
  void fail_with_goodbye(const LinkPtr& link, const Error& error);
  void post_lost(const LinkPtr& link, Error error);
  void close_all();
  void drop_all();
};

// ---- listening ------------------------------------------------------------------------------------------------------------------------

Result<HostPort> TcpLinks::State::listen(const HostPort& address) {
  const std::string what = "listen on " + to_string(address);
  error_code ec;
  const auto numeric = asio::ip::make_address(address.host, ec);
  if (!ec) return listen_on({numeric, address.port});
  tcp::resolver resolver(context);
  const auto flags = tcp::resolver::passive | tcp::resolver::numeric_service;
  const auto found = resolver.resolve(address.host, std::to_string(address.port), flags, ec);
  if (ec) return fail(system_error(ErrorCode::not_found, what + ": look up the name", ec));
  Result<HostPort> bound = fail(ErrorCode::not_found, what + ": the name has no address");
  for (const auto& entry : found) {
    bound = listen_on(entry.endpoint());
    if (bound) return bound;
  }
  return fail(bound.error().within(what));
}

Result<HostPort> TcpLinks::State::listen_on(const tcp::endpoint& endpoint) {
  const auto refuse = [&endpoint](std::string_view call, const error_code& cause) {
    return fail(system_error(ErrorCode::unavailable, "listen on " + describe(endpoint) + ": " + std::string(call), cause));
  };
  const int fd = open_socket(endpoint);
  if (fd < 0) return refuse("socket", last_errno());
  auto listener = std::make_shared<Listener>(context);
  error_code ec;
  if (listener->acceptor.assign(endpoint.protocol(), fd, ec); ec) {
    (void)::close(fd);  // never used: nothing can be lost
    return refuse("epoll_ctl", ec);
  }
  // With SO_REUSEADDR a port is free again at once after a restart, if the sockets before had it too. It comes after the bind where the kernel picks
  // the port: the pick should be a port that nobody has.
  const auto allow_reuse = [&] { listener->acceptor.set_option(tcp::acceptor::reuse_address(true), ec); };
  if (endpoint.port() != 0) allow_reuse();
  if (ec) return refuse("setsockopt SO_REUSEADDR", ec);
  if (endpoint.address().is_v6()) {
    // "::" takes IPv4 too, whatever net.ipv6.bindv6only says; other addresses have one family anyway.
    if (listener->acceptor.set_option(asio::ip::v6_only(!endpoint.address().is_unspecified()), ec); ec) return refuse("setsockopt IPV6_V6ONLY", ec);
  }
  if (listener->acceptor.bind(endpoint, ec); ec) return refuse("bind", ec);
  if (endpoint.port() == 0) allow_reuse();
  if (ec) return refuse("setsockopt SO_REUSEADDR", ec);
  if (listener->acceptor.listen(tcp::acceptor::max_listen_connections, ec); ec) return refuse("listen", ec);
  const auto local = listener->acceptor.local_endpoint(ec);
  if (ec) return refuse("getsockname", ec);
  listener->name = describe(local);
  listeners.push_back(listener);
  wait_accept(listener);
  return to_host_port(local);
}

void TcpLinks::State::wait_accept(const ListenerPtr& listener) {
  listener->acceptor.async_wait(tcp::acceptor::wait_read, handler([listener](State& state, const error_code& ec) {
    if (!ec) state.accept_some(listener);
  }));
}

void TcpLinks::State::accept_some(const ListenerPtr& listener) {
  for (int turn = 0; turn < kAcceptsPerTurn && listener->acceptor.is_open(); ++turn) {
    tcp::endpoint remote;
    auto length = static_cast<socklen_t>(remote.capacity());
    const int fd = ::accept4(listener->acceptor.native_handle(), remote.data(), &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      const error_code cause = last_errno();
      if (cause.value() == EAGAIN) break;
      if (concerns_connection(cause.value())) continue;
      return pause_accept(listener, cause);
    }
    if (listener->pause.count() != 0) log(LogLevel::info, "listen on " + listener->name + ": accepts again");
    listener->pause = std::chrono::milliseconds{0};
    remote.resize(length);
    accepted(listener, fd, remote);
  }
  if (listener->acceptor.is_open()) wait_accept(listener);
}

/// Out of descriptors or memory: the connection stays in the backlog, so that the listener stays readable. Waiting for it would spin.
void TcpLinks::State::pause_accept(const ListenerPtr& listener, const error_code& cause) {
  if (listener->pause.count() == 0) log(LogLevel::error, "listen on " + listener->name + ": accept: " + reason(cause) + "; tried again in a while");
  listener->pause = std::clamp(listener->pause * 2, kAcceptPauseMin, kAcceptPauseMax);
  listener->timer.expires_after(listener->pause);
  listener->timer.async_wait(handler([listener](State& state, const error_code& ec) {
    if (!ec) state.accept_some(listener);
  }));
}

void TcpLinks::State::accepted(const ListenerPtr& listener, int fd, const tcp::endpoint& remote) {
  const std::string name = describe(remote);
  if (links_count() >= options.links_max) return refuse(fd, name);
  refusing = false;
  auto link = std::make_shared<Link>(context);
  link->name = name;
  error_code ec;
  if (link->socket.assign(remote.protocol(), fd, ec); ec) {
    (void)::close(fd);  // never used: nothing can be lost
    return log(LogLevel::error, "accept " + name + ": epoll_ctl: " + reason(ec));
  }
  link->id = receiver.accepted ? receiver.accepted(name) : LinkId{};
  if (link->id == LinkId{} || !listener->acceptor.is_open()) return;  // not wanted, or closed by the receiver meanwhile
  links.emplace(static_cast<std::uint64_t>(link->id), link);
  opened(link);
}

/// One try to say why; whoever connects may be anybody and gets no more than that.
void TcpLinks::State::refuse(int fd, const std::string& name) {
  const std::string text = "too many control links: the limit is " + std::to_string(options.links_max);
  if (!refusing) log(LogLevel::warn, "accept " + name + ": " + text);
  refusing = true;
  std::vector<std::uint8_t> frame;
  if (session::encode(session::Goodbye{static_cast<std::int32_t>(ErrorCode::limit), text}, 0, frame)) {
    (void)::send(fd, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);  // a fresh socket has room; else the peer sees an unexpected end
  }
  (void)::close(fd);  // nothing more to do about an error
}

// ---- connecting -----------------------------------------------------------------------------------------------------------------------

void TcpLinks::State::connect(LinkId id, std::string_view address, std::uint64_t deadline_ns) {
  auto link = std::make_shared<Link>(context);
  link->id = id;
  link->outgoing = true;
  link->name = address;
  const bool has_room = links_count() < options.links_max;
  const bool is_new = links.emplace(static_cast<std::uint64_t>(id), link).second;
  if (!is_new) return;  // a number is used once
  auto parsed = parse_host_port(address);
  if (!parsed) return fail_link(link, parsed.error().within("connect"));
  link->name = to_string(*parsed);
  const std::string what = "connect to " + link->name;
  if (parsed->port == 0) return fail_link(link, Error(ErrorCode::invalid_argument, what + ": port 0 names nobody"));
  if (!has_room) return fail_link(link, Error(ErrorCode::limit, what + ": too many control links: the limit is " + std::to_string(options.links_max)));
  if (deadline_ns != 0 && deadline_ns <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    const auto started = std::chrono::steady_clock::now();
    const std::chrono::steady_clock::time_point deadline{std::chrono::nanoseconds(deadline_ns)};
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - started).count();
    link->timer.expires_at(deadline);
    link->timer.async_wait(handler([link, what, milliseconds](State& state, const error_code& ec) {
      if (ec || link->phase != Phase::connecting) return;
      const std::string tried = link->attempts.empty() ? "" : "; tried " + link->attempts;
      state.fail_link(link, Error(ErrorCode::timeout, what + ": timed out, no answer in " + std::to_string(milliseconds) + " ms" + tried));
    }));
  }
  resolve(link, *parsed);
}

void TcpLinks::State::resolve(const LinkPtr& link, const HostPort& address) {
  error_code ec;
  const auto numeric = asio::ip::make_address(address.host, ec);
  if (!ec) {
    link->endpoints.emplace_back(numeric, address.port);
    return try_endpoint(link);
  }
  try {
    link->resolver.async_resolve(address.host, std::to_string(address.port), tcp::resolver::numeric_service,
                                 handler([link](State& state, const error_code& cause, const tcp::resolver::results_type& found) {
                                   if (link->phase != Phase::connecting) return;
                                   if (cause) {
                                     const std::string what = "connect to " + link->name + ": look up the name";
                                     return state.fail_link(link, system_error(ErrorCode::not_found, what, cause));
                                   }
                                   for (const auto& entry : found) link->endpoints.push_back(entry.endpoint());
                                   state.try_endpoint(link);
                                 }));
  } catch (const std::system_error& error) {  // Asio's look-up thread could not start
    fail_link(link, Error(ErrorCode::unavailable, "connect to " + link->name + ": look up the name: " + error.what()));
  }
}

/// The next address of the name, in the order of the resolver.
void TcpLinks::State::try_endpoint(const LinkPtr& link) {
  while (link->endpoints_tried < link->endpoints.size()) {
    const tcp::endpoint endpoint = link->endpoints[link->endpoints_tried++];
    error_code ec;
    if (const int fd = open_socket(endpoint); fd < 0) {
      ec = last_errno();
    } else if (link->socket.assign(endpoint.protocol(), fd, ec); ec) {
      (void)::close(fd);  // never used: nothing can be lost
    } else {
      return link->socket.async_connect(
          endpoint, handler([link, endpoint](State& state, const error_code& cause) { state.connected(link, endpoint, cause); }));
    }
    link->attempts += (link->attempts.empty() ? "" : ", ") + describe(endpoint) + " " + reason(ec);
    link->last_cause = ec;
  }
  const bool out_of_descriptors = link->last_cause.value() == EMFILE || link->last_cause.value() == ENFILE;
  Error error(out_of_descriptors ? ErrorCode::limit : ErrorCode::peer_lost, "connect to " + link->name + ": " + link->attempts);
  error.sys_errno = link->last_cause.value();
  fail_link(link, std::move(error));
}

void TcpLinks::State::connected(const LinkPtr& link, const tcp::endpoint& endpoint, error_code ec) {
  if (link->phase != Phase::connecting) return;
  // Nobody listens on a port of the automatic range of this host: now and then the kernel gives our end that very port, and we meet ourselves.
  error_code ignored;
  if (!ec && link->socket.local_endpoint(ignored) == endpoint) ec = {ECONNREFUSED, boost::system::system_category()};
  if (ec) {
    link->attempts += (link->attempts.empty() ? "" : ", ") + describe(endpoint) + " " + reason(ec);
    link->last_cause = ec;
    link->socket.close(ignored);
    return try_endpoint(link);
  }
  link->timer.cancel();
  opened(link);
}

void TcpLinks::State::opened(const LinkPtr& link) {
  link->phase = Phase::open;
  error_code ignored;  // a connection that takes none of these still works: heartbeats find a dead peer too
  link->socket.non_blocking(true, ignored);
  link->socket.set_option(tcp::no_delay(true), ignored);
  link->socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto set = [&link](int option, int value) {
    (void)::setsockopt(link->socket.native_handle(), IPPROTO_TCP, option, &value, sizeof value);
  };
  set(TCP_KEEPIDLE, kKeepaliveIdleSeconds);
  set(TCP_KEEPINTVL, kKeepaliveIntervalSeconds);
  set(TCP_KEEPCNT, kKeepaliveProbes);
  if (link->outgoing && receiver.opened) receiver.opened(link->id);
  if (link->phase != Phase::open) return;
  wait_read(link);
  write(link);
}

// ---- input ----------------------------------------------------------------------------------------------------------------------------

void TcpLinks::State::wait_read(const LinkPtr& link) {
  if (link->read_waiting) return;
  link->read_waiting = true;
  link->socket.async_wait(tcp::socket::wait_read, handler([link](State& state, const error_code& ec) {
    link->read_waiting = false;
    if (link->phase == Phase::open) {
      if (ec) return state.fail_link(link, system_error(ErrorCode::peer_lost, "connection with " + link->name + ": poll", ec));
      state.read_some(link);
    } else if (link->phase == Phase::closing) {
      if (ec) return state.drop(link);
      state.drain(link);
    }
  }));
}

void TcpLinks::State::read_some(const LinkPtr& link) {
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    error_code ec;
    const std::size_t bytes_count = link->socket.read_some(asio::buffer(input), ec);
    if (ec == asio::error::would_block) break;
    if (ec) return input_ended(link, ec);
    if (!deliver(link, {input.data(), bytes_count})) return;
  }
  wait_read(link);
}

void TcpLinks::State::count_input(const LinkPtr& link) {
  input_bytes_held -= link->input_bytes_held;
  link->input_bytes_held = link->decoder.buffered_bytes();
  input_bytes_held += link->input_bytes_held;
}

/// False: the link is no longer open.
bool TcpLinks::State::deliver(const LinkPtr& link, Bytes bytes) {
  auto fed = link->decoder.feed(bytes);
  for (;;) {
    auto message = fed ? link->decoder.next() : Result<std::optional<session::Message>>(fail(fed.error()));
    if (!message) {
      const Error error = message.error().within("input from " + link->name);
      if (error.code == ErrorCode::mismatch) fail_link(link, error);  // another program: a frame of ours would mean nothing to it
      else fail_with_goodbye(link, error);
      return false;
    }
    if (!*message) break;
    if (const auto* goodbye = std::get_if<session::Goodbye>(&**message)) link->goodbye = goodbye->text.empty() ? "no cause given" : goodbye->text;
    if (receiver.message) receiver.message(link->id, std::move(**message));
    if (link->phase != Phase::open) return false;
  }
  count_input(link);
  if (input_bytes_held <= options.input_bytes_max || link->input_bytes_held == 0) return true;
  fail_with_goodbye(link, Error(ErrorCode::limit, ErrorClass::reconnect,
                                "input from " + link->name + ": unfinished messages of all links hold " + std::to_string(input_bytes_held) +
                                    " bytes, the limit is " + std::to_string(options.input_bytes_max)));
  return false;
}

void TcpLinks::State::input_ended(const LinkPtr& link, const error_code& cause) {
  const std::string after = link->goodbye ? " after its goodbye: " + *link->goodbye : "";
  if (cause != asio::error::eof) {
    return fail_link(link, system_error(ErrorCode::peer_lost, "connection with " + link->name + after + ": recv", cause));
  }
  std::string text = link->name + " closed the connection";
  if (link->goodbye) text += after;
  else if (const std::size_t held = link->decoder.buffered_bytes(); held > 0) text += " unexpectedly, " + std::to_string(held) + " bytes into a frame";
  else text += " unexpectedly, without a goodbye";
  fail_link(link, Error(ErrorCode::peer_lost, std::move(text)));
}

/// Reads for nobody until the peer ends its side.
void TcpLinks::State::drain(const LinkPtr& link) {
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    error_code ec;
    (void)link->socket.read_some(asio::buffer(input), ec);
    if (ec == asio::error::would_block) break;
    if (ec == asio::error::eof && link->output_bytes() != 0) return;  // the peer still takes what we say; written() or the timer goes on
    if (ec) return drop(link);
  }
  wait_read(link);
}

// ---- output ---------------------------------------------------------------------------------------------------------------------------

void TcpLinks::State::send(const LinkPtr& link, const session::Message& message) {
  if (link->phase != Phase::connecting && link->phase != Phase::open) return;  // lost: the receiver is about to hear of it
  if (auto encoded = session::encode(message, link->sequence, link->queued); !encoded) {
    return fail_with_goodbye(link, encoded.error().within("send to " + link->name));
  }
  ++link->sequence;
  if (link->output_bytes() > options.output_bytes_max) {
    return fail_link(link, Error(ErrorCode::limit, ErrorClass::reconnect,
                                 "peer " + link->name + " does not read: " + std::to_string(link->output_bytes()) +
                                     " bytes wait to be sent, the limit is " + std::to_string(options.output_bytes_max)));
  }
  if (link->phase == Phase::open) write(link);
}

/// Asio tries to send at once and calls back through the io_context in any case. What comes while a write is under way goes with the next one.
void TcpLinks::State::write(const LinkPtr& link) {
  if (link->write_in_flight || link->queued.empty()) return;
  link->write_in_flight = true;
  link->writing.swap(link->queued);
  asio::async_write(link->socket, asio::buffer(link->writing),
                    handler([link](State& state, const error_code& ec, std::size_t) { state.written(link, ec); }));
}

void TcpLinks::State::written(const LinkPtr& link, const error_code& ec) {
  link->write_in_flight = false;
  link->writing.clear();
  if (link->writing.capacity() > kIdleOutputBytes) std::vector<std::uint8_t>().swap(link->writing);
  if (link->phase == Phase::gone) return;
  if (ec) return link->phase == Phase::closing ? drop(link) : write_failed(link, ec);
  if (!link->queued.empty()) write(link);
  else if (link->phase == Phase::closing) end_output(link);
}

/// The peer is gone, but what it said last may still wait to be read: it usually says why.
void TcpLinks::State::write_failed(const LinkPtr& link, const error_code& cause) {
  for (int turn = 0; turn < kReadsAfterWriteError; ++turn) {
    error_code ec;
    const std::size_t bytes_count = link->socket.read_some(asio::buffer(input), ec);
    if (ec == asio::error::eof && link->goodbye) return input_ended(link, ec);
    if (ec) break;
    if (!deliver(link, {input.data(), bytes_count})) return;
  }
  const std::string after = link->goodbye ? " after its goodbye: " + *link->goodbye : "";
  fail_link(link, system_error(ErrorCode::peer_lost, "connection with " + link->name + after + ": send", cause));
}

void TcpLinks::State::end_output(const LinkPtr& link) {
  error_code ec;
  link->socket.shutdown(tcp::socket::shutdown_send, ec);
  if (ec) return drop(link);  // the peer is gone already
  wait_read(link);
}

// ---- ends -----------------------------------------------------------------------------------------------------------------------------

void TcpLinks::State::close(LinkId id) {
  const auto found = links.find(static_cast<std::uint64_t>(id));
  if (found == links.end()) return;
  const LinkPtr link = found->second;
  links.erase(found);
  if (link->phase == Phase::open) begin_closing(link);
  else if (link->phase == Phase::connecting) drop(link);
}

void TcpLinks::State::begin_closing(const LinkPtr& link) {
  link->phase = Phase::closing;
  link->decoder = {};
  count_input(link);
  closing.insert(link);
  link->timer.expires_after(std::chrono::nanoseconds(options.flush_timeout_ns));
  link->timer.async_wait(handler([link](State& state, const error_code& ec) {
    if (!ec && link->phase == Phase::closing) state.drop(link);
  }));
  wait_read(link);
  write(link);
  if (!link->write_in_flight) end_output(link);
}

void TcpLinks::State::drop(const LinkPtr& link) {
  link->phase = Phase::gone;
  link->decoder = {};
  count_input(link);
  error_code ignored;  // the descriptor is gone in any case
  link->socket.close(ignored);
  link->timer.cancel();
  link->resolver.cancel();
  closing.erase(link);
}

void TcpLinks::State::fail_link(const LinkPtr& link, Error error) {
  drop(link);
  post_lost(link, std::move(error));
}

void TcpLinks::State::fail_with_goodbye(const LinkPtr& link, const Error& error) {
  if (link->phase != Phase::open) return fail_link(link, error);
  const session::Goodbye goodbye{static_cast<std::int32_t>(error.code), session::fit_text(error.text)};
  (void)session::encode(goodbye, link->sequence, link->queued);  // without it the peer learns less, but it learns the end
  begin_closing(link);
  post_lost(link, error);
}

/// Closing the id before this runs takes the report back.
void TcpLinks::State::post_lost(const LinkPtr& link, Error error) {
  asio::post(context, handler([link, error = std::move(error)](State& state) {
    const auto found = state.links.find(static_cast<std::uint64_t>(link->id));
    if (found == state.links.end() || found->second != link) return;
    state.links.erase(found);
    if (state.receiver.lost) state.receiver.lost(link->id, error);
  }));
}

void TcpLinks::State::close_all() {
  for (const ListenerPtr& listener : std::exchange(listeners, {})) {
    error_code ignored;  // the descriptor is gone in any case
    listener->acceptor.close(ignored);
    listener->timer.cancel();
  }
  for (const auto& [id, link] : std::exchange(links, {})) {
    if (link->phase == Phase::open) begin_closing(link);
    else if (link->phase == Phase::connecting) drop(link);
  }
}

void TcpLinks::State::drop_all() {
  close_all();
  for (const LinkPtr& link : std::exchange(closing, {})) drop(link);
}

// ---- TcpLinks -------------------------------------------------------------------------------------------------------------------------

TcpLinks::TcpLinks(asio::io_context& context, Options options) : state_(std::make_shared<State>(context, std::move(options))) {}

TcpLinks::~TcpLinks() { state_->drop_all(); }

void TcpLinks::set_receiver(Receiver receiver) { state_->receiver = std::move(receiver); }

Result<HostPort> TcpLinks::listen(const HostPort& address) { return state_->listen(address); }

void TcpLinks::close_all() { state_->close_all(); }

void TcpLinks::connect(LinkId link, std::string_view address, std::uint64_t deadline_ns) { state_->connect(link, address, deadline_ns); }

void TcpLinks::send(LinkId link, const session::Message& message) {
  const auto found = state_->links.find(static_cast<std::uint64_t>(link));
  if (found != state_->links.end()) state_->send(LinkPtr(found->second), message);
}

void TcpLinks::close(LinkId link) { state_->close(link); }

}  // namespace kvferry
