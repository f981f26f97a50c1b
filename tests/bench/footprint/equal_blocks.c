/* SPDX-License-Identifier: Apache-2.0 */
/* equal_blocks DEVICE_MIB LIMIT_MIB EXPRESSION SIZE_MIB[,SIZE_MIB]...: blocks of one size, or of
 * some sizes in turn, until each size is refused, on a fake device (fake_device.h); for each list
 * of sizes anew.  LIMIT_MIB is RMM_LIMIT, 0 for none.
 *
 * Prints a line for each list: the sizes, how many bytes were served, and the driver's calls. */
#include "fake_device.h"

#include <stdio.h>
#include <stdlib.h>

enum { SIZES_MAX = 8, BLOCKS_MAX = 1 << 16, OPERATION_NS = 10 * 1000 };

static struct rs_allocation blocks[BLOCKS_MAX];

static size_t read_sizes(const char *text, size_t *sizes)
{
    size_t count = 0;
    char *end;

    do {
        double mib = strtod(text, &end);
        if (end == text || mib <= 0 || count == SIZES_MAX || (*end != ',' && *end != '\0'))
            return 0;
        sizes[count++] = (size_t)(mib * (1 << 20));
        text = end + 1;
    } while (*end == ',');
    return count;
}

/* Returns the bytes that were served. */
static size_t fill(struct rs_mr *mr, const size_t *sizes, size_t count)
{
    size_t live_bytes = 0, served = 0, refused = 0;

    for (size_t i = 0; refused != ((size_t)1 << count) - 1 && served < BLOCKS_MAX; i++) {
        if (refused >> i % count & 1)
            continue;
        fake_device_operate(OPERATION_NS);
        if (rs_mr_allocate(mr, sizes[i % count], NULL, &blocks[served]) == CUDA_SUCCESS)
            live_bytes += blocks[served++].size_bytes;
        else
            refused |= (size_t)1 << i % count;
    }
    while (served > 0)
        if (rs_mr_deallocate(mr, &blocks[--served], NULL) != CUDA_SUCCESS)
            abort();
    return live_bytes;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr,
                "usage: equal_blocks DEVICE_MIB LIMIT_MIB EXPRESSION SIZE_MIB[,SIZE_MIB]...\n");
        return 1;
    }
    for (int i = 4; i < argc; i++) {
        size_t sizes[SIZES_MAX], count = read_sizes(argv[i], sizes), live_bytes;
        struct rs_mr *mr;

        fake_device_install(0, (size_t)strtoull(argv[1], NULL, 10) << 20);
        fake_device_limit((size_t)strtoull(argv[2], NULL, 10) << 20);
        mr = count > 0 ? fake_device_stack(argv[3], true) : NULL;
        if (!mr)
            return 1;
        live_bytes = fill(mr, sizes, count);
        printf("sizes %s served %zu calls %llu\n", argv[i], live_bytes,
               (unsigned long long)(fake_device.allocations + fake_device.frees));
        mr->ops.destroy(mr, false);
    }
    return 0;
}
