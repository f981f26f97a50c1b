/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about a driver that rmmshim relies on or must imitate.  Each scene runs in a child process
 * of its own, so that one may crash.  Run without rmmshim; link with the static CUDA runtime, whose
 * look-ups pass through this program's own dlsym.
 *
 *   facts [SCENE]... */
#include "kernels.h"
#include "sample.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the runtime's look-ups: which of the functions that end contexts does it call? ---- */

enum { WATCHED = 8 };

static struct {
    const char *symbol;
    CUresult (*real)(void *argument);
    unsigned look_ups, calls;
} watched[WATCHED] = {
    {.symbol = "cuDevicePrimaryCtxReset"},
    {.symbol = "cuDevicePrimaryCtxReset_v2"},
    {.symbol = "cuDevicePrimaryCtxRelease"},
    {.symbol = "cuDevicePrimaryCtxRelease_v2"},
    {.symbol = "cuCtxDestroy"},
    {.symbol = "cuCtxDestroy_v2"},
    {.symbol = "cuCtxDetach"},
    {.symbol = "cuDevicePrimaryCtxRetain"},
};

#define WATCHER(index)                                                                             \
    static CUresult watcher_##index(void *argument)                                                \
    {                                                                                              \
        watched[index].calls++;                                                                    \
        return watched[index].real(argument);                                                      \
    }
WATCHER(0)
WATCHER(1)
WATCHER(2)
WATCHER(3)
WATCHER(4)
WATCHER(5)
WATCHER(6)

static CUresult (*const watchers[WATCHED])(void *) = {
    watcher_0, watcher_1, watcher_2, watcher_3, watcher_4, watcher_5, watcher_6, NULL,
};

typedef CUresult (*get_v2)(const char *, void **, int, cuuint64_t,
                           CUdriverProcAddressQueryResult *);

static void *(*libc_dlsym)(void *, const char *);
static void *driver;
static get_v2 real_get;

static void *watch(void *function)
{
    for (int i = 0; i < WATCHED; i++) {
        if (!function || libc_dlsym(driver, watched[i].symbol) != function)
            continue;
        watched[i].look_ups++;
        if (!watchers[i])
            continue;
        *(void **)&watched[i].real = function;
        *(CUresult(**)(void *)) & function = watchers[i];
    }
    return function;
}

static CUresult get(const char *name, void **out, int version, cuuint64_t flags,
                    CUdriverProcAddressQueryResult *status)
{
    CUresult result = real_get(name, out, version, flags, status);

    if (result == CUDA_SUCCESS && out && *out) {
        if (libc_dlsym(driver, "cuGetProcAddress_v2") == *out)
            *(get_v2 *)out = get;
        else
            *out = watch(*out);
    }
    return result;
}

void *dlsym(void *restrict handle, const char *restrict name);

void *dlsym(void *restrict handle, const char *restrict name)
{
    void *found;

    if (!libc_dlsym)
        *(void **)&libc_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!libc_dlsym)
        *(void **)&libc_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    found = libc_dlsym(handle, name);
    if (found && strcmp(name, "cuGetProcAddress_v2") == 0) {
        driver = handle;
        *(void **)&real_get = found;
        *(get_v2 *)&found = get;
    }
    return found;
}

static CUcontext current_context(void)
{
    CUcontext context = (CUcontext)-1;
    CUresult result = cuCtxGetCurrent(&context);

    if (result != CUDA_SUCCESS)
        printf("  cuCtxGetCurrent = %d\n", (int)result);
    return context;
}

static const char *same_or_null(CUcontext context, CUcontext before)
{
    return !context ? "NULL" : context == before ? "the same handle" : "another handle";
}

static void reset(void)
{
    void *p, *q;
    CUcontext before, after;
    unsigned flags = 0;
    int active = -1;
    unsigned long long id_before = 0, id_after = 0;

    MUST(cudaMalloc(&p, 1000));
    before = current_context();
    MUST(cuCtxGetId(before, &id_before));
    printf("cudaDeviceReset = %d\n", (int)cudaDeviceReset());
    for (int i = 0; i < WATCHED; i++)
        printf("  %s: looked up %u times, called %u times\n", watched[i].symbol,
               watched[i].look_ups, watched[i].calls);
    after = current_context();
    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("  then: cuCtxGetCurrent gives %s; primary context active %d\n",
           same_or_null(after, before), active);
    if (after)
        printf("  cuCtxGetId of it = %d", (int)cuCtxGetId(after, &id_after)),
            printf(", id %s\n", id_after == id_before ? "same" : "another");
    if (after)
        printf("  cuCtxSynchronize = %d\n", (int)cuCtxSynchronize());
    printf("  cuMemFree of the old pointer = %d", (int)cuMemFree((CUdeviceptr)p));
    printf(", cudaFree of it = %d\n", (int)cudaFree(p));
    printf("  cudaMalloc = %d", (int)cudaMalloc(&q, 1000));
    after = current_context();
    printf(": context is %s, address is %s", same_or_null(after, before),
           p == q ? "the old one" : "another");
    if (after) {
        (void)cuCtxGetId(after, &id_after);
        printf(", id %s", id_after == id_before ? "same" : "another");
    }
    printf("\n");
}

static void *fresh_free(void *data)
{
    printf("fresh thread: before, context %s\n", current_context() ? "current" : "none");
    printf("  cudaFree(NULL) = %d", (int)cudaFree(NULL));
    printf(", context %s\n", current_context() ? "current" : "none");
    (void)data;
    return NULL;
}

static void *fresh_free_pointer(void *data)
{
    printf("fresh thread: before, context %s\n", current_context() ? "current" : "none");
    printf("  cudaFree(pointer) = %d", (int)cudaFree(data));
    printf(", context %s\n", current_context() ? "current" : "none");
    return NULL;
}

static void *fresh_bad_free(void *data)
{
    (void)data;
    printf("fresh thread: cudaFree(wrong pointer) = %d", (int)cudaFree((void *)0x1234000));
    printf(", context %s\n", current_context() ? "current" : "none");
    return NULL;
}

static void *fresh_malloc(void *data)
{
    void *p = NULL;

    (void)data;
    printf("fresh thread: cudaMalloc = %d", (int)cudaMalloc(&p, 1000));
    printf(", context %s\n", current_context() ? "current" : "none");
    return NULL;
}

static void *fresh_malloc_zero(void *data)
{
    void *p = NULL;

    (void)data;
    printf("fresh thread: cudaMalloc of 0 bytes = %d", (int)cudaMalloc(&p, 0));
    printf(", context %s\n", current_context() ? "current" : "none");
    return NULL;
}

static void in_thread(void *(*run)(void *), void *data)
{
    pthread_t thread;

    MUST(pthread_create(&thread, NULL, run, data));
    MUST(pthread_join(thread, NULL));
}

static void threads(void)
{
    void *p;

    MUST(cudaMalloc(&p, 1000));
    in_thread(fresh_free, NULL);
    in_thread(fresh_free_pointer, p);
    in_thread(fresh_bad_free, NULL);
    in_thread(fresh_malloc, NULL);
    in_thread(fresh_malloc_zero, NULL);
}

/* ---- driver ---- */

static CUcontext primary(void)
{
    CUcontext context;

    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    return context;
}

static void pitches(void)
{
    static const unsigned elements[] = {4, 8, 16};
    unsigned wrong = 0, tried = 0;

    primary();
    for (unsigned e = 0; e < 3; e++) {
        for (unsigned i = 0; i < 400; i++) {
            size_t width = i < 200 ? 1 + i * 7 : 1500 + (i - 200) * 337, pitch = 0;
            CUdeviceptr p;
            CUresult result = cuMemAllocPitch(&p, &pitch, width, 3, elements[e]);
            tried++;
            if (result != CUDA_SUCCESS || pitch != (width + 511) / 512 * 512) {
                if (wrong++ < 10)
                    printf("  width %zu, element %u: result %d, pitch %zu\n", width, elements[e],
                           (int)result, pitch);
            }
            if (result == CUDA_SUCCESS)
                MUST(cuMemFree(p));
        }
    }
    printf("pitch is the width rounded up to 512 in %u of %u cases\n", tried - wrong, tried);
    for (unsigned i = 0; i < 6; i++) {
        static const size_t widths[] = {1, 100, 512, 513, 1000, 70000};
        static const size_t heights[] = {1, 10, 3, 7, 1, 100};
        size_t pitch, bytes;
        CUdeviceptr p, base;
        MUST(cuMemAllocPitch(&p, &pitch, widths[i], heights[i], 4));
        MUST(cuMemGetAddressRange(&base, &bytes, p));
        printf("  width %zu, height %zu: pitch %zu, range %zu = pitch x height %+lld\n", widths[i],
               heights[i], pitch, bytes, (long long)bytes - (long long)(pitch * heights[i]));
        MUST(cuMemFree(p));
    }
}

static void attributes_of(const char *what, CUdeviceptr address, CUdeviceptr block)
{
    printf("%s:", what);
    for (int attribute = 1; attribute <= 21; attribute++) {
        unsigned char value[64];
        uint64_t number = 0;
        CUresult result;
        memset(value, 0xcc, sizeof(value));
        if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
            continue;
        result = cuPointerGetAttribute(value, (CUpointer_attribute)attribute, address);
        memcpy(&number, value, sizeof(number));
        printf(" %d=", attribute);
        if (result != CUDA_SUCCESS)
            printf("error:%d", (int)result);
        else if (number == address)
            printf("address");
        else if (number == block)
            printf("block");
        else if ((number >> 32) == 0xcccccccc || number <= 1000000)
            printf("%u", (unsigned)number);
        else if ((number & 0xffffffffffffff00u) == 0xcccccccccccccc00u)
            printf("byte:%u", (unsigned)(number & 0xff));
        else
            printf("other");
    }
    printf("\n");
}

static void several_attributes_of(const char *what, CUdeviceptr address)
{
    CUpointer_attribute names[] = {
        CU_POINTER_ATTRIBUTE_CONTEXT,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_BUFFER_ID,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_MAPPED,
    };
    enum { COUNT = sizeof(names) / sizeof(names[0]) };
    uint64_t values[COUNT];
    void *pointers[COUNT];

    memset(values, 0xcc, sizeof(values));
    for (int i = 0; i < COUNT; i++)
        pointers[i] = &values[i];
    printf("%s, several: result %d;", what,
           (int)cuPointerGetAttributes(COUNT, names, pointers, address));
    for (int i = 0; i < COUNT; i++)
        printf(" %d=%s%llx", (int)names[i], values[i] == address ? "address:" : "",
               (unsigned long long)(values[i] == address ? 0 : values[i]));
    printf("\n");
}

static void attributes(void)
{
    CUdeviceptr block, large, managed, base = 1;
    size_t bytes = 1;

    primary();
    MUST(cuMemAlloc(&block, 1000));
    MUST(cuMemAlloc(&large, (size_t)5 << 20));
    MUST(cuMemAllocManaged(&managed, 1000, CU_MEM_ATTACH_GLOBAL));
    attributes_of("block of 1000", block, block);
    attributes_of("interior of it", block + 500, block);
    attributes_of("one past its end", block + 1000, block);
    attributes_of("block of 5 MiB", large, large);
    attributes_of("interior of it", large + (3 << 20), large);
    attributes_of("one past its end", large + ((size_t)5 << 20), large);
    attributes_of("managed", managed, managed);
    attributes_of("interior of it", managed + 500, managed);
    attributes_of("never allocated", 0x1234000, 0);
    attributes_of("NULL", 0, 0);
    several_attributes_of("block of 1000", block);
    several_attributes_of("interior of it", block + 500);
    several_attributes_of("one past its end", block + 1000);
    several_attributes_of("never allocated", 0x1234000);

    printf("address range with both outputs NULL = %d\n",
           (int)cuMemGetAddressRange(NULL, NULL, block));
    printf("  base only = %d", (int)cuMemGetAddressRange(&base, NULL, block + 5));
    printf(" (%s), size only = %d", base == block ? "right" : "wrong",
           (int)cuMemGetAddressRange(NULL, &bytes, block + 5));
    printf(" (%zu)\n  of NULL = %d, of NULL without outputs = %d, unknown without outputs = %d\n",
           bytes, (int)cuMemGetAddressRange(&base, &bytes, 0),
           (int)cuMemGetAddressRange(NULL, NULL, 0),
           (int)cuMemGetAddressRange(NULL, NULL, 0x1234000));

    MUST(cuMemFree(block));
    MUST(cuMemFree(large));
    MUST(cuMemFree(managed));
    attributes_of("freed block of 1000", block, block);
    attributes_of("interior of it", block + 500, block);
    attributes_of("freed block of 5 MiB", large, large);
    attributes_of("freed managed", managed, managed);
    several_attributes_of("freed block of 1000", block);
    printf("address range of the freed block = %d\n",
           (int)cuMemGetAddressRange(&base, &bytes, block));
    printf("no attributes at all = %d, NULL data = %d\n",
           (int)cuPointerGetAttributes(0, NULL, NULL, block),
           (int)cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block));
}

static void free_async_capturing(void)
{
    CUdeviceptr block, base;
    CUstream stream;
    CUgraph graph = NULL;
    size_t bytes, nodes = 99;

    primary();
    MUST(cuMemAlloc(&block, 1000));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    printf("cuMemFreeAsync of a cuMemAlloc pointer on a capturing stream = %d\n",
           (int)cuMemFreeAsync(block, stream));
    printf("  its range then = %d\n", (int)cuMemGetAddressRange(&base, &bytes, block));
    printf("  cuStreamEndCapture = %d", (int)cuStreamEndCapture(stream, &graph));
    if (graph)
        (void)cuGraphGetNodes(graph, NULL, &nodes);
    printf(", %zu nodes\n", graph ? nodes : 0);
    printf("  cuMemFree afterwards = %d\n", (int)cuMemFree(block));

    MUST(cuMemAlloc(&block, 1000));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    printf("the same in a global capture = %d", (int)cuMemFreeAsync(block, stream));
    printf(", cuStreamEndCapture = %d", (int)cuStreamEndCapture(stream, &graph));
    printf(", cuMemFree afterwards = %d\n", (int)cuMemFree(block));
}

static void free_async_invalid(void)
{
    CUdeviceptr block;
    static uint64_t not_a_stream[128];

    primary();
    MUST(cuMemAlloc(&block, 1000));
    fflush(stdout);
    printf("cuMemFreeAsync on an invalid stream = %d\n",
           (int)cuMemFreeAsync(block, (CUstream)not_a_stream));
    printf("  cuMemFree afterwards = %d\n", (int)cuMemFree(block));
}

static void free_async_destroyed(void)
{
    CUdeviceptr block;
    CUstream stream;

    primary();
    MUST(cuMemAlloc(&block, 1000));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamDestroy(stream));
    fflush(stdout);
    printf("cuMemFreeAsync on a destroyed stream = %d\n", (int)cuMemFreeAsync(block, stream));
    printf("  cuMemFree afterwards = %d\n", (int)cuMemFree(block));
}

static void free_async(void)
{
    CUdeviceptr block;
    CUstream stream;

    primary();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&block, 1000));
    printf("cuMemFreeAsync of an interior pointer = %d\n",
           (int)cuMemFreeAsync(block + 512, stream));
    printf("cuMemFreeAsync = %d", (int)cuMemFreeAsync(block, stream));
    printf(", again = %d", (int)cuMemFreeAsync(block, stream));
    MUST(cuStreamSynchronize(stream));
    printf(", again when done = %d\n", (int)cuMemFreeAsync(block, stream));
    printf("cuMemFreeAsync of NULL = %d, of an unknown pointer = %d\n",
           (int)cuMemFreeAsync(0, stream), (int)cuMemFreeAsync(0x1234000, stream));
    MUST(cuMemAlloc(&block, 1000));
    printf("cuMemFreeAsync on NULL stream = %d\n", (int)cuMemFreeAsync(block, NULL));
    MUST(cuMemAlloc(&block, 1000));
    MUST(cuCtxSetCurrent(NULL));
    printf("cuMemFreeAsync with no current context, NULL stream = %d",
           (int)cuMemFreeAsync(block, NULL));
    printf(", own stream = %d\n", (int)cuMemFreeAsync(block, stream));
}

static void green_context(void)
{
    CUcontext first = primary(), context = NULL, owner = NULL;
    CUdevResource all, part;
    CUdevResourceDesc descriptor;
    CUgreenCtx green;
    CUdeviceptr block, base;
    unsigned groups = 1;
    unsigned long long id_first = 0, id_green = 0;
    size_t bytes;
    CUdevice device = -1;

    MUST(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, 16));
    MUST(cuDevResourceGenerateDesc(&descriptor, &part, 1));
    MUST(cuGreenCtxCreate(&green, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    MUST(cuCtxFromGreenCtx(&context, green));
    MUST(cuCtxSetCurrent(context));
    (void)cuCtxGetId(first, &id_first);
    (void)cuCtxGetId(context, &id_green);
    printf("green context: handle %s, id %s, cuCtxGetDevice = %d",
           context == first ? "primary's" : "own", id_first == id_green ? "primary's" : "own",
           (int)cuCtxGetDevice(&device));
    printf(" (device %d)\n", (int)device);
    MUST(cuMemAlloc(&block, 1000));
    printf("  CONTEXT of memory made under it = %d",
           (int)cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, block));
    printf(": %s\n", owner == first     ? "the primary"
                     : owner == context ? "the green one"
                                        : "another");
    MUST(cuCtxSetCurrent(first));
    printf("  range under the primary = %d", (int)cuMemGetAddressRange(&base, &bytes, block));
    printf(", cuGreenCtxDestroy = %d", (int)cuGreenCtxDestroy(green));
    printf(", range afterwards = %d", (int)cuMemGetAddressRange(&base, &bytes, block));
    printf(", cuMemFree = %d\n", (int)cuMemFree(block));
}

static const struct {
    const char *name;
    void (*run)(void);
} scenes[] = {
    {"pitches", pitches},
    {"attributes", attributes},
    {"free_async", free_async},
    {"free_async_capturing", free_async_capturing},
    {"free_async_invalid", free_async_invalid},
    {"free_async_destroyed", free_async_destroyed},
    {"reset", reset},
    {"threads", threads},
    {"green_context", green_context},
};

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
        bool wanted = argc == 1;
        pid_t child;
        int status = 0;
        for (int j = 1; j < argc; j++)
            wanted = wanted || !strcmp(argv[j], scenes[i].name);
        if (!wanted)
            continue;
        printf("== %s\n", scenes[i].name);
        fflush(stdout);
        child = fork();
        if (child == 0) {
            alarm(60);
            scenes[i].run();
            exit(0);
        }
        waitpid(child, &status, 0);
        if (WIFSIGNALED(status))
            printf("  ended by signal %d\n", WTERMSIG(status));
        else if (WEXITSTATUS(status))
            printf("  exit status %d\n", WEXITSTATUS(status));
    }
    return 0;
}
