/* SPDX-License-Identifier: Apache-2.0 */
#include "base/process.h"

#include "base/check.h"
#include "base/file.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

long long rs_process_start_ticks(pid_t process)
{
    char path[64], stat[1024];
    const char *field;
    ssize_t length;
    int fd;

    if (process)
        snprintf(path, sizeof(path), "/proc/%d/stat", (int)process);
    fd = rs_file_open(process ? path : "/proc/self/stat");
    length = fd < 0 ? -1 : rs_file_read(fd, stat, sizeof(stat) - 1, 0);
    if (fd >= 0)
        rs_file_close(fd);
    if (length <= 0)
        return -1;
    stat[length] = '\0';
    /* Field 2 is the program's name in parentheses and may contain spaces; field 22 is the start
     * time. */
    field = strrchr(stat, ')');
    for (int i = 2; field && i < 22; i++)
        field = strchr(field + 1, ' ');
    return field ? strtoll(field, NULL, 10) : -1;
}

/* By its system call: the C library has gettid since glibc 2.30 only. */
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

int rs_process_own_number(const char *status)
{
    const char *line = strstr(status, "\nNSpid:"), *last;

    if (!line)
        return 0;
    line++;
    last = line + strcspn(line, "\n");
    while (last > line && last[-1] >= '0' && last[-1] <= '9')
        last--;
    return atoi(last);
}

uint64_t rs_process_namespace(void)
{
    struct stat status;

    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

void rs_process_boot(char text[RS_BOOT_BYTES])
{
    int fd = rs_file_open("/proc/sys/kernel/random/boot_id");

    memset(text, 0, RS_BOOT_BYTES);
    if (fd < 0)
        return;
    if (rs_file_read(fd, text, RS_BOOT_BYTES - 1, 0) < 0)
        memset(text, 0, RS_BOOT_BYTES);
    rs_file_close(fd);
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

const char *rs_process_rank(void)
{
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(names); i++) {
        const char *value = getenv(names[i]);
        if (value && *value)
            return value;
    }
    return "";
}
