#include "report.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace kvferry::transfer_check {
namespace {

/// Columns a terminal shows for UTF-8 text: continuation bytes take none.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; }));
}

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

std::string dump(const Json& document) {
  // Text of a peer or of a file may not be UTF-8; it is shown with replacement characters rather than not at all.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

Json begin_document(std::string_view command, std::string_view verdict) {
  Json document;
  document["schema"] = kSchema;
  document["command"] = command;
  document["verdict"] = verdict;
  return document;
}

Json error_document(const Error& error) {
  Json document;
  document["code"] = to_string(error.code);
  document["number"] = static_cast<std::int32_t>(error.code);
  document["class"] = to_string(error.error_class);
  document["text"] = error.text;
  document["vendor_status"] = error.vendor_status;
  document["errno"] = error.sys_errno;
  return document;
}

Json error_document(const Failure& failure) {
  Json document = error_document(failure.error);
  document["remedy"] = failure.remedy;
  document["option"] = failure.option.empty() ? Json(nullptr) : Json(failure.option);
  document["exit_status"] = static_cast<int>(failure.status);
  return document;
}

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = width_of(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, width_of(row[c]));
    widths.push_back(width);
  }
  std::string text;
  const auto add_cell = [&](std::size_t c, std::string_view cell) {
    const std::size_t blanks = widths[c] - width_of(cell);
    const bool last = c + 1 == columns_.size();
    if (columns_[c].align == Align::right) text.append(blanks, ' ');
    text.append(cell);
    if (columns_[c].align == Align::left && !last) text.append(blanks, ' ');
    text.append(last ? "\n" : "  ");
  };
  for (std::size_t c = 0; c < columns_.size(); ++c) add_cell(c, columns_[c].title);
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < columns_.size(); ++c) add_cell(c, row[c]);
  }
  return text;
}

std::string fixed_text(double value, int decimals) {
  char buffer[64];
  (void)std::snprintf(buffer, sizeof buffer, "%.*f", decimals, value);  // A cut number is still one that fits its column.
  return buffer;
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 10'000) return std::to_string(bytes) + " B";
  if (bytes < 1'000'000) return fixed_text(static_cast<double>(bytes) / 1e3, 1) + " kB";
  if (bytes < 1'000'000'000) return fixed_text(static_cast<double>(bytes) / 1e6, 1) + " MB";
  return fixed_text(static_cast<double>(bytes) / 1e9, 2) + " GB";
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fixed_text(seconds * 1e6, 1) + " us";
  if (seconds < 1) return fixed_text(seconds * 1e3, 1) + " ms";
  return fixed_text(seconds, 2) + " s";
}

std::string hex_byte(std::uint8_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  return {'0', 'x', kDigits[value >> 4], kDigits[value & 15u]};
}

Outcome<void> print(std::string_view text) {
  if (write_all(STDOUT_FILENO, text)) return {};
  Error error(ErrorCode::io, std::string("write the result to stdout: write: ") + std::strerror(errno));
  error.sys_errno = errno;
  return because(error, {}, "give the command an output that can be written");
}

Outcome<void> print_document(const Json& document) { return print(dump(document)); }

int report_failure(const Failure& failure, std::string_view command, bool as_json) {
  if (as_json) {
    Json document = begin_document(command, "error");
    document["error"] = error_document(failure);
    if (print_document(document)) return static_cast<int>(failure.status);
  }
  const std::string name = command.empty() ? "transfer-check" : "transfer-check " + std::string(command);
  (void)write_all(STDERR_FILENO, name + ": " + one_line(failure) + "\n");  // There is nowhere left to complain.
  return static_cast<int>(failure.status);
}

}  // namespace kvferry::transfer_check
