/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_tail.h"

#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/path.h"
#include "base/undisturbed.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { TEXT_BYTES = RS_FILE_TAIL_BYTES - RS_FILE_TAIL_MARK_BYTES };

static bool put_path(char part[PATH_MAX], const char *path)
{
    return snprintf(part, PATH_MAX, "%s.part", path) < PATH_MAX;
}

/* These file systems allocate new blocks on every write: on a full disk a store into the mapping
 * raises SIGBUS, even after posix_fallocate. */
static bool is_copied_on_write(int fd)
{
    static const unsigned long kinds[] = {0x9123683eUL, 0x2fc12fc1UL, 0xca451a4eUL}; /* btrfs, zfs,
                                                                                      * bcachefs */
    struct statfs status;

    if (fstatfs(fd, &status) != 0)
        return true;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(kinds); i++)
        if (((unsigned long)status.f_type & 0xffffffffUL) == kinds[i])
            return true;
    return false;
}

/* Allocates the blocks of FILE.part in advance. */
static int allocate(int fd)
{
    return is_copied_on_write(fd) ? -EOPNOTSUPP : rs_file_allocate(fd, RS_FILE_TAIL_BYTES);
}

static void put_mark(struct rs_file_tail *tail)
{
    char mark[RS_FILE_TAIL_MARK_BYTES + 1];
    int length = snprintf(mark, sizeof(mark), "%0*llu\n", RS_FILE_TAIL_MARK_BYTES - 1,
                          (unsigned long long)tail->written_bytes);

    RS_ASSERT(length == RS_FILE_TAIL_MARK_BYTES); /* whoever reads it finds it from the end */
    (void)length;
    memcpy(tail->text + TEXT_BYTES, mark, RS_FILE_TAIL_MARK_BYTES);
}

static int map(struct rs_file_tail *tail, int fd)
{
    struct stat status;
    int result = fstat(fd, &status) == 0 ? allocate(fd) : -errno;
    void *text;

    if (result != 0)
        return result;
    text = mmap(NULL, RS_FILE_TAIL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (text == MAP_FAILED)
        return -errno;
    *tail = (struct rs_file_tail){
        .text = text,
        .device = status.st_dev,
        .inode = status.st_ino,
    };
    put_mark(tail);
    return 0;
}

static int make(struct rs_file_tail *tail, const char *part)
{
    int fd = open(part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600), result;

    if (fd < 0)
        return -errno;
    result = map(tail, fd);
    if (result != 0)
        (void)unlink(part);
    close(fd);
    return result;
}

int rs_file_tail_make(struct rs_file_tail *tail, const char *path)
{
    struct rs_uncancelled uncancelled;
    RS_PATH_BUFFER(part);
    int result;

    *tail = (struct rs_file_tail){.text = NULL};
    if (!part)
        return -ENOMEM;
    if (!put_path(part, path))
        return -ENAMETOOLONG;
    rs_uncancelled_begin(&uncancelled);
    result = make(tail, part);
    rs_uncancelled_end(&uncancelled);
    return result;
}

/* Stores one byte that takes effect after all earlier stores and before all later ones.  The
 * file is read after the process has ended, so only the compiler could break the order. */
static void commit(char *at, char value)
{
    atomic_signal_fence(memory_order_seq_cst);
    *(volatile char *)at = value;
    atomic_signal_fence(memory_order_seq_cst);
}

/* The first byte is stored last: until then a zero byte precedes the new text, which thus does
 * not count.  Nothing is asserted of the bytes in the file, which its user may write. */
bool rs_file_tail_append(struct rs_file_tail *tail, const char *text, size_t length_bytes)
{
    char *at = tail->text + tail->used_bytes;

    RS_ASSERT(tail->used_bytes <= TEXT_BYTES);
    if (length_bytes > TEXT_BYTES - tail->used_bytes)
        return false;
    if (length_bytes == 0)
        return true;
    RS_ASSERT(text[0] != '\0'); /* the text ends at the first zero byte */
    memcpy(at + 1, text + 1, length_bytes - 1);
    commit(at, text[0]);
    tail->used_bytes += length_bytes;
    return true;
}

int rs_file_tail_write(struct rs_file_tail *tail, int fd)
{
    int result = rs_write_all(fd, tail->text, tail->used_bytes);

    if (result != 0 || tail->used_bytes == 0)
        return result;
    commit(tail->text, '\0'); /* now the tail has no text */
    memset(tail->text + 1, 0, tail->used_bytes - 1);
    tail->written_bytes += tail->used_bytes;
    tail->used_bytes = 0;
    put_mark(tail);
    return 0;
}

void rs_file_tail_leave(struct rs_file_tail *tail)
{
    if (tail->text)
        munmap(tail->text, RS_FILE_TAIL_BYTES);
    tail->text = NULL;
}

void rs_file_tail_remove(struct rs_file_tail *tail, const char *path)
{
    RS_PATH_BUFFER(part);
    struct stat status;

    if (tail->text && part && put_path(part, path) && lstat(part, &status) == 0 &&
        status.st_dev == tail->device && status.st_ino == tail->inode)
        (void)unlink(part);
    rs_file_tail_leave(tail);
}
