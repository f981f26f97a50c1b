/* SPDX-License-Identifier: Apache-2.0 */
/* What happens when the library is loaded, and at exit. */
#include "base/check.h"
#include "base/process.h"
#include "driver/driver.h"
#include "report/report.h"

#include <dlfcn.h>
#include <string.h>

/* Copies the environment. scripts/check-exports fails if there is another constructor. */
__attribute__((constructor)) static void keep_environment(void)
{
    rs_environment_keep();
}

/* The destructor is here and not in report/report.c, which the command links too: the command must
 * not write a report at exit. */
__attribute__((destructor)) static void write_reports(void)
{
    rs_report_at_exit();
}

/* ---- what AddressSanitizer asks for when a program starts that was built with it ---- */

enum { OPTIONS_BYTES = 1024 };

/* A shared runtime of AddressSanitizer (gcc's, for example) ends a program in which another library
 * is loaded before it, since that library's functions could replace its own. rmmshim defines none
 * of the runtime's functions, so it tells the runtime here that any order will do.  All other
 * options come from the next definition of this function, in a library of the program or in the
 * runtime itself.  A definition in the program itself takes precedence over this one; for that case
 * `rmmshim run` sets the option (tool/program.c). */
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
