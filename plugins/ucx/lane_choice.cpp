#include "lane_choice.h"

namespace kvferry::ucx {
namespace {

/// Empty: shared memory works between them, as far as can be told before the probe.
std::string shm_objection(const EndpointBlob& own, const EndpointBlob& remote) {
  std::string why = difference(own.identity, remote.identity);
  if (why.empty() && own.shm_address.empty()) why = "this side has no shared-memory worker";
  if (why.empty() && remote.shm_address.empty()) why = "the other side has no shared-memory worker";
  return why;
}

}  // namespace

Result<ChosenLane> choose_lane(const EndpointBlob& own, const EndpointBlob& remote) {
  const auto own_lane = static_cast<LaneChoice>(own.lane), remote_lane = static_cast<LaneChoice>(remote.lane);
  if (own.ucx_version >> 16 != remote.ucx_version >> 16) {
    return fail(ErrorCode::version, "choose a lane: this side has major version " + std::to_string(own.ucx_version >> 16) + " of UCX, the other side " +
                                        std::to_string(remote.ucx_version >> 16));
  }
  const bool shm_asked = own_lane == LaneChoice::shm || remote_lane == LaneChoice::shm;
  const bool tcp_asked = own_lane == LaneChoice::tcp || remote_lane == LaneChoice::tcp;
  if (shm_asked && tcp_asked) {
    return fail(ErrorCode::mismatch, "choose a lane: this side asks for " + std::string(to_string(own_lane)) + ", the other side for " +
                                         std::string(to_string(remote_lane)));
  }
  ChosenLane chosen;
  const std::string why = shm_objection(own, remote);
  if (!tcp_asked && why.empty()) {
    chosen.lane = LaneClass::shm;
    return chosen;
  }
  if (shm_asked) return fail(ErrorCode::unavailable, "choose a lane: shm is asked for, but " + why);
  if (own.tcp_address.empty() || remote.tcp_address.empty()) {
    return fail(ErrorCode::unavailable, std::string("choose a lane: ") + (own.tcp_address.empty() ? "this" : "the other") + " side has no TCP worker" +
                                            (why.empty() ? "" : ", and for shm " + why));
  }
  if (!tcp_asked && same_boot(own.identity, remote.identity)) chosen.warning = "tcp between two processes of one host, many times slower than shm: " + why;
  return chosen;
}

}  // namespace kvferry::ucx
