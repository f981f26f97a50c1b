/* SPDX-License-Identifier: Apache-2.0 */
/* A library that belongs to no CUDA runtime and calls what it is handed, as libffi does. */
#include <stddef.h>

__attribute__((visibility("default"))) int door_other_call(void *function, void *address,
                                                           size_t size_bytes, unsigned flags);

int door_other_call(void *function, void *address, size_t size_bytes, unsigned flags)
{
    int (*call)(void *, size_t, unsigned) = (int (*)(void *, size_t, unsigned))function;
    volatile int result = call(address, size_bytes, flags); /* no tail call */

    return result;
}
