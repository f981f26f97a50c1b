/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "base/lock.h"
#include "config/only.h"
#include "config/variables.h"
#include "shared/job.h"
#include "tool/process.h"
#include "tool/run/run.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FIRST_NS = 50 * 1000 * 1000,     /* between looks at first; doubles */
    LONGEST_NS = 1000 * 1000 * 1000, /* ... up to 1 s */
    COST_DIVISOR = 20,               /* looking may take a twentieth of the time */
    SURE_TIMES = 2,                  /* between opening the device and the first allocation */
    LIST_MAX = 256,                  /* beyond these processes are not remembered */
    ENVIRONMENT_BYTES = 256 << 10,
};

/* A process of the machine. */
struct row {
    int number, parent;
    unsigned long long started; /* in ticks since boot */
    char program[UNSERVED_PROGRAM_BYTES];
};

static struct unserved seen[LIST_MAX];
static size_t seen_count;

/* ---- all processes ---- */

/* "4711 (name) S parent ...": the name may hold anything; the start is the 22nd field. */
static bool read_row(int number, struct row *row)
{
    char path[64], text[1024];
    const char *begin, *end;
    ssize_t length;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/stat", number);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    length = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    begin = strchr(text, '(');
    end = strrchr(text, ')');
    if (!begin || !end || end < begin)
        return false;
    row->number = number;
    snprintf(row->program, sizeof(row->program), "%.*s", (int)(end - begin - 1), begin + 1);
    return sscanf(end + 1,
                  " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d "
                  "%llu",
                  &row->parent, &row->started) == 2;
}

static struct row *read_rows(size_t *count)
{
    size_t all;
    int *numbers = process_list(&all);
    struct row *rows = numbers ? calloc(all + 1, sizeof(*rows)) : NULL;

    *count = 0;
    for (size_t i = 0; rows && i < all; i++)
        *count += read_row(numbers[i], &rows[*count]);
    free(numbers);
    return rows;
}

static int by_number(const void *one, const void *other)
{
    const struct row *a = one, *b = other;

    return (a->number > b->number) - (a->number < b->number);
}

static const struct row *find_row(const struct row *rows, size_t count, int number)
{
    struct row wanted = {.number = number};

    return bsearch(&wanted, rows, count, sizeof(*rows), by_number);
}

/* ---- which are of this job ---- */

static bool is_below(const struct row *rows, size_t count, const struct row *row)
{
    for (size_t i = 0; row && i < count; i++) {
        if (row->parent == getpid())
            return true;
        row = find_row(rows, count, row->parent);
    }
    return false;
}

/* The variables with which the process was started, each ended by a zero.  Valid until the next
 * call. */
static const char *read_environment(int number, size_t *length)
{
    static char text[ENVIRONMENT_BYTES + 1];
    char path[64];
    ssize_t got;
    int fd;

    *length = 0;
    snprintf(path, sizeof(path), "/proc/%d/environ", number);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && *length < ENVIRONMENT_BYTES &&
           (got = read(fd, text + *length, ENVIRONMENT_BYTES - *length)) > 0)
        *length += (size_t)got;
    if (fd >= 0)
        close(fd);
    text[*length] = '\0';
    return text;
}

/* One whose parents are gone still has the job's variable. */
static bool has_variable(int number, const char *job)
{
    size_t length;
    const char *text = read_environment(number, &length);

    return memmem(text, length, job, strlen(job) + 1) != NULL;
}

static bool is_of_job(const struct row *rows, size_t count, const struct row *row)
{
    const struct row *own = find_row(rows, count, getpid());
    const char *job = getenv(RS_JOB_VARIABLE);
    char entry[128];

    if (is_below(rows, count, row))
        return true;
    if (!own || !job || row->started < own->started || row->number == getpid())
        return false;
    snprintf(entry, sizeof(entry), RS_JOB_VARIABLE "=%s", job);
    return has_variable(row->number, entry);
}

/* ---- what a process uses ---- */

struct mapped {
    bool can_read, has_libcuda, has_library, has_linker;
};

/* The text ends early when the process ends or becomes another program meanwhile, and libraries
 * stand below those that were loaded before them: it counts with the stack, which is the highest.
 */
static struct mapped read_maps(int number)
{
    struct mapped mapped = {.can_read = false};
    char path[64], *line = NULL;
    size_t room = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/maps", number);
    file = fopen(path, "re");
    while (file && getline(&line, &room, file) > 0) {
        mapped.can_read |= strstr(line, "[stack]") != NULL;
        mapped.has_libcuda |= strstr(line, "/libcuda.so") != NULL;
        mapped.has_library |= strstr(line, "/librmmshim.so") != NULL;
        mapped.has_linker |=
            strstr(line, "/ld-") || strstr(line, "/ld.so") || strstr(line, "/ld64");
    }
    if (file)
        fclose(file);
    free(line);
    return mapped;
}

/* CUDA opens the device of managed memory; NVML and graphics do not. */
static bool has_device_open(int number)
{
    char path[64], link[64];
    const struct dirent *entry;
    bool found = false;
    DIR *listing;

    snprintf(path, sizeof(path), "/proc/%d/fd", number);
    listing = opendir(path);
    while (listing && !found && (entry = readdir(listing))) {
        ssize_t length = readlinkat(dirfd(listing), entry->d_name, link, sizeof(link) - 1);
        link[length > 0 ? length : 0] = '\0';
        found = strcmp(link, "/dev/nvidia-uvm") == 0;
    }
    if (listing)
        closedir(listing);
    return found;
}

static bool accept_any(int fd, void *data)
{
    (void)fd;
    (void)data;
    return true;
}

/* The inode of its page, or 0.  One inherited by fork is its parent's: CUDA does not work in that
 * child. */
static uint64_t page_of(int number)
{
    struct process process = {.number = number};
    struct stat status = {.st_ino = 0};
    enum process_answer answer;
    char path[64];
    int fd;

    snprintf(path, sizeof(path), "/proc/%d", number);
    process.directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (process.directory < 0)
        return 0;
    fd = process_open_file(&process, "rmmshim", O_RDONLY, accept_any, NULL, &answer);
    if (fd >= 0) {
        (void)fstat(fd, &status);
        close(fd);
    }
    close(process.directory);
    return status.st_ino;
}

/* True where RMM_ONLY has the library serve a process of that name; this process gave it to all. */
static bool is_chosen(int number)
{
    const char *patterns = getenv(rs_variables[RS_VARIABLE_ONLY].option.name);
    struct rs_only_process process;
    char directory[64];

    if (!patterns || !*patterns)
        return true;
    snprintf(directory, sizeof(directory), "/proc/%d", number);
    rs_only_read(&process, directory);
    return rs_only_serves(patterns, &process);
}

/* True where the process was started with the driver named before the library. */
static bool is_behind_driver(int number)
{
    static const char name[] = "LD_PRELOAD=";
    const char *driver, *library, *text;
    size_t length;

    text = read_environment(number, &length);
    for (const char *end = text + length; text < end; text += strlen(text) + 1) {
        if (strncmp(text, name, strlen(name)) != 0)
            continue;
        driver = strstr(text, "libcuda.so");
        library = strstr(text, "librmmshim");
        return driver && library && driver < library;
    }
    return false;
}

/* A program that is linked with libcuda need not call it: with the library in it the device must be
 * open, too. */
static bool is_unserved(int number, bool (*is_held)(int number, uint64_t page_inode),
                        enum unserved_reason *reason)
{
    struct mapped mapped = read_maps(number);
    bool has_device;
    uint64_t page;

    if (!mapped.can_read || (mapped.has_library && !mapped.has_libcuda))
        return false;
    has_device = has_device_open(number);
    if (!has_device && (mapped.has_library || !mapped.has_libcuda))
        return false;
    *reason = mapped.has_library  ? (is_behind_driver(number) ? UNSERVED_BEHIND : UNSERVED_NO_CALL)
              : mapped.has_linker ? UNSERVED_NO_PRELOAD
                                  : UNSERVED_STATIC;
    if (!is_chosen(number))
        return false;
    page = page_of(number);
    if (page)
        *reason = UNSERVED_NOT_HELD;
    return !page || !is_held(number, page);
}

/* ---- the list ---- */

/* What is known stays where the process is gone meanwhile. */
static void name_script(struct unserved *of)
{
    char script[IDENTITY_SCRIPT_BYTES];

    identity_script_of(of->number, script);
    if (*script)
        memcpy(of->script, script, sizeof(script));
}

static void note(const struct row *row, enum unserved_reason reason)
{
    for (size_t i = 0; i < seen_count; i++)
        if (seen[i].number == row->number) {
            seen[i].times++;
            memcpy(seen[i].program, row->program, sizeof(row->program));
            name_script(&seen[i]);
            return;
        }
    if (seen_count == LIST_MAX)
        return;
    seen[seen_count] = (struct unserved){.number = row->number, .reason = reason, .times = 1};
    memcpy(seen[seen_count].program, row->program, sizeof(row->program));
    name_script(&seen[seen_count++]);
}

/* The name was read before the maps, and the process may have become another program between. */
static void note_by_name(const struct row *row, enum unserved_reason reason)
{
    struct row now;

    note(read_row(row->number, &now) && now.started == row->started ? &now : row, reason);
}

static void look(bool (*is_held)(int number, uint64_t page_inode))
{
    enum unserved_reason reason;
    size_t count;
    struct row *rows = read_rows(&count);

    for (size_t i = 0; rows && i < count; i++)
        if (!is_held(rows[i].number, 0) && is_of_job(rows, count, &rows[i]) &&
            is_unserved(rows[i].number, is_held, &reason))
            note_by_name(&rows[i], reason);
    free(rows);
}

uint64_t unserved_look(bool (*is_held)(int number, uint64_t page_inode))
{
    static uint64_t due, pause = FIRST_NS;
    uint64_t now = rs_clock_ns(), took;

    if (now < due)
        return due - now;
    look(is_held);
    took = rs_clock_ns() - now;
    due = now + rs_max(pause, took * COST_DIVISOR);
    pause = rs_min(2 * pause, (uint64_t)LONGEST_NS);
    return due - now;
}

void unserved_forget(int number)
{
    for (size_t i = 0; i < seen_count; i++)
        if (seen[i].number == number && seen[i].reason >= UNSERVED_NO_CALL) {
            seen[i] = seen[--seen_count];
            return;
        }
}

void unserved_begin(void)
{
    seen_count = 0;
}

struct unserved *unserved_take(size_t *count)
{
    struct unserved *sure = calloc(seen_count + 1, sizeof(*sure));

    *count = 0;
    for (size_t i = 0; sure && i < seen_count; i++)
        if (seen[i].reason < UNSERVED_NO_CALL || seen[i].times >= SURE_TIMES)
            sure[(*count)++] = seen[i];
    return sure;
}
