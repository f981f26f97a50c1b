/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: modules and libraries. Any image will do: it holds the device's own kernels. */
#include "driver/call.h"
#include "driver/config.h"
#include "driver/context.h"
#include "driver/device.h"
#include "driver/handle.h"
#include "driver/kernel.h"
#include "driver/lock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct module {
    struct hc_ctx *ctx;        /* NULL: a library, which belongs to no context */
    unsigned long long ctx_id; /* a later context may be at the same address */
};

/* Code and variables of a module are in the device's memory, until it is unloaded or its context
 * ends. */
static bool take_memory(struct hc_ctx *ctx)
{
    struct hc_region *memory = &hc_device_at(ctx->device)->memory;
    if (memory->capacity_bytes - memory->used_bytes < hc_config.module_bytes)
        return false;
    memory->used_bytes += hc_config.module_bytes;
    ctx->module_bytes += hc_config.module_bytes;
    return true;
}

static void give_memory(const struct module *module)
{
    struct hc_ctx *ctx = module->ctx;
    if (!ctx || !ctx->is_active || ctx->id != module->ctx_id)
        return;
    hc_device_at(ctx->device)->memory.used_bytes -= hc_config.module_bytes;
    ctx->module_bytes -= hc_config.module_bytes;
}

static CUresult load(void *out, const void *image, struct hc_ctx *ctx)
{
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    struct module *module = calloc(1, sizeof(*module));
    if (!module || (ctx && !take_memory(ctx))) {
        free(module);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->ctx = ctx;
    module->ctx_id = ctx ? ctx->id : 0;
    hc_handle_add(module, HC_HANDLE_MODULE);
    *(struct module **)out = module;
    return CUDA_SUCCESS;
}

static CUresult load_in_current(CUmodule *out, const void *image)
{
    HC_LOCKED();
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    return result ? result : load(out, image, ctx);
}

HC_API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    HC_ENTER(cuModuleLoadData);
    return load_in_current(module, image);
}

/* What the compiler says goes into the program's buffer, and the length of that in the place of the
 * buffer's size. */
static void log_to(const CUjit_option *options, void **values, unsigned count, const char *text)
{
    char *buffer = NULL;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == CU_JIT_INFO_LOG_BUFFER)
            buffer = values[i];
    }
    for (unsigned i = 0; buffer && i < count; i++) {
        if (options[i] != CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)
            continue;
        size_t size = (uintptr_t)values[i];
        if (size)
            snprintf(buffer, size, "%s", text);
        values[i] = (void *)(uintptr_t)(size ? strlen(buffer) : 0);
    }
}

HC_API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                   CUjit_option *options, void **values)
{
    HC_ENTER(cuModuleLoadDataEx);
    CUresult result = load_in_current(module, image);
    log_to(options, values, options && values ? count : 0, result ? "" : "loaded");
    return result;
}

HC_API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    HC_ENTER(cuModuleLoadFatBinary);
    return load_in_current(module, image);
}

static CUresult unload(void *handle)
{
    HC_LOCKED();
    if (!hc_handle_is(handle, HC_HANDLE_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    give_memory(handle);
    hc_handle_remove(handle);
    free(handle);
    return CUDA_SUCCESS;
}

HC_API CUresult cuModuleUnload(CUmodule module)
{
    HC_ENTER(cuModuleUnload);
    return unload(module);
}

static CUresult get_kernel(void **out, const void *handle, const char *name)
{
    HC_LOCKED();
    if (!out || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hc_handle_is(handle, HC_HANDLE_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    *out = (void *)(uintptr_t)hc_kernel_named(name);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

HC_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    HC_ENTER(cuModuleGetFunction);
    return get_kernel((void **)function, module, name);
}

HC_API CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
    HC_ENTER(cuModuleGetFunctionCount);
    HC_LOCKED();
    if (!count || !hc_handle_is(module, HC_HANDLE_MODULE))
        return CUDA_ERROR_INVALID_VALUE;
    *count = hc_kernel_count();
    return CUDA_SUCCESS;
}

HC_API CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule module,
                                     const char *name)
{
    HC_ENTER(cuModuleGetGlobal_v2);
    (void)dptr, (void)bytes, (void)module;
    return name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

HC_API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    HC_ENTER(cuModuleGetLoadingMode);
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

HC_API CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *jit_options,
                                  void **jit_values, unsigned int jit_count,
                                  CUlibraryOption *options, void **values, unsigned int count)
{
    HC_ENTER(cuLibraryLoadData);
    HC_LOCKED();
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load(library, image, NULL);
}

HC_API CUresult cuLibraryUnload(CUlibrary library)
{
    HC_ENTER(cuLibraryUnload);
    return unload(library);
}

HC_API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    HC_ENTER(cuLibraryGetKernel);
    return get_kernel((void **)kernel, library, name);
}

HC_API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    HC_ENTER(cuLibraryGetModule);
    HC_LOCKED();
    if (!module || !hc_handle_is(library, HC_HANDLE_MODULE))
        return CUDA_ERROR_INVALID_VALUE;
    *module = (CUmodule)library;
    return CUDA_SUCCESS;
}

HC_API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    HC_ENTER(cuKernelGetFunction);
    if (!function || !hc_kernel_of(kernel))
        return CUDA_ERROR_INVALID_VALUE;
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

HC_API CUresult cuFuncGetName(const char **name, CUfunction function)
{
    HC_ENTER(cuFuncGetName);
    const struct hc_kernel *kernel = hc_kernel_of(function);
    if (!name || !kernel)
        return CUDA_ERROR_INVALID_VALUE;
    *name = kernel->name;
    return CUDA_SUCCESS;
}
