/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory.h"

#include "base/check.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads the line "MemAvailable:   24242424 kB".  Returns bytes; 0 when the line is missing. */
static size_t read_available(void)
{
    static const char name[] = "MemAvailable:";
    int fd = rs_file_open("/proc/meminfo");
    char text[1024];
    const char *line;
    ssize_t length;

    if (fd < 0)
        return 0;
    length = rs_file_read(fd, text, sizeof(text) - 1, 0);
    rs_file_close(fd);
    text[length > 0 ? length : 0] = '\0';
    line = strstr(text, name);
    return line ? (size_t)strtoull(line + strlen(name), NULL, 10) << 10 : 0;
}

void rs_host_memory(size_t *total_bytes, size_t *available_bytes)
{
    size_t available = read_available();

    *total_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    *available_bytes = available > 0 ? rs_min(available, *total_bytes) : *total_bytes;
}
