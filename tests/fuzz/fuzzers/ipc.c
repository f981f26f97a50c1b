/* SPDX-License-Identifier: Apache-2.0 */
/* Handles for memory of another process, and that process's table, which lies.  The input is a byte
 * of switches, what is changed in the handle (32 bytes by exclusive or), the slot as it stands in
 * the table, and what the driver answers. */
#include "base/process.h"
#include "context/context.h"
#include "driver/driver.h"
#include "fuzzer.h"
#include "ipc/import.h"
#include "ipc/table.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum {
    IS_SEALED = 1,      /* the handle has the right sum, whatever was changed */
    IS_OF_DRIVER = 2,   /* the handle is none of ours */
    HAS_GENERATION = 4, /* the slot has the handle's generation */
    IS_TWICE = 8,       /* the block is opened twice */
    ENDS = 16,          /* the context ends meanwhile */
    SLOTS = 4,
};

#define CONTEXT ((CUcontext)(uintptr_t)0x1000)
#define BASE    ((CUdeviceptr)1 << 40)

static struct rs_ipc_handle handle;
static char *table;
static struct rs_context context;
static size_t allocation_bytes; /* as the driver tells it; 0: it does not */
static unsigned opened;

/* ---- the driver ---- */

static CUresult get_current(CUcontext *current)
{
    *current = CONTEXT;
    return CUDA_SUCCESS;
}

static CUresult open_native(CUdeviceptr *address, CUipcMemHandle native, unsigned flags)
{
    (void)flags;
    (void)native;
    *address = BASE;
    opened++;
    return CUDA_SUCCESS;
}

static CUresult close_native(CUdeviceptr address)
{
    must(address == BASE && opened > 0, "a close of what is not open");
    opened--;
    return CUDA_SUCCESS;
}

static CUresult get_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    if (allocation_bytes == 0 || address < BASE || address - BASE >= allocation_bytes)
        return CUDA_ERROR_NOT_FOUND;
    *base = BASE;
    *bytes = allocation_bytes;
    return CUDA_SUCCESS;
}

/* Each allocation has an id of its own. */
static CUresult get_attribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    must(attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID, "another question");
    if (opened == 0 || address != BASE)
        return CUDA_ERROR_INVALID_VALUE;
    *(unsigned long long *)value = 7;
    return CUDA_SUCCESS;
}

/* ---- the library's own, of which this is no test ---- */

struct rs_context *__wrap_rs_context_current(bool make);
CUresult __wrap_rs_sentinel_wait(struct rs_sentinel *sentinel, CUcontext of);

struct rs_context *__wrap_rs_context_current(bool make)
{
    (void)make;
    return &context;
}

CUresult __wrap_rs_sentinel_wait(struct rs_sentinel *sentinel, CUcontext of)
{
    (void)sentinel;
    (void)of;
    return CUDA_SUCCESS;
}

/* ---- the exporter: a process that does nothing but live ---- */

static void begin(void)
{
    struct rs_ipc_header header = {.nonce = {1, 2, 3}};
    int fd = memfd_create(RS_IPC_FILE_NAME, MFD_CLOEXEC);
    pid_t parent = getpid(), child;

    memcpy(header.magic, rs_ipc_magic, sizeof(header.magic));
    must(fd >= 0 && ftruncate(fd, RS_IPC_FILE_BYTES) == 0, "no table");
    table = mmap(NULL, RS_IPC_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(table != MAP_FAILED, "no mapping");
    memcpy(table, &header, sizeof(header));
    child = fork();
    must(child >= 0, "no process");
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent) /* it may have ended before that call */
            pause();
        _exit(0);
    }
    close(fd);
    handle = (struct rs_ipc_handle){.process_namespace = rs_process_namespace(),
                                    .start_ticks = rs_process_start_ticks(child),
                                    .process = child,
                                    .fd = fd,
                                    .generation = 1};
    memcpy(handle.magic, rs_ipc_magic, sizeof(handle.magic));
    memcpy(handle.nonce, header.nonce, sizeof(handle.nonce));
    context.handle = CONTEXT;
    rs_driver.cuCtxGetCurrent = get_current;
    rs_driver.cuIpcCloseMemHandle = close_native;
    rs_driver.cuPointerGetAttribute = get_attribute;
    rs_driver.cuMemGetAddressRange_v2 = get_range;
}

/* ---- an input ---- */

static void make_handle(struct input *input, unsigned switches, struct rs_ipc_handle *made,
                        CUipcMemHandle *sealed)
{
    unsigned char change[32];

    *made = handle;
    for (size_t i = 0; i < sizeof(change); i++) {
        change[i] = (unsigned char)next_number(input, 1);
        ((unsigned char *)made)[8 + i] ^= change[i];
    }
    made->slot %= switches & IS_SEALED ? SLOTS : UINT32_MAX;
    if (switches & IS_SEALED && made->generation != 0)
        rs_ipc_seal(made, sealed);
    else
        memcpy(sealed, made, sizeof(*sealed));
    if (switches & IS_OF_DRIVER)
        sealed->reserved[0] = 'x';
}

static void make_slot(struct input *input, unsigned switches, const struct rs_ipc_handle *made)
{
    struct rs_ipc_slot *slot = (void *)(table + rs_ipc_slot_at(made->slot % SLOTS));

    slot->generation = switches & HAS_GENERATION ? made->generation : 7;
    slot->offset_bytes = next_number(input, 8);
    slot->size_bytes = next_number(input, 8);
    slot->allocation_bytes = next_number(input, 8);
    allocation_bytes = next_number(input, 5);
}

static void try_block(const CUipcMemHandle *sealed, unsigned switches)
{
    CUdeviceptr address = 0, again = 0, start;
    CUresult result = CUDA_SUCCESS;
    size_t bytes;

    if (!rs_import_open(open_native, &address, sealed, 0, &result) || result != CUDA_SUCCESS)
        return;
    must(address >= BASE, "a block before its allocation");
    must(rs_import_find(address, &start, &bytes) != RS_IMPORTED_NOT || bytes == 0,
         "a block that is not known");
    if (allocation_bytes != 0)
        must(address - BASE + bytes <= allocation_bytes, "a block that sticks out");
    if (switches & IS_TWICE) {
        must(rs_import_open(open_native, &again, sealed, 0, &result) && result == CUDA_SUCCESS &&
                 again == address,
             "the same block elsewhere");
        must(rs_import_close(again, &result) && result == CUDA_SUCCESS, "it cannot be closed");
    }
    if (switches & ENDS) {
        atomic_store(&context.ending, RS_ENDING_OVER);
        rs_import_context_ending();
        rs_import_context_ended();
        atomic_store(&context.ending, 0);
        opened = 0;
        must(rs_import_find(address, &start, &bytes) == RS_IMPORTED_NOT, "it outlives its context");
        return;
    }
    must(rs_import_close(address, &result) && result == CUDA_SUCCESS, "it cannot be closed");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct input input = {bytes, length};
    unsigned switches = (unsigned)next_number(&input, 1);
    struct rs_ipc_handle made;
    CUipcMemHandle sealed;

    if (!table)
        begin();
    make_handle(&input, switches, &made, &sealed);
    make_slot(&input, switches, &made);
    try_block(&sealed, switches);
    must(opened == 0, "an allocation is left open");
    return 0;
}
