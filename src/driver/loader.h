/* SPDX-License-Identifier: Apache-2.0 */
/* The dynamic loader: the real dlsym, and whether it can be asked to open something.  Inside the
 * preloaded library `dlsym` is our own hook, so nothing may call it by name; all look-ups of ours
 * go through this pointer. */
#pragma once

#include <stdbool.h>

typedef void *rs_dlsym_function(void *handle, const char *symbol);

/* libc's dlsym, or the next dlsym hook after ours.  Never NULL on glibc.  Thread safe, no lock. */
rs_dlsym_function *rs_real_dlsym(void);

/* True in a child that was forked while another thread was loading a library: that load never ends
 * here, and any dlopen, also of what is loaded, ends the process (an assertion in glibc's
 * dl-open.c).  Thread safe. */
bool rs_loader_is_stuck(void);
