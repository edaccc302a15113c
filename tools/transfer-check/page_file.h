/// Page index files: one index per line, or a JSON list.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "failure.h"

namespace kvferry::transfer_check {

struct PageList {
  std::string option, path;
  bool is_json = false;
  std::vector<std::uint64_t> pages;
  std::vector<std::uint64_t> lines;  ///< line of every page; JSON: its position in the list

  /// "line 3" or "item 3".
  std::string place(std::size_t position) const;
};

/// Empty lines and lines that begin with # are skipped in the line form. Errors name file, line and text.
Outcome<PageList> read_page_list(std::string_view option, std::string_view path);
Outcome<PageList> parse_page_list(std::string_view option, std::string_view path, std::string_view text);

/// Every index below `pool_pages`; `what` names the pool. Also that no index occurs twice where `unique`.
Outcome<void> check_page_list(const PageList& list, std::uint64_t pool_pages, std::string_view what, bool unique);

}  // namespace kvferry::transfer_check
