/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the calls for which the driver takes memory of its own. Each call is forwarded. If the
 * driver is out of memory and some can be given back, the call is made again (charge/charge.h). */
#include "charge/charge.h"

#include "base/check.h"
#include "hook/hook.h"

#include <string.h>

/* ---- modules and libraries with options ---- */

/* The most options that a repeated call may have; cuda.h defines about 35. */
enum { JIT_VALUES = 40 };

/* The values of the options for the driver's compiler, kept so that a repeated call gets the same
 * ones. The driver overwrites some of them: the size of a log's buffer with the length of the log,
 * which a second call would take for the size of the buffer. */
struct jit {
    void **values;
    unsigned count;
    void *kept[JIT_VALUES];
    int tries_left;
    uint64_t deadline_ns;
};

static struct jit jit_keep(void **values, unsigned count)
{
    struct jit jit = {.values = values, .count = values ? count : 0, .tries_left = RS_AGAIN_TRIES};

    if (jit.count > 0 && jit.count <= JIT_VALUES)
        memcpy(jit.kept, values, jit.count * sizeof(values[0]));
    return jit;
}

/* True when the call is to be made again; restores the option values for it. Only changed values
 * are written back, as the program may keep constants in memory that cannot be written. */
static bool jit_again(struct jit *jit, CUresult result)
{
    if (result != CUDA_ERROR_OUT_OF_MEMORY || --jit->tries_left <= 0 || jit->count > JIT_VALUES ||
        !rs_again(result, RS_AGAIN_CURRENT, 0, &jit->deadline_ns))
        return false;
    for (unsigned i = 0; i < jit->count; i++)
        if (jit->values[i] != jit->kept[i])
            jit->values[i] = jit->kept[i];
    return true;
}

/* Makes a driver call with options for the compiler as often as jit_again says, and returns the
 * result for the program. */
#define JIT_AGAIN(values, count, call)                                                             \
    ({                                                                                             \
        struct jit jit_ = jit_keep(values, count);                                                 \
        CUresult result_;                                                                          \
        do                                                                                         \
            result_ = (call);                                                                      \
        while (jit_again(&jit_, result_));                                                         \
        RS_UNLIKELY(result_ == CUDA_ERROR_OUT_OF_MEMORY) ? rs_again_refused(RS_AGAIN_CURRENT, 0)   \
                                                         : result_;                                \
    })

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                            CUjit_option *options, void **values)
{
    return JIT_AGAIN(values, count,
                     RS_FORWARD(cuModuleLoadDataEx, (module, image, count, options, values)));
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *options,
                           void **values, unsigned count, CUlibraryOption *library_options,
                           void **library_values, unsigned library_count)
{
    return JIT_AGAIN(
        values, count,
        RS_FORWARD(cuLibraryLoadData, (library, image, options, values, count, library_options,
                                       library_values, library_count)));
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options,
                               void **values, unsigned count, CUlibraryOption *library_options,
                               void **library_values, unsigned library_count)
{
    return JIT_AGAIN(
        values, count,
        RS_FORWARD(cuLibraryLoadFromFile, (library, path, options, values, count, library_options,
                                           library_values, library_count)));
}

/* ---- the rows: whose memory each call takes ---- */

#define CURRENT          RS_AGAIN_CURRENT, 0 /* the device of the current context */
#define DEVICE(device)   device, 0
#define HOST(size_bytes) RS_AGAIN_CURRENT, size_bytes
#define AGAIN(...)       RS_AGAIN_TOLD(__VA_ARGS__)

/* Returns the device of a green context. Creating a stream in it takes memory of that device, and
 * no context need be current then. */
static int device_of_green(CUgreenCtx green)
{
    CUdevice device;

    return rs_hook_green_device(green, &device) ? device : RS_AGAIN_CURRENT;
}

/* Returns the device whose access the call sets. It does no harm that a repeated call sets it
 * again. */
static int device_with(const CUmemAccessDesc *access, size_t count)
{
    bool is_device = access && count > 0 && access->location.type == CU_MEM_LOCATION_TYPE_DEVICE;

    return is_device ? access->location.id : RS_AGAIN_CURRENT;
}

#define RETRY(symbol, name, since, until, stream, summary, memory, parameters, arguments)          \
    CUresult symbol parameters                                                                     \
    {                                                                                              \
        return AGAIN(memory, RS_FORWARD(symbol, arguments));                                       \
    }
#include "driver/entry_points.def"
