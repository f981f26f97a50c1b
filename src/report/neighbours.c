/* SPDX-License-Identifier: Apache-2.0 */
#include "report/neighbours.h"

#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/process.h"
#include "report/plain.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    TIME_NS = 20 * 1000 * 1000,
    COUNTERS_AT_ONCE = 16,
    FIELDS_MAX = 64, /* terms with more fields are not read; an account's counter has one */
    TRIES = 3,       /* a process whose directory changes so often meanwhile is left out */
};

static uint64_t deadline_ns;

static bool is_late(void)
{
    return rs_clock_ns() >= deadline_ns;
}

/* ---- a page ---- */

/* Reads from a page. Read calls are safe with any file. A mapping is not: touching a hole of a
 * mapped file needs memory, and raises a signal if there is none. */
static bool read_at(int fd, void *bytes, size_t count, uint64_t offset)
{
    return rs_file_read(fd, bytes, count, (off_t)offset) == (ssize_t)count;
}

static bool read_term(int fd, const struct rs_published_term *term, uint64_t *sum)
{
    uint64_t field;

    if (term->count > FIELDS_MAX)
        return false;
    for (uint32_t i = 0; i < term->count; i++) {
        if (!read_at(fd, &field, sizeof(field), term->offset + (uint64_t)i * term->stride_bytes))
            return false;
        *sum += field * (uint64_t)term->scale; /* wraps around, since a page may have any numbers */
    }
    return true;
}

/* Returns the value of a counter, as rs_terms_value does: 0 if the sum is negative. Returns 0 too
 * if a field cannot be read. */
static uint64_t read_counter(int fd, const struct rs_published_counter *counter)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < counter->term_count; i++)
        if (!read_term(fd, &counter->terms[i], &sum))
            return 0;
    return (int64_t)sum > 0 ? sum : 0;
}

static bool is_charged(const struct rs_published_counter *counter, uint32_t stack)
{
    return counter->stack == stack && rs_published_check_counter(counter) &&
           strcmp(counter->resource, "account") == 0 && strcmp(counter->name, "charged") == 0;
}

/* Returns the bytes that the account of the stack's device has charged. The counters begin at
 * offset `at`. */
static uint64_t charged(int fd, uint64_t at, uint32_t counter_count, uint32_t stack)
{
    static struct rs_published_counter counters[COUNTERS_AT_ONCE];

    while (counter_count > 0 && !is_late()) {
        uint32_t count = counter_count < COUNTERS_AT_ONCE ? counter_count : COUNTERS_AT_ONCE;
        if (!read_at(fd, counters, count * sizeof(*counters), at))
            return 0;
        for (uint32_t i = 0; i < count; i++)
            if (is_charged(&counters[i], stack))
                return read_counter(fd, &counters[i]);
        counter_count -= count;
        at += count * sizeof(*counters);
    }
    return 0;
}

/* Finds the stack of device memory of the device with that UUID. Returns false if there is none.
 * The caller has checked that the whole directory lies in the file. */
static bool find_stack(int fd, uint64_t at, uint32_t stack_count,
                       const unsigned char uuid[RS_PUBLISHED_UUID_BYTES], uint32_t *found)
{
    static struct rs_published_stack stack;

    for (*found = 0; *found < stack_count; ++*found, at += sizeof(stack))
        if (read_at(fd, &stack, sizeof(stack), at) && rs_published_check_stack(&stack) &&
            stack.kind == RS_KIND_DEVICE &&
            memcmp(stack.device_uuid, uuid, sizeof(stack.device_uuid)) == 0)
            return true;
    return false;
}

static uint64_t read_directory(int fd, uint64_t at,
                               const unsigned char uuid[RS_PUBLISHED_UUID_BYTES])
{
    struct rs_published_directory directory;
    uint32_t stack;

    if (!rs_published_check_place(at) || !read_at(fd, &directory, sizeof(directory), at) ||
        !rs_published_check_directory(at, &directory))
        return 0;
    at += sizeof(directory);
    if (!find_stack(fd, at, directory.stack_count, uuid, &stack))
        return 0;
    at += directory.stack_count * sizeof(struct rs_published_stack);
    return charged(fd, at, directory.counter_count, stack);
}

/* Returns the bytes that the process holds of the device. The process writes a new directory when
 * stacks are made or dropped, and later overwrites the old one. So what was read is good if the
 * directory is still at the same place afterwards. */
static uint64_t read_held(int fd, const unsigned char uuid[RS_PUBLISHED_UUID_BYTES])
{
    const uint64_t place = offsetof(struct rs_publication, directory);
    uint64_t at, after, held;

    for (int i = 0; i < TRIES; i++) {
        if (!read_at(fd, &at, sizeof(at), place))
            break;
        held = read_directory(fd, at, uuid);
        if (!read_at(fd, &after, sizeof(after), place) || at == after)
            return held;
    }
    return 0;
}

/* Opens the page of a process. The page has a high descriptor number, so the search skips low ones,
 * which the process's own files have. When it looked at all, 1000 processes with 30 files each took
 * longer than the time allowed. */
static int find_page(int process)
{
    static struct rs_publication head;
    char path[32];
    int fd;

    snprintf(path, sizeof(path), "/proc/%d", process);
    fd = rs_published_find(path, RS_DESCRIPTOR_HIGH, deadline_ns);
    if (fd >= 0 && !(read_at(fd, &head, offsetof(struct rs_publication, path), 0) &&
                     rs_published_check_layout(&head))) {
        rs_file_close(fd);
        fd = -1;
    }
    return fd;
}

/* ---- all of them ---- */

static void add(struct rs_neighbours *neighbours, const struct rs_neighbour *neighbour)
{
    size_t at = neighbours->count;

    RS_ASSERT(at <= RS_NEIGHBOURS_MAX);
    for (; at > 0 && neighbours->most[at - 1].held_bytes < neighbour->held_bytes; at--)
        neighbours->most[at] = neighbours->most[at - 1];
    neighbours->most[at] = *neighbour;
    if (neighbours->count < RS_NEIGHBOURS_MAX) {
        neighbours->count++;
        return;
    }
    if (__builtin_add_overflow(neighbours->more_bytes,
                               neighbours->most[RS_NEIGHBOURS_MAX].held_bytes,
                               &neighbours->more_bytes))
        neighbours->more_bytes = UINT64_MAX;
    neighbours->more_processes++;
}

static void look_at(struct rs_neighbours *neighbours, int process,
                    const unsigned char uuid[RS_PUBLISHED_UUID_BYTES])
{
    static struct rs_neighbour neighbour;
    int fd = find_page(process);

    if (fd < 0)
        return;
    neighbour.process = process;
    neighbour.held_bytes = read_held(fd, uuid);
    if (neighbour.held_bytes > 0 && read_at(fd, neighbour.program, sizeof(neighbour.program) - 1,
                                            offsetof(struct rs_publication, program))) {
        neighbour.program[sizeof(neighbour.program) - 1] = '\0';
        rs_plain_make(neighbour.program);
        add(neighbours, &neighbour);
    }
    rs_file_close(fd);
}

/* Returns the calling process's number in the PID namespace that /proc shows. */
static int number_here(void)
{
    char target[16] = "";

    return readlink("/proc/self", target, sizeof(target) - 1) > 0 ? rs_process_parse(target) : 0;
}

void rs_neighbours_find(struct rs_neighbours *neighbours,
                        const unsigned char uuid[RS_PUBLISHED_UUID_BYTES])
{
    static struct rs_listing processes;
    int here = number_here();
    const char *name;

    *neighbours = (struct rs_neighbours){.count = 0};
    deadline_ns = rs_clock_ns() + TIME_NS;
    if (!rs_listing_open(&processes, "/proc"))
        return;
    while (!is_late() && (name = rs_listing_next(&processes))) {
        int process = rs_process_parse(name);
        if (process && process != here)
            look_at(neighbours, process, uuid);
    }
    neighbours->is_cut = is_late();
    rs_file_close(processes.fd);
}
