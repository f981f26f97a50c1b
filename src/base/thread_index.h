/* SPDX-License-Identifier: Apache-2.0 */
/* A small number for each live thread, for arrays with an element per thread.
 *
 * An index above 0 belongs to one live thread at a time, which may write its elements without
 * locked instructions; what it wrote is seen by the thread that gets the index next.  Index 0 is
 * shared by threads that came when all were given out, and by threads that are ending. */
#pragma once

#include "base/check.h"
#include "base/thread_state.h"

enum { RS_THREAD_INDEXES = 64, RS_THREAD_INDEX_SHARED = 0 };

RS_COLD unsigned rs_thread_index_take(void);

_Static_assert(RS_THREAD_INDEX_SHARED == 0, "rs_thread_index_if_own may answer it as 0");

/* The calling thread's where it has one that is its own, else RS_THREAD_INDEX_SHARED. */
static inline unsigned rs_thread_index_if_own(void)
{
    unsigned plus_one = rs_thread.index_plus_one;

    return plus_one - (plus_one > 0);
}

/* The calling thread's. */
static inline unsigned rs_thread_index(void)
{
    if (RS_LIKELY(rs_thread.index_plus_one))
        return rs_thread.index_plus_one - 1;
    return rs_thread_index_take();
}
