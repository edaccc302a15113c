#include "config_fields.h"

#include <utility>

#include "strict_json.h"

namespace kvferry::config {

using nlohmann::json;
using strict_json::show;

const json* Object::find(std::string_view field) const {
  const auto member = object_->find(std::string(field));
  return member == object_->end() || member->is_null() ? nullptr : &*member;
}

bool Object::writes(std::string_view field) const { return object_->contains(std::string(field)); }

const json* Object::telling(std::string_view field) const {
  const json* value = find(field);
  if (value == nullptr) return nullptr;
  const bool empty = (value->is_boolean() && !value->get<bool>()) || (value->is_number() && value->get<double>() == 0) ||
                     (value->is_string() && value->get_ref<const std::string&>().empty()) || (value->is_structured() && value->empty());
  return empty ? nullptr : value;
}

std::optional<Object> Object::child(std::string_view field) const {
  const json* value = find(field);
  if (value == nullptr || !value->is_object()) return std::nullopt;
  return Object(*value, name_of(field) + ".", model_);
}

Result<std::optional<std::uint32_t>> Object::count(std::string_view field, Range range) const {
  const json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) {
    const auto number = value->get<std::uint64_t>();
    if (number >= range.min && number <= range.max) return static_cast<std::uint32_t>(number);
  }
  if (value->is_array()) {
    return refuse(ErrorCode::unsupported, shown(field) + " differs by layer, and only models with one value for all layers are laid out");
  }
  return refuse(value->is_number_integer() ? ErrorCode::out_of_range : ErrorCode::invalid_argument,
                shown(field) + " is not an integer from " + std::to_string(range.min) + " to " + std::to_string(range.max));
}

Result<std::optional<std::uint32_t>> Object::count(std::initializer_list<std::string_view> names, Range range) const {
  std::optional<std::uint32_t> agreed;
  std::string_view agreed_name;
  for (const std::string_view name : names) {
    auto value = count(name, range);
    if (!value) return value;
    if (!*value) continue;
    if (agreed && **value != *agreed)
      return refuse(ErrorCode::mismatch, shown(agreed_name) + " and " + shown(name) + " say the same thing and differ");
    agreed = *value;
    agreed_name = name;
  }
  return agreed;
}

Result<std::optional<bool>> Object::flag(std::string_view field) const {
  const json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return refuse(ErrorCode::invalid_argument, shown(field) + " is neither true nor false");
  return value->get<bool>();
}

Result<std::vector<std::string>> Object::texts(std::string_view field) const {
  std::vector<std::string> list;
  const json* value = find(field);
  if (value == nullptr) return list;
  if (!value->is_array()) return refuse(ErrorCode::invalid_argument, shown(field) + " is not a list of strings");
  for (const json& item : *value) {
    if (!item.is_string()) return refuse(ErrorCode::invalid_argument, shown(field) + " has " + show(item) + ", which is not a string");
    list.push_back(item.get<std::string>());
  }
  return list;
}

Unexpected Object::refuse(ErrorCode code, const std::string& text) const { return fail(code, "model config " + model_ + ": " + text); }

Unexpected Object::missing(std::string_view field, std::string_view why) const {
  return refuse(ErrorCode::invalid_argument, name_of(field) + " is missing: " + std::string(why));
}

std::string Object::shown(std::string_view field) const {
  const auto member = object_->find(std::string(field));
  return name_of(field) + " " + (member == object_->end() ? std::string("(absent)") : show(*member));
}

}  // namespace kvferry::config
