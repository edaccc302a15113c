/// The bytes of a check: every 8-byte word of a source says where it belongs, every byte of a target says that nothing came.
///
///   source word  = mix(number)            number: counts the words of all source ranks, entries, indices in order; mix is a bijection
///   target poison, wanted byte  = ~ of the byte that must come: a byte that did not come never looks right
///   target poison, other bytes  = byte of mix(kPoison + offset / 8): a byte that came from elsewhere never looks untouched for long
///
/// A wrong word is turned back with the inverse of mix: a number in range names the place its bytes belong to.
///
///   rank 0                              rank 1
///   ├ entry 0: index 0, 1, 2 ...        ├ entry 0 ...
///   │    words 0 .. w-1 | w .. 2w-1 |   │
///   └ entry 1 ...                       └
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvferry/engine.h"
#include "kvferry/pool.h"

namespace kvferry::transfer_check {

/// One byte of a source pool.
struct SourcePlace {
  std::size_t rank = 0, entry = 0;
  std::uint64_t index = 0, offset = 0;  ///< offset inside the item
  friend bool operator==(const SourcePlace&, const SourcePlace&) = default;
};

struct NamedPool {
  std::string name;
  Pool pool;  ///< base addresses are offsets in the rank's memory
};

/// Told how many bytes are done, now and then; empty: not told.
using Progress = std::function<void(std::uint64_t)>;

/// The pattern of all source ranks of a job.
class Pattern {
 public:
  explicit Pattern(std::vector<NamedPool> sources);

  const std::vector<NamedPool>& sources() const { return sources_; }
  /// The word that holds bytes [8 * word, 8 * word + 8) of an item.
  std::uint64_t word(std::size_t rank, std::size_t entry, std::uint64_t index, std::uint64_t word) const;
  std::uint8_t byte(const SourcePlace& place) const;
  /// Fills every item of the rank's pool, `memory` being where its addresses count from.
  void fill(std::size_t rank, std::span<std::byte> memory, const Progress& progress) const;
  /// The place of byte 0 of a word, where the value is one of the pattern.
  std::optional<SourcePlace> find(std::uint64_t value) const;
  /// "page 5 of kv k layer 3 of prefill tp0 pp1, byte 4096".
  std::string describe_place(const SourcePlace& place) const;

 private:
  struct Numbered {
    std::uint64_t first = 0;  ///< number of its first word
    std::size_t rank = 0, entry = 0;
    std::uint64_t words_per_item = 0, items = 0;
  };
  const Numbered& numbered(std::size_t rank, std::size_t entry) const { return numbered_[first_of_rank_[rank] + entry]; }
  std::vector<NamedPool> sources_;
  std::vector<Numbered> numbered_;  ///< by rank, then entry: ascending in `first`
  std::vector<std::size_t> first_of_rank_;
};

/// "page 7", "ring row 130", "request slot 2".
std::string describe_index(IndexSpace space, std::uint64_t index);

/// What one target rank must hold in the end.
class Expected {
 public:
  /// One item that must arrive.
  struct Item {
    std::uint64_t offset = 0;  ///< in the target's memory
    std::size_t target_entry = 0;
    std::uint64_t target_index = 0;
    SourcePlace source;  ///< offset 0
  };
  struct Wrong {
    std::uint64_t memory_offset = 0;
    bool wanted = false;               ///< else a byte that nothing may touch
    std::optional<std::size_t> entry;  ///< of the target pool; empty: outside every entry
    std::uint64_t index = 0, offset = 0;
    std::uint8_t expected = 0, found = 0;
    std::optional<SourcePlace> must_be;     ///< where the expected byte lies
    std::optional<SourcePlace> belongs_to;  ///< where the found byte belongs, if its word says so
    bool is_poison = false;                 ///< nothing came
    std::string text;                       ///< all of it in words
  };
  struct Verdict {
    std::uint64_t bytes_compared = 0, bytes_wrong = 0;
    std::optional<Wrong> first_wrong;
  };

  /// `writers` are the source ranks that write to this target. An entry pairs with the writer that has one of the same component, role and layer:
  /// found here by looking, not by the code under test.
  Expected(const Pattern& pattern, std::vector<std::size_t> writers, NamedPool target, const IndicesBySpace& source,
           const IndicesBySpace& target_indices);

  void poison(std::span<std::byte> memory, const Progress& progress) const;
  /// Every byte of the memory.
  Verdict compare(std::span<const std::byte> memory, const Progress& progress) const;
  const std::vector<Item>& items() const { return items_; }

 private:
  void add_items(std::size_t target_entry, std::size_t rank, std::size_t source_entry, const IndicesBySpace& source, const IndicesBySpace& target);
  std::uint64_t item_bytes(const Item& item) const;
  Wrong explain(std::span<const std::byte> memory, std::uint64_t offset, const Item* item) const;
  void explain_found(std::span<const std::byte> memory, Wrong& ret) const;
  bool neighbours_are_right(std::span<const std::byte> memory, const Wrong& wrong) const;

  const Pattern& pattern_;
  NamedPool target_;
  std::vector<Item> items_;  ///< ascending in offset
};

/// Digest of all bytes, to see that nothing lands any more.
std::uint64_t digest(std::span<const std::byte> memory);

}  // namespace kvferry::transfer_check
