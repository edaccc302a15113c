// Limits of this backend that are no settings.
#pragma once

#include <cstdint>

#include "../common/bounds.h"

namespace kvferry::ucx {

using namespace plugins;

constexpr std::uint32_t kPiecesPerWriteMax = 64;
constexpr std::uint64_t kMessagesAheadMax = 4096;  ///< how far a message may be ahead of the oldest one that is missing

}  // namespace kvferry::ucx
