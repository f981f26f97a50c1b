/* SPDX-License-Identifier: Apache-2.0 */
/* The walk by kept rules finds what the system's unwinder finds, and no more than there is. */
#include "unit.h"

#include "trace/call_site.h"
#include "trace/unwind.h"
#include "trace/unwind_rule.h"
#include "unwind_shapes.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { FRAMES_MAX = 128, SHAPES_MAX = 64, CHAIN_MAX = 12 };

static const struct rs_unwind_skipped none_skipped = {0, 0};

struct stacks {
    void *walked[FRAMES_MAX], *unwound[FRAMES_MAX];
    unsigned walked_count, unwound_count;
    enum rs_unwind_end end; /* of the walked one */
};

/* Both stacks from the caller on. */
static __attribute__((noinline)) void take_stacks(struct stacks *stacks)
{
    struct rs_unwind_start start = RS_UNWIND_START();
    int count = backtrace(stacks->unwound, FRAMES_MAX), above = 0;

    stacks->walked_count =
        rs_unwind(start, none_skipped, stacks->walked, FRAMES_MAX / 2, &stacks->end);
    while (above < count && stacks->unwound[above] != (void *)start.return_address)
        above++;
    assert_in_range(above, 1, 3);
    memmove(stacks->unwound, stacks->unwound + above,
            (size_t)(count - above) * sizeof(*stacks->unwound));
    stacks->unwound_count = (unsigned)(count - above);
}

static void assert_walked_are_unwound(const struct stacks *stacks)
{
    for (unsigned i = 0; i < stacks->walked_count && i < stacks->unwound_count; i++)
        if (stacks->walked[i] != stacks->unwound[i])
            fail_msg("frame %u: %p, not %p", i, stacks->walked[i], stacks->unwound[i]);
}

static void assert_stacks_are_equal(const struct stacks *stacks)
{
    assert_walked_are_unwound(stacks);
    assert_int_equal(stacks->walked_count, stacks->unwound_count);
    assert_int_equal(stacks->end, RS_UNWIND_OUTERMOST);
}

static void compare_here(void *data)
{
    struct stacks stacks;

    take_stacks(&stacks);
    assert_stacks_are_equal(&stacks);
    *(unsigned *)data = stacks.walked_count;
}

/* ---- shapes ---- */

static shape *shapes[SHAPES_MAX], *endings[SHAPES_MAX];
static size_t shape_count, ending_count;

static shape *const *open_module(const char *path, void **module)
{
    shape *const *list = NULL;

    *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*module)
        list = dlsym(*module, SHAPES_NAME);
    if (!list) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return list;
}

static void load_shapes(const char *path)
{
    void *module;

    for (shape *const *list = open_module(path, &module); *list; list++) {
        assert_in_range(shape_count, 0, SHAPES_MAX - 1);
        shapes[shape_count++] = *list;
    }
    *(void **)&endings[ending_count++] = dlsym(module, ENDING_NAME);
}

/* The modules are named in a variable, one after the other. */
static int load_modules(void **state)
{
    char names[4096], *rest = names, *name;
    const char *modules = getenv("UNWIND_SHAPES");

    (void)state;
    if (!modules || strlen(modules) >= sizeof(names))
        return -1;
    strcpy(names, modules);
    while ((name = strsep(&rest, ":")))
        load_shapes(name);
    return 0;
}

GROUP_FIXTURE(load_modules, NULL);

struct chain {
    shape *shapes[CHAIN_MAX];
    unsigned at, count, frames;
};

static void go_on(void *data)
{
    struct chain *chain = data;

    if (chain->at < chain->count)
        chain->shapes[chain->at++](go_on, chain);
    else
        compare_here(&chain->frames);
    __asm__ volatile("" : : : "memory"); /* no tail call: this frame stays */
}

TEST(frames_of_each_shape_are_walked)
{
    for (size_t i = 0; i < shape_count; i++) {
        struct chain chain = {.shapes = {shapes[i]}, .count = 1};
        go_on(&chain);
        assert_in_range(chain.frames, 5, FRAMES_MAX);
    }
}

struct way_back {
    jmp_buf to;
    unsigned frames;
};

static void compare_and_leave(void *data)
{
    struct way_back *way_back = data;

    compare_here(&way_back->frames);
    longjmp(way_back->to, 1);
}

/* The address after the call is another function's, or nobody's. */
TEST(a_call_that_ends_its_function_is_of_that_function)
{
    struct way_back way_back = {.frames = 0};
    static size_t i;

    for (i = 0; i < ending_count; i++) {
        way_back.frames = 0;
        if (setjmp(way_back.to) == 0)
            endings[i](compare_and_leave, &way_back);
        assert_in_range(way_back.frames, 5, FRAMES_MAX);
    }
}

static unsigned next_random(unsigned *seed)
{
    *seed = *seed * 1103515245 + 12345;
    return *seed >> 16;
}

/* A frame's rule needs registers that frames of other shapes have saved. */
TEST(frames_of_all_shapes_below_each_other_are_walked)
{
    unsigned seed = 1;

    for (unsigned round = 0; round < 2000; round++) {
        struct chain chain = {.count = 1 + next_random(&seed) % CHAIN_MAX};
        for (unsigned i = 0; i < chain.count; i++)
            chain.shapes[i] = shapes[next_random(&seed) % shape_count];
        go_on(&chain);
        assert_in_range(chain.frames, chain.count, FRAMES_MAX);
    }
}

static void *walk_in_thread(void *data)
{
    go_on(data);
    return NULL;
}

TEST(a_thread_is_walked_to_its_beginning)
{
    struct chain chain = {.count = 2};
    pthread_t thread;

    chain.shapes[0] = chain.shapes[1] = shapes[0];
    assert_int_equal(pthread_create(&thread, NULL, walk_in_thread, &chain), 0);
    pthread_join(thread, NULL);
    assert_in_range(chain.frames, 6, FRAMES_MAX);
}

static __attribute__((noinline)) unsigned walk_at_most(unsigned max, void **frames)
{
    struct rs_unwind_start start = RS_UNWIND_START();
    enum rs_unwind_end end;
    unsigned count = rs_unwind(start, none_skipped, frames, max, &end);

    assert_int_equal(end, RS_UNWIND_CUT);
    return count;
}

TEST(a_walk_writes_no_more_frames_than_asked_for)
{
    void *frames[4] = {NULL, NULL, NULL, frames};

    assert_int_equal(walk_at_most(3, frames), 3);
    assert_ptr_equal(frames[3], frames);
}

/* ---- where the walk ends ---- */

/* ThreadSanitizer reports that a handler calls malloc.  Here the handler interrupts raise() alone.
 */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "report_signal_unsafe=0";
}

static volatile sig_atomic_t handled;

/* False where the kernel's code to return from a handler is in no object: under qemu without a
 * vDSO.  That of x86-64 is in the C library. */
static bool returns_by_object(void)
{
#ifdef __x86_64__
    return true;
#else
    return getauxval(AT_SYSINFO_EHDR) != 0;
#endif
}

static __attribute__((noinline)) void look_in_handler(void)
{
    struct stacks stacks;
    const struct rs_call_site *site = rs_call_site_here();

    take_stacks(&stacks);
    assert_walked_are_unwound(&stacks);
    /* This function, its caller, and the kernel's code; under ThreadSanitizer, which calls the
     * handler later, more. */
    assert_in_range(stacks.walked_count, returns_by_object() ? 3 : 2, RS_CALL_SITE_FRAMES_MAX - 1);
    if (stacks.walked_count == 3)
        assert_int_equal(stacks.end, RS_UNWIND_HANDLER);
    assert_non_null(site);
    assert_int_equal(site->frame_count, stacks.walked_count);
    /* The first one is in this function, at another place. */
    assert_memory_equal(site->frames + 1, stacks.unwound + 1,
                        (site->frame_count - 1) * sizeof(void *));
    handled = 1;
}

static void handle(int number)
{
    (void)number;
    look_in_handler();
    __asm__ volatile("" : : : "memory");
}

static const void *find_nothing(void *address, struct rs_unwind_bases *bases)
{
    (void)address;
    (void)bases;
    return NULL;
}

/* That of x86-64 has tables in the C library, but not in every program; that of aarch64 has none.
 */
TEST(a_return_from_a_handler_is_known_without_tables)
{
#ifdef __x86_64__
    unsigned char code[] = {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05};
#else
    unsigned char code[] = {0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4};
#endif
    assert_int_equal(rs_unwind_rule_of((uintptr_t)code, find_nothing, true).kind, RS_UNWIND_SIGNAL);
    assert_int_equal(rs_unwind_rule_of((uintptr_t)code, find_nothing, false).kind,
                     RS_UNWIND_UNKNOWN);
    code[0]++;
    assert_int_equal(rs_unwind_rule_of((uintptr_t)code, find_nothing, true).kind,
                     RS_UNWIND_UNKNOWN);
}

TEST(a_signals_handler_ends_a_stack)
{
    struct sigaction action = {.sa_handler = handle}, before;

    handled = 0;
    assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
    assert_int_equal(raise(SIGUSR1), 0);
    assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
    assert_int_equal(handled, 1);
}

/* ---- code that goes and comes ---- */

struct visit {
    void *base, *returns_to;
    unsigned frames;
};

static void note_visit(void *data)
{
    struct visit *visit = data;
    struct stacks stacks;

    take_stacks(&stacks);
    assert_stacks_are_equal(&stacks);
    visit->frames = stacks.walked_count;
    visit->returns_to = stacks.walked[1];
}

/* Calls the large shape of a module, and unloads it. */
static struct visit visit_module(const char *variable)
{
    void *module;
    shape *const *list = open_module(getenv(variable), &module);
    struct visit visit = {NULL, NULL, 0};
    Dl_info info;

    list[5](note_visit, &visit);
    assert_true(dladdr((void *)(uintptr_t)list, &info));
    visit.base = info.dli_fbase;
    dlclose(module);
    return visit;
}

/* Two modules, of the same code but for the sizes of their frames: at one address a return needs
 * two rules. */
TEST(a_rule_ends_with_the_object_of_its_code)
{
    struct visit one = visit_module("UNWIND_ONE"), other = visit_module("UNWIND_OTHER"), again;

    assert_ptr_equal(other.returns_to, one.returns_to);
    assert_int_equal(other.frames, one.frames);
    again = visit_module("UNWIND_ONE");
    assert_ptr_equal(again.returns_to, one.returns_to);
}

#ifdef __x86_64__
/* push %rbp; mov %rsp,%rbp; mov %rdi,%rax; mov %rsi,%rdi; call *%rax; pop %rbp; ret */
static const unsigned char made_code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8,
                                          0x48, 0x89, 0xf7, 0xff, 0xd0, 0x5d, 0xc3};

/* The system's unwinder names the made code too: it cannot be told from a word that is none. */
static void look_below_made_code(void *data)
{
    struct stacks stacks;

    take_stacks(&stacks);
    assert_walked_are_unwound(&stacks);
    assert_int_equal(stacks.unwound_count, 2);
    assert_int_equal(stacks.end, RS_UNWIND_CUT);
    *(unsigned *)data = stacks.walked_count;
}

/* Up to the end of memory that may be read: what comes after a return address may be no code. */
TEST(code_without_tables_ends_a_stack)
{
    const size_t page_bytes = 4096;
    char *pages =
        mmap(NULL, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *code = pages + page_bytes - sizeof(made_code);
    unsigned frames = 0;
    shape *made;

    assert_ptr_not_equal(pages, MAP_FAILED);
    memcpy(code, made_code, sizeof(made_code));
    assert_int_equal(mprotect(pages, page_bytes, PROT_READ | PROT_EXEC), 0);
    assert_int_equal(mprotect(pages + page_bytes, page_bytes, PROT_NONE), 0);
    memcpy(&made, &code, sizeof(made));
    made(look_below_made_code, &frames);
    assert_int_equal(frames, 1);
    munmap(pages, 2 * page_bytes);
}
#endif

/* ---- stacks that are not the thread's, or not as it left them ---- */

/* As a greenlet is: what was above it when it was made has been copied away, and what is there now
 * is anything. */
enum { GARBAGE_WORDS = 512, HOSTILE_WORDS = 8 };

struct garbage {
    uintptr_t words[HOSTILE_WORDS + SHAPES_MAX];
    unsigned count, seed, frames;
};

/* No stack memory of others' is a sanitizer's to judge here. */
__attribute__((noinline, no_sanitize("address", "thread", "undefined"))) static void
fill(volatile uintptr_t *at, const struct garbage *garbage)
{
    unsigned seed = garbage->seed;

    for (unsigned i = 0; i < GARBAGE_WORDS; i++)
        at[i] = garbage->words[next_random(&seed) % garbage->count];
}

__attribute__((noinline, no_sanitize("address", "thread", "undefined"))) static void
copy(volatile uintptr_t *to, const volatile uintptr_t *from)
{
    for (unsigned i = 0; i < GARBAGE_WORDS; i++)
        to[i] = from[i];
}

static __attribute__((noinline)) void look_among_garbage(void *data)
{
    static uintptr_t kept[GARBAGE_WORDS];
    struct garbage *garbage = data;
    volatile uintptr_t *above = __builtin_frame_address(0);
    const struct rs_call_site *site;

    /* From the return address of this function on: its own frame is as it was. */
    copy(kept, above + 1);
    fill(above + 1, garbage);
    site = rs_call_site_here();
    copy(above + 1, kept);
    assert_non_null(site);
    assert_in_range(site->frame_count, 1, RS_CALL_SITE_FRAMES_MAX);
    garbage->frames = site->frame_count;
}

/* Deep enough that the garbage lies on this stack and spoils no data in use. */
static __attribute__((noinline)) void look_below(struct garbage *garbage)
{
    char room[2 * GARBAGE_WORDS * sizeof(uintptr_t)];

    __asm__ volatile("" : : "r"(room) : "memory");
    look_among_garbage(garbage);
    __asm__ volatile("" : : "r"(room) : "memory");
}

static void note_return(void *data)
{
    struct garbage *garbage = data;
    struct stacks stacks;

    take_stacks(&stacks);
    garbage->words[garbage->count++] = (uintptr_t)stacks.walked[1]; /* in the shape */
}

TEST(what_was_copied_over_a_stack_is_not_followed_off_it)
{
    static struct garbage garbage; /* not where it is written to */
    void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uintptr_t stack = (uintptr_t)__builtin_frame_address(0);
    const uintptr_t words[HOSTILE_WORDS] = {
        0xf77726a1,                             /* half of an address */
        (uintptr_t)page + 16,                   /* no memory that can be read */
        0x8080808080808080,                     /* no address at all */
        (uintptr_t)&handled,                    /* an object's data */
        (uintptr_t)strlen,                      /* code, but no place after a call */
        stack - 64,                             /* the stack, which goes the wrong way */
        (uintptr_t)__builtin_return_address(0), /* another frame's return address */
        UINTPTR_MAX - 7,                        /* the end of all memory */
    };

    memcpy(garbage.words, words, sizeof(words));
    /* And what does go on, by a frame pointer or a stack pointer that is one of the others. */
    garbage.count = HOSTILE_WORDS;
    for (size_t i = 0; i < shape_count; i++)
        shapes[i](note_return, &garbage);
    for (; garbage.seed < 3000; garbage.seed++)
        look_below(&garbage);
    munmap(page, 4096);
}

/* Coroutines: the memory above a small stack belongs to somebody else, or to nobody. */
static ucontext_t thread_context, coroutine_context;
static unsigned coroutine_frames;
static enum rs_unwind_end coroutine_end;
static const void *coroutine_caller;

static __attribute__((noinline)) void look_in_coroutine(void)
{
    const struct rs_call_site *site = rs_call_site_here();
    struct stacks stacks;

    take_stacks(&stacks);
    assert_non_null(site);
    coroutine_frames = site->frame_count;
    coroutine_end = stacks.end;
    coroutine_caller = site->frames[0];
}

static void run_coroutine(void)
{
    look_in_coroutine();
    __asm__ volatile("" : : : "memory");
}

TEST(on_another_stack_the_caller_alone_is_known)
{
    static const size_t bytes = 256 << 10; /* a sanitizer needs much */
    char *stack = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Dl_info here, there;

    assert_ptr_not_equal(stack, MAP_FAILED);
    assert_int_equal(getcontext(&coroutine_context), 0);
    coroutine_context.uc_stack = (stack_t){.ss_sp = stack, .ss_size = bytes};
    coroutine_context.uc_link = &thread_context;
    makecontext(&coroutine_context, run_coroutine, 0);
    assert_int_equal(swapcontext(&thread_context, &coroutine_context), 0);
    assert_int_equal(coroutine_frames, 1);
    assert_int_equal(coroutine_end, RS_UNWIND_ELSEWHERE);
    assert_true(dladdr(coroutine_caller, &there) &&
                dladdr((void *)(uintptr_t)run_coroutine, &here));
    assert_ptr_equal(there.dli_fbase, here.dli_fbase);
    munmap(stack, bytes);
}
