#include "page_file.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <system_error>
#include <unordered_map>

#include "values.h"

namespace kvferry::transfer_check {
namespace {

constexpr std::string_view kPagesRemedy = "write one page index per line, or a JSON list such as [7, 3, 12]";
constexpr std::string_view kBlanks = " \t\r";

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

Outcome<PageList> parse_json_list(PageList list, std::string_view text) {
  nlohmann::json document;
  try {
    document = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    return wrong_option(list.option, list.path, error.what(), kPagesRemedy);
  }
  std::uint64_t position = 0;
  for (const auto& item : document) {
    ++position;
    if (!item.is_number_unsigned()) {
      return wrong_option(list.option, list.path, "item " + std::to_string(position) + ": " + item.dump() + " is not a page index", kPagesRemedy);
    }
    list.pages.push_back(item.get<std::uint64_t>());
    list.lines.push_back(position);
  }
  return list;
}

Outcome<PageList> parse_lines(PageList list, std::string_view text) {
  for (std::uint64_t line = 1; !text.empty(); ++line) {
    const auto end = text.find('\n');
    const auto word = trim(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    if (word.empty() || word.front() == '#') continue;
    std::uint64_t page = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), page);
    if (error != std::errc() || stop != word.data() + word.size()) {
      return wrong_option(list.option, list.path, "line " + std::to_string(line) + ": '" + std::string(word) + "' is not a page index", kPagesRemedy);
    }
    list.pages.push_back(page);
    list.lines.push_back(line);
  }
  return list;
}

}  // namespace

std::string PageList::place(std::size_t position) const { return (is_json ? "item " : "line ") + std::to_string(lines[position]); }

Outcome<PageList> parse_page_list(std::string_view option, std::string_view path, std::string_view text) {
  PageList list;
  list.option = option;
  list.path = path;
  const auto first = text.find_first_not_of(" \t\r\n");
  list.is_json = first != std::string_view::npos && text[first] == '[';
  auto parsed = list.is_json ? parse_json_list(std::move(list), text) : parse_lines(std::move(list), text);
  if (parsed && parsed->pages.empty()) return wrong_option(option, path, "the file has no page index", kPagesRemedy);
  return parsed;
}

Outcome<PageList> read_page_list(std::string_view option, std::string_view path) {
  auto text = read_file(option, path);
  if (!text) return tl::unexpected(text.error());
  return parse_page_list(option, path, *text);
}

Outcome<void> check_page_list(const PageList& list, std::uint64_t pool_pages, std::string_view what, bool unique) {
  std::unordered_map<std::uint64_t, std::size_t> seen;
  for (std::size_t i = 0; i < list.pages.size(); ++i) {
    const std::string page = list.place(i) + ": page " + std::to_string(list.pages[i]);
    if (list.pages[i] >= pool_pages) {
      return wrong_option(list.option, list.path,
                          page + " is outside the " + std::string(what) + ", which has " + std::to_string(pool_pages) + " pages",
                          "use indices from 0 to " + std::to_string(pool_pages - 1) + ", or a larger pool");
    }
    if (!unique) continue;
    const auto [earlier, is_new] = seen.emplace(list.pages[i], i);
    if (!is_new) {
      return wrong_option(list.option, list.path, page + " stands at " + list.place(earlier->second) + " already",
                          "name every page of the target once: two writes to one page would overwrite each other");
    }
  }
  return {};
}

}  // namespace kvferry::transfer_check
