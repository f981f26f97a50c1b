/* SPDX-License-Identifier: Apache-2.0 */
/* The real dlsym.  Inside the preloaded library `dlsym` is our own hook, so nothing may call it by
 * name; all look-ups of ours go through this pointer. */
#pragma once

typedef void *rs_dlsym_function(void *handle, const char *symbol);

/* libc's dlsym, or the next dlsym hook after ours.  Never NULL on glibc.  Thread safe, no lock. */
rs_dlsym_function *rs_real_dlsym(void);
