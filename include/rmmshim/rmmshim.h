/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * rmmshim: GPU memory resources for unmodified CUDA programs.
 *
 * A program needs nothing of this header: `LD_PRELOAD=librmmshim.so` and environment variables are
 * all it takes.  The header is for programs that want to know that they run under rmmshim; look the
 * functions up with dlsym(RTLD_DEFAULT, ...), so that the program also starts without it. */
#ifndef RMMSHIM_RMMSHIM_H
#define RMMSHIM_RMMSHIM_H

#ifdef __cplusplus
extern "C" {
#endif

#define RMMSHIM_API __attribute__((visibility("default")))

/** The version of the loaded library, "MAJOR.MINOR.PATCH".  Static text.  Thread safe. */
RMMSHIM_API const char *rmmshim_version(void);

#ifdef __cplusplus
}
#endif

#endif
