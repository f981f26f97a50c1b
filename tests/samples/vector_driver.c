/* SPDX-License-Identifier: Apache-2.0 */
/* A program on the CUDA driver API, linked with libcuda.
 *
 *   vector_driver [ROUNDS] [ELEMENTS] */
#define API(function) function
#include "vector_work.h"

int main(int argc, char **argv)
{
    return vector_work("vector_driver", argc > 1 ? (unsigned)atoi(argv[1]) : 40,
                       argc > 2 ? strtoull(argv[2], NULL, 10) : 100000);
}
