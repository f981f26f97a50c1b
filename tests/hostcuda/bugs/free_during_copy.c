/* SPDX-License-Identifier: Apache-2.0 */
/* A free in the order of one stream while another stream's copy reads the block. */
#include "bugs/bug.h"

int main(int argc, char **argv)
{
    bool bug = wants_bug(argc, argv);
    begin();
    CUdeviceptr block, copy;
    CUstream owner, copier;
    CUevent allocated, copied;
    OK(cuStreamCreate(&owner, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&copier, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&allocated, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&copied, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&copy, 1024));
    OK(cuMemAllocAsync(&block, 1024, owner));
    OK(cuEventRecord(allocated, owner));
    OK(cuStreamWaitEvent(copier, allocated, 0));
    OK(cuMemcpyDtoDAsync(copy, block, 1024, copier));
    OK(cuEventRecord(copied, copier));
    luck();
    if (!bug)
        OK(cuStreamWaitEvent(owner, copied, 0));
    OK(cuMemFreeAsync(block, owner));
    OK(cuCtxSynchronize());
    return caught(bug, "free before earlier work is ordered");
}
