/* SPDX-License-Identifier: Apache-2.0 */
#include "base/output.h"

#include "base/file.h"
#include "base/path.h"

#include <errno.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TIMES_MAX = 8 }; /* attempts to open a file that other processes keep removing */

static bool put_name(struct rs_output *output, const char *path, unsigned name)
{
    int length;

    if (name == 0)
        length = snprintf(output->path, sizeof(output->path), "%s", path);
    else if (name == 1)
        length = snprintf(output->path, sizeof(output->path), "%s.%d", path, (int)getpid());
    else
        length =
            snprintf(output->path, sizeof(output->path), "%s.%d.%u", path, (int)getpid(), name);
    return length < (int)sizeof(output->path);
}

/* Locks a regular file.  flock, not a record lock: a record lock is lost when the program closes
 * any descriptor of the file.  Forked children share the lock, so it outlives the process;
 * rs_output_release ends it.  Returns -EAGAIN when the file was deleted before the lock was had. */
static int lock(struct rs_output *output, int fd)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return -errno;
    output->is_regular = S_ISREG(status.st_mode) && !rs_path_is_stream(output->path);
    if (!output->is_regular)
        return 0;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return -EBUSY; /* other errors: the file system has no locks; go on without */
    if (fstat(fd, &status) != 0)
        return -errno;
    return status.st_nlink == 0 ? -EAGAIN : 0;
}

static int try_once(struct rs_output *output)
{
    int fd = rs_path_open_untouched(output->path, &output->is_new);
    int result = fd < 0 ? fd : lock(output, fd);

    if (fd >= 0 && result != 0)
        rs_file_close(fd);
    if (result != 0)
        return result;
    return rs_descriptor_keep(&output->file, fd) ? 0 : -EMFILE;
}

int rs_output_try(struct rs_output *output, const char *path, unsigned name)
{
    int result = -EAGAIN;

    if (!put_name(output, path, name))
        return -ENAMETOOLONG;
    for (int times = 0; times < TIMES_MAX && result == -EAGAIN; times++)
        result = try_once(output);
    return result;
}

int rs_output_claim(struct rs_output *output, const char *path)
{
    int result = -EBUSY;

    for (unsigned name = 0; name < RS_OUTPUT_NAMES && result == -EBUSY; name++)
        result = rs_output_try(output, path, name);
    return result;
}

int rs_output_empty(struct rs_output *output)
{
    if (!output->is_regular)
        return 0;
    return ftruncate(output->file.fd, 0) == 0 ? 0 : -errno;
}

void rs_output_release(struct rs_output *output)
{
    if (!rs_descriptor_is_kept(&output->file))
        return;
    if (output->is_regular)
        (void)flock(output->file.fd, LOCK_UN);
    rs_file_close(output->file.fd);
}

void rs_output_drop(struct rs_output *output)
{
    struct stat status;

    if (output->is_new && rs_descriptor_is_kept(&output->file) &&
        stat(output->path, &status) == 0 && status.st_size == 0 &&
        status.st_dev == output->file.device && status.st_ino == output->file.inode)
        (void)unlink(output->path);
    rs_output_release(output);
}
