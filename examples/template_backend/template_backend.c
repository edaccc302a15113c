/* A backend that moves nothing: the skeleton to copy for a transport of your own.
 *
 * It loads, passes every check of the host and refuses to work: each entry says what it has to do, and answers KVFERRY_ERROR_UNSUPPORTED until it
 * does. The contract is include/kvferry/backend_abi.h, the pictures of how peers, batches and regions live are in docs/backend-abi.md. The way from
 * here:
 *
 *   1. Copy the folder, replace "template" by your name here and in meson.build: the file must be called libkvferry_<name>.so.
 *   2. Fill in probe, create, destroy, query, effective_config: then `transfer-check devices --backend=<name>` shows your devices.
 *   3. Regions, peers, submit, progress, poll. After each, run the conformance suite (KVFERRY_CONFORMANCE_BACKEND=<name>, tests/conformance): it is
 *      the judge of what is said here. plugins/loopback is the reference when a text is not clear.
 *   4. The optional entries you do not offer stay NULL; the host then says "not supported" for you. Set capability bits for what you really have.
 *
 * Three rules that cost others nights: nothing but the entry function may be exported; never say done before the bytes are at the target, and never
 * say quiesced before nothing can land; every failure has a text that names what was tried, on what, and why it failed.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvferry/backend_abi.h"

struct kvferry_backend {
  kvferry_host host;      /* a copy, as far as both sides know it */
  uint32_t process_id;    /* of the creator: a forked child is refused */
  uint32_t example_limit; /* your settings */
};

/* ---- the small things that every entry needs ------------------------------------------------------------------------------------------- */

/* Fills the caller's error, when there is one, up to the size that the caller knows; gives the code back. */
__attribute__((format(printf, 4, 5))) static kvferry_status fail(kvferry_error* err, int32_t code, int32_t error_class, const char* format, ...) {
  if (err == NULL || err->struct_size == 0) return code;
  kvferry_error filled;
  memset(&filled, 0, sizeof(filled));
  filled.code = code;
  filled.error_class = error_class;
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(filled.text, sizeof(filled.text), format, arguments);
  va_end(arguments);
  const uint32_t size = err->struct_size;
  filled.struct_size = size;
  memcpy(err, &filled, size < sizeof(filled) ? size : sizeof(filled));
  return code;
}

static kvferry_status not_yet(kvferry_error* err, const char* entry) {
  return fail(err, KVFERRY_ERROR_UNSUPPORTED, KVFERRY_CLASS_PERMANENT, "%s: the template backend moves nothing; fill it in", entry);
}

/* Writes a struct that the caller gave: as much as it has room for, zeroes behind what we know, struct_size left alone. */
static void write_sized(void* ret_value, const void* value, uint32_t known_bytes) {
  uint32_t size = 0;
  memcpy(&size, ret_value, sizeof(size));
  memcpy(ret_value, value, size < known_bytes ? size : known_bytes);
  memcpy(ret_value, &size, sizeof(size));
  if (size > known_bytes) memset((char*)ret_value + known_bytes, 0, size - known_bytes);
}

/* The first check of every entry. */
static kvferry_status check_caller(const kvferry_backend* backend, kvferry_error* err) {
  if (backend == NULL) return fail(err, KVFERRY_ERROR_INVALID_ARGUMENT, KVFERRY_CLASS_PERMANENT, "the backend is null");
  if (backend->process_id != (uint32_t)getpid()) {
    return fail(err, KVFERRY_ERROR_FORKED, KVFERRY_CLASS_PERMANENT, "process %u is a fork of process %u, which created the backend",
                (unsigned)getpid(), (unsigned)backend->process_id);
  }
  return KVFERRY_OK;
}

/* Every setting is known and has a good value, or the call fails and names both. */
static kvferry_status read_settings(const kvferry_setting* settings, uint32_t count, uint32_t* ret_example_limit, kvferry_error* err) {
  *ret_example_limit = 16;
  for (uint32_t i = 0; i < count; ++i) {
    if (settings[i].key == NULL || settings[i].value == NULL) {
      return fail(err, KVFERRY_ERROR_INVALID_ARGUMENT, KVFERRY_CLASS_PERMANENT, "setting %u: null key or value", (unsigned)i);
    }
    if (strcmp(settings[i].key, "example_limit") != 0) {
      return fail(err, KVFERRY_ERROR_INVALID_ARGUMENT, KVFERRY_CLASS_PERMANENT, "setting %s (value \"%s\"): not known to template", settings[i].key,
                  settings[i].value);
    }
    char* end = NULL;
    const unsigned long value = strtoul(settings[i].value, &end, 10);
    if (end == settings[i].value || *end != '\0' || value < 1 || value > 1024) {
      return fail(err, KVFERRY_ERROR_INVALID_ARGUMENT, KVFERRY_CLASS_PERMANENT, "setting example_limit: \"%s\" is not a number from 1 to 1024",
                  settings[i].value);
    }
    *ret_example_limit = (uint32_t)value;
  }
  return KVFERRY_OK;
}

/* ---- identity and life ------------------------------------------------------------------------------------------------------------------- */

/* Lists what this host offers, one line per device and lane, with the reason where it cannot be used: "no permission for /dev/...", "link down".
 * Opens nothing that lasts. Called with capacity 0 first, to learn the number. */
static kvferry_status probe(const kvferry_host* host, const kvferry_setting* settings, uint32_t settings_count, kvferry_device* devices,
                            uint32_t capacity, uint32_t* ret_count, kvferry_error* err) {
  (void)host;
  uint32_t example_limit = 0;
  const kvferry_status status = read_settings(settings, settings_count, &example_limit, err);
  if (status != KVFERRY_OK) return status;
  if (ret_count == NULL || (capacity > 0 && (devices == NULL || devices->struct_size == 0))) {
    return fail(err, KVFERRY_ERROR_INVALID_ARGUMENT, KVFERRY_CLASS_PERMANENT, "a pointer that is needed is null, or a struct without its size");
  }
  if (capacity > 0) { /* element i lies at i * devices[0].struct_size: the host's struct may be larger than ours */
    kvferry_device device;
    memset(&device, 0, sizeof(device));
    (void)snprintf(device.name, sizeof(device.name), "nothing");
    (void)snprintf(device.reason, sizeof(device.reason), "the template backend moves nothing");
    write_sized(devices, &device, sizeof(device));
  }
  *ret_count = 1;
  return KVFERRY_OK;
}

/* Opens the device. May take as long as it does. On failure nothing is left behind: no descriptor, no thread, no memory. Take the time from
 * host->now_ns alone, or deadlines cannot be tested. */
static kvferry_status create(const kvferry_host* host, const kvferry_setting* settings, uint32_t settings_count, kvferry_backend** ret_backend,
                             kvferry_error* err) {
  if (host == NULL || ret_backend == NULL) {
    return fail(err, KVFERRY_ERROR_INVALID_ARGUMENT, KVFERRY_CLASS_PERMANENT, "a pointer that is needed is null");
  }
  uint32_t example_limit = 0;
  const kvferry_status status = read_settings(settings, settings_count, &example_limit, err);
  if (status != KVFERRY_OK) return status;
  /* Fill in, then delete the next line.
   *   kvferry_backend* backend = calloc(1, sizeof(*backend));
   *   memcpy(&backend->host, host, host->struct_size < sizeof(backend->host) ? host->struct_size : sizeof(backend->host));
   *   backend->process_id = (uint32_t)getpid();
   *   ... open the device ...
   *   *ret_backend = backend; */
  return not_yet(err, "create");
}

/* BUSY while a peer is not closed, unless force: then close the peers first. Afterwards nothing of this backend runs, reads or writes any more. */
static kvferry_status destroy(kvferry_backend* backend, uint32_t force, kvferry_error* err) {
  (void)force;
  const kvferry_status status = check_caller(backend, err);
  if (status != KVFERRY_OK) return status;
  free(backend);
  return KVFERRY_OK;
}

/* Everything the host must obey. Refuse what exceeds a limit; never cut it down in silence. */
static kvferry_status query(kvferry_backend* backend, kvferry_limits* ret_limits, kvferry_error* err) {
  kvferry_status status = check_caller(backend, err);
  if (status != KVFERRY_OK) return status;
  if (ret_limits == NULL || ret_limits->struct_size == 0) {
    return fail(err, KVFERRY_ERROR_INVALID_ARGUMENT, KVFERRY_CLASS_PERMANENT, "no limits to fill");
  }
  kvferry_limits limits;
  memset(&limits, 0, sizeof(limits));
  limits.capabilities = 0; /* KVFERRY_CAP_WRITE, and either TRUE_ONE_SIDED or NEEDS_TARGET_PROGRESS, ... */
  limits.batches_in_flight_max = backend->example_limit;
  (void)snprintf(limits.done_means, sizeof(limits.done_means), "nothing is ever done");
  write_sized(ret_limits, &limits, sizeof(limits));
  return KVFERRY_OK;
}

/* What is really in force, defaults included, as one JSON object. */
static kvferry_status effective_config(kvferry_backend* backend, char* text, uint32_t capacity, uint32_t* ret_bytes, kvferry_error* err) {
  kvferry_status status = check_caller(backend, err);
  if (status != KVFERRY_OK) return status;
  char json[64];
  const int length = snprintf(json, sizeof(json), "{\"example_limit\": %u}", (unsigned)backend->example_limit);
  const uint32_t bytes = (uint32_t)length + 1;
  if (ret_bytes == NULL || (capacity > 0 && text == NULL)) {
    return fail(err, KVFERRY_ERROR_INVALID_ARGUMENT, KVFERRY_CLASS_PERMANENT, "a pointer that is needed is null");
  }
  if (capacity > 0 && capacity < bytes) {
    return fail(err, KVFERRY_ERROR_LIMIT, KVFERRY_CLASS_PERMANENT, "%u bytes are needed, the capacity is %u", (unsigned)bytes, (unsigned)capacity);
  }
  if (capacity > 0) memcpy(text, json, bytes);
  *ret_bytes = bytes;
  return KVFERRY_OK;
}

/* ---- regions ------------------------------------------------------------------------------------------------------------------------------- */

/* The whole range is usable, or the call fails and leaves nothing. Never register less than you were asked for. The id is new in this process. */
static kvferry_status register_region(kvferry_backend* backend, const kvferry_region_desc* desc, kvferry_region* ret_region, kvferry_error* err) {
  (void)backend, (void)desc, (void)ret_region;
  return not_yet(err, "register_region");
}

/* After OK no byte is read or written by you. Most devices go on writing after a deregistration: if yours does, do not set REVOKES_ON_DEREGISTER. */
static kvferry_status deregister_region(kvferry_backend* backend, kvferry_region region, uint32_t mode, kvferry_error* err) {
  (void)backend, (void)region, (void)mode;
  return not_yet(err, "deregister_region");
}

/* What a peer needs to write here: magic, version, length, CRC, and per region id, length, key. A size query has capacity 0. */
static kvferry_status export_regions(kvferry_backend* backend, const kvferry_region* regions, uint32_t count, void* blob, uint64_t capacity,
                                     uint64_t* ret_bytes, kvferry_error* err) {
  (void)backend, (void)regions, (void)count, (void)blob, (void)capacity, (void)ret_bytes;
  return not_yet(err, "export_regions");
}

/* ---- peers --------------------------------------------------------------------------------------------------------------------------------- */

static kvferry_status peer_create(kvferry_backend* backend, const kvferry_peer_options* options, kvferry_peer* ret_peer, kvferry_error* err) {
  (void)backend, (void)options, (void)ret_peer;
  return not_yet(err, "peer_create");
}

static kvferry_status peer_export(kvferry_backend* backend, kvferry_peer peer, void* blob, uint64_t capacity, uint64_t* ret_bytes,
                                  kvferry_error* err) {
  (void)backend, (void)peer, (void)blob, (void)capacity, (void)ret_bytes;
  return not_yet(err, "peer_export");
}

/* Check every byte first: it came from a network. Then only start; progress goes on, with a probe both ways before PEER_UP, so that a connection that
 * cannot carry data is found here and not by the first request. PEER_LOST at the deadline at the latest. */
static kvferry_status peer_connect(kvferry_backend* backend, kvferry_peer peer, const void* blob, uint64_t bytes, uint64_t deadline_ns,
                                   kvferry_error* err) {
  (void)backend, (void)peer, (void)blob, (void)bytes, (void)deadline_ns;
  return not_yet(err, "peer_connect");
}

static kvferry_status import_regions(kvferry_backend* backend, kvferry_peer peer, const void* blob, uint64_t bytes, kvferry_error* err) {
  (void)backend, (void)peer, (void)blob, (void)bytes;
  return not_yet(err, "import_regions");
}

static kvferry_status forget_regions(kvferry_backend* backend, kvferry_peer peer, const kvferry_region* regions, uint32_t count, kvferry_error* err) {
  (void)backend, (void)peer, (void)regions, (void)count;
  return not_yet(err, "forget_regions");
}

static kvferry_status peer_state(kvferry_backend* backend, kvferry_peer peer, kvferry_peer_info* ret_info, kvferry_error* err) {
  (void)backend, (void)peer, (void)ret_info;
  return not_yet(err, "peer_state");
}

/* Always ends in PEER_CLOSED, by the deadline; before it every batch has ended. */
static kvferry_status peer_close(kvferry_backend* backend, kvferry_peer peer, uint32_t mode, uint64_t deadline_ns, kvferry_error* err) {
  (void)backend, (void)peer, (void)mode, (void)deadline_ns;
  return not_yet(err, "peer_close");
}

/* ---- the data path: nothing below may block, and nothing may allocate per write --------------------------------------------------------------- */

/* Check every write of the batch first (regions, bounds with 64 bits, access, limits); one bad write refuses the batch with its index in err->object.
 * Then take the front that fits the window: 0 is AGAIN. The arrays are the caller's again when you return. */
static kvferry_status submit(kvferry_backend* backend, kvferry_peer peer, const kvferry_batch* batch, uint32_t* ret_accepted, kvferry_error* err) {
  (void)backend, (void)peer, (void)batch;
  if (ret_accepted != NULL) *ret_accepted = 0;
  return not_yet(err, "submit");
}

/* Post nothing more of the room; INITIATOR_QUIESCED only when the device reads the source no more. */
static kvferry_status cancel(kvferry_backend* backend, kvferry_peer peer, uint64_t room, uint32_t generation, kvferry_error* err) {
  (void)backend, (void)peer, (void)room, (void)generation;
  return not_yet(err, "cancel");
}

/* FENCED only when nothing of the room can land any more. When you cannot know: the event with KVFERRY_ERROR_CANNOT_PROMISE, never a plain one. */
static kvferry_status fence(kvferry_backend* backend, kvferry_peer peer, uint64_t room, uint32_t generation, uint64_t tag, uint64_t deadline_ns,
                            kvferry_error* err) {
  (void)backend, (void)peer, (void)room, (void)generation, (void)tag, (void)deadline_ns;
  return not_yet(err, "fence");
}

/* A bounded amount of everything: connecting, completions, what arrived, deadlines, closing. */
static kvferry_status progress(kvferry_backend* backend, uint32_t* ret_worked, kvferry_error* err) {
  const kvferry_status status = check_caller(backend, err);
  if (status != KVFERRY_OK) return status;
  if (ret_worked == NULL) return fail(err, KVFERRY_ERROR_INVALID_ARGUMENT, KVFERRY_CLASS_PERMANENT, "a pointer that is needed is null");
  *ret_worked = 0;
  return KVFERRY_OK;
}

/* Oldest first. Reserve room for an event before you start what leads to it: a full queue holds submit back, nothing is dropped. */
static kvferry_status poll(kvferry_backend* backend, kvferry_event* events, uint32_t capacity, uint32_t* ret_count, kvferry_error* err) {
  (void)events, (void)capacity;
  const kvferry_status status = check_caller(backend, err);
  if (status != KVFERRY_OK) return status;
  if (ret_count == NULL) return fail(err, KVFERRY_ERROR_INVALID_ARGUMENT, KVFERRY_CLASS_PERMANENT, "a pointer that is needed is null");
  *ret_count = 0;
  return KVFERRY_OK;
}

/* From any thread: plain atomics. */
static kvferry_status stats(kvferry_backend* backend, kvferry_stats* ret_stats, kvferry_error* err) {
  const kvferry_status status = check_caller(backend, err);
  if (status != KVFERRY_OK) return status;
  if (ret_stats == NULL || ret_stats->struct_size == 0) {
    return fail(err, KVFERRY_ERROR_INVALID_ARGUMENT, KVFERRY_CLASS_PERMANENT, "no stats to fill");
  }
  kvferry_stats figures;
  memset(&figures, 0, sizeof(figures));
  write_sized(ret_stats, &figures, sizeof(figures));
  return KVFERRY_OK;
}

/* Entries that are not named stay NULL: region_quiesce, allocate, free_memory, flush, event_fd, arm, self_test. */
static const kvferry_backend_table table = {
    .struct_size = sizeof(kvferry_backend_table),
    .magic = KVFERRY_BACKEND_MAGIC,
    .abi_major = KVFERRY_BACKEND_ABI_MAJOR,
    .abi_minor = KVFERRY_BACKEND_ABI_MINOR,
    .name = "template",
    .version = "0",
    .build = "no libraries",
    .probe = probe,
    .create = create,
    .destroy = destroy,
    .query = query,
    .effective_config = effective_config,
    .register_region = register_region,
    .deregister_region = deregister_region,
    .export_regions = export_regions,
    .peer_create = peer_create,
    .peer_export = peer_export,
    .peer_connect = peer_connect,
    .import_regions = import_regions,
    .forget_regions = forget_regions,
    .peer_state = peer_state,
    .peer_close = peer_close,
    .submit = submit,
    .cancel = cancel,
    .fence = fence,
    .progress = progress,
    .poll = poll,
    .stats = stats,
};

/* The one exported symbol. The host's major version comes before anything else: a struct of another major may mean anything. */
__attribute__((visibility("default"))) const kvferry_backend_table* kvferry_backend_entry(const kvferry_host* host, char* reason,
                                                                                          uint32_t reason_capacity);
const kvferry_backend_table* kvferry_backend_entry(const kvferry_host* host, char* reason, uint32_t reason_capacity) {
  if (host != NULL && host->abi_major == KVFERRY_BACKEND_ABI_MAJOR) return &table;
  if (reason != NULL && reason_capacity > 0) {
    (void)snprintf(reason, reason_capacity, "abi %u.%u wanted, this host speaks %u.%u", KVFERRY_BACKEND_ABI_MAJOR, KVFERRY_BACKEND_ABI_MINOR,
                   host != NULL ? host->abi_major : 0, host != NULL ? host->abi_minor : 0);
  }
  return NULL;
}
