/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/doctor/patient.h"

#include "shared/published.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* ---- files of /proc/PID ---- */

/* A whole file, ended by two zeros.  NULL: it cannot be read.  free() is due. */
static char *read_whole(int directory, const char *name, size_t *bytes)
{
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
    size_t room = 1 << 16;
    char *text = fd < 0 ? NULL : malloc(room), *more;
    ssize_t got = 0;

    *bytes = 0;
    while (text && (got = read(fd, text + *bytes, room - *bytes - 2)) > 0) {
        *bytes += (size_t)got;
        if (room - *bytes > 2)
            continue;
        more = realloc(text, room *= 2);
        if (!more)
            break; /* what has been read until then */
        text = more;
    }
    if (fd >= 0)
        close(fd);
    if (text)
        text[*bytes] = text[*bytes + 1] = '\0';
    if (got < 0 && *bytes == 0) {
        free(text);
        text = NULL;
    }
    return text;
}

/* The variables in the text, as an array like environ.  free() is due. */
static char **split_environment(char *text, size_t bytes)
{
    size_t count = 0;
    char **array;

    for (size_t i = 0; i < bytes; i++)
        count += text[i] == '\0';
    array = calloc(count + 2, sizeof(*array));
    count = 0;
    for (size_t at = 0; array && at < bytes; at += strlen(text + at) + 1)
        array[count++] = text + at;
    return array;
}

const char *patient_variable(const struct patient *patient, const char *name)
{
    char *const *environment = patient->environment;
    size_t length = strlen(name);

    for (; environment && *environment; environment++)
        if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
            return *environment + length + 1;
    return NULL;
}

/* ---- what they say ---- */

bool patient_is_secure(const struct patient *patient)
{
    Elf64_auxv_t entry;
    size_t bytes;
    char *text = read_whole(patient->directory, "auxv", &bytes);
    bool secure = false;

    for (size_t at = 0; text && at + sizeof(entry) <= bytes; at += sizeof(entry)) {
        memcpy(&entry, text + at, sizeof(entry));
        secure = secure || (entry.a_type == AT_SECURE && entry.a_un.a_val);
    }
    free(text);
    return secure;
}

int patient_status_number(const struct patient *patient, const char *name)
{
    size_t bytes;
    char *text = read_whole(patient->directory, "status", &bytes), *line = NULL;
    int number = 0;

    if (text)
        line = strstr(text, name);
    if (line)
        number = atoi(line + strlen(name));
    free(text);
    return number;
}

unsigned long long patient_file_size_limit(const struct patient *patient)
{
    static const char row[] = "Max file size";
    unsigned long long limit = RS_PUBLISHED_BYTES;
    size_t bytes;
    char *text = read_whole(patient->directory, "limits", &bytes);
    const char *line = text ? strstr(text, row) : NULL;

    if (line)
        sscanf(line + strlen(row), "%llu", &limit);
    free(text);
    return limit;
}

bool patient_executable(int directory, char path[PATH_MAX])
{
    ssize_t length = readlinkat(directory, "exe", path, PATH_MAX - 1);

    path[length > 0 ? length : 0] = '\0';
    return length > 0;
}

void patient_begin(struct patient *patient)
{
    size_t bytes;
    char *maps = read_whole(patient->directory, "maps", &bytes);

    patient->environment_text = read_whole(patient->directory, "environ", &bytes);
    if (patient->environment_text)
        patient->environment = split_environment(patient->environment_text, bytes);
    doctor_maps_read(&patient->maps, maps, patient->doctor);
    free(maps);
}

void patient_end(struct patient *patient)
{
    load_order_free(&patient->maps.files);
    free(patient->environment);
    free(patient->environment_text);
}
