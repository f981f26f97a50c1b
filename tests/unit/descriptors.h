/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptors that the process has open. */
#pragma once

#include "unit.h"

#include <dirent.h>

/* Returns their number, and three more: the entries "." and "..", and the folder itself. */
static inline unsigned open_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned count = 0;

    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}
