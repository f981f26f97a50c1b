# SPDX-License-Identifier: Apache-2.0
"""One process a device, started by torchrun (`python -m torch.distributed.run --standalone
--nproc-per-node 2`) or mpirun: collective operations by NCCL, training with DistributedDataParallel.
Deterministic; rank 0 prints what all ranks computed.

    rank_scenes.py NAME        one of those below; `rank_scenes.py list` names them"""
import ctypes
import os
import signal
import sys

from scenes import Absent, digest, main, scene

# Multicast over NVLink stays off: a program that uses it can put a shared host's devices out of service.
os.environ.update({"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"})
os.environ.pop("NCCL_P2P_DISABLE", None)
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
PR_SET_PDEATHSIG = 1


def local_rank():
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_RANK"):
        if name in os.environ:
            return int(os.environ[name])
    raise Absent("not started by torchrun or mpirun")


def joined():
    """PyTorch and its distributed module, in the group of all ranks."""
    # torchrun gives each rank a session of its own: without this they outlive it when it is killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    import torch
    from torch import distributed
    rank = local_rank()
    if torch.cuda.device_count() < int(os.environ["WORLD_SIZE"]):
        raise Absent("too few devices")
    torch.cuda.set_device(rank)
    torch.use_deterministic_algorithms(True)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    return torch, distributed, rank


def say(distributed, rank, *words):
    """Printed once; all ranks must have computed the same."""
    everybody = [None] * distributed.get_world_size()
    distributed.all_gather_object(everybody, words)
    if rank == 0:
        print(*words, flush=True)
        for other, theirs in enumerate(everybody):
            if theirs != words:
                print("rank %d has" % other, *theirs, flush=True)


@scene
def collectives():
    """Sums, maxima, gathers, broadcasts and messages of many sizes, each in new memory."""
    torch, distributed, rank = joined()
    world = distributed.get_world_size()
    generator = torch.Generator().manual_seed(31 + rank)
    for n in (1, 1000, 65536, 1 << 20, 3 << 20):
        results = []
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
            for _ in range(3):
                host = torch.randint(-1000, 1000, (n * world,), generator=generator).to(dtype)
                total, largest, sent = host.cuda(), host.cuda(), host.cuda()
                distributed.all_reduce(total)
                distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
                distributed.broadcast(sent, src=world - 1)
                gathered = torch.empty(n * world * world, dtype=dtype, device="cuda")
                distributed.all_gather_into_tensor(gathered, total - largest)
                part = torch.empty(n, dtype=dtype, device="cuda")
                distributed.reduce_scatter_tensor(part, sent)
                whole = torch.empty(n * world, dtype=dtype, device="cuda")
                distributed.all_gather_into_tensor(whole, part)
                results += [tensor.double().cpu().numpy() for tensor in (total, largest, sent, gathered, whole)]
                message = host.cuda()
                answer = torch.empty_like(message)
                work = distributed.batch_isend_irecv([
                    distributed.P2POp(distributed.isend, message, (rank + 1) % world),
                    distributed.P2POp(distributed.irecv, answer, (rank - 1) % world)])
                for one in work:
                    one.wait()
                distributed.all_reduce(answer)
                results.append(answer.double().cpu().numpy())
        say(distributed, rank, n, digest(*results))
    distributed.destroy_process_group()


@scene
def training():
    """DistributedDataParallel: other rows on each rank, the same parameters after each step."""
    torch, distributed, rank = joined()
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.LayerNorm(1024), torch.nn.GELU(), torch.nn.Linear(1024, 1024),
        torch.nn.GELU(), torch.nn.Linear(1024, 32)).cuda()
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(40 + rank)
    for step in range(20):
        x, y = torch.randn(128, 256, generator=generator).cuda(), torch.randn(128, 32, generator=generator).cuda()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        distributed.all_reduce(total)
        if step % 5 == 4:
            say(distributed, rank, "loss %d %.9g" % (step, total.item()))
    say(distributed, rank, digest(*(p.detach().cpu().numpy() for p in model.parameters())))
    distributed.destroy_process_group()


@scene
def alone():
    """Each rank computes by itself on its own device, with CuPy."""
    import cupy
    rank = local_rank()
    if cupy.cuda.runtime.getDeviceCount() <= rank:
        raise Absent("too few devices")
    cupy.cuda.Device(rank).use()
    cupy.cuda.set_allocator(None)
    total = sum(int(cupy.arange(n, dtype=cupy.int64).sum()) for n in range(1000, 60000, 999))
    if rank == 0:
        print("sum", total)


if __name__ == "__main__":
    sys.exit(main(__doc__))
