/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/man/manual.h"

#include "base/check.h"
#include "tool/program.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *const manual_topics[] = {"commands", "variables", "stacks", "reports",
                                     "recipes",  "api",       "limits", NULL};

/* The page of each topic, in the same order. The last character is the page's section. */
static const char *const pages[] = {
    "rmmshim.1",         "rmmshim-variables.7", "rmmshim-resources.7", "rmmshim-reports.7",
    "rmmshim-recipes.7", "rmmshim.3",           "rmmshim.7",
};

_Static_assert(RS_ARRAY_LENGTH(pages) + 1 == RS_ARRAY_LENGTH(manual_topics), "a page each");

static int show_page(const char *page)
{
    char section = page[strlen(page) - 1];
    char installed[PATH_MAX], compressed[PATH_MAX], built[PATH_MAX], path[PATH_MAX];
    const char *const places[] = {installed, compressed, built};

    snprintf(installed, sizeof(installed), "../" RMMSHIM_MANDIR "/man%c/%s", section, page);
    /* distributions' packages compress manual pages */
    snprintf(compressed, sizeof(compressed), "../" RMMSHIM_MANDIR "/man%c/%s.gz", section, page);
    snprintf(built, sizeof(built), "man/%s", page);
    if (!library_find_beside(places, RS_ARRAY_LENGTH(places), path)) {
        tool_say("the manual page %s is not installed beside this command: install rmmshim again, "
                 "or read it in the folder src/tool/man of rmmshim's source",
                 page);
        return TOOL_FINDING;
    }
    (void)execlp("man", "man", path, (char *)NULL);
    tool_say("cannot start 'man': %s; the page is %s", strerror(errno), path);
    return TOOL_FINDING;
}

int manual_show(const char *topic)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(pages); i++)
        if (strcmp(manual_topics[i], topic) == 0)
            return show_page(pages[i]);
    return -1;
}
