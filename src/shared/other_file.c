/* SPDX-License-Identifier: Apache-2.0 */
#include "shared/other_file.h"

#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

/* Looked at before it is opened: to open a device that has the number by now may do something. */
int rs_other_file_open(int process, int fd, uint64_t inode)
{
    struct stat status;
    char path[64];
    int opened;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", process, fd);
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode) || status.st_ino != (ino_t)inode)
        return -ESTALE;
    opened = rs_file_open_to_change(path);
    if (opened < 0)
        return -ESTALE;
    if (fstat(opened, &status) == 0 && status.st_ino == (ino_t)inode)
        return opened;
    rs_file_close(opened);
    return -ESTALE;
}

int rs_other_file_open_named(const char *where)
{
    unsigned long long inode;
    int process, fd;

    if (sscanf(where, "%d:%d:%llu", &process, &fd, &inode) != 3)
        return -EINVAL;
    return rs_other_file_open(process, fd, inode);
}
