// Names, validation, digests and figures of pools, and the words of errors.

#include <functional>

#include "kvferry/backend_abi.h"
#include "pool_test.h"

namespace kvferry {
namespace {

/// Two layers of K and V and one draft layer, stage 2 to 4 of 4.
Pool small_pool() {
  Pool pool;
  pool.model = "small";
  pool.kind = "GQA";
  pool.layers_total = 4;
  pool.draft_layers = 1;
  pool.stage = {2, 4};
  pool.rank = {.tp_size = 2, .tp_rank = 1, .pp_size = 2, .pp_rank = 1};
  pool.page_size = 16;
  std::uint64_t address = 4096;
  const auto add = [&](bool draft, Role role, std::uint32_t layer) {
    Entry entry;
    entry.component = {ComponentKind::kv, draft};
    entry.role = role;
    entry.layer = layer;
    entry.page_size = 16;
    entry.item_length_bytes = 2048;
    entry.pitch_bytes = 2560;
    entry.index_count = 10;
    entry.heads = HeadRange{.head_count = 2, .first_head = 2, .bytes_per_head_token = 64};
    entry.base_address = address;
    address += 32768;
    pool.entries.push_back(entry);
  };
  for (const Role role : {Role::k, Role::v}) {
    for (const std::uint32_t layer : {2u, 3u}) add(false, role, layer);
  }
  add(true, Role::k, 0);
  add(true, Role::v, 0);
  return pool;
}

TEST_CASE("every name of the pool words is read back as what it names") {
  for (int kind = 0; kind <= static_cast<int>(ComponentKind::block_scale); ++kind) {
    for (const bool draft : {false, true}) {
      const Component component{static_cast<ComponentKind>(kind), draft};
      CHECK(test::require_value(parse_component(to_string(component))) == component);
    }
  }
  for (int role = 0; role <= static_cast<int>(Role::temporal); ++role)
    CHECK(test::require_value(parse_role(to_string(static_cast<Role>(role)))) == static_cast<Role>(role));
  for (int space = 0; space <= static_cast<int>(IndexSpace::request_slots); ++space) {
    CHECK(test::require_value(parse_index_space(to_string(static_cast<IndexSpace>(space)))) == static_cast<IndexSpace>(space));
  }
  for (int dtype = 0; dtype <= static_cast<int>(DType::packed_fp8); ++dtype) {
    CHECK(test::require_value(parse_dtype(to_string(static_cast<DType>(dtype)))) == static_cast<DType>(dtype));
  }
  for (const MemoryKind memory : {MemoryKind::host, MemoryKind::device}) CHECK(test::require_value(parse_memory_kind(to_string(memory))) == memory);

  CHECK(to_string(Component{ComponentKind::swa, true}) == "draft.swa");
  CHECK(test::require_value(parse_dtype("torch.bfloat16")) == DType::bf16);
  CHECK(test::require_value(parse_dtype("fp8")) == DType::fp8_e4m3);
  CHECK(test::require_value(parse_dtype("float8_e5m2")) == DType::fp8_e5m2);
  CHECK(test::require_value(parse_dtype("half")) == DType::fp16);
  CHECK(dtype_bytes(DType::fp32) == 4);
  CHECK(dtype_bytes(DType::bf16) == 2);
  CHECK(dtype_bytes(DType::packed_fp8) == 1);
}

TEST_CASE("an unknown word is refused with the words that are known") {
  CHECK_THAT(test::error_text(parse_component("kvs")), Catch::Contains("component \"kvs\"") && Catch::Contains("swa_ring"));
  CHECK_THAT(test::error_text(parse_component("draft.")), Catch::Contains("component \"\""));
  CHECK_THAT(test::error_text(parse_component("draft.draft.kv")), Catch::Contains("\"draft.kv\""));
  CHECK_THAT(test::error_text(parse_role("K")), Catch::Contains("role \"K\"") && Catch::Contains("k, v, latent"));
  CHECK_THAT(test::error_text(parse_dtype("bf17")), Catch::Contains("dtype \"bf17\""));
  CHECK_THAT(test::error_text(parse_index_space("rows")), Catch::Contains("index space \"rows\"") && Catch::Contains("ring_rows"));
  CHECK(test::error_text(parse_memory_kind(std::string(10000, 'm'))).size() < 200);
}

TEST_CASE("messages name an entry by component, role and layer") {
  Entry entry;
  entry.layer = 17;
  CHECK(describe(entry) == "kv k layer 17");
  entry.component = {ComponentKind::swa, true};
  entry.role = Role::swa_pool;
  entry.layer = 0;
  CHECK(describe(entry) == "draft.swa swa_pool layer 0");
}

TEST_CASE("a complete pool is valid") {
  const auto result = validate(small_pool());
  INFO(test::error_text(result));
  CHECK(result.has_value());
  Pool empty = small_pool();
  empty.entries.clear();
  CHECK(validate(empty).has_value());  // a stage without KV layers
}

TEST_CASE("each broken fact of a pool is refused with the entry and the values") {
  const auto check = [](const std::function<void(Pool&)>& change, ErrorCode code, const std::vector<std::string>& words) {
    Pool pool = small_pool();
    change(pool);
    const auto result = validate(pool);
    INFO(words.front());
    REQUIRE(!result.has_value());
    INFO(result.error().text);
    CHECK(result.error().code == code);
    CHECK_THAT(result.error().text, Catch::StartsWith("pool small: "));
    for (const std::string& word : words) CHECK_THAT(result.error().text, Catch::Contains(word));
  };
  using Code = ErrorCode;
  check([](Pool& p) { p.layers_total = 0; }, Code::invalid_argument, {"layers_total is 0"});
  check([](Pool& p) { p.stage.end = 5; }, Code::out_of_range, {"stage [2, 5)", "4 layers"});
  check([](Pool& p) { p.stage = {3, 3}; }, Code::out_of_range, {"stage [3, 3)"});
  check([](Pool& p) { p.stage = {4, 2}; }, Code::out_of_range, {"stage [4, 2)"});
  check([](Pool& p) { p.rank.tp_rank = 2; }, Code::out_of_range, {"tp rank 2 of tp size 2"});
  check([](Pool& p) { p.rank.pp_size = 0; }, Code::out_of_range, {"pp rank 1 of pp size 0"});
  check([](Pool& p) { p.page_size = 0; }, Code::invalid_argument, {"page_size is 0"});
  check([](Pool& p) { p.kind = std::string(1025, 'k'); }, Code::limit, {"1025 bytes", "1024"});
  check([](Pool& p) { p.compression_ratios = {0, 4, 128}; }, Code::mismatch, {"3 compression ratios for 4 layers"});
  check([](Pool& p) { p.compression_ratios = {0, 4, 128, 64}; }, Code::unsupported, {"compression ratio 64 of layer 3", "0, 4, 128"});
  check([](Pool& p) { p.sliding_layers = {1, 1}; }, Code::invalid_argument, {"sliding layer 1"});
  check([](Pool& p) { p.sliding_layers = {4}; }, Code::invalid_argument, {"sliding layer 4", "4 layers"});
  check([](Pool& p) { p.c128_ring_size = 200; }, Code::invalid_argument, {"c128_ring_size 200"});
  check(
      [](Pool& p) {
        p.c128_ring_size = 128;
        p.c128_online = true;
      },
      Code::invalid_argument, {"c128_online", "128"});
  check(
      [](Pool& p) {
        p.ring_stride = 128;
        p.window_tokens = 129;
      },
      Code::invalid_argument, {"window_tokens 129", "ring_stride 128"});
  check([](Pool& p) { p.ring_stride = (1u << 20) + 1; }, Code::limit, {"ring_stride 1048577", "1048576"});

  check([](Pool& p) { p.entries[1].item_length_bytes = 0; }, Code::invalid_argument, {"kv k layer 3", "item length is 0"});
  check([](Pool& p) { p.entries[1].index_count = 0; }, Code::invalid_argument, {"kv k layer 3", "index count is 0"});
  check([](Pool& p) { p.entries[1].page_size = 0; }, Code::invalid_argument, {"kv k layer 3", "page size is 0"});
  check([](Pool& p) { p.entries[1].pitch_bytes = 2047; }, Code::invalid_argument, {"kv k layer 3", "pitch 2047", "item length 2048"});
  check([](Pool& p) { p.entries[1].layer = 1; }, Code::out_of_range, {"kv k layer 1", "stage [2, 4)"});
  check([](Pool& p) { p.entries[1].layer = 4; }, Code::out_of_range, {"kv k layer 4", "stage [2, 4)"});
  check([](Pool& p) { p.entries[4].layer = 1; }, Code::out_of_range, {"draft.kv k layer 1", "1 draft layers"});
  check([](Pool& p) { p.layers_total = 5; }, Code::invalid_argument, {"draft.kv k layer 0", "stage [2, 4) of 5"});
  check([](Pool& p) { p.entries[1].layer = 2; }, Code::exists, {"kv k layer 2", "entries 0 and 1"});
  check([](Pool& p) { p.entries[3].index_count = 11; }, Code::mismatch, {"kv v layer 3", "11 pages", "kv k layer 2 has 10"});
  check([](Pool& p) { p.entries[0].heads->head_count = 3; }, Code::mismatch,
        {"kv k layer 2", "item length 2048", "3 heads of 64 bytes and 16 tokens"});
  check([](Pool& p) { p.entries[0].heads->bytes_per_head_token = 0; }, Code::invalid_argument, {"kv k layer 2", "2 heads of 0 bytes"});
  check([](Pool& p) { p.entries[0].base_address = ~std::uint64_t{0} - 25000; }, Code::out_of_range,
        {"kv k layer 2", "18446744073709526615", "64 bits"});
  check([](Pool& p) { p.entries[0].pitch_bytes = std::uint64_t{1} << 62; }, Code::out_of_range,
        {"kv k layer 2", "10 indices of pitch 4611686018427387904"});
  check([](Pool& p) { p.entries[0].space = IndexSpace::ring_rows; }, Code::invalid_argument, {"kv k layer 2", "page size 16 in space ring_rows"});
}

TEST_CASE("the span of an entry ends with the last item and not with its padding") {
  Entry entry = small_pool().entries.front();
  CHECK(test::require_value(span_bytes(entry)) == 9 * 2560 + 2048);
  entry.index_count = 1;
  CHECK(test::require_value(span_bytes(entry)) == 2048);
  entry.index_count = ~std::uint64_t{0};
  CHECK_THAT(test::error_text(span_bytes(entry)), Catch::Contains("18446744073709551615 indices of pitch 2560"));
}

TEST_CASE("the digest of ratios tells lists apart by value, order and length") {
  CHECK(ratios_digest({}) == 0);
  CHECK(ratios_digest({0}) != 0);
  CHECK(ratios_digest({0}) != ratios_digest({0, 0}));
  CHECK(ratios_digest({4, 128}) != ratios_digest({128, 4}));
  CHECK(ratios_digest({4, 128}) == ratios_digest({4, 128}));
  // Peers of different builds compare it, so it must not change.
  CHECK(ratios_digest({0, 4, 128}) == 0xDE6F21D572EEF43Cu);
}

TEST_CASE("the layout digest changes with the layout and not with where or for whom it lies") {
  const std::uint64_t digest = layout_digest(small_pool());
  const auto changed = [&](const std::function<void(Pool&)>& change) {
    Pool pool = small_pool();
    change(pool);
    return layout_digest(pool) != digest;
  };
  CHECK(!changed([](Pool&) {}));
  CHECK(!changed([](Pool& p) { p.model = "elsewhere"; }));
  CHECK(!changed([](Pool& p) { p.kind = "what a file says"; }));
  CHECK(!changed([](Pool& p) { p.sliding_layers = {2}; }));
  CHECK(!changed([](Pool& p) { std::swap(p.entries[0], p.entries[3]); }));
  CHECK(!changed([](Pool& p) {
    for (Entry& entry : p.entries) {
      entry.base_address += 4096;
      entry.pitch_bytes += 64;
      entry.index_count = 99;
      entry.memory = MemoryKind::device;
    }
  }));

  CHECK(changed([](Pool& p) { p.variant = "paged_fp8"; }));
  CHECK(changed([](Pool& p) { p.layers_total = 5; }));
  CHECK(changed([](Pool& p) { p.draft_layers = 2; }));
  CHECK(changed([](Pool& p) { p.stage.first = 1; }));
  CHECK(changed([](Pool& p) { p.rank.tp_rank = 0; }));
  CHECK(changed([](Pool& p) { p.page_size = 32; }));
  CHECK(changed([](Pool& p) { p.window_tokens = 128; }));
  CHECK(changed([](Pool& p) { p.ring_stride = 128; }));
  CHECK(changed([](Pool& p) { p.c128_ring_size = 128; }));
  CHECK(changed([](Pool& p) { p.c128_online = true; }));
  CHECK(changed([](Pool& p) { p.compression_ratios = {0, 0, 0, 0}; }));
  CHECK(changed([](Pool& p) { p.entries.pop_back(); }));
  CHECK(changed([](Pool& p) { p.entries[0].layer = 3; }));
  CHECK(changed([](Pool& p) { p.entries[0].role = Role::latent; }));
  CHECK(changed([](Pool& p) { p.entries[0].component.draft = true; }));
  CHECK(changed([](Pool& p) { p.entries[0].component.kind = ComponentKind::dsa; }));
  CHECK(changed([](Pool& p) { p.entries[0].space = IndexSpace::window_pages; }));
  CHECK(changed([](Pool& p) { p.entries[0].dtype = DType::fp16; }));
  CHECK(changed([](Pool& p) { p.entries[0].page_size = 8; }));
  CHECK(changed([](Pool& p) { p.entries[0].item_length_bytes = 1024; }));
  CHECK(changed([](Pool& p) { p.entries[0].heads.reset(); }));
  CHECK(changed([](Pool& p) { p.entries[0].heads->head_count = 1; }));
  CHECK(changed([](Pool& p) { p.entries[0].heads->first_head = 0; }));
  CHECK(changed([](Pool& p) { p.entries[0].heads->bytes_per_head_token = 32; }));
}

TEST_CASE("bytes per token count the paged components, the growing figure leaves sliding layers out") {
  Pool pool = small_pool();
  CHECK(kv_bytes_per_token(pool) == 6 * 2048 / 16.0);
  pool.sliding_layers = {0, 2};  // layer 0 is on another stage, and the draft's layer 0 is not it
  CHECK(kv_bytes_per_token_growing(pool) == 4 * 2048 / 16.0);
  pool.entries[0].component.kind = ComponentKind::dsa;
  CHECK(kv_bytes_per_token(pool) == 6 * 2048 / 16.0);
  pool.entries[1].component.kind = ComponentKind::swa;
  pool.entries[1].space = IndexSpace::window_pages;
  CHECK(kv_bytes_per_token(pool) == 5 * 2048 / 16.0);
}

TEST_CASE("state per request is what lies in slots of Mamba layers") {
  Pool pool = small_pool();
  CHECK(state_bytes_per_request(pool) == 0);
  for (const std::size_t i : {0u, 2u}) {
    pool.entries[i].component.kind = ComponentKind::mamba;
    pool.entries[i].space = IndexSpace::request_slots;
    pool.entries[i].page_size = 1;
    pool.entries[i].heads.reset();
  }
  CHECK(state_bytes_per_request(pool) == 4096);
}

TEST_CASE("error codes have the numbers of the C interface, a name and a class") {
  for (int number = KVFERRY_ERROR_INVALID_ARGUMENT; number <= KVFERRY_ERROR_CANNOT_PROMISE; ++number) {
    const auto code = static_cast<ErrorCode>(number);
    INFO(number);
    CHECK(to_string(code) != "unknown");
    CHECK(to_string(default_class(code)) != "unknown");
    CHECK(Error(code, "x").error_class == default_class(code));
  }
  CHECK(static_cast<int>(ErrorCode::cannot_promise) == KVFERRY_ERROR_CANNOT_PROMISE);
  CHECK(static_cast<int>(ErrorCode::peer_lost) == KVFERRY_ERROR_PEER_LOST);
  CHECK(static_cast<int>(ErrorClass::bug) == KVFERRY_CLASS_BUG);
  CHECK(static_cast<int>(ErrorClass::reregister) == KVFERRY_CLASS_REREGISTER);
  CHECK(to_string(ErrorCode::mismatch) == "mismatch");
  CHECK(to_string(static_cast<ErrorCode>(7)) == "unknown");
  CHECK(default_class(ErrorCode::peer_lost) == ErrorClass::reconnect);
  CHECK(default_class(ErrorCode::busy) == ErrorClass::retry);
  CHECK(default_class(ErrorCode::internal) == ErrorClass::bug);
  CHECK(default_class(ErrorCode::mismatch) == ErrorClass::permanent);
  CHECK(Error(ErrorCode::io, "read").within("peer 3").text == "peer 3: read");
}

}  // namespace
}  // namespace kvferry
