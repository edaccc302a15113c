// kvferry-raw-put: what UCX gives by itself, as the measure of `transfer-check bench`.
//
//   source: ucp_put_nbx per piece, progress every few, one flush; the clock stops when the flush is done
//   target: memory mapped once, spins in ucp_worker_progress while a round runs
//
// UCX's default settings, except that the lane named on the command line is chosen. On TCP endpoints have peer failure handling, as any serving
// engine needs it; on shared memory UCX 1.13 has none to offer. Spoken to over descriptor 3 like a worker.
#include <ucp/api/ucp.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench_pieces.h"
#include "channel.h"
#include "child.h"
#include "host_memory.h"

namespace kvferry::transfer_check {
namespace {

constexpr std::size_t kPutsPerProgress = 64;

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::_Exit(1);
}

void check(ucs_status_t status, const char* call) {
  if (status != UCS_OK) give_up(std::string(call) + ": " + ucs_status_string(status));
}

std::string to_hex(const void* data, std::size_t bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto value = static_cast<const unsigned char*>(data)[i];
    text += {kDigits[value >> 4], kDigits[value & 15]};
  }
  return text;
}

std::string from_hex(const std::string& text) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string data;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) data += static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1]));
  return data;
}

struct Arguments {
  bool is_target = false;
  std::string lane, memory;
  std::uint64_t pool_bytes = 0;
};

class Side {
 public:
  Side(Channel channel, const Arguments& arguments) : channel_(std::move(channel)), arguments_(arguments) {
    open_worker();
    map_memory();
  }

  void run() {
    for (;;) {
      auto command = serving_ ? channel_.try_receive() : channel_.receive(deadline_in(std::chrono::hours(24)));
      if (!command) std::_Exit(0);  // The command is gone; UCX has nothing that outlives the process.
      if (*command) obey(**command);
      for (std::size_t i = 0; serving_ && i < kPutsPerProgress; ++i) (void)ucp_worker_progress(worker_);
    }
  }

 private:
  void say(const Json& message) {
    if (!channel_.send(message, deadline_in(std::chrono::seconds(30)))) std::_Exit(0);
  }

  void obey(const Json& command) {
    const auto what = command.at("do").get<std::string>();
    if (what == "describe") describe();
    if (what == "connect") connect(command);
    if (what == "prepare") prepare(command);
    if (what == "run") say({{"is", "ran"}, {"seconds", put_all()}});
    if (what == "serve" || what == "rest") {
      serving_ = what == "serve";
      say({{"is", serving_ ? "serving" : "rests"}});
    }
  }

  void open_worker() {
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    if (arguments_.lane != "auto") check(ucp_config_modify(config, "TLS", (arguments_.lane + ",self").c_str()), "ucp_config_modify TLS");
    ucp_params_t context_parameters{};
    context_parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    context_parameters.features = UCP_FEATURE_RMA;
    check(ucp_init(&context_parameters, config, &context_), "ucp_init");
    ucp_config_release(config);
    ucp_worker_params_t worker_parameters{};
    worker_parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_parameters.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucp_worker_create(context_, &worker_parameters, &worker_), "ucp_worker_create");
  }

  void map_memory() {
    ucp_mem_map_params_t parameters{};
    parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    parameters.length = arguments_.pool_bytes;
    if (arguments_.is_target && arguments_.memory == "allocated") {
      parameters.flags = UCP_MEM_MAP_ALLOCATE;
    } else {
      auto mapping = Mapping::make(arguments_.pool_bytes);
      if (!mapping) give_up(one_line(mapping.error()));
      mapping_ = std::move(*mapping);
      parameters.address = mapping_.bytes().data();
    }
    check(ucp_mem_map(context_, &parameters, &handle_), "ucp_mem_map");
    ucp_mem_attr_t attributes{};
    attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    check(ucp_mem_query(handle_, &attributes), "ucp_mem_query");
    memory_ = static_cast<char*>(attributes.address);
    std::memset(memory_, 0, arguments_.pool_bytes);  // Pages are there before the clock runs.
  }

  void describe() {
    ucp_address_t* address = nullptr;
    std::size_t address_bytes = 0;
    check(ucp_worker_get_address(worker_, &address, &address_bytes), "ucp_worker_get_address");
    void* key = nullptr;
    std::size_t key_bytes = 0;
    check(ucp_rkey_pack(context_, handle_, &key, &key_bytes), "ucp_rkey_pack");
    say({{"is", "described"},
         {"address", to_hex(address, address_bytes)},
         {"key", to_hex(key, key_bytes)},
         {"base", reinterpret_cast<std::uint64_t>(memory_)}});
    ucp_rkey_buffer_release(key);
    ucp_worker_release_address(worker_, address);
  }

  void connect(const Json& command) {
    const std::string address = from_hex(command.at("address").get<std::string>());
    const std::string key = from_hex(command.at("key").get<std::string>());
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
    parameters.err_mode = arguments_.lane == "tcp" ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
    check(ucp_ep_create(worker_, &parameters, &endpoint_), "ucp_ep_create");
    check(ucp_ep_rkey_unpack(endpoint_, key.data(), &key_), "ucp_ep_rkey_unpack");
    target_base_ = command.at("base").get<std::uint64_t>();
    say({{"is", "connected"}});
  }

  void prepare(const Json& command) {
    const PieceJob job{command.at("piece_bytes").get<std::uint64_t>(), command.at("pool_bytes").get<std::uint64_t>(),
                       command.at("seed").get<std::uint64_t>()};
    pieces_ = make_pieces(job);
    piece_bytes_ = job.piece_bytes;
    say({{"is", "prepared"}});
  }

  double put_all() {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
    parameters.memh = handle_;
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < pieces_.source.size(); ++i) {
      void* request = ucp_put_nbx(endpoint_, memory_ + pieces_.source[i], piece_bytes_, target_base_ + pieces_.target[i], key_, &parameters);
      if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "ucp_put_nbx");
      if (request != nullptr) ucp_request_free(request);  // The flush covers it.
      if (i % kPutsPerProgress == 0) (void)ucp_worker_progress(worker_);
    }
    const ucp_request_param_t none{};
    void* flush = ucp_ep_flush_nbx(endpoint_, &none);
    if (UCS_PTR_IS_ERR(flush)) check(UCS_PTR_STATUS(flush), "ucp_ep_flush_nbx");
    if (flush != nullptr) {
      ucs_status_t status = UCS_INPROGRESS;
      while ((status = ucp_request_check_status(flush)) == UCS_INPROGRESS) (void)ucp_worker_progress(worker_);
      ucp_request_free(flush);
      check(status, "ucp_ep_flush_nbx");
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  Channel channel_;
  Arguments arguments_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h handle_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  Mapping mapping_;
  char* memory_ = nullptr;
  std::uint64_t target_base_ = 0, piece_bytes_ = 0;
  PieceList pieces_;
  bool serving_ = false;
};

}  // namespace
}  // namespace kvferry::transfer_check

int main(int count, char** words) {
  using namespace kvferry::transfer_check;
  if (count != 5) {
    std::fprintf(stderr, "kvferry-raw-put: started by transfer-check bench, not by hand\n");
    return 2;
  }
  Side side(Channel(Descriptor(kChannelNumber)), {std::strcmp(words[1], "target") == 0, words[2], words[3], std::stoull(words[4])});
  side.run();
}
