/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the environment. A value that cannot be read ends the process: a test that runs
 * with another device than it asked for proves nothing. */
#include "driver/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct hc_config hc_config = {
    .driver_version = 13000,
    .device_count = 1,
    .memory_bytes = (size_t)8 << 30,
    .context_bytes = (size_t)32 << 20,
    .host_bytes = SIZE_MAX,
    .guard = true,
    .concurrent_managed = true,
};

static void refuse(const char *name, const char *value)
{
    dprintf(STDERR_FILENO, "hostcuda: %s='%s' is not understood\n", name, value);
    _exit(78);
}

static const char *text_of(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static void read_number(const char *name, int low, int high, int *out)
{
    const char *value = text_of(name);
    if (!value)
        return;
    char *end;
    errno = 0;
    long number = strtol(value, &end, 10);
    if (errno || *end || number < low || number > high)
        refuse(name, value);
    *out = (int)number;
}

static void read_bool(const char *name, bool *out)
{
    int number = *out;
    read_number(name, 0, 1, &number);
    *out = number;
}

static void read_size(const char *name, size_t *out)
{
    const char *value = text_of(name);
    if (!value)
        return;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    static const struct {
        const char *suffix;
        int shift;
    } units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(end, units[i].suffix))
            continue;
        if (errno || end == value || number > (UINT64_MAX >> units[i].shift))
            break;
        *out = (size_t)(number << units[i].shift);
        return;
    }
    refuse(name, value);
}

static void read_schedule(void)
{
    const char *value = text_of("HOSTCUDA_SCHEDULE");
    if (!value || !strcmp(value, "real"))
        return;
    if (!strcmp(value, "stepped")) {
        hc_config.schedule = HC_STEPPED;
        return;
    }
    if (strncmp(value, "random", 6) || (value[6] && value[6] != ':'))
        refuse("HOSTCUDA_SCHEDULE", value);
    hc_config.schedule = HC_RANDOM;
    char *end = NULL;
    hc_config.seed = value[6] ? strtoull(value + 7, &end, 10) : 1;
    if (end && *end)
        refuse("HOSTCUDA_SCHEDULE", value);
}

static void read_placement(void)
{
    const char *value = text_of("HOSTCUDA_PLACEMENT");
    if (!value || !strcmp(value, "first"))
        return;
    if (!strcmp(value, "same"))
        hc_config.placement = HC_SAME_AGAIN;
    else if (!strcmp(value, "never"))
        hc_config.placement = HC_NEVER_AGAIN;
    else
        refuse("HOSTCUDA_PLACEMENT", value);
}

void hc_config_read(void)
{
    read_number("HOSTCUDA_DRIVER_VERSION", 11040, 99000, &hc_config.driver_version);
    read_number("HOSTCUDA_DEVICES", 1, 8, &hc_config.device_count);
    read_number("HOSTCUDA_UUID", 0, 99999990, &hc_config.first_uuid);
    read_size("HOSTCUDA_MEMORY", &hc_config.memory_bytes);
    read_size("HOSTCUDA_CONTEXT_MEMORY", &hc_config.context_bytes);
    read_size("HOSTCUDA_MODULE_MEMORY", &hc_config.module_bytes);
    read_size("HOSTCUDA_POOL_STEP", &hc_config.pool_step_bytes);
    read_size("HOSTCUDA_HOST_MEMORY", &hc_config.host_bytes);
    hc_config.withhold = text_of("HOSTCUDA_WITHHOLD");
    read_schedule();
    read_placement();
    read_bool("HOSTCUDA_PAGEABLE", &hc_config.pageable);
    read_bool("HOSTCUDA_INNER", &hc_config.inner);
    read_bool("HOSTCUDA_GUARD", &hc_config.guard);
    read_bool("HOSTCUDA_CONCURRENT_MANAGED", &hc_config.concurrent_managed);
    read_bool("HOSTCUDA_POISON", &hc_config.poison);
    read_bool("HOSTCUDA_QUARANTINE", &hc_config.quarantine);
    read_bool("HOSTCUDA_RACE", &hc_config.race);
    hc_config.race_owner = text_of("HOSTCUDA_RACE_OWNER");
    read_bool("HOSTCUDA_WAITS", &hc_config.waits);
    read_bool("HOSTCUDA_REPORT", &hc_config.report);
    hc_config.faults = text_of("HOSTCUDA_FAULT");
}

bool hc_config_withholds(const char *name)
{
    size_t length = strlen(name);
    for (const char *at = hc_config.withhold; at && *at;) {
        size_t word = strcspn(at, ",");
        if (word == length && !strncmp(at, name, length))
            return true;
        at += word + (at[word] == ',');
    }
    return false;
}
