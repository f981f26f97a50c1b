/* SPDX-License-Identifier: Apache-2.0 */
/* The table of resources, the defaults of their ops, and walks over a stack. */
#include "resource/resource.h"

#include "base/lock.h"
#include "resource/report.h"
#include "shared/published.h"

#include <errno.h>
#include <limits.h>

#include <string.h>
#include <strings.h>

const struct rs_mr_descriptor *const rs_mr_descriptors[] = {
#define RS_MR_ROW(name) &rs_mr_descriptor_##name,
    RS_MR_LIST(RS_MR_ROW)
#undef RS_MR_ROW
        NULL,
};

/* True when the word [begin, end) is `name`.  Case is ignored, and so is each '_' of `name` that
 * the word lacks: FixedSize, as in RMM's Python classes, is fixed_size. */
static bool is_called(const char *name, const char *begin, const char *end)
{
    if (!name)
        return false;
    while (begin < end) {
        if (strncasecmp(name, begin, 1) == 0)
            begin++;
        else if (*name != '_')
            return false;
        name++;
    }
    return !*name;
}

const char *rs_mr_word_end(const char *begin, const char *end)
{
    static const char *const endings[] = {"MemoryResource", "_memory_resource", "ResourceAdaptor",
                                          "_resource_adaptor", "_memory"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(endings); i++) {
        size_t length = strlen(endings[i]);
        if ((size_t)(end - begin) > length && strncasecmp(end - length, endings[i], length) == 0)
            return end - length;
    }
    return end;
}

const struct rs_mr_descriptor *rs_mr_find(const char *begin, const char *end)
{
    end = rs_mr_word_end(begin, end);
    for (size_t i = 0; rs_mr_descriptors[i]; i++) {
        const struct rs_mr_descriptor *descriptor = rs_mr_descriptors[i];
        if (is_called(descriptor->name, begin, end))
            return descriptor;
        for (size_t j = 0; j < RS_ARRAY_LENGTH(descriptor->aliases); j++)
            if (is_called(descriptor->aliases[j], begin, end))
                return descriptor;
    }
    return NULL;
}

static size_t sum_of_upstreams(struct rs_mr *mr, size_t (*of)(struct rs_mr *upstream))
{
    size_t sum = 0;

    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        sum += of(mr->upstream[i]);
    return sum;
}

size_t rs_mr_trim_with(struct rs_mr *mr, const struct rs_trim *trim)
{
    size_t given_back = 0;

    if (mr->ops.trim)
        return mr->ops.trim(mr, trim);
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        given_back += rs_mr_trim_with(mr->upstream[i], trim);
    return given_back;
}

void rs_mr_synchronise(struct rs_mr *mr, enum rs_synchronise when)
{
    if (mr->ops.synchronise) {
        mr->ops.synchronise(mr, when);
        return;
    }
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        rs_mr_synchronise(mr->upstream[i], when);
}

/* Defaults of the two ops that are called while the program frees a block.  An op that is always
 * there needs no test for NULL on that path. */
static size_t default_idle_bytes(struct rs_mr *mr)
{
    (void)mr;
    return 0;
}

static size_t default_growable_bytes(struct rs_mr *mr)
{
    (void)mr;
    return SIZE_MAX;
}

size_t rs_mr_excess_bytes(struct rs_mr *mr)
{
    return mr->ops.excess_bytes ? mr->ops.excess_bytes(mr)
                                : sum_of_upstreams(mr, rs_mr_excess_bytes);
}

size_t rs_mr_no_excess_bytes(struct rs_mr *mr)
{
    (void)mr;
    return 0;
}

static void default_report(struct rs_mr *mr, struct rs_report *report)
{
    if (!mr->ops.counters || !rs_mutex_lock_bounded(&mr->lock, mr->descriptor->name))
        return;
    rs_report_add_rows(report, mr->descriptor->name, mr, mr->ops.counters);
    rs_mutex_unlock(&mr->lock);
}

static bool default_check(struct rs_mr *mr)
{
    bool good;

    rs_mutex_lock(&mr->lock);
    good = !mr->ops.is_sound || mr->ops.is_sound(mr);
    rs_mutex_unlock(&mr->lock);
    return good;
}

static void default_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    if (mr->ops.end)
        mr->ops.end(mr, memory_is_gone);
    rs_mutex_destroy(&mr->lock);
    rs_published_free(mr);
}

void rs_mr_init(struct rs_mr *mr, const struct rs_mr_ops *ops,
                const struct rs_mr_descriptor *descriptor, struct rs_mr *const *upstream)
{
    RS_ASSERT(ops->allocate && ops->deallocate);
    mr->ops = *ops;
    if (!mr->ops.destroy)
        mr->ops.destroy = default_destroy;
    if (!mr->ops.idle_bytes)
        mr->ops.idle_bytes = default_idle_bytes;
    if (!mr->ops.growable_bytes)
        mr->ops.growable_bytes = default_growable_bytes;
    if (!mr->ops.report)
        mr->ops.report = default_report;
    if (!mr->ops.check)
        mr->ops.check = default_check;
    rs_mutex_init(&mr->lock, RS_RANK_RESOURCE);
    mr->descriptor = descriptor;
    mr->memories = descriptor->upstream_count ? 0 : 1u << descriptor->memory;
    mr->has_threshold = false;
    for (unsigned i = 0; i < RS_MR_UPSTREAMS_MAX; i++) {
        bool is_one = upstream && (i < descriptor->upstream_count || descriptor->branch);
        mr->upstream[i] = is_one ? upstream[i] : NULL;
        if (mr->upstream[i]) {
            mr->memories |= mr->upstream[i]->memories;
            mr->has_threshold |= mr->upstream[i]->has_threshold;
        }
    }
}

bool rs_environment_reclaims(const struct rs_environment *environment,
                             const struct rs_refusal *refusal, enum rs_effort effort)
{
    return !rs_effort_is_ahead(effort) && environment->reclaim &&
           environment->reclaim(environment, refusal, !environment->frees_are_ready);
}

bool rs_mr_fits_device(const struct rs_validation *of, const char *what, size_t bytes)
{
    size_t total_bytes = of->environment ? of->environment->total_bytes : 0;
    char first[RS_SIZE_TEXT_BYTES], second[RS_SIZE_TEXT_BYTES];

    return total_bytes == 0 || bytes <= total_bytes ||
           RS_REFUSE(of, "the %s of %s is larger than the device's memory, which is %s", what,
                     rs_size_format(bytes, first), rs_size_format_short(total_bytes, second));
}

/* Returns the class that belongs to the descriptor.  The table of all classes is here, so that a
 * program that never makes a resource links none of them. */
static const struct rs_mr_class *class_of(const struct rs_mr_descriptor *descriptor)
{
    static const struct rs_mr_class *const classes[] = {
#define RS_MR_ROW(name) &rs_mr_class_##name,
        RS_MR_LIST(RS_MR_ROW)
#undef RS_MR_ROW
    };
    size_t i = 0;

    while (rs_mr_descriptors[i] && rs_mr_descriptors[i] != descriptor)
        i++;
    RS_ASSERT(i < RS_ARRAY_LENGTH(classes));
    return classes[i];
}

int rs_mr_create(const struct rs_mr_descriptor *descriptor,
                 const struct rs_environment *environment, const void *config,
                 struct rs_mr *const *upstream, struct rs_mr **out)
{
    const struct rs_mr_class *of = class_of(descriptor);
    struct rs_mr *mr;
    int failed;

    mr = rs_published_allocate(of->bytes, RS_PUBLISHED_ALIGNMENT);
    if (!mr)
        return -ENOMEM;
    rs_mr_init(mr, of->ops, descriptor, upstream);
    mr->environment = environment;
    if (of->config_offset)
        memcpy((char *)mr + of->config_offset, config, descriptor->config_bytes);
    failed = of->init ? of->init(mr, config) : 0;
    if (failed)
        mr->ops.destroy(mr, false);
    else
        *out = mr;
    return failed;
}

void rs_mr_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    struct rs_mr *upstream[RS_MR_UPSTREAMS_MAX];

    if (!mr)
        return;
    memcpy(upstream, mr->upstream, sizeof(upstream));
    mr->ops.destroy(mr, memory_is_gone);
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX; i++)
        rs_mr_destroy(upstream[i], memory_is_gone);
}

void rs_mr_context_ended(struct rs_mr *mr)
{
    if (mr->ops.context_ended)
        mr->ops.context_ended(mr);
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        rs_mr_context_ended(mr->upstream[i]);
}

CUresult rs_mr_access_changed(struct rs_mr *mr, CUdevice peer, bool allowed)
{
    CUresult result =
        mr->ops.access_changed ? mr->ops.access_changed(mr, peer, allowed) : CUDA_SUCCESS;

    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i] && result == CUDA_SUCCESS; i++)
        result = rs_mr_access_changed(mr->upstream[i], peer, allowed);
    return result;
}

size_t rs_mr_idle_bytes(struct rs_mr *mr)
{
    return rs_mr_idle_bytes_of(mr, UINT_MAX);
}

/* Returns the i-th branch, counted from 1, or NULL.  The second upstream of `fallback` is no
 * branch. */
static struct rs_mr *branch_of(const struct rs_mr *mr, size_t i)
{
    return mr->descriptor->branch && i < RS_MR_UPSTREAMS_MAX ? mr->upstream[i] : NULL;
}

size_t rs_mr_idle_bytes_best(struct rs_mr *mr)
{
    size_t bytes = 0;

    for (; mr; mr = mr->upstream[0]) {
        bytes += mr->ops.idle_bytes(mr);
        for (size_t i = 1; branch_of(mr, i); i++)
            bytes += rs_mr_idle_bytes_best(branch_of(mr, i));
    }
    return bytes;
}

size_t rs_mr_idle_bytes_of(struct rs_mr *mr, unsigned memories)
{
    size_t bytes = mr->memories & memories ? mr->ops.idle_bytes(mr) : 0;

    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        bytes += rs_mr_idle_bytes_of(mr->upstream[i], memories);
    return bytes;
}

size_t rs_mr_growable_bytes(struct rs_mr *mr)
{
    size_t bytes = mr->upstream[0] ? 0 : SIZE_MAX;

    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        if (__builtin_add_overflow(bytes, rs_mr_growable_bytes(mr->upstream[i]), &bytes))
            bytes = SIZE_MAX;
    return rs_min(bytes, mr->ops.growable_bytes(mr));
}

size_t rs_mr_growable_bytes_best(struct rs_mr *mr)
{
    size_t bytes = SIZE_MAX, most = 0;

    for (; mr; mr = mr->upstream[0]) {
        bytes = rs_min(bytes, mr->ops.growable_bytes(mr));
        for (size_t i = 1; branch_of(mr, i); i++)
            most = rs_max(most, rs_min(bytes, rs_mr_growable_bytes_best(branch_of(mr, i))));
    }
    return rs_max(bytes, most);
}

size_t rs_mr_free_blocks(struct rs_mr *mr)
{
    size_t blocks = mr->ops.free_blocks ? mr->ops.free_blocks(mr) : 0;

    return blocks + sum_of_upstreams(mr, rs_mr_free_blocks);
}

/* Adds the counters of mr and of all resources below it.  `own` is scratch memory for the counters
 * of one resource. */
static void report_with(struct rs_mr *mr, struct rs_report *report, struct rs_report *own)
{
    unsigned missed = rs_locks_missed()->times;

    rs_report_clear(own);
    mr->ops.report(mr, own);
    /* If the op could not get a lock in time, its counters are incomplete and are dropped. */
    if (rs_locks_missed()->times == missed)
        rs_report_fold(report, own);
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        report_with(mr->upstream[i], report, own);
}

void rs_mr_report(struct rs_mr *mr, struct rs_report *report)
{
    struct rs_report own = {.count = 0};

    report_with(mr, report, &own);
    rs_report_release(&own);
}

bool rs_mr_check(struct rs_mr *mr)
{
    bool good = mr->ops.check(mr);

    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        good = rs_mr_check(mr->upstream[i]) && good;
    return good;
}

static __thread bool frees_at_once;

CUresult rs_mr_deallocate_at_once(struct rs_mr *mr, const struct rs_allocation *allocation)
{
    CUresult result;

    frees_at_once = true;
    result = rs_mr_deallocate(mr, allocation, NULL);
    frees_at_once = false;
    return result;
}

bool rs_mr_frees_at_once(void)
{
    return frees_at_once;
}

/* ---- unfinished leaves: the driver refused to take their memory back ---- */

static struct rs_mutex unfinished_lock = RS_MUTEX_INIT(RS_RANK_UNFINISHED); /* protects the list */
RS_RESET_IN_CHILD(resource_unfinished, unfinished_lock);
static struct rs_mr *unfinished;

void rs_mr_add_unfinished(struct rs_mr *mr)
{
    rs_mutex_lock(&unfinished_lock);
    mr->next_unfinished = unfinished;
    unfinished = mr;
    rs_mutex_unlock(&unfinished_lock);
}

void rs_mr_remove_unfinished(struct rs_mr *mr)
{
    struct rs_mr **at = &unfinished;

    rs_mutex_lock(&unfinished_lock);
    while (*at && *at != mr)
        at = &(*at)->next_unfinished;
    if (*at)
        *at = mr->next_unfinished;
    rs_mutex_unlock(&unfinished_lock);
}

void rs_mr_retry_unfinished(void)
{
    rs_mutex_lock(&unfinished_lock);
    for (struct rs_mr **at = &unfinished; *at;)
        if ((*at)->ops.finish(*at))
            *at = (*at)->next_unfinished;
        else
            at = &(*at)->next_unfinished;
    rs_mutex_unlock(&unfinished_lock);
}
