/* SPDX-License-Identifier: Apache-2.0 */
#include "base/process.h"

#include "base/check.h"
#include "base/file.h"
#include "base/memory.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

bool rs_process_read(pid_t process, const char *name, char text[RS_PROCESS_TEXT_BYTES])
{
    char path[64];

    if (process)
        snprintf(path, sizeof(path), "/proc/%d/%s", (int)process, name);
    else
        snprintf(path, sizeof(path), "/proc/self/%s", name);
    return rs_file_text(path, text, RS_PROCESS_TEXT_BYTES) > 0;
}

long long rs_process_start_ticks(pid_t process)
{
    char stat[RS_PROCESS_TEXT_BYTES];

    return rs_process_read(process, "stat", stat) ? rs_process_start_ticks_in(stat) : -1;
}

/* Field 2 is the program's name in parentheses and may contain spaces; field 22 is the start time.
 */
long long rs_process_start_ticks_in(const char *stat)
{
    const char *field = strrchr(stat, ')');

    for (int i = 2; field && i < 22; i++)
        field = strchr(field + 1, ' ');
    return field ? strtoll(field, NULL, 10) : -1;
}

/* A system call: glibc has a function gettid only since 2.30. */
pid_t rs_process_thread(void)
{
    return (pid_t)syscall(SYS_gettid);
}

bool rs_process_stat_has_ended(const char *stat)
{
    const char *field = strrchr(stat, ')'); /* the end of the second field, which may hold blanks */
    char state = 'R';
    long threads = 0;

    /* The third field is the state, the 20th the number of threads. */
    return field &&
           sscanf(field + 1,
                  " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld", &state,
                  &threads) == 2 &&
           (state == 'Z' || state == 'X') && threads <= 1;
}

int rs_process_own_number(const char *directory)
{
    static char status[8 << 10]; /* not on the stack, which may be small */
    char path[64];
    const char *line, *last;

    snprintf(path, sizeof(path), "%s/status", directory);
    (void)rs_file_text(path, status, sizeof(status));
    line = strstr(status, "\nNSpid:");
    if (!line)
        return 0;
    line++;
    last = line + strcspn(line, "\n");
    while (last > line && last[-1] >= '0' && last[-1] <= '9')
        last--;
    return atoi(last);
}

int rs_process_parse(const char *text)
{
    char *end;
    long number;

    if (*text < '0' || *text > '9')
        return 0;
    errno = 0;
    number = strtol(text, &end, 10);
    return *end || errno || number <= 0 || number > INT_MAX ? 0 : (int)number;
}

uint64_t rs_process_namespace(void)
{
    struct stat status;

    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

void rs_process_boot(char text[RS_BOOT_BYTES])
{
    memset(text, 0, RS_BOOT_BYTES);
    (void)rs_file_text("/proc/sys/kernel/random/boot_id", text, RS_BOOT_BYTES);
}

long long rs_process_start_seconds(void)
{
    static atomic_llong known; /* computed once, so that all files of a process get the same time */
    long long seconds = atomic_load_explicit(&known, memory_order_relaxed);
    struct timespec now, since_boot;
    long long ticks;

    if (seconds)
        return seconds;
    ticks = rs_process_start_ticks(0);
    clock_gettime(CLOCK_REALTIME, &now);
    clock_gettime(CLOCK_BOOTTIME, &since_boot);
    seconds = now.tv_sec;
    if (ticks >= 0)
        seconds += ticks / sysconf(_SC_CLK_TCK) - since_boot.tv_sec;
    atomic_store_explicit(&known, seconds, memory_order_relaxed);
    return seconds;
}

/* ---- the environment ---- */

static const char *const rank_names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID",
                                         NULL};

/* Variables that the library reads besides those that begin with RMM: HAMi's limits, and variables
 * by which tools attach to CUDA.  Longer names that begin with one of these names are copied
 * too. */
static const char *const other_names[] = {"CUDA_DEVICE_MEMORY_LIMIT", "CUDA_INJECTION64_PATH",
                                          "NV_SANITIZER_INJECTION_PORT_", NULL};

static char *nothing[] = {NULL};
static _Atomic(char **) kept; /* NULL: nothing was copied */

/* The copy while it is made.  An entry without '=' stands for a variable that some %q{VAR} names
 * and that is not set. */
struct copy {
    char **entries, *text; /* not used while count_max is 0: entries are then only counted */
    size_t count, bytes, count_max, bytes_max;
};

static void add_variable(struct copy *copy, const char *entry, size_t length)
{
    if (copy->count < copy->count_max && copy->bytes_max - copy->bytes > length) {
        copy->entries[copy->count] = memcpy(copy->text + copy->bytes, entry, length);
        copy->text[copy->bytes + length] = '\0';
    }
    copy->count++;
    copy->bytes += length + 1;
}

static char *find_variable(char *const *environment, const char *name, size_t length)
{
    for (; environment && *environment; environment++)
        if (strncmp(*environment, name, length) == 0 &&
            ((*environment)[length] == '=' || (*environment)[length] == '\0'))
            return *environment;
    return NULL;
}

/* Adds the variables that a setting names by %q{VAR}. */
static void add_named(struct copy *copy, const char *setting)
{
    while ((setting = strstr(setting, "%q{"))) {
        size_t length;
        const char *entry;
        setting += strlen("%q{");
        length = strcspn(setting, "}=");
        entry = setting[length] == '}' ? find_variable(environ, setting, length) : NULL;
        add_variable(copy, entry ? entry : setting, entry ? strlen(entry) : length);
    }
}

static bool is_setting(const char *entry)
{
    return (*entry | 0x20) == 'r' && strncasecmp(entry, "RMM_", 4) == 0;
}

static bool begins_as_one(const char *const *names, const char *text)
{
    for (; *names; names++)
        if (strncmp(text, *names, strlen(*names)) == 0)
            return true;
    return false;
}

/* True if the library reads this variable; `name` may be a whole entry, NAME=VALUE. */
static bool is_read(const char *name)
{
    return strncasecmp(name, "RMM", 3) == 0 || begins_as_one(rank_names, name) ||
           begins_as_one(other_names, name);
}

static void collect_settings(struct copy *copy)
{
    for (char **entry = environ; entry && *entry; entry++) { /* NULL after clearenv() */
        if (!is_read(*entry))
            continue;
        add_variable(copy, *entry, strlen(*entry));
        if (is_setting(*entry))
            add_named(copy, *entry);
    }
}

static bool has_settings(void)
{
    char **entry = environ;

    while (entry && *entry && !is_setting(*entry))
        entry++;
    return entry && *entry;
}

/* Returns the copied variables.  Returns NULL when out of memory; then the environment is read each
 * time that it is needed. */
static char **copy_settings(void)
{
    struct copy counted = {.count = 0}, copy = {.count = 0};
    size_t list_bytes;

    collect_settings(&counted);
    list_bytes = (counted.count + 1) * sizeof(*copy.entries); /* the last is NULL */
    copy.entries = rs_map_zeroed(list_bytes + counted.bytes);
    if (!copy.entries)
        return NULL;
    copy.text = (char *)copy.entries + list_bytes;
    copy.count_max = counted.count;
    copy.bytes_max = counted.bytes;
    collect_settings(&copy);
    return copy.entries;
}

void rs_environment_keep(void)
{
    if (!atomic_load(&kept))
        atomic_store(&kept, has_settings() ? copy_settings() : nothing);
}

char *const *rs_environment(void)
{
    char **own = atomic_load(&kept);

    return own ? own : environ;
}

const char *rs_environment_get(const char *name)
{
    char **own = atomic_load(&kept);
    size_t length = strlen(name);
    const char *entry = find_variable(own, name, length);

    if (entry)
        return entry[length] ? entry + length + 1 : NULL;
    return own && is_read(name) ? NULL : getenv(name);
}

const char *rs_process_rank(void)
{
    for (size_t i = 0; rank_names[i]; i++) {
        const char *value = rs_environment_get(rank_names[i]);
        if (value && *value)
            return value;
    }
    return "";
}
