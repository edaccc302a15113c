/// kvferry/tcp_links.h: control links over TCP (Boost.Asio): the shell under the engine's LinkPort. IPv4 and IPv6, automatic ports.
///
/// Not thread-safe: everything runs on the thread that runs the io_context, which outlives the links. The receiver is never called from inside a call of
/// ours. Each link that fails is reported once by `lost`, with the address and the cause in the text, and is gone; a link that was closed is never
/// reported. Bytes that are no message end the link; where the other side speaks kvferry, it gets the cause in a goodbye.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kvferry/engine.h"

namespace boost::asio {
class io_context;
}

namespace kvferry {

/// Splits "host:port", "[v6]:port"; the port is 0..65535. Error names the text.
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
Result<HostPort> parse_host_port(std::string_view text);
std::string to_string(const HostPort& address);

class TcpLinks final : public LinkPort {
 public:
  /// The engine's half: accept_link, link_opened, link_message, link_lost.
  struct Receiver {
    std::function<LinkId(std::string_view remote)> accepted;  ///< the id works once this has returned; 0: not wanted
    std::function<void(LinkId)> opened;
    std::function<void(LinkId, session::Message)> message;
    std::function<void(LinkId, Error)> lost;
  };
  struct Options {
    std::uint64_t output_bytes_max = 128u << 20;  ///< queued per link; beyond it the link is lost ("peer does not read")
    std::uint32_t links_max = 16384;              ///< beyond it an incoming one gets a goodbye, an outgoing one is lost with `limit`
    std::uint64_t input_bytes_max = 1u << 30;     ///< unfinished messages of all links; the link that goes beyond it is lost
    std::uint64_t flush_timeout_ns = 2'000'000'000;  ///< how long a closed link may take to hand its output to the other side
    LogFunction log;  ///< for what no link can be told: accept fails on this host, connections beyond links_max; silent by default
  };
  TcpLinks(boost::asio::io_context& context, Options options);
  /// Drops what close() has not finished.
  ~TcpLinks() override;

  void set_receiver(Receiver receiver);
  /// Binds and listens; port 0 picks one; "::" takes IPv4 too. Returns the address as bound, which for 0.0.0.0 and :: is not yet one to tell to others.
  /// Error `unavailable` names address, port and errno text ("address already in use"). A host name is looked up first, and waited for.
  Result<HostPort> listen(const HostPort& address);
  /// Stops listening and does for every link what close() does. The io_context runs out of work within flush_timeout_ns.
  void close_all();

  /// `deadline_ns` counts on CLOCK_MONOTONIC; 0: none but the kernel's.
  void connect(LinkId link, std::string_view address, std::uint64_t deadline_ns) override;
  void send(LinkId link, const session::Message& message) override;
  void close(LinkId link) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace kvferry
