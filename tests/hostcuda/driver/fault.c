/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/fault.h"

#include "driver/config.h"
#include "driver/context.h"
#include "driver/lock.h"
#include "hostcuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RULES_MAX 32

struct rule {
    bool matches[HC_FN_COUNT];
    unsigned long long first; /* the call, from 1, at which it begins */
    unsigned long long count; /* calls from then on */
    unsigned percent;
    uint64_t random;
    CUresult code;
    bool is_sticky;
    unsigned delay_before_us, delay_after_us;
    unsigned long long calls, hits;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects the rules; taken alone */
static struct rule rules[RULES_MAX];
static atomic_uint rule_count;
static atomic_bool is_paused;
static atomic_ullong hit_count;

static void match(struct rule *rule, const char *name)
{
    for (unsigned i = 0; i < hc_entry_count; i++) {
        const struct hc_entry *entry = &hc_entries[i];
        if (!strcmp(name, "*") || !strcmp(name, entry->symbol) || !strcmp(name, entry->base))
            rule->matches[entry->fn] = true;
    }
}

static bool has_match(const struct rule *rule)
{
    for (int i = 0; i < HC_FN_COUNT; i++) {
        if (rule->matches[i])
            return true;
    }
    return false;
}

static bool read_option(struct rule *rule, const char *word)
{
    const char *value = strchr(word, '=');
    if (!value) {
        rule->is_sticky = !strcmp(word, "sticky");
        return rule->is_sticky;
    }
    char *end;
    unsigned long long number = strtoull(value + 1, &end, 10);
    size_t length = (size_t)(value - word);
    if (*end || end == value + 1)
        return false;
#define IS(name) (length == strlen(name) && !strncmp(word, name, length))
    if (IS("nth"))
        rule->first = number;
    else if (IS("count"))
        rule->count = number;
    else if (IS("percent"))
        rule->percent = (unsigned)number;
    else if (IS("seed"))
        rule->random = number * 2 + 1;
    else if (IS("code"))
        rule->code = (CUresult)number;
    else if (IS("before_us"))
        rule->delay_before_us = (unsigned)number;
    else if (IS("after_us"))
        rule->delay_after_us = (unsigned)number;
    else
        return false;
#undef IS
    return true;
}

/* One rule: names separated by commas, then options, all separated by colons. */
static bool read_rule(struct rule *rule, char *text)
{
    *rule = (struct rule){.first = 1, .count = UINT64_MAX, .percent = 100, .random = 3};
    char *rest, *name_rest;
    char *names = strtok_r(text, ":", &rest);
    for (char *name = names ? strtok_r(names, ",", &name_rest) : NULL; name;
         name = strtok_r(NULL, ",", &name_rest))
        match(rule, name);
    for (char *word = strtok_r(NULL, ":", &rest); word; word = strtok_r(NULL, ":", &rest)) {
        if (!read_option(rule, word))
            return false;
    }
    return has_match(rule);
}

HC_API int hostcuda_fault_add(const char *text)
{
    char *copy = strdup(text), *rest;
    int result = 0;
    if (!copy)
        return -1;
    pthread_mutex_lock(&mutex);
    for (char *one = strtok_r(copy, ";", &rest); one && !result; one = strtok_r(NULL, ";", &rest)) {
        unsigned count = rule_count;
        if (count == RULES_MAX || !read_rule(&rules[count], one))
            result = -1;
        else
            rule_count = count + 1;
    }
    pthread_mutex_unlock(&mutex);
    free(copy);
    return result;
}

HC_API void hostcuda_fault_clear(void)
{
    pthread_mutex_lock(&mutex);
    rule_count = 0;
    hit_count = 0;
    pthread_mutex_unlock(&mutex);
}

HC_API void hostcuda_fault_pause(int pause)
{
    is_paused = pause;
}

HC_API unsigned long long hostcuda_fault_hits(void)
{
    return hit_count;
}

void hc_fault_read(void)
{
    if (!hc_config.faults || !hostcuda_fault_add(hc_config.faults))
        return;
    dprintf(STDERR_FILENO, "hostcuda: HOSTCUDA_FAULT='%s' is not understood\n", hc_config.faults);
    _exit(78);
}

static bool applies(struct rule *rule, enum hc_fn fn)
{
    if (!rule->matches[fn] || ++rule->calls < rule->first || rule->hits >= rule->count)
        return false;
    rule->random ^= rule->random << 13;
    rule->random ^= rule->random >> 7;
    rule->random ^= rule->random << 17;
    if (rule->random % 100 >= rule->percent)
        return false;
    rule->hits++;
    hit_count++;
    return true;
}

static void sleep_us(unsigned us)
{
    struct timespec delay = {us / 1000000, (long)(us % 1000000) * 1000};
    if (us)
        nanosleep(&delay, NULL);
}

static void make_sticky(CUresult code)
{
    struct hc_ctx *ctx;
    HC_LOCKED();
    if (!hc_ctx_current(&ctx))
        hc_ctx_fail(ctx, code);
}

static __thread unsigned after_us; /* of the call that this thread is in */

CUresult hc_fault_before(enum hc_fn fn)
{
    CUresult result = CUDA_SUCCESS;
    bool is_sticky = false;
    unsigned before_us = 0;
    after_us = 0;
    if (!rule_count || is_paused)
        return result;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < rule_count; i++) {
        if (!applies(&rules[i], fn))
            continue;
        before_us += rules[i].delay_before_us;
        after_us += rules[i].delay_after_us;
        result = result ? result : rules[i].code;
        is_sticky |= rules[i].is_sticky && rules[i].code;
    }
    pthread_mutex_unlock(&mutex);
    sleep_us(before_us);
    if (is_sticky)
        make_sticky(result);
    return result;
}

void hc_fault_after(enum hc_fn fn)
{
    (void)fn;
    unsigned us = after_us;
    after_us = 0;
    sleep_us(us);
}
