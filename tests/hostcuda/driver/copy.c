/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/copy.h"

#include "driver/device.h"

#include <string.h>

static CUresult run_copy(void *args)
{
    const struct hc_copy *copy = args;
    char *to = hc_bytes((uintptr_t)copy->to);
    const char *from = hc_bytes((uintptr_t)copy->from);
    for (size_t row = 0; row < copy->height; row++)
        memmove(to + row * copy->to_pitch, from + row * copy->from_pitch, copy->width);
    return CUDA_SUCCESS;
}

static size_t extent(size_t width, size_t height, size_t pitch)
{
    return width && height ? (height - 1) * pitch + width : 0;
}

struct hc_work hc_copy_work(const struct hc_copy *copy)
{
    struct hc_work work = {.run = run_copy, .type = CU_GRAPH_NODE_TYPE_MEMCPY};
    memcpy(work.args, copy, sizeof(*copy));
    hc_work_touches(&work, (uintptr_t)copy->from,
                    extent(copy->width, copy->height, copy->from_pitch), false);
    hc_work_touches(&work, (uintptr_t)copy->to, extent(copy->width, copy->height, copy->to_pitch),
                    true);
    return work;
}

static CUresult run_fill(void *args)
{
    const struct hc_fill *fill = args;
    for (size_t row = 0; row < fill->height; row++) {
        char *to = (char *)hc_bytes((uintptr_t)fill->to) + row * fill->pitch;
        if (fill->element_bytes == 1) {
            memset(to, (int)fill->value, fill->width);
            continue;
        }
        for (size_t i = 0; i < fill->width; i++) {
            if (fill->element_bytes == 2)
                ((uint16_t *)to)[i] = (uint16_t)fill->value;
            else
                ((uint32_t *)to)[i] = fill->value;
        }
    }
    return CUDA_SUCCESS;
}

struct hc_work hc_fill_work(const struct hc_fill *fill)
{
    struct hc_work work = {.run = run_fill, .type = CU_GRAPH_NODE_TYPE_MEMSET};
    memcpy(work.args, fill, sizeof(*fill));
    hc_work_touches(&work, (uintptr_t)fill->to,
                    extent(fill->width * fill->element_bytes, fill->height, fill->pitch), true);
    return work;
}
