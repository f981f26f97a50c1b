/* SPDX-License-Identifier: Apache-2.0 */
/* random_sequence.h against digests of every row of RMM's benchmark, made with libstdc++: the whole
 * sequence of sizes and indices, the most live blocks, the most live MiB. */
#include "random_sequence.h"

#include <string.h>

static const struct {
    unsigned allocations, max_mib;
    uint64_t digest;
    unsigned live_peak, mib_peak;
} rows[] = {
    {1000, 1, 0x0a01169c41d5b10b, 638, 309},       {10000, 1, 0xb48179f771930716, 6204, 3104},
    {100000, 1, 0xe20b4cec1688e184, 36071, 16000}, {1000, 4, 0xf71e86c0cad1d323, 642, 1270},
    {10000, 4, 0x7226a43ee708d374, 6203, 12445},   {100000, 4, 0x1c19b69f55857e88, 9714, 16000},
    {1000, 64, 0x42dd185240e2338e, 528, 16000},    {10000, 64, 0x2119a34529e2f11d, 634, 16000},
    {100000, 64, 0x66153dddcb931511, 644, 16000},  {1000, 256, 0x98bbb3669b011909, 150, 15999},
    {10000, 256, 0xa0e15ceb7379d680, 167, 16000},  {100000, 256, 0x3acdfd4ef230c976, 176, 16000},
    {1000, 1024, 0x6d9b0c730cae0bcc, 44, 15999},   {10000, 1024, 0xb94c5fb838a51949, 51, 16000},
    {100000, 1024, 0xac6cc5d403dbc081, 53, 16000}, {1000, 4096, 0xf33f6e239df3e016, 15, 15998},
    {10000, 4096, 0x6f0f19a4aa2588c7, 16, 15999},  {100000, 4096, 0x0114dd316b70ed04, 19, 16000},
};

static size_t first_sizes[7];
static unsigned calls, refuse_from;

static int allocate(void **block, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    if (calls < 7)
        first_sizes[calls] = bytes;
    calls++;
    if (refuse_from && calls >= refuse_from)
        return 2;
    *block = &first_sizes;
    return 0;
}

static int deallocate(void *block, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    return block != &first_sizes || !bytes;
}

static struct random_run run(unsigned allocations, unsigned max_mib, struct random_block *blocks)
{
    calls = 0;
    return random_run(allocate, deallocate, blocks, allocations, (uint64_t)max_mib << 20, 0, true);
}

int main(void)
{
    static const size_t first[] = {282475249, 2617694918, 3931968138, 1137522503,
                                   823378840, 3622316815, 2344976745};
    static struct random_block blocks[100000];
    struct random_run refused;
    int wrong = 0;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct random_run got = run(rows[i].allocations, rows[i].max_mib, blocks);
        bool same = got.finished && !got.failures && got.digest == rows[i].digest &&
                    got.live_peak == rows[i].live_peak &&
                    (got.bytes_peak + ((uint64_t)1 << 19)) >> 20 == rows[i].mib_peak;
        wrong += !same;
        printf("%u allocations up to %u MiB: %016llx, %llu live, %.1f MiB%s\n", rows[i].allocations,
               rows[i].max_mib, (unsigned long long)got.digest, (unsigned long long)got.live_peak,
               (double)got.bytes_peak / (1 << 20), same ? "" : ": DIFFERS");
    }
    (void)run(1000, 4096, blocks);
    if (memcmp(first, first_sizes, sizeof(first)) != 0) {
        printf("the first sizes differ\n");
        wrong++;
    }
    /* What is refused turns into a free, and all that is live is freed at the end. */
    refuse_from = 10;
    refused = run(1000, 1, blocks);
    if (refused.operations != 2000 || refused.failures == 0 || refused.live_peak > 9) {
        printf("refused allocations: %llu of %llu operations\n",
               (unsigned long long)refused.failures, (unsigned long long)refused.operations);
        wrong++;
    }
    return wrong != 0;
}
