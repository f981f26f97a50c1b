/* SPDX-License-Identifier: Apache-2.0 */
/* A temporary folder for a test: a group setup that creates it and enters it, and a group teardown
 * that removes it with all files in it. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char test_folder[64];

static inline int enter_test_folder(void **state)
{
    (void)state;
    /* mkdtemp replaces the Xs */
    snprintf(test_folder, sizeof(test_folder), "/tmp/rmmshim-test-XXXXXX");
    return mkdtemp(test_folder) && chdir(test_folder) == 0 ? 0 : -1;
}

static inline int leave_test_folder(void **state)
{
    char command[100];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", test_folder);
    return chdir("/") == 0 ? system(command) : -1;
}
