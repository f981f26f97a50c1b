/* SPDX-License-Identifier: Apache-2.0 */
#include "context/pushed.h"

#include "base/check.h"
#include "base/lock.h"
#include "base/thread.h"
#include "config/config.h"
#include "config/mode.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static __thread struct {
    const struct rs_pushed *resources[RS_PUSHED_DEPTH_MAX];
    unsigned count;
} stack;

static _Atomic(const struct rs_pushed *) of_device[RS_DEVICES_MAX];

static struct rs_mutex lock = RS_MUTEX_INIT(
    RS_RANK_ALONE); /* Protects `all` and its length; no driver call is made under it. */
RS_RESET_IN_CHILD(context_pushed, lock);
static struct rs_pushed *all;
static unsigned all_count;

static const struct rs_pushed *find(const char *text)
{
    const struct rs_pushed *pushed = all;

    RS_ASSERT_HELD(&lock);
    while (pushed && strcmp(pushed->source.text, text) != 0)
        pushed = pushed->next;
    return pushed;
}

static int make(const char *text, struct rs_diagnostics *diagnostics, const struct rs_pushed **out)
{
    struct rs_pushed *pushed = calloc(1, sizeof(*pushed));
    char *copy = strdup(text);
    unsigned before = diagnostics->count;

    RS_ASSERT_HELD(&lock);
    RS_ASSERT(all_count < RS_PUSHED_MAX);
    if (pushed && copy) {
        pushed->source = (struct rs_source){"expression", copy};
        pushed->expression = rs_config_expression(&rs_config, &pushed->source, diagnostics);
    }
    if (!pushed || !pushed->expression) {
        free(copy);
        free(pushed);
        return diagnostics->count > before ? -EINVAL : -ENOMEM;
    }
    pushed->next = all;
    all = pushed;
    all_count++;
    *out = pushed;
    return 0;
}

int rs_pushed_find(const char *text, struct rs_diagnostics *diagnostics,
                   const struct rs_pushed **out)
{
    int result = 0;

    rs_mutex_lock(&lock);
    *out = find(text);
    if (!*out)
        result = all_count < RS_PUSHED_MAX ? make(text, diagnostics, out) : -ENOSPC;
    rs_mutex_unlock(&lock);
    return result;
}

int rs_pushed_push(const char *text, struct rs_diagnostics *diagnostics)
{
    const struct rs_pushed *pushed = NULL;
    int result;

    if (stack.count == RS_PUSHED_DEPTH_MAX)
        return -ENOSPC;
    result = rs_pushed_find(text, diagnostics, &pushed);
    if (result != 0)
        return result;
    RS_ASSERT(pushed && pushed->expression);
    stack.resources[stack.count++] = pushed;
    rs_thread.pushed = pushed;
    return 0;
}

int rs_pushed_pop(void)
{
    if (stack.count == 0)
        return -ERANGE;
    RS_ASSERT(stack.count <= RS_PUSHED_DEPTH_MAX && stack.resources[stack.count - 1]);
    stack.count--;
    rs_thread.pushed = stack.count ? stack.resources[stack.count - 1] : NULL;
    return 0;
}

void rs_pushed_set(int device, const struct rs_pushed *resource)
{
    RS_ASSERT(device >= 0 && device < RS_DEVICES_MAX);
    atomic_store_explicit(&of_device[device], resource, memory_order_release);
}

const struct rs_pushed *rs_pushed_of(int device)
{
    if (stack.count)
        return stack.resources[stack.count - 1];
    if (device < 0 || device >= RS_DEVICES_MAX)
        return NULL;
    return atomic_load_explicit(&of_device[device], memory_order_acquire);
}
