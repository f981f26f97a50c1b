/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups of functions by name: dlsym (entered through dlsym_<cpu>.S) and cuGetProcAddress.
 *
 * A name alone does not tell which version of a function is meant. So the real look-up is made
 * first, and the address that it found is translated to that of a hook. */
#include "base/check.h"
#include "base/log.h"
#include "config/mode.h"
#include "driver/capture.h"
#include "hook/caller.h"
#include "hook/hook.h"
#include "hook/runtime.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

/* ---- the table of hooks ---- */

/* The default stream that the function means by a NULL stream. */
enum default_stream {
    LEGACY,     /* the legacy default stream */
    PER_THREAD, /* the calling thread's default stream */
};

/* What the library cannot do when the driver answers a hook's name with a function that the library
 * does not know. */
enum loss {
    NOTHING, /* the driver serves the call as it would anyway; only the retry after an out-of-memory
                error, or what is done around a wait, is missing */
    SERVICE, /* the call is neither served nor corrected */
    LIMIT,   /* the call takes device memory that is counted against no limit */
};

/* One row of driver/entry_points.def. */
struct hook {
    const char *symbol; /* as exported */
    const char *name;   /* the name for cuGetProcAddress; NULL for a function of the runtime */
    int since, until;   /* the first CUDA version that gives the symbol for the name, and the first
                         * that no longer does */
    enum default_stream stream;
    enum loss loss;
    void *replacement;
    const void *member; /* the member of rs_driver that points to the driver's function; NULL for a
                           function of the runtime */
};

#define NEWEST (1 << 30)

/* clang-format off */
#define LOSS_lookup  SERVICE
#define LOSS_device  LIMIT
#define LOSS_managed LIMIT
#define LOSS_pinned  SERVICE
#define LOSS_async   LIMIT
#define LOSS_introspect SERVICE
#define LOSS_guard   SERVICE
#define LOSS_limit   LIMIT
#define LOSS_count   SERVICE
#define LOSS_capture SERVICE
#define LOSS_context SERVICE
#define LOSS_retry   NOTHING
#define LOSS_wait    NOTHING
/* clang-format on */

/* Function pointers are kept as object pointers, as dlsym hands them out. */
#define ADDRESS(symbol) ((void *)(symbol))

static const struct hook hooks[] = {
#define HOOK(symbol, name, since, until, stream, group, summary)                                   \
    {#symbol, #name, since, until, stream, LOSS_##group, ADDRESS(symbol), &rs_driver.symbol},
#define NAME(symbol, name, since, until, stream, group)                                            \
    HOOK(symbol, name, since, until, stream, group, "")
#define RUNTIME(symbol, group, summary)                                                            \
    {#symbol, NULL, 0, NEWEST, LEGACY, SERVICE, ADDRESS(symbol), NULL},
#include "driver/entry_points.def"
};

/* Returns the driver's exported function. NULL when the driver does not have it, and for a function
 * of the runtime. May be called once the driver is ready. */
static void *real_of(const struct hook *hook)
{
    void *real = NULL;

    if (hook->member)
        memcpy(&real, hook->member, sizeof(real));
    return real;
}

CUresult rs_hook_missing(void)
{
    return rs_driver_ready(true) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_NO_DEVICE;
}

static const struct hook *hook_named(const char *symbol)
{
    for (unsigned i = 0; i < RS_ARRAY_LENGTH(hooks); i++)
        if (strcmp(hooks[i].symbol, symbol) == 0)
            return &hooks[i];
    return NULL;
}

/* ---- from addresses of the driver's functions to hooks ---- */

/* Calls rs_driver_ready after a look-up of the program that found its symbol. Clears the error that
 * the library's own look-ups may leave for dlerror() (there is no driver, or it lacks a function).
 * Must not be called after a look-up of the program that failed, since its error would be lost. */
static bool driver_ready_quietly(void)
{
    int error = errno;
    bool ready;

    if (RS_LIKELY(atomic_load_explicit(&rs_driver_is_ready, memory_order_acquire)))
        return true;
    ready = rs_driver_ready(false);
    (void)dlerror();
    errno = error;
    return ready;
}

/* Returns the hook of the exported driver function at `real`, or NULL. If the driver exports that
 * function under several names, the hook is that of the last of these names in the table. */
static void *replacement_of(const void *real)
{
    if (!driver_ready_quietly())
        return NULL;
    for (unsigned i = RS_ARRAY_LENGTH(hooks); i-- > 0;)
        if (real_of(&hooks[i]) == real && hooks[i].replacement != real)
            return hooks[i].replacement;
    return NULL;
}

/* The function that the driver returns for a name may change between hook->since and hook->until.
 * So the driver is asked for these CUDA versions too. */
static const int versions[] = {3020,  4000,  6000,  7000,  11000, 11020,
                               11040, 12000, 12020, 12050, 12080, 13000};

static void *ask_driver(const struct hook *hook, int version)
{
    cuuint64_t flags = hook->stream == PER_THREAD ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                                  : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    void *function = NULL;
    CUdriverProcAddressQueryResult status;
    CUresult result = CUDA_ERROR_NOT_FOUND;

    if (rs_driver.cuGetProcAddress_v2)
        result = rs_driver.cuGetProcAddress_v2(hook->name, &function, version, flags, &status);
    else if (rs_driver.cuGetProcAddress)
        result = rs_driver.cuGetProcAddress(hook->name, &function, version, flags);
    return result == CUDA_SUCCESS ? function : NULL;
}

static bool is_answer_of(const struct hook *hook, const void *function)
{
    bool found = ask_driver(hook, hook->since) == function;

    for (size_t v = 0; v < RS_ARRAY_LENGTH(versions) && !found; v++)
        found = versions[v] > hook->since && versions[v] < hook->until &&
                ask_driver(hook, versions[v]) == function;
    return found;
}

/* Returns the hook for a function that cuGetProcAddress returned for this name, or NULL. The
 * address is compared with what the driver's cuGetProcAddress returns, since libcuda may export the
 * function at another one: another shim may answer one of the two look-ups, or libcuda may be a
 * stub for the true driver. A function that the driver does not export gets no hook. */
static void *replacement_named(const char *name, const void *function)
{
    for (unsigned i = 0; i < RS_ARRAY_LENGTH(hooks); i++) {
        const struct hook *hook = &hooks[i];
        if (hook->name && strcmp(hook->name, name) == 0 && real_of(hook) &&
            hook->replacement != function && is_answer_of(hook, function))
            return hook->replacement;
    }
    return NULL;
}

/* Called when a look-up of a hooked name returned a function that the library does not know: a
 * newer driver's version, or another shim's function.  The program gets that function.  The first
 * such name is logged, unless only a retry or a wait is lost with it. */
static void say_unknown_function(const char *name, int version, cuuint64_t flags)
{
    static struct rs_late_line line = {
        .text = ": the driver returned a version of this function that rmmshim does not know, so "
                "the driver itself serves calls of this function: install a newer rmmshim"};
    bool per_thread = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

    for (unsigned i = 0; i < RS_ARRAY_LENGTH(hooks); i++) {
        const struct hook *hook = &hooks[i];
        if (!hook->name || strcmp(hook->name, name) != 0 || version < hook->since ||
            version >= hook->until || (hook->stream == PER_THREAD) != per_thread)
            continue;
        if (hook->loss == NOTHING)
            return;
        if (hook->loss == LIMIT)
            rs_mode_note_unknown(name);
        rs_log_once_serving(&line, name);
        return;
    }
}

/* Called when a look-up finds a function for which there is no hook. If its name says that it
 * begins a capture, the library can no longer know all captures. The newest such function with a
 * hook is cuStreamBeginRecaptureToGraph of CUDA 13.3. */
static void note_unknown_capture(const char *name)
{
    static const char begin[] = "cuStreamBegin";

    if (strncmp(name, begin, sizeof(begin) - 1) == 0 && strcasestr(name, "capture"))
        rs_capture_distrust(name);
}

/* Returns the hook for the function that cuGetProcAddress(name, version, flags) returned, or the
 * function itself if it has no hook. */
static void *translate(const char *name, void *function, int version, cuuint64_t flags)
{
    void *replacement = replacement_of(function);

    if (!replacement && name)
        replacement = replacement_named(name, function);
    if (replacement)
        return replacement;
    if (name) {
        say_unknown_function(name, version, flags);
        note_unknown_capture(name);
    }
    return function;
}

/* ---- cuGetProcAddress ---- */

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    CUresult result = RS_FORWARD(cuGetProcAddress, (symbol, function, version, flags));

    if (result == CUDA_SUCCESS && function && *function)
        *function = translate(symbol, *function, version, flags);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    CUresult result = RS_FORWARD(cuGetProcAddress_v2, (symbol, function, version, flags, status));

    if (result == CUDA_SUCCESS && function && *function)
        *function = translate(symbol, *function, version, flags);
    return result;
}

/* ---- dlsym ---- */

/* The answer to dlsym: `address`, or, when forward_to is set, the result of a jump there. */
struct rs_answer {
    void *address;
    void *forward_to;
};

__attribute__((visibility("hidden"))) struct rs_answer rs_look_up(void *handle, const char *symbol,
                                                                  const void *caller);

RS_BEFORE_SANITIZERS static struct rs_answer forward(void)
{
    return (struct rs_answer){NULL, (void *)rs_real_dlsym()};
}

static struct rs_answer answer_with(void *address)
{
    return (struct rs_answer){address, NULL};
}

/* True for a look-up that the driver itself makes, which must find the driver's own functions: on
 * WSL, for example, libcuda is a stub that looks up the functions of the true driver. */
static bool is_driver(const void *caller)
{
    Dl_info driver, asking;

    return rs_driver.cuCtxGetCurrent && dladdr((void *)rs_driver.cuCtxGetCurrent, &driver) &&
           dladdr(caller, &asking) && driver.dli_fbase == asking.dli_fbase;
}

/* Answers look-ups with RTLD_DEFAULT, with RTLD_NEXT by an object that precedes the library, and
 * with a handle that searches the global scope. In these, the real dlsym would find the library's
 * own export even on a machine without a driver, and the program would believe that it has CUDA. So
 * the answer is the hook only if there is another definition than the library's. */
static struct rs_answer look_up_default(const struct hook *hook, const void *caller)
{
    /* RTLD_NEXT searches the objects that follow the library in the global scope. */
    void *real = rs_real_dlsym()(RTLD_NEXT, hook->symbol);

    if (!real)
        real = rs_caller_find(caller, hook->symbol);
    /* If nothing was found, dlerror() reports that as it would for the program's own look-up. */
    return answer_with(real ? hook->replacement : NULL);
}

/* Warns, once, if a libcuda was preloaded in front of the library: all calls of programs that are
 * linked with libcuda then go there. A look-up may be the only call that reaches the library, so
 * the settings are read here; else nobody would be told that a limit does not hold. Other libraries
 * in front are not reported, since they may call this library in turn. */
static void say_driver_first(void)
{
    static bool looked;
    const char *driver;

    if (RS_LIKELY(__atomic_load_n(&looked, __ATOMIC_RELAXED)) || !rs_log_once(&looked))
        return;
    driver = rs_caller_driver_before_us();
    if (!driver || rs_mode_now() != RS_MODE_SERVE)
        return;
    rs_log("%s was loaded before librmmshim.so, so rmmshim does not see the calls of code that is "
           "linked with the driver%s; put librmmshim.so first in LD_PRELOAD",
           driver,
           rs_config.any_limit || rs_config.limit_job ? ", and no limit applies to them" : "");
}

RS_BEFORE_SANITIZERS struct rs_answer rs_look_up(void *handle, const char *symbol,
                                                 const void *caller)
{
    const struct hook *hook;
    void *real, *replacement;

    /* All hooked names begin with "cu". A look-up of any other name is forwarded at once. */
    if (!symbol || symbol[0] != 'c' || symbol[1] != 'u')
        return forward();
    say_driver_first();
    hook = hook_named(symbol);
    if (!hook) {
        note_unknown_capture(symbol);
        return forward();
    }
    if (handle == RTLD_NEXT && !rs_caller_comes_before_us(caller))
        return forward(); /* the caller is an interposer after the library, which asks for the
                             definition after its own */
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT)
        return look_up_default(hook, caller);
    real = rs_real_dlsym()(handle, symbol);
    if (!real)
        return answer_with(NULL);
    if (real == hook->replacement)
        return look_up_default(hook, caller);
    if (!hook->name)
        return answer_with(rs_runtime_by_handle(handle, symbol, real));
    replacement = replacement_of(real);
    return answer_with(replacement && !is_driver(caller) ? replacement : real);
}
