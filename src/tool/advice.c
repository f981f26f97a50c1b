/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/advice.h"

#include "base/check.h"
#include "config/config.h"
#include "tool/process.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* `least`: advice is given when at least this many allocations were freed again.  The driver's
 * allocation and free together take some 2 ms for 4 MiB of pinned memory, and some 80 us for 1 MiB
 * of device memory (tests/bench/README.md): so many calls take about a tenth of a second or more,
 * which a user may notice. */
static const struct {
    const char *name, *step;
    /* The variable beside which a pool's size would be a bad setting. */
    enum rs_variable_index expression;
    uint64_t least;
} kinds[RS_KINDS] = {
    [RS_KIND_DEVICE] = {"device memory", "add --pool-size 0, a pool that grows (RMM_POOL_SIZE)",
                        RS_VARIABLE_RESOURCE, 1000},
    [RS_KIND_PINNED] = {"pinned",
                        "add --pinned-pool-size 0, a pool that grows (RMM_PINNED_POOL_SIZE)",
                        RS_VARIABLE_PINNED_RESOURCE, 100},
    [RS_KIND_MANAGED] = {"managed",
                         "add --managed-pool-size 0, a pool that grows (RMM_MANAGED_POOL_SIZE)",
                         RS_VARIABLE_MANAGED_RESOURCE, 1000},
};

/* Formats a number with commas: "4,200". */
static const char *grouped(uint64_t number, char text[32])
{
    char digits[24], *to = text;
    size_t length = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, number);

    for (size_t i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return text;
}

static bool pools(const char *expression)
{
    return fnmatch("*@(@(pool|arena|binning|fixed_size)[(]|async|virtual)*", expression,
                   FNM_EXTMATCH) == 0;
}

/* Adds the driver allocations of all stacks of this kind to *calls, and to *repeated as many of
 * them as there were driver frees.  Returns false if one of the stacks keeps memory, as a pool
 * does: there is nothing to advise then. */
static bool add_calls(const struct publication *page, int kind, uint64_t *calls, uint64_t *repeated)
{
    for (size_t i = 0; i < page->count; i++) {
        const struct rs_reported_stack *stack = &page->stacks[i];
        uint64_t allocated = 0, freed = 0;
        if ((int)stack->kind != kind || !*stack->expression)
            continue;
        if (pools(stack->expression))
            return false;
        for (size_t j = 0; j < stack->report.count; j++) {
            const struct rs_counter *counter = &stack->report.counters[j];
            if (strcmp(counter->name, "driver_allocations") == 0)
                allocated += counter->value;
            else if (strcmp(counter->name, "driver_frees") == 0)
                freed += counter->value;
        }
        *calls += allocated;
        *repeated += rs_min(allocated, freed);
    }
    return true;
}

size_t advice_of(const struct publication *page, const void *file,
                 const char *(*variable)(void *data, const char *name), void *data,
                 struct advice advices[RS_KINDS])
{
    const struct rs_publication *head = file;
    const char *expression;
    size_t count = 0;
    char text[32];

    for (int kind = 0; kind < RS_KINDS; kind++) {
        uint64_t calls = atomic_load(&head->forwarded[kind].allocations);
        uint64_t repeated = atomic_load(&head->forwarded[kind].repeated);
        expression = variable(data, rs_variables[kinds[kind].expression].option.name);
        if ((expression && *expression) || !add_calls(page, kind, &calls, &repeated) ||
            repeated < kinds[kind].least)
            continue;
        snprintf(advices[count].text, sizeof(advices->text),
                 "%s %s allocations went to the driver one by one, which takes time",
                 grouped(calls, text), kinds[kind].name);
        advices[count++].step = kinds[kind].step;
    }
    return count;
}
