/* SPDX-License-Identifier: Apache-2.0 */
/* Traces: what a program allocated and freed, in order, without addresses; and playing one through
 * an allocator to see how much it takes from the driver for how much is live.
 *
 * A trace is text.  Lines that begin with # say what it is and how it was made.  Others:
 *
 *   aBYTES [STREAM]   a block of that many bytes; streams count from 0, the default one
 *   fAGE [STREAM]     frees the block that was allocated AGE allocations before the latest one */
#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The allocator under test.  NULL when out of memory. */
struct trace_player {
    void *(*allocate)(size_t bytes, cudaStream_t stream);
    void (*deallocate)(void *block, size_t bytes, cudaStream_t stream);
};

enum { TRACE_PLAYED = 0, TRACE_BAD = 1, TRACE_OUT_OF_MEMORY = 2 };

/* Plays the file and prints one line: events, the most bytes that were live at once, the most that
 * were taken from the driver (what the context itself takes is not in it), and their ratio.
 * Returns the exit status of the program. */
int trace_play(const char *path, const struct trace_player *player);

#ifdef __cplusplus
}
#endif
