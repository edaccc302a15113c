// Which lane two peers use: a function of their two descriptors that gives both sides the same answer.
#pragma once

#include <string>

#include "blob.h"
#include "kvferry/result.h"
#include "library.h"
#include "settings.h"

namespace kvferry::ucx {

struct ChosenLane {
  LaneClass lane = LaneClass::tcp;
  std::string warning;  ///< why it is not the better one; empty: nothing to say
};

/// Error mismatch: the two sides ask for lanes that exclude each other. Error unavailable: the lane asked for cannot be between these two.
Result<ChosenLane> choose_lane(const EndpointBlob& own, const EndpointBlob& remote);

}  // namespace kvferry::ucx
