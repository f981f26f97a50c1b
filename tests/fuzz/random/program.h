/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a random program share; random_program.c says what it is. */
#pragma once

#include "hostcuda.h"
#include "hostcudart.h"

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define PROGRAM "random_program"
#include "failure.h"
#include "note.h"
#include "requests.h"

enum {
    THREADS_MAX = 16,
    BLOCKS_MAX = 40,
    LANES_MAX = 8, /* the first two: the legacy stream and the thread's own */
    GRAPHS_MAX = 3,
    GRAPH_BLOCKS = 3,
    MAIL_MAX = 64,
    EDGE_WORDS = 256, /* filled at each end of a block */
    WHOLE_MAX = 64 << 10,
};

/* Two groups that exclude each other; within one they do not. */
struct gate {
    pthread_mutex_t mutex;
    unsigned inside[2];
};

enum { CAPTURES, CALLS };

enum memory { PRIMARY_MEMORY, SECOND_MEMORY, MEMORIES };
enum where { PRIMARY, SECOND, GREEN, WHERES };

struct context {
    CUcontext handle;
    CUgreenCtx green;
    enum memory memory;
    struct gate null_gate; /* captures of blocking streams against uses of the NULL stream */
};

enum lane_kind { NO_LANE, LEGACY, OWN, BLOCKING, NON_BLOCKING };

struct lane {
    enum lane_kind kind;
    cudaStream_t stream;
    bool captures;
};

enum block_kind { DEVICE, DRIVER, PITCH, MANAGED, PINNED, ASYNC, ORDERED };

/* After `last` on that lane, or after an event of its own, or (neither) at once. */
struct block {
    enum block_kind kind;
    enum memory memory;
    char *at;
    size_t bytes;
    unsigned value;
    bool is_filled;
    struct lane *lane;
    cudaEvent_t event;
};

struct graph {
    cudaGraphExec_t exec;
    struct block blocks[GRAPH_BLOCKS];
    unsigned count;
    bool was_launched;
};

struct capture {
    struct lane *origin, *fork;
    enum cudaStreamCaptureMode mode;
    bool holds_null, ends_by_destroying;
    unsigned steps;
    struct graph graph;
};

struct worker {
    pthread_t thread;
    uint64_t random;
    unsigned long long operations;
    struct context *context;
    struct lane lanes[LANES_MAX];
    struct block blocks[BLOCKS_MAX];
    unsigned block_count;
    size_t live_bytes;
    struct graph graphs[GRAPHS_MAX];
    struct capture capture;
    cudaEvent_t order_event, fork_event, join_event;
};

extern struct context contexts[WHERES];
extern struct gate sync_gates[MEMORIES]; /* captures against synchronising the context */
extern struct gate global_gate; /* captures in global mode against unrelaxed unsafe calls */

struct mail {
    pthread_mutex_t mutex;
    struct block blocks[MAIL_MAX]; /* none is on a lane */
    unsigned count;
};

extern struct mail mail;

extern unsigned *wrong_words; /* pinned: kernels count here */
extern size_t live_max, largest;
extern unsigned async_percent, managed_percent;
extern bool served, is_advised, wants_flags, device_only, has_greens, has_green_streams, one_thread,
    is_unranged;
extern void *(*torch_alloc)(ssize_t size, int device, cudaStream_t stream);
extern void (*torch_free)(void *block, ssize_t size, int device, cudaStream_t stream);
extern _Atomic unsigned long long out_of_memories, captures_done, frees_done;

static inline uint64_t draw(struct worker *worker, uint64_t below)
{
    worker->random ^= worker->random << 13;
    worker->random ^= worker->random >> 7;
    worker->random ^= worker->random << 17;
    return (worker->random >> 11) % below;
}

static inline bool chance(struct worker *worker, unsigned percent)
{
    return draw(worker, 100) < percent;
}

static inline struct gate *sync_gate(struct worker *worker)
{
    return &sync_gates[worker->context->memory];
}

/* ---- lane.c: gates, streams, and calls that a capture somewhere may forbid ---- */

struct unsafe {
    bool is_relaxed, is_inside;
    enum cudaStreamCaptureMode mode;
};

bool gate_try(struct gate *gate, int group);
void gate_leave(struct gate *gate, int group);
struct unsafe unsafe_begin(struct worker *worker);
void unsafe_end(struct unsafe *unsafe);
bool is_blocking(const struct lane *lane);
bool lane_enter(struct worker *worker, struct lane *lane);
void lane_leave(struct worker *worker, struct lane *lane);
struct lane *some_lane(struct worker *worker);
void drop_event(struct block *block);
bool order(struct worker *worker, struct block *block, struct lane *lane);
bool detach(struct worker *worker, struct block *block);
void lane_is_done(struct worker *worker, const struct lane *lane);
void create_lane(struct worker *worker);
void destroy_lane(struct worker *worker);

#define UNSAFE(worker, statement)                                                                  \
    do {                                                                                           \
        struct unsafe unsafe_ = unsafe_begin(worker);                                              \
        statement;                                                                                 \
        unsafe_end(&unsafe_);                                                                      \
    } while (0)

/* The same for what the library answers in the driver's stead. */
#define UNSAFE_UNLESS_SERVED(worker, statement)                                                    \
    do {                                                                                           \
        if (served)                                                                                \
            statement;                                                                             \
        else                                                                                       \
            UNSAFE(worker, statement);                                                             \
    } while (0)

/* ---- block.c ---- */

size_t words_of(const struct block *block);
void fill_edges(struct worker *worker, struct block *block, cudaStream_t stream, unsigned value);
void check_head(struct block *block, cudaStream_t stream);
struct block take_out(struct worker *worker, unsigned index);
void put_in(struct worker *worker, const struct block *block);
void allocate(struct worker *worker);
void free_on(struct worker *worker, const struct block *block, cudaStream_t stream);
void free_block(struct worker *worker, struct block *block);
void use(struct worker *worker);
void free_one(struct worker *worker);
void synchronise(struct worker *worker);
void post(struct worker *worker);
void fetch(struct worker *worker);

/* ---- capture.c ---- */

void begin_capture(struct worker *worker);
void fork_capture(struct worker *worker);
void end_wrongly(struct worker *worker);
void capture_node(struct worker *worker);
void put_graph_blocks_back(struct worker *worker, struct graph *graph);
void finish_capture(struct worker *worker);
void launch_graph(struct worker *worker);
