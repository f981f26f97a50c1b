/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzzers share.  Each is a function that libFuzzer calls with inputs that it makes, or
 * play.c with those of a folder. */
#pragma once

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t length);

/* Standard error, which libFuzzer closes for what is fuzzed. */
static int fuzzer_error = STDERR_FILENO;

__attribute__((constructor)) static void keep_standard_error(void)
{
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 100);

    fuzzer_error = fd >= 0 ? fd : STDERR_FILENO;
}

static inline void must(bool good, const char *what)
{
    if (good)
        return;
    dprintf(fuzzer_error, "fuzzer: %s\n", what);
    abort();
}

/* Returns a copy with a zero byte behind it, in memory of its own, so that AddressSanitizer sees
 * each access outside.  The caller frees it. */
static inline char *copy_of(const uint8_t *input, size_t length)
{
    char *text = malloc(length + 1);

    must(text, "no memory");
    if (length > 0)
        memcpy(text, input, length);
    text[length] = '\0';
    return text;
}

/* The rest of an input that is read from its beginning. */
struct input {
    const uint8_t *at;
    size_t left;
};

/* Returns the next number of so many bytes, 8 at most; what is missing is zero. */
static inline uint64_t next_number(struct input *input, size_t bytes)
{
    uint64_t number = 0;
    size_t some = bytes < input->left ? bytes : input->left;

    if (some > 0)
        memcpy(&number, input->at, some);
    input->at += some;
    input->left -= some;
    return number;
}
