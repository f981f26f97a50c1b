/* SPDX-License-Identifier: Apache-2.0 */
/* What happens when the library is loaded, and at exit. */
#include "base/check.h"
#include "base/process.h"
#include "driver/driver.h"
#include "report/report.h"

#include <dlfcn.h>
#include <string.h>

/* By name in scripts/check-exports, which allows no other. */
__attribute__((constructor)) static void keep_environment(void)
{
    rs_environment_keep();
}

/* Here and not in report/report.c: the command, which reads reports too, has none of its own. */
__attribute__((destructor)) static void write_reports(void)
{
    rs_report_at_exit();
}

/* ---- what AddressSanitizer asks for when a program starts that was built with it ---- */

enum { OPTIONS_BYTES = 1024 };

/* A shared runtime of AddressSanitizer (gcc's is one) ends a program in which another library comes
 * before it: that one's functions would be called instead of its own.  The library has none of the
 * runtime's functions, so it says that any order will do, and leaves the other options to who else
 * defines this: a library of the program's, or the runtime itself.  A program that defines it comes
 * first, and is not asked for; there `rmmshim run` says it (tool/program.c). */
const char *__asan_default_options(void);

__attribute__((visibility("default"))) RS_BEFORE_SANITIZERS const char *__asan_default_options(void)
{
    static char options[OPTIONS_BYTES] = "verify_asan_link_order=0:";
    void *found = rs_real_dlsym()(RTLD_NEXT, "__asan_default_options");
    const char *(*next)(void) = NULL, *others;
    size_t at = sizeof("verify_asan_link_order=0:") - 1;

    if (!found)
        return options;
    memcpy(&next, &found, sizeof(next));
    for (others = next(); others && *others && at < OPTIONS_BYTES - 1; others++)
        options[at++] = *others;
    options[at] = '\0';
    return options;
}
