/* kvferry/backend_abi.h: what a transport backend implements. C11, stdint.h only.
 *
 *   host (libkvferry)                                   backend (one shared object)
 *   ─────────────────                                   ───────────────────────────
 *   dlopen ──► kvferry_backend_entry(host table) ─────► constant kvferry_backend_table, or a refusal with a reason
 *   create ──► register_region / allocate ───────────►  regions   (ids, generation inside)
 *          ──► peer_create ► peer_export ═ session ═► peer_connect ► peer_state UP   (ends with a probe both ways)
 *          ──► submit(batch) ─ accepts a prefix ─────►  posts writes, never blocks
 *   progress, poll ◄── batch done/failed, quiesced, notification, piece refused, fenced, peer lost
 *
 * Rules for every struct and entry
 * - `struct_size` is the size the writer of the struct knew. The reader uses the smaller of that and its own; a missing tail reads as zero,
 *   and zero is a valid default for every field. Append only: no field is moved, reused or given another meaning.
 * - A struct that the callee fills: the caller sets `struct_size`; the callee writes up to that size, zeroes what it does not know of it, and leaves
 *   `struct_size` alone. A struct with struct_size 0 is KVFERRY_ERROR_INVALID_ARGUMENT. In an array of structs that have a struct_size (devices,
 *   events) every element has the same one, and that is also the distance from one element to the next: step by it, never by your own sizeof.
 * - kvferry_error, kvferry_notification, kvferry_writer, kvferry_setting, kvferry_write and kvferry_piece lie inside other structs or in plain
 *   arrays: they are frozen.
 * - A NULL entry, or one beyond the table's struct_size, is "not supported". Entries marked (required) are checked by the loader, and by the host
 *   against the capability bits: EVENT_FD needs event_fd and arm, ALLOCATE needs allocate and free_memory.
 * - An entry returns a status: KVFERRY_OK, KVFERRY_AGAIN (nothing is wrong, call again after progress) or an error code. On an error code, and
 *   only then, the caller's kvferry_error is filled; `err` may be NULL. Outputs are written on success only (with AGAIN: only *ret_accepted, 0).
 * - A region or peer id that is not known, or is gone, is KVFERRY_ERROR_NOT_FOUND; a NULL argument where one is needed is
 *   KVFERRY_ERROR_INVALID_ARGUMENT. Neither changes anything.
 * - Requests that end in an event (fence, cancel, flush, region_quiesce, peer_close) may queue it at once; where so many are waiting to be polled
 *   that a limit of the backend is reached they answer KVFERRY_ERROR_BUSY with class RETRY: poll, then ask again.
 * - No exception, signal handler, exit, stdio or foreign memory crosses this line. Buffers are the caller's; a size query is a call with
 *   capacity 0, which returns KVFERRY_OK and the size needed. A capacity that is too small is KVFERRY_ERROR_LIMIT.
 * - Threads: all entries of one backend are called from one thread at a time (the host's progress thread), except where an entry says
 *   "any thread". No entry may block, except create, destroy, register_region, deregister_region, allocate, free_memory and self_test, which
 *   may take as long as the device does.
 * - After fork the child must not call anything; a backend that notices another process id answers KVFERRY_ERROR_FORKED.
 * - Times are nanoseconds of the host's monotonic clock (kvferry_host.now_ns), so that tests run on a virtual clock. 0 means "none".
 *
 * What done and quiesced mean is in docs/backend-abi.md together with a table per backend.
 */
#ifndef KVFERRY_BACKEND_ABI_H
#define KVFERRY_BACKEND_ABI_H

#include <stdint.h>

#include "kvferry/write_element.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVFERRY_BACKEND_ABI_MAJOR 1u
#define KVFERRY_BACKEND_ABI_MINOR 0u
#define KVFERRY_BACKEND_MAGIC 0x5246564bu /* "KVFR", little endian */
#define KVFERRY_BACKEND_ENTRY_SYMBOL "kvferry_backend_entry"

/* ---- status, errors ---------------------------------------------------------------------------------------------------------------- */

typedef int32_t kvferry_status;
enum {
  KVFERRY_OK = 0,
  KVFERRY_AGAIN = 1, /* not an error: window full, not finished yet, work pending */
  /* Error codes are the numbers of kvferry::ErrorCode (result.h). */
  KVFERRY_ERROR_INVALID_ARGUMENT = 101, /* the caller's value is wrong */
  KVFERRY_ERROR_OUT_OF_RANGE = 102,     /* outside a region, a list or a limit of its type */
  KVFERRY_ERROR_MISMATCH = 103,         /* two sides disagree */
  KVFERRY_ERROR_UNSUPPORTED = 104,
  KVFERRY_ERROR_NOT_FOUND = 105,
  KVFERRY_ERROR_EXISTS = 106,
  KVFERRY_ERROR_BUSY = 107,
  KVFERRY_ERROR_LIMIT = 108, /* a limit of this host, device or library is reached */
  KVFERRY_ERROR_NO_MEMORY = 109,
  KVFERRY_ERROR_TIMEOUT = 110,
  KVFERRY_ERROR_PEER_LOST = 111, /* dead, frozen past its lease, or disconnected */
  KVFERRY_ERROR_REFUSED = 112,   /* the target refused a piece */
  KVFERRY_ERROR_FENCED = 113,    /* the room and generation are fenced at the target */
  KVFERRY_ERROR_CANCELED = 114,
  KVFERRY_ERROR_STALE = 115,       /* a generation that has passed */
  KVFERRY_ERROR_UNAVAILABLE = 116, /* this host lacks something: plugin, device, port, locked memory */
  KVFERRY_ERROR_VERSION = 117,
  KVFERRY_ERROR_IO = 118,
  KVFERRY_ERROR_INTERNAL = 119,
  KVFERRY_ERROR_FORKED = 120,
  KVFERRY_ERROR_CANNOT_PROMISE = 121 /* quiescence cannot be proved: the memory stays in quarantine */
};

/* What the caller should do about an error. */
enum {
  KVFERRY_CLASS_NONE = 0,
  KVFERRY_CLASS_RETRY = 1,       /* the same call may succeed later */
  KVFERRY_CLASS_RECONNECT = 2,   /* close the peer and open it again */
  KVFERRY_CLASS_REREGISTER = 3,  /* register or import the region again */
  KVFERRY_CLASS_PERMANENT = 4,   /* fix the argument or the host */
  KVFERRY_CLASS_BUG = 5
};

#define KVFERRY_ERROR_TEXT_BYTES 448u

/* Filled by the callee in the caller's memory. `text`: what was tried, on what, the failing call, its own reason; UTF-8, terminated. */
typedef struct kvferry_error {
  uint32_t struct_size;
  int32_t code;          /* KVFERRY_ERROR_... */
  int32_t error_class;   /* KVFERRY_CLASS_... */
  int32_t vendor_status; /* ucs_status_t, ibv_wc_status ...; 0: none */
  int32_t sys_errno;     /* errno; 0: none */
  uint32_t reserved;
  uint64_t object; /* region, peer or element index the text speaks of; 0: none */
  char text[KVFERRY_ERROR_TEXT_BYTES];
} kvferry_error;

/* ---- host -------------------------------------------------------------------------------------------------------------------------- */

enum { KVFERRY_LOG_ERROR = 0, KVFERRY_LOG_WARN = 1, KVFERRY_LOG_INFO = 2, KVFERRY_LOG_DEBUG = 3 };

/* Given to the backend; outlives it. Every function may be NULL except now_ns. */
typedef struct kvferry_host {
  uint32_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor;
  uint32_t reserved;
  void* user;
  /* Preformatted UTF-8 text. Any thread. */
  void (*log)(void* user, int32_t level, const char* component, const char* text);
  /* Monotonic nanoseconds; may be virtual. Any thread. */
  uint64_t (*now_ns)(void* user);
  /* Called first and last on every thread the backend starts: name, affinity, device context. */
  void (*thread_start)(void* user, const char* name);
  void (*thread_stop)(void* user);
} kvferry_host;

typedef struct kvferry_setting {
  const char* key; /* without prefix, lower case: "tcp_segment_bytes" */
  const char* value;
} kvferry_setting;

/* ---- what a backend offers ---------------------------------------------------------------------------------------------------------- */

/* One line of `transfer-check devices`: something this host offers, or the reason why not. */
typedef struct kvferry_device {
  uint32_t struct_size;
  uint32_t usable; /* 1: usable */
  char name[64];   /* "lo", "mlx5_0:1", "memory" */
  char lane[32];   /* "tcp", "shm", "rc", ... */
  char detail[256];
  char reason[256]; /* why it is not used; empty when usable */
} kvferry_device;

enum {                                       /* capability bits */
  KVFERRY_CAP_WRITE = 1u << 0,
  KVFERRY_CAP_READ = 1u << 1,
  KVFERRY_CAP_TRUE_ONE_SIDED = 1u << 2,      /* bytes land without the target's progress */
  KVFERRY_CAP_NEEDS_TARGET_PROGRESS = 1u << 3,
  KVFERRY_CAP_REVOKES_ON_DEREGISTER = 1u << 4, /* after deregister nothing lands in the region */
  KVFERRY_CAP_DETECTS_DEAD_PEER = 1u << 5,
  KVFERRY_CAP_EVENT_FD = 1u << 6,
  KVFERRY_CAP_ALLOCATE = 1u << 7,
  KVFERRY_CAP_IN_PROCESS_ONLY = 1u << 8,     /* both ends must live in one process (loopback) */
  KVFERRY_CAP_GUARDED_TARGET = 1u << 9,      /* the target checks region, generation and fence of every piece */
  KVFERRY_CAP_DEVICE_MEMORY = 1u << 10
};

typedef struct kvferry_limits {
  uint32_t struct_size;
  uint32_t capabilities;
  uint64_t message_bytes_max;       /* longest kvferry_write; the planner splits there */
  uint32_t pieces_per_write_max;    /* gather elements of one write */
  uint32_t writes_per_batch_max;    /* kvferry_batch.write_count */
  uint32_t pieces_per_batch_max;    /* kvferry_batch.piece_count */
  uint32_t batches_in_flight_max;   /* per peer; beyond it submit accepts nothing */
  uint64_t bytes_in_flight_max;     /* per peer; beyond it submit accepts a prefix; 0: no such limit */
  uint32_t endpoint_bytes_max;      /* longest peer_export blob */
  uint32_t regions_max;
  uint64_t alignment_bytes;         /* of allocate */
  char done_means[128];             /* which mechanism gives "done", one phrase */
} kvferry_limits;

/* ---- regions ------------------------------------------------------------------------------------------------------------------------ */

enum { KVFERRY_PURPOSE_KV = 0, KVFERRY_PURPOSE_STATE = 1, KVFERRY_PURPOSE_METADATA = 2, KVFERRY_PURPOSE_STAGING = 3 };
enum { KVFERRY_MEMORY_HOST = 0, KVFERRY_MEMORY_DEVICE = 1 };
enum { KVFERRY_ACCESS_LOCAL = 0, KVFERRY_ACCESS_REMOTE_WRITE = 1u << 0, KVFERRY_ACCESS_REMOTE_READ = 1u << 1 };

typedef struct kvferry_region_desc {
  uint32_t struct_size;
  uint32_t purpose;
  uint32_t memory_kind;
  uint32_t access;  /* KVFERRY_ACCESS_..., 0: source only */
  uint64_t address; /* not 0; address + length must not wrap */
  uint64_t length;  /* bytes, at least 1 */
  int32_t dmabuf_fd; /* valid only with KVFERRY_MEMORY_DEVICE; -1: none */
  uint32_t device;
  uint64_t dmabuf_offset;
} kvferry_region_desc;

/* ---- peers -------------------------------------------------------------------------------------------------------------------------- */

typedef uint64_t kvferry_peer; /* never reused in a process; 0 is no peer, or "all" where an entry says so */

enum {
  KVFERRY_PEER_CREATED = 0,
  KVFERRY_PEER_CONNECTING = 1,
  KVFERRY_PEER_UP = 2,
  KVFERRY_PEER_CLOSING = 3,
  KVFERRY_PEER_FAILED = 4, /* nothing is posted any more; close it */
  KVFERRY_PEER_CLOSED = 5  /* quiesced on both roles; the id is gone after the event */
};

typedef struct kvferry_peer_options {
  uint32_t struct_size;
  uint32_t reserved;
  const char* lane; /* "auto", "shm", "tcp", "rc", ...; NULL: auto. Both sides must ask for compatible lanes */
  uint64_t lease_ns; /* progress pauses longer than this make the backend drop the peer before it applies anything queued; 0: never */
} kvferry_peer_options;

typedef struct kvferry_peer_info {
  uint32_t struct_size;
  uint32_t state;
  uint32_t batches_in_flight;
  uint32_t mapped_regions; /* remote regions this side writes by one copy */
  uint64_t bytes_in_flight;
  uint64_t last_heard_ns; /* host clock, 0: never */
  char lane[32];          /* the lane really in use: "loopback", "shm", "mapped", "tcp", "rc" */
  char detail[192];       /* devices, segment sizes, error mode ... */
  kvferry_error last_error; /* code 0: none */
} kvferry_peer_info;

/* ---- batches, events ---------------------------------------------------------------------------------------------------------------- */

/* Which rank of the prefill side wrote; a chunk is complete when every expected writer has reported. */
typedef struct kvferry_writer {
  uint32_t tp_rank;
  uint32_t pp_rank;
} kvferry_writer;

/* Sent to the target after everything of the batch it rides on, and all earlier batches of its transfer, is delivered there. `room` and `generation`
 * are those of the batch (else INVALID_ARGUMENT). */
typedef struct kvferry_notification {
  uint64_t room;
  uint64_t transfer;   /* the initiator's transfer id */
  uint32_t generation; /* of the room */
  uint32_t chunk;
  kvferry_writer writer;
  int32_t status; /* KVFERRY_OK or an error code */
  uint32_t flags; /* KVFERRY_NOTIFY_... */
  uint64_t bytes; /* delivered for this chunk by this writer */
} kvferry_notification;
enum { KVFERRY_NOTIFY_LAST_CHUNK = 1u << 0 };

typedef struct kvferry_batch {
  uint32_t struct_size;
  uint32_t write_count;
  uint32_t piece_count;
  uint32_t flags; /* KVFERRY_BATCH_... */
  const kvferry_write* writes; /* the arrays may be reused when submit has returned */
  const kvferry_piece* pieces;
  uint64_t room;
  uint32_t generation;
  uint32_t reserved;
  kvferry_writer writer;
  uint64_t tag;         /* given back in the events of this batch */
  uint64_t deadline_ns; /* 0: none; passed: the batch fails with KVFERRY_ERROR_TIMEOUT */
  kvferry_notification notification; /* with KVFERRY_BATCH_NOTIFY */
} kvferry_batch;
/* KVFERRY_BATCH_NOTIFY: deliver `notification` to the peer after this batch and every earlier batch of the same room and generation to that
 * peer. Counts as accepted only when all writes of the batch are. A batch of zero writes with this flag is legal: a bare notification in order.
 * A notification with status KVFERRY_OK never follows a failure: when an earlier batch of the room and generation fails, or has failed and its event
 * was not yet polled at submit, the notification is withheld and its batch fails with the same code. One that carries an error status is delivered
 * once the earlier batches have ended, however they ended. Any room number is legal, 0 included. Between batches, and between the writes of one
 * batch, nothing but a notification gives order. */
enum { KVFERRY_BATCH_NOTIFY = 1u << 0 };

enum {
  KVFERRY_EVENT_NONE = 0,
  KVFERRY_EVENT_BATCH_DONE = 1,         /* tag, peer, room, generation, bytes; every byte is in target memory and visible to a CPU that saw the
                                           notification, which is in the target's queue; the source is read no more */
  KVFERRY_EVENT_BATCH_FAILED = 2,       /* tag, peer, room, generation, error; terminal. Bytes may have landed partly and may still land until
                                           quiesced; the source may still be read until INITIATOR_QUIESCED of its room or PEER_CLOSED */
  KVFERRY_EVENT_INITIATOR_QUIESCED = 3, /* peer, room, generation: the source is read no more, nothing of it leaves this side any more */
  KVFERRY_EVENT_NOTIFICATION = 4,       /* peer, notification: target role */
  KVFERRY_EVENT_PIECE_REFUSED = 5,      /* peer, room, generation, error: target role, our guard refused a piece (the first of a batch or message);
                                           the initiator is told too. Not for pieces of a fenced room: those are only counted */
  KVFERRY_EVENT_FENCED = 6,             /* tag, peer, room, generation: no handler can still apply pieces. error.code
                                           KVFERRY_ERROR_CANNOT_PROMISE: it cannot be proved, the memory stays in quarantine */
  KVFERRY_EVENT_REGION_QUIESCED = 7,    /* tag; or error as with FENCED */
  KVFERRY_EVENT_FLUSHED = 8,            /* tag */
  KVFERRY_EVENT_PEER_UP = 9,            /* peer */
  KVFERRY_EVENT_PEER_LOST = 10,         /* peer, error: every batch of it has been failed; close it */
  KVFERRY_EVENT_PEER_CLOSED = 11        /* peer: nothing of it can land here, nothing of ours is read for it. error.code
                                           KVFERRY_ERROR_CANNOT_PROMISE: closed, but mapped memory may still be written by a frozen writer; a
                                           second PEER_CLOSED without error follows when that writer is known to be gone */
};

typedef struct kvferry_event {
  uint32_t struct_size;
  uint32_t kind;
  kvferry_peer peer;
  uint64_t room;
  uint32_t generation;
  uint32_t reserved;
  uint64_t tag;
  uint64_t bytes; /* delivered, where known */
  kvferry_notification notification;
  kvferry_error error;
} kvferry_event;

typedef struct kvferry_stats {
  uint32_t struct_size;
  uint32_t peers;
  uint64_t regions;
  uint64_t batches_submitted, batches_done, batches_failed;
  uint64_t writes, pieces, bytes; /* initiator, accepted */
  uint64_t messages_sent, messages_received;
  uint64_t pieces_applied, bytes_applied, pieces_refused, pieces_fenced; /* target, guarded lanes */
  uint64_t notifications_sent, notifications_received;
  uint64_t progress_calls;
} kvferry_stats;

/* ---- the table ---------------------------------------------------------------------------------------------------------------------- */

typedef struct kvferry_backend kvferry_backend; /* opaque */

enum { KVFERRY_DEREGISTER_REFUSE_IF_BUSY = 0, KVFERRY_DEREGISTER_DRAIN = 1 };
enum { KVFERRY_CLOSE_DRAIN = 0, KVFERRY_CLOSE_FORCE = 1 };

typedef struct kvferry_backend_table {
  uint32_t struct_size;
  uint32_t magic; /* KVFERRY_BACKEND_MAGIC */
  uint32_t abi_major;
  uint32_t abi_minor;
  const char* name;    /* "loopback", "ucx"; static strings */
  const char* version; /* of the plugin */
  const char* build;   /* libraries really bound, with version */

  /* since 1.0 */

  /* (required) Devices and lanes of this host, with the reason for each refusal. Opens nothing that lasts. *ret_count is the number there are;
   * at most `capacity` are written. */
  kvferry_status (*probe)(const kvferry_host* host, const kvferry_setting* settings, uint32_t settings_count, kvferry_device* devices,
                          uint32_t capacity, uint32_t* ret_count, kvferry_error* err);
  /* (required) Unknown or malformed settings are errors that name key and value. */
  kvferry_status (*create)(const kvferry_host* host, const kvferry_setting* settings, uint32_t settings_count, kvferry_backend** ret_backend,
                           kvferry_error* err);
  /* (required) KVFERRY_ERROR_BUSY while a peer is not closed, unless force; then peers are torn down first. Regions are deregistered, memory from
   * allocate is gone. A peer whose PEER_CLOSED is queued but not polled counts as closed. */
  kvferry_status (*destroy)(kvferry_backend* backend, uint32_t force, kvferry_error* err);
  /* (required) */
  kvferry_status (*query)(kvferry_backend* backend, kvferry_limits* ret_limits, kvferry_error* err);
  /* (required) Effective settings as one JSON object, with terminator. *ret_bytes includes it. */
  kvferry_status (*effective_config)(kvferry_backend* backend, char* text, uint32_t capacity, uint32_t* ret_bytes, kvferry_error* err);

  /* (required) The whole range is usable, or the call fails and nothing is left behind. An equal range may be registered again and gets an id of
   * its own; overlaps are legal. Refused: zero length, null address, wrap, a purpose, kind or access bit that is not known. */
  kvferry_status (*register_region)(kvferry_backend* backend, const kvferry_region_desc* desc, kvferry_region* ret_region, kvferry_error* err);
  /* (required) After KVFERRY_OK no byte of it is read or written by this backend. KVFERRY_ERROR_BUSY while a batch uses it (mode REFUSE), or
   * KVFERRY_AGAIN with mode DRAIN: no new use is accepted, call again after progress. Remote pieces that name it afterwards (with DRAIN: from the
   * first call on) are refused. A failed batch uses its regions until its room is initiator-quiesced. */
  kvferry_status (*deregister_region)(kvferry_backend* backend, kvferry_region region, uint32_t mode, kvferry_error* err);
  /* Target role: event REGION_QUIESCED when nothing of `peer` (0: any) can land in the region any more; the region then refuses it. */
  kvferry_status (*region_quiesce)(kvferry_backend* backend, kvferry_region region, kvferry_peer peer, uint64_t tag, uint64_t deadline_ns,
                                   kvferry_error* err);
  /* Memory that this backend can share with a neighbour process directly: zeroed, registered, remote writable and readable. */
  kvferry_status (*allocate)(kvferry_backend* backend, uint64_t length, uint32_t purpose, void** ret_address, kvferry_region* ret_region,
                             kvferry_error* err);
  /* As deregister_region with mode DRAIN, then the memory is gone. Only for regions from allocate, and those end only here: deregister_region
   * refuses them with INVALID_ARGUMENT, as this entry refuses the others. */
  kvferry_status (*free_memory)(kvferry_backend* backend, kvferry_region region, kvferry_error* err);
  /* (required) Blob that lets a peer address these regions: versioned, length-checked, CRC. Regions without remote access are refused. */
  kvferry_status (*export_regions)(kvferry_backend* backend, const kvferry_region* regions, uint32_t count, void* blob, uint64_t capacity,
                                   uint64_t* ret_bytes, kvferry_error* err);

  /* (required) Local resources for one remote engine. */
  kvferry_status (*peer_create)(kvferry_backend* backend, const kvferry_peer_options* options, kvferry_peer* ret_peer, kvferry_error* err);
  /* (required) The endpoint descriptor to carry to that engine: versioned, length-checked, CRC. */
  kvferry_status (*peer_export)(kvferry_backend* backend, kvferry_peer peer, void* blob, uint64_t capacity, uint64_t* ret_bytes, kvferry_error* err);
  /* (required) Starts connecting with the other side's descriptor; every byte of it is checked first. Ends in event PEER_UP after a probe in both
   * directions, or PEER_LOST at the deadline at the latest. */
  kvferry_status (*peer_connect)(kvferry_backend* backend, kvferry_peer peer, const void* blob, uint64_t bytes, uint64_t deadline_ns,
                                 kvferry_error* err);
  /* (required) Adds regions exported by that peer; all or none of a blob. May be called before the peer is connected. A known id is replaced. */
  kvferry_status (*import_regions)(kvferry_backend* backend, kvferry_peer peer, const void* blob, uint64_t bytes, kvferry_error* err);
  /* (required) The peer withdrew these; later writes that name them are refused locally. Unknown ids are ignored. */
  kvferry_status (*forget_regions)(kvferry_backend* backend, kvferry_peer peer, const kvferry_region* regions, uint32_t count, kvferry_error* err);
  /* (required) */
  kvferry_status (*peer_state)(kvferry_backend* backend, kvferry_peer peer, kvferry_peer_info* ret_info, kvferry_error* err);
  /* (required) DRAIN: after the batches this side submitted have ended; FORCE: now, batches fail with KVFERRY_ERROR_CANCELED. Legal in every state,
   * may be repeated until PEER_CLOSED is polled (FORCE after DRAIN forces; then the id is gone: NOT_FOUND). Ends in one event PEER_CLOSED, by the
   * deadline at the latest (DRAIN turns into FORCE then; FORCE in the next progress). The other side gets PEER_LOST, after the DONE events of what
   * was acknowledged, unless it has begun to close too. Closing a peer that is not up needs no other side. */
  kvferry_status (*peer_close)(kvferry_backend* backend, kvferry_peer peer, uint32_t mode, uint64_t deadline_ns, kvferry_error* err);

  /* (required) Accepts the first *ret_accepted writes of the batch, which may be 0 (KVFERRY_AGAIN). What was accepted is one batch: one DONE or
   * FAILED event with its tag. Bounds, access and limits of every write are checked before anything is posted: one bad write refuses the whole batch
   * with its element index in err->object and *ret_accepted 0. No allocation per write. A peer that is not up yet: AGAIN. One that is closing:
   * CANCELED. A failed one: PEER_LOST. Neither write nor notification, or more than writes_per_batch_max or pieces_per_batch_max: refused. */
  kvferry_status (*submit)(kvferry_backend* backend, kvferry_peer peer, const kvferry_batch* batch, uint32_t* ret_accepted, kvferry_error* err);
  /* (required) Initiator: nothing more of that room and generation is sent; its batches fail with KVFERRY_ERROR_CANCELED; then event
   * INITIATOR_QUIESCED. Later submits of it are refused with KVFERRY_ERROR_CANCELED. What has left this side may still land: only the target's fence
   * ends that. Legal for a room without batches, and again: each call gives one INITIATOR_QUIESCED. Backends may forget the oldest of very many
   * canceled rooms of a peer (loopback: cancels_max). */
  kvferry_status (*cancel)(kvferry_backend* backend, kvferry_peer peer, uint64_t room, uint32_t generation, kvferry_error* err);
  /* (required) Target: pieces and notifications of `room` with a generation up to `generation` from `peer` (0: every peer) are refused from now on;
   * event FENCED with `tag`. Peer 0 covers peers created later, too. Fences of one peer end with it. Writes that name the room fail at the initiator
   * with KVFERRY_ERROR_FENCED. */
  kvferry_status (*fence)(kvferry_backend* backend, kvferry_peer peer, uint64_t room, uint32_t generation, uint64_t tag, uint64_t deadline_ns,
                          kvferry_error* err);
  /* Event FLUSHED when every batch submitted to the peer before is done or failed. */
  kvferry_status (*flush)(kvferry_backend* backend, kvferry_peer peer, uint64_t tag, kvferry_error* err);

  /* (required) Moves everything forward by a bounded amount. *ret_worked: 1 if anything happened. */
  kvferry_status (*progress)(kvferry_backend* backend, uint32_t* ret_worked, kvferry_error* err);
  /* (required) Takes up to `capacity` events, oldest first. The caller sets struct_size of each. Events are never dropped: a full queue pushes back
   * into submit. */
  kvferry_status (*poll)(kvferry_backend* backend, kvferry_event* events, uint32_t capacity, uint32_t* ret_count, kvferry_error* err);
  /* Descriptor that becomes readable when progress is wanted, owned by the backend. */
  kvferry_status (*event_fd)(kvferry_backend* backend, int32_t* ret_fd, kvferry_error* err);
  /* KVFERRY_AGAIN: work is pending, call progress instead of waiting. Wait with a bound in any case. */
  kvferry_status (*arm)(kvferry_backend* backend, kvferry_error* err);
  /* (required) Any thread. */
  kvferry_status (*stats)(kvferry_backend* backend, kvferry_stats* ret_stats, kvferry_error* err);
  /* Registers, connects to itself, writes, notifies, compares, deregisters. May block for up to ten seconds. */
  kvferry_status (*self_test)(kvferry_backend* backend, kvferry_error* err);
} kvferry_backend_table;

/* The one exported symbol. Refuses a host whose abi_major is not its own before anything else: returns NULL and writes a reason (terminated,
 * truncated at reason_capacity). A refusal because of the version starts with "abi " and names both versions, so that the host can tell it from the
 * others: "abi 2.0 wanted, this host speaks 1.0". Has no side effects: no thread, signal handler, environment change or open device. The table lives
 * as long as the process and may be the same at every call. */
typedef const kvferry_backend_table* (*kvferry_backend_entry_function)(const kvferry_host* host, char* reason, uint32_t reason_capacity);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVFERRY_BACKEND_ABI_H */
