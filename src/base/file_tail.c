/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_tail.h"

#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
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

static bool put_path(char name[PATH_MAX], const char *path)
{
    return snprintf(name, PATH_MAX, "%s.part", path) < PATH_MAX;
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
static int allocate(int fd, size_t size_bytes)
{
    return is_copied_on_write(fd) ? -EOPNOTSUPP : rs_file_allocate(fd, size_bytes);
}

static int map(struct rs_file_part *part, int fd, size_t size_bytes)
{
    struct stat status;
    int result = fstat(fd, &status) == 0 ? allocate(fd, size_bytes) : -errno;
    void *bytes;

    if (result != 0)
        return result;
    bytes = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED)
        return -errno;
    *part = (struct rs_file_part){
        .bytes = bytes,
        .size_bytes = size_bytes,
        .device = status.st_dev,
        .inode = status.st_ino,
    };
    return 0;
}

static int make(struct rs_file_part *part, const char *name, size_t size_bytes)
{
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600), result;

    if (fd < 0)
        return -errno;
    result = map(part, fd, size_bytes);
    if (result != 0)
        (void)unlink(name);
    close(fd);
    return result;
}

int rs_file_part_make(struct rs_file_part *part, const char *path, size_t size_bytes)
{
    struct rs_uncancelled uncancelled;
    char name[PATH_MAX];
    int result;

    *part = (struct rs_file_part){.bytes = NULL};
    if (!put_path(name, path))
        return -ENAMETOOLONG;
    rs_uncancelled_begin(&uncancelled);
    result = make(part, name, size_bytes);
    rs_uncancelled_end(&uncancelled);
    return result;
}

/* Tries a name.  An existing PATH.part belongs to a process that did not end in order, or to one
 * that still writes where file locks do not work: its file is left alone too. */
static int try_name(struct rs_file_part *part, struct rs_output *output, const char *path,
                    unsigned name, size_t size_bytes)
{
    int result = rs_output_try(output, path, name);

    if (result != 0 || !output->is_regular)
        return result;
    result = rs_file_part_make(part, output->path, size_bytes);
    if (result == -EEXIST) {
        rs_output_drop(output);
        return result;
    }
    result = rs_output_empty(output); /* without a part where none can be made */
    if (result != 0) {
        rs_file_part_remove(part, output->path);
        rs_output_release(output);
    }
    return result;
}

int rs_file_part_claim(struct rs_file_part *part, struct rs_output *output, const char *path,
                       size_t size_bytes, const char *who)
{
    int first, result;

    *part = (struct rs_file_part){.bytes = NULL};
    first = result = try_name(part, output, path, 0, size_bytes);
    for (unsigned name = 1; name < RS_OUTPUT_NAMES && (result == -EBUSY || result == -EEXIST);
         name++)
        result = try_name(part, output, path, name, size_bytes);
    if (result != 0 || first == 0)
        return result;
    if (first == -EBUSY)
        rs_log("%s: %s: another process writes there; this one writes %s", who, path, output->path);
    else
        rs_log("%s: %s: it belongs to %s.part, which a process left; this one writes %s", who, path,
               path, output->path);
    return 0;
}

void rs_file_part_leave(struct rs_file_part *part)
{
    if (part->bytes)
        munmap(part->bytes, part->size_bytes);
    part->bytes = NULL;
}

void rs_file_part_remove(struct rs_file_part *part, const char *path)
{
    char name[PATH_MAX];
    struct stat status;

    if (part->bytes && put_path(name, path) && lstat(name, &status) == 0 &&
        status.st_dev == part->device && status.st_ino == part->inode)
        (void)unlink(name);
    rs_file_part_leave(part);
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

void rs_file_tail_begin(struct rs_file_tail *tail)
{
    tail->text = tail->part.bytes;
    tail->used_bytes = 0;
    tail->written_bytes = 0;
    if (tail->text)
        put_mark(tail);
}

int rs_file_tail_make(struct rs_file_tail *tail, const char *path)
{
    int result = rs_file_part_make(&tail->part, path, RS_FILE_TAIL_BYTES);

    rs_file_tail_begin(tail);
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
    rs_file_part_leave(&tail->part);
    tail->text = NULL;
}

void rs_file_tail_remove(struct rs_file_tail *tail, const char *path)
{
    rs_file_part_remove(&tail->part, path);
    tail->text = NULL;
}
