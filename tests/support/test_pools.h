// Small pools in real memory for engine tests: `layers` layers with k and v over pages and a window-pool entry over window pages.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kvferry/pool.h"

namespace kvferry::test {

struct PoolShape {
  std::uint32_t layers_total = 4;
  Stage stage{0, 4};
  std::uint64_t pages = 64, window_pages = 16;
  std::uint64_t item_bytes = 256, pitch_bytes = 256;
  std::uint64_t window_item_bytes = 96;
};

/// A pool and the memory it lies in; not movable, because the pool points into it.
class PoolMemory {
 public:
  explicit PoolMemory(const PoolShape& shape) {
    pool.model = "test";
    pool.kind = "GQA";
    pool.layers_total = shape.layers_total;
    pool.stage = shape.stage;
    pool.page_size = 4;
    pool.window_tokens = 8;
    for (std::uint32_t layer = shape.stage.first; layer < shape.stage.end; ++layer) {
      add({ComponentKind::kv, false}, Role::k, layer, IndexSpace::pages, shape.pages, shape.item_bytes, shape.pitch_bytes);
      add({ComponentKind::kv, false}, Role::v, layer, IndexSpace::pages, shape.pages, shape.item_bytes, shape.pitch_bytes);
      add({ComponentKind::swa, false}, Role::k, layer, IndexSpace::window_pages, shape.window_pages, shape.window_item_bytes, shape.window_item_bytes);
    }
    bytes.assign(static_cast<std::size_t>(length_), 0);
    for (Entry& entry : pool.entries) entry.base_address += base();
  }
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  std::uint64_t base() { return reinterpret_cast<std::uint64_t>(bytes.data()); }
  std::uint64_t length() const { return length_; }
  std::uint8_t* item(const Entry& entry, std::uint64_t index) { return bytes.data() + (entry.base_address - base()) + index * entry.pitch_bytes; }

  Pool pool;
  std::vector<std::uint8_t> bytes;

 private:
  void add(Component component, Role role, std::uint32_t layer, IndexSpace space, std::uint64_t count, std::uint64_t item, std::uint64_t pitch) {
    Entry entry;
    entry.component = component;
    entry.role = role;
    entry.layer = layer;
    entry.space = space;
    entry.dtype = DType::uint8;
    entry.page_size = 4;
    entry.base_address = length_;
    entry.pitch_bytes = pitch;
    entry.item_length_bytes = item;
    entry.index_count = count;
    pool.entries.push_back(entry);
    length_ += count * pitch + 64;  // a gap that nothing may touch
  }

  std::uint64_t length_ = 0;
};

/// The byte that position `offset` of an item carries for a room: differs by entry, position in the lists and room.
inline std::uint8_t pattern_byte(std::uint64_t room, const Entry& entry, std::uint64_t position, std::uint64_t offset) {
  std::uint64_t x = room * 0x9E3779B97F4A7C15ull + entry.layer * 0xD1B54A32D192ED03ull + static_cast<std::uint64_t>(entry.role) * 0x94D049BB133111EBull +
                    static_cast<std::uint64_t>(entry.component.kind) * 0xBF58476D1CE4E5B9ull + position * 0x2545F4914F6CDD1Dull + offset;
  x ^= x >> 31;
  x *= 0x94D049BB133111EBull;
  return static_cast<std::uint8_t>(x >> 40);
}

}  // namespace kvferry::test
