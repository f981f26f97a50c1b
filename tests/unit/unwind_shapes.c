/* SPDX-License-Identifier: Apache-2.0 */
#include "unwind_shapes.h"

#include <alloca.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef LARGE_BYTES
#define LARGE_BYTES (300 << 10)
#endif

static volatile uintptr_t numbers[10] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};

/* Makes the compiler believe that the memory is used. */
static void use(volatile void *memory)
{
    __asm__ volatile("" : : "r"(memory) : "memory");
}

static void plain(shape_call *call, void *data)
{
    volatile char taken[40];

    taken[0] = 1;
    call(data);
    use(taken);
}

/* All registers that a callee keeps, the frame pointer too where the function has none. */
static void many_registers(shape_call *call, void *data)
{
    uintptr_t a = numbers[0], b = numbers[1], c = numbers[2], d = numbers[3], e = numbers[4],
              f = numbers[5], g = numbers[6];

    call(data);
    numbers[0] = a;
    numbers[1] = b;
    numbers[2] = c;
    numbers[3] = d;
    numbers[4] = e;
    numbers[5] = f;
    numbers[6] = g;
}

static void changing_frame(shape_call *call, void *data)
{
    size_t bytes = 16 + numbers[3] * 100 + ((uintptr_t)data >> 4) % 512;
    volatile char *taken = alloca(bytes);

    taken[bytes - 1] = 1;
    call(data);
    use(taken);
}

static void aligned_frame(shape_call *call, void *data)
{
    volatile _Alignas(64) char taken[192];

    taken[0] = 1;
    use(taken);
    call(data);
    use(taken);
}

static void aligned_and_changing(shape_call *call, void *data)
{
    volatile _Alignas(64) char taken[64];
    volatile char *more = alloca(100 + numbers[5] * 8);

    use(taken);
    use(more);
    call(data);
    use(taken);
    use(more);
}

static void large_frame(shape_call *call, void *data)
{
    volatile char taken[LARGE_BYTES];

    taken[0] = taken[LARGE_BYTES - 1] = 1;
    call(data);
    use(taken);
}

static __attribute__((noinline)) uintptr_t nine_arguments(shape_call *call, void *data, uintptr_t a,
                                                          uintptr_t b, uintptr_t c, uintptr_t d,
                                                          uintptr_t e, uintptr_t f, uintptr_t g)
{
    call(data);
    return a + b + c + d + e + f + g;
}

/* The stack pointer moves for the arguments of one call. */
static void arguments_on_the_stack(shape_call *call, void *data)
{
    numbers[9] = nine_arguments(call, data, numbers[0], numbers[1], numbers[2], numbers[3],
                                numbers[4], numbers[5], numbers[6]);
}

struct ordering {
    shape_call *call;
    void *data;
};

static struct ordering ordering;

static int compare(const void *a, const void *b)
{
    struct ordering taken = ordering;

    ordering = (struct ordering){NULL, NULL};
    if (taken.call)
        taken.call(taken.data);
    return *(const int *)a - *(const int *)b;
}

/* Frames of the C library. */
static void through_libc(shape_call *call, void *data)
{
    int two[2] = {2, 1};

    ordering = (struct ordering){call, data};
    qsort(two, 2, sizeof(*two), compare);
}

/* More than one call, with different stacks of pushed registers on the way to them. */
static void early_or_late(shape_call *call, void *data)
{
    volatile char taken[600];

    if ((uintptr_t)data & 32) {
        call(data);
        return;
    }
    memset((char *)(uintptr_t)taken, 1, sizeof(taken));
    use(taken);
    call(data);
    numbers[8] = (uintptr_t)taken[5];
}

__attribute__((visibility("default"))) shape *const unwind_shapes[] = {
    plain,       many_registers, changing_frame,         aligned_frame, aligned_and_changing,
    large_frame, through_libc,   arguments_on_the_stack, early_or_late, NULL,
};

__attribute__((visibility("default"))) void unwind_ending(shape_call *call, void *data);

void unwind_ending(shape_call *call, void *data)
{
    volatile char taken[72];

    taken[0] = 1;
    use(taken);
    call(data);
    __builtin_unreachable();
}
