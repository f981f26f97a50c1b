/* SPDX-License-Identifier: Apache-2.0 */
/* A pool that asks the streams it knows, and forgets the work of one that was destroyed. */
#include "bugs/bug.h"

int main(int argc, char **argv)
{
    bool bug = wants_bug(argc, argv);
    begin();
    CUdeviceptr memory;
    CUstream known, gone;
    CUevent last;
    OK(cuMemAlloc(&memory, 4096));
    OK(cuStreamCreate(&known, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&last, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr block = hand_out(memory, 1024);
    fill32(gone, block, 256, 1);
    if (!bug)
        OK(cuEventRecord(last, gone)); /* before the handle is gone */
    OK(cuStreamDestroy(gone));
    take_back(block);
    luck();
    OK(cuStreamQuery(known));
    OK(cuStreamQuery(NULL));
    OK(cuEventSynchronize(last));
    hand_out(memory, 1024);
    return caught(bug, "reuse before earlier work is ordered");
}
