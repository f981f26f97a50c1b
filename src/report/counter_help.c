/* SPDX-License-Identifier: Apache-2.0 */
#include "report/counter_help.h"

#include <string.h>

/* tests/integration/test_reports.py misses a counter that has none. */
const struct rs_counter_help rs_counter_helps[] = {
    /* the program's */
    {"program", "live",
     "Bytes that the program has allocated and not freed, as it asked for them."},
    {"program", "live_allocations", "Blocks that the program has allocated and not freed."},
    {"program", "allocations", "Allocations of the program that rmmshim served."},
    {"program", "total", "Bytes that rmmshim has handed to the program since it began."},
    {"program", "peak", "Most bytes that the program had allocated, since the latest reset."},
    {"program", "past_peak", "Most bytes that the program had allocated, before the latest reset."},
    {"program", "refused", "Out-of-memory errors that the program received, whoever refused."},

    /* the device's account */
    {"account", "limit", "The process's limit on this device; 0 is none."},
    {"account", "charged",
     "Bytes that the process holds of this device, as the limit counts them."},
    {"account", "charged_peak", "Most bytes that the process has held of this device."},
    {"account", "internal_refusals",
     "Requests that the limit refused, also those served another way."},
    {"account", "served", "Bytes held of this device for what rmmshim serves."},
    {"account", "unserved", "Bytes that the program has allocated and rmmshim does not serve."},
    {"account", "unserved_peak",
     "Most bytes that the program had allocated and rmmshim did not serve."},
    {"account", "driver", "Bytes held by allocations that the driver served itself."},
    {"account", "managed", "Bytes held by managed memory that the driver served itself."},
    {"account", "arrays", "Bytes held by CUDA arrays."},
    {"account", "vmm", "Bytes held by memory that the program made with cuMemCreate."},
    {"account", "stream_ordered", "Bytes held by the driver's pools of cudaMallocAsync."},
    {"account", "graphs", "Bytes held by memory nodes of CUDA graphs."},
    {"account", "stream_ordered_live", "Bytes of cudaMallocAsync that the program has not freed."},
    {"account", "stream_ordered_blocks",
     "Blocks of cudaMallocAsync that the program has not freed."},
    {"account", "stream_ordered_allocations",
     "Allocations by cudaMallocAsync that the driver served."},

    /* reuse */
    {"reuse", "quarantined", "Freed memory that the GPU may still be using, in bytes."},
    {"reuse", "quarantined_blocks", "Freed blocks that the GPU may still be using."},
    {"reuse", "kept", "Freed memory that waits for the next request of its size, in bytes."},
    {"reuse", "epochs_sealed",
     "Groups of freed blocks for which an event was recorded on the GPU."},
    {"reuse", "epochs_retired", "Groups of freed blocks whose event on the GPU has completed."},
    {"reuse", "waits", "Allocations that waited for the GPU to finish with freed memory."},
    {"reuse", "waits_in_vain", "Allocations that waited for the GPU and gave up the wait."},
    {"reuse", "full_waits", "Frees that waited for all work of the GPU, as cudaFree does."},
    {"reuse", "waited", "Time for which allocations waited for the GPU, in seconds."},
    {"reuse", "stream_reuses",
     "Blocks reused on the stream on which they were freed, without a wait."},

    /* resources with counters of their own */
    {"fallback", "live_first", "Bytes in use from the first resource."},
    {"fallback", "live_first_peak", "Most bytes in use from the first resource."},
    {"fallback", "live_first_blocks", "Blocks in use from the first resource."},
    {"fallback", "live_second",
     "Bytes in use that did not fit into the first resource and spilled."},
    {"fallback", "live_second_peak", "Most bytes in use that had spilled."},
    {"fallback", "live_second_blocks", "Blocks in use that did not fit into the first resource."},
    {"fallback", "fallbacks",
     "Requests that the second resource served, as the first was out of memory."},
    {"fallback", "refusals_expected",
     "Requests sent to the second resource without asking the first."},
    {"headroom", "preferred_on_device", "Bytes that were placed on the GPU."},
    {"headroom", "preferred_on_host", "Bytes that were placed on the host, to leave the GPU room."},
    {"prefetch", "prefetches",
     "Blocks of managed memory that were moved to the GPU as they were allocated."},
    {"prefetch", "prefetched",
     "Bytes of managed memory that were moved to the GPU as they were allocated."},
    {"aligned", "aligned", "Requests that were enlarged to align their blocks."},
    {"aligned", "extra", "Bytes taken beyond what was asked for, to align blocks."},
    {"limiting", "limit", "The most that this resource hands out, in bytes."},
    {"poison", "written_before", "Blocks with a stray write before their beginning."},
    {"poison", "written_past_end", "Blocks with a stray write past their end."},
    {"poison", "written_after_free", "Blocks with a write after they had been freed."},
    {"poison", "unchecked", "Blocks that could not be checked for stray writes."},
    {"poison", "kept", "Freed memory that is watched for stray writes, in bytes."},
    {"poison", "kept_blocks", "Freed blocks that are watched for stray writes."},
    {"binning", "bins", "Bins, of one block size each."},
    {"virtual", "reserved", "Bytes of address space that are reserved; they take no memory."},
    {"virtual", "moved",
     "Bytes of memory that were mapped to another address instead of newly taken."},

    /* what several resources count */
    {NULL, "held", "Bytes that this resource has taken from the one below it, or from the driver."},
    {NULL, "held_peak", "Most bytes that this resource had taken."},
    {NULL, "live", "Bytes that this resource has handed out and that are in use."},
    {NULL, "live_peak", "Most bytes of this resource that were in use."},
    {NULL, "live_allocations", "Blocks of this resource that are in use."},
    {NULL, "peak", "Most bytes of this resource that were in use."},
    {NULL, "peak_allocations", "Most blocks of this resource that were in use."},
    {NULL, "total", "Bytes that this resource has handed out since the process began."},
    {NULL, "allocations", "Requests that this resource has served."},
    {NULL, "frees", "Blocks that were given back to this resource."},
    {NULL, "failures",
     "Requests that this resource could not serve, also those served another way."},
    {NULL, "internal_refusals",
     "Requests refused by the limit or a resource, also those served another way."},
    {NULL, "driver_allocations", "Calls of the driver that allocated memory."},
    {NULL, "driver_frees", "Calls of the driver that freed memory."},
    {NULL, "free", "Bytes that this resource holds and that nobody uses."},
    {NULL, "largest_free",
     "The largest unused piece of memory that this resource holds, in bytes."},
    {NULL, "chunks", "Large pieces of memory that this resource holds and cuts blocks from."},
    {NULL, "growths", "Times that this resource took more memory after its initial size."},
    {NULL, "chunk_returns", "Large pieces of memory that this resource gave back."},
    {NULL, NULL, NULL},
};

const char *rs_counter_help(const struct rs_counter *counter)
{
    for (const struct rs_counter_help *row = rs_counter_helps; row->name; row++)
        if (strcmp(counter->name, row->name) == 0 &&
            (!row->resource || strcmp(counter->resource, row->resource) == 0))
            return row->help;
    return "A counter that this version of rmmshim does not know.";
}
