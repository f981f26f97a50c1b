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
    char text[1024];
    const char *line;

    (void)rs_file_text("/proc/meminfo", text, sizeof(text));
    line = strstr(text, name);
    return line ? (size_t)strtoull(line + strlen(name), NULL, 10) << 10 : 0;
}

void rs_host_memory(size_t *total_bytes, size_t *available_bytes)
{
    size_t available = read_available();

    *total_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    *available_bytes = available > 0 ? rs_min(available, *total_bytes) : *total_bytes;
}
