/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a recording as its process has it.
 *
 * A chunk that is being written lies in a mapping of the file, so that nothing is lost however the
 * process ends. When a chunk is full of events, one system call copies them to another place of the
 * file, and the chunk begins anew where it is. So the process has few pages of the file mapped, and
 * always the same ones. Once the file has its greatest size, the copy overwrites the oldest events.
 *
 * Space on the disk is reserved 1 MiB at a time before it is written to, so that a full disk shows
 * as an error and not as SIGBUS. Where a file system cannot reserve space (btrfs, ZFS), or the file
 * cannot be mapped, ordinary memory of the process stands in for the mapping. Not thread safe: the
 * caller holds a lock. */
#pragma once

#include "base/output.h"
#include "recording/format.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RS_RECORDING_EVENTS_EACH = (RS_RECORDING_CHUNK_BYTES - (int)sizeof(struct rs_recording_chunk)) /
                               (int)sizeof(struct rs_recording_event), /* of a chunk */
};

struct rs_recording_file {
    struct rs_output output;
    char *bytes; /* header and chunks */
    size_t mapped_bytes, reserved_bytes;
    unsigned char *states; /* of each chunk */
    uint32_t chunk_count;  /* the most that there may be */
    uint32_t used, next, definition_chunks;
    uint64_t sequence;
    bool is_copied; /* not mapped: `bytes` must also be written to the file */
};

/* Opens the file; *file must be zero. Returns 0 or -errno. The file gets another name
 * (file->output.path) if `path` is a recording of the same job or of this process, or another
 * process writes to it. `size_bytes` is the greatest size of its chunks; less than 4 MiB counts as
 * 4 MiB. */
int rs_recording_file_open(struct rs_recording_file *file, const char *path, size_t size_bytes);

static inline struct rs_recording_header *
rs_recording_file_header(const struct rs_recording_file *file)
{
    return (struct rs_recording_header *)(void *)file->bytes;
}

/* Stores a word after all earlier stores and before all later ones. Only the compiler could change
 * the order, since readers see the memory as the process left it. */
static inline void rs_recording_commit(uint64_t *at, uint64_t value)
{
    atomic_signal_fence(memory_order_seq_cst);
    *(volatile uint64_t *)at = value;
    atomic_signal_fence(memory_order_seq_cst);
}

/* Begins a chunk, and returns it with zeroed content. NULL when there is no room. */
struct rs_recording_chunk *rs_recording_file_begin(struct rs_recording_file *file,
                                                   enum rs_recording_chunk_kind kind);

/* Called when a chunk of events is full. Copies them to another place in the file, or counts them
 * as lost when there is no room, and begins the chunk anew. */
void rs_recording_file_renew(struct rs_recording_file *file, struct rs_recording_chunk *events);

/* Called when these bytes of the mapping have changed. If memory stands in for the mapping, writes
 * them and the header to the file. */
void rs_recording_file_changed(struct rs_recording_file *file, const void *bytes, size_t length);

/* Notes the time of the end, completes the file, and gives its unused end back. Threads may still
 * write to the chunks that have begun. That no longer reaches the file if memory stands in for the
 * mapping. */
void rs_recording_file_end(struct rs_recording_file *file, uint64_t ended_ns);
