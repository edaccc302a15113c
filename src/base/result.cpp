#include "kvferry/result.h"

namespace kvferry {

std::string_view to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::out_of_range: return "out_of_range";
    case ErrorCode::mismatch: return "mismatch";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::not_found: return "not_found";
    case ErrorCode::exists: return "exists";
    case ErrorCode::busy: return "busy";
    case ErrorCode::limit: return "limit";
    case ErrorCode::no_memory: return "no_memory";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::peer_lost: return "peer_lost";
    case ErrorCode::refused: return "refused";
    case ErrorCode::fenced: return "fenced";
    case ErrorCode::canceled: return "canceled";
    case ErrorCode::stale: return "stale";
    case ErrorCode::unavailable: return "unavailable";
    case ErrorCode::version: return "version";
    case ErrorCode::io: return "io";
    case ErrorCode::internal: return "internal";
    case ErrorCode::forked: return "forked";
    case ErrorCode::cannot_promise: return "cannot_promise";
  }
  // A plugin or a peer may hand over a number that this version does not know.
  return "unknown";
}

std::string_view to_string(ErrorClass error_class) noexcept {
  switch (error_class) {
    case ErrorClass::retry: return "retry";
    case ErrorClass::reconnect: return "reconnect";
    case ErrorClass::reregister: return "reregister";
    case ErrorClass::permanent: return "permanent";
    case ErrorClass::bug: return "bug";
  }
  return "unknown";
}

ErrorClass default_class(ErrorCode code) noexcept {
  switch (code) {
    // The cause goes away by itself. An unproved quiescence is one of them: the writer answers, or it is found dead.
    case ErrorCode::busy:
    case ErrorCode::no_memory:
    case ErrorCode::timeout:
    case ErrorCode::cannot_promise: return ErrorClass::retry;
    case ErrorCode::peer_lost:
    case ErrorCode::io: return ErrorClass::reconnect;
    case ErrorCode::stale: return ErrorClass::reregister;
    case ErrorCode::internal: return ErrorClass::bug;
    case ErrorCode::invalid_argument:
    case ErrorCode::out_of_range:
    case ErrorCode::mismatch:
    case ErrorCode::unsupported:
    case ErrorCode::not_found:
    case ErrorCode::exists:
    case ErrorCode::limit:
    case ErrorCode::refused:
    case ErrorCode::fenced:
    case ErrorCode::canceled:
    case ErrorCode::unavailable:
    case ErrorCode::version:
    case ErrorCode::forked: return ErrorClass::permanent;
  }
  return ErrorClass::bug;
}

}  // namespace kvferry
