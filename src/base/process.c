/* SPDX-License-Identifier: Apache-2.0 */
#include "base/process.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
    /* Field 2 is the program's name in parentheses and may hold blanks; the time is field 22. */
    field = strrchr(stat, ')');
    for (int i = 2; field && i < 22; i++)
        field = strchr(field + 1, ' ');
    return field ? strtoll(field, NULL, 10) : -1;
}

uint64_t rs_process_namespace(void)
{
    struct stat status;

    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}
