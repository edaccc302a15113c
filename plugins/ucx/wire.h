// The messages that two peers exchange as active messages. Little endian, 8-byte aligned, every field of a fixed width.
//
//   data      | DataHead | DataEntry x entry_count | [NotificationRecord] | payload of entry 0 | payload of entry 1 | ...
//   others    | their struct |                                              (refused: text behind it)
//
// Every message starts with a MessageHead: its kind, its whole length, and the token that the receiver made for this one peer. Whatever does not fit is
// a protocol error that ends the peer, before anything of the message is used.
//
// Data messages carry a sequence, from 1, without gaps. The receiver applies them in any order and acknowledges with one number: all up to here are
// dealt with. Notifications wait until everything before them is dealt with. So the order is ours and does not lean on a promise of UCX.
#pragma once

#include <bit>
#include <cstdint>

#include "../common/frame.h"

namespace kvferry::ucx {

using namespace plugins;

static_assert(std::endian::native == std::endian::little, "the messages are written as they lie in memory");

constexpr std::uint16_t kWireVersion = 1;
constexpr unsigned kActiveMessageId = 1;

enum class MessageKind : std::uint16_t {
  hello = 1,         ///< the probe; answered
  hello_answer = 2,  ///< the probe of the other side arrived here
  data = 3,
  ack = 4,
  refused = 5,
  fence = 6,        ///< target to a writer that has mapped memory: this room is fenced
  map_request = 7,  ///< writer to target: I mean to write this region by copy
  map_grant = 8,
  map_revoke = 9,  ///< target to writer: the grant of this region is over
  goodbye = 10,    ///< the sender has begun to close and will send nothing more
};

struct MessageHead {
  std::uint16_t kind;
  std::uint16_t flags;
  std::uint32_t length_bytes;
  std::uint64_t token;
};

enum : std::uint16_t {
  kDataNotify = 1u << 0,      ///< a NotificationRecord follows the entries
  kDataWantsAck = 1u << 1,    ///< acknowledge now, nothing is queued behind this one
  kDataVoid = 1u << 2,        ///< canceled after it was queued in UCX: deal with it without applying anything
};

struct DataHead {
  MessageHead head;
  std::uint64_t sequence;
  std::uint64_t room;
  std::uint32_t generation;
  std::uint32_t entry_count;
  std::uint64_t payload_bytes;
  std::uint64_t mapped_bytes;     ///< copied by the sender itself since its last message
  std::uint64_t oldest_sequence;  ///< refusals below it are of no interest to the sender any more
  std::uint64_t since_sequence;   ///< with kDataNotify: a refusal of the room from here on withholds a notification of success
};

struct NotificationRecord {
  std::uint64_t room;
  std::uint64_t transfer;
  std::uint32_t generation;
  std::uint32_t chunk;
  std::uint32_t tp_rank;
  std::uint32_t pp_rank;
  std::int32_t status;
  std::uint32_t flags;
  std::uint64_t bytes;
};

/// One contiguous range of the target, the payload of which follows in the order of the entries. With kEntryMapped: a marker, without offset and length,
/// for a region into which the sender has copied before it sent this message.
struct DataEntry {
  std::uint64_t region;
  std::uint64_t offset;
  std::uint32_t length;
  std::uint32_t flags;
};
enum : std::uint32_t { kEntryMapped = 1u << 0 };

struct HelloMessage {
  MessageHead head;
  std::uint64_t instance;  ///< of the sender's backend
};

/// Everything up to `sequence` is dealt with: `entries_applied` entries are in memory, `messages_refused` messages have had their refusal sent.
struct AckMessage {
  MessageHead head;
  std::uint64_t sequence;
  std::uint64_t entries_applied;
  std::uint64_t entries_skipped;  ///< of void and refused messages
  std::uint64_t messages_refused;
};

constexpr std::uint32_t kRefusedTextBytes = 256;

struct RefusedMessage {
  MessageHead head;
  std::uint64_t sequence;
  std::int32_t code;
  std::uint32_t entry_index;  ///< within the message
  char text[kRefusedTextBytes];
};

struct FenceMessage {
  MessageHead head;
  std::uint64_t epoch;  ///< of the control page, see mapping.h
  std::uint64_t room;
  std::uint32_t generation;
  std::uint32_t reserved;
};

struct MapMessage {
  MessageHead head;
  std::uint64_t region;
  std::uint64_t epoch;  ///< the owner's when it granted, or the one it raised to revoke; 0 in a request
};

struct GoodbyeMessage {
  MessageHead head;
};

static_assert(sizeof(MessageHead) == 16 && sizeof(DataHead) == 72 && sizeof(NotificationRecord) == 48 && sizeof(DataEntry) == 24);
static_assert(sizeof(AckMessage) == 48 && sizeof(RefusedMessage) == 32 + kRefusedTextBytes && sizeof(FenceMessage) == 40 && sizeof(MapMessage) == 32);

}  // namespace kvferry::ucx
