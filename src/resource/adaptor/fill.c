/* SPDX-License-Identifier: Apache-2.0 */
#include "resource/adaptor/fill.h"

#include "base/check.h"
#include "driver/driver.h"
#include "driver/stream.h"

static const uint64_t fill_ns = 15ull * 1000 * 1000 * 1000;

struct rs_fill_visit rs_fill_visit_begin(const struct rs_environment *environment)
{
    struct rs_fill_visit visit = {.mode = rs_capture_relax()};

    visit.entered = rs_driver_context_enter(environment->context, &visit.result);
    if (visit.result != CUDA_SUCCESS)
        return visit;
    visit.stream = rs_own_stream(environment->own_stream, environment->context);
    if (!visit.stream)
        visit.result = CUDA_ERROR_OUT_OF_MEMORY;
    return visit;
}

void rs_fill_visit_wait(struct rs_fill_visit *visit)
{
    CUresult waited = CUDA_SUCCESS;

    if (visit->is_pending && !rs_own_stream_settle(visit->stream, fill_ns))
        waited = rs_driver.cuStreamQuery(visit->stream);
    visit->is_pending = false;
    if (visit->result == CUDA_SUCCESS)
        visit->result = waited == CUDA_ERROR_NOT_READY ? CUDA_ERROR_OUT_OF_MEMORY : waited;
}

CUresult rs_fill_visit_end(struct rs_fill_visit *visit)
{
    rs_fill_visit_wait(visit);
    rs_driver_context_leave(visit->entered);
    rs_capture_restore(visit->mode);
    return visit->result;
}

void rs_fill_bytes(struct rs_fill_visit *visit, CUdeviceptr address, unsigned char value,
                   size_t bytes)
{
    if (visit->result != CUDA_SUCCESS || bytes == 0)
        return;
    visit->is_pending = true;
    visit->result = rs_driver.cuMemsetD8Async(address, value, bytes, visit->stream);
}

/* Returns a byte of a pattern in little-endian order, that of CUDA's hosts and devices. */
static unsigned char pattern_byte(unsigned pattern, size_t at)
{
    return (unsigned char)(pattern >> 8 * (at % sizeof(pattern)));
}

void rs_fill_words(struct rs_fill_visit *visit, CUdeviceptr address, unsigned pattern, size_t bytes)
{
    size_t whole_bytes = rs_round_down(bytes, sizeof(pattern));

    if (visit->result == CUDA_SUCCESS && whole_bytes > 0) {
        visit->is_pending = true;
        visit->result = rs_driver.cuMemsetD32Async(address, pattern, whole_bytes / sizeof(pattern),
                                                   visit->stream);
    }
    for (size_t i = whole_bytes; i < bytes; i++)
        rs_fill_bytes(visit, address + i, pattern_byte(pattern, i), 1);
}

struct rs_fill_difference rs_fill_compare(const unsigned char *bytes, unsigned pattern,
                                          size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != pattern_byte(pattern, i))
            return (struct rs_fill_difference){true, i, bytes[i]};
    return (struct rs_fill_difference){false, 0, 0};
}
