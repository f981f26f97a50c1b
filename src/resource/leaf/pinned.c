/* SPDX-License-Identifier: Apache-2.0 */
/* pinned: page-locked host memory.  RMM's pinned_host_memory_resource.
 *
 * An allocation costs 0.5 ms for 4 KiB and 160 ms for 512 MiB (MEASURED.md), so pinned memory gains
 * the most from a pool.
 *
 * The kernel chooses the NUMA node of the memory by the memory policy of the calling thread.  So
 * the policy is changed before the driver's call and restored after it.  The new policy is only a
 * preference: if the node is full, another serves the allocation. */
#include "base/file.h"
#include "base/log.h"
#include "driver/driver.h"
#include "resource/leaf/leaf.h"

#include <ctype.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    NODES_MAX = 1024, /* the largest number of nodes for which a kernel can be built */
    NODE_NONE = -1,
    HOST_NUMA_ID = 134, /* CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID of CUDA 12.2 */
    WORD_BITS = 8 * sizeof(unsigned long),
};

struct pinned_config {
    const char *numa;
};

/* ---- the thread's memory policy, by system calls, so that libnuma is not needed ---- */

struct policy {
    int mode;
    unsigned long nodes[NODES_MAX / WORD_BITS];
};

static bool get_policy(struct policy *policy)
{
    return syscall(SYS_get_mempolicy, &policy->mode, policy->nodes, (long)NODES_MAX + 1, NULL, 0) ==
           0;
}

static bool set_policy(const struct policy *policy)
{
    return syscall(SYS_set_mempolicy, policy->mode, policy->nodes, (long)NODES_MAX + 1) == 0;
}

/* Makes the thread's memory policy prefer the node, and stores the old policy in *before.  Returns
 * false when the kernel or a sandbox refuses; the old policy then stays. */
static bool prefer_node(int node, struct policy *before)
{
    static bool said;
    struct policy wanted = {.mode = MPOL_PREFERRED};

    wanted.nodes[(unsigned)node / WORD_BITS] = 1ul << ((unsigned)node % WORD_BITS);
    *before = (struct policy){.mode = MPOL_DEFAULT};
    if (get_policy(before) && set_policy(&wanted))
        return true;
    if (rs_log_once(&said))
        rs_log(
            "pinned: memory cannot be placed on NUMA node %d (%s), so the thread's memory policy "
            "chooses the node instead",
            node, strerror(errno));
    return false;
}

/* ---- the node nearest to the device ---- */

/* Returns the NUMA node that the kernel gives for the device's PCI address; -1 if it gives none. */
static int node_of_bus(CUdevice device)
{
    char id[32] = "", path[80], text[16] = "";

    if (!rs_driver.cuDeviceGetPCIBusId ||
        rs_driver.cuDeviceGetPCIBusId(id, sizeof(id), device) != CUDA_SUCCESS)
        return NODE_NONE;
    for (char *at = id; *at; at++)
        *at = (char)tolower((unsigned char)*at);
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", id);
    return rs_file_text(path, text, sizeof(text)) > 0 ? atoi(text) : NODE_NONE;
}

static int node_of_device(CUdevice device)
{
    int node = NODE_NONE;

    if (!rs_driver.cuDeviceGetAttribute ||
        rs_driver.cuDeviceGetAttribute(&node, (CUdevice_attribute)HOST_NUMA_ID, device) !=
            CUDA_SUCCESS ||
        node < 0)
        node = node_of_bus(device);
    return node >= 0 && node < NODES_MAX ? node : NODE_NONE;
}

/* ---- the resource ---- */

static CUresult pinned_take(const struct rs_leaf *leaf, size_t size_bytes, CUdeviceptr *address)
{
    struct policy before;
    bool preferred = leaf->node != NODE_NONE && prefer_node(leaf->node, &before);
    void *host = NULL;
    CUresult result =
        rs_driver.cuMemHostAlloc(&host, size_bytes, leaf->base.environment->host_flags);

    if (preferred)
        (void)set_policy(&before); /* cannot fail: this policy was the thread's before */
    if (result == CUDA_SUCCESS)
        *address = (CUdeviceptr)(uintptr_t)host;
    return result;
}

static CUresult pinned_give(CUdeviceptr address)
{
    return rs_driver.cuMemFreeHost((void *)(uintptr_t)address);
}

static const struct rs_leaf_calls pinned_calls = {pinned_take, pinned_give, .has_order = false};

/* Parses the option `numa`: "none", "device" or a node's number.  Returns false for other texts. */
static bool parse_numa(const char *text, CUdevice device, int *node)
{
    char *end;
    long number;

    *node = NODE_NONE;
    if (strcmp(text, "none") == 0)
        return true;
    if (strcmp(text, "device") == 0) {
        *node = node_of_device(device);
        return true;
    }
    number = strtol(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || number >= NODES_MAX)
        return false;
    *node = (int)number;
    return true;
}

static int pinned_init(struct rs_mr *mr, const void *config)
{
    const struct pinned_config *settings = config;

    /* Cannot fail: the text was validated. */
    (void)parse_numa(settings->numa, mr->environment->device, &RS_MR_AS(rs_leaf, mr)->node);
    return rs_leaf_init(mr, &pinned_calls, RS_MEMORY_HOST);
}

static bool pinned_validate(const void *config, const struct rs_validation *of)
{
    const struct pinned_config *settings = config;
    int node;

    return strcmp(settings->numa, "device") == 0 || parse_numa(settings->numa, 0, &node) ||
           RS_REFUSE(of, "numa=%s: expected none, device, or the number of a NUMA node, below %d",
                     settings->numa, NODES_MAX);
}

static const struct rs_option pinned_options[] = {
    RS_OPTION_TEXT_ROW(
        struct pinned_config, numa, "none",
        "the NUMA node from which the memory comes; none (the default): the thread's memory policy "
        "chooses it; device: the node nearest to the device; a number: this node"),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_pinned = {
    .name = "pinned",
    .aliases = {"pinned_host"},
    .summary = "page-locked host memory (cudaHostAlloc)",
    .memory = RS_MEMORY_HOST,
    .frees = RS_FREE_WAITS,
    .dies_with_context = true,
    .config_bytes = sizeof(struct pinned_config),
    .options = pinned_options,
    .validate = pinned_validate,
};

RS_MR_CLASS(pinned, struct rs_leaf, rs_leaf_ops, pinned_init);
