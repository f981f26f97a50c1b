/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_leaf.h"

#include "unit.h"

#include "driver/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONTEXT ((CUcontext)(uintptr_t)0x1000)

static struct rs_own_stream own_stream;

const struct rs_environment fake_environment = {.context = CONTEXT,
                                                .own_stream = &own_stream,
                                                .total_bytes = 80ull << 30,
                                                .first_on_device = true};
const struct rs_environment fake_second_environment = {
    .context = CONTEXT, .own_stream = &own_stream, .total_bytes = 80ull << 30};

static struct fake_leaf *leaf_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct fake_leaf, base);
}

static CUresult answer(struct fake_leaf *leaf, size_t size_bytes)
{
    if (leaf->fail_at && --leaf->fail_at == 0)
        return leaf->fail_with;
    if (size_bytes > leaf->largest_bytes || leaf->live_bytes > leaf->capacity_bytes ||
        size_bytes > leaf->capacity_bytes - leaf->live_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (leaf->live_count == FAKE_LEAF_LIVE_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

static void enter(struct fake_leaf *leaf, size_t size_bytes, struct rs_allocation *out)
{
    size_t spread_bytes = leaf->is_tight ? 0 : RS_BLOCK_ALIGNMENT * (1 + leaf->allocations % 3);

    *out = (struct rs_allocation){leaf->next_address, size_bytes, NULL, leaf->record};
    leaf->next_address += (size_bytes + spread_bytes + RS_BLOCK_ALIGNMENT - 1) &
                          ~(CUdeviceptr)(RS_BLOCK_ALIGNMENT - 1);
    leaf->live[leaf->live_count++] = *out;
    leaf->live_bytes += size_bytes;
    leaf->peak_bytes = rs_max(leaf->peak_bytes, leaf->live_bytes);
}

static void call_once(struct fake_leaf *leaf)
{
    void (*call)(void *);

    pthread_mutex_lock(&leaf->lock);
    call = leaf->on_call;
    leaf->on_call = NULL;
    pthread_mutex_unlock(&leaf->lock);
    if (call)
        call(leaf->on_call_data);
}

static CUresult allocate_held(struct fake_leaf *leaf, size_t size_bytes, enum rs_effort effort,
                              struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_NOT_READY;

    pthread_mutex_lock(&leaf->lock);
    leaf->effort = effort;
    if (size_bytes <= leaf->held_bytes) {
        leaf->held_bytes -= size_bytes;
        enter(leaf, size_bytes, out);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&leaf->lock);
    return result;
}

static CUresult fake_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                              enum rs_effort effort, struct rs_allocation *out)
{
    struct fake_leaf *leaf = leaf_of(mr);
    CUresult result;

    (void)stream;
    if (rs_effort_is_held(effort))
        return allocate_held(leaf, size_bytes, effort, out);
    if (leaf->pause_us)
        usleep(leaf->pause_us);
    call_once(leaf);
    pthread_mutex_lock(&leaf->lock);
    leaf->effort = effort;
    result = answer(leaf, size_bytes);
    if (result == CUDA_SUCCESS) {
        enter(leaf, size_bytes, out);
        leaf->allocations++;
    } else {
        leaf->refusals++;
    }
    pthread_mutex_unlock(&leaf->lock);
    return result;
}

static CUresult remove_live(struct fake_leaf *leaf, const struct rs_allocation *allocation)
{
    for (size_t i = leaf->live_count; i-- > 0;) {
        if (leaf->live[i].address != allocation->address)
            continue;
        leaf->wrong_calls += leaf->live[i].size_bytes != allocation->size_bytes ||
                             (allocation->block && allocation->block != leaf->live[i].block);
        leaf->live_bytes -= leaf->live[i].size_bytes;
        leaf->live[i] = leaf->live[--leaf->live_count];
        leaf->deallocations++;
        return CUDA_SUCCESS;
    }
    leaf->wrong_calls++;
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                CUstream stream)
{
    struct fake_leaf *leaf = leaf_of(mr);
    CUresult result;

    (void)stream;
    if (leaf->on_deallocate)
        leaf->on_deallocate(leaf->on_deallocate_data);
    pthread_mutex_lock(&leaf->lock);
    result = leaf->fail_deallocations_with;
    if (result == CUDA_SUCCESS)
        result = remove_live(leaf, allocation);
    pthread_mutex_unlock(&leaf->lock);
    return result;
}

static bool fake_deallocates_in_order(struct rs_mr *mr)
{
    return leaf_of(mr)->deallocates_in_order;
}

static void fake_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    (void)memory_is_gone;
    fake_leaf_destroy(leaf_of(mr));
}

static const struct rs_mr_ops fake_ops = {
    .allocate = fake_allocate,
    .deallocate = fake_deallocate,
    .deallocates_in_order = fake_deallocates_in_order,
    .destroy = fake_destroy,
};

static const struct rs_option fake_options[] = {RS_OPTION_END};

const struct rs_mr_descriptor fake_leaf_descriptor = {
    .name = "fake",
    .summary = "for tests",
    .frees = RS_FREE_WAITS,
    .options = fake_options,
};

struct fake_leaf *fake_leaf_create(size_t capacity_bytes)
{
    struct fake_leaf *leaf = test_calloc(1, sizeof(*leaf));

    rs_mr_init(&leaf->base, &fake_ops, &fake_leaf_descriptor, NULL);
    pthread_mutex_init(&leaf->lock, NULL);
    leaf->capacity_bytes = capacity_bytes;
    leaf->largest_bytes = SIZE_MAX;
    leaf->next_address = FAKE_LEAF_FIRST_ADDRESS;
    return leaf;
}

void fake_leaf_destroy(struct fake_leaf *leaf)
{
    pthread_mutex_destroy(&leaf->lock);
    test_free(leaf);
}

bool fake_leaf_owns(struct fake_leaf *leaf, CUdeviceptr address, size_t size_bytes)
{
    bool owns = false;

    pthread_mutex_lock(&leaf->lock);
    for (size_t i = 0; i < leaf->live_count && !owns; i++)
        owns = address >= leaf->live[i].address &&
               address + size_bytes <= leaf->live[i].address + leaf->live[i].size_bytes;
    pthread_mutex_unlock(&leaf->lock);
    return owns;
}

/* ---- resources from options ---- */

struct line {
    char *text;
    size_t bytes;
};

static void keep_line(void *data, const char *text)
{
    struct line *line = data;

    if (line->text)
        snprintf(line->text, line->bytes, "%s", text);
}

static bool parse_one(const struct rs_mr_descriptor *descriptor, const char *option,
                      struct rs_diagnostics *diagnostics, struct rs_option_value *values)
{
    struct rs_source source = {descriptor->name, option};
    const char *equals = strchr(option, '=');
    enum rs_option_type type;
    const struct rs_option *row = rs_option_find(descriptor->options, option, equals, &type);

    assert_non_null(row);
    return rs_option_parse(row, type, &source, equals + 1, option + strlen(option), diagnostics,
                           &values[row - descriptor->options]);
}

/* Fills `config` (which keeps pointers into values) and validates it. */
static bool configure(const struct rs_mr_descriptor *descriptor,
                      const struct rs_environment *environment, const char *const *options,
                      struct rs_diagnostics *diagnostics, struct rs_option_value *values,
                      void *config)
{
    struct rs_source source = {descriptor->name, ""};

    assert_int_equal(rs_option_defaults(descriptor->options, values), 0);
    for (size_t i = 0; options && options[i]; i++)
        if (!parse_one(descriptor, options[i], diagnostics, values))
            return false;
    for (size_t i = 0; descriptor->options[i].name; i++)
        rs_option_store(&descriptor->options[i], &values[i], config, fake_environment.total_bytes,
                        fake_environment.total_bytes);
    return !descriptor->validate ||
           descriptor->validate(config, &(struct rs_validation){environment, &source, diagnostics});
}

static void clear(const struct rs_mr_descriptor *descriptor, struct rs_option_value *values,
                  void *config)
{
    for (size_t i = 0; descriptor->options[i].name; i++)
        rs_option_value_clear(&values[i]);
    test_free(config);
}

struct rs_mr *make_resource_over(const struct rs_environment *environment,
                                 const struct rs_mr_descriptor *descriptor,
                                 struct rs_mr *const *upstream, const char *const *options,
                                 int *error)
{
    struct rs_option_value values[RS_OPTION_ROWS_MAX] = {0};
    struct line nobody = {NULL, 0};
    struct rs_diagnostics diagnostics = {.write = keep_line, .data = &nobody};
    void *config = test_calloc(1, descriptor->config_bytes + 1);
    struct rs_mr *mr = NULL;

    *error = -EINVAL;
    if (configure(descriptor, environment, options, &diagnostics, values, config))
        *error = rs_mr_create(descriptor, environment, config, upstream, &mr);
    clear(descriptor, values, config);
    return mr;
}

struct rs_mr *make_resource_of_two(const struct rs_environment *environment,
                                   const struct rs_mr_descriptor *descriptor, struct rs_mr *first,
                                   struct rs_mr *second, const char *const *options, int *error)
{
    struct rs_mr *upstream[RS_MR_UPSTREAMS_MAX] = {first, second};

    return make_resource_over(environment, descriptor, upstream, options, error);
}

struct rs_mr *make_resource_at(const struct rs_environment *environment,
                               const struct rs_mr_descriptor *descriptor, struct rs_mr *upstream,
                               const char *const *options, int *error)
{
    return make_resource_of_two(environment, descriptor, upstream, NULL, options, error);
}

struct rs_mr *make_resource(const struct rs_mr_descriptor *descriptor, struct rs_mr *upstream,
                            const char *const *options)
{
    int error;
    struct rs_mr *mr = make_resource_at(&fake_environment, descriptor, upstream, options, &error);

    assert_int_equal(error, 0);
    assert_non_null(mr);
    return mr;
}

bool options_are_valid(const struct rs_mr_descriptor *descriptor,
                       const struct rs_environment *environment, const char *const *options,
                       char *text, size_t text_bytes)
{
    struct rs_option_value values[RS_OPTION_ROWS_MAX] = {0};
    struct line line = {text, text_bytes};
    struct rs_diagnostics diagnostics = {.write = keep_line, .data = &line};
    void *config = test_calloc(1, descriptor->config_bytes + 1);
    bool valid;

    text[0] = '\0';
    valid = configure(descriptor, environment, options, &diagnostics, values, config);
    clear(descriptor, values, config);
    assert_true(valid == (diagnostics.count == 0)); /* whoever refuses says why */
    return valid;
}
