/// config_fields.h (internal): the fields of a config.json, read by name with their range, refused with their value.
///
/// Published configs name one fact in several ways (num_hidden_layers, n_layer, n_layers). A fact is read under all its names at once: where a file
/// uses two of them, they have to agree.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/result.h"

namespace kvferry::config {

inline constexpr std::uint32_t kLayersMax = 4096;
inline constexpr std::uint32_t kHeadsMax = 65536;
inline constexpr std::uint32_t kWidthMax = 1u << 20;  ///< head and latent widths, hidden size
inline constexpr std::uint32_t kWindowMax = 1u << 30;

struct Range {
  std::uint32_t min = 0, max = 0;
};

/// One object of the file. Borrows the parsed file.
class Object {
 public:
  Object(const nlohmann::json& object, std::string path, std::string model) : object_(&object), path_(std::move(path)), model_(std::move(model)) {}

  [[nodiscard]] const nlohmann::json& value() const noexcept { return *object_; }
  [[nodiscard]] const std::string& model() const noexcept { return model_; }

  /// The member, or nullptr where it is absent or null: both mean that the file does not say.
  [[nodiscard]] const nlohmann::json* find(std::string_view field) const;
  /// The member is written, if only as null.
  [[nodiscard]] bool writes(std::string_view field) const;
  /// The member is there and is not null, false, 0, or empty: it turns something on.
  [[nodiscard]] const nlohmann::json* telling(std::string_view field) const;
  /// The object in a member, if it is one.
  [[nodiscard]] std::optional<Object> child(std::string_view field) const;

  [[nodiscard]] Result<std::optional<std::uint32_t>> count(std::string_view field, Range range) const;
  /// The same fact under several names: those that are there have to agree.
  [[nodiscard]] Result<std::optional<std::uint32_t>> count(std::initializer_list<std::string_view> names, Range range) const;
  [[nodiscard]] Result<std::optional<bool>> flag(std::string_view field) const;
  [[nodiscard]] Result<std::vector<std::string>> texts(std::string_view field) const;

  /// "model config NAME: text".
  [[nodiscard]] Unexpected refuse(ErrorCode code, const std::string& text) const;
  [[nodiscard]] Unexpected missing(std::string_view field, std::string_view why) const;
  /// "text_config.head_dim 128": how messages name a member.
  [[nodiscard]] std::string shown(std::string_view field) const;
  [[nodiscard]] std::string name_of(std::string_view field) const { return path_ + std::string(field); }

 private:
  const nlohmann::json* object_;
  std::string path_;  ///< "" or "text_config."
  std::string model_;
};

}  // namespace kvferry::config
