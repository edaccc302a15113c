/// sglang_tags.h: what a flat list declares about itself, as one tag per entry.
///
///   MHA       [K target][V target][K draft][V draft]             declared: target layers, draft layers
///   MLA       [latent target][latent draft]                      declared: the same
///   kv        [C4][C4 indexer][C128]                             declared: compression ratio of every layer
///   swa       [window pool][C4 state][C4 indexer state]          the window pool may be absent (unified pools), or lack the model's last slot
///   swa_ring  [ring]                                             one per layer, or without the last slot
///   c128      [C128 state]                                       one per layer of ratio 128
///
/// A list that is one entry short would shift every later section by one and still look plausible, so every length is compared with the declaration
/// before the first tag is made.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compressed_lists.h"
#include "kvferry/sglang_lists.h"

namespace kvferry::sglang {

/// Larger counts in a list are damage, not a model.
inline constexpr std::uint64_t kListEntriesMax = std::uint64_t{1} << 24;

struct Tag {
  Role role = Role::k;
  bool draft = false;
  std::uint32_t layer = 0;
};
using Tags = std::vector<Tag>;

std::uint64_t end_of(const ListLayout& layout) noexcept;
std::string layers_text(const ListLayout& layout);
std::string entries_text(std::uint64_t count);

/// For lists with `entries_per_layer` entries for each declared layer.
Result<void> check_declared_length(std::string_view side, std::uint64_t found, std::uint64_t entries_per_layer, const ListLayout& layout);
Tags mha_tags(const ListLayout& layout);
Tags mla_tags(const ListLayout& layout);

/// One list of a compressed-MLA pool: what it is and which layers it covers.
struct CompressedList {
  std::string_view side;  ///< "source " or "target ", for messages
  StateType type = StateType::kv;
  ListLayout layout;
  std::span<const std::uint32_t> ratios;
};

/// The declared layers have ratios, and a list of windows has either target or draft layers.
Result<void> check_compressed_layout(const CompressedList& list);
/// Layers with a window buffer or ring, worked out from a length that may be one of several; any other length is refused.
Result<std::uint64_t> window_layers_of(const CompressedList& list, std::uint64_t found);
/// The list has exactly the entries that its ratios and `window_layers` make.
Result<void> check_compressed_length(const CompressedList& list, std::uint64_t window_layers, std::uint64_t found);
/// In ascending order of layers in each section, the first `window_layers` layers with a window.
Tags compressed_tags(const CompressedList& list, std::uint64_t window_layers);

}  // namespace kvferry::sglang
