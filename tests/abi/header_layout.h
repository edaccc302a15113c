/* Sizes and offsets of backend ABI 1.0, by number. A struct may grow at its end; whatever moves a field breaks plugins that exist, and this build.
 * Included by one C11 and two C++ files, which also prove that the header stands alone in each language. */
#include "kvferry/backend_abi.h"

#include <stddef.h>

#ifdef __cplusplus
#define KVFERRY_CHECK(condition) static_assert(condition, #condition)
#else
#define KVFERRY_CHECK(condition) _Static_assert(condition, #condition)
#endif
#define KVFERRY_AT(type, field, offset) KVFERRY_CHECK(offsetof(type, field) == (offset))
/* Fields in order: each follows the one before, with no more than alignment between. Frozen structs have their size fixed, others a smallest one. */
#define KVFERRY_SIZE(type, bytes) KVFERRY_CHECK(sizeof(type) == (bytes))
#define KVFERRY_SIZE_MIN(type, bytes) KVFERRY_CHECK(sizeof(type) >= (bytes))

KVFERRY_CHECK(sizeof(void*) == 8);
KVFERRY_SIZE(kvferry_piece, 24);
KVFERRY_SIZE(kvferry_write, 32);
KVFERRY_AT(kvferry_piece, region, 0);
KVFERRY_AT(kvferry_piece, offset, 8);
KVFERRY_AT(kvferry_piece, length, 16);
KVFERRY_AT(kvferry_write, remote_region, 0);
KVFERRY_AT(kvferry_write, remote_offset, 8);
KVFERRY_AT(kvferry_write, first_piece, 16);
KVFERRY_AT(kvferry_write, piece_count, 20);
KVFERRY_AT(kvferry_write, op, 24);
KVFERRY_AT(kvferry_write, reserved, 28);

KVFERRY_SIZE(kvferry_error, 480);
KVFERRY_AT(kvferry_error, code, 4);
KVFERRY_AT(kvferry_error, error_class, 8);
KVFERRY_AT(kvferry_error, vendor_status, 12);
KVFERRY_AT(kvferry_error, sys_errno, 16);
KVFERRY_AT(kvferry_error, object, 24);
KVFERRY_AT(kvferry_error, text, 32);

KVFERRY_SIZE_MIN(kvferry_host, 56);
KVFERRY_AT(kvferry_host, abi_major, 4);
KVFERRY_AT(kvferry_host, abi_minor, 8);
KVFERRY_AT(kvferry_host, user, 16);
KVFERRY_AT(kvferry_host, log, 24);
KVFERRY_AT(kvferry_host, now_ns, 32);
KVFERRY_AT(kvferry_host, thread_start, 40);
KVFERRY_AT(kvferry_host, thread_stop, 48);

KVFERRY_SIZE(kvferry_setting, 16);
KVFERRY_SIZE_MIN(kvferry_device, 616);
KVFERRY_AT(kvferry_device, usable, 4);
KVFERRY_AT(kvferry_device, name, 8);
KVFERRY_AT(kvferry_device, lane, 72);
KVFERRY_AT(kvferry_device, detail, 104);
KVFERRY_AT(kvferry_device, reason, 360);

KVFERRY_SIZE_MIN(kvferry_limits, 184);
KVFERRY_AT(kvferry_limits, capabilities, 4);
KVFERRY_AT(kvferry_limits, message_bytes_max, 8);
KVFERRY_AT(kvferry_limits, pieces_per_write_max, 16);
KVFERRY_AT(kvferry_limits, writes_per_batch_max, 20);
KVFERRY_AT(kvferry_limits, pieces_per_batch_max, 24);
KVFERRY_AT(kvferry_limits, batches_in_flight_max, 28);
KVFERRY_AT(kvferry_limits, bytes_in_flight_max, 32);
KVFERRY_AT(kvferry_limits, endpoint_bytes_max, 40);
KVFERRY_AT(kvferry_limits, regions_max, 44);
KVFERRY_AT(kvferry_limits, alignment_bytes, 48);
KVFERRY_AT(kvferry_limits, done_means, 56);

KVFERRY_SIZE_MIN(kvferry_region_desc, 48);
KVFERRY_AT(kvferry_region_desc, address, 16);
KVFERRY_AT(kvferry_region_desc, length, 24);
KVFERRY_AT(kvferry_region_desc, dmabuf_fd, 32);
KVFERRY_AT(kvferry_region_desc, dmabuf_offset, 40);
KVFERRY_SIZE_MIN(kvferry_peer_options, 24);
KVFERRY_AT(kvferry_peer_options, lane, 8);
KVFERRY_AT(kvferry_peer_options, lease_ns, 16);
KVFERRY_SIZE_MIN(kvferry_peer_info, 736);
KVFERRY_AT(kvferry_peer_info, state, 4);
KVFERRY_AT(kvferry_peer_info, bytes_in_flight, 16);
KVFERRY_AT(kvferry_peer_info, last_heard_ns, 24);
KVFERRY_AT(kvferry_peer_info, lane, 32);
KVFERRY_AT(kvferry_peer_info, detail, 64);
KVFERRY_AT(kvferry_peer_info, last_error, 256);

KVFERRY_SIZE(kvferry_writer, 8);
KVFERRY_SIZE(kvferry_notification, 48);
KVFERRY_AT(kvferry_notification, room, 0);
KVFERRY_AT(kvferry_notification, transfer, 8);
KVFERRY_AT(kvferry_notification, generation, 16);
KVFERRY_AT(kvferry_notification, chunk, 20);
KVFERRY_AT(kvferry_notification, writer, 24);
KVFERRY_AT(kvferry_notification, status, 32);
KVFERRY_AT(kvferry_notification, flags, 36);
KVFERRY_AT(kvferry_notification, bytes, 40);
KVFERRY_SIZE_MIN(kvferry_batch, 120);
KVFERRY_AT(kvferry_batch, write_count, 4);
KVFERRY_AT(kvferry_batch, piece_count, 8);
KVFERRY_AT(kvferry_batch, flags, 12);
KVFERRY_AT(kvferry_batch, writes, 16);
KVFERRY_AT(kvferry_batch, pieces, 24);
KVFERRY_AT(kvferry_batch, room, 32);
KVFERRY_AT(kvferry_batch, generation, 40);
KVFERRY_AT(kvferry_batch, writer, 48);
KVFERRY_AT(kvferry_batch, tag, 56);
KVFERRY_AT(kvferry_batch, deadline_ns, 64);
KVFERRY_AT(kvferry_batch, notification, 72);
KVFERRY_SIZE_MIN(kvferry_event, 576);
KVFERRY_AT(kvferry_event, kind, 4);
KVFERRY_AT(kvferry_event, peer, 8);
KVFERRY_AT(kvferry_event, room, 16);
KVFERRY_AT(kvferry_event, generation, 24);
KVFERRY_AT(kvferry_event, tag, 32);
KVFERRY_AT(kvferry_event, bytes, 40);
KVFERRY_AT(kvferry_event, notification, 48);
KVFERRY_AT(kvferry_event, error, 96);
KVFERRY_SIZE_MIN(kvferry_stats, 136);
KVFERRY_AT(kvferry_stats, regions, 8);
KVFERRY_AT(kvferry_stats, progress_calls, 128);

KVFERRY_AT(kvferry_backend_table, magic, 4);
KVFERRY_AT(kvferry_backend_table, abi_major, 8);
KVFERRY_AT(kvferry_backend_table, abi_minor, 12);
KVFERRY_AT(kvferry_backend_table, name, 16);
KVFERRY_AT(kvferry_backend_table, version, 24);
KVFERRY_AT(kvferry_backend_table, build, 32);
KVFERRY_AT(kvferry_backend_table, probe, 40);
KVFERRY_AT(kvferry_backend_table, create, 48);
KVFERRY_AT(kvferry_backend_table, destroy, 56);
KVFERRY_AT(kvferry_backend_table, query, 64);
KVFERRY_AT(kvferry_backend_table, effective_config, 72);
KVFERRY_AT(kvferry_backend_table, register_region, 80);
KVFERRY_AT(kvferry_backend_table, deregister_region, 88);
KVFERRY_AT(kvferry_backend_table, region_quiesce, 96);
KVFERRY_AT(kvferry_backend_table, allocate, 104);
KVFERRY_AT(kvferry_backend_table, free_memory, 112);
KVFERRY_AT(kvferry_backend_table, export_regions, 120);
KVFERRY_AT(kvferry_backend_table, peer_create, 128);
KVFERRY_AT(kvferry_backend_table, peer_export, 136);
KVFERRY_AT(kvferry_backend_table, peer_connect, 144);
KVFERRY_AT(kvferry_backend_table, import_regions, 152);
KVFERRY_AT(kvferry_backend_table, forget_regions, 160);
KVFERRY_AT(kvferry_backend_table, peer_state, 168);
KVFERRY_AT(kvferry_backend_table, peer_close, 176);
KVFERRY_AT(kvferry_backend_table, submit, 184);
KVFERRY_AT(kvferry_backend_table, cancel, 192);
KVFERRY_AT(kvferry_backend_table, fence, 200);
KVFERRY_AT(kvferry_backend_table, flush, 208);
KVFERRY_AT(kvferry_backend_table, progress, 216);
KVFERRY_AT(kvferry_backend_table, poll, 224);
KVFERRY_AT(kvferry_backend_table, event_fd, 232);
KVFERRY_AT(kvferry_backend_table, arm, 240);
KVFERRY_AT(kvferry_backend_table, stats, 248);
KVFERRY_AT(kvferry_backend_table, self_test, 256);
KVFERRY_SIZE_MIN(kvferry_backend_table, 264);

KVFERRY_CHECK(KVFERRY_OK == 0 && KVFERRY_AGAIN == 1);
KVFERRY_CHECK(KVFERRY_ERROR_INVALID_ARGUMENT == 101 && KVFERRY_ERROR_CANNOT_PROMISE == 121);
KVFERRY_CHECK(KVFERRY_CLASS_NONE == 0 && KVFERRY_CLASS_RETRY == 1 && KVFERRY_CLASS_BUG == 5);
KVFERRY_CHECK(KVFERRY_EVENT_BATCH_DONE == 1 && KVFERRY_EVENT_PEER_CLOSED == 11);
KVFERRY_CHECK(KVFERRY_PEER_CREATED == 0 && KVFERRY_PEER_CLOSED == 5);
KVFERRY_CHECK(KVFERRY_BACKEND_MAGIC == 0x5246564bu && KVFERRY_BACKEND_ABI_MAJOR == 1u);
