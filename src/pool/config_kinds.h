/// config_kinds.h (internal): which fields of a config.json tell that its cache is of a kind that is not laid out yet.
#pragma once

#include "config_fields.h"

namespace kvferry::config {

inline constexpr std::string_view kKindsKnown = "GQA, MHA, MQA, MLA, compressed MLA";

/// The objects that describe the text model: the file itself, or the file and its text_config.
struct Model {
  Object top;
  Object text;
};

/// Goes down text_config and its likes to the object that describes the text model. Error when there are two.
Result<Model> find_text_model(const Object& top);

/// architectures and model_type of both objects.
std::vector<std::string> architectures_of(const Model& model);
std::vector<std::string> model_types_of(const Model& model);

/// Refuses every other kind by its name, with the fields that tell; then every field that speaks of the cache and is not known. The rules go by
/// fields; architectures are looked at only where the fields of two kinds are the same.
Result<void> refuse_other_kinds(const Model& model);

}  // namespace kvferry::config
