// One worker and, once connected, one endpoint to one neighbour: messages out, messages in, whole and in one piece.
//
//   WritePump ─► send_data(slot) ─► UCX packs head and pieces straight into its own buffer ─► neighbour's on_message
//
// A link has its worker for itself. Destroying the worker is the proof that nothing of the neighbour can be applied here any more, and that nothing of ours
// waits to be sent; that holds for a dead and for a frozen neighbour too, where an endpoint can neither be flushed nor closed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "library.h"
#include "wire.h"

namespace kvferry::ucx {

/// Takes what arrives, during progress only. `bytes` is valid for the call.
class MessageSink {
 public:
  virtual void on_message(std::span<const std::uint8_t> bytes) = 0;

 protected:
  ~MessageSink() = default;
};

struct SourcePiece {
  const std::uint8_t* address = nullptr;
  std::uint64_t length = 0;
  std::uint64_t region = 0;  ///< local, for deregistration
};

/// One data message on its way into UCX. Memory is taken once. While `pending` UCX has not packed it yet: the source is still needed, unless it is voided.
struct SendSlot {
  std::vector<std::uint8_t> head;  ///< DataHead, entries, notification
  std::uint32_t head_bytes = 0;
  std::vector<SourcePiece> sources;
  std::uint32_t source_count = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t sequence = 0;
  std::uint64_t room = 0;
  std::uint32_t generation = 0;
  bool pending = false;
  bool voided = false;
  class Link* link = nullptr;
};

class Link {
 public:
  static Result<std::unique_ptr<Link>> create(std::shared_ptr<Context> context, MessageSink& sink);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  LaneClass lane() const noexcept { return context_->lane(); }
  /// Longest message that stays one fragment here, read back from the worker.
  std::uint64_t message_bytes_max() const noexcept { return message_bytes_max_; }
  Result<std::vector<std::uint8_t>> address() const;
  int event_fd() const noexcept { return event_fd_; }

  /// Starts connecting; messages may be sent at once, UCX keeps them until the wire-up is through.
  Result<void> connect(std::span<const std::uint8_t> address);
  bool connected() const noexcept { return endpoint_ != nullptr; }

  /// A small message, copied. Never refused: what UCX cannot take waits here in order.
  void send_control(std::span<const std::uint8_t> bytes);
  /// Control messages that UCX has not taken or not finished.
  std::size_t control_backlog() const noexcept { return control_waiting_.size() + control_pending_; }
  /// `slot` is pending afterwards, or sent, or the link has failed.
  void send_data(SendSlot& slot);
  /// Data messages that UCX has not packed yet.
  std::uint32_t data_pending() const noexcept { return data_pending_; }

  /// Everything that is there, bounded. True: something happened.
  bool progress();
  /// False: busy, call progress.
  Result<bool> arm();

  /// Why it has failed, from the error callback or a send. Success of what was sent says nothing once this is set.
  const std::optional<Error>& failure() const noexcept { return failure_; }

  /// Starts the end of the endpoint; `finished` tells when UCX has let go of it. The destructor does without.
  void begin_close();
  bool close_finished();
  /// UCX asked for a part of a message: the segment is not what was read back. Ends the link.
  void refuse_fragments();
  /// Lanes and transports of the endpoint as UCX prints them, one line.
  std::string description() const;

 private:
  struct ControlBuffer {
    std::uint8_t bytes[sizeof(RefusedMessage)];
    std::uint32_t length = 0;
    Link* link = nullptr;
    ControlBuffer* next_free = nullptr;
  };

  Link(std::shared_ptr<Context> context, WorkerHandle worker, MessageSink& sink);
  Result<void> set_up();
  void fail_with(const char* call, ucs_status_t status);
  void send_waiting_controls();
  bool try_send_control(std::span<const std::uint8_t> bytes);
  static ucs_status_t on_receive(void* self, const void* header, size_t header_length, void* data, size_t length, const ucp_am_recv_param_t* param);
  static void on_error(void* self, ucp_ep_h endpoint, ucs_status_t status);

  std::shared_ptr<Context> context_;
  WorkerHandle worker_;
  MessageSink& sink_;
  ucp_ep_h endpoint_ = nullptr;
  ucs_status_ptr_t close_request_ = nullptr;
  int event_fd_ = -1;
  std::uint64_t message_bytes_max_ = 0;
  std::uint32_t data_pending_ = 0;
  std::uint32_t control_pending_ = 0;
  std::vector<std::unique_ptr<ControlBuffer>> control_buffers_;
  ControlBuffer* control_free_ = nullptr;
  std::deque<std::vector<std::uint8_t>> control_waiting_;
  std::optional<Error> failure_;
};

}  // namespace kvferry::ucx
