/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts that come, go and work side by side.
 *
 *   contexts SCENE     prints "ok", or what is wrong */
#include "ending_contexts.h"

#include <dlfcn.h>
#include <string.h>

#pragma weak hostcuda_live_allocations
#pragma weak hostcuda_call_count

enum { GREENS = 12, CHURNED = 40, MANY = 600, ROUNDS = 24 };

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

/* Until the primary context has ended. */
static void end_delay(pthread_t thread)
{
    for (unsigned look = 0; is_active(); look++)
        interrupt(thread, look);
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
static void retain_meanwhile(CUcontext primary)
{
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

static void retained_meanwhile(void)
{
    retain_meanwhile(retain());
}

/* The same, and the driver has failed when the library asked it first for the primary context's
 * handle. */
static void learnt_later(void)
{
    CUcontext primary = retain(), other;

    MUST(cuCtxCreate_v2(&other, 0, device));
    delay("cuDevicePrimaryCtxRetain:count=1:code=999");
    use(allocate());
    CHECK(hostcuda_fault_hits() == 1);
    MUST(cuCtxSetCurrent(primary));
    retain_meanwhile(primary);
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

CUresult cuCtxSynchronize_v2(CUcontext context); /* not in the header */

/* A wait for one context does not ask time and again whether another one's work is done. */
static void wait_beside_work(void)
{
    CUcontext idle = retain(), busy;
    unsigned *flag = flag_new();
    CUdeviceptr blocks[4];
    CUstream stream;

    gpu_work_load();
    MUST(cuCtxCreate_v2(&busy, 0, device));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 4; i++)
        blocks[i] = allocate();
    stop_at(stream, flag);
    for (int i = 0; i < 4; i++)
        MUST(cuMemFree(blocks[i]));
    MUST(cuCtxSetCurrent(idle));
    use_now();
    for (int round = 0; round < 2; round++) {
        unsigned long long before = hostcuda_call_count("cuEventQuery");
        MUST(round ? cuCtxSynchronize_v2(idle) : cuCtxSynchronize());
        CHECK(hostcuda_call_count("cuEventQuery") - before <= 1);
        MUST(cuCtxSetCurrent(busy));
    }
    flag_raise(flag);
    MUST(cuCtxSynchronize());
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
        {"learnt_later", learnt_later},
        {"late_look", late_look},
        {"late_reset", late_reset},
        {"late_destroy", late_destroy},
        {"released_by_the_library", released_by_the_library},
        {"wait_beside_work", wait_beside_work},
        {"churn", churn},
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
