/* SPDX-License-Identifier: Apache-2.0 */
/* The dynamic loader: the real dlsym, and whether dlopen may be called.  Inside the preloaded
 * library `dlsym` is our own hook, so nothing may call it by name; all of our look-ups go
 * through rs_real_dlsym. */
#pragma once

#include <stdbool.h>

typedef void *rs_dlsym_function(void *handle, const char *symbol);

/* Returns libc's dlsym, or that of the next library that hooks dlsym.  Never NULL on glibc.
 * Thread safe, takes no lock. */
rs_dlsym_function *rs_real_dlsym(void);

/* True in a child that was forked while another thread was loading a library, if the parent had
 * called this function.  In that child the load never ends, and any dlopen, even of a loaded
 * library, ends the process (an assertion in glibc's dl-open.c).  Thread safe. */
bool rs_loader_is_stuck(void);
