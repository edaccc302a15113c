/// kvferry/tcp_links.h: control links over TCP (Boost.Asio): the shell under the engine's LinkPort. IPv4 and IPv6, automatic ports.
///
/// Not thread-safe: everything runs on the thread that runs the io_context. The receiver of what the links bring is given once at construction.
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
    std::function<LinkId(std::string_view remote)> accepted;
    std::function<void(LinkId)> opened;
    std::function<void(LinkId, session::Message)> message;
    std::function<void(LinkId, Error)> lost;
  };
  struct Options {
    std::uint64_t output_bytes_max = 128u << 20;  ///< queued per link; beyond it the link is lost ("peer does not read")
    std::uint32_t links_max = 16384;
  };
  TcpLinks(boost::asio::io_context& context, Options options);
  ~TcpLinks() override;

  void set_receiver(Receiver receiver);
  /// Binds and listens; port 0 picks one. Error `unavailable` names address, port and errno text ("address already in use").
  Result<HostPort> listen(const HostPort& address);
  void close_all();

  void connect(LinkId link, std::string_view address, std::uint64_t deadline_ns) override;
  void send(LinkId link, const session::Message& message) override;
  void close(LinkId link) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace kvferry
