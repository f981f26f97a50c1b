/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/unwind.h"

#include "base/file.h"
#include "driver/driver.h"
#include "trace/line.h"
#include "trace/unwind_rule.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <string.h>

/* ---- the system's search for a function's description ---- */

/* Returns _Unwind_Find_FDE, which finds the compiler's table entry of a function, or NULL. It is in
 * libgcc_s.so.1 and looked up at run time: if the library were linked with libgcc_s, that would be
 * loaded into every program. */
static rs_unwind_find *find_function(void)
{
    static _Atomic(rs_unwind_find *) found;
    static atomic_bool is_missing;
    rs_unwind_find *find = atomic_load_explicit(&found, memory_order_acquire);
    void *library, *symbol;

    if (RS_LIKELY(find) || rs_loader_is_stuck() || atomic_load(&is_missing))
        return find;
    library = dlopen("libgcc_s.so.1", RTLD_LAZY);
    symbol = library ? rs_real_dlsym()(library, "_Unwind_Find_FDE") : NULL;
    if (!symbol) {
        atomic_store(&is_missing, true);
        return NULL;
    }
    memcpy(&find, &symbol, sizeof(find));
    atomic_store_explicit(&found, find, memory_order_release);
    return find;
}

/* ---- what the loader knows ---- */

struct look {
    uintptr_t address;
    uint64_t unloaded; /* the number of objects that the process has unloaded so far */
    bool is_code;      /* the address lies in the code of an object */
    bool is_readable;  /* the RS_UNWIND_SIGNAL_BYTES bytes from the return address on can be read */
    bool is_copier;    /* the object copies stacks (copies_stacks) */
};

static int see_count(struct dl_phdr_info *info, size_t bytes, void *data)
{
    struct look *look = data;

    look->unloaded = bytes > offsetof(struct dl_phdr_info, dlpi_subs) ? info->dlpi_subs : 0;
    return 1;
}

/* True for a library that runs greenlets, whose frames it copies onto one stack each time they run.
 * A walk ends at such a library's function: the frames that follow belong to another greenlet, or
 * are remains of one. */
static bool copies_stacks(const char *path)
{
    return strncmp(rs_file_base_name(path), "_greenlet.", 10) == 0;
}

static int see_object(struct dl_phdr_info *info, size_t bytes, void *data)
{
    struct look *look = data;

    (void)bytes;
    for (unsigned i = 0; i < info->dlpi_phnum && !look->is_code; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t into = look->address - (info->dlpi_addr + part->p_vaddr);
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X) || into >= part->p_memsz)
            continue;
        look->is_code = true;
        look->is_readable = part->p_flags & PF_R && part->p_memsz - into > RS_UNWIND_SIGNAL_BYTES;
        look->is_copier = copies_stacks(info->dlpi_name);
    }
    return look->is_code;
}

static uint64_t unloaded_count(void)
{
    struct look look = {.address = 0};

    (void)dl_iterate_phdr(see_count, &look);
    return look.unloaded;
}

/* ---- kept rules ---- */

enum { SETS = 4096 };

static _Alignas(RS_CACHE_LINE) struct rs_pair kept[SETS][RS_PAIRS];

/* Returns the cache key of a return address. The key changes whenever an object is unloaded, since
 * another object may be loaded at that address afterwards. Until 65536 objects were unloaded,
 * different addresses never get the same key, since multiples of the factor are farther apart than
 * any two addresses; later they nearly never do. */
static uint64_t key_of(uintptr_t return_address, uint64_t unloaded)
{
    return return_address + unloaded * 11400714819323198485u;
}

static struct rs_pair *rules_of(uint64_t key)
{
    return kept[(key * 11400714819323198485u) >> 52];
}

_Static_assert(SETS == 1 << (64 - 52), "rules_of takes the upper bits");

/* Caches a rule, unless all its bits are zero, since a zero word marks a free pair. No real
 * function has that rule, which gives the caller the same stack pointer as its callee. */
static void keep_rule(uint64_t key, struct rs_unwind_rule rule)
{
    uint64_t word;

    RS_ASSERT(rule.kind <= RS_UNWIND_UNKNOWN && rule.fp <= RS_UNWIND_FP_AT_FP);
    memcpy(&word, &rule, sizeof(word));
    if (word)
        rs_pair_enter(rules_of(key), (unsigned)(key / 16), key, word);
}

/* Makes the rule for a return address, and caches it if an object's code is there. Other code, as a
 * just-in-time compiler makes it, may be replaced at any time. An address outside all objects and
 * tables may be no code at all, since the word may not come from a real frame; so nothing is read
 * there. */
static RS_COLD struct rs_unwind_rule make_rule(uintptr_t return_address, uint64_t key)
{
    rs_unwind_find *find = find_function();
    struct rs_unwind_rule rule = {.kind = RS_UNWIND_UNKNOWN};
    struct look look = {.address = return_address - 1};

    (void)dl_iterate_phdr(see_object, &look);
    if (find && !look.is_copier)
        rule = rs_unwind_rule_of(return_address, find, look.is_readable);
    if (look.is_code && find)
        keep_rule(key, rule);
    else if (!look.is_code && rule.kind == RS_UNWIND_UNKNOWN)
        rule.kind = RS_UNWIND_NOWHERE;
    return rule;
}

static inline struct rs_unwind_rule rule_of(uintptr_t return_address, uint64_t unloaded)
{
    uint64_t key = key_of(return_address, unloaded), word = rs_pair_find(rules_of(key), key);
    struct rs_unwind_rule rule;

    if (RS_UNLIKELY(!word))
        return make_rule(return_address, key);
    memcpy(&rule, &word, sizeof(rule));
    return rule;
}

/* ---- the thread's own stack ---- */

/* The addresses of the first byte and the last word of the thread's own stack; `last` is zero until
 * they are known. The thread's own stack stays mapped as long as the thread runs. Other stacks, of
 * coroutines or of sigaltstack, may be unmapped, or end next to unmapped memory. */
static __thread struct {
    uintptr_t first, last;
} own_stack;

static const uintptr_t nowhere = UINTPTR_MAX;

/* Finds the bounds of the thread's own stack. For the first thread, pthread_getattr_np reads /proc
 * and calls malloc. A malloc of the program may allocate device memory, and so come here again: the
 * inner call then finds `nowhere`, and takes the thread to be on another stack. */
static RS_COLD void find_own_stack(void)
{
    struct rs_uncancelled uncancelled;
    pthread_attr_t attributes;
    void *begin = NULL;
    size_t bytes = 0;
    int kept_errno = errno;

    own_stack.first = own_stack.last = nowhere;
    rs_uncancelled_begin(&uncancelled);
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        if (pthread_attr_getstack(&attributes, &begin, &bytes) != 0)
            bytes = 0;
        pthread_attr_destroy(&attributes);
    }
    rs_uncancelled_end(&uncancelled);
    if (bytes >= sizeof(uintptr_t)) {
        own_stack.first = (uintptr_t)begin;
        own_stack.last = (uintptr_t)begin + bytes - sizeof(uintptr_t);
    } else {
        own_stack.last = 0; /* so the next call asks again */
    }
    errno = kept_errno;
}

static inline bool is_on_own_stack(uintptr_t sp)
{
    if (RS_UNLIKELY(!own_stack.last))
        find_own_stack();
    return sp - own_stack.first <= own_stack.last - own_stack.first;
}

/* ---- the walk ---- */

struct walk {
    uintptr_t return_address, sp, fp;
    uintptr_t last; /* the address of the last word that may be read */
    uint64_t unloaded;
};

/* Reads a word of the stack, unseen by sanitizers: if the frame is not a real one, the word may lie
 * where they would report an access. */
RS_BEFORE_SANITIZERS static inline uintptr_t word_at(uintptr_t address)
{
    typedef uintptr_t loose_word __attribute__((aligned(1), may_alias));

    return *(const loose_word *)address;
}

/* Removes the signature from a signed return address (pointer authentication); an address without
 * one is unchanged. */
static inline uintptr_t stripped(uintptr_t return_address)
{
#ifdef __aarch64__
    register uintptr_t x30 __asm__("x30") = return_address;

    __asm__("hint 7" : "+r"(x30)); /* xpaclri; older processors execute it as a nop */
    return x30;
#else
    return return_address;
#endif
}

static inline bool is_on_stack(const struct walk *walk, uintptr_t address)
{
    return address - walk->sp <= walk->last - walk->sp;
}

static inline uintptr_t words_from(uintptr_t address, int words)
{
    return address + (uintptr_t)(intptr_t)words * sizeof(uintptr_t);
}

/* Steps to the caller. Returns false if the current frame cannot be a real one: what would be read
 * is not on the stack above it, or the caller's stack pointer would not be above its own (stacks
 * grow downwards). With `trusts` nothing is tested: the frame is certainly real, since the thread
 * is executing in it. */
RS_HOT_INLINE bool step(struct walk *walk, struct rs_unwind_rule rule, bool trusts)
{
    uintptr_t cfa =
        (rule.kind == RS_UNWIND_BY_SP ? walk->sp : walk->fp) + (uintptr_t)rs_unwind_cfa_bytes(rule);
    int return_words = rs_unwind_return_words(rule);
    uintptr_t fp_at;

    if (RS_UNLIKELY(rule.kind == RS_UNWIND_BY_SAVED)) {
        if (!trusts && !is_on_stack(walk, cfa))
            return false;
        cfa = word_at(cfa);
    }
    if (RS_UNLIKELY(!trusts && cfa - walk->sp - 1 >= walk->last - walk->sp))
        return false;
    /* Word -1, just below the CFA, needs no test: it is always at sp or above. */
    if (RS_UNLIKELY(!trusts && return_words != -1 &&
                    !is_on_stack(walk, words_from(cfa, return_words))))
        return false;
    if (rule.fp != RS_UNWIND_FP_SAME) {
        fp_at = words_from(rule.fp == RS_UNWIND_FP_AT_FP ? walk->fp : cfa, rule.fp_words);
        if (RS_UNLIKELY(!trusts && !is_on_stack(walk, fp_at)))
            return false;
        walk->fp = word_at(fp_at);
    }
    walk->return_address = stripped(word_at(words_from(cfa, return_words)));
    walk->sp = cfa;
    return true;
}

static inline bool goes_on(struct rs_unwind_rule rule)
{
    return rule.kind <= RS_UNWIND_BY_SAVED;
}

static enum rs_unwind_end end_of(struct rs_unwind_rule rule)
{
    if (rule.kind == RS_UNWIND_SIGNAL)
        return RS_UNWIND_HANDLER;
    return rule.kind == RS_UNWIND_END ? RS_UNWIND_OUTERMOST : RS_UNWIND_CUT;
}

/* Stores the return addresses from the walk's current one on, and returns their number. */
static unsigned walk_own_stack(struct walk *walk, void **frames, unsigned max,
                               enum rs_unwind_end *end)
{
    unsigned count = 0;

    *end = RS_UNWIND_CUT;
    for (;;) {
        struct rs_unwind_rule rule = rule_of(walk->return_address, walk->unloaded);
        if (RS_LIKELY(rule.kind != RS_UNWIND_NOWHERE) || count == 0)
            frames[count++] = (void *)walk->return_address;
        if (RS_UNLIKELY(!goes_on(rule))) {
            *end = end_of(rule);
            return count;
        }
        if (count == max || !step(walk, rule, false))
            return count;
        if (RS_UNLIKELY(!walk->return_address)) {
            *end = RS_UNWIND_OUTERMOST;
            return count;
        }
    }
}

unsigned rs_unwind(struct rs_unwind_start start, struct rs_unwind_skipped skipped, void **frames,
                   unsigned max, enum rs_unwind_end *end)
{
    struct walk walk = {stripped(start.return_address), start.sp, start.fp, 0, unloaded_count()};
    unsigned count;

    RS_ASSERT(max > 0);
    *end = RS_UNWIND_CUT;
    while (walk.return_address - skipped.begin < skipped.bytes) {
        struct rs_unwind_rule rule = rule_of(walk.return_address, walk.unloaded);
        if (!goes_on(rule) || !step(&walk, rule, true))
            return 0;
    }
    if (RS_UNLIKELY(!is_on_own_stack(walk.sp))) {
        *end = RS_UNWIND_ELSEWHERE;
        frames[0] = (void *)walk.return_address;
        return 1;
    }
    walk.last = own_stack.last;
    count = walk_own_stack(&walk, frames, max, end);
    RS_ASSERT(count <= max);
    return count;
}
