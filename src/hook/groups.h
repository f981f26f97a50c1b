/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the hooks of one file.  The file defines HOOK_<group> as RS_HOOK_DECLARE for each group
 * whose rows it implements, then includes this header; every other group declares nothing there.  A
 * new group needs an #ifndef here, and one in hook/table.c.
 *
 * No #pragma once: each file of hooks includes it once, with its own groups. */
#include "hook/hook.h"

/* clang-format off */
#define RS_HOOK_OF_ANOTHER_FILE(symbol)

#ifndef HOOK_lookup
#define HOOK_lookup RS_HOOK_OF_ANOTHER_FILE
#endif
#ifndef HOOK_device
#define HOOK_device RS_HOOK_OF_ANOTHER_FILE
#endif
#ifndef HOOK_managed
#define HOOK_managed RS_HOOK_OF_ANOTHER_FILE
#endif
#ifndef HOOK_pinned
#define HOOK_pinned RS_HOOK_OF_ANOTHER_FILE
#endif
#ifndef HOOK_async
#define HOOK_async RS_HOOK_OF_ANOTHER_FILE
#endif
#ifndef HOOK_introspect
#define HOOK_introspect RS_HOOK_OF_ANOTHER_FILE
#endif
#ifndef HOOK_guard
#define HOOK_guard RS_HOOK_OF_ANOTHER_FILE
#endif
#ifndef HOOK_limit
#define HOOK_limit RS_HOOK_OF_ANOTHER_FILE
#endif
#ifndef HOOK_count
#define HOOK_count RS_HOOK_OF_ANOTHER_FILE
#endif
#ifndef HOOK_capture
#define HOOK_capture RS_HOOK_OF_ANOTHER_FILE
#endif
#ifndef HOOK_context
#define HOOK_context RS_HOOK_OF_ANOTHER_FILE
#endif
#ifndef HOOK_retry
#define HOOK_retry RS_HOOK_OF_ANOTHER_FILE
#endif
#ifndef HOOK_wait
#define HOOK_wait RS_HOOK_OF_ANOTHER_FILE
#endif
/* clang-format on */

#define HOOK(symbol, name, since, until, stream, group, summary) HOOK_##group(symbol)
#include "driver/entry_points.def"
