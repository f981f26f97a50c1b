/* SPDX-License-Identifier: Apache-2.0 */
#include "report/out_of_memory.h"

#include "base/clock.h"
#include "base/host_memory.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/size.h"
#include "config/mode.h"
#include "context/block.h"
#include "context/block_counts.h"
#include "context/limit.h"
#include "context/visit.h"
#include "driver/capture.h"
#include "driver/driver.h"
#include "report/gather.h"
#include "report/holders.h"
#include "report/libraries.h"
#include "report/neighbours.h"
#include "report/publish.h"
#include "trace/object.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum {
    TEXT_HOLDERS_MAX = 8,
    TEXT_SIZES_MAX = 4, /* of one library */
    JSON_HOLDERS_MAX = 256,
    KEEP_NS = 1000 * 1000 * 1000,
    KEEP_DIVISOR = 20,
};

/* Ways to the driver's memory that no stack serves: names of the account's counters. */
static const char *const ways[] = {"driver", "managed",        "arrays",
                                   "vmm",    "stream_ordered", "graphs"};

enum { WAYS = RS_ARRAY_LENGTH(ways) };

/* What is known of the refused request.  Bytes are of the device, all contexts, or of pinned
 * memory. */
struct refused {
    int device;
    enum rs_kind kind;
    size_t asked_bytes;
    const struct rs_call_site *site; /* NULL: not known */
    size_t limit_bytes;              /* 0: none */
    size_t job_limit_bytes, job_others_bytes;
    size_t live_bytes;    /* the program's blocks */
    size_t idle_bytes;    /* held by the stacks and not live, quarantine included */
    size_t waiting_bytes; /* quarantine */
    size_t largest_free_bytes;
    bool has_largest_free;          /* some stack tells it */
    size_t free_bytes, total_bytes; /* 0 in all: not known */
    size_t ways_bytes[WAYS];
    bool is_tracked; /* at least one stack remembers call sites: these are the holders */
};

/* Protects all that follows.  It is only tried: a thread that was refused never waits for another
 * one's report, which may be written to a pipe that this thread reads. */
static struct rs_mutex reporting = RS_MUTEX_INIT(RS_RANK_REPORT);
RS_RESET_IN_CHILD(report_out_of_memory, reporting);
static struct refused refused;
static struct rs_gathered all;
static struct rs_holders holders;
static struct rs_libraries libraries;
static struct rs_neighbours neighbours;
static bool is_written[RS_DEVICES_MAX][2]; /* by device; pinned memory's is the second */
static struct rs_page_file file = {.variable = "RMM_ON_OOM"};
static struct rs_page page;
static bool has_begun; /* the page */

#define PUT(...) rs_page_put(&page, __VA_ARGS__)

/* ---- gathering ---- */

/* Pinned memory is the host's; managed memory counts as the device's. */
static bool is_same_memory(enum rs_kind kind)
{
    return (kind == RS_KIND_PINNED) == (refused.kind == RS_KIND_PINNED);
}

static void look_at_stack(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    (void)data;
    if (stack->environment.device != refused.device || !is_same_memory(stack->kind))
        return;
    refused.idle_bytes += rs_mr_idle_bytes(mr);
    if (rs_holders_add(&holders, stack, mr, false))
        refused.is_tracked = true;
}

static void add_block(void *data, const struct rs_block_view *view)
{
    (void)data;
    if (view->device == refused.device && is_same_memory(view->kind))
        rs_libraries_add(&libraries, view);
}

static void add_counters(const struct rs_report *report)
{
    refused.live_bytes += rs_report_value(report, RS_PROGRAM, "live", 0);
    refused.waiting_bytes += rs_report_value(report, "reuse", "quarantined", 0);
    for (size_t i = 0; i < WAYS; i++)
        refused.ways_bytes[i] += rs_report_value(report, "account", ways[i], 0);
    for (size_t i = 0; i < report->count; i++) {
        const struct rs_counter *counter = &report->counters[i];
        if (strcmp(counter->name, "largest_free") != 0)
            continue;
        refused.has_largest_free = true;
        if (counter->value > refused.largest_free_bytes)
            refused.largest_free_bytes = counter->value;
    }
}

static void look_at_counters(void)
{
    rs_gather_all(&all);
    for (size_t i = 0; i < all.count; i++)
        if (all.stacks[i].device == refused.device && is_same_memory(all.stacks[i].kind))
            add_counters(&all.stacks[i].report);
}

static void look_at_memory(void)
{
    const struct rs_account *account = rs_limit_account(refused.device);

    if (refused.kind == RS_KIND_PINNED) {
        rs_host_memory(&refused.total_bytes, &refused.free_bytes);
        return;
    }
    refused.limit_bytes = account ? rs_account_limit(account) : 0;
    (void)rs_limit_job(refused.device, &refused.job_limit_bytes, &refused.job_others_bytes);
    if (!rs_limit_ask_free(refused.device, &refused.free_bytes) || !rs_driver.cuDeviceTotalMem_v2 ||
        rs_driver.cuDeviceTotalMem_v2(&refused.total_bytes, refused.device) != CUDA_SUCCESS)
        refused.free_bytes = refused.total_bytes = 0;
}

/* Memory of the host has no device. */
static void look_for_neighbours(void)
{
    CUuuid uuid;

    if (refused.kind != RS_KIND_PINNED && rs_driver.cuDeviceGetUuid_v2 &&
        rs_driver.cuDeviceGetUuid_v2(&uuid, refused.device) == CUDA_SUCCESS)
        rs_neighbours_find(&neighbours, (const unsigned char *)uuid.bytes);
}

/* False where what tracks does not remember call sites: libraries and sizes tell more. */
static bool has_sites(void)
{
    for (size_t i = 0; i < RS_HOLDERS_MAX; i++)
        if (holders.places[i].site)
            return true;
    return false;
}

/* `asks_who`: the call site is wanted even where no stack tracks. */
static void gather(int device, enum rs_kind kind, size_t size_bytes, bool asks_who)
{
    CUstreamCaptureMode mode = rs_capture_relax();

    memset(&holders, 0, sizeof(holders));
    memset(&libraries, 0, sizeof(libraries));
    memset(&neighbours, 0, sizeof(neighbours));
    refused = (struct refused){.device = device, .kind = kind, .asked_bytes = size_bytes};
    rs_context_each_stack(look_at_stack, NULL);
    look_at_counters();
    look_at_memory();
    rs_capture_restore(mode);
    refused.is_tracked = refused.is_tracked && has_sites();
    if (!refused.is_tracked) {
        rs_object_review();
        rs_block_each(add_block, NULL);
        rs_libraries_sort(&libraries);
    }
    look_for_neighbours();
    if (asks_who || refused.is_tracked)
        refused.site = rs_call_site_here();
}

/* What the stacks keep, without what waits for the GPU. */
static size_t cached_bytes(void)
{
    return refused.idle_bytes - (refused.waiting_bytes < refused.idle_bytes ? refused.waiting_bytes
                                                                            : refused.idle_bytes);
}

/* ---- as text ---- */

static const char *plural(size_t count)
{
    return count == 1 ? "" : "s";
}

static void put_size(const char *before, size_t bytes)
{
    char text[RS_SIZE_TEXT_BYTES];

    PUT("%s%s", before, rs_size_format_short(bytes, text));
}

static void put_limits(void)
{
    const char *between = "; ";

    if (refused.limit_bytes) {
        put_size("; limit ", refused.limit_bytes);
        between = ", ";
    }
    if (refused.job_limit_bytes) {
        put_size(", of the job's ", refused.job_limit_bytes);
        put_size(", where others have ", refused.job_others_bytes);
    }
    PUT("%slive", between);
    put_size(" ", refused.live_bytes);
    put_size(", cached ", cached_bytes());
    put_size(", waiting for the GPU ", refused.waiting_bytes);
}

static void put_text_head(void)
{
    PUT("rmmshim[%d]: out of memory on device %d%s: asked ", (int)getpid(), refused.device,
        rs_kind_texts[refused.kind]);
    put_size("", refused.asked_bytes);
    put_limits();
    if (refused.has_largest_free)
        put_size(", largest free range ", refused.largest_free_bytes);
    if (refused.total_bytes) {
        put_size(refused.kind == RS_KIND_PINNED ? "; the host has " : "; the device has ",
                 refused.free_bytes);
        put_size(" free of ", refused.total_bytes);
    }
    PUT("\n");
}

static void put_amount(size_t bytes, size_t blocks)
{
    put_size("  ", bytes);
    PUT(" in %zu block%s", blocks, plural(blocks));
}

static void put_text_rest(size_t bytes, size_t blocks)
{
    if (!blocks)
        return;
    put_amount(bytes, blocks);
    PUT(" more\n");
}

static void put_text_sizes(const struct rs_size_class *class)
{
    put_size(" of ", class->smallest_bytes);
    if (class->largest_bytes != class->smallest_bytes)
        put_size(" to ", class->largest_bytes);
}

static void put_text_library_classes(const struct rs_library *library)
{
    size_t bytes = 0, blocks = 0;

    for (size_t i = 0; i < library->class_count; i++) {
        const struct rs_size_class *class = &library->classes[i];
        if (i >= TEXT_SIZES_MAX) {
            bytes += class->bytes;
            blocks += class->blocks;
            continue;
        }
        PUT("  ");
        put_amount(class->bytes, class->blocks);
        put_text_sizes(class);
        PUT("\n");
    }
    if (blocks) {
        PUT("  ");
        put_text_rest(bytes, blocks);
    }
}

/* A library whose blocks are of one size class is one line. */
static void put_text_library(const struct rs_library *library)
{
    put_amount(library->bytes, library->blocks);
    if (library->class_count == 1)
        put_text_sizes(library->classes);
    PUT("%s", library->kind == refused.kind ? "" : rs_kind_texts[library->kind]);
    if (library->name)
        PUT(", allocated by %s\n", library->name);
    else
        PUT(", it is not known by which library\n");
    if (library->class_count > 1)
        put_text_library_classes(library);
}

static void put_text_libraries(void)
{
    size_t bytes = libraries.others_bytes, blocks = libraries.others_blocks;

    for (size_t i = 0; i < libraries.count; i++) {
        const struct rs_library *library = &libraries.libraries[i];
        if (i < TEXT_HOLDERS_MAX) {
            put_text_library(library);
        } else {
            bytes += library->bytes;
            blocks += library->blocks;
        }
    }
    put_text_rest(bytes, blocks);
}

static void put_text_sites(size_t count)
{
    size_t bytes = holders.others.bytes, blocks = holders.others.blocks;

    for (size_t i = 0; i < count; i++) {
        const struct rs_holder *holder = &holders.places[i];
        if (i >= TEXT_HOLDERS_MAX) {
            bytes += holder->bytes;
            blocks += holder->blocks;
            continue;
        }
        put_amount(holder->bytes, holder->blocks);
        PUT("%s%s\n", holder->kind == refused.kind ? "" : rs_kind_texts[holder->kind],
            holder->site ? ", allocated at" : ", it is not known where");
        if (holder->site)
            rs_site_put_text(&page, holder->site, holder->outside);
    }
    put_text_rest(bytes, blocks);
}

static void put_text_ways(void)
{
    for (size_t i = 0; i < WAYS; i++)
        if (refused.ways_bytes[i]) {
            put_size("  ", refused.ways_bytes[i]);
            PUT(" outside of rmmshim's stacks: %s\n", ways[i]);
        }
}

static void put_text_neighbours(void)
{
    for (size_t i = 0; i < neighbours.count; i++) {
        const struct rs_neighbour *neighbour = &neighbours.most[i];
        put_size("  ", neighbour->held_bytes);
        PUT(" held by process %d, %s\n", neighbour->process, neighbour->program);
    }
    if (neighbours.more_processes) {
        put_size("  ", neighbours.more_bytes);
        PUT(" held by %" PRIu64 " more process%s\n", neighbours.more_processes,
            neighbours.more_processes == 1 ? "" : "es");
    }
    if (neighbours.is_cut)
        PUT("  there was no time to look at all processes\n");
}

static void put_text(void)
{
    put_text_head();
    if (refused.site) {
        PUT("  asked at\n");
        rs_site_put_text(&page, refused.site, rs_site_frames_outside(refused.site));
    }
    if (refused.is_tracked)
        put_text_sites(rs_holders_sort(&holders));
    else
        put_text_libraries();
    put_text_ways();
    put_text_neighbours();
}

/* ---- as JSON ---- */

static void put_json_neighbours(void)
{
    PUT("\"others\":{\"processes\":[");
    for (size_t i = 0; i < neighbours.count; i++) {
        const struct rs_neighbour *neighbour = &neighbours.most[i];
        PUT("%s{\"pid\":%d,\"program\":\"", i ? "," : "", neighbour->process);
        rs_page_put_escaped(&page, neighbour->program, strlen(neighbour->program));
        PUT("\",\"held\":%" PRIu64 "}", neighbour->held_bytes);
    }
    PUT("],\"more\":{\"held\":%" PRIu64 ",\"processes\":%" PRIu64 "},\"complete\":%s},",
        neighbours.more_bytes, neighbours.more_processes, neighbours.is_cut ? "false" : "true");
}

static void put_json_head(void)
{
    PUT("{\"schema\":1,\"pid\":%d,\"program\":\"", (int)getpid());
    rs_page_put_escaped(&page, program_invocation_short_name,
                        strlen(program_invocation_short_name));
    PUT("\",\"device\":%d,\"kind\":\"%s\",\"asked\":%zu,\"limit\":%zu,", refused.device,
        rs_kind_names[refused.kind], refused.asked_bytes, refused.limit_bytes);
    PUT("\"job_limit\":%zu,\"job_others\":%zu,", refused.job_limit_bytes, refused.job_others_bytes);
    PUT("\"live\":%zu,\"cached\":%zu,\"waiting\":%zu,", refused.live_bytes, cached_bytes(),
        refused.waiting_bytes);
    if (refused.has_largest_free)
        PUT("\"largest_free\":%zu,", refused.largest_free_bytes);
    if (refused.total_bytes)
        PUT("\"free\":%zu,\"total\":%zu,", refused.free_bytes, refused.total_bytes);
    PUT("\"asked_at\":{");
    rs_site_put_json(&page, refused.site, refused.site ? rs_site_frames_outside(refused.site) : 0);
    PUT("},\"outside\":{");
    for (size_t i = 0; i < WAYS; i++)
        PUT("%s\"%s\":%zu", i ? "," : "", ways[i], refused.ways_bytes[i]);
    PUT("},");
    put_json_neighbours();
    PUT("\"by\":\"%s\",\"holders\":[", refused.is_tracked ? "call_site" : "library");
}

static void put_json_amount(size_t i, enum rs_kind kind, size_t bytes, size_t blocks)
{
    PUT("%s{\"kind\":\"%s\",\"bytes\":%zu,\"blocks\":%zu,", i ? "," : "", rs_kind_names[kind],
        bytes, blocks);
}

static void put_json_rest(size_t bytes, size_t blocks)
{
    PUT("],\"more\":{\"bytes\":%zu,\"blocks\":%zu}}\n", bytes, blocks);
}

static void put_json_library(size_t i, const struct rs_library *library)
{
    put_json_amount(i, library->kind, library->bytes, library->blocks);
    if (library->name) {
        PUT("\"library\":\"");
        rs_page_put_escaped(&page, library->name, strlen(library->name));
        PUT("\",");
    }
    PUT("\"sizes\":[");
    for (size_t j = 0; j < library->class_count; j++) {
        const struct rs_size_class *class = &library->classes[j];
        PUT("%s{\"bytes\":%zu,\"blocks\":%zu,\"smallest\":%zu,\"largest\":%zu}", j ? "," : "",
            class->bytes, class->blocks, class->smallest_bytes, class->largest_bytes);
    }
    PUT("]}");
}

static void put_json_libraries(void)
{
    size_t bytes = libraries.others_bytes, blocks = libraries.others_blocks;

    for (size_t i = 0; i < libraries.count; i++) {
        const struct rs_library *library = &libraries.libraries[i];
        if (i < JSON_HOLDERS_MAX) {
            put_json_library(i, library);
        } else {
            bytes += library->bytes;
            blocks += library->blocks;
        }
    }
    put_json_rest(bytes, blocks);
}

static void put_json_sites(size_t count)
{
    size_t bytes = holders.others.bytes, blocks = holders.others.blocks;

    for (size_t i = 0; i < count; i++) {
        const struct rs_holder *holder = &holders.places[i];
        if (i >= JSON_HOLDERS_MAX) {
            bytes += holder->bytes;
            blocks += holder->blocks;
            continue;
        }
        put_json_amount(i, holder->kind, holder->bytes, holder->blocks);
        rs_site_put_json(&page, holder->site, holder->outside);
        PUT("}");
    }
    put_json_rest(bytes, blocks);
}

/* One line, since a file may get one for each device. */
static void put_json(void)
{
    put_json_head();
    if (refused.is_tracked)
        put_json_sites(rs_holders_sort(&holders));
    else
        put_json_libraries();
}

/* ---- the whole ---- */

void rs_oom_claim(void)
{
    rs_page_claim(&file, rs_config.on_oom_path);
}

static void begin_page(void)
{
    if (!has_begun)
        rs_page_begin(&page, &file, rs_config.on_oom_path);
    has_begun = true;
}

static void write_at_once(int device, enum rs_kind kind, size_t size_bytes)
{
    bool *written = &is_written[device][kind == RS_KIND_PINNED];

    if (*written)
        return;
    *written = true;
    gather(device, kind, size_bytes, true);
    begin_page();
    if (rs_config.on_oom == RS_STATISTICS_JSON)
        put_json();
    else
        put_text();
    rs_page_flush(&page);
}

/* Nobody asked for the reports that are kept, and with 220,000 live blocks each took 48 ms: reports
 * take 1 s and then a twentieth of the time.  Refusals between two reports are left out. */
static bool may_keep(uint64_t begin_ns, uint64_t spent_ns)
{
    static uint64_t first_ns;

    if (!first_ns)
        first_ns = begin_ns;
    return spent_ns <= KEEP_NS + (begin_ns - first_ns) / KEEP_DIVISOR;
}

/* The first line of the page is said without its beginning, which rs_log puts there. */
static void keep(int device, enum rs_kind kind, size_t size_bytes)
{
    static uint64_t spent_ns;
    static bool said;
    uint64_t begin_ns = rs_clock_ns();
    const char *text;

    if (!may_keep(begin_ns, spent_ns))
        return;
    gather(device, kind, size_bytes, false);
    rs_page_begin_text(&page);
    put_text();
    rs_publish_refusal(page.text);
    text = strstr(page.text, ": ");
    if (text && rs_log_once(&said))
        rs_log("%.*s", (int)strcspn(text + 2, "\n"), text + 2);
    spent_ns += rs_clock_ns() - begin_ns;
}

RS_COLD void rs_oom_refused(int device, enum rs_kind kind, size_t size_bytes)
{
    bool at_once = rs_config.on_oom != RS_STATISTICS_NONE;
    int error = errno;

    if (device < 0 || device >= RS_DEVICES_MAX || !rs_mode_serving())
        return;
    rs_limit_note_refused(device, kind);
    if ((!at_once && (rs_config.on_oom_given || !rs_publish_is_held())))
        return;
    if (!rs_mutex_try_lock(&reporting))
        return;
    if (at_once)
        write_at_once(device, kind, size_bytes);
    else
        keep(device, kind, size_bytes);
    rs_mutex_unlock(&reporting);
    errno = error;
}

void rs_oom_end(void)
{
    if (rs_config.on_oom == RS_STATISTICS_NONE || !rs_mutex_lock_bounded(&reporting, "RMM_ON_OOM"))
        return;
    begin_page();
    rs_page_end(&page);
    rs_mutex_unlock(&reporting);
}
