#include "values.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

namespace kvferry::transfer_check {
namespace {

constexpr std::uint64_t kFileBytesMax = 256u << 20;
constexpr double kSecondsMax = 86'400;
constexpr std::uint32_t kRanksMax = 1024;

std::string range_text(Bounds bounds) {
  if (bounds.most == UINT64_MAX) return "from " + std::to_string(bounds.least);
  return "from " + std::to_string(bounds.least) + " to " + std::to_string(bounds.most);
}

std::string quoted(std::string_view text) {
  std::string word(1, '\'');
  word.append(text).push_back('\'');
  return word;
}

/// The whole text as digits; nothing else is a number here (no sign, no blank, no exponent).
std::optional<std::uint64_t> digits(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

/// Text between separators, empty parts included.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

Outcome<std::uint32_t> parse_sub_number(std::string_view option, std::string_view text, std::string_view key, std::string_view value, Bounds bounds) {
  const auto number = digits(value);
  if (!number || *number < bounds.least || *number > bounds.most) {
    const std::string cause = std::string(key) + " " + (value.empty() ? "has no value" : quoted(value) + " is not a whole number ") +
                              (value.empty() ? "" : range_text(bounds));
    return wrong_option(option, text, cause, "write " + std::string(key) + "=N with N " + range_text(bounds));
  }
  return static_cast<std::uint32_t>(*number);
}

Outcome<void> parse_stages(std::string_view option, std::string_view text, std::string_view value, ParallelText& ret) {
  const auto parts = split(value, '+');
  const Bounds bounds{1, kRanksMax};
  if (parts.size() == 1) {
    auto stages = parse_sub_number(option, text, "pp", value, bounds);
    if (!stages) return tl::unexpected(stages.error());
    ret.stages = *stages;
    return {};
  }
  ret.layers.clear();
  for (const auto part : parts) {
    const auto layers = digits(part);
    if (!layers || *layers == 0 || *layers > UINT32_MAX) {
      return wrong_option(option, text, "pp " + quoted(value) + " has the stage " + quoted(part) + ", which is not a number of layers",
                          "write the layers of every stage, such as pp=4+3");
    }
    ret.layers.push_back(static_cast<std::uint32_t>(*layers));
  }
  ret.stages = static_cast<std::uint32_t>(ret.layers.size());
  return {};
}

/// "key=value" parts with every key at most once; `take` gets them in turn.
template <class Take>
Outcome<void> each_pair(std::string_view option, std::string_view text, std::string_view pairs, std::string_view keys, Take take) {
  std::vector<std::string_view> seen;
  for (const auto part : split(pairs, ',')) {
    const auto equals = part.find('=');
    const auto key = part.substr(0, equals);
    if (equals == std::string_view::npos || (key != "tp" && key != "pp")) {
      return wrong_option(option, text, quoted(part) + " is not one of its sub-keys", "use " + std::string(keys));
    }
    for (const auto earlier : seen) {
      if (earlier == key) return wrong_option(option, text, std::string(key) + " is given twice", "give it once");
    }
    seen.push_back(key);
    if (auto taken = take(key, part.substr(equals + 1)); !taken) return taken;
  }
  return {};
}

}  // namespace

Outcome<std::uint64_t> parse_number(std::string_view option, std::string_view text, Bounds bounds) {
  const auto number = digits(text);
  if (!number) return wrong_option(option, text, "not a whole number", "give one " + range_text(bounds));
  if (*number < bounds.least || *number > bounds.most) return wrong_option(option, text, "out of range", "give a number " + range_text(bounds));
  return *number;
}

Outcome<std::uint64_t> parse_size(std::string_view option, std::string_view text, Bounds bounds) {
  std::uint64_t unit = 1;
  std::string_view number_text = text;
  for (const auto& [suffix, bytes] : {std::pair<std::string_view, std::uint64_t>{"KiB", 1u << 10}, {"MiB", 1u << 20}, {"GiB", 1u << 30}}) {
    if (text.ends_with(suffix)) {
      unit = bytes;
      number_text.remove_suffix(suffix.size());
    }
  }
  const auto number = digits(number_text);
  std::uint64_t bytes = 0;
  if (!number || !checked_multiply(*number, unit, bytes)) {
    return wrong_option(option, text, "not a number of bytes", "write it as 4096, 4KiB or 1MiB");
  }
  if (bytes < bounds.least || bytes > bounds.most) {
    return wrong_option(option, text, "out of range", "give a number of bytes " + range_text(bounds));
  }
  return bytes;
}

Outcome<std::vector<std::uint64_t>> parse_sizes(std::string_view option, std::string_view text, Bounds bounds) {
  auto parts = parse_list(option, text);
  if (!parts) return tl::unexpected(parts.error());
  std::vector<std::uint64_t> sizes;
  for (const auto& part : *parts) {
    auto size = parse_size(option, part, bounds);
    if (!size) return tl::unexpected(size.error());
    sizes.push_back(*size);
  }
  return sizes;
}

Outcome<std::chrono::nanoseconds> parse_seconds(std::string_view option, std::string_view text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds, std::chars_format::fixed);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(seconds) || seconds <= 0 || seconds > kSecondsMax) {
    return wrong_option(option, text, "not a time in seconds", "give seconds above 0 and up to 86400, such as 60 or 0.5");
  }
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

Outcome<std::string> parse_word(std::string_view option, std::string_view text, const std::vector<std::string_view>& words) {
  std::string known;
  for (const auto word : words) {
    if (word == text) return std::string(text);
    known += (known.empty() ? "" : ", ") + std::string(word);
  }
  return wrong_option(option, text, "unknown word", "use one of " + known);
}

Outcome<std::vector<std::string>> parse_list(std::string_view option, std::string_view text) {
  std::vector<std::string> parts;
  for (const auto part : split(text, ',')) {
    if (part.empty()) return wrong_option(option, text, "an item of the list is empty", "separate items by one comma");
    parts.emplace_back(part);
  }
  return parts;
}

Outcome<ParallelText> parse_parallel(std::string_view option, std::string_view text) {
  ParallelText parallel;
  parallel.option = option;
  parallel.text = text;
  auto taken = each_pair(option, text, text, "tp=N and pp=N (or pp=4+3)", [&](std::string_view key, std::string_view value) -> Outcome<void> {
    if (key == "pp") return parse_stages(option, text, value, parallel);
    auto tp = parse_sub_number(option, text, "tp", value, {1, kRanksMax});
    if (!tp) return tl::unexpected(tp.error());
    parallel.tp = *tp;
    return {};
  });
  if (!taken) return tl::unexpected(taken.error());
  return parallel;
}

Outcome<RankText> parse_rank(std::string_view option, std::string_view text) {
  RankText rank;
  const auto comma = text.find(',');
  auto side = parse_word(option, text.substr(0, comma), {"prefill", "decode"});
  if (!side) return tl::unexpected(side.error());
  rank.prefill = *side == "prefill";
  if (comma == std::string_view::npos) return rank;
  auto taken = each_pair(option, text, text.substr(comma + 1), "tp=N and pp=N", [&](std::string_view key, std::string_view value) -> Outcome<void> {
    auto number = parse_sub_number(option, text, key, value, {0, kRanksMax - 1});
    if (!number) return tl::unexpected(number.error());
    (key == "tp" ? rank.tp : rank.pp) = *number;
    return {};
  });
  if (!taken) return tl::unexpected(taken.error());
  return rank;
}

Outcome<std::string> read_file(std::string_view option, std::string_view path) {
  std::ifstream stream{std::string(path), std::ios::binary};
  if (!stream) return wrong_option(option, path, std::string("open: ") + std::strerror(errno), "name a file that can be read");
  std::string text;
  std::string block(1u << 16, '\0');
  while (stream.read(block.data(), static_cast<std::streamsize>(block.size())) || stream.gcount() > 0) {
    text.append(block, 0, static_cast<std::size_t>(stream.gcount()));
    if (text.size() > kFileBytesMax) {
      return wrong_option(option, path, "longer than " + std::to_string(kFileBytesMax) + " bytes", "name another file");
    }
  }
  if (stream.bad()) return wrong_option(option, path, std::string("read: ") + std::strerror(errno), "name a file that can be read");
  return text;
}

Outcome<void> write_file(std::string_view option, std::string_view path, std::string_view text) {
  const std::string wanted(path);
  std::error_code ignored;  // "Does not exist" is an answer here too.
  const bool replaces = !std::filesystem::exists(wanted, ignored) || std::filesystem::is_regular_file(wanted, ignored);
  const std::string beside = replaces ? wanted + ".part" : wanted;  // A device or a pipe is written as it is.
  {
    std::ofstream stream(beside, std::ios::binary | std::ios::trunc);
    stream.write(text.data(), static_cast<std::streamsize>(text.size()));
    stream.flush();
    if (!stream) {
      const int number = errno;
      if (replaces) (void)std::remove(beside.c_str());  // Half a file helps nobody; the first error is the one to tell.
      return wrong_option(option, path, std::string("write: ") + std::strerror(number), "name a file in a folder that can be written");
    }
  }
  if (replaces && std::rename(beside.c_str(), wanted.c_str()) != 0) {
    const int number = errno;
    (void)std::remove(beside.c_str());  // As above.
    return wrong_option(option, path, std::string("rename: ") + std::strerror(number), "name a file, not a folder");
  }
  return {};
}

}  // namespace kvferry::transfer_check
