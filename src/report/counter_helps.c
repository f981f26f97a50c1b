/* SPDX-License-Identifier: Apache-2.0 */
/* What each counter means, for the manual and for metrics. The unit test resource_contract and
 * tests/integration/test_reports.py fail for a counter that has no sentence here. */
#include "report/counters.h"

#include <stddef.h>

const struct rs_counter_help rs_counter_helps[] = {
    /* the program's */
    {"program", "live",
     "Bytes that the program has allocated and not yet freed, counted in the sizes that it asked "
     "for."},
    {"program", "live_allocations", "Blocks that the program has allocated and not yet freed."},
    {"program", "allocations", "Allocations of the program that rmmshim served."},
    {"program", "total",
     "Bytes that rmmshim has allocated for the program so far, freed blocks included."},
    {"program", "peak",
     "The most bytes that the program had allocated at one time since the peak was last reset."},
    {"program", "past_peak", "The most bytes allocated at one time before `peak` was last reset."},
    {"program", "refused",
     "Out-of-memory errors that the program received, from rmmshim or from the driver."},

    /* the device's account */
    {"account", "limit",
     "The most bytes that the process may take from the driver on this device; 0: no limit."},
    {"account", "job_limit",
     "The most bytes that all processes of a job together may take from the driver on this "
     "device."},
    {"account", "charged",
     "Bytes of this device's memory that the process holds and that count against its limit."},
    {"account", "charged_peak",
     "The most bytes of this device's memory that the process held at one time."},
    {"account", "internal_refusals",
     "Requests that the limit refused, including those that succeeded afterwards, for example from "
     "a fallback."},
    {"account", "served",
     "Device memory that rmmshim has taken from the driver to serve the program, in bytes."},
    {"account", "unserved",
     "Bytes that the program has allocated on this device by calls that rmmshim did not serve, and "
     "not yet freed; managed memory, arrays and graphs included."},
    {"account", "unserved_peak", "The most bytes of `unserved` at one time."},
    {"account", "driver",
     "Bytes of device memory from calls of cuMemAlloc, cudaMalloc and the like that rmmshim did "
     "not serve."},
    {"account", "managed",
     "Bytes of managed memory from calls of cudaMallocManaged that rmmshim did not serve."},
    {"account", "arrays", "Bytes of device memory in CUDA arrays."},
    {"account", "vmm", "Bytes of device memory that the program created with cuMemCreate."},
    {"account", "stream_ordered",
     "Bytes of device memory in the driver's pools for cudaMallocAsync."},
    {"account", "graphs", "Bytes of device memory in memory nodes of CUDA graphs."},
    {"account", "stream_ordered_live",
     "Bytes from calls of cudaMallocAsync that rmmshim did not serve, not yet freed."},
    {"account", "stream_ordered_blocks",
     "Blocks from calls of cudaMallocAsync that rmmshim did not serve, not yet freed."},
    {"account", "stream_ordered_allocations",
     "Calls of cudaMallocAsync that rmmshim did not serve."},

    /* reuse */
    {"reuse", "quarantined", "Freed memory that the GPU may still be using, in bytes."},
    {"reuse", "quarantined_blocks", "Freed blocks that the GPU may still be using."},
    {"reuse", "kept", "Freed memory that is kept for the next request of the same size, in bytes."},
    {"reuse", "epochs_sealed",
     "Groups of freed blocks for which a CUDA event was recorded; the event completes when the GPU "
     "no longer uses the blocks."},
    {"reuse", "epochs_retired",
     "Groups of freed blocks whose CUDA event has completed, so that they can be reused."},
    {"reuse", "waits",
     "Waits of allocations for freed memory that the GPU still used; one allocation can wait "
     "several times."},
    {"reuse", "waits_in_vain",
     "How often an allocation stopped waiting for freed memory that the GPU used for too long, and "
     "took other memory or failed."},
    {"reuse", "full_waits",
     "Frees, and with a driver before 555 also trims, that waited until the GPU had finished all "
     "work."},
    {"reuse", "waited", "Time for which allocations and frees have waited for the GPU."},
    {"reuse", "stream_reuses",
     "Blocks that were reused without a wait, on the same CUDA stream on which they were freed."},

    /* resources with counters of their own */
    {"fallback", "live_first",
     "Bytes in use that `fallback` has taken from its first memory resource."},
    {"fallback", "live_first_peak",
     "Peak of the bytes that `fallback` has in use from its first memory resource."},
    {"fallback", "live_first_blocks",
     "Blocks in use that `fallback` has taken from its first memory resource."},
    {"fallback", "live_second",
     "Bytes in use that `fallback` has taken from its second memory resource, because the first "
     "was full."},
    {"fallback", "live_second_peak",
     "Peak of the bytes that `fallback` has in use from its second memory resource."},
    {"fallback", "live_second_blocks",
     "Blocks in use that `fallback` has taken from its second memory resource, because the first "
     "was full."},
    {"fallback", "fallbacks",
     "Requests that `fallback` served from its second memory resource, because the first was "
     "full."},
    {"fallback", "refusals_expected",
     "Requests for which `fallback` did not try its first memory resource, because it was known to "
     "be full."},
    {"headroom", "preferred_on_device",
     "Bytes of managed memory that `headroom` has placed on the GPU."},
    {"headroom", "preferred_on_host",
     "Bytes of managed memory that `headroom` has placed on the host, to keep memory of the GPU "
     "free."},
    {"prefetch", "prefetches",
     "Blocks of managed memory that were moved to the GPU when they were allocated."},
    {"prefetch", "prefetched",
     "Bytes of managed memory that were moved to the GPU when they were allocated."},
    {"prefetch", "internal_refusals",
     "Blocks of managed memory that could not be moved to the GPU when they were allocated."},
    {"aligned", "aligned", "Requests that were made larger so that their blocks could be aligned."},
    {"aligned", "extra",
     "Bytes taken in addition to those requested, so that blocks could be aligned."},
    {"limiting", "limit", "The most bytes of this memory resource that may be in use at one time."},
    {"poison", "written_before", "Blocks with a wrong write before their first byte."},
    {"poison", "written_past_end", "Blocks with a wrong write after their last byte."},
    {"poison", "written_after_free",
     "Blocks to which the program has written after it freed them."},
    {"poison", "unchecked",
     "Blocks not checked for wrong writes, because the driver could not read or fill them."},
    {"poison", "kept", "Freed memory that is kept unused to find writes after the free, in bytes."},
    {"poison", "kept_blocks", "Freed blocks that are kept unused to find writes after the free."},
    {"binning", "bins", "Number of bins; all blocks of one bin have the same size."},
    {"virtual", "reserved",
     "Bytes of address space that are reserved; reserved addresses take no memory."},
    {"virtual", "moved",
     "Bytes of free memory that were mapped to a new address to serve a request, rather than taken "
     "from the driver."},

    /* what several resources count */
    {NULL, "held",
     "Bytes that this memory resource has taken from its upstream (the memory resource below it) "
     "or from the driver."},
    {NULL, "held_peak",
     "The most bytes that this memory resource had taken from its upstream or from the driver at "
     "one time."},
    {NULL, "live", "Bytes of this memory resource that are in use."},
    {NULL, "live_peak", "The most bytes of this memory resource that were in use at one time."},
    {NULL, "live_allocations", "Blocks of this memory resource that are in use."},
    {NULL, "peak", "The most bytes of this memory resource that were in use at one time."},
    {NULL, "peak_allocations",
     "The most blocks of this memory resource that were in use at one time."},
    {NULL, "total", "Bytes that this memory resource has allocated since the process started."},
    {NULL, "allocations", "Requests that this memory resource has served."},
    {NULL, "frees", "Blocks that were freed to this memory resource."},
    {NULL, "failures",
     "Requests that this memory resource could not serve, also those that were then served in "
     "another way."},
    {NULL, "internal_refusals",
     "Requests that the limit, the driver or a memory resource refused, including those that "
     "succeeded afterwards."},
    {NULL, "driver_allocations", "Successful calls to the driver to allocate memory."},
    {NULL, "driver_frees", "Successful calls to the driver to free memory."},
    {NULL, "free", "Bytes that this memory resource holds and that are not in use."},
    {NULL, "largest_free",
     "The largest contiguous piece of unused memory of this memory resource, in bytes."},
    {NULL, "chunks",
     "Number of chunks of upstream memory from which this memory resource cuts its blocks."},
    {NULL, "growths", "How often this memory resource grew. Its initial size does not count."},
    {NULL, "chunk_returns",
     "Number of chunks that this memory resource has given back to its upstream."},
    {NULL, NULL, "A counter whose meaning this version of rmmshim does not know."},
};
