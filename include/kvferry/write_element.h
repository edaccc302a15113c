/* kvferry/write_element.h: the elements of a batch, shared by the planner (which fills them) and the backends (which post them).
 *
 *   kvferry_write[0] ──► pieces[first_piece .. first_piece + piece_count)      one contiguous remote range,
 *   kvferry_write[1] ──► pieces[...]                                           gathered from local pieces in order
 *
 * Plain C11, stdint.h only. The structs are frozen: their size never changes, reserved fields are zero and are checked.
 */
#ifndef KVFERRY_WRITE_ELEMENT_H
#define KVFERRY_WRITE_ELEMENT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Names one registered region for the life of the process that registered it; never reused, 0 is no region. */
typedef uint64_t kvferry_region;

enum { KVFERRY_OP_WRITE = 0, KVFERRY_OP_READ = 1 };

/* A run of bytes of one local region. */
typedef struct kvferry_piece {
  kvferry_region region; /* local region */
  uint64_t offset;       /* bytes from the start of the region */
  uint64_t length;       /* bytes, at least 1 */
} kvferry_piece;

/* One one-sided operation: the pieces, one after another, against [remote_offset, remote_offset + sum of lengths). */
typedef struct kvferry_write {
  kvferry_region remote_region; /* as the peer exported it */
  uint64_t remote_offset;       /* bytes from the start of the remote region */
  uint32_t first_piece;         /* index into the batch's piece array */
  uint32_t piece_count;         /* at least 1, at most the backend's pieces_per_write_max */
  uint32_t op;                  /* KVFERRY_OP_... */
  uint32_t reserved;            /* 0 */
} kvferry_write;

#ifdef __cplusplus
} /* extern "C" */
static_assert(sizeof(kvferry_piece) == 24 && sizeof(kvferry_write) == 32, "frozen element structs");
#endif

#endif /* KVFERRY_WRITE_ELEMENT_H */
