# SPDX-License-Identifier: Apache-2.0
"""Ranks of one job on one GPU, under a limit over the job: each takes and gives back tensors of random sizes without
PyTorch's cache, catches out-of-memory, and meets the others by gloo.

    RMMSHIM=rmmshim PYTORCH_NO_CUDA_MEMORY_CACHING=1 \\
        rmmshim run --limit-job 4GiB torchrun --nproc-per-node 4 tests/gpu/job_ranks.py

Rank 0 prints how many requests were served and refused, the most that `rmmshim ls` said the ranks hold when all stood
still, and the device memory in use beside that sum (NVML's figure).  Without `rmmshim run` the ranks take one tensor
each, and rank 0 prints the device memory in use."""
import json
import os
import random
import subprocess

import torch
import torch.distributed as dist

MIB = 1 << 20


def job_bytes():
    text = subprocess.run([os.environ["RMMSHIM"], "ls", "--json"], stdout=subprocess.PIPE, check=True, text=True).stdout
    return sum(entry["held"] for entry in json.loads(text) if entry["kind"] == "device")


def device_bytes():
    text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                          stdout=subprocess.PIPE, check=True, text=True, env={}).stdout
    return int(text.split()[0]) * MIB


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rng = random.Random(rank)
    torch.empty(1, device="cuda").add_(1)  # context and module
    torch.cuda.synchronize()
    dist.barrier()
    if "RMMSHIM_JOB" not in os.environ:  # for comparison
        if rank == 0:
            print("contexts and modules without a limit take %.0f MiB" % (device_bytes() / MIB), flush=True)
        dist.barrier()
        dist.destroy_process_group()
        return
    bare = device_bytes() - job_bytes() if rank == 0 else 0
    held, served, refused, most, beyond = [], 0, 0, 0, 0
    for turn in range(40):
        for _ in range(20):
            if held and rng.random() < 0.45:
                held.pop(rng.randrange(len(held)))
                continue
            try:
                held.append(torch.full((rng.randrange(1, 192) * MIB // 4,), rank, dtype=torch.int32, device="cuda"))
                served += 1
            except RuntimeError as error:  # without its cache PyTorch has no OutOfMemoryError
                if "out of memory" not in str(error):
                    raise
                refused += 1
                del held[: len(held) // 2]
        torch.cuda.synchronize()
        dist.barrier()
        if rank == 0:
            most = max(most, job_bytes())
            beyond = max(beyond, abs(device_bytes() - job_bytes() - bare))
        # Both ends alone, since these copies take no device memory, which the limit may refuse.
        assert all(bool((end.cpu() == rank).all()) for tensor in held for end in (tensor[:1024], tensor[-1024:])), \
            "another rank's data"
        dist.barrier()
    counts = torch.tensor([served, refused])
    dist.all_reduce(counts)
    if rank == 0:
        print("served %d, refused %d, most %.0f MiB; contexts and modules take %.0f MiB beside it, which changed by "
              "at most %.0f MiB" % (counts[0], counts[1], most / MIB, bare / MIB, beyond / MIB), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
