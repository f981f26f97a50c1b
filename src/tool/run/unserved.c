/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "base/lock.h"
#include "base/process.h"
#include "config/config.h"
#include "config/program_filter.h"
#include "shared/job.h"
#include "tool/process.h"
#include "tool/run/run.h"
#include "tool/tool.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FIRST_NS = 50 * 1000 * 1000,     /* the first time between two looks; it doubles */
    LONGEST_NS = 1000 * 1000 * 1000, /* ... up to 1 s */
    COST_DIVISOR = 20,               /* looking takes at most a twentieth of the time */
    /* A process that has the library counts only if it was seen at least this often. When it is
     * seen once, it may have made its context and not yet its first allocation. */
    SURE_TIMES = 2,
    LIST_MAX = 256, /* the most processes that are remembered */
};

/* A process of the machine. */
struct row {
    int number, parent;
    long long started; /* when the process was started, in ticks since boot */
    char program[UNSERVED_PROGRAM_BYTES];
};

static struct unserved seen[LIST_MAX];
static size_t seen_count;
static uint64_t due_ns; /* the time of the next look */
static bool is_blind;   /* the latest look could not list the processes */

/* ---- all processes ---- */

/* Reads /proc/PID/stat, "4711 (name) S parent ...", in which the name may contain any characters.
 */
static bool read_row(int number, struct row *row)
{
    char text[RS_PROCESS_TEXT_BYTES];
    const char *begin, *end;

    if (!rs_process_read(number, "stat", text))
        return false;
    begin = strchr(text, '(');
    end = strrchr(text, ')');
    if (!begin || !end)
        return false;
    row->number = number;
    row->parent = process_parent_in(text);
    row->started = rs_process_start_ticks_in(text);
    snprintf(row->program, sizeof(row->program), "%.*s", (int)(end - begin - 1), begin + 1);
    return true;
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

/* Returns the row of a process, or NULL.  Rows are in the order of process_list, and begin with the
 * process's number. */
static const struct row *find_row(const struct row *rows, size_t count, int number)
{
    return bsearch(&number, rows, count, sizeof(*rows), process_compare_numbers);
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

/* True for a process of the job: one below this process, or, if its parents have ended, one with
 * the job's variable. */
static bool is_of_job(const struct row *rows, size_t count, const struct row *row)
{
    const struct row *own = find_row(rows, count, getpid());
    const char *job = getenv(RS_JOB_VARIABLE);
    bool is_of = is_below(rows, count, row);
    char directory[PROCESS_PATH_BYTES], **environment;
    const char *value;

    if (is_of || !own || !job || row->started < own->started || row == own)
        return is_of;
    snprintf(directory, sizeof(directory), "/proc/%d", row->number);
    environment = process_environment(directory);
    value = tool_variable(environment, RS_JOB_VARIABLE);
    is_of = value && strcmp(value, job) == 0;
    process_free_environment(environment);
    return is_of;
}

/* ---- what a process uses ---- */

struct use {
    bool can_read, has_libcuda, has_library, has_linker; /* as its maps show */
    bool has_context; /* also by its maps: a CUDA context maps the device file of managed memory;
                         cuInit and NVML only open that file (driver 580) */
    uint64_t page;    /* the inode of its own page, or 0.  A page that a forked child inherited does
                         not count; CUDA does not work in that child */
};

/* Reads what the process has mapped. The list ends early if the process ends or becomes another
 * program meanwhile, so it is used only if it has the line of the stack, one of the last. */
static void read_loaded(const char *directory, struct use *use)
{
    struct process_mapping mapping = {.line = NULL};
    FILE *maps = process_file(directory, "maps");

    while (process_next_mapping(maps, &mapping)) {
        const char *name = mapping.name, *tail = strrchr(name, '/');
        use->can_read |= strcmp(name, "[stack]") == 0;
        use->has_libcuda |= strstr(name, "/libcuda.so") != NULL;
        use->has_library |= strstr(name, "/librmmshim.so") != NULL;
        /* From outside a container, the path of a file in its own /dev has no folder. */
        use->has_context |= tail && strcmp(tail, "/nvidia-uvm") == 0;
        use->has_linker |= strstr(name, "/ld-") || strstr(name, "/ld.so") || strstr(name, "/ld64");
    }
}

static void read_page(const char *directory, struct use *use)
{
    char path[PROCESS_PATH_BYTES + 8], link[64];
    const struct dirent *entry;
    struct stat status;
    DIR *listing;

    snprintf(path, sizeof(path), "%s/fd", directory);
    listing = opendir(path);
    while (listing && (entry = readdir(listing))) {
        ssize_t length = readlinkat(dirfd(listing), entry->d_name, link, sizeof(link) - 1);
        link[length > 0 ? length : 0] = '\0';
        if (strcmp(link, "/memfd:rmmshim (deleted)") == 0 && use->page == 0 &&
            fstatat(dirfd(listing), entry->d_name, &status, 0) == 0)
            use->page = status.st_ino;
    }
    if (listing)
        closedir(listing);
}

/* True when RMM_ONLY has the library serve the process.  The processes of the job have inherited
 * the value that this process has. */
static bool is_chosen(const char *directory)
{
    const char *patterns = getenv(rs_variables[RS_VARIABLE_ONLY].option.name);
    struct rs_program_names process;

    if (!patterns || !*patterns)
        return true;
    rs_program_names_read(&process, directory);
    return rs_program_filter_serves(patterns, &process);
}

/* True when the process's LD_PRELOAD names the driver before the library. */
static bool is_behind_driver(const char *directory)
{
    char **environment = process_environment(directory);
    const char *preload = tool_variable(environment, "LD_PRELOAD");
    const char *driver = preload ? strstr(preload, "libcuda.so") : NULL;
    const char *library = preload ? strstr(preload, "librmmshim") : NULL;
    bool is_behind = driver && library && driver < library;

    process_free_environment(environment);
    return is_behind;
}

/* True for a process that uses CUDA, that RMM_ONLY does not exclude, and whose page is not held.
 * Stores why in *reason. With the library, a process counts only once it has a CUDA context, since
 * a program may link libcuda and not use it; without it, having libcuda suffices. */
static bool is_unserved(int number, bool (*is_held)(int number, uint64_t page_inode),
                        enum unserved_reason *reason)
{
    char directory[PROCESS_PATH_BYTES];
    struct use use = {.page = 0};

    snprintf(directory, sizeof(directory), "/proc/%d", number);
    read_loaded(directory, &use);
    if (!use.can_read || (use.has_library && !use.has_libcuda))
        return false;
    read_page(directory, &use);
    if (!use.has_context && (use.has_library || !use.has_libcuda))
        return false;
    *reason = use.page ? UNSERVED_NOT_HELD : use.has_linker ? UNSERVED_NO_PRELOAD : UNSERVED_STATIC;
    if (!use.page && use.has_library)
        *reason = is_behind_driver(directory) ? UNSERVED_BEHIND : UNSERVED_NO_CALL;
    return is_chosen(directory) && !(use.page && is_held(number, use.page));
}

/* ---- the list ---- */

/* Notes a process. Its name is read each time, since it may have become another program. The script
 * is kept if it can no longer be read. */
static void note_unserved(const struct row *row, enum unserved_reason reason)
{
    char script[IDENTITY_SCRIPT_BYTES];
    struct unserved *of = seen;
    struct row now;

    while (of < seen + seen_count && of->number != row->number)
        of++;
    if (of == seen + LIST_MAX)
        return;
    if (of == seen + seen_count)
        seen[seen_count++] = (struct unserved){.number = row->number, .reason = reason};
    /* It may have been seen while it was loaded, and have loaded the library or made its page
     * since. What was seen several times without the library stays, and so does a page, whose
     * descriptor the program may close. */
    if (of->reason != reason && of->reason != UNSERVED_NOT_HELD &&
        (of->reason >= UNSERVED_NO_CALL || of->times < SURE_TIMES)) {
        of->reason = reason;
        of->times = 0;
    }
    of->times++;
    if (read_row(row->number, &now) && now.started == row->started)
        row = &now;
    memcpy(of->program, row->program, sizeof(row->program));
    identity_script_of(row->number, script);
    if (*script)
        memcpy(of->script, script, sizeof(script));
}

uint64_t unserved_look(bool (*is_held)(int number, uint64_t page_inode))
{
    static uint64_t pause = FIRST_NS;
    uint64_t now = rs_clock_ns(), took;
    enum unserved_reason reason;
    struct row *rows;
    size_t count;

    if (now < due_ns)
        return due_ns - now;
    rows = read_rows(&count);
    is_blind = !rows;
    for (size_t i = 0; rows && i < count; i++)
        if (!is_held(rows[i].number, 0) && is_of_job(rows, count, &rows[i]) &&
            is_unserved(rows[i].number, is_held, &reason))
            note_unserved(&rows[i], reason);
    free(rows);
    took = rs_clock_ns() - now;
    due_ns = now + rs_max(pause, took * COST_DIVISOR);
    pause = rs_min(2 * pause, (uint64_t)LONGEST_NS);
    return due_ns - now;
}

void unserved_forget(int number)
{
    for (size_t i = 0; i < seen_count; i++)
        if (seen[i].number == number && seen[i].reason >= UNSERVED_NO_CALL) {
            seen[i] = seen[--seen_count];
            return;
        }
}

struct unserved *unserved_take(bool (*is_held)(int number, uint64_t page_inode), size_t *count,
                               bool *is_short)
{
    struct unserved *sure;

    if (is_blind) {
        due_ns = 0;
        (void)unserved_look(is_held);
    }
    sure = calloc(seen_count + 1, sizeof(*sure));
    *count = 0;
    for (size_t i = 0; sure && i < seen_count; i++)
        if (seen[i].reason < UNSERVED_NO_CALL || seen[i].times >= SURE_TIMES)
            sure[(*count)++] = seen[i];
    seen_count = 0;
    *is_short |= !sure || is_blind;
    return sure;
}
