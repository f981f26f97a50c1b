/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/refusals.h"

#include "report/publish.h"
#include "tool/tool.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT_MAX = 8 };

static char *kept[KEPT_MAX];
static unsigned kept_count, left_out;

/* A copy of the text, or NULL.  A process that was killed while it wrote has none. */
static char *copy_text(const struct rs_published_refusal *refusal)
{
    uint32_t sequence = atomic_load_explicit(&refusal->sequence, memory_order_acquire);
    char *text;

    if (sequence == 0 || sequence % 2)
        return NULL;
    text = malloc(sizeof(refusal->text));
    if (!text)
        return NULL;
    memcpy(text, refusal->text, sizeof(refusal->text));
    text[sizeof(refusal->text) - 1] = '\0';
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&refusal->sequence, memory_order_relaxed) == sequence)
        return text;
    free(text);
    return NULL;
}

/* The process may have been anything: its text does not steer the terminal. */
static void make_harmless(char *text)
{
    for (; *text; text++)
        if (((unsigned char)*text < ' ' && *text != '\n') || *text == 0x7f)
            *text = '?';
}

void refusals_keep(const void *file)
{
    const struct rs_publication *head = file;
    char *text = copy_text(&head->refusal);

    if (!text)
        return;
    make_harmless(text);
    if (kept_count < KEPT_MAX) {
        kept[kept_count++] = text;
        return;
    }
    left_out++;
    free(text);
}

void refusals_print(void)
{
    for (unsigned i = 0; i < kept_count; i++) {
        fputs(kept[i], stderr);
        free(kept[i]);
    }
    if (left_out)
        tool_say("%u more processes were out of memory", left_out);
    kept_count = left_out = 0;
}
