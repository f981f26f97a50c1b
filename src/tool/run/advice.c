/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/advice.h"

#include "report/plain.h"
#include "tool/advice.h"
#include "tool/process.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>

enum { KEPT_MAX = 8, NAME_BYTES = 64 };

static struct {
    int process;
    char program[NAME_BYTES];
    struct advice advices[RS_KINDS];
    size_t count;
} kept[KEPT_MAX];
static size_t kept_count;

/* The program has those of this process. */
static const char *variable(void *data, const char *name)
{
    (void)data;
    return getenv(name);
}

void run_advice_look(int process, const char *script, const void *file)
{
    struct publication *page = kept_count < KEPT_MAX ? calloc(1, sizeof(*page)) : NULL;
    size_t count;

    if (!page)
        return;
    (void)publication_read(page, file);
    count = advice_of(page, file, variable, NULL, kept[kept_count].advices);
    if (count > 0) {
        kept[kept_count].process = process;
        kept[kept_count].count = count;
        snprintf(kept[kept_count].program, NAME_BYTES, "%.*s", NAME_BYTES - 1,
                 *script ? script : page->program);
        rs_plain_make(kept[kept_count].program);
        kept_count++;
    }
    publication_release(page);
    free(page);
}

void run_advice_say(void)
{
    for (size_t i = 0; i < kept_count; i++)
        for (size_t j = 0; j < kept[i].count; j++)
            tool_say("%s (pid %d): %s -> %s", kept[i].program, kept[i].process,
                     kept[i].advices[j].text, kept[i].advices[j].step);
}

void run_advice_forget(void)
{
    kept_count = 0;
}
