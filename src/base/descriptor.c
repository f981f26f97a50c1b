/* SPDX-License-Identifier: Apache-2.0 */
#include "base/descriptor.h"

#include "base/check.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* A high number: a program that has closed its stderr, and opens a file of its own, must not get
 * our file there. */
int rs_descriptor_duplicate(int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, RS_DESCRIPTOR_HIGH);

    if (copy < 0)
        copy = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1); /* RLIMIT_NOFILE is 500 or less */
    RS_ASSERT(copy < 0 || copy > STDERR_FILENO);
    return copy < 0 ? -errno : copy;
}

bool rs_descriptor_keep(struct rs_kept_descriptor *kept, int fd)
{
    struct stat status;
    int copy = rs_descriptor_duplicate(fd);

    rs_file_close(fd);
    if (copy < 0)
        return false;
    if (fstat(copy, &status) != 0) {
        rs_file_close(copy);
        return false;
    }
    *kept = (struct rs_kept_descriptor){copy, status.st_dev, status.st_ino};
    return true;
}

bool rs_descriptor_is_kept(const struct rs_kept_descriptor *kept)
{
    struct stat status;

    return fstat(kept->fd, &status) == 0 && status.st_dev == kept->device &&
           status.st_ino == kept->inode;
}

void rs_descriptor_close(const struct rs_kept_descriptor *kept)
{
    if (rs_descriptor_is_kept(kept))
        rs_file_close(kept->fd);
}
