// Reading the command line.
//
// CLI11 makes the help and knows the subcommands. It would also take `--tokens 100`, and its errors speak of its own notions, so a scan of ours runs
// first: every argument is `--key=value` or a flag, known and given once. What CLI11 gets then cannot fail.
#include "command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "kvferry/backend_abi.h"

namespace kvferry::transfer_check {
namespace {

constexpr std::size_t kHelpColumn = 30;
constexpr std::size_t kHelpWidth = 118;

/// Breaks at blanks, so that a long help text stays beside its option.
std::string wrap(std::string_view text, std::size_t width) {
  std::string wrapped;
  std::size_t column = 0;
  while (!text.empty()) {
    const auto blank = text.find(' ');
    const auto word = text.substr(0, blank);
    if (column > 0 && column + 1 + word.size() > width) {
      wrapped += '\n';
      column = 0;
    } else if (column > 0) {
      wrapped += ' ';
      ++column;
    }
    wrapped += word;
    column += word.size();
    if (blank == std::string_view::npos) break;
    text.remove_prefix(blank + 1);
  }
  return wrapped;
}

/// Writes options as the user must write them: --tokens=N.
class EqualsFormatter final : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_name().empty() ? std::string() : "=" + option->get_type_name();
  }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    const bool is_root = app->get_parent() == nullptr;
    const std::string program = is_root ? "transfer-check" : "transfer-check " + app->get_name();
    (void)name;  // CLI11's own idea of the name has the path of the program in it.
    return "Usage: " + program + (is_root ? " SUBCOMMAND [--option=value ...]" : " [--option=value ...]") + "\n";
  }
};

std::string version_text() {
  return "transfer-check " KVFERRY_VERSION " (backend ABI " + std::to_string(KVFERRY_BACKEND_ABI_MAJOR) + "." +
         std::to_string(KVFERRY_BACKEND_ABI_MINOR) + ")\n";
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

/// "did you mean --tokens? " for a near miss.
std::string nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  std::size_t least = 4;
  for (const auto candidate : candidates) {
    const auto distance = edit_distance(word, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best.empty() ? std::string() : "did you mean " + std::string(best) + "? ";
}

const SubcommandSpec* find_subcommand(std::string_view name) {
  for (const auto& spec : subcommands()) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

std::string subcommand_names() {
  std::string names;
  for (const auto& spec : subcommands()) names += (names.empty() ? "" : ", ") + std::string(spec.name);
  return names;
}

tl::unexpected<Failure> wrong_argument(std::string_view argument, std::string_view cause, const std::string& remedy) {
  return wrong_option(argument, {}, cause, remedy);
}

/// One `--key=value` or flag of the subcommand, into `ret`.
Outcome<void> scan_option(const SubcommandSpec& spec, std::string_view argument, Request& ret) {
  const std::string help = "transfer-check " + std::string(spec.name) + " --help lists all options";
  if (!argument.starts_with("--")) {
    return wrong_argument(argument, "not an option", "write options as --key=value; " + help);
  }
  const auto equals = argument.find('=');
  const auto name = argument.substr(0, equals);
  const auto option = std::find_if(spec.options.begin(), spec.options.end(), [name](const OptionSpec& known) { return known.name == name; });
  if (option == spec.options.end()) {
    std::vector<std::string_view> names;
    for (const auto& known : spec.options) names.push_back(known.name);
    return wrong_argument(name, "unknown option of " + std::string(spec.name), nearest(name, names) + help);
  }
  if (ret.has(name)) return wrong_argument(name, "given twice", "give it once");
  const std::string form = std::string(name) + "=" + std::string(option->value);
  if (option->value.empty() && equals != std::string_view::npos) {
    return wrong_argument(name, "takes no value, has '" + std::string(argument.substr(equals + 1)) + "'", "write " + std::string(name));
  }
  if (!option->value.empty() && (equals == std::string_view::npos || equals + 1 == argument.size())) {
    return wrong_argument(name, "has no value", "write " + form);
  }
  ret.values.emplace(name, equals == std::string_view::npos ? std::string_view{} : argument.substr(equals + 1));
  return {};
}

/// All arguments after the subcommand.
Outcome<void> scan_options(const SubcommandSpec& spec, const std::vector<std::string>& arguments, Request& ret) {
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    if (auto scanned = scan_option(spec, arguments[i], ret); !scanned) return scanned;
  }
  return {};
}

std::unique_ptr<CLI::App> make_app() {
  auto app = std::make_unique<CLI::App>("Checks that KV cache moves right between prefill and decode workers, before and after anything else.");
  auto formatter = std::make_shared<EqualsFormatter>();
  formatter->column_width(kHelpColumn);
  app->formatter(formatter);
  app->add_flag("--version")->description("print the version and the plugin ABI it was built for");
  app->set_help_flag("--help", "print this text");
  app->footer("transfer-check SUBCOMMAND --help tells more about one.");
  for (const auto& spec : subcommands()) {
    auto* sub = app->add_subcommand(std::string(spec.name), wrap(spec.summary, kHelpWidth - kHelpColumn));
    sub->set_help_flag("--help", "print this text");
    sub->footer(spec.footer);
    for (const auto& option : spec.options) {
      const auto help = wrap(option.help, kHelpWidth - kHelpColumn);
      if (option.value.empty()) {
        sub->add_flag(std::string(option.name))->description(help)->group(std::string(option.group));
      } else {
        sub->add_option(std::string(option.name))->type_name(std::string(option.value))->description(help)->group(std::string(option.group));
      }
    }
  }
  return app;
}

bool contains(const std::vector<std::string>& arguments, std::string_view word) {
  return std::find(arguments.begin(), arguments.end(), word) != arguments.end();
}

}  // namespace

std::string Request::text(std::string_view option, std::string_view otherwise) const {
  const auto found = values.find(option);
  return found == values.end() ? std::string(otherwise) : found->second;
}

std::string subcommand_of(const std::vector<std::string>& arguments) {
  return arguments.empty() || find_subcommand(arguments.front()) == nullptr ? std::string() : arguments.front();
}

bool asks_for_json(const std::vector<std::string>& arguments) { return contains(arguments, "--json"); }

Outcome<Parsed> parse_command_line(const std::vector<std::string>& arguments) {
  Parsed parsed;
  const std::string remedy = "use one of " + subcommand_names() + "; transfer-check --help tells more";
  if (arguments.empty()) return wrong_argument("transfer-check", "no subcommand", remedy);
  const std::string& first = arguments.front();
  if (first == "--help") {
    parsed.print = make_app()->help();
    return parsed;
  }
  if (first == "--version") {
    parsed.print = version_text();
    return parsed;
  }
  const SubcommandSpec* spec = find_subcommand(first);
  if (spec == nullptr) {
    std::vector<std::string_view> names;
    for (const auto& known : subcommands()) names.push_back(known.name);
    return wrong_argument(first, first.starts_with("-") ? "an option before the subcommand" : "unknown subcommand", nearest(first, names) + remedy);
  }
  if (contains(arguments, "--help")) {
    parsed.print = make_app()->get_subcommand(std::string(spec->name))->help();
    return parsed;
  }
  if (contains(arguments, "--version")) {
    parsed.print = version_text();
    return parsed;
  }
  parsed.request.subcommand = spec->name;
  if (auto scanned = scan_options(*spec, arguments, parsed.request); !scanned) return tl::unexpected(scanned.error());
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11 takes a vector from its back.
    make_app()->parse(reversed);
  } catch (const CLI::Error& error) {
    return wrong_argument(spec->name, error.what(), "transfer-check " + std::string(spec->name) + " --help lists all options");
  }
  return parsed;
}

}  // namespace kvferry::transfer_check
