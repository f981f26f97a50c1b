/* SPDX-License-Identifier: Apache-2.0 */
/* pinned: the thread's memory policy during the driver's call, and after it. */
#include "unit.h"

#include "driver/driver.h"
#include "fake_leaf.h"
#include "ledger/account.h"

#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NODES_MAX = 1024, WORDS = NODES_MAX / 64, NODE_OF_DEVICE = 0 };

struct policy {
    int mode;
    unsigned long nodes[WORDS];
};

static struct policy policy_now(void)
{
    struct policy policy = {.mode = -1};

    assert_int_equal(
        syscall(SYS_get_mempolicy, &policy.mode, policy.nodes, (long)NODES_MAX + 1, NULL, 0), 0);
    return policy;
}

static void set_policy(int mode, unsigned long nodes)
{
    unsigned long mask[WORDS] = {nodes};

    assert_int_equal(syscall(SYS_set_mempolicy, mode, mask, (long)NODES_MAX + 1), 0);
}

/* ---- the driver ---- */

static struct policy seen;
static CUresult answer;
static int host_numa_id;

static CUresult fake_host_alloc(void **host, size_t bytes, unsigned flags)
{
    assert_int_equal(flags, fake_environment.host_flags);
    assert_in_range(bytes, 1, 2 * RS_BLOCK_ALIGNMENT);
    seen = policy_now();
    if (answer == CUDA_SUCCESS)
        *host = aligned_alloc(RS_BLOCK_ALIGNMENT, 2 * RS_BLOCK_ALIGNMENT); /* as pages are */
    return answer;
}

static CUresult fake_host_free(void *host)
{
    free(host);
    return CUDA_SUCCESS;
}

static CUresult fake_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    assert_int_equal((int)attribute, 134);
    assert_int_equal(device, fake_environment.device);
    *value = host_numa_id;
    return CUDA_SUCCESS;
}

static CUresult fake_bus_id(char *id, int length, CUdevice device)
{
    (void)device;
    snprintf(id, (size_t)length, "FFFF:FF:1F.7"); /* nowhere */
    return CUDA_SUCCESS;
}

static CUresult fake_exchange_mode(CUstreamCaptureMode *mode)
{
    (void)mode;
    return CUDA_SUCCESS;
}

static struct rs_mr *make_pinned(const char *option)
{
    answer = CUDA_SUCCESS;
    rs_driver.cuMemHostAlloc = fake_host_alloc;
    rs_driver.cuMemFreeHost = fake_host_free;
    rs_driver.cuDeviceGetAttribute = fake_attribute;
    rs_driver.cuDeviceGetPCIBusId = fake_bus_id;
    rs_driver.cuThreadExchangeStreamCaptureMode = fake_exchange_mode;
    seen = (struct policy){.mode = -1};
    return make_resource(&rs_mr_descriptor_pinned, NULL, OPTIONS(option));
}

static void assert_policy(const struct policy *policy, int mode, unsigned long nodes)
{
    assert_int_equal(policy->mode, mode);
    assert_int_equal(policy->nodes[0], nodes);
    for (size_t i = 1; i < WORDS; i++)
        assert_int_equal(policy->nodes[i], 0);
}

/* Allocates and frees; the policy is the thread's own again. */
static void use(struct rs_mr *mr, int mode, unsigned long nodes)
{
    struct rs_allocation block;
    struct policy after;

    assert_int_equal(rs_mr_allocate(mr, 1000, NULL, &block), answer);
    after = policy_now();
    assert_policy(&after, mode, nodes);
    if (answer == CUDA_SUCCESS)
        assert_int_equal(rs_mr_deallocate(mr, &block, NULL), CUDA_SUCCESS);
}

/* A sandbox may refuse the system calls, and qemu's user mode does. */
static bool are_policies_known(void)
{
    struct policy policy;

    return syscall(SYS_get_mempolicy, &policy.mode, policy.nodes, (long)NODES_MAX + 1, NULL, 0) ==
               0 &&
           syscall(SYS_set_mempolicy, 0, NULL, 0) == 0;
}

TEST_IF(are_policies_known, by_default_the_policy_is_the_threads)
{
    struct rs_mr *mr;

    set_policy(MPOL_BIND, 1);
    mr = make_pinned("numa=none");
    use(mr, MPOL_BIND, 1);
    assert_policy(&seen, MPOL_BIND, 1);
    set_policy(MPOL_DEFAULT, 0);
    rs_mr_destroy(mr, false);
}

TEST_IF(are_policies_known, a_node_is_preferred_during_the_call)
{
    struct rs_mr *mr;

    set_policy(MPOL_DEFAULT, 0);
    mr = make_pinned("numa=0");
    use(mr, MPOL_DEFAULT, 0);
    assert_policy(&seen, MPOL_PREFERRED, 1);
    rs_mr_destroy(mr, false);
}

TEST_IF(are_policies_known, the_threads_own_policy_comes_back)
{
    static const struct {
        int mode;
        unsigned long nodes;
    } policies[] = {{MPOL_DEFAULT, 0}, {MPOL_BIND, 1}, {MPOL_INTERLEAVE, 1}, {MPOL_PREFERRED, 1}};
    struct rs_mr *mr = make_pinned("numa=0");

    for (size_t i = 0; i < RS_ARRAY_LENGTH(policies); i++) {
        set_policy(policies[i].mode, policies[i].nodes);
        answer = CUDA_SUCCESS;
        use(mr, policies[i].mode, policies[i].nodes);
        assert_policy(&seen, MPOL_PREFERRED, 1);
        answer = CUDA_ERROR_OUT_OF_MEMORY; /* on every path */
        use(mr, policies[i].mode, policies[i].nodes);
    }
    set_policy(MPOL_DEFAULT, 0);
    rs_mr_destroy(mr, false);
}

TEST_IF(are_policies_known, the_devices_node_is_asked_for)
{
    struct rs_mr *mr;

    set_policy(MPOL_BIND, 1);
    host_numa_id = NODE_OF_DEVICE;
    mr = make_pinned("numa=device");
    use(mr, MPOL_BIND, 1);
    assert_policy(&seen, MPOL_PREFERRED, 1);
    rs_mr_destroy(mr, false);

    host_numa_id = -1; /* a machine without nodes: nothing is asked for */
    mr = make_pinned("numa=device");
    use(mr, MPOL_BIND, 1);
    assert_policy(&seen, MPOL_BIND, 1);
    set_policy(MPOL_DEFAULT, 0);
    rs_mr_destroy(mr, false);
}

TEST_IF(are_policies_known, a_node_that_is_not_there_serves_all_the_same)
{
    struct rs_mr *mr;

    set_policy(MPOL_DEFAULT, 0);
    mr = make_pinned("numa=1023");
    use(mr, MPOL_DEFAULT, 0);
    assert_policy(&seen, MPOL_DEFAULT, 0);
    rs_mr_destroy(mr, false);
}

TEST(options_are_words_or_nodes)
{
    static const char *const good[] = {"numa=none", "numa=device", "numa=0", "numa=1023"};
    static const char *const bad[] = {"numa=1024", "numa=-1", "numa=+1", "numa=1x", "numa=near"};
    char line[300];

    for (size_t i = 0; i < RS_ARRAY_LENGTH(good); i++)
        assert_true(options_are_valid(&rs_mr_descriptor_pinned, &fake_environment, OPTIONS(good[i]),
                                      line, sizeof(line)));
    for (size_t i = 0; i < RS_ARRAY_LENGTH(bad); i++)
        assert_false(options_are_valid(&rs_mr_descriptor_pinned, &fake_environment, OPTIONS(bad[i]),
                                       line, sizeof(line)));
}
