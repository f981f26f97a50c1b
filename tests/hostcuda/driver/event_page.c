/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/event_page.h"

#include "driver/call.h"
#include "driver/context.h"
#include "driver/lock.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES 4096

/* Records are numbered; what is done is a number too, as they are done in order where it matters.
 */
struct shared {
    _Atomic uint64_t recorded, done;
};

struct hc_event_page {
    struct shared *shared;
    int fd; /* -1: another process's */
};

struct event_handle {
    char magic[8];
    int32_t pid, fd;
    uint64_t sum;
};

struct turn {
    struct shared *shared;
    uint64_t number;
};

_Static_assert(sizeof(struct event_handle) <= CU_IPC_HANDLE_SIZE, "the handle has no room for it");

static struct hc_event_page *map(int fd, bool is_own)
{
    struct hc_event_page *page = malloc(sizeof(*page));
    void *mapped =
        page ? mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (mapped == MAP_FAILED) {
        free(page);
        return NULL;
    }
    *page = (struct hc_event_page){.shared = mapped, .fd = is_own ? fd : -1};
    return page;
}

struct hc_event_page *hc_event_page_create(void)
{
    int fd = memfd_create("hostcuda-event", MFD_CLOEXEC);
    struct hc_event_page *page = NULL;
    if (fd >= 0 && !ftruncate(fd, PAGE_BYTES))
        page = map(fd, true);
    if (!page && fd >= 0)
        close(fd);
    return page;
}

void hc_event_page_leave(struct hc_event_page *page)
{
    if (!page)
        return;
    if (page->fd >= 0)
        close(page->fd);
    free(page);
}

static void mark(void *args)
{
    struct turn *turn = args;
    uint64_t done = atomic_load(&turn->shared->done);
    while (done < turn->number &&
           !atomic_compare_exchange_weak(&turn->shared->done, &done, turn->number))
        ;
}

static void set_turn(struct hc_event_page *page, uint64_t number, struct hc_work *work)
{
    struct turn turn = {page->shared, number};
    *work = (struct hc_work){.type = CU_GRAPH_NODE_TYPE_EMPTY};
    memcpy(work->args, &turn, sizeof(turn));
}

void hc_event_page_record(struct hc_event_page *page, struct hc_work *work)
{
    set_turn(page, atomic_fetch_add(&page->shared->recorded, 1) + 1, work);
    work->finish = mark;
}

bool hc_event_page_is_done(const struct hc_event_page *page)
{
    return atomic_load(&page->shared->done) >= atomic_load(&page->shared->recorded);
}

static CUresult wait_for_turn(void *args)
{
    const struct timespec nap = {.tv_nsec = 50000};
    struct turn *turn = args;
    while (atomic_load(&turn->shared->done) < turn->number)
        nanosleep(&nap, NULL);
    return CUDA_SUCCESS;
}

void hc_event_page_wait(struct hc_event_page *page, struct hc_work *work)
{
    set_turn(page, atomic_load(&page->shared->recorded), work);
    work->run = wait_for_turn;
}

struct hc_op *hc_event_page_op(struct hc_event_page *page, struct hc_ctx *ctx)
{
    struct hc_work work;
    hc_event_page_wait(page, &work);
    struct hc_op *op = hc_op_new(ctx, &work);
    if (!op)
        abort();
    hc_op_start(op);
    return op;
}

/* ---- handles ---- */

static uint64_t sum_of(const struct event_handle *handle)
{
    uint64_t sum = 14695981039346656037u;
    const unsigned char *bytes = (const unsigned char *)handle;
    for (size_t i = 0; i < offsetof(struct event_handle, sum); i++)
        sum = (sum ^ bytes[i]) * 1099511628211u;
    return sum;
}

HC_API CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent event_handle)
{
    HC_ENTER(cuIpcGetEventHandle);
    HC_LOCKED();
    struct hc_event *event;
    CUresult result = hc_event_of(event_handle, &event);
    if (result)
        return result;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!event->page || event->page->fd < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    struct event_handle handle = {.magic = "hostevt", .pid = getpid(), .fd = event->page->fd};
    handle.sum = sum_of(&handle);
    memset(out, 0, sizeof(*out));
    memcpy(out, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

static struct hc_event_page *open_page(const struct event_handle *handle)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->pid, handle->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    struct hc_event_page *page = map(fd, false);
    close(fd);
    return page;
}

HC_API CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle raw)
{
    HC_ENTER(cuIpcOpenEventHandle);
    HC_LOCKED();
    struct event_handle handle;
    struct hc_event *event;
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (result)
        return result;
    memcpy(&handle, &raw, sizeof(handle));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (memcmp(handle.magic, "hostevt", 8) || handle.sum != sum_of(&handle))
        return CUDA_ERROR_INVALID_HANDLE;
    if (handle.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    struct hc_event_page *page = open_page(&handle);
    if (!page)
        return CUDA_ERROR_MAP_FAILED;
    event = hc_event_new(ctx, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    if (!event) {
        hc_event_page_leave(page);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event->page = page;
    *out = (CUevent)event;
    return CUDA_SUCCESS;
}
