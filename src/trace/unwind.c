/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/unwind.h"

#include "base/check.h"
#include "driver/loader.h"
#include "trace/unwind_rule.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

/* ---- the system's search for a function's description ---- */

/* It is in libgcc_s.so.1, which the first backtrace() of a process loads; not linked with, since it
 * would then be loaded into every program.  NULL before that. */
static rs_unwind_find *find_function(void)
{
    static _Atomic(rs_unwind_find *) found;
    rs_unwind_find *find = atomic_load_explicit(&found, memory_order_acquire);
    void *library, *symbol;

    if (RS_LIKELY(find) || rs_loader_is_stuck())
        return find;
    library = dlopen("libgcc_s.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        return NULL;
    symbol = rs_real_dlsym()(library, "_Unwind_Find_FDE"); /* the library stays loaded */
    memcpy(&find, &symbol, sizeof(find));
    atomic_store_explicit(&found, find, memory_order_release);
    return find;
}

/* ---- what the loader knows ---- */

struct look {
    uintptr_t address;
    uint64_t unloaded; /* how many objects the process has unloaded so far */
    bool is_in_object;
};

static int see_count(struct dl_phdr_info *info, size_t bytes, void *data)
{
    struct look *look = data;

    look->unloaded = bytes > offsetof(struct dl_phdr_info, dlpi_subs) ? info->dlpi_subs : 0;
    return 1;
}

static int see_object(struct dl_phdr_info *info, size_t bytes, void *data)
{
    struct look *look = data;

    (void)bytes;
    for (unsigned i = 0; i < info->dlpi_phnum && !look->is_in_object; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        look->is_in_object = part->p_type == PT_LOAD &&
                             look->address - (info->dlpi_addr + part->p_vaddr) < part->p_memsz;
    }
    return look->is_in_object;
}

static bool is_in_object(uintptr_t address)
{
    struct look look = {.address = address};

    (void)dl_iterate_phdr(see_object, &look);
    return look.is_in_object;
}

static uint64_t unloaded_count(void)
{
    struct look look = {.address = 0};

    (void)dl_iterate_phdr(see_count, &look);
    return look.unloaded;
}

/* ---- kept rules ---- */

enum { SETS = 4096, WAYS = 4 };

/* The first word is the key xor the rule, so that a reader sees it when two threads have written
 * one word each. */
struct kept {
    _Atomic uint64_t key_xor_rule, rule;
};

static _Alignas(RS_CACHE_LINE) struct kept kept[SETS][WAYS];

/* Keys of one address differ as long as any object was unloaded in between: another one may lie
 * there now.  Those of different addresses in use differ too, as the multiples of this number lie
 * farther apart than addresses until 65536 objects were unloaded, and by chance after that. */
static uint64_t key_of(uintptr_t return_address, uint64_t unloaded)
{
    return return_address + unloaded * 11400714819323198485u;
}

static struct kept *set_of(uint64_t key)
{
    return kept[(key * 11400714819323198485u) >> 52];
}

_Static_assert(SETS == 1 << (64 - 52), "set_of takes the upper bits");

static struct rs_unwind_rule rule_of_word(uint64_t word)
{
    struct rs_unwind_rule rule;

    memcpy(&rule, &word, sizeof(rule));
    return rule;
}

/* Enters a rule in place of one that is chosen by its key, where all have one. */
static void keep(uint64_t key, struct rs_unwind_rule rule)
{
    struct kept *set = set_of(key), *place = &set[key / 16 % WAYS];
    uint64_t word;

    RS_ASSERT(rule.kind <= RS_UNWIND_UNKNOWN && rule.fp <= RS_UNWIND_FP_AT_FP);
    memcpy(&word, &rule, sizeof(word));
    for (unsigned i = 0; i < WAYS; i++)
        if (atomic_load_explicit(&set[i].key_xor_rule, memory_order_relaxed) == 0)
            place = &set[i];
    atomic_store_explicit(&place->rule, word, memory_order_relaxed);
    atomic_store_explicit(&place->key_xor_rule, key ^ word, memory_order_relaxed);
}

/* Code that no object has (a program's own compiler makes it) may be replaced unseen, so that its
 * rules are not kept. */
static RS_COLD struct rs_unwind_rule make_rule(uintptr_t return_address, uint64_t key)
{
    rs_unwind_find *find = find_function();
    struct rs_unwind_rule rule = {.kind = RS_UNWIND_UNKNOWN};

    if (!find)
        return rule;
    rule = rs_unwind_rule_of(return_address, find);
    if (is_in_object(return_address - 1))
        keep(key, rule);
    return rule;
}

static inline struct rs_unwind_rule rule_of(uintptr_t return_address, uint64_t unloaded)
{
    uint64_t key = key_of(return_address, unloaded);
    const struct kept *set = set_of(key);

    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t mixed = atomic_load_explicit(&set[i].key_xor_rule, memory_order_relaxed);
        uint64_t word = atomic_load_explicit(&set[i].rule, memory_order_relaxed);
        if (RS_LIKELY((mixed ^ word) == key))
            return rule_of_word(word);
    }
    return make_rule(return_address, key);
}

/* ---- the walk ---- */

struct walk {
    uintptr_t return_address, sp, fp;
    uint64_t unloaded;
};

enum step { STEPPED, ENDED, FAILED };

static uintptr_t word_at(uintptr_t address)
{
    return *(const uintptr_t *)address;
}

/* Takes the signature of a signed return address away; an address without one stays as it is. */
static uintptr_t stripped(uintptr_t return_address)
{
#ifdef __aarch64__
    register uintptr_t x30 __asm__("x30") = return_address;

    __asm__("hint 7" : "+r"(x30)); /* xpaclri, which older processors take for a nop */
    return x30;
#else
    return return_address;
#endif
}

/* No frame is larger: else the frame pointer was none. */
static const uintptr_t frame_words_max = (uintptr_t)1 << 27;

/* True when the stack pointer of the caller lies above that of the frame, as stacks grow downwards,
 * and not by a part of a word, whose bits come to the top. */
static inline bool is_above(uintptr_t cfa, uintptr_t sp)
{
    uintptr_t distance = cfa - sp - sizeof(uintptr_t);

    return (distance >> 3 | distance << (8 * sizeof(distance) - 3)) < frame_words_max;
}

_Static_assert(sizeof(uintptr_t) == 1 << 3, "is_above turns by the bits of a part of a word");

static inline uintptr_t word_from(uintptr_t address, int words)
{
    return word_at(address + (uintptr_t)(intptr_t)words * sizeof(uintptr_t));
}

static inline enum step step(struct walk *walk)
{
    struct rs_unwind_rule rule = rule_of(walk->return_address, walk->unloaded);
    uintptr_t cfa =
        (rule.kind == RS_UNWIND_BY_SP ? walk->sp : walk->fp) + (uintptr_t)rs_unwind_cfa_bytes(rule);

    if (RS_UNLIKELY(rule.kind >= RS_UNWIND_BY_SAVED)) {
        if (rule.kind != RS_UNWIND_BY_SAVED || !is_above(cfa, walk->sp - sizeof(uintptr_t)))
            return rule.kind == RS_UNWIND_END ? ENDED : FAILED;
        cfa = word_at(cfa);
    }
    if (RS_UNLIKELY(!is_above(cfa, walk->sp)))
        return FAILED;
    if (rule.fp != RS_UNWIND_FP_SAME)
        walk->fp = word_from(rule.fp == RS_UNWIND_FP_AT_CFA ? cfa : walk->fp, rule.fp_words);
    walk->return_address = stripped(word_from(cfa, rs_unwind_return_words(rule)));
    walk->sp = cfa;
    return RS_LIKELY(walk->return_address) ? STEPPED : ENDED;
}

unsigned rs_unwind(struct rs_unwind_start start, bool (*is_skipped)(const void *address),
                   void **frames, unsigned max)
{
    struct walk walk = {stripped(start.return_address), start.sp, start.fp, unloaded_count()};
    enum step last = STEPPED;
    unsigned count = 0;

    while (last == STEPPED && is_skipped((const void *)walk.return_address))
        last = step(&walk);
    while (last == STEPPED && count < max) {
        frames[count++] = (void *)walk.return_address;
        if (count < max)
            last = step(&walk);
    }
    RS_ASSERT(count <= max);
    return last == FAILED ? 0 : count;
}
