/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim leaks: lists what a process that runs holds, and who has allocated it. */
#include "base/arithmetic.h"
#include "context/block_counts.h"
#include "report/live.h"
#include "report/plain.h"
#include "tool/program/code.h"
#include "tool/publication.h"
#include "tool/steer.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAID_MAX = 32, FRAMES_MAX = 32, LINES_MAX = 32, TEXT_FRAMES_MAX = 12, SIZES_MAX = 4 };

/* Live blocks of one call site or library. */
struct holder {
    struct holder *next;
    unsigned kind; /* enum rs_kind */
    unsigned long long bytes, blocks;
    bool is_site;
    const char *name; /* of the library, in the list */
    const struct code_place *frames[FRAMES_MAX];
    const char *lines[LINES_MAX]; /* Python's, in the list */
    char *sizes[SIZES_MAX];
    unsigned frame_count, line_count, size_count;
    char *text; /* what is said of it */
};

struct list {
    struct holder *holders, **end;
    size_t count;
    unsigned long long bytes, blocks; /* all that is live */
    bool is_whole;
};

/* ---- the list ---- */

static struct holder *add(struct list *list, unsigned kind, unsigned long long bytes,
                          unsigned long long blocks)
{
    struct holder *holder = calloc(1, sizeof(*holder));

    if (!holder)
        return NULL;
    *holder = (struct holder){.kind = kind < RS_KINDS ? kind : 0, .bytes = bytes, .blocks = blocks};
    *list->end = holder;
    list->end = &holder->next;
    list->count++;
    return holder;
}

static void read_frames(struct holder *holder, const char *text, struct code *code)
{
    char *end;

    for (; holder->frame_count < FRAMES_MAX; text = end) {
        uintptr_t address = strtoull(text, &end, 16);
        if (end == text)
            break;
        holder->frames[holder->frame_count] = code ? code_ask(code, address) : NULL;
        if (!holder->frames[holder->frame_count])
            break;
        holder->frame_count++;
    }
}

static void read_size(struct holder *holder, const char *text)
{
    unsigned long long bytes, blocks, smallest, largest;
    char all[RS_SIZE_TEXT_BYTES], least[RS_SIZE_TEXT_BYTES], most[RS_SIZE_TEXT_BYTES];
    char line[4 * RS_SIZE_TEXT_BYTES + 32];

    if (holder->size_count == SIZES_MAX ||
        sscanf(text, "%llu %llu %llu %llu", &bytes, &blocks, &smallest, &largest) != 4)
        return;
    rs_size_format_short(smallest, least);
    rs_size_format_short(largest, most);
    snprintf(line, sizeof(line), "%s in %llu block%s of %s%s%s", rs_size_format_short(bytes, all),
             blocks, blocks == 1 ? "" : "s", least, smallest == largest ? "" : " to ",
             smallest == largest ? "" : most);
    holder->sizes[holder->size_count] = strdup(line);
    holder->size_count += holder->sizes[holder->size_count] != NULL;
}

/* One line of the list (report/live.h); the process may have written anything. */
static struct holder *read_line(struct list *list, struct holder *last, char *line,
                                struct code *code)
{
    unsigned kind;
    unsigned long long bytes, blocks;
    int at = 0;

    rs_plain_make(line);
    if (sscanf(line, "site %u %llu %llu%n", &kind, &bytes, &blocks, &at) == 3 && at) {
        last = add(list, kind, bytes, blocks);
        if (last)
            last->is_site = true;
        if (last)
            read_frames(last, line + at, code);
    } else if (sscanf(line, "library %u %llu %llu %n", &kind, &bytes, &blocks, &at) == 3 && at) {
        last = add(list, kind, bytes, blocks);
        if (last)
            last->name = line + at;
    } else if (sscanf(line, "more %u %llu %llu", &kind, &bytes, &blocks) == 3) {
        last = add(list, kind, bytes, blocks);
    } else if (strncmp(line, "line ", 5) == 0 && last && last->line_count < LINES_MAX) {
        last->lines[last->line_count++] = line + 5;
    } else if (strncmp(line, "size ", 5) == 0 && last) {
        read_size(last, line + 5);
    } else if (strcmp(line, "end") == 0) {
        list->is_whole = true;
    }
    return last;
}

static void read_list(struct list *list, char *text, struct code *code)
{
    struct holder *last = NULL;

    *list = (struct list){.end = &list->holders};
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        last = read_line(list, last, line, code);
    }
    for (const struct holder *holder = list->holders; holder; holder = holder->next) {
        list->bytes += holder->bytes;
        list->blocks += holder->blocks;
    }
}

/* ---- what is said of a holder ---- */

static bool is_of(const struct code_place *frame, const char *library)
{
    return strncmp(frame->symbol.object, library, strlen(library)) == 0;
}

/* As trace/site.h has it: without the CUDA runtime and rmmshim at the top and, where Python's own
 * lines say more, without the interpreter and what has called it. */
static bool is_hidden(const struct holder *holder, unsigned i, bool *is_below)
{
    const struct code_place *frame = holder->frames[i];

    if (!holder->line_count)
        return false;
    if (is_of(frame, "python") || is_of(frame, "libpython"))
        return *is_below = true;
    return *is_below &&
           (is_of(frame, "libc.so") ||
            (i + 1 == holder->frame_count && strcmp(frame->symbol.function, "_start") == 0));
}

static void say_frame(FILE *to, const struct code_place *frame)
{
    const struct rs_symbol *symbol = &frame->symbol;

    fprintf(to, "    ");
    if (symbol->function[0] && frame->line)
        fprintf(to, "%s at %s (%s)\n", symbol->function, frame->line, symbol->object);
    else if (symbol->function[0])
        fprintf(to, "%s+%#zx (%s+%#zx)\n", symbol->function, (size_t)symbol->function_offset,
                symbol->object, (size_t)symbol->object_offset);
    else
        fprintf(to, "%s+%#zx\n", symbol->object, (size_t)symbol->object_offset);
}

static void say_site(FILE *to, const struct holder *holder)
{
    unsigned i = 0, said = 0;
    bool is_below = false;

    for (unsigned line = 0; line < holder->line_count; line++)
        fprintf(to, "    %s\n", holder->lines[line]);
    while (i < holder->frame_count &&
           (is_of(holder->frames[i], "libcudart") || is_of(holder->frames[i], "librmmshim")))
        i++;
    for (i = i == holder->frame_count ? 0 : i; i < holder->frame_count; i++) {
        if (is_hidden(holder, i, &is_below))
            continue;
        if (said++ == TEXT_FRAMES_MAX) {
            fprintf(to, "    ...\n");
            return;
        }
        say_frame(to, holder->frames[i]);
    }
}

/* The text after "1.00 GiB in 10 blocks". */
static char *describe(const struct holder *holder)
{
    char *text = NULL;
    size_t length;
    FILE *to = open_memstream(&text, &length);

    if (!to)
        return NULL;
    if (holder->size_count == 1)
        fprintf(to, "%s", strstr(holder->sizes[0], " of "));
    fprintf(to, "%s", rs_kind_texts[holder->kind]);
    if (holder->is_site && (holder->frame_count || holder->line_count)) {
        fprintf(to, ", allocated at\n");
        say_site(to, holder);
    } else if (!holder->name || strcmp(holder->name, "?") == 0) {
        fprintf(to, ", it is not known where\n");
    } else {
        fprintf(to, ", allocated by %s\n", holder->name);
        for (unsigned i = 0; holder->size_count > 1 && i < holder->size_count; i++)
            fprintf(to, "    %s\n", holder->sizes[i]);
    }
    fclose(to);
    return text;
}

/* Holders of which the same is said are one: a runtime reaches the library by two ways. */
static void merge(struct holder *holder)
{
    struct holder **at = &holder->next;

    while (*at) {
        struct holder *other = *at;
        if (!holder->text || !other->text || !holder->is_site ||
            strcmp(holder->text, other->text) != 0) {
            at = &other->next;
            continue;
        }
        holder->bytes += other->bytes;
        holder->blocks += other->blocks;
        other->bytes = other->blocks = 0;
        at = &other->next;
    }
}

static int by_bytes(const void *one, const void *other)
{
    const struct holder *a = *(const struct holder *const *)one;
    const struct holder *b = *(const struct holder *const *)other;

    return (a->bytes < b->bytes) - (a->bytes > b->bytes);
}

static void say_amount(const char *before, unsigned long long bytes, unsigned long long blocks)
{
    char text[RS_SIZE_TEXT_BYTES];

    printf("%s%s in %llu block%s", before, rs_size_format_short(bytes, text), blocks,
           blocks == 1 ? "" : "s");
}

static void say_holders(const struct list *list)
{
    const struct holder **order = calloc(list->count + 1, sizeof(struct holder *));
    unsigned long long bytes = 0, blocks = 0;
    size_t count = 0;

    for (struct holder *holder = list->holders; holder; holder = holder->next)
        holder->text = describe(holder);
    for (struct holder *holder = list->holders; holder && order; holder = holder->next) {
        merge(holder);
        if (holder->blocks)
            order[count++] = holder;
    }
    if (order)
        qsort(order, count, sizeof(struct holder *), by_bytes);
    for (size_t i = 0; i < count; i++)
        if (i < SAID_MAX) {
            say_amount("  ", order[i]->bytes, order[i]->blocks);
            printf("%s", order[i]->text ? order[i]->text : "\n");
        } else {
            bytes += order[i]->bytes;
            blocks += order[i]->blocks;
        }
    if (blocks) {
        say_amount("  ", bytes, blocks);
        printf(" of %zu more\n", count - SAID_MAX);
    }
    free(order);
}

/* ---- a device ---- */

/* Memory that no stack serves, from the account's counters in the page. */
static void say_outside(const struct steer_target *target, int device)
{
    static const char *const ways[] = {"driver", "managed",        "arrays",
                                       "vmm",    "stream_ordered", "graphs"};
    struct publication *page = calloc(1, sizeof(*page));
    char text[RS_SIZE_TEXT_BYTES];

    if (page && publication_read(page, target->process.file))
        for (size_t i = 0; i < page->count; i++)
            for (size_t way = 0; way < RS_ARRAY_LENGTH(ways); way++) {
                uint64_t bytes =
                    page->stacks[i].device == device
                        ? rs_report_value(&page->stacks[i].report, "account", ways[way], 0)
                        : 0;
                if (bytes)
                    printf("  %s outside of rmmshim's stacks: %s\n",
                           rs_size_format_short(bytes, text), ways[way]);
            }
    if (page)
        publication_release(page);
    free(page);
}

static void free_list(struct list *list)
{
    for (struct holder *holder = list->holders, *next; holder; holder = next) {
        next = holder->next;
        for (unsigned i = 0; i < holder->size_count; i++)
            free(holder->sizes[i]);
        free(holder->text);
        free(holder);
    }
}

static void say_device(const struct steer_target *target, int device, char *text)
{
    struct code *code = code_open(target->process.number);
    struct list list;

    read_list(&list, text, code);
    if (code)
        code_find_lines(code);
    printf("%s [%d] device %d: ", target->program, target->process.number, device);
    if (list.blocks) {
        say_amount("holds ", list.bytes, list.blocks);
        printf("\n");
    } else {
        printf("no block is live\n");
    }
    say_holders(&list);
    if (!list.is_whole)
        printf("  the list is not whole\n");
    say_outside(target, device);
    free_list(&list);
    if (code)
        code_close(code);
}

static int ask(const struct steer_target *target, int device, uint64_t wait_ns)
{
    struct rs_commands command = {.kind = RS_COMMAND_LIST, .device = device};
    char *list = NULL;
    int code = steer_list(target, &command, wait_ns, &list);

    if (code == TOOL_OK && list)
        say_device(target, device, list);
    else if (code == TOOL_OK)
        tool_say("process %d: its list makes no sense", target->process.number);
    if (code == TOOL_OK && !list)
        code = TOOL_FINDING;
    free(list);
    steer_end_if_interrupted();
    return code;
}

static int run(char **arguments)
{
    struct steer_target target;
    struct steer_words words;
    int code = TOOL_OK;

    if (!steer_parse(arguments, NULL, &words))
        return TOOL_USAGE;
    if (words.value) {
        tool_say("'%s' is one word too many", words.value);
        return TOOL_USAGE;
    }
    if (!steer_open(words.number, words.device, &target, &code))
        return code;
    for (int i = 0; i < target.device_count && code == TOOL_OK; i++)
        code = ask(&target, target.devices[i], words.wait_ns);
    process_close(&target.process);
    return code;
}

static void help(void)
{
    puts("Lists the blocks that the process has allocated and not freed, the most bytes first: by\n"
         "call site with RMM_TRACKING, else by library and size.\n\n"
         "  --device N      one device; without it each that the process uses\n"
         "  --wait SECONDS  how long to wait for the process (2)\n\n"
         "The process makes the list at its next call that allocates, frees, synchronises or asks\n"
         "for free memory; with RMM_CONTROL=thread also between such calls. Functions of C++ are\n"
         "demangled where libstdc++ is installed; file and line need debug information, and\n"
         "addr2line.\n\n"
         "exit codes: 0 it is listed; 1 it cannot be; 2 wrong usage; 3 the process did not answer\n"
         "in time\n\n"
         "example: rmmshim leaks 4711");
}

const struct tool_command tool_leaks = {
    .name = "leaks",
    .arguments = "PID [--device N] [--wait SECONDS]",
    .summary = "Lists what a process that runs has not freed, and who allocated it",
    .run = run,
    .help = help,
};
