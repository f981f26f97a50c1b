/* SPDX-License-Identifier: Apache-2.0 */
/* A pool whose fence is recorded one operation too early. */
#include "bugs/bug.h"

int main(int argc, char **argv)
{
    bool bug = wants_bug(argc, argv);
    begin();
    CUdeviceptr memory;
    CUstream stream;
    CUevent fence;
    OK(cuMemAlloc(&memory, 4096));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fence, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr block = hand_out(memory, 1024);
    fill32(stream, block, 256, 1);
    if (bug)
        OK(cuEventRecord(fence, stream));
    fill32(stream, block, 256, 2);
    if (!bug)
        OK(cuEventRecord(fence, stream));
    take_back(block);
    luck();
    while (cuEventQuery(fence) == CUDA_ERROR_NOT_READY)
        ;
    hand_out(memory, 1024);
    return caught(bug, "reuse before earlier work is ordered");
}
