/* SPDX-License-Identifier: Apache-2.0 */
#include "report/leaks.h"

#include "base/check.h"
#include "base/lock.h"
#include "context/block.h"
#include "context/visit.h"
#include "report/holders.h"
#include "report/libraries.h"
#include "shared/published.h"
#include "trace/object.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { END_BYTES = 512, SITE_BYTES = 64 + RS_CALL_SITE_FRAMES_MAX * 17 };

struct amount {
    size_t bytes, blocks;
};

/* Protects all that follows.  It is only tried: whoever writes commands may be any program. */
static struct rs_mutex listing = RS_MUTEX_INIT(RS_RANK_REPORT);
RS_RESET_IN_CHILD(report_live, listing);
static struct rs_holders holders;
static struct rs_libraries libraries;
static struct amount live[RS_KINDS]; /* of all blocks */
static bool is_tracked[RS_KINDS];
static int listed_device;

static char *text; /* of RS_LIVE_LIST_BYTES; NULL: not taken yet */
static pid_t text_owner;
static size_t used_bytes;
static bool is_full;

/* ---- the text ---- */

/* A forked child has no copy of published memory. */
static bool take_text(void)
{
    if (!rs_published_head())
        return false;
    if (!text || text_owner != getpid())
        text = rs_published_allocate(RS_LIVE_LIST_BYTES, RS_PUBLISHED_ALIGNMENT);
    text_owner = getpid();
    if (text && rs_published_offset(text))
        return true;
    if (text)
        rs_published_free(text);
    text = NULL;
    return false;
}

static void put(const char *format, ...) RS_PRINTF(1, 2);

/* A line that does not fit ends the list, but for its last lines. */
static void put(const char *format, ...)
{
    size_t room = RS_LIVE_LIST_BYTES - END_BYTES - used_bytes;
    va_list arguments;
    int length;

    RS_ASSERT_HELD(&listing);
    RS_ASSERT(used_bytes <= RS_LIVE_LIST_BYTES - END_BYTES);
    if (is_full)
        return;
    va_start(arguments, format);
    length = vsnprintf(text + used_bytes, room, format, arguments);
    va_end(arguments);
    is_full = length < 0 || (size_t)length >= room;
    if (!is_full)
        used_bytes += (size_t)length;
}

/* ---- gathering ---- */

static void look_at_stack(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    (void)data;
    if (stack->environment.device == listed_device)
        (void)rs_holders_add(&holders, stack, mr, false);
}

static void count_block(void *data, const struct rs_block_view *view)
{
    (void)data;
    if (view->device != listed_device)
        return;
    live[view->kind].bytes += view->size_bytes;
    live[view->kind].blocks++;
    if (!is_tracked[view->kind])
        rs_libraries_add(&libraries, view);
}

static void gather(int device)
{
    RS_ASSERT_HELD(&listing);
    memset(&holders, 0, sizeof(holders));
    memset(&libraries, 0, sizeof(libraries));
    memset(live, 0, sizeof(live));
    memset(is_tracked, 0, sizeof(is_tracked));
    listed_device = device;
    rs_context_each_stack(look_at_stack, NULL);
    for (size_t i = 0; i < RS_HOLDERS_MAX; i++)
        if (holders.places[i].site)
            is_tracked[holders.places[i].kind] = true;
    rs_object_review();
    rs_block_each(count_block, NULL);
    rs_libraries_sort(&libraries);
}

/* ---- the lines ---- */

static void leave(enum rs_kind kind, size_t bytes, size_t blocks)
{
    live[kind].bytes -= rs_min(bytes, live[kind].bytes);
    live[kind].blocks -= rs_min(blocks, live[kind].blocks);
}

static void put_site(const struct rs_holder *holder)
{
    char line[SITE_BYTES];
    size_t used = 0;

    for (unsigned i = 0; i < holder->site->frame_count; i++)
        used += (size_t)snprintf(line + used, sizeof(line) - used, " %" PRIxPTR,
                                 (uintptr_t)holder->site->frames[i]);
    RS_ASSERT(used < sizeof(line));
    put("site %d %zu %zu%.*s\n", (int)holder->kind, holder->bytes, holder->blocks, (int)used, line);
    for (unsigned i = 0; i < holder->site->line_count; i++)
        put("line %s\n", holder->site->lines[i]->text);
    if (!is_full)
        leave(holder->kind, holder->bytes, holder->blocks);
}

static void put_library(const struct rs_library *library)
{
    put("library %d %zu %zu %s\n", (int)library->kind, library->bytes, library->blocks,
        library->name ? library->name : "?");
    for (size_t i = 0; i < library->class_count; i++) {
        const struct rs_size_class *class = &library->classes[i];
        put("size %zu %zu %zu %zu\n", class->bytes, class->blocks, class->smallest_bytes,
            class->largest_bytes);
    }
    if (!is_full)
        leave(library->kind, library->bytes, library->blocks);
}

static void put_end(void)
{
    for (int kind = 0; kind < RS_KINDS; kind++)
        if (live[kind].blocks)
            used_bytes +=
                (size_t)snprintf(text + used_bytes, RS_LIVE_LIST_BYTES - used_bytes,
                                 "more %d %zu %zu\n", kind, live[kind].bytes, live[kind].blocks);
    used_bytes += (size_t)snprintf(text + used_bytes, RS_LIVE_LIST_BYTES - used_bytes, "end\n");
    RS_ASSERT(used_bytes < RS_LIVE_LIST_BYTES); /* the room for the end sufficed */
}

static void write_list(void)
{
    size_t count = rs_holders_order(&holders);

    used_bytes = 0;
    is_full = false;
    for (size_t i = 0; i < count; i++)
        if (holders.places[i].site)
            put_site(&holders.places[i]);
    for (size_t i = 0; i < libraries.count; i++)
        put_library(&libraries.libraries[i]);
    put_end();
}

int rs_live_list(int device, uint64_t *offset, uint64_t *length_bytes)
{
    int result = -ENOMEM;

    RS_ASSERT(device >= 0 && device < RS_DEVICES_MAX);
    if (!rs_mutex_try_lock(&listing))
        return -EBUSY;
    if (take_text()) {
        gather(device);
        write_list();
        *offset = rs_published_offset(text);
        *length_bytes = used_bytes;
        result = 0;
    }
    rs_mutex_unlock(&listing);
    return result;
}
