/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's memory snapshot: the pickle that torch.cuda.memory._dump_snapshot writes, and that
 * torch/cuda/_memory_viz.py and https://pytorch.org/memory_viz read.
 *
 * Each device has a trace of allocations and frees. The page memory_viz draws only blocks that lie
 * in segments. So each block is a segment of its own here, allocated before the block and freed
 * after it. The list of segments has the blocks that are live at the end.
 *
 * Frequent words and the frames of call sites are put in the pickle's memo, and referred to by
 * their numbers there. They are items of a list of their own, since the page's reader knows few
 * ops, and none that drops a value. The reader takes numbers of at most 8 bytes, and long lists
 * only in pieces. */
#include "tool/export/export.h"
#include "tool/report/outputs.h"
#include "tool/tool.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 256, PIECE_ITEMS = 1000 };

/* What has been written of each device's trace. */
static struct trace {
    struct output output; /* its `to` is NULL until something is written */
    size_t count;
} traces[DEVICES];

/* clang-format off */
#define WORDS(X)                                                                                   \
    X(action) X(addr) X(size) X(stream) X(time_us) X(frames) X(alloc) X(oom) X(device_free)        \
    X(free_requested) X(free_completed) X(segment_alloc) X(segment_free) X(filename) X(line)       \
    X(name) X(device) X(address) X(requested_size) X(state) X(active_allocated) X(total_size)      \
    X(allocated_size) X(active_size) X(blocks) X(segment_type) X(large) X(segment_pool_id)         \
    X(is_expandable)
/* clang-format on */
#define WORD_NUMBER(word) WORD_##word,
#define WORD_TEXT(word)   #word,
enum word { WORDS(WORD_NUMBER) WORD_COUNT }; /* numbers in the memo; call sites follow */
static const char *const words[] = {WORDS(WORD_TEXT)};

/* Writes an op and its argument, a little-endian number. */
static void put_little(FILE *to, char op, uint64_t number, unsigned bytes)
{
    putc_unlocked(op, to);
    for (unsigned i = 0; i < bytes; i++)
        putc_unlocked((int)(number >> 8 * i & 0xff), to);
}

/* Numbers are signed; 8 bytes suffice, since no address has the highest bit. */
static void put_number(FILE *to, uint64_t number)
{
    if (number >> 31 == 0) {
        put_little(to, 'J', number, 4);
        return;
    }
    put_little(to, '\x8a', 8, 1);
    put_little(to, (char)number, number >> 8, 7);
}

static void put_text(FILE *to, const char *text, size_t most)
{
    size_t length = strnlen(text, most);

    put_little(to, 'X', length, 4);
    (void)fwrite(text, 1, length, to);
}

/* Writes the ops in `form`.  Four letters stand for an argument each: W for an enum word, T for a
 * text, N for a uint64_t, S for the number of a call site.  A dictionary is "}(", names and values,
 * "u"; a list "](", values, "e". */
static void put(FILE *to, const char *form, ...)
{
    va_list arguments;

    va_start(arguments, form);
    for (; *form; form++)
        if (*form == 'W')
            put_little(to, 'h', va_arg(arguments, unsigned), 1);
        else if (*form == 'S')
            put_little(to, 'j', (uint64_t)WORD_COUNT + va_arg(arguments, unsigned), 4);
        else if (*form == 'N')
            put_number(to, va_arg(arguments, uint64_t));
        else if (*form == 'T')
            put_text(to, va_arg(arguments, const char *), UINT32_MAX);
        else
            putc_unlocked(*form, to);
    va_end(arguments);
}

/* Counts an item of a list.  After every PIECE_ITEMS it begins the list's next piece. */
static void end_item(FILE *to, size_t *count)
{
    if (++*count % PIECE_ITEMS == 0)
        put(to, "e(");
}

/* ---- words and call sites ---- */

/* A frame of Python is "FILE:LINE in FUNCTION".  Others have no file, as in PyTorch's own
 * snapshots. */
static void put_frame(FILE *to, const char *text)
{
    const char *name = text, *file = "??", *digits;
    size_t file_bytes = strlen(file);
    uint64_t line = 0;

    for (const char *in = text; line == 0 && (in = strstr(in, " in ")); in++) {
        for (digits = in; digits > text && isdigit((unsigned char)digits[-1]);)
            digits--;
        if (digits == in || digits == text || digits[-1] != ':')
            continue;
        line = strtoull(digits, NULL, 10);
        file = text;
        file_bytes = (size_t)(digits - 1 - text);
        name = in + strlen(" in ");
    }
    put(to, "}(W", WORD_filename);
    put_text(to, file, file_bytes);
    put(to, "WNWTu", WORD_line, line, WORD_name, name);
}

static void put_shared(FILE *to, const struct analysis *analysis)
{
    size_t count = 0;

    put(to, "T](", "rmmshim");
    for (size_t i = 0; i < WORD_COUNT; i++) {
        put(to, "T", words[i]);
        put_little(to, 'r', i, 4);
    }
    for (size_t i = 0; i < analysis->sites.count; i++) {
        const uint32_t *frames = (const void *)analysis->sites.texts[i];
        put(to, "](");
        for (size_t j = 0; j < analysis->sites.lengths[i] / sizeof(*frames); j++)
            put_frame(to, analysis->frames.texts[frames[j]]);
        put(to, "e");
        put_little(to, 'r', WORD_COUNT + i, 4);
        end_item(to, &count);
    }
    put(to, "e");
}

/* ---- traces ---- */

static bool is_drawn(enum rs_kind memory, uint64_t size_bytes)
{
    return memory != RS_KIND_PINNED && size_bytes > 0; /* pinned memory is no device's */
}

static void put_entry(const struct run *run, enum word action,
                      const struct tool_recording_event *event)
{
    struct trace *trace = &traces[event->device % DEVICES];
    const struct series *series = analysis_series(run, event);
    bool is_oom = action == WORD_oom; /* the GPU's free memory is known only by a limit */
    uint64_t left = series && series->limit > series->held ? series->limit - series->held : 0;

    if (!trace->output.to)
        output_begin(&trace->output);
    put(trace->output.to, "}(WWWNWNWNWNWSu", WORD_action, action,
        is_oom ? WORD_device_free : WORD_addr, is_oom ? left : event->address, WORD_size,
        event->size_bytes, WORD_stream, event->stream, WORD_time_us,
        (run->facts.header.begun_real_ns + event->time_ns) / 1000, WORD_frames, event->site);
    end_item(trace->output.to, &trace->count);
}

static void see(struct analysis_observer *observer, const struct run *run,
                const struct tool_recording_event *event)
{
    static const enum word actions[RS_RECORDING_EVENT_KINDS][4] = {
        [RS_RECORDING_ALLOCATE] = {WORD_segment_alloc, WORD_alloc},
        [RS_RECORDING_DEALLOCATE] = {WORD_free_requested, WORD_free_completed, WORD_segment_free},
        [RS_RECORDING_REFUSED] = {WORD_oom},
    };

    (void)observer;
    if (is_drawn((enum rs_kind)event->memory, event->size_bytes))
        for (const enum word *action = actions[event->kind]; *action; action++)
            put_entry(run, *action, event);
}

static void put_traces(FILE *to)
{
    size_t count = 1;

    for (size_t i = 0; i < DEVICES; i++)
        count = traces[i].output.to ? i + 1 : count;
    for (struct trace *trace = traces; trace < traces + count; trace++) {
        put(to, "](");
        if (trace->output.to) {
            output_end(&trace->output);
            (void)fwrite(trace->output.bytes, 1, trace->output.length, to);
        }
        put(to, "e");
    }
}

/* ---- the whole ---- */

static void put_segments(FILE *to, const struct run *run)
{
    size_t count = 0;

    for (size_t i = 0; i < run->block_count; i++) {
        const struct block *block = &run->blocks[i];
        const struct series *series = &run->series[block->series];
        uint64_t size = block->size_bytes;
        if (block->end_ns != ANALYSIS_NEVER || !is_drawn(series->kind, size))
            continue;
        put(to, "}(WNWNWNWNWNWNWNWWWNN\x86W\x89WSW](}(WNWNWNWWWSueu", WORD_device,
            (uint64_t)series->device, WORD_address, block->address, WORD_stream, block->stream,
            WORD_total_size, size, WORD_allocated_size, size, WORD_active_size, size,
            WORD_requested_size, size, WORD_segment_type, WORD_large, WORD_segment_pool_id,
            (uint64_t)0, (uint64_t)0, WORD_is_expandable, WORD_frames, block->site, WORD_blocks,
            /* the block */ WORD_address, block->address, WORD_size, size, WORD_requested_size,
            size, WORD_state, WORD_active_allocated, WORD_frames, block->site);
        end_item(to, &count);
    }
}

static void end(struct export *export)
{
    FILE *to = export->to;

    put_shared(to, export->analysis);
    put(to, "T](", "segments");
    put_segments(to, export->analysis->runs[0]);
    put(to, "eT](", "device_traces");
    put_traces(to);
    put(to, "eu.");
}

const struct export_format export_pytorch = {true, "\x80\x02}(", see, end};
