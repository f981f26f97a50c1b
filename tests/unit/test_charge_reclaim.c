/* SPDX-License-Identifier: Apache-2.0 */
/* A request that is refused while other threads ask. */
#include "unit.h"

#include "base/memory.h"
#include "base/request.h"
#include "charge/charge.h"
#include "driver/driver.h"
#include "ledger/account.h"

#include <pthread.h>
#include <sched.h>

enum { DEVICE = 0, MIB = 1 << 20 };

static size_t asked_meanwhile; /* what another thread asks for while the reclaim sums up */

static void ask(size_t bytes)
{
    assert_true(rs_account_take(rs_limit_account(DEVICE), bytes, bytes, RS_MEMORY_DEVICE));
}

static void answer(size_t bytes, size_t granted_bytes)
{
    rs_account_settle(rs_limit_account(DEVICE), (struct rs_amount){bytes, bytes, bytes},
                      (struct rs_amount){granted_bytes, granted_bytes, 0}, RS_MEMORY_DEVICE);
}

size_t __wrap_rs_charge_spare_bytes(int device);

size_t __wrap_rs_charge_spare_bytes(int device)
{
    size_t bytes = asked_meanwhile;

    assert_int_equal(device, DEVICE);
    asked_meanwhile = 0;
    if (bytes)
        ask(bytes);
    return 0;
}

static atomic_bool is_summing;  /* the reclaim sums up the host's memory */
static bool released_meanwhile; /* another thread releases memory meanwhile */

void __wrap_rs_host_memory(size_t *total_bytes, size_t *available_bytes);

void __wrap_rs_host_memory(size_t *total_bytes, size_t *available_bytes)
{
    *total_bytes = 100 * MIB;
    *available_bytes = 10 * MIB;
    atomic_store(&is_summing, true);
    if (released_meanwhile)
        atomic_fetch_add(&rs_limit_account(DEVICE)->releases, 1);
    released_meanwhile = false;
}

static CUresult fake_total(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = 200 * MIB;
    return CUDA_SUCCESS;
}

/* With a limit of 100 MiB and 60 MiB in use, 40 MiB fit, unless the driver grants the 10 MiB that
 * the other thread has asked for. */
TEST(what_another_thread_has_just_asked_for_is_not_in_use_yet)
{
    struct rs_account *account = rs_limit_account(DEVICE);
    struct rs_refusal refusal = {.size_bytes = 40 * MIB, .memory = RS_MEMORY_DEVICE};

    rs_driver.cuDeviceTotalMem_v2 = fake_total;
    atomic_store(&rs_driver_is_ready, true);
    atomic_store(&account->limit_bytes, 100 * MIB);
    ask(60 * MIB);
    answer(60 * MIB, 60 * MIB);
    refusal.releases = rs_account_releases(account);
    rs_request_begin();
    asked_meanwhile = 10 * MIB;
    assert_true(rs_reclaim(DEVICE, &refusal, false));
    assert_int_equal(asked_meanwhile, 0);
    answer(10 * MIB, 10 * MIB);
    assert_false(rs_reclaim(DEVICE, &refusal, false));
    rs_request_end();
}

/* The sum may have found the released memory neither in use nor free. */
TEST(what_another_thread_releases_meanwhile_may_be_enough_of_the_host)
{
    struct rs_refusal refusal = {.size_bytes = 40 * MIB, .memory = RS_MEMORY_HOST};

    atomic_store(&rs_driver_is_ready, true);
    refusal.releases = rs_account_releases(rs_limit_account(DEVICE));
    rs_request_begin();
    released_meanwhile = true;
    assert_true(rs_reclaim(DEVICE, &refusal, false));
    assert_false(released_meanwhile);
    refusal.releases = rs_account_releases(rs_limit_account(DEVICE));
    assert_false(rs_reclaim(DEVICE, &refusal, false));
    rs_request_end();
}

/* A thread that gets the processor back only when the request repeats no more. */
static void *come_back(void *data)
{
    struct rs_account *account = rs_limit_account(DEVICE);

    while (!atomic_load(&is_summing))
        sched_yield();
    atomic_fetch_add(&account->releases, 1);
    rs_account_end_return(account, 8 * MIB);
    return data;
}

TEST(what_another_thread_has_in_hand_is_waited_for)
{
    struct rs_account *account = rs_limit_account(DEVICE);
    struct rs_refusal refusal = {.size_bytes = 4 * MIB, .memory = RS_MEMORY_HOST};
    pthread_t thread;

    atomic_store(&rs_driver_is_ready, true);
    rs_account_begin_return(account, 8 * MIB);
    refusal.releases = rs_account_releases(account);
    rs_request_begin();
    while (rs_request_may_repeat())
        ;
    atomic_store(&is_summing, false);
    assert_int_equal(pthread_create(&thread, NULL, come_back, NULL), 0);
    assert_true(rs_reclaim(DEVICE, &refusal, true));
    pthread_join(thread, NULL);
    refusal.releases = rs_account_releases(account);
    assert_false(rs_reclaim(DEVICE, &refusal, true));
    rs_account_begin_return(account, 8 * MIB); /* which never comes back */
    rs_request.deadline_ns = 1;
    assert_false(rs_reclaim(DEVICE, &refusal, true));
    rs_account_end_return(account, 8 * MIB);
    rs_request_end();
}
