/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes send each other blocks of device memory by UCX: ucx_pair linked|looked_up STEPS
 * Blocks are freed and allocated anew between the messages, so that another block gets an address
 * that the other process has mapped: UCX keeps its mappings, and must notice.  Each message is
 * compared with what was sent, and all blocks again and again, since a message to a stale
 * mapping would land in another block.  `looked_up` takes the driver's functions from
 * cuGetProcAddress, as the CUDA runtime does.  ucx_scenes.py runs it, and links it with -rdynamic,
 * so that UCX's calls to open and close handles are counted here.  Built with BY_MPI, two ranks of
 * an Open MPI over UCX do the same. */
#include <cuda.h>
#include <dlfcn.h>
#ifdef BY_MPI
#include <mpi.h>
#else
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 8, BUSY_BLOCKS = 3, PLACES = 4096, CHECK_STEPS = 16, MIB = 1 << 20 };

static const size_t sizes[] = {1 << 10,       4 << 10, 33 * 1024 + 4, 256 << 10, MIB,
                               3 * MIB + 512, 8 * MIB, 16 * MIB,      64 * MIB};
enum { SIZES = sizeof(sizes) / sizeof(*sizes), MOST_BYTES = 64 * MIB };

static struct block {
    CUdeviceptr address;
    size_t size_bytes;
    uint32_t seed; /* of its whole content */
} blocks[BLOCKS];

static CUresult (*allocate)(CUdeviceptr *, size_t);
static CUresult (*deallocate)(CUdeviceptr);
static int side; /* 0 or 1 */
static uint32_t *host, *wanted;
static CUdeviceptr places[PLACES]; /* where blocks were that the other process may have mapped */
static unsigned place_count, reused;

static void stop(const char *what, long long status)
{
    fprintf(stderr, "ucx_pair: side %d: %s: %lld\n", side, what, status);
    exit(1);
}

static void cuda(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS)
        stop(what, result);
}

/* ---- UCX's handles ---- */

static unsigned opened, closed;

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    static CUresult (*next)(CUdeviceptr *, CUipcMemHandle, unsigned);

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "cuIpcOpenMemHandle_v2");
    opened++;
    return next(address, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    static CUresult (*next)(CUdeviceptr);

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "cuIpcCloseMemHandle");
    closed++;
    return next(address);
}

/* ---- the same numbers in both processes ---- */

static uint64_t state = 88172645463325252u;

static unsigned number_below(unsigned end)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)((state >> 11) % end);
}

/* ---- blocks ---- */

static void make_pattern(uint32_t seed, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes / 4; i++)
        wanted[i] = (uint32_t)i * 2654435761u ^ seed;
}

static void fill(struct block *block, uint32_t seed)
{
    make_pattern(seed, block->size_bytes);
    cuda(cuMemcpyHtoD(block->address, wanted, block->size_bytes), "cuMemcpyHtoD");
    block->seed = seed;
}

static void check(const struct block *block, const char *when)
{
    make_pattern(block->seed, block->size_bytes);
    cuda(cuMemcpyDtoH(host, block->address, block->size_bytes), "cuMemcpyDtoH");
    if (memcmp(host, wanted, block->size_bytes) != 0)
        stop(when, (long long)block->size_bytes);
}

static void note_reuse(CUdeviceptr address)
{
    for (unsigned i = 0; i < place_count; i++)
        if (places[i] == address) {
            reused++;
            return;
        }
    if (place_count < PLACES)
        places[place_count++] = address;
}

static void renew(struct block *block, size_t size_bytes)
{
    if (block->address)
        cuda(deallocate(block->address), "cuMemFree");
    cuda(allocate(&block->address, size_bytes), "cuMemAlloc");
    block->size_bytes = size_bytes;
    note_reuse(block->address);
}

/* ---- messages ---- */

#ifdef BY_MPI

static void send_message(const void *from, size_t size_bytes, unsigned tag)
{
    (void)MPI_Send(from, (int)size_bytes, MPI_BYTE, !side, (int)tag, MPI_COMM_WORLD);
}

static void receive_message(void *to, size_t size_bytes, unsigned tag)
{
    (void)MPI_Recv(to, (int)size_bytes, MPI_BYTE, !side, (int)tag, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
}

static void connect_sides(void)
{
    (void)MPI_Init(NULL, NULL);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &side);
}

static void end_together(void)
{
    (void)MPI_Finalize();
}

#else

static int line; /* a socket, whose other end the other process has */
static ucp_worker_h worker;
static ucp_ep_h peer;

static void ucx(ucs_status_t status, const char *what)
{
    if (status != UCS_OK)
        stop(what, status);
}

/* Nothing happened: the other process may need the core, or have failed. */
static void look_at_other(void)
{
    char byte;

    if (recv(line, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        stop("the other process has ended", 0);
    sched_yield();
}

static void finish(void *request, const char *what)
{
    ucs_status_t status = UCS_INPROGRESS;

    if (UCS_PTR_IS_ERR(request))
        stop(what, UCS_PTR_STATUS(request));
    while (request && (status = ucp_request_check_status(request)) == UCS_INPROGRESS)
        if (!ucp_worker_progress(worker))
            look_at_other();
    if (request)
        ucp_request_free(request);
    ucx(request ? status : UCS_OK, what);
}

static void send_message(const void *from, size_t size_bytes, unsigned tag)
{
    ucp_request_param_t none = {.op_attr_mask = 0};

    finish(ucp_tag_send_nbx(peer, from, size_bytes, tag, &none), "send");
}

static void receive_message(void *to, size_t size_bytes, unsigned tag)
{
    ucp_request_param_t at_once = {.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL};

    finish(ucp_tag_recv_nbx(worker, to, size_bytes, tag, UINT64_MAX, &at_once), "receive");
}

static void connect_sides(void)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t single = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_ep_params_t to = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_address_t *ours, *theirs;
    ucp_config_t *config;
    ucp_context_h context;
    size_t ours_bytes, theirs_bytes;

    ucx(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
    ucx(ucp_init(&params, config, &context), "ucp_init");
    ucp_config_release(config);
    ucx(ucp_worker_create(context, &single, &worker), "ucp_worker_create");
    ucx(ucp_worker_get_address(worker, &ours, &ours_bytes), "ucp_worker_get_address");
    if (write(line, &ours_bytes, sizeof(ours_bytes)) != sizeof(ours_bytes) ||
        write(line, ours, ours_bytes) != (ssize_t)ours_bytes ||
        recv(line, &theirs_bytes, sizeof(theirs_bytes), MSG_WAITALL) != sizeof(theirs_bytes) ||
        !(theirs = malloc(theirs_bytes)) ||
        recv(line, theirs, theirs_bytes, MSG_WAITALL) != (ssize_t)theirs_bytes)
        stop("addresses", 0);
    to.address = theirs;
    ucx(ucp_ep_create(worker, &to, &peer), "ucp_ep_create");
}

static void end_together(void)
{
    char byte = 0;

    if (write(line, &byte, 1) != 1 || recv(line, &byte, 1, MSG_WAITALL) != 1)
        stop("the end", 0);
}

#endif

/* Both processes have come here: what was sent has arrived, and may be freed. */
static void meet(unsigned tag)
{
    char byte = 0, other;

    for (int turn = 0; turn < 2; turn++)
        if (turn == side)
            send_message(&byte, 1, tag);
        else
            receive_message(&other, 1, tag);
}

/* ---- steps ---- */

static uint32_t step(unsigned number)
{
    int sender = (int)number_below(2);
    struct block *block = &blocks[number_below(number_below(2) ? BLOCKS : BUSY_BLOCKS)];
    size_t size_bytes = sizes[number_below(SIZES)];
    int is_renewed = number_below(4) != 0, is_part = number_below(3) == 0;
    uint32_t sum = 0;
    size_t begin;

    if (is_renewed || !block->address)
        renew(block, size_bytes);
    begin = is_part ? block->size_bytes / 3 / 4 * 4 : 0;
    if (side == sender)
        fill(block, number + 1);
    else
        fill(block, ~number); /* so that a message that does not come is noticed */
    cuda(cuCtxSynchronize(), "cuCtxSynchronize");
    meet(2 * number);
    if (side == sender) {
        send_message((void *)(uintptr_t)(block->address + begin), block->size_bytes - begin,
                     2 * number + 1);
    } else {
        receive_message((void *)(uintptr_t)(block->address + begin), block->size_bytes - begin,
                        2 * number + 1);
        cuda(cuMemcpyDtoH(host, block->address, block->size_bytes), "cuMemcpyDtoH");
        make_pattern(number + 1, block->size_bytes);
        if (memcmp((char *)host + begin, (char *)wanted + begin, block->size_bytes - begin) != 0)
            stop("a message is not what was sent; step", number);
        for (size_t i = begin / 4; i < block->size_bytes / 4; i++)
            sum += host[i];
        make_pattern(~number, block->size_bytes);
        if (memcmp(host, wanted, begin) != 0)
            stop("a message went beyond its part; step", number);
        fill(block, number + 1);
    }
    meet(2 * number);
    check(block, "a block that was sent has changed; bytes");
    if (number % CHECK_STEPS == 0)
        for (int i = 0; i < BLOCKS; i++)
            if (blocks[i].address)
                check(&blocks[i], "another block has changed; bytes");
    return sum;
}

/* ---- the two processes ---- */

static void look_up(const char *name, void *function)
{
    CUdriverProcAddressQueryResult found;

    cuda(cuGetProcAddress(name, function, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found),
         "cuGetProcAddress");
}

static void begin_cuda(const char *how)
{
    CUcontext context;

    allocate = cuMemAlloc;
    deallocate = cuMemFree;
    cuda(cuInit(0), "cuInit");
    if (strcmp(how, "looked_up") == 0) {
        look_up("cuMemAlloc", &allocate);
        look_up("cuMemFree", &deallocate);
    }
    cuda(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    cuda(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    host = malloc(MOST_BYTES);
    wanted = malloc(MOST_BYTES);
    if (!host || !wanted)
        stop("malloc", MOST_BYTES);
}

static int run_side(const char *how, unsigned steps)
{
    uint32_t sum = 0;
    size_t free_bytes = 0, total_bytes = 0;

    begin_cuda(how);
    connect_sides();
    for (unsigned number = 0; number < steps; number++)
        sum += step(number);
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].address)
            cuda(deallocate(blocks[i].address), "cuMemFree");
    cuda(cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
    meet(2 * steps);
    end_together();
    printf("side %d: %u steps, sum %08x\n", side, steps, sum);
    fflush(stdout);
    fprintf(stderr, "ucx_pair: side %d: %u opened, %u closed, %u used again, %zu MiB at the end\n",
            side, opened, closed, reused, (total_bytes - free_bytes) >> 20);
    return 0;
}

/* Without MPI this process is split in two. */
static int run(const char *how, unsigned steps)
{
#ifdef BY_MPI
    return run_side(how, steps);
#else
    int sockets[2], status = 0;
    pid_t child;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0 || (child = fork()) < 0)
        return 1;
    side = child == 0;
    line = sockets[side];
    close(sockets[!side]); /* so that the one notices the other's end */
    if (side == 1)
        return run_side(how, steps);
    status = run_side(how, steps);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status);
#endif
}

int main(int argc, char **argv)
{
    unsigned steps = argc == 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;

    if (steps == 0 || steps > 1 << 14) { /* MPI's tags end at 32767 at the least */
        fprintf(stderr, "usage: ucx_pair linked|looked_up STEPS\n");
        return 2;
    }
    return run(argv[1], steps);
}
