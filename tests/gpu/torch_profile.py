# SPDX-License-Identifier: Apache-2.0
"""A few steps of a tiny model under PyTorch's profiler, which is CUPTI in this process: prints the losses
and the kernels that it saw, and to stderr how many runtime calls."""
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
try:
    import torch
    import torch.profiler
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)
if not torch.cuda.is_available():
    print("no CUDA device for PyTorch", file=sys.stderr)
    sys.exit(77)

STEPS = 4


def main():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, wanted = torch.randn(32, 64).cuda(), torch.randn(32, 8).cuda()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, profile_memory=True, record_shapes=True) as profile:
        for _ in range(STEPS):
            loss = torch.nn.functional.mse_loss(model(inputs), wanted)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            print("loss %.9g" % loss.item())
            torch.cuda.empty_cache()
        torch.cuda.synchronize()
    kernels, calls = {}, {}
    for event in profile.events():
        on_device = event.device_type == torch.autograd.DeviceType.CUDA
        counts = kernels if on_device else calls if event.name.startswith("cuda") else None
        if counts is not None:
            counts[event.name] = counts.get(event.name, 0) + 1
    for name, count in sorted(kernels.items()):
        print("%4d %s" % (count, name))
    for name in ("cudaMalloc", "cudaFree", "cudaLaunchKernel"):
        print("%s %d" % (name, calls.get(name, 0)), file=sys.stderr)
    return 0 if kernels else 1


sys.exit(main())
