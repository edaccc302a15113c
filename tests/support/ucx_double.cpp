#include "support/ucx_double.h"

#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

struct ucp_config {
  std::map<std::string, std::string> keys;
};

struct ucp_context {
  std::map<std::string, std::string> keys;
  bool tcp() const { return keys.at("TLS") == "tcp"; }
  std::size_t segment() const { return std::stoul(keys.at(tcp() ? "TX_SEG_SIZE" : "MM_SEG_SIZE")); }
};

namespace {

struct Request {
  ucs_status_t status = UCS_INPROGRESS;
  std::uint64_t worker = 0;
};

struct Pending {
  ucp_ep_h endpoint = nullptr;
  Request* request = nullptr;
  ucp_send_nbx_callback_t callback = nullptr;
  void* user = nullptr;
  const void* buffer = nullptr;
  std::size_t count = 0;
  ucp_datatype_t type = 0;
};

struct State {
  ucx_double::Faults faults;
  std::mt19937_64 random;
  std::map<std::string, std::uint64_t> calls;
  std::map<std::uint64_t, ucp_worker_h> workers;
  std::set<Request*> requests;
  ucx_double::Live live;
  std::uint64_t next_worker = 1, sent = 0, delivered = 0;
  ucs_log_func_t log = nullptr;
  ucp_generic_dt_ops_t pack{};
};
State& state() {
  static State the_state;
  return the_state;
}

bool chance(std::uint32_t per_mille) { return per_mille != 0 && state().random() % 1000 < per_mille; }

/// UCS_OK, or the status that this call of the function must fail with.
ucs_status_t injected(const char* name) {
  State& self = state();
  const std::uint64_t number = ++self.calls[name];
  return self.faults.fail_call == name && self.faults.fail_nth == number ? self.faults.fail_status : UCS_OK;
}

void log_line(ucs_log_level_t level, const char* format, ...) {
  if (state().log == nullptr) return;
  va_list arguments;
  va_start(arguments, format);
  (void)state().log("double.c", 1, "double", level, nullptr, format, arguments);
  va_end(arguments);
}

}  // namespace

struct ucp_worker {
  ucp_context_h context = nullptr;
  std::uint64_t id = 0;
  int event_fd = -1;
  int listener = -1;
  std::uint16_t port = 0;
  ucp_am_handler_param_t handler{};
  std::deque<std::vector<std::uint8_t>> arrived;
  std::deque<Pending> pending;
  std::vector<ucp_ep_h> endpoints;
  std::vector<std::uint8_t> address;
};

struct ucp_ep {
  ucp_worker_h worker = nullptr;
  std::uint64_t neighbour = 0;
  ucp_err_handler_t handler{};
  bool peer_mode = false;
  bool broken = false;        ///< its error callback is still to come
  bool failed = false;
  bool closed = false;
};

namespace ucx_double {

void reset(std::uint64_t seed) {
  const auto log = state().log;
  const auto pack = state().pack;
  state() = State();
  state().log = log;
  state().pack = pack;
  state().random.seed(seed);
}
Faults& faults() { return state().faults; }
std::uint64_t calls(const std::string& name) { return state().calls[name]; }
Live live() { return state().live; }
std::uint64_t messages_delivered() { return state().delivered; }

}  // namespace ucx_double

namespace {

ucp_worker_h find_worker(std::uint64_t id) {
  const auto found = state().workers.find(id);
  return found == state().workers.end() ? nullptr : found->second;
}

void ring(ucp_worker_h worker) {
  const std::uint64_t one = 1;
  (void)!write(worker->event_fd, &one, sizeof(one));
}

std::vector<std::uint8_t> packed(const Pending& send) {
  std::vector<std::uint8_t> bytes;
  if ((send.type & UCP_DATATYPE_CLASS_MASK) != UCP_DATATYPE_GENERIC) {
    const auto* from = static_cast<const std::uint8_t*>(send.buffer);
    return {from, from + send.count};
  }
  const ucp_generic_dt_ops_t& operations = state().pack;
  void* const packing = operations.start_pack(nullptr, send.buffer, send.count);
  bytes.resize(operations.packed_size(packing));
  const std::size_t written = operations.pack(packing, 0, bytes.data(), bytes.size());
  operations.finish(packing);
  bytes.resize(written);
  return bytes;
}

/// Onto the wire. What becomes of it is the faults' choice; the sender hears that it is sent.
void transmit(const Pending& send) {
  State& self = state();
  const std::uint64_t number = ++self.sent;
  std::vector<std::uint8_t> bytes = packed(send);
  if (self.faults.break_after != 0 && number == self.faults.break_after) {
    send.endpoint->broken = true;
    ring(send.endpoint->worker);
    return;
  }
  if (send.endpoint->broken || (self.faults.lose_after != 0 && number >= self.faults.lose_after)) return;
  ucp_worker_h target = find_worker(send.endpoint->neighbour);
  if (target == nullptr) {
    if (send.endpoint->peer_mode) send.endpoint->broken = true;
    return;
  }
  target->arrived.push_back(std::move(bytes));
  ring(target);
}

void complete(Pending send, ucs_status_t status) {
  send.request->status = status;
  if (send.callback != nullptr) send.callback(send.request, status, send.user);
}

bool send_some(ucp_worker_h worker) {
  if (state().faults.hold_sends) return false;
  bool worked = false;
  while (!worker->pending.empty() && !chance(300)) {
    Pending send = worker->pending.front();
    worker->pending.pop_front();
    transmit(send);
    complete(send, UCS_OK);
    worked = true;
  }
  return worked;
}

/// First what the endpoint still had to send, then its error callback, as over TCP.
void report_error(ucp_ep_h endpoint) {
  endpoint->broken = false;
  endpoint->failed = true;
  std::deque<Pending> rest;
  for (Pending& send : std::exchange(endpoint->worker->pending, {})) {
    if (send.endpoint == endpoint) {
      complete(send, UCS_ERR_CONNECTION_RESET);
    } else {
      rest.push_back(send);
    }
  }
  endpoint->worker->pending = std::move(rest);
  if (endpoint->handler.cb != nullptr) endpoint->handler.cb(endpoint->handler.arg, endpoint, UCS_ERR_CONNECTION_RESET);
}

bool report_errors(ucp_worker_h worker) {
  bool worked = false;
  for (ucp_ep_h endpoint : std::vector<ucp_ep_h>(worker->endpoints)) {
    if (!endpoint->broken || endpoint->closed) continue;
    report_error(endpoint);
    worked = true;
  }
  return worked;
}

void deliver_one(ucp_worker_h worker) {
  std::size_t at = 0;
  if (worker->arrived.size() > 1 && chance(state().faults.reorder_per_mille)) at = state().random() % std::min<std::size_t>(worker->arrived.size(), 8);
  std::vector<std::uint8_t> bytes = std::move(worker->arrived[at]);
  worker->arrived.erase(worker->arrived.begin() + static_cast<std::ptrdiff_t>(at));
  ++state().delivered;
  ucp_am_recv_param_t param{};
  (void)worker->handler.cb(worker->handler.arg, nullptr, 0, bytes.data(), bytes.size(), &param);
}

void open_listener(ucp_worker_h worker) {
  worker->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  (void)bind(worker->listener, reinterpret_cast<sockaddr*>(&address), length);
  (void)listen(worker->listener, 16);
  (void)getsockname(worker->listener, reinterpret_cast<sockaddr*>(&address), &length);
  worker->port = ntohs(address.sin_port);
}

Request* new_request(ucp_worker_h worker) {
  ++state().live.requests;
  auto* request = new Request();
  request->worker = worker->id;
  state().requests.insert(request);
  return request;
}

void free_request(Request* request) {
  --state().live.requests;
  state().requests.erase(request);
  delete request;
}

}  // namespace

// ---- the calls ----------------------------------------------------------------------------------------------------------------------------------

extern "C" {

const char* ucs_status_string(ucs_status_t status) {
  switch (status) {
    case UCS_OK:
      return "Success";
    case UCS_ERR_NO_MEMORY:
      return "Out of memory";
    case UCS_ERR_CONNECTION_RESET:
      return "Connection reset by remote peer";
    case UCS_ERR_UNREACHABLE:
      return "Destination is unreachable";
    case UCS_ERR_INVALID_PARAM:
      return "Invalid parameter";
    default:
      return "some other status";
  }
}

void ucs_log_push_handler(ucs_log_func_t handler) { state().log = handler; }

void ucp_get_version(unsigned* major, unsigned* minor, unsigned* release) {
  *major = UCP_API_MAJOR;
  *minor = UCP_API_MINOR;
  *release = 0;
}

ucs_status_t ucp_config_read(const char*, const char*, ucp_config_t** ret_config) {
  if (const ucs_status_t status = injected("ucp_config_read"); status != UCS_OK) return status;
  ++state().live.configurations;
  *ret_config = new ucp_config();
  return UCS_OK;
}

ucs_status_t ucp_config_modify(ucp_config_t* config, const char* name, const char* value) {
  if (const ucs_status_t status = injected("ucp_config_modify"); status != UCS_OK) return status;
  config->keys[name] = value;
  return UCS_OK;
}

void ucp_config_release(ucp_config_t* config) {
  --state().live.configurations;
  delete config;
}

ucs_status_t ucp_init_version(unsigned, unsigned, const ucp_params_t*, const ucp_config_t* config, ucp_context_h* ret_context) {
  if (const ucs_status_t status = injected("ucp_init"); status != UCS_OK) return status;
  ++state().live.contexts;
  *ret_context = new ucp_context{config->keys};
  return UCS_OK;
}

void ucp_cleanup(ucp_context_h context) {
  --state().live.contexts;
  delete context;
}

ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t*, ucp_worker_h* ret_worker) {
  if (const ucs_status_t status = injected("ucp_worker_create"); status != UCS_OK) return status;
  if (state().faults.reject_configuration) log_line(UCS_LOG_LEVEL_WARN, "invalid configurations: %s", "MM_SEG_SIZE=16384");
  ++state().live.workers;
  auto* worker = new ucp_worker();
  worker->context = context;
  worker->id = state().next_worker++;
  worker->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (context->tcp()) open_listener(worker);
  state().workers[worker->id] = worker;
  *ret_worker = worker;
  return UCS_OK;
}

void ucp_worker_destroy(ucp_worker_h worker) {
  while (!worker->pending.empty()) {
    Pending send = worker->pending.front();
    worker->pending.pop_front();
    complete(send, UCS_ERR_CANCELED);
  }
  for (ucp_ep_h endpoint : worker->endpoints) {
    --state().live.endpoints;
    delete endpoint;
  }
  for (Request* request : std::set<Request*>(state().requests)) {
    if (request->worker == worker->id) free_request(request);  // of a close that never ended
  }
  state().workers.erase(worker->id);
  // Over TCP the neighbours' endpoints see the connection go.
  for (auto& [id, other] : state().workers) {
    for (ucp_ep_h endpoint : other->endpoints) {
      if (endpoint->neighbour != worker->id || !endpoint->peer_mode || endpoint->failed || endpoint->closed) continue;
      endpoint->broken = true;
      ring(other);
    }
  }
  (void)close(worker->event_fd);
  if (worker->listener >= 0) (void)close(worker->listener);
  --state().live.workers;
  delete worker;
}

ucs_status_t ucp_worker_query(ucp_worker_h worker, ucp_worker_attr_t* attributes) {
  if (const ucs_status_t status = injected("ucp_worker_query"); status != UCS_OK) return status;
  attributes->max_am_header = worker->context->segment() - 100;
  return UCS_OK;
}

ucs_status_t ucp_worker_get_address(ucp_worker_h worker, ucp_address_t** ret_address, size_t* ret_length) {
  if (const ucs_status_t status = injected("ucp_worker_get_address"); status != UCS_OK) return status;
  ++state().live.addresses;
  auto* bytes = new std::uint8_t[16]();
  std::memcpy(bytes, &worker->id, sizeof(worker->id));
  bytes[8] = static_cast<std::uint8_t>(worker->port >> 8);
  bytes[9] = static_cast<std::uint8_t>(worker->port);
  *ret_address = reinterpret_cast<ucp_address_t*>(bytes);
  *ret_length = 16;
  return UCS_OK;
}

void ucp_worker_release_address(ucp_worker_h, ucp_address_t* address) {
  --state().live.addresses;
  delete[] reinterpret_cast<std::uint8_t*>(address);
}

ucs_status_t ucp_worker_get_efd(ucp_worker_h worker, int* ret_fd) {
  if (const ucs_status_t status = injected("ucp_worker_get_efd"); status != UCS_OK) return status;
  *ret_fd = worker->event_fd;
  return UCS_OK;
}

ucs_status_t ucp_worker_arm(ucp_worker_h worker) {
  if (const ucs_status_t status = injected("ucp_worker_arm"); status != UCS_OK) return status;
  if (state().faults.busy_arms > 0) {
    --state().faults.busy_arms;
    return UCS_ERR_BUSY;
  }
  const bool broken = std::any_of(worker->endpoints.begin(), worker->endpoints.end(), [](ucp_ep_h endpoint) { return endpoint->broken; });
  if (!worker->arrived.empty() || !worker->pending.empty() || broken) return UCS_ERR_BUSY;
  std::uint64_t drained = 0;
  (void)!read(worker->event_fd, &drained, sizeof(drained));
  return UCS_OK;
}

unsigned ucp_worker_progress(ucp_worker_h worker) {
  ++state().calls["ucp_worker_progress"];
  bool worked = send_some(worker);
  const bool error_later = state().faults.error_within_progress && worker->arrived.size() > 1;
  if (!error_later) worked = report_errors(worker) || worked;
  constexpr int kDeliveriesMax = 16;
  for (int i = 0; i < kDeliveriesMax && !worker->arrived.empty(); ++i) {
    deliver_one(worker);
    worked = true;
    if (error_later && i == 0) (void)report_errors(worker);
  }
  return worked ? 1 : 0;
}

ucs_status_t ucp_worker_set_am_recv_handler(ucp_worker_h worker, const ucp_am_handler_param_t* param) {
  if (const ucs_status_t status = injected("ucp_worker_set_am_recv_handler"); status != UCS_OK) return status;
  worker->handler = *param;
  return UCS_OK;
}

ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t* params, ucp_ep_h* ret_endpoint) {
  if (const ucs_status_t status = injected("ucp_ep_create"); status != UCS_OK) return status;
  std::uint64_t neighbour = 0;
  std::memcpy(&neighbour, params->address, sizeof(neighbour));
  if (find_worker(neighbour) == nullptr) return UCS_ERR_UNREACHABLE;
  ++state().live.endpoints;
  auto* endpoint = new ucp_ep();
  endpoint->worker = worker;
  endpoint->neighbour = neighbour;
  endpoint->handler = params->err_handler;
  endpoint->peer_mode = params->err_mode == UCP_ERR_HANDLING_MODE_PEER;
  endpoint->broken = state().faults.fail_wire_up;
  worker->endpoints.push_back(endpoint);
  *ret_endpoint = endpoint;
  return UCS_OK;
}

ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h endpoint, const ucp_request_param_t* param) {
  if (const ucs_status_t status = injected("ucp_ep_close_nbx"); status != UCS_OK) return UCS_STATUS_PTR(status);
  if ((param->flags & UCP_EP_CLOSE_FLAG_FORCE) != 0 && !endpoint->peer_mode) return UCS_STATUS_PTR(UCS_ERR_INVALID_PARAM);
  endpoint->closed = true;
  Request* request = new_request(endpoint->worker);
  if (!state().faults.slow_close) request->status = UCS_OK;
  return request;
}

void ucp_ep_print_info(ucp_ep_h, FILE* stream) { std::fprintf(stream, "# lane[0]: double\n"); }

ucs_status_t ucp_dt_create_generic(const ucp_generic_dt_ops_t* operations, void*, ucp_datatype_t* ret_type) {
  state().pack = *operations;
  *ret_type = UCP_DATATYPE_GENERIC;
  return UCS_OK;
}

ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h endpoint, unsigned, const void*, size_t, const void* buffer, size_t count, const ucp_request_param_t* param) {
  if (const ucs_status_t status = injected("ucp_am_send_nbx"); status != UCS_OK) return UCS_STATUS_PTR(status);
  if (endpoint->failed) return UCS_STATUS_PTR(UCS_ERR_CONNECTION_RESET);
  Pending send;
  send.endpoint = endpoint;
  send.buffer = buffer;
  send.count = count;
  send.type = (param->op_attr_mask & UCP_OP_ATTR_FIELD_DATATYPE) != 0 ? param->datatype : ucp_dt_make_contig(1);
  send.callback = param->cb.send;
  send.user = param->user_data;
  // What waits keeps its place in line, as in UCX.
  if (endpoint->worker->pending.empty() && !state().faults.hold_sends && !chance(state().faults.pending_per_mille)) {
    transmit(send);
    return nullptr;
  }
  send.request = new_request(endpoint->worker);
  endpoint->worker->pending.push_back(send);
  return send.request;
}

ucs_status_t ucp_request_check_status(void* request) { return static_cast<Request*>(request)->status; }

void ucp_request_free(void* request) {
  free_request(static_cast<Request*>(request));
}

}  // extern "C"
