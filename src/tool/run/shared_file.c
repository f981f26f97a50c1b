/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/shared_file.h"

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

void *shared_file_make(const char *name, size_t bytes, const char *variable)
{
    int fd = memfd_create(name, MFD_CLOEXEC);
    void *memory = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED && put_into_environment(fd, variable))
        return memory;
    if (memory != MAP_FAILED)
        munmap(memory, bytes);
    if (fd >= 0)
        close(fd);
    return NULL;
}
