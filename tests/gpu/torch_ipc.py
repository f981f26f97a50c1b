# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors shared through torch.multiprocessing, both ways and in rounds, as DataLoader workers and
model servers do; prints checksums."""
import sys

try:
    import torch
    import torch.multiprocessing as multiprocessing
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)

# Some share PyTorch's segments of 2 and 20 MiB, some have their own.
SIZES = [1, 100, 5000, 70001, 300000, 1 << 20, 3 << 20, 12 << 20]
ROUNDS = 6


def values(size, seed):
    return (torch.arange(size, device="cuda", dtype=torch.int64) * 7919 + seed) % 10007


def total(tensor):
    return int(tensor.to(torch.int64).sum())


def worker(to_worker, from_worker, done):
    mine = []
    while True:
        received = to_worker.get()
        if received is None:
            break
        round_number, tensors, part = received
        sums = [total(tensor) for tensor in tensors] + [total(part)]
        for tensor in tensors:
            tensor.add_(round_number + 1)
        torch.cuda.synchronize()
        mine = [values(size, 1000 + round_number) for size in SIZES]
        torch.cuda.synchronize()
        from_worker.put((sums, mine))
        del received, tensors, part
        done.wait()  # what was sent lives until the other side has used it
        done.clear()
    del mine


def main():
    if not torch.cuda.is_available():
        print("no CUDA device for PyTorch", file=sys.stderr)
        sys.exit(77)
    context = multiprocessing.get_context("spawn")
    to_worker, from_worker, done = context.Queue(), context.Queue(), context.Event()
    process = context.Process(target=worker, args=(to_worker, from_worker, done))
    process.start()
    for round_number in range(ROUNDS):
        tensors = [values(size, round_number) for size in SIZES]
        part = tensors[4].view(-1)[1000:200000:3]
        before = [total(tensor) for tensor in tensors] + [total(part)]
        torch.cuda.synchronize()
        to_worker.put((round_number, tensors, part))
        sums, theirs = from_worker.get(timeout=120)
        assert sums == before, (sums, before)
        for size, tensor in zip(SIZES, tensors):
            assert torch.equal(tensor, values(size, round_number) + round_number + 1), size
        for size, tensor in zip(SIZES, theirs):
            assert torch.equal(tensor, values(size, 1000 + round_number)), size
        print(round_number, sums, [total(tensor) for tensor in theirs])
        del tensors, part, theirs, tensor
        torch.cuda.ipc_collect()
        if round_number % 2:
            torch.cuda.empty_cache()
        done.set()
    to_worker.put(None)
    process.join(120)
    sys.exit(process.exitcode)


if __name__ == "__main__":
    main()
