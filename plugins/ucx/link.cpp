#include "link.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "prefetch.h"

namespace kvferry::ucx {
namespace {

constexpr std::uint32_t kControlPendingMax = 16;
constexpr int kProgressRoundsMax = 8;  // each takes up to 16 messages of a shared-memory FIFO

// ---- the data type with which UCX lets us pack: its buffer is the message's only copy on this side ------------------------------------------------

void* start_pack(void* /*context*/, const void* buffer, size_t /*count*/) { return const_cast<void*>(buffer); }
void* start_unpack(void* /*context*/, void* buffer, size_t /*count*/) { return buffer; }
size_t packed_size(void* state) { return static_cast<SendSlot*>(state)->total_bytes; }
ucs_status_t unpack(void* /*state*/, size_t /*offset*/, const void* /*source*/, size_t /*count*/) { return UCS_ERR_UNSUPPORTED; }
void finish(void* /*state*/) {}

size_t pack(void* state, size_t offset, void* destination, size_t length_max) {
  auto& slot = *static_cast<SendSlot*>(state);
  if (offset != 0 || length_max < slot.total_bytes) {
    slot.link->refuse_fragments();
    return 0;
  }
  auto* out = static_cast<std::uint8_t*>(destination);
  if (slot.voided) {
    auto head = read_struct<DataHead>(slot.head.data());
    head.head.flags = static_cast<std::uint16_t>((head.head.flags & ~kDataNotify) | kDataVoid);
    std::memcpy(slot.head.data(), &head, sizeof(head));
  }
  std::memcpy(out, slot.head.data(), slot.head_bytes);
  out += slot.head_bytes;
  for (std::uint32_t i = 0; i < slot.source_count && !slot.voided; ++i) {
    if (i + 1 < slot.source_count) prefetch_for_read(slot.sources[i + 1].address, slot.sources[i + 1].length);
    std::memcpy(out, slot.sources[i].address, slot.sources[i].length);
    out += slot.sources[i].length;
  }
  return slot.total_bytes;
}

Result<ucp_datatype_t> make_data_type() {
  ucp_generic_dt_ops_t operations{};
  operations.start_pack = start_pack;
  operations.start_unpack = start_unpack;
  operations.packed_size = packed_size;
  operations.pack = pack;
  operations.unpack = unpack;
  operations.finish = finish;
  ucp_datatype_t type = 0;
  const ucs_status_t status = ucp_dt_create_generic(&operations, nullptr, &type);
  if (status != UCS_OK) return ucx_failure("describe messages to UCX", "ucp_dt_create_generic", status);
  return type;
}

/// One for the process: it holds no state, and UCX may use it until the last request is gone.
const Result<ucp_datatype_t>& data_type() {
  static const auto* type = new Result<ucp_datatype_t>(make_data_type());
  return *type;
}

}  // namespace

Link::Link(std::shared_ptr<Context> context, WorkerHandle worker, MessageSink& sink)
    : context_(std::move(context)), worker_(std::move(worker)), sink_(sink) {}

Result<std::unique_ptr<Link>> Link::create(std::shared_ptr<Context> context, MessageSink& sink) {
  const std::string what = std::string("create a worker for the ") + to_string(context->lane()) + " lane";
  if (!data_type()) return fail(data_type().error());
  forget_log();
  ucp_worker_params_t parameters{};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  const ucs_status_t status = ucp_worker_create(context->get(), &parameters, &worker);
  if (status != UCS_OK) return ucx_failure(what, "ucp_worker_create", status);
  std::unique_ptr<Link> link(new Link(std::move(context), WorkerHandle(worker), sink));
  if (auto ready = link->set_up(); !ready) return fail(ready.error().within(what));
  return link;
}

Result<void> Link::set_up() {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kActiveMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &Link::on_receive;
  handler.arg = this;
  ucs_status_t status = ucp_worker_set_am_recv_handler(worker_.get(), &handler);
  if (status != UCS_OK) return ucx_failure("take messages", "ucp_worker_set_am_recv_handler", status);
  status = ucp_worker_get_efd(worker_.get(), &event_fd_);
  if (status != UCS_OK) return ucx_failure("get an event fd", "ucp_worker_get_efd", status);
  // UCX lets a user header be so long that it still fits one fragment beside UCX's longest own header: the one way to read the segment back.
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  status = ucp_worker_query(worker_.get(), &attributes);
  if (status != UCS_OK) return ucx_failure("read the segment size", "ucp_worker_query", status);
  message_bytes_max_ = attributes.max_am_header;
  return {};
}

// The worker goes first: it takes its endpoint and every open request with it and tells their callbacks, which use the other members.
Link::~Link() { worker_.reset(); }

Result<std::vector<std::uint8_t>> Link::address() const {
  ucp_address_t* address = nullptr;
  size_t length = 0;
  const ucs_status_t status = ucp_worker_get_address(worker_.get(), &address, &length);
  if (status != UCS_OK) return ucx_failure("export a worker address", "ucp_worker_get_address", status);
  const auto* first = reinterpret_cast<const std::uint8_t*>(address);
  std::vector<std::uint8_t> bytes(first, first + length);
  ucp_worker_release_address(worker_.get(), address);
  return bytes;
}

Result<void> Link::connect(std::span<const std::uint8_t> address) {
  forget_log();
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
  // With peer error handling UCX 1.13 refuses shared memory. There liveness is ours: the process guard, and success only from acknowledgements.
  parameters.err_mode = lane() == LaneClass::shm ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.cb = &Link::on_error;
  parameters.err_handler.arg = this;
  const ucs_status_t status = ucp_ep_create(worker_.get(), &parameters, &endpoint_);
  if (status != UCS_OK) {
    endpoint_ = nullptr;
    return ucx_failure(std::string("connect over ") + to_string(lane()), "ucp_ep_create", status);
  }
  return {};
}

void Link::fail_with(const char* call, ucs_status_t status) {
  if (failure_) return;
  Error error(ErrorCode::peer_lost, std::string(to_string(lane())) + " lane: " + call + ": " + status_text(status));
  error.vendor_status = status;
  failure_ = std::move(error);
}

void Link::refuse_fragments() { fail_with("UCX wants to cut a message that should fit one fragment", UCS_ERR_INVALID_PARAM); }

void Link::on_error(void* self, ucp_ep_h /*endpoint*/, ucs_status_t status) { static_cast<Link*>(self)->fail_with("endpoint error", status); }

ucs_status_t Link::on_receive(void* self, const void* /*header*/, size_t header_length, void* data, size_t length, const ucp_am_recv_param_t* param) {
  auto& link = *static_cast<Link*>(self);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 || header_length != 0) {
    link.fail_with("message of a form this side never sends", UCS_ERR_INVALID_PARAM);
    return UCS_OK;
  }
  if (!link.failure_) link.sink_.on_message({static_cast<const std::uint8_t*>(data), length});
  return UCS_OK;
}

void Link::send_data(SendSlot& slot) {
  slot.link = this;
  slot.voided = false;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.datatype = *data_type();
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.user_data = &slot;
  param.cb.send = [](void* request, ucs_status_t status, void* user) {
    auto& done = *static_cast<SendSlot*>(user);
    done.pending = false;
    --done.link->data_pending_;
    if (status != UCS_OK) done.link->fail_with("send", status);
    ucp_request_free(request);
  };
  const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_, kActiveMessageId, nullptr, 0, &slot, 1, &param);
  if (request == nullptr) return;
  if (UCS_PTR_IS_ERR(request)) return fail_with("ucp_am_send_nbx", UCS_PTR_STATUS(request));
  slot.pending = true;
  ++data_pending_;
}

bool Link::try_send_control(std::span<const std::uint8_t> bytes) {
  if (control_pending_ >= kControlPendingMax) return false;
  if (control_free_ == nullptr) {
    control_buffers_.push_back(std::make_unique<ControlBuffer>());
    control_free_ = control_buffers_.back().get();
  }
  ControlBuffer& buffer = *control_free_;
  std::memcpy(buffer.bytes, bytes.data(), bytes.size());
  buffer.length = static_cast<std::uint32_t>(bytes.size());
  buffer.link = this;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.user_data = &buffer;
  param.cb.send = [](void* request, ucs_status_t status, void* user) {
    auto& done = *static_cast<ControlBuffer*>(user);
    --done.link->control_pending_;
    done.next_free = std::exchange(done.link->control_free_, &done);
    if (status != UCS_OK) done.link->fail_with("send", status);
    ucp_request_free(request);
  };
  const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_, kActiveMessageId, nullptr, 0, buffer.bytes, buffer.length, &param);
  if (UCS_PTR_IS_ERR(request)) {
    fail_with("ucp_am_send_nbx", UCS_PTR_STATUS(request));
  } else if (request != nullptr) {
    control_free_ = buffer.next_free;
    ++control_pending_;
  }
  return true;
}

void Link::send_control(std::span<const std::uint8_t> bytes) {
  if (failure_ || endpoint_ == nullptr) return;
  if (control_waiting_.empty() && try_send_control(bytes)) return;
  control_waiting_.emplace_back(bytes.begin(), bytes.end());
}

void Link::send_waiting_controls() {
  while (!control_waiting_.empty() && !failure_ && try_send_control(control_waiting_.front())) control_waiting_.pop_front();
}

bool Link::progress() {
  bool worked = false;
  for (int round = 0; round < kProgressRoundsMax; ++round) {
    if (ucp_worker_progress(worker_.get()) == 0) break;
    worked = true;
  }
  if (!control_waiting_.empty()) send_waiting_controls();
  return worked;
}

Result<bool> Link::arm() {
  const ucs_status_t status = ucp_worker_arm(worker_.get());
  if (status == UCS_OK) return true;
  if (status == UCS_ERR_BUSY) return false;
  return ucx_failure("arm a worker", "ucp_worker_arm", status);
}

void Link::begin_close() {
  if (endpoint_ == nullptr || close_request_ != nullptr) return;
  // Without peer error handling UCX refuses to close by force, and a close that flushes would wait for a frozen neighbour; the worker ends such endpoints.
  if (lane() == LaneClass::shm) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  close_request_ = ucp_ep_close_nbx(endpoint_, &param);
  endpoint_ = nullptr;
}

bool Link::close_finished() {
  if (!UCS_PTR_IS_PTR(close_request_)) return true;
  if (ucp_request_check_status(close_request_) == UCS_INPROGRESS) return false;
  ucp_request_free(std::exchange(close_request_, nullptr));
  return true;
}

std::string Link::description() const {
  if (endpoint_ == nullptr) return {};
  char* text = nullptr;
  size_t length = 0;
  FILE* stream = open_memstream(&text, &length);
  if (stream == nullptr) return {};
  ucp_ep_print_info(endpoint_, stream);
  (void)std::fclose(stream);  // a memory stream has nothing to flush to that could fail
  std::string out;
  std::string_view rest(text, length);
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (const auto at = line.find("lane["); at != std::string_view::npos) out += (out.empty() ? "" : ", ") + std::string(line.substr(at));
  }
  std::free(text);
  return out;
}

}  // namespace kvferry::ucx
