/// From the text of an option to its value. Every error names option, value, cause and remedy; nothing is rounded, cut or guessed.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "failure.h"

namespace kvferry::transfer_check {

struct Bounds {
  std::uint64_t least = 0;
  std::uint64_t most = UINT64_MAX;
};

/// Decimal digits only.
Outcome<std::uint64_t> parse_number(std::string_view option, std::string_view text, Bounds bounds);

/// Bytes: digits, or digits with KiB, MiB, GiB.
Outcome<std::uint64_t> parse_size(std::string_view option, std::string_view text, Bounds bounds);
Outcome<std::vector<std::uint64_t>> parse_sizes(std::string_view option, std::string_view text, Bounds bounds);

/// Seconds, with decimals, above 0 and at most a day.
Outcome<std::chrono::nanoseconds> parse_seconds(std::string_view option, std::string_view text);

/// One word of a closed list.
Outcome<std::string> parse_word(std::string_view option, std::string_view text, const std::vector<std::string_view>& words);

/// Parts between commas; an empty part is an error.
Outcome<std::vector<std::string>> parse_list(std::string_view option, std::string_view text);

/// "tp=2,pp=4+3" before the number of layers is known.
struct ParallelText {
  std::string option, text;  ///< as the user wrote it, for messages
  std::uint32_t tp = 1;
  std::uint32_t stages = 1;
  std::vector<std::uint32_t> layers;  ///< of every stage; empty: to be split over `stages`
};
Outcome<ParallelText> parse_parallel(std::string_view option, std::string_view text);

/// "decode,tp=1,pp=0".
struct RankText {
  bool prefill = false;
  std::uint32_t tp = 0, pp = 0;
};
Outcome<RankText> parse_rank(std::string_view option, std::string_view text);

/// A whole file. `option` names who asked for it.
Outcome<std::string> read_file(std::string_view option, std::string_view path);
/// Replaces the file in one step, so that a reader never sees half of it.
Outcome<void> write_file(std::string_view option, std::string_view path, std::string_view text);

}  // namespace kvferry::transfer_check
