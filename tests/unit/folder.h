/* SPDX-License-Identifier: Apache-2.0 */
/* The temporary folder of a test: a group setup that makes it and makes it the working directory,
 * and a group teardown that removes it with all that lies in it. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char test_folder[64];

static inline int enter_test_folder(void **state)
{
    (void)state;
    snprintf(test_folder, sizeof(test_folder), "/tmp/rmmshim-test-XXXXXX"); /* mkdtemp's Xs */
    return mkdtemp(test_folder) && chdir(test_folder) == 0 ? 0 : -1;
}

static inline int leave_test_folder(void **state)
{
    char command[100];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", test_folder);
    return chdir("/") == 0 ? system(command) : -1;
}
