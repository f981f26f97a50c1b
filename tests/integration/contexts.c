/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts that come, go and work side by side.
 *
 *   contexts SCENE     prints "ok", or what is wrong */
#include "device_work.h"
#include "rmmshim/rmmshim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#pragma weak hostcuda_live_allocations
#pragma weak hostcuda_call_count
#pragma weak hostcuda_fault_hits
#pragma weak hostcuda_used_bytes
#pragma weak rmmshim_get_statistics

enum { BYTES = 1 << 20, WORDS = BYTES / 4, GREENS = 12, CHURNED = 40, MANY = 600, ROUNDS = 24 };

static CUdevice device;

static CUdeviceptr allocate(void)
{
    CUdeviceptr block;

    MUST(cuMemAlloc(&block, BYTES));
    return block;
}

/* Memory of a context that lives: the driver can fill it and read it. */
static void use(CUdeviceptr block)
{
    unsigned host[WORDS / 64], value = (unsigned)(block >> 9) | 1;

    MUST(cuMemsetD32(block, value, WORDS));
    MUST(cuMemcpyDtoH(host, block, sizeof(host)));
    CHECK(host[0] == value && host[WORDS / 64 - 1] == value);
}

static CUcontext retain(void)
{
    CUcontext context;

    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    return context;
}

/* ---- green contexts ---- */

#if CUDA_VERSION >= 12040
static CUgreenCtx make_green(CUcontext *context)
{
    CUdevResourceDesc description;
    CUdevResource resource;
    CUgreenCtx green;

    MUST(cuDeviceGetDevResource(device, &resource, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevResourceGenerateDesc(&description, &resource, 1));
    MUST(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    MUST(cuCtxFromGreenCtx(context, green));
    return green;
}

static void *allocate_in(void *context)
{
    MUST(cuCtxSetCurrent(context));
    (void)allocate();
    return NULL;
}

/* A kernel that works for ever beside green contexts keeps nobody from allocating in them. */
static void green_beside_a_kernel(void)
{
    CUcontext primary = retain(), green[GREENS];
    CUgreenCtx made[GREENS];
    unsigned *flag = flag_new();
    CUdeviceptr blocks[GREENS], block = allocate();
    pthread_t thread;
    CUstream stream;

    gpu_work_load();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < GREENS; i++)
        made[i] = make_green(&green[i]);
    stop_at(stream, flag);
    for (int i = 0; i < GREENS; i++) {
        MUST(cuCtxSetCurrent(green[i]));
        blocks[i] = allocate();
        CHECK(pthread_create(&thread, NULL, allocate_in, primary) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    flag_raise(flag);
    MUST(cuStreamSynchronize(stream));
    for (int i = 0; i < GREENS; i++) {
        MUST(cuMemFree(blocks[i]));
        MUST(cuGreenCtxDestroy(made[i]));
    }
    MUST(cuCtxSetCurrent(primary));
    MUST(cuMemFree(block));
    MUST(cuMemFreeHost(flag));
}

/* The same where a green context was known before it was to get a stack: the first device has none.
 */
static void green_pushed(void)
{
    CUcontext primary = retain(), green;
    unsigned *flag = flag_new();
    int (*push)(const char *expression);
    void *found = dlsym(RTLD_DEFAULT, "rmmshim_push_resource");
    CUstream stream;

    CHECK(found);
    memcpy(&push, &found, sizeof(push));
    gpu_work_load();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    (void)make_green(&green);
    MUST(cuCtxSetCurrent(green));
    (void)allocate();
    MUST(cuCtxSetCurrent(primary));
    stop_at(stream, flag);
    MUST(cuCtxSetCurrent(green));
    MUST(push("pool(cuda)"));
    (void)allocate();
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    flag_raise(flag);
    MUST(cuStreamSynchronize(stream));
}

/* Those that come and go leave nothing: no memory, and no entry that keeps others out. */
static void green_churn(void)
{
    CUcontext primary = retain(), green;
    unsigned before = 0;

    MUST(cuMemFree(allocate()));
    for (int round = 0; round < CHURNED; round++) {
        CUgreenCtx made = make_green(&green);
        MUST(cuCtxSetCurrent(green));
        MUST(cuMemFree(allocate()));
        MUST(cuCtxSetCurrent(primary));
        MUST(cuGreenCtxDestroy(made));
        if (round == CHURNED / 2 && hostcuda_live_allocations)
            before = hostcuda_live_allocations();
    }
    CHECK(!hostcuda_live_allocations || hostcuda_live_allocations() <= before + 1);
}
#endif

/* ---- primary contexts that end while others go on ---- */

static bool is_active(void)
{
    unsigned flags;
    int active;

    MUST(cuDevicePrimaryCtxGetState(device, &flags, &active));
    return active;
}

static void *release(void *data)
{
    (void)data;
    MUST(cuDevicePrimaryCtxRelease(device));
    return NULL;
}

static void *reset(void *data)
{
    (void)data;
    MUST(cuDevicePrimaryCtxReset(device));
    return NULL;
}

static pthread_t start(void *(*run)(void *data), void *data)
{
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, run, data) == 0);
    return thread;
}

static void finish(pthread_t thread)
{
    CHECK(pthread_join(thread, NULL) == 0);
}

/* The next call of that name is late: until then it has not begun, or its caller does not know what
 * it did. */
static void delay(const char *rule)
{
    hostcuda_fault_clear();
    CHECK(hostcuda_fault_add(rule) == 0);
}

static void wait_for_delay(void)
{
    while (hostcuda_fault_hits() == 0)
        sched_yield();
}

/* A delay before a call, so long that only end_delay or finish_delayed ends it. */
#define UNTIL_TOLD "before_us=600000000"

static void ignore(int signal_number)
{
    (void)signal_number;
}

/* A signal interrupts the delay.  The first may come before that has begun; a later one may also
 * interrupt the delay after the call, and so comes only when it is needed. */
static void interrupt(pthread_t thread, unsigned look)
{
    static const struct timespec pause = {0, 1000 * 1000};
    enum { LOOKS = 8 };

    signal(SIGUSR1, ignore);
    if (look % LOOKS == 0)
        CHECK(pthread_kill(thread, SIGUSR1) == 0);
    (void)nanosleep(&pause, NULL);
}

/* Until the primary context has ended. */
static void end_delay(pthread_t thread)
{
    for (unsigned look = 0; is_active(); look++)
        interrupt(thread, look);
}

static void finish_delayed(pthread_t thread)
{
    for (unsigned look = 0; pthread_tryjoin_np(thread, NULL) != 0; look++)
        interrupt(thread, look);
}

/* Blocks of the context that is current now, also after everything was given back. */
static void use_now(void)
{
    CUdeviceptr first = allocate(), second = allocate();

    use(first);
    use(second);
    CHECK(first != second);
    MUST(cuMemFree(first));
    use(second);
    MUST(cuMemFree(second));
    use(allocate());
}

static void *retain_and_use(void *data)
{
    (void)data;
    (void)retain();
    use_now();
    return NULL;
}

static void wait_for_end(void)
{
    while (is_active())
        sched_yield();
}

/* This thread has a new context, with the same handle, before the old one's release returns. */
static void use_beside(pthread_t releasing, CUcontext primary)
{
    wait_for_end();
    CHECK(retain() == primary);
    use_now();
    finish(releasing);
    use_now();
}

/* The driver's release has ended the context, but has not returned. */
static void late_release(void)
{
    CUcontext primary = retain();

    use(allocate());
    delay("cuDevicePrimaryCtxRelease:after_us=60000:count=1");
    use_beside(start(release, NULL), primary);
}

/* The same, and the old context is looked up when its release has begun. */
static void looked_up_meanwhile(void)
{
    CUcontext primary = retain();
    pthread_t thread;

    use(allocate());
    delay("cuDevicePrimaryCtxRelease:" UNTIL_TOLD ":after_us=60000:count=1");
    thread = start(release, NULL);
    wait_for_delay();
    (void)allocate();
    end_delay(thread);
    use_beside(thread, primary);
}

/* The same, and the first allocation comes when the release has returned. */
static void retained_meanwhile(void)
{
    CUcontext primary = retain();
    CUdeviceptr old = allocate();
    pthread_t thread;

    use(old);
    delay("cuDevicePrimaryCtxRelease:after_us=60000:count=1");
    thread = start(release, NULL);
    wait_for_end();
    CHECK(retain() == primary);
    finish(thread);
    CHECK(cuMemFree(old) == CUDA_ERROR_INVALID_VALUE);
    use_now();
}

/* The releasing thread has seen that the context is gone, and then there is a new one with memory
 * in it. */
static void late_look(void)
{
    pthread_t thread;

    (void)retain();
    use(allocate());
    MUST(cuCtxSetCurrent(NULL));
    delay("cuDevicePrimaryCtxGetState:after_us=60000:count=1");
    thread = start(release, NULL);
    wait_for_delay();
    wait_for_end();
    (void)retain();
    use(allocate());
    CUdeviceptr block = allocate();
    finish(thread);
    use(block);
    MUST(cuMemFree(block));
    CHECK(cuMemFree(block) == CUDA_ERROR_INVALID_VALUE);
    finish(start(retain_and_use, NULL));
}

/* Memory that is allocated while a reset is on its way is gone after it. */
static void late_reset(void)
{
    CUcontext primary = retain();
    pthread_t thread;

    use(allocate());
    delay("cuDevicePrimaryCtxReset:" UNTIL_TOLD ":count=1");
    thread = start(reset, NULL);
    wait_for_delay();
    for (int i = 0; i < 3; i++)
        (void)allocate(); /* so that some room is left */
    finish_delayed(thread);
    CHECK(!is_active());
    CHECK(retain() == primary);
    use_now();
}

/* The same for a created context, whose handle comes again. */
static void *destroy(void *context)
{
    MUST(cuCtxDestroy(context));
    return NULL;
}

static void late_destroy(void)
{
    CUcontext context, again;
    pthread_t thread;

    MUST(cuCtxCreate_v2(&context, 0, device));
    use(allocate());
    delay("cuCtxDestroy:" UNTIL_TOLD ":count=1");
    thread = start(destroy, context);
    wait_for_delay();
    (void)allocate();
    finish_delayed(thread);
    MUST(cuCtxCreate_v2(&again, 0, device));
    CHECK(again == context);
    use_now();
}

/* A reference that the library takes for a moment may become the last one. */
static void *allocate_for_torch(void *allocate_on)
{
    void *(*function)(size_t size_bytes, int number, void *stream);
    void *block;

    memcpy(&function, &allocate_on, sizeof(function));
    block = function(BYTES, device, NULL);
    CHECK(block);
    return NULL;
}

static void released_by_the_library(void)
{
    CUcontext primary = retain();
    void *function = dlsym(RTLD_DEFAULT, "rmmshim_torch_alloc");
    pthread_t thread;

    CHECK(function);
    use(allocate());
    delay("cuDevicePrimaryCtxRelease_v2:" UNTIL_TOLD ":count=1");
    thread = start(allocate_for_torch, function);
    wait_for_delay();
    MUST(cuDevicePrimaryCtxRelease(device));
    finish_delayed(thread);
    CHECK(!is_active());
    CHECK(retain() == primary);
    use_now();
}

/* Threads that hold the primary context while they use it; now and then nobody does. */
static void *come_and_go(void *data)
{
    CUdeviceptr blocks[3];

    for (int round = 0; round < ROUNDS; round++) {
        (void)retain();
        for (int i = 0; i < 3; i++) {
            blocks[i] = allocate();
            use(blocks[i]);
        }
        for (int i = 0; i < 2; i++)
            MUST(cuMemFree(blocks[i]));
        use(blocks[2]);
        if (round % 8) /* else it goes with its context */
            MUST(cuMemFree(blocks[2]));
        MUST(cuDevicePrimaryCtxRelease(device));
    }
    return data;
}

static void churn(void)
{
    pthread_t threads[2];

    for (int i = 0; i < 2; i++)
        threads[i] = start(come_and_go, NULL);
    for (int i = 0; i < 2; i++)
        finish(threads[i]);
    CHECK(!is_active());
}

/* ---- addresses of a context that ends ---- */

enum { OLD_BLOCKS = 8, OLD_BYTES = 4 << 20, WIDE_BYTES = 30 << 20 };

static bool has_handles; /* memory under these settings has IPC handles */

/* How a context ends: in its own thread, which does not come back until it is told. */
struct end {
    CUcontext context; /* that ends; the device's primary one, unless it is destroyed */
    CUcontext beside;  /* which is current afterwards */
    CUdeviceptr blocks[OLD_BLOCKS];
    pthread_t thread;
};

static const struct way {
    const char *name, *call;
    void *(*end)(void *context);
    bool is_primary;
} ways[] = {
    {"destroy", "cuCtxDestroy", destroy, false},
    {"reset", "cuDevicePrimaryCtxReset", reset, true},
    {"release", "cuDevicePrimaryCtxRelease", release, true},
};

static CUcontext create(void)
{
    CUcontext context;

    MUST(cuCtxCreate_v2(&context, 0, device));
    MUST(cuCtxSetCurrent(context));
    return context;
}

/* A context with blocks, and another one, in which the rest of the scene plays. */
static struct end make_end(const struct way *way)
{
    CUipcMemHandle handle;
    CUdeviceptr block;
    struct end end;

    end.beside = way->is_primary ? create() : retain();
    block = allocate();
    has_handles = cuIpcGetMemHandle(&handle, block) == CUDA_SUCCESS;
    MUST(cuMemFree(block));
    end.context = way->is_primary ? retain() : create();
    for (int i = 0; i < OLD_BLOCKS; i++)
        MUST(cuMemAlloc(&end.blocks[i], OLD_BYTES));
    MUST(cuCtxSetCurrent(end.beside));
    return end;
}

/* The driver has ended the context when this returns, and its call has not. */
static void end_late(struct end *end, const struct way *way)
{
    size_t before = hostcuda_used_bytes(device);
    char rule[80];

    snprintf(rule, sizeof(rule), "%s:after_us=600000000:count=1", way->call);
    delay(rule);
    end->thread = start(way->end, end->context);
    while (hostcuda_used_bytes(device) >= before)
        sched_yield();
}

static void check_range(CUdeviceptr address, CUdeviceptr begin, size_t bytes)
{
    CUdeviceptr base = 0;
    size_t size = 0;

    MUST(cuMemGetAddressRange(&base, &size, address));
    CHECK(base == begin && size == bytes);
}

/* All calls about an address say what they say of memory that lives. */
static void check_living(CUdeviceptr block, size_t bytes, bool is_ours)
{
    CUdeviceptr last = block + bytes - 1;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    unsigned type = 0;
    int ordinal = -1;
    CUipcMemHandle handle;

    check_range(block, block, bytes);
    check_range(last, block, bytes);
    MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, last));
    CHECK(type == CU_MEMORYTYPE_DEVICE);
    type = 0;
    MUST(cuPointerGetAttributes(2, attributes, (void *[]){&type, &ordinal}, last));
    CHECK(type == CU_MEMORYTYPE_DEVICE && ordinal == device);
    if (is_ours && has_handles)
        MUST(cuIpcGetMemHandle(&handle, last));
}

/* Ends both contexts.  Nothing is left of what the program freed, or lost with a context. */
static void end_all(const struct end *end, const struct way *way)
{
    struct rmmshim_statistics statistics = {.size = sizeof(statistics)};

    if (way->is_primary)
        MUST(cuCtxDestroy(end->beside));
    if (way->end != release)
        MUST(cuDevicePrimaryCtxRelease(device));
    CHECK(!is_active());
    if (!rmmshim_get_statistics)
        return;
    CHECK(rmmshim_get_statistics(device, &statistics) == 0);
    CHECK(statistics.used_blocks == 0 && statistics.used_bytes == 0);
    CHECK(statistics.allocations == statistics.frees);
}

/* The driver gives the addresses to others before its call returns: one wide block over several old
 * ones, as many as the old ones, small ones within an old one, and memory of the driver's own. */
static void reused(const struct way *way)
{
    struct end end = make_end(way);
    CUdeviceptr wide, again[OLD_BLOCKS], small[OLD_BLOCKS], ordered;
    CUstream stream;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    end_late(&end, way);
    MUST(cuMemAlloc(&wide, WIDE_BYTES));
    check_living(wide, WIDE_BYTES, true);
    MUST(cuMemFree(wide));
    CHECK(cuMemFree(wide) != CUDA_SUCCESS);
    for (int i = 0; i < OLD_BLOCKS; i++)
        MUST(cuMemAlloc(&again[i], OLD_BYTES));
    for (int i = 0; i < OLD_BLOCKS; i++)
        MUST(cuMemAlloc(&small[i], OLD_BYTES / OLD_BLOCKS / 2));
    MUST(cuMemAllocAsync(&ordered, WIDE_BYTES, stream));
    MUST(cuStreamSynchronize(stream));
    check_living(ordered, WIDE_BYTES, false);
    for (int i = 0; i < OLD_BLOCKS; i++) {
        check_living(again[i], OLD_BYTES, true);
        check_living(small[i], OLD_BYTES / OLD_BLOCKS / 2, true);
    }
    for (int i = 0; i < OLD_BLOCKS / 2; i++)
        MUST(cuMemFree(small[i]));
    MUST(cuMemFreeAsync(ordered, stream));
    MUST(cuMemAllocAsync(&ordered, OLD_BYTES, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemFree(again[0]));
    finish_delayed(end.thread);
    for (int i = OLD_BLOCKS / 2; i < OLD_BLOCKS; i++) {
        check_living(small[i], OLD_BYTES / OLD_BLOCKS / 2, true);
        MUST(cuMemFree(small[i]));
    }
    for (int i = 1; i < OLD_BLOCKS; i++) {
        check_living(again[i], OLD_BYTES, true);
        MUST(cuMemFree(again[i]));
    }
    check_living(ordered, OLD_BYTES, false);
    MUST(cuMemFreeAsync(ordered, stream));
    end_all(&end, way);
}

static void addresses_reused(void)
{
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        reused(&ways[i]);
}

/* Memory of the driver's own begins where a block of the context began. */
static void reused_by_driver(const struct way *way)
{
    struct end end = make_end(way);
    size_t used;
    CUdeviceptr ordered[2 * OLD_BLOCKS];
    CUstream stream;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    end_late(&end, way);
    used = hostcuda_used_bytes(device);
    for (int i = 0; i < 2 * OLD_BLOCKS; i++) {
        MUST(cuMemAllocAsync(&ordered[i], OLD_BYTES, stream));
        MUST(cuStreamSynchronize(stream));
    }
    for (int i = 0; i < 2 * OLD_BLOCKS; i++)
        if (i % 2)
            MUST(cuMemFreeAsync(ordered[i], stream));
        else
            MUST(cuMemFree(ordered[i]));
    MUST(cuStreamSynchronize(stream));
    CHECK(hostcuda_used_bytes(device) == used);
    finish_delayed(end.thread);
    end_all(&end, way);
}

static void addresses_reused_by_driver(void)
{
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        reused_by_driver(&ways[i]);
}

/* The driver refuses the end, or another reference is left: all is as before, and a call in between
 * does no harm. */
static void *end_refused(void *data)
{
    const struct end *end = data;

    CHECK(cuCtxDestroy(end->context) == CUDA_ERROR_INVALID_VALUE);
    return NULL;
}

static void *reset_refused(void *data)
{
    (void)data;
    CHECK(cuDevicePrimaryCtxReset(device) == CUDA_ERROR_INVALID_VALUE);
    return NULL;
}

static void check_as_before(struct end *end)
{
    for (int i = 0; i < OLD_BLOCKS; i++)
        check_living(end->blocks[i], OLD_BYTES, true);
    MUST(cuCtxSetCurrent(end->context));
    for (int i = 0; i < OLD_BLOCKS; i++) {
        MUST(cuMemFree(end->blocks[i]));
        CHECK(cuMemFree(end->blocks[i]) == CUDA_ERROR_INVALID_VALUE);
    }
    use_now();
}

static void end_that_fails(void)
{
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct end end;
        char rule[80];

        if (ways[i].end != destroy && ways[i].end != reset)
            continue;
        end = make_end(&ways[i]);
        snprintf(rule, sizeof(rule), "%s:" UNTIL_TOLD ":code=1:count=1", ways[i].call);
        delay(rule);
        end.thread = start(ways[i].is_primary ? reset_refused : end_refused, &end);
        wait_for_delay();
        /* The driver would free what other blocks lie in. */
        for (int j = 0; j < OLD_BLOCKS; j++)
            CHECK(cuMemFree(end.blocks[j]) == CUDA_ERROR_INVALID_VALUE);
        finish_delayed(end.thread);
        check_as_before(&end);
    }
}

static void reference_left(void)
{
    CUcontext primary = retain();
    struct end end;

    MUST(cuDevicePrimaryCtxRetain(&primary, device));
    end = make_end(&ways[2]);
    CHECK(end.context == primary);
    delay("cuDevicePrimaryCtxRelease:" UNTIL_TOLD ":count=1");
    end.thread = start(release, NULL);
    wait_for_delay();
    check_living(end.blocks[0], OLD_BYTES, true);
    MUST(cuMemFree(end.blocks[0]));
    CHECK(cuMemFree(end.blocks[0]) == CUDA_ERROR_INVALID_VALUE);
    MUST(cuCtxSetCurrent(primary));
    MUST(cuMemAlloc(&end.blocks[0], OLD_BYTES));
    check_living(end.blocks[0], OLD_BYTES, true);
    finish_delayed(end.thread);
    CHECK(is_active());
    check_as_before(&end);
}

/* ---- many at once ---- */

/* Each allocates; how many were refused. */
static void many(void)
{
    static CUcontext contexts[MANY];
    static CUdeviceptr blocks[MANY];
    int refused = 0;

    for (int i = 0; i < MANY; i++) {
        MUST(cuCtxCreate_v2(&contexts[i], 0, device));
        refused += cuMemAlloc(&blocks[i], 2 << 20) == CUDA_ERROR_OUT_OF_MEMORY;
        MUST(cuCtxPopCurrent(&contexts[i]));
    }
    printf("%d refused\n", refused);
    for (int i = 0; i < MANY; i++) {
        if (blocks[i])
            MUST(cuMemFree(blocks[i]));
        MUST(cuCtxDestroy(contexts[i]));
    }
}

/* ---- frees on streams of other contexts ---- */

static CUdeviceptr allocate_noted(void)
{
    CUdeviceptr block = allocate();

    if (hostcuda_note_allocate)
        hostcuda_note_allocate((void *)block, BYTES);
    return block;
}

static void free_noted(CUdeviceptr block, CUstream on)
{
    if (on && hostcuda_note_free_on)
        hostcuda_note_free_on((void *)block, on);
    else if (hostcuda_note_free)
        hostcuda_note_free((void *)block);
    if (on)
        MUST(cuMemFreeAsync(block, on));
    else
        MUST(cuMemFree(block));
}

/* A block that comes and goes in its own context. */
static void use_on(CUstream near)
{
    CUdeviceptr block = allocate_noted();

    fill(near, block, WORDS, 9);
    MUST(cuStreamSynchronize(near));
    free_noted(block, NULL);
}

static void check_races(void)
{
    CHECK(!hostcuda_race_count || hostcuda_race_count() == 0);
}

/* `there` is another context: of this device, or of another. */
static void free_on_stream_of(CUcontext here, CUcontext there)
{
    unsigned *flag = flag_new();
    CUdeviceptr block, other;
    CUstream far, near;

    MUST(cuCtxSetCurrent(there));
    MUST(cuStreamCreate(&far, CU_STREAM_NON_BLOCKING));
    MUST(cuCtxSetCurrent(here));
    MUST(cuStreamCreate(&near, CU_STREAM_NON_BLOCKING));
    for (int round = 0; round < 3; round++) {
        __atomic_store_n(flag, 0, __ATOMIC_SEQ_CST);
        block = allocate_noted();
        MUST(cuCtxSetCurrent(there));
        stop_at(far, flag);
        fill(far, block, WORDS, 7);
        MUST(cuCtxSetCurrent(here));
        free_noted(block, far); /* does not wait */
        CHECK(cuStreamQuery(far) == CUDA_ERROR_NOT_READY);
        CHECK(cuMemFree(block) == CUDA_ERROR_INVALID_VALUE);
        other = allocate_noted();
        CHECK(other != block);
        fill(near, other, WORDS, 8);
        MUST(cuStreamSynchronize(near));
        free_noted(other, NULL);
        flag_raise(flag);
        for (int i = 0; i < 8; i++) /* until its block comes again */
            use_on(near);
        MUST(cuCtxSetCurrent(there));
        MUST(cuStreamSynchronize(far));
        MUST(cuCtxSetCurrent(here));
    }
    check_races();
}

static void far_device(void)
{
    CUcontext here = retain(), there;

    gpu_work_load();
    MUST(cuDevicePrimaryCtxRetain(&there, 1));
    MUST(cuCtxSetCurrent(there));
    MUST(cuCtxEnablePeerAccess(here, 0));
    free_on_stream_of(here, there);
}

static void far_context(void)
{
    CUcontext here = retain(), there;

    gpu_work_load();
    MUST(cuCtxCreate_v2(&there, 0, device));
    free_on_stream_of(here, there);
}

/* Where no fence can be had the free waits for that stream's work: on an old driver, or while
 * another stream of its context captures. */
static void far_waits(bool captures)
{
    CUcontext here = retain(), there;
    CUdeviceptr block = allocate_noted();
    CUstream far, captured, near;
    CUgraph graph;

    gpu_work_load();
    MUST(cuStreamCreate(&near, CU_STREAM_NON_BLOCKING));
    MUST(cuCtxCreate_v2(&there, 0, device));
    MUST(cuStreamCreate(&far, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    hold(far, block, WORDS, 7, 20000);
    MUST(cuCtxSetCurrent(here));
    if (captures)
        MUST(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    free_noted(block, far);
    CHECK(cuStreamQuery(far) == CUDA_SUCCESS);
    if (captures) {
        MUST(cuStreamEndCapture(captured, &graph));
        MUST(cuGraphDestroy(graph));
    }
    for (int i = 0; i < 8; i++)
        use_on(near);
    check_races();
}

static void far_captured(void)
{
    far_waits(true);
}

static void far_old(void)
{
    far_waits(false);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenes[] = {
#if CUDA_VERSION >= 12040
        {"green_beside_a_kernel", green_beside_a_kernel},
        {"green_churn", green_churn},
        {"green_pushed", green_pushed},
#endif
        {"late_release", late_release},
        {"looked_up_meanwhile", looked_up_meanwhile},
        {"retained_meanwhile", retained_meanwhile},
        {"late_look", late_look},
        {"late_reset", late_reset},
        {"late_destroy", late_destroy},
        {"released_by_the_library", released_by_the_library},
        {"churn", churn},
        {"addresses_reused", addresses_reused},
        {"addresses_reused_by_driver", addresses_reused_by_driver},
        {"end_that_fails", end_that_fails},
        {"reference_left", reference_left},
        {"many", many},
        {"far_device", far_device},
        {"far_context", far_context},
        {"far_captured", far_captured},
        {"far_old", far_old},
    };

    setvbuf(stdout, NULL, _IONBF, 0);
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    for (size_t i = 0; argc > 1 && i < sizeof(scenes) / sizeof(scenes[0]); i++)
        if (!strcmp(argv[1], scenes[i].name)) {
            watchdog(argv[1], ENOUGH_S);
            scenes[i].run();
            puts("ok");
            return 0;
        }
    fprintf(stderr, "usage: contexts SCENE\n");
    return 2;
}
