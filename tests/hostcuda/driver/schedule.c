/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/schedule.h"

#include "driver/access.h"
#include "driver/config.h"
#include "driver/context.h"
#include "driver/entry_table.h"
#include "driver/lock.h"
#include "driver/managed.h"
#include "driver/race.h"
#include "hostcuda.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define WORKER_STACK_BYTES ((size_t)512 << 10)
#define LONGEST_DELAY_US   300

static struct hc_op *ready_head, **ready_tail = &ready_head;
static unsigned ready_count;
static unsigned idle_count;     /* workers that wait for work */
static unsigned waking_count;   /* of these, as many as have a post of work_posts on the way */
static unsigned starting_count; /* new workers that have not had the lock yet */
static unsigned waiter_count;   /* threads of the program in hc_schedule_wait */
/* No condition variable: glibc before 2.41 can lose the wake of pthread_cond_signal where several
 * threads wait (bug 25847), and a program then never ended.  pthread_cond_broadcast does not lose
 * one. */
static sem_t work_posts;
static pthread_cond_t done_cond = PTHREAD_COND_INITIALIZER;
static uint64_t random_state;

__attribute__((constructor)) static void prepare(void)
{
    sem_init(&work_posts, 0, 0);
}

static uint64_t next_random(void)
{
    if (!random_state)
        random_state = hc_config.seed * 2 + 1;
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

void hc_schedule_push(struct hc_op *op)
{
    hc_op_ref(op);
    op->next = NULL;
    *ready_tail = op;
    ready_tail = &op->next;
    ready_count++;
}

static struct hc_op *take(struct hc_op **link)
{
    struct hc_op *op = *link;
    *link = op->next;
    if (ready_tail == &op->next)
        ready_tail = link;
    op->next = NULL;
    ready_count--;
    return op;
}

/* Runs one operation that was taken; the lock is free while it works. */
static void run(struct hc_op *op, unsigned delay_us)
{
    CUresult result = hc_ctx_error(op->ctx);
    if (!result && !hc_access_is_allowed(op->ctx, &op->work))
        result = CUDA_ERROR_ILLEGAL_ADDRESS;
    if (!result)
        hc_managed_use(op->ctx->device, &op->work);
    if (op->work.tells_host)
        hc_race_host_knows(&op->clock);
    if (!result && (op->work.run || delay_us)) {
        hc_unlock();
        if (delay_us) {
            struct timespec delay = {0, (long)delay_us * 1000};
            nanosleep(&delay, NULL);
        }
        if (op->work.run)
            result = op->work.run(op->work.args);
        hc_lock();
    }
    hc_op_complete(op, result);
    hc_op_unref(op);
}

static unsigned pick_delay_us(void)
{
    if (hc_config.schedule != HC_RANDOM || next_random() % 4 == 0)
        return 0;
    return (unsigned)(next_random() % LONGEST_DELAY_US);
}

static void *worker(void *unused)
{
    (void)unused;
    (void)prctl(PR_SET_NAME, "hostcuda"); /* so that tests tell them from others' threads */
    hc_lock();
    starting_count--;
    for (;;) {
        while (!ready_head) {
            idle_count++;
            hc_unlock();
            while (sem_wait(&work_posts) != 0 && errno == EINTR)
                ;
            hc_lock();
            idle_count--;
            waking_count--;
        }
        run(take(&ready_head), pick_delay_us());
    }
    return NULL;
}

static void spawn(void)
{
    pthread_attr_t attr;
    sigset_t all, before;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, WORKER_STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, &attr, worker, NULL)) {
        perror("hostcuda: worker thread");
        abort();
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
}

/* Workers for all ready operations but those that the calling worker takes itself. */
static void provide_workers(unsigned own)
{
    if (hc_config.schedule == HC_STEPPED)
        return;
    while (starting_count + waking_count + own < ready_count) {
        if (idle_count > waking_count) {
            waking_count++;
            sem_post(&work_posts);
        } else {
            starting_count++;
            spawn();
        }
    }
}

void hc_schedule_wake(void)
{
    provide_workers(0);
}

void hc_schedule_done(void)
{
    provide_workers(1);
    if (waiter_count)
        pthread_cond_broadcast(&done_cond);
}

void hc_schedule_wait(void)
{
    if (hc_config.schedule == HC_STEPPED && hc_schedule_step(NULL))
        return;
    waiter_count++;
    pthread_cond_wait(&done_cond, &hc_mutex);
    waiter_count--;
}

bool hc_schedule_delays_markers(void)
{
    return hc_config.schedule != HC_REAL;
}

bool hc_schedule_step(const struct hc_stream *stream)
{
    for (struct hc_op **link = &ready_head; *link; link = &(*link)->next) {
        if (stream && (*link)->stream != stream)
            continue;
        run(take(link), 0);
        return true;
    }
    return false;
}

/* ---- by hand ---- */

HC_API int hostcuda_step(void *handle)
{
    struct hc_stream *stream = NULL;
    HC_LOCKED();
    if (handle && hc_stream_of((CUstream)handle, &stream))
        return 0;
    return hc_schedule_step(stream);
}

HC_API unsigned hostcuda_ready_count(void)
{
    HC_LOCKED();
    return ready_count;
}
