/* SPDX-License-Identifier: Apache-2.0 */
/* A pool that hands a freed block out at once, though a stream may still write to it. */
#include "bugs/bug.h"

int main(int argc, char **argv)
{
    bool bug = wants_bug(argc, argv);
    CUcontext ctx = begin();
    CUdeviceptr memory;
    CUstream a, b;
    CUevent fence;
    OK(cuMemAlloc(&memory, 4096));
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fence, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr block = hand_out(memory, 1024);
    fill32(a, block, 256, 1);
    take_back(block);
    luck();
    if (!bug) {
        OK(cuCtxRecordEvent(ctx, fence));
        OK(cuEventSynchronize(fence));
    }
    block = hand_out(memory, 1024);
    fill32(b, block, 256, 2);
    OK(cuCtxSynchronize());
    return caught(bug, "reuse before earlier work is ordered");
}
