/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the driver: one dlopen, one dlsym, and everything else through cuGetProcAddress, which is
 * itself asked for first, in both its shapes. */
#include "runtime/runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

struct rt_driver rt_driver;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t open_error = cudaErrorInsufficientDriver;

static void *ask(const char *name, int version, cuuint64_t flags)
{
    void *address = NULL;
    CUdriverProcAddressQueryResult status;
    if (rt_driver.get_address) {
        if (rt_driver.get_address(name, &address, version, flags, &status))
            return NULL;
    } else if (rt_driver.get_address_old(name, &address, version, flags)) {
        return NULL;
    }
    return address;
}

void *rt_driver_find(const char *name, int version, cuuint64_t flags)
{
    return rt_driver_open() ? NULL : ask(name, version, flags);
}

static void fill(void *field, const char *name, int version, cuuint64_t flags)
{
    void *address = ask(name, version, flags);
    memcpy(field, &address, sizeof(address));
}

/* 7000_ptds is a version and the kind of its variant. */
#define OWN_VERSION(own) (int)strtol_of(#own)

static int strtol_of(const char *digits)
{
    int number = 0;
    for (; *digits >= '0' && *digits <= '9'; digits++)
        number = number * 10 + (*digits - '0');
    return number;
}

static void find_driver(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    if (!handle)
        return;
    void *first = dlsym(handle, "cuGetProcAddress_v2");
    if (first)
        memcpy(&rt_driver.get_address, &first, sizeof(first));
    else if ((first = dlsym(handle, "cuGetProcAddress"))) /* a driver before 12.0 */
        memcpy(&rt_driver.get_address_old, &first, sizeof(first));
    else
        return;
    ask("", 2000, 0);
    fill(&rt_driver.cuInit, "cuInit", 2000, 0);
    fill(&rt_driver.get_address_old, "cuGetProcAddress", 11030, 0);
    if (rt_driver.get_address)
        fill(&rt_driver.get_address, "cuGetProcAddress", 12000, 0);
#define FILL_PLAIN(name, version) fill(&rt_driver.name, #name, version, 0);
#define FILL_STREAM(name, version, own)                                                            \
    fill(&rt_driver.name[0], #name, version, 0);                                                   \
    fill(&rt_driver.name[1], #name, OWN_VERSION(own), 2);
    RT_PLAIN_FUNCTIONS(FILL_PLAIN)
    RT_STREAM_FUNCTIONS(FILL_STREAM)
    open_error = rt_driver.cuInit ? (cudaError_t)rt_driver.cuInit(0) : cudaErrorInsufficientDriver;
}

cudaError_t rt_driver_open(void)
{
    pthread_once(&once, find_driver);
    return open_error;
}
