/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/runtime.h"

#include <pthread.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void (*note_allocate)(const void *, size_t);
static void (*note_free)(const void *);
static void (*note_allocate_on)(const void *, size_t, void *);
static void (*note_free_on)(const void *, void *);
static void (*note_free_failed)(const void *);

static void (*request_begin)(void);
static void (*request_end)(void);

static void find(void *field, const char *name)
{
    void *address = rt_driver_find(name, 2000, 0);
    memcpy(field, &address, sizeof(address));
}

static void find_notes(void)
{
    find(&note_allocate, "hostcuda_note_allocate");
    find(&note_free, "hostcuda_note_free");
    find(&note_allocate_on, "hostcuda_note_allocate_on");
    find(&note_free_on, "hostcuda_note_free_on");
    find(&note_free_failed, "hostcuda_note_free_failed");
    find(&request_begin, "hostcuda_request_begin");
    find(&request_end, "hostcuda_request_end");
}

void rt_note_allocate(const void *pointer, size_t bytes)
{
    pthread_once(&once, find_notes);
    if (note_allocate)
        note_allocate(pointer, bytes);
}

void rt_note_free(const void *pointer)
{
    pthread_once(&once, find_notes);
    if (note_free)
        note_free(pointer);
}

void rt_note_allocate_on(const void *pointer, size_t bytes, CUstream stream)
{
    pthread_once(&once, find_notes);
    if (note_allocate_on)
        note_allocate_on(pointer, bytes, stream);
}

void rt_note_free_on(const void *pointer, CUstream stream)
{
    pthread_once(&once, find_notes);
    if (note_free_on)
        note_free_on(pointer, stream);
}

CUresult rt_note_freed(const void *pointer, CUresult result)
{
    if (result && note_free_failed)
        note_free_failed(pointer);
    return result;
}

void rt_request_begin(void)
{
    pthread_once(&once, find_notes);
    if (request_begin)
        request_begin();
}

void rt_request_end(void)
{
    if (request_end)
        request_end();
}
