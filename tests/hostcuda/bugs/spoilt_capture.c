/* SPDX-License-Identifier: Apache-2.0 */
/* A pool that grows while a stream captures, without saying that its call does no harm. */
#include "bugs/bug.h"

int main(int argc, char **argv)
{
    bool bug = wants_bug(argc, argv);
    begin();
    CUdeviceptr words, grown = 0;
    CUstream stream;
    CUgraph graph;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuMemAlloc(&words, 1024));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fill32(stream, words, 256, 1);
    if (!bug)
        OK(cuThreadExchangeStreamCaptureMode(&mode));
    CUresult growth = cuMemAlloc(&grown, 2 << 20);
    if (!bug)
        OK(cuThreadExchangeStreamCaptureMode(&mode));
    CUresult end = cuStreamEndCapture(stream, &graph);
    printf("growth %d, end of the capture %d\n", growth, end);
    if (bug)
        return !(growth == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                 end == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    return growth || end;
}
