/* SPDX-License-Identifier: Apache-2.0 */
/* A small number for each live thread, for arrays with one element per thread.
 *
 * An index above 0 belongs to one live thread at a time, so that thread may write its elements
 * without locked instructions; the next owner of the index sees what it wrote.  Index 0 is
 * shared by threads that came when all others were taken, and by threads that are ending. */
#pragma once

#include "base/check.h"
#include "base/thread_state.h"

enum { RS_THREAD_INDEXES = 64, RS_THREAD_INDEX_SHARED = 0 };

/* Gives the calling thread an index, until it ends.  Slow path of rs_thread_index. */
RS_COLD unsigned rs_thread_index_take(void);

_Static_assert(RS_THREAD_INDEX_SHARED == 0, "rs_thread_index_if_own may answer it as 0");

/* Has `ending` called on each thread that ends, while its index is still its own.  Threads without
 * an index of their own are left out.  There is one such function in the process. */
void rs_thread_index_at_end(void (*ending)(void));

/* Returns the calling thread's index if it has taken one, else RS_THREAD_INDEX_SHARED. */
static inline unsigned rs_thread_index_if_own(void)
{
    unsigned plus_one = rs_thread.index_plus_one;

    return plus_one - (plus_one > 0);
}

/* Returns the calling thread's index; the first call of a thread takes one. */
static inline unsigned rs_thread_index(void)
{
    if (RS_LIKELY(rs_thread.index_plus_one))
        return rs_thread.index_plus_one - 1;
    return rs_thread_index_take();
}
