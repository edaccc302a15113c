/// The options of every subcommand, and what the user wrote.
///
///   argv ──► strict scan (--key=value, nothing twice or unknown) ──► CLI11 (help, subcommands) ──► Request: subcommand + texts
///
/// Values stay texts here; each subcommand turns its own into numbers and names, so that the error can say what would have been right.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "failure.h"

namespace kvferry::transfer_check {

struct OptionSpec {
  std::string_view name;   ///< "--tokens"
  std::string_view value;  ///< "N"; empty: a flag
  std::string_view group;  ///< heading in the help
  std::string_view help;
};

struct SubcommandSpec {
  std::string_view name;
  std::string_view summary;
  std::string footer;  ///< examples and what the exit status means
  std::vector<OptionSpec> options;
};

const std::vector<SubcommandSpec>& subcommands();

/// What the user wrote for one subcommand.
class Request {
 public:
  std::string subcommand;
  std::map<std::string, std::string, std::less<>> values;  ///< by option name; flags have an empty text

  bool has(std::string_view option) const { return values.find(option) != values.end(); }
  /// The text, or `otherwise` where the option was not given.
  std::string text(std::string_view option, std::string_view otherwise = {}) const;
};

/// A request, or a text to print with exit status 0 (help, version).
struct Parsed {
  Request request;
  std::string print;
};
Outcome<Parsed> parse_command_line(const std::vector<std::string>& arguments);

/// Whether errors go to stdout as JSON: looked at even when the rest of the line cannot be read.
bool asks_for_json(const std::vector<std::string>& arguments);

/// The first argument if it names a subcommand, for messages about a line that cannot be read; else empty.
std::string subcommand_of(const std::vector<std::string>& arguments);

}  // namespace kvferry::transfer_check
