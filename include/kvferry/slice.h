/// kvferry/slice.h: which source entry goes to which target entry.
///
/// A join on (component, role, layer). Everything that could be inferred is compared instead, and every refusal comes before the first write, names the
/// entry and has both values.
#pragma once

#include <cstdint>
#include <vector>

#include "kvferry/pool.h"

namespace kvferry {

/// How the two entries of a pair fit. Later versions add page multiples and head ranges; until then those are refused with both values.
enum class Compatibility : std::uint8_t {
  equal,            ///< same pitch on both sides
  different_pitch,  ///< same item length and page size, pitches differ
};

struct EntryPair {
  std::uint32_t source = 0;  ///< index into source.entries
  std::uint32_t target = 0;  ///< index into target.entries
  Compatibility compatibility = Compatibility::equal;
  friend bool operator==(const EntryPair&, const EntryPair&) = default;
};

/// Pairs every entry of the source stage, in source order. Errors:
/// - the source stage leaves the target's model or its stage: both ranges;
/// - a source entry without partner, or a doubled key on either side;
/// - a target entry of the source's own layers that no source entry writes (draft layers apart: prefill need not run them);
/// - models that differ in kind, layout variant or number of layers;
/// - ratio lists that differ: both digests and the first differing layer where both lists are at hand;
/// - dtype, page size, item length, index space or head range that differ: entry and both values;
/// - for a compressed-MLA pool whose entries do not fit its declared ratios: the missing entry, the expected lengths (kv, state), the counts (c4, c128,
///   total) and the length found;
/// - C128 mode or ring size, window or ring stride that differ.
Result<std::vector<EntryPair>> slice(const Pool& source, const Pool& target);

/// Everything `slice` checks, without the pairs, for connect time.
Result<void> check_compatible(const Pool& source, const Pool& target);

}  // namespace kvferry
