#include "strict_json.h"

#include <exception>
#include <utility>
#include <vector>

namespace kvferry::strict_json {
namespace {

using nlohmann::json;

constexpr std::size_t kShownBytesMax = 96;
constexpr std::size_t kReasonBytesMax = 384;

/// Cuts the middle out, on borders of UTF-8 characters: continuation bytes start with the bits 10.
std::string shorten(std::string text, std::size_t bytes_max = kShownBytesMax) {
  if (text.size() <= bytes_max) return text;
  const auto continues = [&text](std::size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0u) == 0x80u; };
  std::size_t head = bytes_max * 3 / 4;
  while (head > 0 && continues(head)) --head;
  std::size_t tail = text.size() - bytes_max / 4;
  while (tail < text.size() && continues(tail)) ++tail;
  return text.substr(0, head) + "..." + text.substr(tail);
}

/// Builds the value from the parser's events; the open containers are a stack, so depth costs no call stack.
class Builder : public nlohmann::json_sax<json> {
 public:
  explicit Builder(const Limits& limits) : limits_(limits) {}

  bool null() override { return add(json(nullptr)); }
  bool boolean(bool value) override { return add(json(value)); }
  bool number_integer(number_integer_t value) override { return add(json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(json(value)); }
  bool string(string_t& value) override { return add(json(std::move(value))); }
  bool binary(binary_t&) override { return refuse("binary value"); }

  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Open& object = open_.back();
    object.key = std::move(name);
    if (object.value.contains(object.key)) return refuse("key appears twice");
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."; the number is the library's own.
    std::string reason = error.what();
    if (const std::size_t end = reason.find("] "); reason.starts_with("[json.") && end != std::string::npos) reason.erase(0, end + 2);
    // It quotes what it read last, which may be anything.
    for (char& c : reason) {
      if (const auto byte = static_cast<unsigned char>(c); byte < 0x20 || byte >= 0x7F) c = '?';
    }
    error_ = Error(ErrorCode::invalid_argument, shorten(std::move(reason), kReasonBytesMax));
    return false;
  }

  Result<json> take(bool complete) {
    if (!complete) return fail(error_);
    return std::move(root_);
  }

 private:
  struct Open {
    json value;
    std::string key;  ///< of the object's current member
  };

  bool open(json container) {
    if (open_.size() >= limits_.depth_max) return refuse("nested deeper than " + std::to_string(limits_.depth_max));
    open_.push_back({std::move(container), {}});
    return true;
  }

  bool close() {
    json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Open& parent = open_.back();
    if (parent.value.is_array()) {
      parent.value.push_back(std::move(value));
    } else {
      parent.value.emplace(parent.key, std::move(value));
    }
    return true;
  }

  bool refuse(const std::string& reason) {
    const std::string where = path();
    error_ = Error(ErrorCode::invalid_argument, (where.empty() ? std::string("top level") : where) + ": " + reason);
    return false;
  }

  [[nodiscard]] std::string path() const {
    std::string text;
    for (const Open& container : open_) {
      if (container.value.is_array()) {
        text += "[" + std::to_string(container.value.size()) + "]";
      } else {
        const std::string shown = show_text(container.key);
        if (!text.empty()) text += ".";
        text += shown.substr(1, shown.size() - 2);
      }
    }
    return text;
  }

  const Limits& limits_;
  std::vector<Open> open_;
  json root_;
  Error error_{ErrorCode::invalid_argument, "not JSON"};
};

/// Replaces the three words outside strings. Python writes them for floats that have no JSON form (a time step limit of infinity).
std::string without_python_constants(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\' && i + 1 < text.size())
        plain += text[i++];
      else if (c == '"')
        in_string = false;
      plain += text[i++];
      continue;
    }
    bool replaced = false;
    for (const std::string_view word : {std::string_view("NaN"), std::string_view("Infinity"), std::string_view("-Infinity")}) {
      if (text.substr(i).starts_with(word)) {
        plain += "null";
        i += word.size();
        replaced = true;
        break;
      }
    }
    if (replaced) continue;
    if (c == '"') in_string = true;
    plain += c;
    ++i;
  }
  return plain;
}

}  // namespace

Result<json> parse(std::string_view text, const Limits& limits) {
  if (text.size() > limits.bytes_max) {
    return fail(ErrorCode::limit, "text of " + std::to_string(text.size()) + " bytes, at most " + std::to_string(limits.bytes_max) + " are read");
  }
  try {
    Builder builder(limits);
    std::string plain;
    if (limits.python_constants) {
      plain = without_python_constants(text);
      text = plain;
    }
    const bool complete = json::sax_parse(text.begin(), text.end(), &builder);
    return builder.take(complete);
  } catch (const std::exception& error) {
    return fail(ErrorCode::no_memory, std::string("read JSON text of ") + std::to_string(text.size()) + " bytes: " + error.what());
  }
}

std::string show(const json& value) { return shorten(value.dump(-1, ' ', false, json::error_handler_t::replace)); }

std::string show_text(std::string_view value) { return show(json(std::string(value))); }

}  // namespace kvferry::strict_json
