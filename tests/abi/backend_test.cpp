// The C++ side of a backend against tables that misbehave, and the small parts around it: errors, settings, the host table.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "kvferry/backend.h"

using namespace kvferry;

// The plugin of these tests is a table in this program; what an entry does is set by the test.
struct kvferry_backend {
  std::function<kvferry_status(kvferry_error*)> answer = [](kvferry_error*) { return KVFERRY_OK; };
  std::uint64_t blob_bytes = 0;
  std::uint64_t blob_grows_by = 0;
  std::uint32_t events = 0;
  std::uint32_t capabilities = KVFERRY_CAP_WRITE;
  std::uint32_t destroyed = 0;
};

namespace {

kvferry_backend fake;

template <class... Arguments>
kvferry_status answer(kvferry_backend* backend, Arguments... arguments) {
  return backend->answer(std::get<sizeof...(Arguments) - 1>(std::tie(arguments...)));
}

kvferry_backend_table make_table() {
  kvferry_backend_table table{};
  table.struct_size = sizeof(table);
  table.magic = KVFERRY_BACKEND_MAGIC;
  table.abi_major = KVFERRY_BACKEND_ABI_MAJOR;
  table.name = "fake";
  table.version = "1";
  table.build = "in the test";
  table.probe = [](const kvferry_host*, const kvferry_setting*, std::uint32_t, kvferry_device*, std::uint32_t, std::uint32_t* ret_count,
                   kvferry_error*) {
    *ret_count = 0xffffffffu;
    return kvferry_status{KVFERRY_OK};
  };
  table.create = [](const kvferry_host*, const kvferry_setting*, std::uint32_t, kvferry_backend** ret_backend, kvferry_error* error) {
    const auto status = fake.answer(error);
    if (status == KVFERRY_OK) *ret_backend = &fake;
    return status;
  };
  table.destroy = [](kvferry_backend* backend, std::uint32_t, kvferry_error*) {
    ++backend->destroyed;
    return kvferry_status{KVFERRY_OK};
  };
  table.query = [](kvferry_backend* backend, kvferry_limits* limits, kvferry_error*) {
    limits->capabilities = backend->capabilities;
    return kvferry_status{KVFERRY_OK};
  };
  table.effective_config = [](kvferry_backend* backend, char* text, std::uint32_t capacity, std::uint32_t* ret_bytes, kvferry_error* error) {
    const char json[] = "{\"a\": 1}";
    if (capacity >= sizeof(json)) std::memcpy(text, json, sizeof(json));
    *ret_bytes = sizeof(json);
    return backend->answer(error);
  };
  table.register_region = answer;
  table.deregister_region = answer;
  table.export_regions = [](kvferry_backend* backend, const kvferry_region*, std::uint32_t, void* blob, std::uint64_t capacity,
                            std::uint64_t* ret_bytes, kvferry_error*) {
    if (capacity >= backend->blob_bytes && capacity > 0) std::memset(blob, 0x42, backend->blob_bytes);
    *ret_bytes = backend->blob_bytes;
    backend->blob_bytes += backend->blob_grows_by;
    return kvferry_status{KVFERRY_OK};
  };
  table.peer_create = answer;
  table.peer_export = answer;
  table.peer_connect = answer;
  table.import_regions = answer;
  table.forget_regions = answer;
  table.peer_state = answer;
  table.peer_close = answer;
  table.submit = answer;
  table.cancel = answer;
  table.fence = answer;
  table.progress = answer;
  table.poll = [](kvferry_backend* backend, kvferry_event* events, std::uint32_t capacity, std::uint32_t* ret_count, kvferry_error*) {
    for (std::uint32_t i = 0; i < capacity; ++i) {
      if (events[i].struct_size != sizeof(kvferry_event)) return kvferry_status{KVFERRY_ERROR_INVALID_ARGUMENT};
    }
    *ret_count = backend->events;
    return kvferry_status{KVFERRY_OK};
  };
  table.stats = answer;
  return table;
}
const kvferry_backend_table fake_table = make_table();

struct Fixture {
  Host host{Host::Options{}};
  Plugin plugin = *adopt_plugin(&fake_table, "fake");
  std::unique_ptr<Backend> backend;
  Fixture() {
    fake = kvferry_backend{};
    backend = *Backend::create(plugin, host, {});
  }
};

kvferry_status fill(kvferry_error* error, std::int32_t code, std::int32_t error_class, const std::string& text) {
  error->code = code;
  error->error_class = error_class;
  error->vendor_status = -80;
  error->sys_errno = 12;
  std::memset(error->text, 0, sizeof(error->text));
  std::memcpy(error->text, text.data(), std::min(text.size(), sizeof(error->text)));  // a long one is not terminated
  return code;
}

}  // namespace

TEST_CASE_METHOD(Fixture, "an error of the plugin keeps its code, class, vendor status, errno and text") {
  fake.answer = [](kvferry_error* error) { return fill(error, KVFERRY_ERROR_IO, KVFERRY_CLASS_REREGISTER, "the cable is out"); };
  const auto result = backend->cancel(1, 2, 3);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::io);
  CHECK(result.error().error_class == ErrorClass::reregister);
  CHECK(result.error().vendor_status == -80);
  CHECK(result.error().sys_errno == 12);
  CHECK(result.error().text == "backend fake: cancel: the cable is out");
}

TEST_CASE_METHOD(Fixture, "an error without details, or with wrong ones, is still an error") {
  fake.answer = [](kvferry_error*) { return kvferry_status{KVFERRY_ERROR_BUSY}; };
  CHECK(backend->cancel(1, 2, 3).error().code == ErrorCode::busy);
  CHECK(backend->cancel(1, 2, 3).error().text == "backend fake: cancel: no reason given");
  fake.answer = [](kvferry_error*) { return kvferry_status{77}; };
  CHECK(backend->cancel(1, 2, 3).error().code == ErrorCode::internal);
  CHECK(backend->cancel(1, 2, 3).error().text.find("77") != std::string::npos);
  fake.answer = [](kvferry_error*) { return kvferry_status{-1}; };
  CHECK(backend->progress().error().code == ErrorCode::internal);
  fake.answer = [](kvferry_error* error) { return fill(error, 4711, 99, "what is this"); };
  CHECK(backend->cancel(1, 2, 3).error().code == ErrorCode::internal);
  CHECK(backend->cancel(1, 2, 3).error().text.find("4711") != std::string::npos);
  fake.answer = [](kvferry_error* error) { return fill(error, KVFERRY_ERROR_TIMEOUT, 0, std::string(1000, 'y')); };  // no terminator
  const auto result = backend->cancel(1, 2, 3);
  CHECK(result.error().error_class == default_class(ErrorCode::timeout));
  CHECK(result.error().text.size() == std::string("backend fake: cancel: ").size() + KVFERRY_ERROR_TEXT_BYTES);
}

TEST_CASE_METHOD(Fixture, "an exception of the plugin ends at the line") {
  fake.answer = [](kvferry_error*) -> kvferry_status { throw std::runtime_error("out of the plugin"); };
  const auto result = backend->cancel(1, 2, 3);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::internal);
  CHECK(result.error().text == "backend fake: cancel: threw an exception");
  CHECK(Backend::create(plugin, host, {}).error().code == ErrorCode::internal);
}

TEST_CASE_METHOD(Fixture, "again means what the entry says it means") {
  fake.answer = [](kvferry_error*) { return kvferry_status{KVFERRY_AGAIN}; };
  CHECK_FALSE(*backend->deregister_region(1, KVFERRY_DEREGISTER_DRAIN));
  kvferry_batch batch{};
  batch.write_count = 3;
  const auto accepted = backend->submit(1, batch);
  REQUIRE(accepted);
  CHECK(accepted->writes == 0);
  CHECK_FALSE(accepted->all);
  const auto canceled = backend->cancel(1, 2, 3);
  REQUIRE_FALSE(canceled);
  CHECK(canceled.error().code == ErrorCode::busy);
  CHECK(canceled.error().error_class == ErrorClass::retry);
  // A bare notification: all of it was taken, and it has no write.
  fake.answer = [](kvferry_error*) { return kvferry_status{KVFERRY_OK}; };
  batch.write_count = 0;
  CHECK(backend->submit(1, batch)->all);
}

TEST_CASE_METHOD(Fixture, "a blob is asked for again while it grows, and not for ever") {
  fake.blob_bytes = 10;
  CHECK(backend->export_regions({})->size() == 10);
  fake.blob_bytes = 0;
  CHECK(backend->export_regions({})->empty());
  fake.blob_bytes = 10;
  fake.blob_grows_by = 7;
  const auto growing = backend->export_regions({});
  REQUIRE_FALSE(growing);
  CHECK(growing.error().code == ErrorCode::internal);
  fake.blob_grows_by = 0;
  fake.blob_bytes = std::uint64_t{1} << 60;
  CHECK(backend->export_regions({}).error().text.find("1152921504606846976") != std::string::npos);
  CHECK(*backend->effective_config() == "{\"a\": 1}");
}

TEST_CASE_METHOD(Fixture, "more events than there is room for are not believed") {
  kvferry_event events[4];
  fake.events = 4;
  CHECK(*backend->poll(events) == 4);
  fake.events = 5;
  CHECK(backend->poll(events).error().code == ErrorCode::internal);
  CHECK(probe_devices(plugin, host, {}).error().code == ErrorCode::internal);
}

TEST_CASE_METHOD(Fixture, "a capability without its entries is refused at create") {
  fake.capabilities = KVFERRY_CAP_WRITE | KVFERRY_CAP_EVENT_FD;
  const auto fd = Backend::create(plugin, host, {});
  REQUIRE_FALSE(fd);
  CHECK(fd.error().text.find("event_fd") != std::string::npos);
  fake.capabilities = KVFERRY_CAP_WRITE | KVFERRY_CAP_ALLOCATE;
  CHECK(Backend::create(plugin, host, {}).error().text.find("free_memory") != std::string::npos);
  CHECK(fake.destroyed == 2);
}

TEST_CASE_METHOD(Fixture, "a forked child gets an error from every call and leaves the backend to its parent") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    bool good = backend->cancel(1, 2, 3).error().code == ErrorCode::forked;
    good = good && backend->progress().error().code == ErrorCode::forked;
    good = good && backend->progress().error().text.find("fork") != std::string::npos;
    backend.reset();
    _exit(good && fake.destroyed == 0 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 0);
  backend.reset();
  CHECK(fake.destroyed == 1);
}

TEST_CASE("a table is checked the same way when it is linked in") {
  kvferry_backend_table table = fake_table;
  CHECK(adopt_plugin(&table, "fake"));
  CHECK(adopt_plugin(&table, "")->name == "fake");
  CHECK(adopt_plugin(nullptr, "fake").error().code == ErrorCode::invalid_argument);
  CHECK(adopt_plugin(&table, "other").error().code == ErrorCode::mismatch);
  table.abi_minor = 99;
  CHECK(adopt_plugin(&table, "fake"));
  table.poll = nullptr;
  CHECK(adopt_plugin(&table, "fake").error().text.find("poll") != std::string::npos);
  table.magic = 0;
  CHECK(adopt_plugin(&table, "fake").error().text.find("magic") != std::string::npos);
}

TEST_CASE("errors pass the C line both ways, and a long text ends in dots") {
  Error error(ErrorCode::peer_lost, ErrorClass::retry, "peer 7 is gone");
  error.vendor_status = -25;
  error.sys_errno = 104;
  kvferry_error c;
  fill_error(&c, error);
  const Error back = to_error(c);
  CHECK(back.code == error.code);
  CHECK(back.error_class == error.error_class);
  CHECK(back.vendor_status == -25);
  CHECK(back.sys_errno == 104);
  CHECK(back.text == error.text);

  const std::size_t room = KVFERRY_ERROR_TEXT_BYTES - 1;
  const auto text_of = [&](const std::string& text) {
    fill_error(&c, Error(ErrorCode::io, text));
    return std::string(c.text);
  };
  CHECK(text_of(std::string(room, 'a')) == std::string(room, 'a'));
  CHECK(text_of(std::string(room + 1, 'a')) == std::string(room - 3, 'a') + "...");
  // A two-byte character that would be cut in half is left out whole.
  std::string umlauts = "a";
  while (umlauts.size() <= room) umlauts += "\xc3\xa4";
  const std::string cut = text_of(umlauts);
  CHECK(cut.size() <= room);
  CHECK(cut.substr(cut.size() - 3) == "...");
  CHECK(static_cast<unsigned char>(cut[cut.size() - 4]) == 0xa4);
  fill_error(nullptr, error);
}

TEST_CASE("settings come from the environment, by prefix, in lower case") {
  (void)setenv("KVFERRY_MY_NET_SEED", "5", 1);
  (void)setenv("KVFERRY_MY_NET_TCP_SEGMENT_BYTES", "a=b", 1);
  (void)setenv("KVFERRY_MY_NET_EMPTY", "", 1);
  (void)setenv("KVFERRY_MY_NETS", "6", 1);
  (void)setenv("KVFERRY_MY_NET_", "7", 1);
  const Settings expected = {{"empty", ""}, {"seed", "5"}, {"tcp_segment_bytes", "a=b"}};
  CHECK(backend_settings_from_environment("my-net") == expected);
  CHECK(backend_settings_from_environment("my_net") == expected);
  CHECK(backend_settings_from_environment("my").size() == 5);  // a prefix of another backend's: names must not overlap
  CHECK(backend_settings_from_environment("nobody").empty());
  for (const char* name : {"SEED", "TCP_SEGMENT_BYTES", "EMPTY", ""}) (void)unsetenv((std::string("KVFERRY_MY_NET_") + name).c_str());
  (void)unsetenv("KVFERRY_MY_NETS");
}

TEST_CASE("the host table calls its owner and keeps exceptions on its side") {
  std::vector<std::string> lines;
  std::uint64_t now = 42;
  std::string started;
  bool stopped = false;
  const Host host({.log =
                       [&](LogLevel level, std::string_view component, std::string_view text) {
                         lines.push_back(std::to_string(static_cast<int>(level)) + " " + std::string(component) + ": " + std::string(text));
                         throw std::runtime_error("a bad logger");
                       },
                   .now_ns = [&] { return now; },
                   .thread_start =
                       [&](const char* name) {
                         started = name;
                         throw 1;
                       },
                   .thread_stop =
                       [&] {
                         stopped = true;
                         throw 2;
                       }});
  const kvferry_host& table = *host.table();
  CHECK(table.struct_size == sizeof(kvferry_host));
  CHECK(table.abi_major == KVFERRY_BACKEND_ABI_MAJOR);
  CHECK(table.abi_minor == KVFERRY_BACKEND_ABI_MINOR);
  CHECK(table.now_ns(table.user) == 42);
  table.log(table.user, KVFERRY_LOG_DEBUG, "part", "text");
  table.log(table.user, 17, nullptr, nullptr);
  table.thread_start(table.user, "worker");
  table.thread_stop(table.user);
  CHECK(lines == std::vector<std::string>{"3 part: text", "0 plugin: "});
  CHECK(started == "worker");
  CHECK(stopped);

  const Host silent{Host::Options{}};
  silent.table()->log(silent.table()->user, KVFERRY_LOG_ERROR, "part", "text");
  silent.table()->thread_start(silent.table()->user, "worker");
  const auto first = silent.now_ns();
  CHECK(first > 0);
  CHECK(silent.now_ns() >= first);
}
