/* SPDX-License-Identifier: Apache-2.0 */
#include "recording/file.h"

#include "base/check.h"
#include "base/hash_table.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process.h"
#include "shared/job.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    STEP_BYTES = 1 << 20, /* reserved at a time */
    CHUNKS_MIN = 128,     /* twice the number of thread indexes, each of which has a chunk */
    DEFINITIONS_PART = 4, /* at most one in so many chunks has definitions */
    CHUNKS_MAX = 1 << 21,
};

enum state { CHUNK_UNUSED, CHUNK_OPEN, CHUNK_FULL, CHUNK_KEPT /* of definitions, or unusable */ };

/* ---- opening ---- */

static uint64_t job_of_process(void)
{
    const char *text = rs_environment_get(RS_JOB_VARIABLE);

    return text ? rs_hash_bytes(text, strlen(text)) : 0;
}

/* True when the file is a recording of this process's job, or of this process before an exec. Any
 * other recording is replaced. */
static bool is_to_be_kept(const char *path)
{
    struct rs_recording_header header;
    int fd = rs_file_open(path);
    bool is_whole;

    if (fd < 0)
        return false;
    is_whole = rs_file_read(fd, &header, sizeof(header), 0) == (ssize_t)sizeof(header) &&
               memcmp(header.magic, RS_RECORDING_MAGIC, sizeof(header.magic)) == 0;
    rs_file_close(fd);
    return is_whole &&
           ((header.job && header.job == job_of_process()) || header.process == (uint32_t)getpid());
}

/* Opens the file under a name. A file that is there already is removed and made anew, not emptied:
 * where file locks do not work, another process may still have it mapped. */
static int try_name(struct rs_recording_file *file, const char *path, unsigned name)
{
    struct rs_output *output = &file->output;
    int result = rs_output_try(output, path, name);

    if (result != 0 || output->is_new)
        return result;
    if (!output->is_regular && strcmp(path, "/dev/null") == 0)
        return 0;
    if (!output->is_regular)
        result = -ESPIPE; /* chunks must be written at their places in the file */
    else if (is_to_be_kept(output->path))
        result = -EEXIST;
    else if (unlink(output->path) != 0)
        return rs_output_empty(output); /* this process may not remove files from the folder */
    rs_output_release(output);
    return result ? result : rs_output_try(output, path, name);
}

static int claim(struct rs_recording_file *file, const char *path)
{
    int result = -EBUSY;

    for (unsigned name = 0; name < RS_OUTPUT_NAMES && (result == -EBUSY || result == -EEXIST);
         name++)
        result = try_name(file, path, name);
    return result;
}

/* Opens the file once more, so that it can be mapped. Returns the descriptor or -errno. */
static int open_to_map(const struct rs_recording_file *file)
{
    int fd = rs_file_open_to_change(file->output.path);
    struct stat status;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &status) == 0 && status.st_dev == file->output.file.device &&
        status.st_ino == file->output.file.inode)
        return fd;
    rs_file_close(fd);
    return -ESTALE;
}

static int reserve(struct rs_recording_file *file, size_t end_bytes)
{
    int result = -EBADF; /* the program has closed it */

    if (rs_descriptor_is_kept(&file->output.file))
        result = rs_file_allocate_range(file->output.file.fd, file->reserved_bytes,
                                        end_bytes - file->reserved_bytes);
    if (result == 0)
        file->reserved_bytes = end_bytes;
    return result;
}

/* Maps the file, or memory in its place. Returns 0 or -errno. */
static int map(struct rs_recording_file *file)
{
    int fd = -1, result = 0;
    void *bytes = MAP_FAILED;

    if (file->output.is_regular && !rs_file_is_copied_on_write(file->output.file.fd))
        fd = open_to_map(file);
    if (fd >= 0)
        result = reserve(file, RS_RECORDING_HEADER_BYTES);
    file->is_copied = fd < 0 || result == -EOPNOTSUPP || result == -EINVAL;
    if (file->is_copied)
        bytes = rs_map_zeroed(file->mapped_bytes);
    else if (result == 0)
        bytes = mmap(NULL, file->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        rs_file_close(fd);
    file->bytes = bytes == MAP_FAILED ? NULL : bytes;
    return file->bytes ? 0 : result ? result : -ENOMEM;
}

static void put_header(struct rs_recording_file *file)
{
    struct rs_recording_header *header = rs_recording_file_header(file);
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    *header = (struct rs_recording_header){
        .byte_order = RS_RECORDING_BYTE_ORDER,
        .major = RS_RECORDING_MAJOR,
        .minor = RS_RECORDING_MINOR,
        .header_bytes = RS_RECORDING_HEADER_BYTES,
        .chunk_bytes = RS_RECORDING_CHUNK_BYTES,
        .event_bytes = sizeof(struct rs_recording_event),
        .process = (uint32_t)getpid(),
        .job = job_of_process(),
        .begun_ns = rs_clock_own_ns(rs_clock_ns()),
        .begun_real_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
    };
    memcpy(header->magic, RS_RECORDING_MAGIC, sizeof(header->magic));
    header->recording = header->begun_real_ns ^ (uint64_t)header->process << 40;
    header->check = rs_recording_header_check(header);
}

int rs_recording_file_open(struct rs_recording_file *file, const char *path, size_t size_bytes)
{
    int result;

    file->chunk_count =
        (uint32_t)rs_min(rs_max(size_bytes / RS_RECORDING_CHUNK_BYTES, CHUNKS_MIN), CHUNKS_MAX);
    file->mapped_bytes =
        RS_RECORDING_HEADER_BYTES + (size_t)file->chunk_count * RS_RECORDING_CHUNK_BYTES;
    file->states = rs_map_zeroed(file->chunk_count);
    if (!file->states)
        return -ENOMEM;
    result = claim(file, path);
    if (result != 0)
        return result;
    result = map(file);
    if (result != 0) {
        rs_output_drop(&file->output);
        return result;
    }
    put_header(file);
    rs_recording_file_changed(file, file->bytes, sizeof(struct rs_recording_header));
    return 0;
}

/* ---- writes by system calls ---- */

static int write_at(const struct rs_recording_file *file, size_t offset, const void *bytes,
                    size_t length)
{
    if (!rs_descriptor_is_kept(&file->output.file))
        return -EBADF; /* the program has closed it */
    return rs_file_write(file->output.file.fd, bytes, length, (off_t)offset);
}

static int write_part(const struct rs_recording_file *file, const void *bytes, size_t length)
{
    return write_at(file, (size_t)((const char *)bytes - file->bytes), bytes, length);
}

void rs_recording_file_changed(struct rs_recording_file *file, const void *bytes, size_t length)
{
    if (RS_LIKELY(!file->is_copied))
        return;
    (void)write_part(file, bytes, length);
    (void)write_part(file, file->bytes, sizeof(struct rs_recording_header));
}

/* ---- chunks ---- */

static size_t offset_of(uint32_t at)
{
    return RS_RECORDING_HEADER_BYTES + (size_t)at * RS_RECORDING_CHUNK_BYTES;
}

static struct rs_recording_chunk *chunk_at(const struct rs_recording_file *file, uint32_t at)
{
    return (struct rs_recording_chunk *)(void *)(file->bytes + offset_of(at));
}

/* Called when the file cannot grow: it stays as large as it is. */
static void stop_growing(struct rs_recording_file *file, int error)
{
    rs_log("RMM_RECORD: %s: the file cannot grow: %s; from here on new events replace the oldest "
           "ones",
           file->output.path, strerror(-error));
    file->chunk_count = file->used;
}

/* True when the chunk behind the used ones can be taken, with its space on the disk reserved. */
static bool may_grow(struct rs_recording_file *file)
{
    size_t end_bytes = offset_of(file->used + 1);
    int result;

    if (file->used == file->chunk_count)
        return false;
    if (file->is_copied || end_bytes <= file->reserved_bytes)
        return true;
    result = reserve(file, rs_min(file->mapped_bytes, file->reserved_bytes + STEP_BYTES));
    if (result != 0)
        stop_growing(file, result);
    return result == 0;
}

/* Finds the chunk that has been full for longest. Returns false when none is full. */
static bool find_oldest(struct rs_recording_file *file, uint32_t *at)
{
    for (uint32_t i = 0; i < file->used; i++) {
        *at = file->next;
        file->next = file->next + 1 < file->used ? file->next + 1 : 0;
        if (file->states[*at] == CHUNK_FULL)
            return true;
    }
    return false;
}

static bool take(struct rs_recording_file *file, enum rs_recording_chunk_kind kind, uint32_t *at)
{
    bool is_kept = kind == RS_RECORDING_DEFINITIONS;

    if (is_kept && file->definition_chunks >= file->chunk_count / DEFINITIONS_PART)
        return false;
    if (may_grow(file)) {
        *at = file->used++;
    } else {
        if (!find_oldest(file, at))
            return false;
        rs_recording_file_header(file)->lost_events += RS_RECORDING_EVENTS_EACH;
    }
    file->definition_chunks += is_kept;
    file->states[*at] = is_kept ? CHUNK_KEPT : CHUNK_OPEN;
    return true;
}

static void start(struct rs_recording_file *file, struct rs_recording_chunk *chunk,
                  enum rs_recording_chunk_kind kind)
{
    rs_recording_commit(&chunk->check, 0);
    memset(chunk + 1, 0, RS_RECORDING_CHUNK_BYTES - sizeof(*chunk));
    chunk->magic = RS_RECORDING_CHUNK_MAGIC;
    chunk->kind = kind;
    chunk->recording = rs_recording_file_header(file)->recording;
    chunk->sequence = ++file->sequence;
    rs_recording_commit(&chunk->check, rs_recording_chunk_check(chunk));
}

struct rs_recording_chunk *rs_recording_file_begin(struct rs_recording_file *file,
                                                   enum rs_recording_chunk_kind kind)
{
    uint32_t at;

    if (!take(file, kind, &at))
        return NULL;
    RS_ASSERT(at < file->used && file->used <= file->chunk_count);
    start(file, chunk_at(file, at), kind);
    return chunk_at(file, at);
}

/* Copies a full chunk to a place in the file. Returns 0 or -errno. A system call does it, since the
 * first store into each page of a mapping costs several times as much. If that call fails, the copy
 * goes through the mapping, if there is one: space on the disk is reserved for it. */
static int copy(struct rs_recording_file *file, const struct rs_recording_chunk *chunk, uint32_t at)
{
    int result = write_at(file, offset_of(at), chunk, RS_RECORDING_CHUNK_BYTES);
    struct rs_recording_chunk *place = chunk_at(file, at);

    if (result == 0 || file->is_copied)
        return result;
    rs_recording_commit(&place->check, 0);
    memcpy(place, chunk, offsetof(struct rs_recording_chunk, check));
    memcpy(place + 1, chunk + 1, RS_RECORDING_CHUNK_BYTES - sizeof(*chunk));
    rs_recording_commit(&place->check, chunk->check);
    return 0;
}

void rs_recording_file_renew(struct rs_recording_file *file, struct rs_recording_chunk *events)
{
    bool is_taken;
    int result;
    uint32_t at;

    RS_ASSERT(events->kind == RS_RECORDING_EVENTS);
    is_taken = take(file, RS_RECORDING_EVENTS, &at);
    result = is_taken ? copy(file, events, at) : -ENOSPC;
    if (is_taken)
        file->states[at] = result == 0 ? CHUNK_FULL : CHUNK_KEPT;
    if (is_taken && result != 0 && file->chunk_count > file->used)
        stop_growing(file, result); /* there is no space for this place, now or later */
    if (result != 0)
        rs_recording_file_header(file)->lost_events += RS_RECORDING_EVENTS_EACH;
    start(file, events, RS_RECORDING_EVENTS);
    rs_recording_file_changed(file, events, sizeof(*events));
}

/* Gives the unused end of the file back. Other threads may still write to chunks that have begun,
 * but begin no more. First ordinary memory replaces the end of the mapping, as a store behind the
 * end of the file would raise SIGBUS. */
static void cut(struct rs_recording_file *file)
{
    size_t used_bytes = offset_of(file->used);
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE), end_bytes;

    file->chunk_count = file->used;
    if (!rs_round_up(used_bytes, page_bytes, &end_bytes) || end_bytes >= file->mapped_bytes)
        return;
    if (mmap(file->bytes + end_bytes, file->mapped_bytes - end_bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED &&
        file->reserved_bytes > used_bytes && rs_descriptor_is_kept(&file->output.file))
        (void)rs_file_lengthen(file->output.file.fd, used_bytes);
}

void rs_recording_file_end(struct rs_recording_file *file, uint64_t ended_ns)
{
    rs_recording_file_header(file)->ended_ns = ended_ns ? ended_ns : 1;
    if (!file->is_copied)
        cut(file);
    for (uint32_t at = 0; file->is_copied && at < file->used; at++)
        if (file->states[at] != CHUNK_FULL)
            (void)write_part(file, chunk_at(file, at), RS_RECORDING_CHUNK_BYTES);
    rs_recording_file_changed(file, file->bytes, sizeof(struct rs_recording_header));
    rs_output_release(&file->output);
}
