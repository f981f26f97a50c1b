/* SPDX-License-Identifier: Apache-2.0 */
/* A small number for each live thread, for arrays with an element per thread.
 *
 * An index above 0 belongs to one live thread at a time, which may write its elements without
 * locked instructions; what it wrote is seen by the thread that gets the index next.  Index 0 is
 * shared by threads that came when all were given out, and by threads that are ending. */
#pragma once

#include "base/check.h"

enum { RS_THREAD_INDEXES = 64, RS_THREAD_INDEX_SHARED = 0 };

extern __thread unsigned rs_thread_index_plus_one; /* 0: none yet */

unsigned rs_thread_index_take(void);

/* The calling thread's. */
static inline unsigned rs_thread_index(void)
{
    if (RS_LIKELY(rs_thread_index_plus_one))
        return rs_thread_index_plus_one - 1;
    return rs_thread_index_take();
}
