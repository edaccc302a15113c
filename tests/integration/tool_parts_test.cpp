// The parts of transfer-check that a user's trust rests on: the pattern that finds wrong bytes, the index lists, what an option's text may be.
#include <algorithm>
#include <cstring>
#include <set>

#include <catch2/catch.hpp>

#include "command_line.h"
#include "failure.h"
#include "page_file.h"
#include "pattern.h"
#include "random_pages.h"
#include "values.h"

using namespace kvferry;
using namespace kvferry::transfer_check;

namespace {

constexpr std::size_t kPages = static_cast<std::size_t>(IndexSpace::pages);

Entry make_entry(Role role, std::uint32_t layer, std::uint64_t base, std::uint64_t item, std::uint64_t pitch, std::uint64_t count) {
  Entry entry;
  entry.role = role;
  entry.layer = layer;
  entry.base_address = base;
  entry.item_length_bytes = item;
  entry.pitch_bytes = pitch;
  entry.index_count = count;
  return entry;
}

/// Two stages of one layer each into one pool, odd item lengths, padding between items.
struct Job {
  std::vector<NamedPool> sources;
  NamedPool target{"decode tp0 pp0", {}};
  IndicesBySpace source_indices, target_indices;
  std::uint64_t memory_bytes = 0;

  Job() {
    Pool first, second;
    first.entries = {make_entry(Role::k, 0, 64, 21, 24, 6), make_entry(Role::v, 0, 256, 16, 16, 6)};
    second.entries = {make_entry(Role::k, 1, 64, 21, 21, 6), make_entry(Role::v, 1, 200, 16, 20, 6)};
    sources = {{"prefill tp0 pp0", first}, {"prefill tp0 pp1", second}};
    target.pool.entries = {make_entry(Role::k, 0, 32, 21, 29, 7), make_entry(Role::k, 1, 300, 21, 21, 7), make_entry(Role::v, 0, 500, 16, 16, 7),
                           make_entry(Role::v, 1, 700, 16, 24, 7)};
    source_indices[kPages] = {5, 0, 3};
    target_indices[kPages] = {1, 6, 2};
    memory_bytes = 1001;
  }

  /// What a right transfer does, one byte at a time.
  void move(const std::vector<std::vector<std::byte>>& from, std::vector<std::byte>& to) const {
    for (std::size_t rank = 0; rank < sources.size(); ++rank) {
      for (const Entry& source : sources[rank].pool.entries) {
        for (const Entry& entry : target.pool.entries) {
          if (entry.role != source.role || entry.layer != source.layer) continue;
          for (std::size_t i = 0; i < source_indices[kPages].size(); ++i) {
            std::memcpy(&to[entry.base_address + target_indices[kPages][i] * entry.pitch_bytes],
                        &from[rank][source.base_address + source_indices[kPages][i] * source.pitch_bytes], source.item_length_bytes);
          }
        }
      }
    }
  }
};

struct Moved {
  Job job;
  Pattern pattern{job.sources};
  Expected expected{pattern, {0, 1}, job.target, job.source_indices, job.target_indices};
  std::vector<std::vector<std::byte>> from;
  std::vector<std::byte> to;

  explicit Moved(bool move = true) : to(job.memory_bytes) {
    for (std::size_t rank = 0; rank < job.sources.size(); ++rank) {
      from.emplace_back(job.memory_bytes);
      pattern.fill(rank, from.back(), {});
    }
    expected.poison(to, {});
    if (move) job.move(from, to);
  }
};

}  // namespace

TEST_CASE("a right transfer has no wrong byte, and every byte of the target is compared") {
  const Moved moved;
  const auto verdict = moved.expected.compare(moved.to, {});
  CHECK(verdict.bytes_compared == moved.job.memory_bytes);
  CHECK(verdict.bytes_wrong == 0);
  CHECK_FALSE(verdict.first_wrong);
}

TEST_CASE("any single wrong byte of the target is found at its place") {
  Moved moved;
  for (std::size_t offset = 0; offset < moved.to.size(); ++offset) {
    for (const auto change : {std::byte{0x01}, std::byte{0x80}, std::byte{0xff}}) {
      moved.to[offset] ^= change;
      const auto verdict = moved.expected.compare(moved.to, {});
      moved.to[offset] ^= change;
      if (verdict.bytes_wrong != 1 || !verdict.first_wrong || verdict.first_wrong->memory_offset != offset) {
        FAIL("byte " << offset << " changed by " << std::to_integer<int>(change) << ": " << verdict.bytes_wrong << " wrong bytes found");
      }
    }
  }
}

TEST_CASE("a request that was not moved is wrong in each of its bytes, and the words say that nothing was written") {
  const Moved moved(false);
  const auto verdict = moved.expected.compare(moved.to, {});
  CHECK(verdict.bytes_wrong == 3 * 2 * (21 + 16));
  REQUIRE(verdict.first_wrong);
  CHECK(verdict.first_wrong->is_poison);
  CHECK(verdict.first_wrong->text == "page 1 of kv k layer 0 of decode tp0 pp0, byte 0: expected " +
                                         verdict.first_wrong->text.substr(verdict.first_wrong->text.find("0x"), 4) + ", found " +
                                         verdict.first_wrong->text.substr(verdict.first_wrong->text.rfind("0x"), 4) +
                                         "; it must come from page 5 of kv k layer 0 of prefill tp0 pp0, byte 0; nothing was written there");
}

TEST_CASE("bytes of another place are traced back to it, at any shift") {
  Moved moved;
  const Entry& wanted = moved.job.target.pool.entries[3];                     // v layer 1
  const Entry& other = moved.job.sources[0].pool.entries[1];                  // v layer 0 of the other stage
  std::byte* item = &moved.to[wanted.base_address + 6 * wanted.pitch_bytes];  // takes source page 0
  SECTION("the item of another layer") {
    std::memcpy(item, &moved.from[0][other.base_address + 4 * other.pitch_bytes], 16);
    const auto verdict = moved.expected.compare(moved.to, {});
    REQUIRE(verdict.first_wrong);
    REQUIRE(verdict.first_wrong->belongs_to);
    CHECK(*verdict.first_wrong->belongs_to == SourcePlace{0, 1, 4, verdict.first_wrong->offset});
    CHECK_THAT(verdict.first_wrong->text, Catch::EndsWith("; the byte found is that of page 4 of kv v layer 0 of prefill tp0 pp0, byte " +
                                                          std::to_string(verdict.first_wrong->offset)));
  }
  SECTION("the right item, three bytes late") {
    const Entry& right = moved.job.sources[1].pool.entries[1];
    std::memcpy(item + 3, &moved.from[1][right.base_address], 13);
    const auto verdict = moved.expected.compare(moved.to, {});
    REQUIRE(verdict.first_wrong);
    REQUIRE(verdict.first_wrong->belongs_to);
    CHECK(verdict.first_wrong->offset == 3);
    CHECK(*verdict.first_wrong->belongs_to == SourcePlace{1, 1, 0, 0});
  }
}

TEST_CASE("a byte between two items, before the pool and behind it may not be touched") {
  Moved moved;
  struct Case {
    std::size_t offset;
    std::string words;
  };
  for (const auto& [offset, words] :
       {Case{0, "memory of decode tp0 pp0, byte 0 (outside every entry)"}, Case{32 + 29 + 22, "byte 22 (between two items)"},
        Case{1000, "memory of decode tp0 pp0, byte 1000 (outside every entry)"}}) {
    moved.to[offset] ^= std::byte{0x10};
    const auto verdict = moved.expected.compare(moved.to, {});
    moved.to[offset] ^= std::byte{0x10};
    REQUIRE(verdict.first_wrong);
    CHECK_FALSE(verdict.first_wrong->wanted);
    CHECK_THAT(verdict.first_wrong->text, Catch::Contains(words) && Catch::Contains("; nothing may touch this byte"));
  }
}

TEST_CASE("page lists are permutations in runs that touch nowhere") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    for (const auto& wanted :
         {RandomPages{100, 126, 1}, RandomPages{100, 126, 7}, RandomPages{64, 64, 1}, RandomPages{64, 64, 16}, RandomPages{5, 8, 2}}) {
      auto random = source_random(seed);
      const auto pages = random_pages(wanted, random);
      if (pages.size() != wanted.count) FAIL("seed " << seed << ": " << pages.size() << " pages");
      if (std::set<std::uint64_t>(pages.begin(), pages.end()).size() != wanted.count) FAIL("seed " << seed << ": a page twice");
      if (*std::max_element(pages.begin(), pages.end()) >= wanted.pool_pages) FAIL("seed " << seed << ": outside the pool");
      for (std::uint64_t i = 1; i < wanted.count; ++i) {
        if ((pages[i] == pages[i - 1] + 1) != (i % wanted.run_length != 0))
          FAIL("seed " << seed << ", run length " << wanted.run_length << ", position " << i);
      }
    }
  }
}

TEST_CASE("page lists of a seed are the same for ever") {
  auto source = source_random(1), target = target_random(1);
  CHECK(random_pages({6, 9, 1}, source) == std::vector<std::uint64_t>{8, 7, 1, 3, 0, 5});
  CHECK(random_pages({6, 9, 2}, target) == std::vector<std::uint64_t>{4, 5, 2, 3, 0, 1});
}

TEST_CASE("a page file is lines or a JSON list, and its errors name the place and the value") {
  struct Case {
    std::string text;
    std::vector<std::uint64_t> pages;  ///< empty: refused
    std::string words;
  };
  for (const auto& item :
       {Case{"3\n1\n2\n", {3, 1, 2}, ""}, Case{"# pages\n\n 7 \r\n4", {7, 4}, ""}, Case{"[5, 0]", {5, 0}, ""}, Case{" \n[9]\n", {9}, ""},
        Case{"", {}, "has no page index"}, Case{"[]", {}, "has no page index"}, Case{"# only\n", {}, "has no page index"},
        Case{"1\n-1\n", {}, "line 2: '-1' is not a page index"}, Case{"1\n2 3\n", {}, "line 2: '2 3'"}, Case{"0x10", {}, "line 1: '0x10'"},
        Case{"1.5", {}, "line 1: '1.5'"}, Case{"18446744073709551616", {}, "line 1: '18446744073709551616'"}, Case{"[1, -2]", {}, "item 2: -2"},
        Case{"[1, \"2\"]", {}, "item 2: \"2\""}, Case{"[1, 2.5]", {}, "item 2: 2.5"}, Case{"[1, 2", {}, "parse error"}}) {
    INFO(item.text);
    const auto list = parse_page_list("--source-pages", "pages.txt", item.text);
    CHECK(list.has_value() == !item.pages.empty());
    if (list) CHECK(list->pages == item.pages);
    if (!list) CHECK_THAT(one_line(list.error()), Catch::Contains("--source-pages=pages.txt") && Catch::Contains(item.words));
    if (!list) CHECK(list.error().status == ExitStatus::wrong_use);
  }
}

TEST_CASE("a page beyond the pool and a target page named twice are refused with file, line and value") {
  const auto list = parse_page_list("--target-pages", "t.txt", "4\n0\n\n4\n9\n").value();
  const auto outside = check_page_list(list, 9, "decode pool", false);
  REQUIRE_FALSE(outside);
  CHECK_THAT(one_line(outside.error()), Catch::Contains("--target-pages=t.txt: line 5: page 9 is outside the decode pool, which has 9 pages"));
  CHECK(check_page_list(list, 10, "decode pool", false));
  const auto twice = check_page_list(list, 10, "decode pool", true);
  REQUIRE_FALSE(twice);
  CHECK_THAT(one_line(twice.error()), Catch::Contains("line 4: page 4 stands at line 1 already"));
}

TEST_CASE("ranks of a side are read, or refused with option, sub-key and value") {
  struct Case {
    std::string text;
    std::uint32_t tp, stages;
    std::vector<std::uint32_t> layers;
    std::string words;  ///< of the refusal; empty: taken
  };
  for (const auto& item : {Case{"tp=2,pp=3", 2, 3, {}, ""}, Case{"pp=4+3", 1, 2, {4, 3}, ""}, Case{"tp=8", 8, 1, {}, ""},
                           Case{"tp=0", 0, 0, {}, "tp '0'"}, Case{"tp=x", 0, 0, {}, "tp 'x'"}, Case{"tp=", 0, 0, {}, "tp has no value"},
                           Case{"pp=-1", 0, 0, {}, "pp '-1'"}, Case{"pp=4+", 0, 0, {}, "stage ''"}, Case{"pp=0+3", 0, 0, {}, "stage '0'"},
                           Case{"dp=2", 0, 0, {}, "'dp=2' is not one of its sub-keys"}, Case{"tp=1,tp=2", 0, 0, {}, "tp is given twice"},
                           Case{"tp=1,", 0, 0, {}, "''"}, Case{"2", 0, 0, {}, "'2'"}, Case{"tp=4294967297", 0, 0, {}, "tp '4294967297'"}}) {
    INFO(item.text);
    const auto parsed = parse_parallel("--prefill", item.text);
    CHECK(parsed.has_value() == item.words.empty());
    if (parsed) CHECK((parsed->tp == item.tp && parsed->stages == item.stages && parsed->layers == item.layers));
    if (!parsed) CHECK_THAT(one_line(parsed.error()), Catch::Contains("--prefill=" + item.text) && Catch::Contains(item.words));
  }
}

TEST_CASE("sizes and times are exact or refused") {
  CHECK(parse_size("--pool-bytes", "4096", {}).value() == 4096);
  CHECK(parse_size("--pool-bytes", "4KiB", {}).value() == 4096);
  CHECK(parse_size("--pool-bytes", "1MiB", {}).value() == 1u << 20);
  for (const char* text : {"", "4K", "4 KiB", "-1", "1e3", "99999999999999999999", "18446744073709551615GiB", "KiB"}) {
    INFO(text);
    CHECK_FALSE(parse_size("--pool-bytes", text, {}));
  }
  CHECK(parse_seconds("--timeout", "0.5").value() == std::chrono::milliseconds(500));
  CHECK(parse_seconds("--timeout", "60").value() == std::chrono::seconds(60));
  for (const char* text : {"", "0", "-1", "nan", "inf", "1e3", "86401", "5s"}) {
    INFO(text);
    CHECK_FALSE(parse_seconds("--timeout", text));
  }
}

TEST_CASE("every error code has its exit status") {
  for (std::int32_t number = 101; number <= 121; ++number) {
    const auto code = ErrorCode(number);
    INFO(to_string(code));
    const auto status = exit_status_of(code);
    switch (code) {
      case ErrorCode::invalid_argument:
      case ErrorCode::out_of_range:
      case ErrorCode::mismatch:
      case ErrorCode::unsupported:
      case ErrorCode::not_found:
      case ErrorCode::exists: CHECK(status == ExitStatus::wrong_use); break;
      case ErrorCode::limit:
      case ErrorCode::no_memory:
      case ErrorCode::unavailable:
      case ErrorCode::version: CHECK(status == ExitStatus::host_lacks); break;
      default: CHECK(status == ExitStatus::fails);
    }
  }
}

TEST_CASE("every option of every subcommand has one line of help and is taken once") {
  for (const auto& spec : subcommands()) {
    std::set<std::string_view> names;
    for (const auto& option : spec.options) {
      INFO(spec.name << " " << option.name);
      CHECK(option.name.starts_with("--"));
      CHECK_FALSE(option.help.empty());
      CHECK(names.insert(option.name).second);
      const std::string once = std::string(option.name) + (option.value.empty() ? "" : "=x");
      CHECK(parse_command_line({std::string(spec.name), once}));
      CHECK_FALSE(parse_command_line({std::string(spec.name), once, once}));
      CHECK_FALSE(parse_command_line({std::string(spec.name), option.value.empty() ? once + "=x" : std::string(option.name)}));
      CHECK_FALSE(parse_command_line({std::string(spec.name), std::string(option.name), "x"}));
    }
  }
}
