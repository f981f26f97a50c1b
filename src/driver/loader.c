/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/loader.h"

#include "base/check.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* Newest first: since glibc 2.34 dlsym is in libc itself, and libdl is a stub.  The other two
 * are the first versions on AArch64 and x86-64; a library below us that hooks dlsym may have
 * only those. */
static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};

RS_BEFORE_SANITIZERS rs_dlsym_function *rs_real_dlsym(void)
{
    static _Atomic(void *) found;
    void *symbol = atomic_load_explicit(&found, memory_order_relaxed);
    rs_dlsym_function *function;

    for (size_t i = 0; !symbol && i < RS_ARRAY_LENGTH(versions); i++)
        symbol = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    atomic_store_explicit(&found, symbol, memory_order_relaxed);
    /* ISO C has no cast between object and function pointers; POSIX promises that the bits agree.
     */
    memcpy(&function, &symbol, sizeof(function));
    return function;
}

/* True while the dynamic loader changes its list of objects, as glibc tells debuggers. */
static bool is_loading(void)
{
    return *(const volatile __typeof__(_r_debug.r_state) *)&_r_debug.r_state != RT_CONSISTENT;
}

/* Threads of the child may be loading a library too.  They hold a lock of the loader, which
 * glibc frees in a child and which dladdr takes: after a dladdr such a load is over.  A load
 * that fork interrupted is not. */
bool rs_loader_is_stuck(void)
{
    enum { LOOKS = 100 };
    static _Atomic pid_t first_process;
    pid_t first = atomic_load_explicit(&first_process, memory_order_relaxed), process;
    Dl_info info;

    if (RS_LIKELY(first && !is_loading()))
        return false;
    process = getpid();
    if (first == 0)
        atomic_store_explicit(&first_process, first = process, memory_order_relaxed);
    if (first == process)
        return false;
    for (int i = 0; i < LOOKS; i++) {
        (void)dladdr(versions, &info);
        if (!is_loading())
            return false;
    }
    return true;
}
