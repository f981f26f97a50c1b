/* SPDX-License-Identifier: Apache-2.0 */
/* How a program tells tests/oracle what a call answered.  ORACLE_NOTE takes a format as printf does
 * and is nothing where ORACLE_LOG is not set. */
#pragma once

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static void (*oracle_note)(const char *format, ...); /* that of played_time.c, which is preloaded */

__attribute__((constructor)) static void oracle_find(void)
{
    void *found = getenv("ORACLE_LOG") ? dlsym(RTLD_DEFAULT, "oracle_note") : NULL;

    memcpy(&oracle_note, &found, sizeof(found));
}

/* Whether the run is compared with another: then nothing may depend on how fast the device is. */
#define ORACLE_LISTENS (oracle_note != NULL)

#define ORACLE_NOTE(...)                                                                           \
    do {                                                                                           \
        if (ORACLE_LISTENS)                                                                        \
            oracle_note(__VA_ARGS__);                                                              \
    } while (0)
