/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim leaks: lists the memory that a running process holds, and the code that allocated it. */
#include "base/check.h"
#include "base/hash_table.h"
#include "context/block_counts.h"
#include "context/limit.h"
#include "report/document.h"
#include "report/holders.h"
#include "report/plain.h"
#include "report/report.h"
#include "tool/objects.h"
#include "tool/steer.h"
#include "tool/tool.h"
#include "trace/object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TEXT_MAX = 32,
    JSON_MAX = 256,
    FRAMES_MAX = 32,
    LINES_MAX = 32,
    SIZES_MAX = 64,
    ADDRESS_BYTES = 20,
    ASKED_AT_ONCE = 1024,
};

/* ---- code of another process ---- */

/* An address range of the process at which a part of an object is mapped. */
struct range {
    uintptr_t begin, end;
    uint64_t offset; /* the offset of the range's first byte in the file */
    char *path; /* a path by which this process can open the file, since the examined process may
                   have other mounts */
};

/* A call, known by its return address. */
struct place {
    struct place *next;
    uintptr_t return_address;
    const char *path; /* the object's path; NULL: no object holds the address */
    bool is_asked;    /* addr2line was asked for its line */
    struct rs_symbol symbol;
    char *line; /* "FILE:LINE", or NULL */
};

struct code {
    struct range *ranges;
    size_t range_count;
    struct place *places;
    struct rs_hash_table by_address; /* the same places; the key is place_key */
    bool is_own_users;
};

static void add_range(struct code *code, int process, const struct process_mapping *mapping)
{
    struct range *range;

    if (*mapping->name != '/')
        return;
    code->ranges = tool_grow(code->ranges, (code->range_count + 1) * sizeof(*range));
    range = &code->ranges[code->range_count];
    *range = (struct range){mapping->begin, mapping->end, mapping->offset, NULL};
    code->range_count += asprintf(&range->path, "/proc/%d/root%s", process, mapping->name) >= 0;
}

/* Lists the files that the process has mapped, with their addresses.  The list stays empty if this
 * user may not read the process's maps. */
static void read_code(struct code *code, int process)
{
    struct process_mapping mapping = {.line = NULL};
    char directory[PROCESS_PATH_BYTES];
    struct stat status;
    FILE *maps;

    snprintf(directory, sizeof(directory), "/proc/%d", process);
    code->is_own_users = stat(directory, &status) == 0 && status.st_uid == geteuid();
    maps = process_file(directory, "maps");
    while (process_next_mapping(maps, &mapping))
        add_range(code, process, &mapping);
}

static void free_code(struct code *code)
{
    for (struct place *place = code->places, *next; place; place = next) {
        next = place->next;
        free(place->line);
        free(place);
    }
    rs_hash_clear(&code->by_address);
    for (size_t i = 0; i < code->range_count; i++)
        free(code->ranges[i].path);
    free(code->ranges);
}

static void describe_place(const struct code *code, struct place *place)
{
    struct rs_symbol *symbol = &place->symbol;
    uintptr_t call = place->return_address - 1;
    const struct range *range = NULL;
    char *demangled;

    *symbol = (struct rs_symbol){.object = "?", .object_offset = call};
    for (size_t i = 0; i < code->range_count; i++)
        if (call >= code->ranges[i].begin && call < code->ranges[i].end)
            range = &code->ranges[i];
    if (!range)
        return;
    place->path = range->path;
    symbol->object_offset = elf_address_of(place->path, call - range->begin + range->offset);
    snprintf(symbol->object, sizeof(symbol->object), "%s", basename(place->path));
    rs_plain_make(symbol->object);
    rs_symbol_in_file(place->path, symbol->object_offset, symbol);
    demangled = elf_demangle(symbol->function);
    if (demangled)
        snprintf(symbol->function, sizeof(symbol->function), "%s", demangled);
    free(demangled);
    rs_plain_make(symbol->function);
}

/* Returns a key of `by_address`, never 0.  The highest bit is 0 in all addresses of code. */
static uint64_t place_key(uintptr_t return_address)
{
    return return_address | (uint64_t)1 << 63;
}

/* Returns the call that returns to the address, without its line, which find_lines fills in. */
static const struct place *place_returning_to(struct code *code, uintptr_t return_address)
{
    struct place *place = rs_hash_get(&code->by_address, place_key(return_address));

    if (place)
        return place;
    place = tool_grow(NULL, sizeof(*place));
    *place = (struct place){.next = code->places, .return_address = return_address};
    code->places = place;
    (void)rs_hash_put(&code->by_address, place_key(return_address), place);
    describe_place(code, place);
    return place;
}

/* Takes a line of addr2line: "/home/me/train.cc:41 (discriminator 2)"; "??:0" if it is not known.
 */
static void take_source_line(struct place *place, char *line)
{
    size_t length = strcspn(line, "\n");
    char *more;

    line[length] = '\0';
    more = strstr(line, " (");
    if (more)
        *more = '\0';
    length = strlen(line);
    if (line[0] == '?' || length < 2 || strcmp(line + length - 2, ":?") == 0 ||
        strcmp(line + length - 2, ":0") == 0)
        return;
    rs_plain_make(line);
    place->line = tool_format("%s", line);
}

/* Asks addr2line, if it is installed, about `first` and all other places in the same file. */
static void ask_of(struct place *first)
{
    static struct place *places[ASKED_AT_ONCE];
    static char addresses[ASKED_AT_ONCE][ADDRESS_BYTES];
    char *words[ASKED_AT_ONCE + 4] = {(char *)(uintptr_t) "addr2line", (char *)(uintptr_t) "-e",
                                      (char *)(uintptr_t)first->path};
    char *line = NULL;
    size_t count = 0, room = 0;
    FILE *answers = NULL;
    pid_t child;

    for (struct place *place = first; place && count < ASKED_AT_ONCE; place = place->next) {
        if (!place->path || place->is_asked || strcmp(place->path, first->path) != 0)
            continue;
        place->is_asked = true;
        snprintf(addresses[count], ADDRESS_BYTES, "%#zx", (size_t)place->symbol.object_offset);
        words[3 + count] = addresses[count];
        places[count++] = place;
    }
    if (elf_has_lines(first->path))
        answers = tool_start(words, environ, 0, &child);
    if (!answers)
        return;
    for (size_t i = 0; i < count && getline(&line, &room, answers) > 0; i++)
        take_source_line(places[i], line);
    free(line);
    tool_end(answers, child);
}

/* Finds the lines of all places.  For a process of another user, which only root can examine, it
 * does not start addr2line, which would read files of the other user's choosing. */
static void find_lines(const struct code *code)
{
    for (struct place *place = code->places; place; place = place->next)
        if (code->is_own_users && place->path && !place->is_asked)
            ask_of(place);
}

/* ---- the list ---- */

/* The blocks in use of one call site or library, or of all that the list does not name. */
struct holder {
    struct rs_library of; /* `of.name` is NULL if this is no library */
    struct rs_holder sizes[SIZES_MAX];
    const struct place *frames[FRAMES_MAX];
    bool is_said[FRAMES_MAX];
    const char *lines[LINES_MAX]; /* Python frames; the texts are in the list */
    unsigned frame_count, line_count;
};

struct list {
    struct holder **holders;
    size_t count;
    struct rs_block_sum live;
    bool is_whole;
};

static struct holder *new_holder(struct list *list, unsigned kind, size_t bytes, size_t blocks)
{
    struct holder *holder = tool_grow(NULL, sizeof(*holder));

    memset(holder, 0, sizeof(*holder));
    holder->of.kind = kind < RS_KINDS ? (enum rs_kind)kind : RS_KIND_DEVICE;
    holder->of.amount = (struct rs_block_sum){bytes, blocks};
    holder->of.sizes = holder->sizes;
    rs_block_sum_add(&list->live, holder->of.amount);
    list->holders = tool_grow(list->holders, (list->count + 1) * sizeof(struct holder *));
    return list->holders[list->count++] = holder;
}

static void read_frames(struct holder *holder, const char *text, struct code *code)
{
    char *end;

    for (; holder->frame_count < FRAMES_MAX && code->range_count; text = end) {
        uintptr_t address = strtoull(text, &end, 16);
        if (end == text)
            break;
        holder->frames[holder->frame_count++] = place_returning_to(code, address);
    }
}

static void read_size(struct holder *holder, const char *text)
{
    struct rs_holder size = {.object = 0};

    if (holder->of.size_count < SIZES_MAX &&
        sscanf(text, "%zu %zu %zu %zu", &size.amount.bytes, &size.amount.blocks,
               &size.smallest_bytes, &size.largest_bytes) == 4)
        holder->sizes[holder->of.size_count++] = size;
}

/* Reads one line of the list (report/report.h), which may contain anything, as the process has
 * written it.  Returns the holder to which the next lines belong. */
static struct holder *read_list_line(struct list *list, struct holder *last, char *line,
                                     struct code *code)
{
    unsigned kind;
    size_t bytes, blocks;
    int at = 0;

    rs_plain_make(line);
    if (sscanf(line, "site %u %zu %zu%n", &kind, &bytes, &blocks, &at) == 3 && at) {
        last = new_holder(list, kind, bytes, blocks);
        read_frames(last, line + at, code);
    } else if (sscanf(line, "library %u %zu %zu %n", &kind, &bytes, &blocks, &at) == 3 && at) {
        last = new_holder(list, kind, bytes, blocks);
        last->of.name = line + at;
    } else if (sscanf(line, "more %u %zu %zu", &kind, &bytes, &blocks) == 3) {
        last = new_holder(list, kind, bytes, blocks);
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

    *list = (struct list){.count = 0};
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        last = read_list_line(list, last, line, code);
    }
}

/* ---- what is said of a holder ---- */

static bool is_frame_of(const struct place *frame, const char *library)
{
    return tool_begins(frame->symbol.object, library);
}

/* True for frames that are left out since Python's own lines say more: frames of the interpreter,
 * and below it those of the C library and _start.  Sets *is_below at the first frame of the
 * interpreter. */
static bool is_hidden(const struct holder *holder, unsigned i, bool *is_below)
{
    const struct place *frame = holder->frames[i];

    if (!holder->line_count)
        return false;
    if (is_frame_of(frame, "python") || is_frame_of(frame, "libpython"))
        return *is_below = true;
    return *is_below &&
           (is_frame_of(frame, "libc.so") ||
            (i + 1 == holder->frame_count && strcmp(frame->symbol.function, "_start") == 0));
}

/* Chooses the frames to show, as trace/call_site.h describes: without the CUDA runtime and rmmshim
 * at the top, and without those for which is_hidden is true. */
static void choose_frames(struct holder *holder)
{
    bool is_below = false;
    unsigned first = 0;

    while (first < holder->frame_count && (is_frame_of(holder->frames[first], "libcudart") ||
                                           is_frame_of(holder->frames[first], "librmmshim")))
        first++;
    if (first < holder->frame_count) {
        holder->frame_count -= first;
        memmove(holder->frames, holder->frames + first,
                holder->frame_count * sizeof(struct place *));
    }
    for (unsigned i = 0; i < holder->frame_count; i++)
        holder->is_said[i] = !is_hidden(holder, i, &is_below);
}

static bool is_same_frame(const struct place *a, const struct place *b)
{
    return strcmp(a->symbol.function, b->symbol.function) == 0 &&
           strcmp(a->symbol.object, b->symbol.object) == 0 &&
           (a->line && b->line && a->symbol.function[0]
                ? strcmp(a->line, b->line) == 0
                : a->symbol.object_offset == b->symbol.object_offset);
}

static unsigned next_said(const struct holder *holder, unsigned i)
{
    while (i < holder->frame_count && !holder->is_said[i])
        i++;
    return i;
}

static bool is_said_the_same(const struct holder *a, const struct holder *b)
{
    unsigned i = next_said(a, 0), j = next_said(b, 0);

    if (a->of.name || b->of.name || a->of.kind != b->of.kind || a->line_count != b->line_count)
        return false;
    for (unsigned line = 0; line < a->line_count; line++)
        if (strcmp(a->lines[line], b->lines[line]) != 0)
            return false;
    while (i < a->frame_count && j < b->frame_count && is_same_frame(a->frames[i], b->frames[j])) {
        i = next_said(a, i + 1);
        j = next_said(b, j + 1);
    }
    return i == a->frame_count && j == b->frame_count;
}

/* Merges holders that print the same text: a CUDA runtime can call the library in two ways. */
static void merge(struct list *list)
{
    for (size_t i = 0; i < list->count; i++)
        for (size_t j = i + 1; j < list->count && list->holders[i]->of.amount.blocks; j++)
            if (is_said_the_same(list->holders[i], list->holders[j])) {
                rs_block_sum_add(&list->holders[i]->of.amount, list->holders[j]->of.amount);
                list->holders[j]->of.amount = (struct rs_block_sum){0, 0};
            }
}

static int by_bytes(const void *one, const void *other)
{
    const struct holder *a = *(const struct holder *const *)one;
    const struct holder *b = *(const struct holder *const *)other;

    return (a->of.amount.bytes < b->of.amount.bytes) - (a->of.amount.bytes > b->of.amount.bytes);
}

/* ---- the document ---- */

static struct rs_document document;

#define AMOUNT "{bytes} in {blocks} block{blocks||s}"

static void put_site(struct rs_node *list, const struct holder *holder)
{
    struct rs_node *site = rs_node_object(list, NULL);
    int said = 0;

    rs_node_word(site, "kind", rs_kind_names[holder->of.kind]);
    rs_node_block_sum(site, holder->of.amount);
    site->line = rs_document_format(
        &document, "  " AMOUNT "%s, %s\n", rs_kind_texts[holder->of.kind],
        holder->frame_count || holder->line_count ? "allocated at"
                                                  : "allocated at an unknown place");
    list = rs_node_list(site, "python");
    for (unsigned i = 0; i < holder->line_count; i++)
        rs_node_text(list, NULL, holder->lines[i])->line = "    {}\n";
    list = rs_node_list(site, "frames");
    for (unsigned i = 0; i < holder->frame_count; i++)
        rs_frame_fill(list, &holder->frames[i]->symbol, holder->frames[i]->line,
                      holder->is_said[i] ? said++ : -1);
}

static void put_holders(struct rs_node *device, struct list *list, size_t said_max)
{
    struct rs_node *holders = rs_node_list(device, "holders"), *more;
    struct rs_block_sum rest = {0, 0};
    size_t count = 0;

    for (size_t i = 0; i < list->count; i++)
        choose_frames(list->holders[i]);
    merge(list);
    if (list->count > 0)
        qsort(list->holders, list->count, sizeof(struct holder *), by_bytes);
    for (size_t i = 0; i < list->count; i++) {
        struct rs_library *of = &list->holders[i]->of;
        if (!of->amount.blocks)
            continue;
        if (++count > said_max) {
            rs_block_sum_add(&rest, of->amount);
        } else if (of->name) {
            if (strcmp(of->name, "?") == 0)
                of->name = NULL;
            rs_library_fill(holders, of, RS_KIND_DEVICE, true);
        } else {
            put_site(holders, list->holders[i]);
        }
    }
    more = rs_node_object(device, "more");
    more->line = "[  " AMOUNT ", from {holders} more place{holders||s}\n]";
    rs_node_count(more, "holders", count > said_max ? count - said_max : 0);
    rs_node_block_sum(more, rest);
}

/* Adds the memory that no stack serves, from the account's counters in the page. */
static void add_outside(struct rs_node *in, const struct steer_target *target, int device)
{
    static struct publication page;
    static const char *const ways[RS_PATHS] = {
        "allocated by the driver's cuMemAlloc",
        "managed memory",
        "CUDA arrays",
        "created with cuMemCreate",
        "the driver's pools of cudaMallocAsync",
        "memory nodes of CUDA graphs",
    };
    struct rs_node *outside = rs_node_object(in, "outside");
    uint64_t bytes[RS_PATHS] = {0};

    if (publication_read_all(&page, target->process.file))
        for (size_t i = 0; i < page.count; i++)
            for (int path = 0; path < RS_PATHS; path++)
                if (page.stacks[i].device == device)
                    bytes[path] +=
                        rs_report_value(&page.stacks[i].report, "account", rs_path_names[path], 0);
    for (int path = 0; path < RS_PATHS; path++)
        rs_node_bytes(outside, rs_path_names[path], bytes[path])->line = rs_document_format(
            &document, "[  {%s} not served by rmmshim: %s\n]", rs_path_names[path], ways[path]);
    publication_release(&page);
}

static void add_device_holders(struct rs_node *devices, const struct steer_target *target,
                               int number, char *text, bool is_json)
{
    struct code code = {.ranges = NULL};
    struct rs_node *device = rs_node_object(devices, NULL);
    struct list list;

    read_code(&code, target->process.number);
    read_list(&list, text, &code);
    find_lines(&code);
    rs_node_count(device, "device", (uint64_t)number);
    rs_node_block_sum(device, list.live);
    device->line = list.live.blocks ? "{program} [[{pid}]] device {device}: uses " AMOUNT "\n"
                                    : "{program} [[{pid}]] device {device}: no blocks in use\n";
    put_holders(device, &list, is_json ? JSON_MAX : TEXT_MAX);
    rs_node_flag(device, "complete", list.is_whole)->line =
        "[{complete!}  the end of the list is missing, so more blocks may be in use: run the "
        "command again\n]";
    add_outside(device, target, number);
    for (size_t i = 0; i < list.count; i++)
        free(list.holders[i]);
    free(list.holders);
    free_code(&code);
}

static struct rs_node *begin_leaks(const struct steer_target *target)
{
    rs_document_begin(&document);
    rs_node_count(&document.root, "schema", 1);
    rs_node_count(&document.root, "pid", (uint64_t)target->process.number);
    rs_node_text(&document.root, "program", target->program);
    return rs_node_list(&document.root, "devices");
}

static bool print(bool is_json)
{
    bool is_printed = tool_show(&document.root, is_json);

    rs_document_release(&document);
    return is_printed;
}

/* ---- the command ---- */

static int ask_device(const struct steer_target *target, int device, struct rs_node *devices,
                      bool is_json)
{
    struct rs_commands command = {.kind = RS_COMMAND_LIST, .device = device};
    char *list = NULL;
    int code = steer(target, &command, &list);

    if (code != TOOL_OK)
        return code;
    if (!list) {
        tool_say("process %d wrote an invalid list of its blocks; try again",
                 target->process.number);
        return TOOL_FINDING;
    }
    add_device_holders(devices, target, device, list, is_json);
    free(list);
    return TOOL_OK;
}

/* Asks about each device.  As text the answer is printed before the next device is asked about;
 * JSON is one object for all. */
static int ask_devices(const struct steer_target *target, bool is_json)
{
    struct rs_node *devices = NULL;
    int code = TOOL_OK;

    for (int i = 0; i < target->device_count && code == TOOL_OK; i++) {
        if (!devices)
            devices = begin_leaks(target);
        code = ask_device(target, target->devices[i], devices, is_json);
        if (!devices->first || (is_json && code == TOOL_OK && i + 1 < target->device_count))
            continue;
        if (!print(is_json))
            code = TOOL_FINDING;
        devices = NULL;
        steer_end_if_interrupted();
    }
    steer_end_if_interrupted();
    return code;
}

static int leaks_command(char **arguments)
{
    struct steer_target target;
    bool is_json = false;
    int code;

    if (!steer_parse(arguments, "--json", &is_json, &target))
        return TOOL_USAGE;
    code = steer_open(&target);
    if (code)
        return code;
    code = ask_devices(&target, is_json);
    process_close(&target.process);
    return code;
}

const struct tool_command tool_leaks = {
    .name = "leaks",
    .arguments = "PID [--json] [--device N] [--wait SECONDS]",
    .summary =
        "Lists the memory that a running process has not freed, and the code that allocated it",
    .run = leaks_command,
    .help =
        "Lists the blocks that the process has allocated and not freed, the most bytes first.\n"
        "They are summed by call site if the process was started with RMM_TRACKING, else by\n"
        "library and size.\n\n"
        "  --json          print a JSON object, with sizes in bytes\n" STEER_HELP_OPTIONS
        "The process makes the list at its next CUDA call that allocates, frees, synchronises or\n"
        "asks how much memory is free; if it was started with RMM_CONTROL=thread, between such\n"
        "calls too. Names of C++ functions are demangled where libstdc++ is installed; file names\n"
        "and line numbers need debug information, and addr2line.\n\n"
        "exit codes: 0 the memory is listed; 1 it cannot be listed; 2 wrong usage; 3 the process\n"
        "did not answer in time\n\n"
        "example: rmmshim leaks 4711",
};
