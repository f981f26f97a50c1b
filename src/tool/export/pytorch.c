/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's memory snapshot, the pickle that torch.cuda.memory._dump_snapshot writes and
 * https://pytorch.org/memory_viz draws: per device a trace of allocations and frees with their
 * frames, and as segments the blocks that are live at the end, each one of its own.
 *
 * Written by pickle's protocol 2: what is read is text, numbers, lists and dictionaries alone. */
#include "recording/format.h"
#include "tool/export/export.h"

#include <stdlib.h>
#include <string.h>

struct pickle {
    FILE *file;
    const struct recording *recording;
    bool *is_site_put; /* by number: its frames are in the pickle's memo under that number */
    bool *is_live;     /* by event */
    int device;
};

static void put_bytes(struct pickle *pickle, const void *bytes, size_t length)
{
    (void)fwrite(bytes, 1, length, pickle->file);
}

static void put_op(struct pickle *pickle, char op)
{
    putc(op, pickle->file);
}

static void put_text(struct pickle *pickle, const char *text, size_t length)
{
    uint32_t bytes = (uint32_t)length;

    put_op(pickle, 'X');
    put_bytes(pickle, &bytes, sizeof(bytes));
    put_bytes(pickle, text, length);
}

static void put_word(struct pickle *pickle, const char *text)
{
    put_text(pickle, text, strlen(text));
}

/* LONG1 of nine bytes, as numbers have no sign here. */
static void put_number(struct pickle *pickle, uint64_t number)
{
    uint32_t small = (uint32_t)number;

    if (number < (uint64_t)1 << 31) {
        put_op(pickle, 'J');
        put_bytes(pickle, &small, sizeof(small));
        return;
    }
    put_bytes(pickle, "\x8a\x09", 2);
    put_bytes(pickle, &number, sizeof(number));
    put_op(pickle, '\0');
}

static void put_number_member(struct pickle *pickle, const char *name, uint64_t number)
{
    put_word(pickle, name);
    put_number(pickle, number);
}

static void put_text_member(struct pickle *pickle, const char *name, const char *text)
{
    put_word(pickle, name);
    put_word(pickle, text);
}

/* A dictionary: "}(" name value ... "u"; a list: "](" value ... "e". */

/* Python's frames have the form FILE:LINE in FUNCTION. */
static void put_frame(struct pickle *pickle, const struct recording_item *frame)
{
    const char *text = frame ? frame->text : "?", *in = strstr(text, " in "), *colon = NULL;
    uint64_t line = 0;

    for (const char *at = text; frame && frame->value == 1 && in && at < in; at++)
        colon = *at == ':' ? at : colon;
    put_bytes(pickle, "}(", 2);
    put_word(pickle, "filename");
    if (colon) {
        line = strtoull(colon + 1, NULL, 10);
        put_text(pickle, text, (size_t)(colon - text));
    } else {
        put_word(pickle, "??");
    }
    put_number_member(pickle, "line", line);
    put_text_member(pickle, "name", colon ? in + sizeof(" in ") - 1 : text);
    put_op(pickle, 'u');
}

/* Equal lists of frames are one object. */
static void put_frames(struct pickle *pickle, uint32_t number)
{
    struct recording_site site = recording_site(pickle->recording, number);
    uint32_t memo = site.count ? number : 0;

    put_word(pickle, "frames");
    if (pickle->is_site_put[memo]) {
        put_op(pickle, 'j'); /* LONG_BINGET */
        put_bytes(pickle, &memo, sizeof(memo));
        return;
    }
    pickle->is_site_put[memo] = true;
    put_bytes(pickle, "](", 2);
    for (uint32_t i = 0; i < site.count; i++)
        put_frame(pickle, recording_item(&pickle->recording->frames, site.frames[i]));
    put_bytes(pickle, "er", 2); /* LONG_BINPUT */
    put_bytes(pickle, &memo, sizeof(memo));
}

static uint32_t site_of(const struct recording_event *event)
{
    return event->kind == RS_RECORDING_FREE ? 0 : event->site_or_name;
}

static bool is_host(const struct pickle *pickle, const struct recording_event *event)
{
    const struct recording_item *stack = recording_item(&pickle->recording->stacks, event->stack);

    return stack && stack->value >> 32 == 2;
}

static bool is_of_device(const struct pickle *pickle, const struct recording_event *event)
{
    return recording_device(pickle->recording, event) == pickle->device && !is_host(pickle, event);
}

/* ---- traces ---- */

static void put_entry(struct pickle *pickle, const char *action,
                      const struct recording_event *event, uint64_t ns, uint32_t site)
{
    put_bytes(pickle, "}(", 2);
    put_text_member(pickle, "action", action);
    put_number_member(pickle, "addr", event->address);
    put_number_member(pickle, "size", event->size_bytes);
    put_number_member(pickle, "stream", recording_stream(pickle->recording, event));
    put_number_member(pickle, "time_us", (pickle->recording->begun_real_ns + ns) / 1000);
    put_frames(pickle, site);
    put_op(pickle, 'u');
}

/* The driver's memory is the device's until its free has returned, so both frees are one moment. */
static bool put_step(void *data, enum recording_step step, const struct recording_event *block,
                     uint64_t ns)
{
    struct pickle *pickle = data;

    if (!is_of_device(pickle, block))
        return true;
    if (step == RECORDING_TAKES) {
        put_entry(pickle, "alloc", block, ns, site_of(block));
    } else if (step == RECORDING_GIVES) {
        put_entry(pickle, "free_requested", block, ns, 0);
        put_entry(pickle, "free_completed", block, ns, 0);
    } else if (block->kind == RS_RECORDING_REFUSED) {
        put_entry(pickle, "oom", block, ns, site_of(block));
    }
    return true;
}

static bool note_live(void *data, enum recording_step step, const struct recording_event *block,
                      uint64_t ns)
{
    struct pickle *pickle = data;

    (void)ns;
    if (step != RECORDING_OTHER)
        pickle->is_live[block - pickle->recording->events] = step == RECORDING_TAKES;
    return true;
}

/* ---- segments ---- */

static void put_block(struct pickle *pickle, const struct recording_event *block)
{
    put_bytes(pickle, "}(", 2);
    put_number_member(pickle, "address", block->address);
    put_number_member(pickle, "size", block->size_bytes);
    put_number_member(pickle, "requested_size", block->size_bytes);
    put_text_member(pickle, "state", "active_allocated");
    put_frames(pickle, site_of(block));
    put_op(pickle, 'u');
}

static void put_segment(struct pickle *pickle, const struct recording_event *block)
{
    static const char *const sizes[] = {"total_size", "allocated_size", "active_size",
                                        "requested_size"};

    put_bytes(pickle, "}(", 2);
    put_number_member(pickle, "device", (uint64_t)recording_device(pickle->recording, block));
    put_number_member(pickle, "address", block->address);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++)
        put_number_member(pickle, sizes[i], block->size_bytes);
    put_number_member(pickle, "stream", recording_stream(pickle->recording, block));
    put_text_member(pickle, "segment_type", block->size_bytes > 1 << 20 ? "large" : "small");
    put_word(pickle, "segment_pool_id");
    put_number(pickle, 0);
    put_number(pickle, 0);
    put_op(pickle, '\x86'); /* TUPLE2 */
    put_word(pickle, "is_expandable");
    put_op(pickle, '\x89'); /* NEWFALSE */
    put_frames(pickle, site_of(block));
    put_word(pickle, "blocks");
    put_bytes(pickle, "](", 2);
    put_block(pickle, block);
    put_bytes(pickle, "eu", 2);
}

static int last_device(const struct recording *recording)
{
    int last = 0;

    for (size_t i = 0; i < recording->count; i++) {
        int device = recording_device(recording, &recording->events[i]);
        last = device > last ? device : last;
    }
    return last;
}

static void put_all(struct pickle *pickle)
{
    const struct recording *recording = pickle->recording;
    int last = last_device(recording);

    (void)recording_walk(recording, note_live, pickle);
    put_bytes(pickle, "\x80\x02}(", 4);
    put_word(pickle, "segments");
    put_bytes(pickle, "](", 2);
    for (size_t i = 0; i < recording->count; i++)
        if (pickle->is_live[i] && !is_host(pickle, &recording->events[i]))
            put_segment(pickle, &recording->events[i]);
    put_op(pickle, 'e');
    put_word(pickle, "device_traces");
    put_bytes(pickle, "](", 2);
    for (pickle->device = 0; pickle->device <= last; pickle->device++) {
        put_bytes(pickle, "](", 2);
        (void)recording_walk(recording, put_step, pickle);
        put_op(pickle, 'e');
    }
    put_bytes(pickle, "eu.", 3);
}

bool export_pytorch(const struct recording *recording, FILE *file)
{
    struct pickle pickle = {.file = file, .recording = recording};
    bool good;

    pickle.is_site_put = calloc(recording->sites.count + 1, sizeof(bool));
    pickle.is_live = calloc(recording->count + 1, sizeof(bool));
    good = pickle.is_site_put && pickle.is_live;
    if (good)
        put_all(&pickle);
    free(pickle.is_site_put);
    free(pickle.is_live);
    return good;
}
