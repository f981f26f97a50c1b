/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/shared_file.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* The seals keep whoever maps the file from a signal (SIGBUS), when somebody else changes its
 * length.
 */
void *shared_file_make(const char *name, size_t bytes, int *fd)
{
    int failed = 0;
    void *memory = MAP_FAILED;

    *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd >= 0)
        failed = rs_file_lengthen(*fd, bytes);
    if (failed != 0)
        errno = -failed;
    else if (*fd >= 0 && fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (memory != MAP_FAILED)
        return memory;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return NULL;
}
