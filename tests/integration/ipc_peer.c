/* SPDX-License-Identifier: Apache-2.0 */
/* One of several processes that share device memory: does what it is told on stdin, a command a
 * line, and answers each with one line ("ok ...", or "error CODE").  ipc_scenes.py says what.
 *
 *   allocate NAME BYTES       fill NAME SEED            check NAME SEED
 *   free NAME                 export NAME [OFFSET]      range NAME [OFFSET]
 *   open NAME BYTES HANDLE    open_v1 ...               close NAME
 *   view NAME OF OFFSET BYTES rename NAME OTHER         compare NAME OTHER
 *   later NAME WORD US        words NAME WORD           synchronize
 *   event NAME                export_event NAME         open_event NAME HANDLE
 *   record_event NAME         query_event NAME          wait_event NAME
 *   stop                      go
 *   trim                      reset                     close_files
 *   push_context              pop_context               fork
 *   attributes NAME OFFSET    early_frees
 *   limit_files MOST          take_files LEFT           drop_files
 *   close_pipes             free_async NAME
 *   churn THREADS ROUNDS
 *   calls FUNCTION            known SEED BYTES HANDLE   storm THREADS ROUNDS
 *
 * Built with IPC_RUNTIME the memory and its handles go through the CUDA runtime. */
#include "../samples/kernels.h"
#include "../samples/sample.h"

#define __CUDA_API_VERSION_INTERNAL /* both versions of cuIpcOpenMemHandle */
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef IPC_RUNTIME
#include <cuda_runtime_api.h>
#endif

enum { NAMES = 16384, NAME_BYTES = 24, LINE_BYTES = 512 };

static struct entry {
    char name[NAME_BYTES];
    CUdeviceptr address;
    size_t size_bytes;
    CUevent event;
} entries[NAMES];

static CUcontext context, pushed;
static CUstream stream;
static CUfunction fill, spin, spin_until;
static unsigned *flag; /* that the stream stops at until it is raised */

/* ---- memory and its handles, by either interface ---- */

#ifdef IPC_RUNTIME
_Static_assert(sizeof(CUipcMemHandle) == sizeof(cudaIpcMemHandle_t), "the same bytes");

static int allocate(CUdeviceptr *address, size_t size_bytes)
{
    return cudaMalloc((void **)address, size_bytes);
}

static int give_back(CUdeviceptr address)
{
    return cudaFree((void *)address);
}

static int get_handle(CUipcMemHandle *handle, CUdeviceptr address)
{
    return cudaIpcGetMemHandle((cudaIpcMemHandle_t *)handle, (void *)address);
}

static int open_handle(CUdeviceptr *address, CUipcMemHandle handle)
{
    cudaIpcMemHandle_t same;

    memcpy(&same, &handle, sizeof(same));
    return cudaIpcOpenMemHandle((void **)address, same, cudaIpcMemLazyEnablePeerAccess);
}

static int close_handle(CUdeviceptr address)
{
    return cudaIpcCloseMemHandle((void *)address);
}
#else
static int allocate(CUdeviceptr *address, size_t size_bytes)
{
    return cuMemAlloc_v2(address, size_bytes);
}

static int give_back(CUdeviceptr address)
{
    return cuMemFree_v2(address);
}

static int get_handle(CUipcMemHandle *handle, CUdeviceptr address)
{
    return cuIpcGetMemHandle(handle, address);
}

static int open_handle(CUdeviceptr *address, CUipcMemHandle handle)
{
    return cuIpcOpenMemHandle_v2(address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static int close_handle(CUdeviceptr address)
{
    return cuIpcCloseMemHandle(address);
}
#endif

/* ---- answers ---- */

static void answer(int result)
{
    if (result)
        printf("error %d\n", result);
    else
        printf("ok\n");
}

static void answer_bytes(int result, const void *bytes, size_t count)
{
    const unsigned char *byte = bytes;

    if (result) {
        printf("error %d\n", result);
        return;
    }
    printf("ok ");
    for (size_t i = 0; i < count; i++)
        printf("%02x", byte[i]);
    printf("\n");
}

static void read_bytes(const char *text, void *bytes, size_t count)
{
    unsigned char *byte = bytes;

    CHECK(strlen(text) == 2 * count);
    for (size_t i = 0; i < count; i++) {
        unsigned value;
        CHECK(sscanf(text + 2 * i, "%2x", &value) == 1);
        byte[i] = (unsigned char)value;
    }
}

/* ---- what is known by name ---- */

static struct entry *find(const char *name)
{
    for (int i = 0; i < NAMES; i++)
        if (!strcmp(entries[i].name, name))
            return &entries[i];
    printf("no such name: %s\n", name);
    exit(1);
}

static struct entry *add(const char *name)
{
    struct entry *entry = find("");

    CHECK(strlen(name) < sizeof(entry->name));
    strcpy(entry->name, name);
    return entry;
}

static void forget(struct entry *entry)
{
    *entry = (struct entry){.address = 0};
}

/* ---- commands ---- */

/* Every byte depends on its place, so that memory at a wrong offset shows. */
static unsigned char *pattern(size_t size_bytes, unsigned seed)
{
    unsigned char *bytes = malloc(size_bytes);

    CHECK(bytes);
    for (size_t i = 0; i < size_bytes; i++)
        bytes[i] = (unsigned char)((i + seed) * 2654435761u >> 13);
    return bytes;
}

static void do_fill(const struct entry *entry, unsigned seed)
{
    unsigned char *bytes = pattern(entry->size_bytes, seed);
    int result = cuMemcpyHtoD_v2(entry->address, bytes, entry->size_bytes);

    free(bytes);
    answer(result ? result : (int)cuCtxSynchronize());
}

static void do_check(const struct entry *entry, unsigned seed)
{
    unsigned char *wanted = pattern(entry->size_bytes, seed), *seen = malloc(entry->size_bytes);
    int result = cuMemcpyDtoH_v2(seen, entry->address, entry->size_bytes);
    size_t i = 0;

    if (result) {
        answer(result);
    } else {
        while (i < entry->size_bytes && seen[i] == wanted[i])
            i++;
        if (i < entry->size_bytes)
            printf("byte %zu is %d, not %d\n", i, seen[i], wanted[i]);
        else
            printf("ok\n");
    }
    free(seen);
    free(wanted);
}

static void do_words(const struct entry *entry, unsigned word)
{
    unsigned *seen = malloc(entry->size_bytes);
    int result = cuMemcpyDtoH_v2(seen, entry->address, entry->size_bytes);
    size_t i = 0;

    while (!result && i < entry->size_bytes / 4 && seen[i] == word)
        i++;
    if (result)
        answer(result);
    else
        printf(i == entry->size_bytes / 4 ? "ok\n" : "word %zu is %u\n", i,
               i == entry->size_bytes / 4 ? 0 : seen[i]);
    free(seen);
}

/* Where the range that is reported begins and ends, from the block's own point of view. */
static void do_range(const struct entry *entry, size_t offset)
{
    CUdeviceptr base = 0, start = 0;
    size_t bytes = 0, size = 0;
    int capable = -1;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
    void *data[] = {&start, &size, &capable};
    CUdeviceptr at = entry->address + offset;
    int result = cuMemGetAddressRange_v2(&base, &bytes, at);

    if (!result)
        result = cuPointerGetAttributes(3, attributes, data, at);
    if (result) {
        answer(result);
        return;
    }
    CHECK(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at) == 0);
    CHECK(base == start && bytes == size);
    printf("ok %lld %zu %d\n", (long long)(base - entry->address), bytes, capable);
}

/* All that the driver tells of a place in the block, but for what differs between two blocks. */
static void do_attributes(const struct entry *entry, size_t offset)
{
    CUdeviceptr at = entry->address + offset, end = entry->address + entry->size_bytes - 1;
    unsigned long long id = 0, id_at_end = 1;
    CUcontext current;

    CHECK(cuCtxGetCurrent(&current) == 0);
    printf("ok");
    for (int i = 1; i <= CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE; i++) {
        unsigned long long value = 0;
        int result;
        if (i == CU_POINTER_ATTRIBUTE_P2P_TOKENS || i == CU_POINTER_ATTRIBUTE_BUFFER_ID ||
            i == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ||
            i == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)
            continue;
        result = (int)cuPointerGetAttribute(&value, (CUpointer_attribute)i, at);
        if (i == CU_POINTER_ATTRIBUTE_CONTEXT)
            value = value == (uintptr_t)current;
        if (i == CU_POINTER_ATTRIBUTE_DEVICE_POINTER || i == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
            value -= entry->address;
        printf(" %d=%d,%llu", i, result, result ? 0 : value);
    }
    (void)cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
    (void)cuPointerGetAttribute(&id_at_end, CU_POINTER_ATTRIBUTE_BUFFER_ID, end);
    printf(" id=%d\n", id != 0 && id == id_at_end);
}

static void do_open(const char *name, size_t size_bytes, const char *text, int version)
{
    CUdeviceptr address = 0;
    CUipcMemHandle handle;
    int result;

    read_bytes(text, &handle, sizeof(handle));
    result = version == 1
                 ? (int)cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
                 : open_handle(&address, handle);
    if (!result) {
        struct entry *entry = add(name);
        entry->address = address;
        entry->size_bytes = size_bytes;
    }
    answer(result);
}

/* Without a place for the address, with an unknown flag, and without a context. */
static void do_open_wrongly(const char *text)
{
    CUdeviceptr address = 0;
    CUipcMemHandle handle;
    CUcontext current;
    int results[3];

    read_bytes(text, &handle, sizeof(handle));
    results[0] = (int)cuIpcOpenMemHandle_v2(NULL, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    results[1] = (int)cuIpcOpenMemHandle_v2(&address, handle, 1u << 7);
    CHECK(!cuCtxGetCurrent(&current) && !cuCtxSetCurrent(NULL));
    results[2] = (int)cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    CHECK(!cuCtxSetCurrent(current));
    printf("ok %d %d %d\n", results[0], results[1], results[2]);
}

/* Writes the words, but not before that time has passed. */
static void do_later(const struct entry *entry, unsigned word, unsigned long long us)
{
    unsigned long long at = entry->address, count = entry->size_bytes / 4, value = word;
    void *spin_arguments[] = {&us}, *fill_arguments[] = {&at, &count, &value};
    int result = cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, spin_arguments, NULL);

    if (!result)
        result = cuLaunchKernel(fill, KERNEL_BLOCKS, 1, 1, KERNEL_THREADS, 1, 1, 0, stream,
                                fill_arguments, NULL);
    answer(result);
}

/* The stream stops there until it is told to go on. */
static void do_stop(void)
{
    void *arguments[] = {&flag};

    MUST(cuMemHostAlloc((void **)&flag, sizeof(*flag), CU_MEMHOSTALLOC_PORTABLE));
    __atomic_store_n(flag, 0, __ATOMIC_SEQ_CST);
    answer((int)cuLaunchKernel(spin_until, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

static void do_go(void)
{
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
    answer(0);
}

static void do_trim(void)
{
    size_t (*trim)(int, size_t);
    void *found = dlsym(RTLD_DEFAULT, "rmmshim_trim");

    memcpy(&trim, &found, sizeof(trim));
    printf("ok %zu\n", found ? trim(0, 0) : 0);
}

/* Known on the device in host memory. */
static void do_early_frees(void)
{
    unsigned (*count)(void);
    void *found = dlsym(RTLD_DEFAULT, "hostcuda_early_frees");

    memcpy(&count, &found, sizeof(count));
    printf("ok %d\n", found ? (int)count() : -1);
}

/* Known on the device in host memory. */
static void do_calls(const char *function)
{
    unsigned long long (*count)(const char *);
    void *found = dlsym(RTLD_DEFAULT, "hostcuda_call_count");

    memcpy(&count, &found, sizeof(count));
    printf("ok %lld\n", found ? (long long)count(function) : -1);
}

static void do_reset(void)
{
    MUST(cuDevicePrimaryCtxReset_v2(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    memset(entries, 0, sizeof(entries));
    answer(0);
}

/* Those of the library, as a program that closes what it has not opened would. */
static void close_files(void)
{
    char path[64], target[64];
    ssize_t length;

    for (int fd = 3; fd < 1024; fd++) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        length = readlink(path, target, sizeof(target) - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strstr(target, "rmmshim"))
            close(fd);
    }
    answer(0);
}

/* The pipe by which the library is asked for memory, likewise. */
static void close_pipes(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct stat status;
        if (fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode))
            close(fd);
    }
    answer(0);
}

/* From now on no more descriptors than that can be open. */
static void limit_files(unsigned most)
{
    struct rlimit limit;

    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = most;
    answer(setrlimit(RLIMIT_NOFILE, &limit));
}

/* Opens files until only so many descriptors are left, and closes them again. */
static void take_files(unsigned left, int is_taking)
{
    static int taken[2048];
    static unsigned count;

    if (!is_taking)
        left = count;
    while (is_taking && count < sizeof(taken) / sizeof(taken[0]) &&
           (taken[count] = open("/dev/null", O_RDONLY)) >= 0)
        count++;
    for (; left > 0 && count > 0; left--)
        close(taken[--count]);
    answer(0);
}

static void do_files(const char *command, unsigned number)
{
    if (!strcmp(command, "close_files"))
        close_files();
    else if (!strcmp(command, "close_pipes"))
        close_pipes();
    else if (!strcmp(command, "limit_files"))
        limit_files(number);
    else
        take_files(number, !strcmp(command, "take_files"));
}

static void do_event(const char *command, const char *name, const char *text)
{
    CUipcEventHandle handle;
    struct entry *entry;
    CUevent event;
    int result;

    if (!strcmp(command, "event")) {
        result = cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
        if (!result)
            add(name)->event = event;
        answer(result);
    } else if (!strcmp(command, "export_event")) {
        result = cuIpcGetEventHandle(&handle, find(name)->event);
        answer_bytes(result, &handle, sizeof(handle));
    } else if (!strcmp(command, "open_event")) {
        read_bytes(text, &handle, sizeof(handle));
        result = cuIpcOpenEventHandle(&event, handle);
        if (!result)
            add(name)->event = event;
        answer(result);
    } else {
        entry = find(name);
        answer(!strcmp(command, "record_event")  ? (int)cuEventRecord(entry->event, stream)
               : !strcmp(command, "query_event") ? (int)cuEventQuery(entry->event)
               : !strcmp(command, "wait_event")  ? (int)cuStreamWaitEvent(stream, entry->event, 0)
                                                 : (int)cuEventDestroy_v2(entry->event));
    }
}

/* ---- many threads ---- */

enum { KNOWN_MAX = 64, THREADS_MAX = 16, PROBE_BYTES = 4096, LOOKS = 100 };

static struct known {
    unsigned seed;
    size_t size_bytes;
    CUipcMemHandle handle;
} known[KNOWN_MAX];
static unsigned known_count;

struct storm {
    pthread_t thread;
    struct sequence sequence;
    unsigned rounds, opened, refused;
    const char *wrong;
};

static void do_known(unsigned seed, size_t size_bytes, const char *text)
{
    CHECK(known_count < KNOWN_MAX && size_bytes >= PROBE_BYTES);
    known[known_count] = (struct known){.seed = seed, .size_bytes = size_bytes};
    read_bytes(text, &known[known_count++].handle, sizeof(known[0].handle));
    answer(0);
}

/* What is open is what it was when the handle was made, also after its free. */
static const char *probe(struct storm *storm, const struct known *one)
{
    unsigned char seen[PROBE_BYTES], *wanted;
    CUdeviceptr address, base;
    const char *wrong = NULL;
    size_t bytes;
    int result = open_handle(&address, one->handle);

    if (result == CUDA_ERROR_INVALID_VALUE) {
        storm->refused++;
        return NULL;
    }
    if (result)
        return "the open failed";
    storm->opened++;
    wanted = pattern(one->size_bytes, one->seed);
    for (int i = 0; i < LOOKS && !wrong; i++) {
        size_t at = (size_t)sequence_below(&storm->sequence, one->size_bytes - PROBE_BYTES);
        if (cuMemGetAddressRange_v2(&base, &bytes, address + at) || base != address ||
            bytes != one->size_bytes)
            wrong = "the range is another";
        else if (cuMemcpyDtoH_v2(seen, address + at, sizeof(seen)))
            wrong = "the copy failed";
        else if (memcmp(seen, wanted + at, sizeof(seen)) != 0)
            wrong = "the bytes are another's";
    }
    free(wanted);
    return close_handle(address) ? "the close failed" : wrong;
}

static void *run_storm(void *data)
{
    struct storm *storm = data;

    if (cuCtxSetCurrent(context))
        storm->wrong = "no context";
    for (unsigned i = 0; i < storm->rounds && !storm->wrong; i++)
        storm->wrong = probe(storm, &known[sequence_below(&storm->sequence, known_count)]);
    return NULL;
}

static void run_threads(void *(*run)(void *), unsigned threads, unsigned rounds)
{
    struct storm storms[THREADS_MAX] = {{.rounds = 0}};
    unsigned opened = 0, refused = 0;
    const char *wrong = NULL;

    CHECK(threads <= THREADS_MAX);
    for (unsigned i = 0; i < threads; i++) {
        storms[i].rounds = rounds;
        storms[i].sequence.state = i;
        CHECK(!pthread_create(&storms[i].thread, NULL, run, &storms[i]));
    }
    for (unsigned i = 0; i < threads; i++) {
        CHECK(!pthread_join(storms[i].thread, NULL));
        opened += storms[i].opened;
        refused += storms[i].refused;
        wrong = wrong ? wrong : storms[i].wrong;
    }
    if (wrong)
        printf("%s\n", wrong);
    else
        printf("ok %u %u\n", opened, refused);
}

static void do_storm(unsigned threads, unsigned rounds)
{
    CHECK(known_count > 0);
    run_threads(run_storm, threads, rounds);
}

/* Blocks come, get handles that no other block has, and go. */
static void *run_churn(void *data)
{
    struct storm *storm = data;
    CUipcMemHandle before = {{0}}, handle, again;
    CUdeviceptr address;

    if (cuCtxSetCurrent(context))
        storm->wrong = "no context";
    for (unsigned i = 0; i < storm->rounds && !storm->wrong; i++) {
        size_t size_bytes = (size_t)sequence_below(&storm->sequence, 100000) + 1;
        if (allocate(&address, size_bytes) || get_handle(&handle, address) ||
            get_handle(&again, address + size_bytes - 1) || give_back(address))
            storm->wrong = "a call failed";
        else if (memcmp(&handle, &again, sizeof(handle)) != 0)
            storm->wrong = "two handles of a block";
        else if (memcmp(&handle, &before, sizeof(handle)) == 0)
            storm->wrong = "a handle of two blocks";
        before = handle;
    }
    return NULL;
}

static void do_churn(unsigned threads, unsigned rounds)
{
    run_threads(run_churn, threads, rounds);
}

/* A child that lives on and does nothing. */
static void do_fork(void)
{
    pid_t child = fork();

    while (!child)
        pause();
    answer(child < 0);
}

static void do_memory(const char *command, char words[5][2 * CU_IPC_HANDLE_SIZE + 1])
{
    const char *name = words[0];
    struct entry *entry;
    CUipcMemHandle handle;
    CUdeviceptr address;
    int result;

    if (!strcmp(command, "allocate")) {
        result = allocate(&address, strtoull(words[1], NULL, 0));
        if (!result) {
            entry = add(name);
            entry->address = address;
            entry->size_bytes = strtoull(words[1], NULL, 0);
        }
        answer(result);
    } else if (!strcmp(command, "open") || !strcmp(command, "open_v1")) {
        do_open(name, strtoull(words[1], NULL, 0), words[2], command[4] ? 1 : 2);
    } else if (!strcmp(command, "open_wrongly")) {
        do_open_wrongly(name);
    } else if (!strcmp(command, "view")) {
        entry = add(name);
        entry->address = find(words[1])->address + strtoull(words[2], NULL, 0);
        entry->size_bytes = strtoull(words[3], NULL, 0);
        answer(0);
    } else if (!strcmp(command, "rename")) {
        entry = find(name);
        CHECK(strlen(words[1]) < sizeof(entry->name));
        strcpy(entry->name, words[1]);
        answer(0);
    } else if (!strcmp(command, "free") || !strcmp(command, "close")) {
        entry = find(name);
        result = *command == 'f' ? give_back(entry->address) : close_handle(entry->address);
        if (!result)
            forget(entry);
        answer(result);
    } else if (!strcmp(command, "export")) {
        entry = find(name);
        result = get_handle(&handle, entry->address + strtoull(words[1], NULL, 0));
        answer_bytes(result, &handle, sizeof(handle));
    } else if (!strcmp(command, "compare")) {
        printf(find(name)->address == find(words[1])->address ? "ok same\n" : "ok different\n");
    } else {
        printf("what is %s?\n", command);
        exit(1);
    }
}

static void obey(const char *command, char words[5][2 * CU_IPC_HANDLE_SIZE + 1])
{
    if (strstr(command, "event"))
        do_event(command, words[0], words[1]);
    else if (!strcmp(command, "fill"))
        do_fill(find(words[0]), (unsigned)atoi(words[1]));
    else if (!strcmp(command, "check"))
        do_check(find(words[0]), (unsigned)atoi(words[1]));
    else if (!strcmp(command, "words"))
        do_words(find(words[0]), (unsigned)atoi(words[1]));
    else if (!strcmp(command, "range"))
        do_range(find(words[0]), strtoull(words[1], NULL, 0));
    else if (!strcmp(command, "attributes"))
        do_attributes(find(words[0]), strtoull(words[1], NULL, 0));
    else if (!strcmp(command, "later"))
        do_later(find(words[0]), (unsigned)atoi(words[1]), strtoull(words[2], NULL, 0));
    else if (!strcmp(command, "synchronize"))
        answer((int)cuCtxSynchronize());
    else if (!strcmp(command, "stop"))
        do_stop();
    else if (!strcmp(command, "go"))
        do_go();
    else if (!strcmp(command, "trim"))
        do_trim();
    else if (!strcmp(command, "push_context"))
        answer((int)cuCtxCreate_v2(&pushed, 0, 0));
    else if (!strcmp(command, "pop_context"))
        answer((int)cuCtxDestroy_v2(pushed));
    else if (!strcmp(command, "fork"))
        do_fork();
    else if (!strcmp(command, "churn"))
        do_churn((unsigned)atoi(words[0]), (unsigned)atoi(words[1]));
    else if (!strcmp(command, "known"))
        do_known((unsigned)atoi(words[0]), strtoull(words[1], NULL, 0), words[2]);
    else if (!strcmp(command, "storm"))
        do_storm((unsigned)atoi(words[0]), (unsigned)atoi(words[1]));
    else if (!strcmp(command, "free_async"))
        answer((int)cuMemFreeAsync(find(words[0])->address, stream));
    else if (!strcmp(command, "early_frees"))
        do_early_frees();
    else if (!strcmp(command, "calls"))
        do_calls(words[0]);
    else if (!strcmp(command, "reset"))
        do_reset();
    else if (strstr(command, "_files") || strstr(command, "_pipes"))
        do_files(command, (unsigned)atoi(words[0]));
    else
        do_memory(command, words);
}

int main(void)
{
    char line[LINE_BYTES], command[32], words[5][2 * CU_IPC_HANDLE_SIZE + 1];
    CUmodule module;

    setvbuf(stdout, NULL, _IOLBF, 0);
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuModuleLoadData(&module, kernels_ptx));
    MUST(cuModuleGetFunction(&fill, module, "fill32"));
    MUST(cuModuleGetFunction(&spin, module, "spin_us"));
    MUST(cuModuleGetFunction(&spin_until, module, "spin_until"));
    printf("ready\n");
    while (fgets(line, sizeof(line), stdin)) {
        memset(words, 0, sizeof(words));
        CHECK(sscanf(line, "%31s %128s %128s %128s %128s", command, words[0], words[1], words[2],
                     words[3]) >= 1);
        obey(command, words);
    }
    return 0;
}
