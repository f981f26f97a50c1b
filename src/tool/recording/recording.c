/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/recording/recording.h"

#include "base/arithmetic.h"
#include "base/file.h"
#include "recording/format.h"
#include "report/utf8.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A number in a damaged file must not make a huge table. */
enum { NUMBERS_MAX = 1 << 20 };

void recording_note_damage(struct recording *recording, const char *format, ...)
{
    va_list arguments;

    if (recording->damage[0])
        return;
    va_start(arguments, format);
    vsnprintf(recording->damage, sizeof(recording->damage), format, arguments);
    va_end(arguments);
}

struct recording_event *recording_add(struct recording *recording)
{
    if (recording->count == recording->room) {
        size_t room = rs_max(2 * recording->room, 4096);
        struct recording_event *events =
            room < RECORDING_NO_EVENT ? reallocarray(recording->events, room, sizeof(*events))
                                      : NULL;
        if (!events) {
            recording->is_short = true;
            return NULL;
        }
        recording->events = events;
        recording->room = room;
    }
    recording->events[recording->count] = (struct recording_event){.partner = RECORDING_NO_EVENT};
    return &recording->events[recording->count++];
}

/* ---- definitions ---- */

/* A copy in which control characters, and what is no UTF-8, are question marks. */
static char *plain_copy(const char *text, size_t length)
{
    char *copy = malloc(length + 1), *to = copy;

    for (size_t i = 0, bytes; copy && i < length; i += rs_max(bytes, 1)) {
        bytes = rs_utf8_bytes(text + i, length - i);
        if (rs_utf8_is_plain(text + i, bytes)) {
            memcpy(to, text + i, bytes);
            to += bytes;
        } else {
            *to++ = '?';
        }
    }
    if (copy)
        *to = '\0';
    return copy;
}

/* A site's numbers, and how many in `value`. */
static char *frames_copy(const void *text, size_t length)
{
    char *copy = malloc(length ? length : 1);

    if (copy)
        memcpy(copy, text, length);
    return copy;
}

static size_t room_for(uint32_t count)
{
    size_t room = 64;

    while (room < count)
        room *= 2;
    return count ? room : 0;
}

static bool make_room(struct recording_items *items, uint32_t number)
{
    size_t before = room_for(items->count), room = room_for(number);
    struct recording_item *grown;

    if (room > before) {
        grown = reallocarray(items->items, room, sizeof(*grown));
        if (!grown)
            return false;
        memset(grown + before, 0, (room - before) * sizeof(*grown));
        items->items = grown;
    }
    items->count = (uint32_t)rs_max(items->count, number);
    return true;
}

void recording_define(struct recording *recording, struct recording_items *items, uint32_t number,
                      uint64_t value, const void *text, size_t text_bytes)
{
    bool is_site = items == &recording->sites;
    struct recording_item *item;

    if (number == 0 || number > NUMBERS_MAX) {
        recording_note_damage(recording, "a definition has the number %u", number);
        return;
    }
    if (!make_room(items, number)) {
        recording->is_short = true;
        return;
    }
    item = &items->items[number - 1];
    if (item->text)
        return; /* the first one counts */
    item->value = is_site ? text_bytes / sizeof(uint32_t) : value;
    item->text = is_site ? frames_copy(text, text_bytes) : plain_copy(text, text_bytes);
    recording->is_short = recording->is_short || !item->text;
}

const struct recording_item *recording_item(const struct recording_items *items, uint32_t number)
{
    return number && number <= items->count && items->items[number - 1].text
               ? &items->items[number - 1]
               : NULL;
}

struct recording_site recording_site(const struct recording *recording, uint32_t number)
{
    const struct recording_item *item = recording_item(&recording->sites, number);

    return item ? (struct recording_site){(const uint32_t *)(const void *)item->text,
                                          (uint32_t)item->value}
                : (struct recording_site){NULL, 0};
}

const char *recording_name(const struct recording *recording, uint32_t number)
{
    const struct recording_item *item = recording_item(&recording->names, number);

    return item ? item->text : "";
}

int recording_device(const struct recording *recording, const struct recording_event *event)
{
    const struct recording_item *item = recording_item(&recording->stacks, event->stack);
    uint32_t device = item ? (uint32_t)item->value : 0;

    return device < 1024 ? (int)device : 0;
}

uint32_t recording_thread(const struct recording *recording, const struct recording_event *event)
{
    const struct recording_item *item = recording_item(&recording->threads, event->thread);

    return item ? (uint32_t)item->value : 0;
}

uint64_t recording_stream(const struct recording *recording, const struct recording_event *event)
{
    const struct recording_item *item;

    if (event->stream < RS_RECORDING_STREAMS_FIXED)
        return event->stream;
    item = recording_item(&recording->streams, event->stream - RS_RECORDING_STREAMS_FIXED + 1u);
    return item ? item->value : 0;
}

/* ---- the order of events ---- */

static int compare(const void *left, const void *right)
{
    const struct recording_event *a = left, *b = right;

    return a->ns < b->ns ? -1 : a->ns > b->ns;
}

static void sort(struct recording *recording)
{
    for (size_t i = 1; i < recording->count; i++)
        if (recording->events[i].ns < recording->events[i - 1].ns) {
            qsort(recording->events, recording->count, sizeof(*recording->events), compare);
            return;
        }
}

/* Live blocks by address: open addressing, in which a gone block's slot stays taken (DEAD) until
 * the table is made anew. */
struct live {
    uint32_t *slots; /* index of the allocation + 2; 0: empty, 1: dead */
    size_t slot_count, used;
};

enum { EMPTY, DEAD, FIRST };

static size_t hash(uint64_t address)
{
    return (size_t)(address * 0x9e3779b97f4a7c15u >> 20);
}

static uint32_t *live_find(const struct recording *recording, const struct live *live,
                           uint64_t address)
{
    for (size_t at = hash(address) % live->slot_count; live->slots[at] != EMPTY;
         at = (at + 1) % live->slot_count)
        if (live->slots[at] >= FIRST &&
            recording->events[live->slots[at] - FIRST].address == address)
            return &live->slots[at];
    return NULL;
}

static void live_put(const struct recording *recording, struct live *live, uint32_t event)
{
    size_t at = hash(recording->events[event].address) % live->slot_count;

    while (live->slots[at] >= FIRST)
        at = (at + 1) % live->slot_count;
    live->used += live->slots[at] == EMPTY;
    live->slots[at] = event + FIRST;
}

static bool live_make(const struct recording *recording, struct live *live)
{
    struct live before = *live;
    size_t count = 0;

    for (size_t i = 0; i < before.slot_count; i++)
        count += before.slots[i] >= FIRST;
    live->slot_count = rs_max(4 * count, 1 << 12);
    live->used = 0;
    live->slots = calloc(live->slot_count, sizeof(*live->slots));
    for (size_t i = 0; live->slots && i < before.slot_count; i++)
        if (before.slots[i] >= FIRST)
            live_put(recording, live, before.slots[i] - FIRST);
    free(before.slots);
    return live->slots;
}

/* A free that the processor's counter put behind the allocation that has its block (at most some
 * 10 ns too late; recording/clock.h): moves it before. */
static bool pull_free(struct recording *recording, size_t at)
{
    enum { EVENTS = 64, NS = 1000 };
    struct recording_event *events = recording->events, moved;

    for (size_t i = at + 1; i < recording->count && i < at + EVENTS; i++) {
        if (events[i].ns - events[at].ns > NS)
            return false;
        if (events[i].address != events[at].address)
            continue;
        if (events[i].kind != RS_RECORDING_FREE || events[i].thread == events[at].thread)
            return false;
        moved = events[i];
        moved.ns = events[at].ns;
        memmove(events + at + 1, events + at, (i - at) * sizeof(*events));
        events[at] = moved;
        return true;
    }
    return false;
}

static bool end_implied(struct recording *recording, uint32_t *slot, size_t end)
{
    size_t count = recording->implied_count;

    if ((count & (count - 1)) == 0) {
        struct recording_implied *grown =
            reallocarray(recording->implied, count ? 2 * count : 1, sizeof(*grown));
        if (!grown)
            return false;
        recording->implied = grown;
    }
    recording->implied[recording->implied_count++] =
        (struct recording_implied){*slot - FIRST, (uint32_t)end};
    *slot = DEAD;
    return true;
}

static bool end_stack(struct recording *recording, struct live *live, size_t end)
{
    for (size_t i = 0; i < live->slot_count; i++)
        if (live->slots[i] >= FIRST &&
            recording->events[live->slots[i] - FIRST].stack == recording->events[end].stack &&
            !end_implied(recording, &live->slots[i], end))
            return false;
    return true;
}

static void end_by_free(struct recording *recording, uint32_t *slot, size_t at)
{
    struct recording_event *event = &recording->events[at];

    event->partner = *slot - FIRST;
    event->size_bytes = recording->events[event->partner].size_bytes;
    recording->events[event->partner].partner = (uint32_t)at;
    *slot = DEAD;
}

static bool pair(struct recording *recording, struct live *live, size_t at)
{
    struct recording_event *event = &recording->events[at];
    uint32_t *slot = event->address ? live_find(recording, live, event->address) : NULL;

    if (event->kind == RS_RECORDING_ALLOCATE && slot)
        (void)pull_free(recording, at);
    if (event->kind == RS_RECORDING_ALLOCATE) {
        if (slot && !end_implied(recording, slot, at))
            return false;
        live_put(recording, live, (uint32_t)at);
    } else if (event->kind == RS_RECORDING_FREE && slot) {
        end_by_free(recording, slot, at);
    } else if (event->kind == RS_RECORDING_STACK_GONE) {
        return end_stack(recording, live, at);
    }
    return true;
}

void recording_finish(struct recording *recording)
{
    struct live live = {.slots = NULL};
    bool good = true;

    sort(recording);
    for (size_t i = 0; good && i < recording->count; i++)
        good = (2 * live.used < live.slot_count || live_make(recording, &live)) &&
               pair(recording, &live, i);
    recording->is_short = recording->is_short || !good;
    free(live.slots);
}

/* ---- walking ---- */

static bool is_early(const struct recording_event *event)
{
    return event->kind == RS_RECORDING_FREE && event->partner == RECORDING_NO_EVENT &&
           event->address && event->size_bytes;
}

bool recording_walk(const struct recording *recording,
                    bool (*visit)(void *data, enum recording_step step,
                                  const struct recording_event *block, uint64_t ns),
                    void *data)
{
    const struct recording_event *events = recording->events, *event;
    size_t implied = 0;
    bool good = true;

    for (size_t i = 0; i < recording->count && good; i++)
        if (is_early(&events[i]))
            good = visit(data, RECORDING_TAKES, &events[i], 0);
    for (size_t i = 0; i < recording->count && good; i++) {
        event = &events[i];
        for (; good && implied < recording->implied_count && recording->implied[implied].end == i;
             implied++)
            good = visit(data, RECORDING_GIVES, &events[recording->implied[implied].allocation],
                         event->ns);
        if (good && event->kind == RS_RECORDING_ALLOCATE)
            good = visit(data, RECORDING_TAKES, event, event->ns);
        else if (good && event->kind == RS_RECORDING_FREE && event->partner != RECORDING_NO_EVENT)
            good = visit(data, RECORDING_GIVES, &events[event->partner], event->ns);
        else if (good)
            good =
                visit(data, is_early(event) ? RECORDING_GIVES : RECORDING_OTHER, event, event->ns);
    }
    return good;
}

/* ---- files ---- */

struct bytes {
    void *at;
    size_t length;
};

/* Into memory of the command's own: the file may be cut meanwhile, and a mapping would then raise
 * SIGBUS. */
static int read_all(const char *path, struct bytes *bytes)
{
    int fd = rs_file_open(path), error = 0;
    struct stat status;
    ssize_t got = 1;

    *bytes = (struct bytes){NULL, 0};
    if (fd < 0)
        return errno;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
        error = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    else if (status.st_size > 0) {
        bytes->at = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        error = bytes->at == MAP_FAILED ? ENOMEM : 0;
        bytes->at = error ? NULL : bytes->at;
    }
    while (!error && got > 0 && bytes->length < (size_t)status.st_size) {
        got = rs_file_read(fd, (char *)bytes->at + bytes->length,
                           rs_min((size_t)status.st_size - bytes->length, 1 << 26),
                           (off_t)bytes->length);
        error = got < 0 ? errno : 0;
        bytes->length += got > 0 ? (size_t)got : 0;
    }
    rs_file_close(fd);
    return error;
}

static void release(struct bytes *bytes, size_t mapped)
{
    if (bytes->at)
        munmap(bytes->at, mapped);
}

static bool parse_files(struct recording *recording, const char *path, const struct bytes *file)
{
    struct bytes part = {NULL, 0};
    char name[PATH_MAX];
    bool is_good;

    if (snprintf(name, sizeof(name), "%s.part", path) < (int)sizeof(name))
        (void)read_all(name, &part);
    is_good = recording_parse(recording, file->at, file->length, part.at, part.length);
    release(&part, part.length);
    if (!is_good)
        tool_say("%s: %s", path, recording->damage);
    else if (recording->damage[0])
        tool_say("%s: %s; what is whole is used", path, recording->damage);
    return is_good;
}

bool recording_open(struct recording *recording, const char *path)
{
    struct bytes file;
    int error = read_all(path, &file);
    bool is_good = false;

    if (error)
        tool_say("%s: %s", path, error == EINVAL ? "not a regular file" : strerror(error));
    else
        is_good = parse_files(recording, path, &file);
    release(&file, file.length);
    return is_good;
}

static void release_items(struct recording_items *items)
{
    for (uint32_t i = 0; i < items->count; i++)
        free(items->items[i].text);
    free(items->items);
}

void recording_close(struct recording *recording)
{
    release_items(&recording->threads);
    release_items(&recording->stacks);
    release_items(&recording->streams);
    release_items(&recording->frames);
    release_items(&recording->sites);
    release_items(&recording->names);
    free(recording->events);
    free(recording->implied);
    *recording = (struct recording){.count = 0};
}
