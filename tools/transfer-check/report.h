/// What the command says: one JSON document on stdout with --json, else a short text; errors as one line.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "failure.h"

namespace kvferry::transfer_check {

using Json = nlohmann::ordered_json;  ///< keys in the order they are added: the document reads from the top

inline constexpr std::string_view kSchema = "kvferry-transfer-check/1";

/// {"schema", "command", "verdict"}: how every document begins.
Json begin_document(std::string_view command, std::string_view verdict);

/// The `error` member of a document.
Json error_document(const Error& error);
Json error_document(const Failure& failure);

/// Columns of text, numbers to the right.
class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::left;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// As many cells as columns.
  void add(std::vector<std::string> cells);
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// "134.2 MB": decimal units, as all figures of the command.
std::string bytes_text(std::uint64_t bytes);
std::string seconds_text(double seconds);
std::string fixed_text(double value, int decimals);
/// "0x3f".
std::string hex_byte(std::uint8_t value);

/// Prints and makes sure that it arrived: a full disk must not look like success.
Outcome<void> print(std::string_view text);
Outcome<void> print_document(const Json& document);

/// One line on stderr, or the document on stdout. Returns the exit status.
int report_failure(const Failure& failure, std::string_view command, bool as_json);

}  // namespace kvferry::transfer_check
