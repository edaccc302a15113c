#include "pattern.h"

#include <algorithm>
#include <cstring>

namespace kvferry::transfer_check {
namespace {

constexpr std::uint64_t kWordBytes = 8;
constexpr std::uint64_t kPoison = 1ull << 62;  // Word numbers stay far below.
constexpr std::uint64_t kProgressBytes = 16u << 20;

/// The finalizer of SplitMix64: a bijection of 64-bit words.
std::uint64_t mix(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// Undoes z ^ (z >> shift).
std::uint64_t unshift(std::uint64_t z, unsigned shift) {
  std::uint64_t result = z;
  for (unsigned done = shift; done < 64; done += shift) result = z ^ (result >> shift);
  return result;
}

/// The number with number * factor == 1: Newton's iteration doubles the right bits, five steps make 64 from 3.
constexpr std::uint64_t inverse_of(std::uint64_t factor) {
  std::uint64_t inverse = factor;
  for (int step = 0; step < 5; ++step) inverse *= 2 - factor * inverse;
  return inverse;
}

std::uint64_t unmix(std::uint64_t z) {
  z = unshift(z, 31) * inverse_of(0x94D049BB133111EBu);
  z = unshift(z, 27) * inverse_of(0xBF58476D1CE4E5B9u);
  return unshift(z, 30) - 0x9E3779B97F4A7C15u;
}

std::uint8_t byte_of(std::uint64_t word, std::uint64_t position) { return static_cast<std::uint8_t>(word >> (8 * position)); }

std::uint64_t load(const std::byte* at, std::uint64_t bytes = kWordBytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, bytes);
  return word;
}

/// Runs `at_word(word index, bytes)` over a length; the last word may be cut.
template <class AtWord>
void each_word(std::uint64_t length, AtWord at_word) {
  const std::uint64_t whole = length / kWordBytes;
  for (std::uint64_t w = 0; w < whole; ++w) at_word(w, kWordBytes);
  if (length % kWordBytes != 0) at_word(whole, length % kWordBytes);
}

std::uint8_t poison_byte(std::uint64_t offset) { return byte_of(mix(kPoison + offset / kWordBytes), offset % kWordBytes); }

/// Says how far it is at most once in a while.
class Steps {
 public:
  explicit Steps(const Progress& progress) : progress_(progress) {}
  void add(std::uint64_t bytes) {
    done_ += bytes;
    if (progress_ && done_ >= next_) {
      progress_(done_);
      next_ = done_ + kProgressBytes;
    }
  }

 private:
  const Progress& progress_;
  std::uint64_t done_ = 0, next_ = kProgressBytes;
};

}  // namespace

std::string describe_index(IndexSpace space, std::uint64_t index) {
  const std::string number = " " + std::to_string(index);
  switch (space) {
    case IndexSpace::pages: return "page" + number;
    case IndexSpace::window_pages: return "window page" + number;
    case IndexSpace::ring_rows: return "ring row" + number;
    case IndexSpace::c128_rows: return "c128 row" + number;
    case IndexSpace::request_slots: return "request slot" + number;
  }
  return "index" + number;
}

Pattern::Pattern(std::vector<NamedPool> sources) : sources_(std::move(sources)) {
  std::uint64_t next = 0;
  for (std::size_t rank = 0; rank < sources_.size(); ++rank) {
    first_of_rank_.push_back(numbered_.size());
    const auto& entries = sources_[rank].pool.entries;
    for (std::size_t e = 0; e < entries.size(); ++e) {
      const std::uint64_t words = (entries[e].item_length_bytes + kWordBytes - 1) / kWordBytes;
      numbered_.push_back({next, rank, e, words, entries[e].index_count});
      next += words * entries[e].index_count;
    }
  }
}

std::uint64_t Pattern::word(std::size_t rank, std::size_t entry, std::uint64_t index, std::uint64_t word) const {
  const Numbered& place = numbered(rank, entry);
  return mix(place.first + index * place.words_per_item + word);
}

std::uint8_t Pattern::byte(const SourcePlace& place) const {
  return byte_of(word(place.rank, place.entry, place.index, place.offset / kWordBytes), place.offset % kWordBytes);
}

void Pattern::fill(std::size_t rank, std::span<std::byte> memory, const Progress& progress) const {
  Steps steps(progress);
  const auto& entries = sources_[rank].pool.entries;
  for (std::size_t e = 0; e < entries.size(); ++e) {
    const Entry& entry = entries[e];
    for (std::uint64_t index = 0; index < entry.index_count; ++index) {
      std::byte* item = memory.data() + entry.base_address + index * entry.pitch_bytes;
      const std::uint64_t first = numbered(rank, e).first + index * numbered(rank, e).words_per_item;
      each_word(entry.item_length_bytes, [&](std::uint64_t w, std::uint64_t bytes) {
        const std::uint64_t value = mix(first + w);
        std::memcpy(item + w * kWordBytes, &value, bytes);
      });
      steps.add(entry.item_length_bytes);
    }
  }
}

std::optional<SourcePlace> Pattern::find(std::uint64_t value) const {
  const std::uint64_t number = unmix(value);
  const auto after =
      std::upper_bound(numbered_.begin(), numbered_.end(), number, [](std::uint64_t n, const Numbered& place) { return n < place.first; });
  if (after == numbered_.begin()) return std::nullopt;
  const Numbered& place = *(after - 1);
  const std::uint64_t word = number - place.first;
  if (place.words_per_item == 0 || word >= place.words_per_item * place.items) return std::nullopt;
  return SourcePlace{place.rank, place.entry, word / place.words_per_item, word % place.words_per_item * kWordBytes};
}

std::string Pattern::describe_place(const SourcePlace& place) const {
  const NamedPool& source = sources_[place.rank];
  const Entry& entry = source.pool.entries[place.entry];
  return describe_index(entry.space, place.index) + " of " + describe(entry) + " of " + source.name + ", byte " + std::to_string(place.offset);
}

Expected::Expected(const Pattern& pattern, std::vector<std::size_t> writers, NamedPool target, const IndicesBySpace& source,
                   const IndicesBySpace& target_indices)
    : pattern_(pattern), target_(std::move(target)) {
  for (std::size_t t = 0; t < target_.pool.entries.size(); ++t) {
    const Entry& wanted = target_.pool.entries[t];
    for (const std::size_t rank : writers) {
      const auto& entries = pattern_.sources()[rank].pool.entries;
      for (std::size_t s = 0; s < entries.size(); ++s) {
        if (entries[s].component == wanted.component && entries[s].role == wanted.role && entries[s].layer == wanted.layer) {
          add_items(t, rank, s, source, target_indices);
        }
      }
    }
  }
  std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.offset < b.offset; });
}

void Expected::add_items(std::size_t target_entry, std::size_t rank, std::size_t source_entry, const IndicesBySpace& source,
                         const IndicesBySpace& target) {
  const Entry& entry = target_.pool.entries[target_entry];
  const auto space = static_cast<std::size_t>(entry.space);
  for (std::size_t i = 0; i < target[space].size() && i < source[space].size(); ++i) {
    items_.push_back(
        {entry.base_address + target[space][i] * entry.pitch_bytes, target_entry, target[space][i], {rank, source_entry, source[space][i], 0}});
  }
}

std::uint64_t Expected::item_bytes(const Item& item) const { return target_.pool.entries[item.target_entry].item_length_bytes; }

void Expected::poison(std::span<std::byte> memory, const Progress& progress) const {
  Steps steps(progress);
  each_word(memory.size(), [&](std::uint64_t w, std::uint64_t bytes) {
    const std::uint64_t value = mix(kPoison + w);
    std::memcpy(memory.data() + w * kWordBytes, &value, bytes);
    steps.add(bytes);
  });
  for (const Item& item : items_) {
    each_word(item_bytes(item), [&](std::uint64_t w, std::uint64_t bytes) {
      const std::uint64_t value = ~pattern_.word(item.source.rank, item.source.entry, item.source.index, w);
      std::memcpy(memory.data() + item.offset + w * kWordBytes, &value, bytes);
    });
  }
}

Expected::Verdict Expected::compare(std::span<const std::byte> memory, const Progress& progress) const {
  Verdict verdict;
  Steps steps(progress);
  const auto wrong_byte = [&](std::uint64_t offset, const Item* item) {
    if (verdict.bytes_wrong++ == 0) verdict.first_wrong = explain(memory, offset, item);
  };
  const auto untouched = [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t offset = begin; offset < end; ++offset) {
      if (offset % kWordBytes == 0 && end - offset >= kWordBytes && load(memory.data() + offset) == mix(kPoison + offset / kWordBytes)) {
        offset += kWordBytes - 1;
        continue;
      }
      if (std::to_integer<std::uint8_t>(memory[offset]) != poison_byte(offset)) wrong_byte(offset, nullptr);
    }
    steps.add(end - begin);
  };
  std::uint64_t compared = 0;
  for (const Item& item : items_) {
    untouched(compared, item.offset);
    each_word(item_bytes(item), [&](std::uint64_t w, std::uint64_t bytes) {
      const std::uint64_t expected = pattern_.word(item.source.rank, item.source.entry, item.source.index, w);
      const std::uint64_t at = item.offset + w * kWordBytes;
      const std::uint64_t found = load(memory.data() + at, bytes);
      if (bytes == kWordBytes && found == expected) return;
      for (std::uint64_t b = 0; b < bytes; ++b) {
        if (byte_of(found, b) != byte_of(expected, b)) wrong_byte(at + b, &item);
      }
    });
    steps.add(item_bytes(item));
    compared = item.offset + item_bytes(item);
  }
  untouched(compared, memory.size());
  verdict.bytes_compared = memory.size();
  return verdict;
}

Expected::Wrong Expected::explain(std::span<const std::byte> memory, std::uint64_t offset, const Item* item) const {
  Wrong wrong;
  wrong.memory_offset = offset;
  wrong.wanted = item != nullptr;
  wrong.found = std::to_integer<std::uint8_t>(memory[offset]);
  for (std::size_t e = 0; e < target_.pool.entries.size(); ++e) {
    const Entry& entry = target_.pool.entries[e];
    if (offset < entry.base_address || offset >= entry.base_address + entry.index_count * entry.pitch_bytes) continue;
    wrong.entry = e;
    wrong.index = (offset - entry.base_address) / entry.pitch_bytes;
    wrong.offset = (offset - entry.base_address) % entry.pitch_bytes;
  }
  std::string where = "memory of " + target_.name + ", byte " + std::to_string(offset) + " (outside every entry)";
  if (wrong.entry) {
    const Entry& entry = target_.pool.entries[*wrong.entry];
    where = describe_index(entry.space, wrong.index) + " of " + describe(entry) + " of " + target_.name + ", byte " + std::to_string(wrong.offset);
    if (wrong.offset >= entry.item_length_bytes) where += " (between two items)";
  }
  if (item != nullptr) {
    wrong.must_be = item->source;
    wrong.must_be->offset = offset - item->offset;
    wrong.expected = pattern_.byte(*wrong.must_be);
  } else {
    wrong.expected = poison_byte(offset);
  }
  static constexpr char kDigits[] = "0123456789abcdef";
  const auto hex = [](std::uint8_t value) { return std::string("0x") + kDigits[value >> 4] + kDigits[value & 15u]; };
  wrong.text = where + ": expected " + hex(wrong.expected) + ", found " + hex(wrong.found);
  wrong.text += wrong.must_be ? "; it must come from " + pattern_.describe_place(*wrong.must_be) : "; nothing may touch this byte";
  explain_found(memory, wrong);
  return wrong;
}

/// What the found byte says about where it came from. Words are looked for at every alignment, so that bytes that were shifted are named too.
void Expected::explain_found(std::span<const std::byte> memory, Wrong& ret) const {
  if (ret.wanted && ret.found == static_cast<std::uint8_t>(~ret.expected)) {
    ret.is_poison = true;
    ret.text += "; nothing was written there";
    return;
  }
  for (std::uint64_t back = 0; back < kWordBytes && back <= ret.memory_offset; ++back) {
    const std::uint64_t begin = ret.memory_offset - back;
    if (begin + kWordBytes > memory.size()) continue;
    auto place = pattern_.find(load(memory.data() + begin));
    if (!place) continue;
    place->offset += back;
    if (place->offset >= pattern_.sources()[place->rank].pool.entries[place->entry].item_length_bytes) continue;
    ret.belongs_to = place;
    ret.text += "; the byte found is that of " + pattern_.describe_place(*place);
    return;
  }
  ret.text += "; the byte found belongs to no place of a source";
  if (ret.must_be && neighbours_are_right(memory, ret)) ret.text += ", the bytes beside it are right";
}

/// Whether the bytes of the item directly before and after the wrong one are as they must be: then this one was changed on its way.
bool Expected::neighbours_are_right(std::span<const std::byte> memory, const Wrong& wrong) const {
  const std::uint64_t item_bytes = target_.pool.entries[*wrong.entry].item_length_bytes;
  for (const std::int64_t step : {-1, 1}) {
    SourcePlace place = *wrong.must_be;
    place.offset += static_cast<std::uint64_t>(step);  // Below 0 it is beyond every item.
    if (place.offset >= item_bytes) continue;
    if (std::to_integer<std::uint8_t>(memory[wrong.memory_offset + static_cast<std::uint64_t>(step)]) != pattern_.byte(place)) return false;
  }
  return true;
}

std::uint64_t digest(std::span<const std::byte> memory) {
  std::uint64_t sum = memory.size();
  each_word(memory.size(), [&](std::uint64_t w, std::uint64_t bytes) {
    sum = (sum ^ load(memory.data() + w * kWordBytes, bytes)) * 0x9E3779B97F4A7C15u + (sum >> 29);
  });
  return sum;
}

}  // namespace kvferry::transfer_check
