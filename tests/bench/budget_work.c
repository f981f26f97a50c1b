/* SPDX-License-Identifier: Apache-2.0 */
/* What instruction_budget.py counts: the same work as often as is asked, with nothing that depends
 * on time.
 *
 *   budget_work pairs BYTES COUNT     COUNT times cudaMalloc and cudaFree
 *   budget_work mixture BYTES COUNT   COUNT times one of them, 100 blocks of up to BYTES live at
 * most */
#include "sample.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <string.h>

enum { LIVE_MAX = 100 };

static void pairs(size_t bytes, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        void *block;
        MUST(cudaMalloc(&block, bytes));
        MUST(cudaFree(block));
    }
}

static void mixture(size_t bytes, unsigned count)
{
    void *blocks[LIVE_MAX];
    struct sequence sequence = {1};
    unsigned live = 0;

    for (unsigned i = 0; i < count; i++) {
        bool takes = sequence_next(&sequence) % 2;
        uint64_t number = sequence_next(&sequence);

        if (live == 0 || (takes && live < LIVE_MAX)) {
            MUST(cudaMalloc(&blocks[live++], 1 + number % bytes));
        } else {
            MUST(cudaFree(blocks[number % live]));
            blocks[number % live] = blocks[live - 1];
            live--;
        }
    }
    while (live > 0)
        MUST(cudaFree(blocks[--live]));
}

int main(int argc, char **argv)
{
    size_t bytes = argc == 4 ? strtoull(argv[2], NULL, 0) : 0;
    unsigned count = argc == 4 ? (unsigned)strtoul(argv[3], NULL, 0) : 0;

    if (argc == 4 && strcmp(argv[1], "pairs") == 0)
        pairs(bytes, count);
    else if (argc == 4 && strcmp(argv[1], "mixture") == 0)
        mixture(bytes, count);
    else
        return 2;
    puts("done");
    return 0;
}
