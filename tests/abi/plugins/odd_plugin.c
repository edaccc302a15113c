/* A plugin that is odd in one way. Each variant is one shared module (meson.build): compiled with -DODD_VARIANT, everything else is as it should
 * be. */
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "kvferry/backend_abi.h"

struct kvferry_backend {
  int unused;
};
static struct kvferry_backend the_backend;

static kvferry_status refuse(kvferry_error* err, const char* entry) {
  if (err != NULL && err->struct_size >= sizeof(*err)) {
    memset(err, 0, sizeof(*err));
    err->struct_size = sizeof(*err);
    err->code = KVFERRY_ERROR_UNSUPPORTED;
    err->error_class = KVFERRY_CLASS_PERMANENT;
    (void)snprintf(err->text, sizeof(err->text), "%s: this plugin is for tests", entry);
  }
  return KVFERRY_ERROR_UNSUPPORTED;
}

static kvferry_status probe(const kvferry_host* host, const kvferry_setting* settings, uint32_t settings_count, kvferry_device* devices,
                            uint32_t capacity, uint32_t* ret_count, kvferry_error* err) {
  (void)host, (void)settings, (void)settings_count, (void)devices, (void)capacity, (void)err;
  *ret_count = 0;
  return KVFERRY_OK;
}
static kvferry_status create(const kvferry_host* host, const kvferry_setting* settings, uint32_t settings_count, kvferry_backend** ret_backend,
                             kvferry_error* err) {
  (void)host, (void)settings, (void)settings_count, (void)err;
  *ret_backend = &the_backend;
  return KVFERRY_OK;
}
static kvferry_status destroy(kvferry_backend* backend, uint32_t force, kvferry_error* err) {
  (void)backend, (void)force, (void)err;
  return KVFERRY_OK;
}
static kvferry_status query(kvferry_backend* backend, kvferry_limits* ret_limits, kvferry_error* err) {
  (void)backend, (void)err;
  ret_limits->capabilities = KVFERRY_CAP_WRITE;
  return KVFERRY_OK;
}
static kvferry_status effective_config(kvferry_backend* backend, char* text, uint32_t capacity, uint32_t* ret_bytes, kvferry_error* err) {
  (void)backend, (void)err;
  if (capacity >= 3) memcpy(text, "{}", 3);
  *ret_bytes = 3;
  return KVFERRY_OK;
}
static kvferry_status register_region(kvferry_backend* backend, const kvferry_region_desc* desc, kvferry_region* ret_region, kvferry_error* err) {
  (void)backend, (void)desc, (void)ret_region;
  return refuse(err, "register_region");
}
static kvferry_status deregister_region(kvferry_backend* backend, kvferry_region region, uint32_t mode, kvferry_error* err) {
  (void)backend, (void)region, (void)mode;
  return refuse(err, "deregister_region");
}
static kvferry_status export_regions(kvferry_backend* backend, const kvferry_region* regions, uint32_t count, void* blob, uint64_t capacity,
                                     uint64_t* ret_bytes, kvferry_error* err) {
  (void)backend, (void)regions, (void)count, (void)blob, (void)capacity, (void)ret_bytes;
  return refuse(err, "export_regions");
}
static kvferry_status peer_create(kvferry_backend* backend, const kvferry_peer_options* options, kvferry_peer* ret_peer, kvferry_error* err) {
  (void)backend, (void)options, (void)ret_peer;
  return refuse(err, "peer_create");
}
static kvferry_status peer_export(kvferry_backend* backend, kvferry_peer peer, void* blob, uint64_t capacity, uint64_t* ret_bytes,
                                  kvferry_error* err) {
  (void)backend, (void)peer, (void)blob, (void)capacity, (void)ret_bytes;
  return refuse(err, "peer_export");
}
static kvferry_status peer_connect(kvferry_backend* backend, kvferry_peer peer, const void* blob, uint64_t bytes, uint64_t deadline_ns,
                                   kvferry_error* err) {
  (void)backend, (void)peer, (void)blob, (void)bytes, (void)deadline_ns;
  return refuse(err, "peer_connect");
}
static kvferry_status import_regions(kvferry_backend* backend, kvferry_peer peer, const void* blob, uint64_t bytes, kvferry_error* err) {
  (void)backend, (void)peer, (void)blob, (void)bytes;
  return refuse(err, "import_regions");
}
static kvferry_status forget_regions(kvferry_backend* backend, kvferry_peer peer, const kvferry_region* regions, uint32_t count, kvferry_error* err) {
  (void)backend, (void)peer, (void)regions, (void)count;
  return refuse(err, "forget_regions");
}
static kvferry_status peer_state(kvferry_backend* backend, kvferry_peer peer, kvferry_peer_info* ret_info, kvferry_error* err) {
  (void)backend, (void)peer, (void)ret_info;
  return refuse(err, "peer_state");
}
static kvferry_status peer_close(kvferry_backend* backend, kvferry_peer peer, uint32_t mode, uint64_t deadline_ns, kvferry_error* err) {
  (void)backend, (void)peer, (void)mode, (void)deadline_ns;
  return refuse(err, "peer_close");
}
static kvferry_status submit(kvferry_backend* backend, kvferry_peer peer, const kvferry_batch* batch, uint32_t* ret_accepted, kvferry_error* err) {
  (void)backend, (void)peer, (void)batch, (void)ret_accepted;
  return refuse(err, "submit");
}
static kvferry_status cancel(kvferry_backend* backend, kvferry_peer peer, uint64_t room, uint32_t generation, kvferry_error* err) {
  (void)backend, (void)peer, (void)room, (void)generation;
  return refuse(err, "cancel");
}
static kvferry_status fence(kvferry_backend* backend, kvferry_peer peer, uint64_t room, uint32_t generation, uint64_t tag, uint64_t deadline_ns,
                            kvferry_error* err) {
  (void)backend, (void)peer, (void)room, (void)generation, (void)tag, (void)deadline_ns;
  return refuse(err, "fence");
}
static kvferry_status progress(kvferry_backend* backend, uint32_t* ret_worked, kvferry_error* err) {
  (void)backend, (void)err;
  *ret_worked = 0;
  return KVFERRY_OK;
}
static kvferry_status poll(kvferry_backend* backend, kvferry_event* events, uint32_t capacity, uint32_t* ret_count, kvferry_error* err) {
  (void)backend, (void)events, (void)capacity, (void)err;
  *ret_count = 0;
  return KVFERRY_OK;
}
static kvferry_status stats(kvferry_backend* backend, kvferry_stats* ret_stats, kvferry_error* err) {
  (void)backend, (void)err;
  ret_stats->peers = 7;
  return KVFERRY_OK;
}

#if defined(ODD_NEWER)
/* A table of a later minor version: it has entries that this header does not know. */
static struct {
  kvferry_backend_table known;
  void (*newer[4])(void);
} the_table_and_more;
#define the_table the_table_and_more.known
#else
static kvferry_backend_table the_table;
#endif

static void fill_table(void) {
  the_table.struct_size = sizeof(the_table);
  the_table.magic = KVFERRY_BACKEND_MAGIC;
  the_table.abi_major = KVFERRY_BACKEND_ABI_MAJOR;
  the_table.abi_minor = KVFERRY_BACKEND_ABI_MINOR;
  the_table.name = ODD_NAME;
  the_table.version = "1";
  the_table.build = "for tests";
  the_table.probe = probe;
  the_table.create = create;
  the_table.destroy = destroy;
  the_table.query = query;
  the_table.effective_config = effective_config;
  the_table.register_region = register_region;
  the_table.deregister_region = deregister_region;
  the_table.export_regions = export_regions;
  the_table.peer_create = peer_create;
  the_table.peer_export = peer_export;
  the_table.peer_connect = peer_connect;
  the_table.import_regions = import_regions;
  the_table.forget_regions = forget_regions;
  the_table.peer_state = peer_state;
  the_table.peer_close = peer_close;
  the_table.submit = submit;
  the_table.cancel = cancel;
  the_table.fence = fence;
  the_table.progress = progress;
  the_table.poll = poll;
  the_table.stats = stats;

#if defined(ODD_NEWER)
  the_table.struct_size = sizeof(the_table_and_more);
  the_table.abi_minor = KVFERRY_BACKEND_ABI_MINOR + 1;
#elif defined(ODD_OLDER)
  the_table.struct_size = offsetof(kvferry_backend_table, self_test);
  /* What lies behind the stated size is not part of the table: a host that looks at it anyway jumps to nowhere. */
  memset((char*)&the_table + the_table.struct_size, 0x5a, sizeof(the_table) - the_table.struct_size);
#elif defined(ODD_ENDS_EARLY)
  the_table.struct_size = offsetof(kvferry_backend_table, stats);
#elif defined(ODD_SMALL)
  the_table.struct_size = 24;
#elif defined(ODD_MISSING_REQUIRED)
  the_table.fence = NULL;
#elif defined(ODD_WRONG_MAGIC)
  the_table.magic = 0x12345678u;
#elif defined(ODD_NEWER_MAJOR)
  the_table.abi_major = KVFERRY_BACKEND_ABI_MAJOR + 1;
  the_table.abi_minor = 3;
  the_table.struct_size = 4; /* a later major may mean anything by it: it must not be looked at */
#elif defined(ODD_OLDER_MAJOR)
  the_table.abi_major = KVFERRY_BACKEND_ABI_MAJOR - 1;
#elif defined(ODD_NO_NAME)
  the_table.name = NULL;
#endif
}

#if defined(ODD_SIGNALS)
static void odd_handler(int signal_number) { (void)signal_number; }
__attribute__((constructor)) static void change_handlers(void) {
  (void)signal(SIGSEGV, odd_handler);
  (void)signal(SIGUSR1, SIG_IGN);
  (void)signal(SIGRTMAX, odd_handler);
}
#endif

#if defined(ODD_UNRESOLVED)
extern int kvferry_test_function_that_nobody_has(void);
#endif

#if defined(ODD_NO_SYMBOL)
#define kvferry_backend_entry kvferry_backend_entry_by_another_name
#endif
__attribute__((visibility("default"))) const kvferry_backend_table* kvferry_backend_entry(const kvferry_host* host, char* reason,
                                                                                          uint32_t reason_capacity);
const kvferry_backend_table* kvferry_backend_entry(const kvferry_host* host, char* reason, uint32_t reason_capacity) {
  (void)host, (void)reason, (void)reason_capacity;
  fill_table();
#if defined(ODD_UNRESOLVED)
  (void)kvferry_test_function_that_nobody_has();
#endif
#if defined(ODD_SIGNALS)
  (void)signal(SIGBUS, odd_handler);
#endif
#if defined(ODD_REFUSES)
  (void)snprintf(reason, reason_capacity, "the moon is full");
  return NULL;
#elif defined(ODD_REFUSES_VERSION)
  (void)snprintf(reason, reason_capacity, "abi 9.4 wanted, this host speaks %u.%u", host->abi_major, host->abi_minor);
  return NULL;
#elif defined(ODD_REFUSES_SILENTLY)
  return NULL;
#elif defined(ODD_REFUSES_AT_LENGTH)
  memset(reason, 'x', reason_capacity); /* not terminated */
  return NULL;
#else
  return &the_table;
#endif
}
