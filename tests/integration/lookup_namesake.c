/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that have names of the driver's and the runtime's: a stub or a mock, opened by a
 * program that has no driver. */
int cuMemAlloc_v2(void);
int cuGetProcAddress(void);
int cudaMalloc(void);

int cuMemAlloc_v2(void)
{
    return 1;
}

int cuGetProcAddress(void)
{
    return 2;
}

int cudaMalloc(void)
{
    return 3;
}
