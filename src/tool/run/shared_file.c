/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/shared_file.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool put_into_environment(int fd, const char *variable)
{
    struct stat status;
    char where[64];

    if (fstat(fd, &status) != 0)
        return false;
    snprintf(where, sizeof(where), "%d:%d:%llu", (int)getpid(), fd,
             (unsigned long long)status.st_ino);
    return setenv(variable, where, 1) == 0;
}

/* The seals keep whoever maps the file from a signal (SIGBUS), when somebody else changes its
 * length.
 */
void *shared_file_make(const char *name, size_t bytes, const char *variable)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING), failed = 0;
    void *memory = MAP_FAILED;

    if (fd >= 0)
        failed = rs_file_lengthen(fd, bytes);
    if (failed != 0)
        errno = -failed;
    else if (fd >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED && put_into_environment(fd, variable))
        return memory;
    if (memory != MAP_FAILED)
        munmap(memory, bytes);
    if (fd >= 0)
        close(fd);
    return NULL;
}
