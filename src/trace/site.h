/* SPDX-License-Identifier: Apache-2.0 */
/* What a text says of a call site. */
#pragma once

#include "trace/call_site.h"

#include <stddef.h>

/* How many frames at the top of a site are the CUDA runtime's, and this library's between them: a
 * program is told where it calls the runtime, not where that calls the driver. */
unsigned rs_site_frames_outside(const struct rs_call_site *site);

/* Collects the frames below the first `outside` that say something beside the site's Python lines:
 * without the interpreter's, and without the C library's that have called these.  Returns how many
 * there are. */
unsigned rs_site_frames_to_say(const struct rs_call_site *site, unsigned outside,
                               const void *frames[RS_CALL_SITE_FRAMES_MAX]);

/* Writes the innermost callers as a part of a line: ", allocated at FILE:LINE in FUNCTION, from
 * ...".  Empty for NULL.  Takes no lock of the loader that a constructor runs under. */
void rs_site_describe(const struct rs_call_site *site, char *text, size_t room);
