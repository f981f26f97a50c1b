# SPDX-License-Identifier: Apache-2.0
"""How PyTorch can take memory beyond eager training: graphs, private pools, compiled models, workers of
a DataLoader, tensors shared between processes.  Deterministic; prints losses and digests.

    torch_scenes.py NAME        one of those below; `torch_scenes.py list` names them"""
import gc
import os
import shutil
import sys

from scenes import Absent, digest, main, scene

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
INPUTS, HIDDEN, OUTPUTS, ROWS = 256, 512, 32, 256


def prepared():
    import torch
    if not torch.cuda.is_available():
        raise Absent("no CUDA device for PyTorch")
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    return torch


def network(torch):
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, HIDDEN), torch.nn.LayerNorm(HIDDEN), torch.nn.GELU(),
        torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, OUTPUTS)).cuda()


def batches(torch, count):
    generator = torch.Generator().manual_seed(2)
    for _ in range(count):
        yield torch.randn(ROWS, INPUTS, generator=generator), torch.randn(ROWS, OUTPUTS, generator=generator)


def host(tensors):
    return [tensor.detach().cpu().numpy() for tensor in tensors]


def warm(torch, work):
    """On a side stream, as PyTorch asks before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)


def captured_training(torch):
    """A step of training and an evaluation as two graphs that share a private pool, with eager work and
    allocations between replays."""
    loss_of = torch.nn.functional.mse_loss
    model = network(torch)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
    x, y = (tensor.cuda() for tensor in next(batches(torch, 1)))

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    warm(torch, step)
    optimizer.zero_grad(set_to_none=True)
    training, evaluation = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(training):
        loss = step()
    with torch.cuda.graph(evaluation, pool=training.pool()), torch.no_grad():
        scores = model(x)
    eager, kept = 0.0, []
    for i, (a, b) in enumerate(batches(torch, 20)):
        x.copy_(a)
        y.copy_(b)
        training.replay()
        evaluation.replay()
        kept.append((scores * i).clone())
        if len(kept) > 5:
            eager += float(kept.pop(0).sum())
    print("loss %.9g eager %.9g" % (loss.item(), eager), digest(*host([scores, *model.parameters()])))


@scene
def graphs():
    torch = prepared()
    for _ in range(3):
        captured_training(torch)
        gc.collect()
        torch.cuda.empty_cache()  # the private pool goes back to the driver, the next is made anew
        print("allocated", torch.cuda.memory_allocated())


@scene
def graphed_callables():
    torch = prepared()
    model = network(torch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sample = next(batches(torch, 1))[0].cuda()
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    for i, (a, b) in enumerate(batches(torch, 20)):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(graphed(a.cuda()), b.cuda())
        loss.backward()
        optimizer.step()
        if i % 5 == 4:
            print("loss %d %.9g" % (i, loss.item()))
    print(digest(*host(model.parameters())))


@scene
def private_pools():
    """torch.cuda.MemPool: what is allocated inside lies in segments of its own, which go with it."""
    torch = prepared()
    for round_ in range(3):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = [torch.full((1000 * 7 ** i,), float(i + round_), device="cuda") for i in range(5)]
        outside = [tensor * 2 for tensor in inside]
        print("segments", len(pool.snapshot()), "sums", [float(tensor.sum()) for tensor in outside])
        print(digest(*host(inside)), digest(*host(outside)))
        del inside, outside, pool
        gc.collect()
        torch.cuda.empty_cache()
        print("allocated", torch.cuda.memory_allocated(), "reserved", torch.cuda.memory_reserved())


def compiled(mode):
    torch = prepared()
    import triton  # inductor writes its kernels for it
    print("triton", bool(triton.__version__))
    if not any(shutil.which(name) for name in (os.environ.get("CC", "cc"), "gcc", "clang")):
        raise Absent("no C compiler")
    model = network(torch)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fast = torch.compile(model, mode=mode)
    for i, (a, b) in enumerate(batches(torch, 12)):
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(fast(a.cuda()), b.cuda())
        loss.backward()
        optimizer.step()
        if i % 4 == 3:
            print("loss %d %.9g" % (i, loss.item()))
    print(digest(*host(model.parameters())))


@scene
def compile_default():
    compiled("default")


@scene
def compile_graphs():
    """With CUDA graphs, which inductor keeps in trees that share private pools."""
    compiled("reduce-overhead")


# ---- other processes ----


class Rows:
    """A data set that a worker process computes."""

    def __len__(self):
        return 512

    def __getitem__(self, i):
        import numpy
        random = numpy.random.Generator(numpy.random.PCG64(i))
        return random.standard_normal(INPUTS, dtype=numpy.float32), numpy.int64(i)


def workers(method):
    torch = prepared()
    weights = torch.randn(INPUTS, HIDDEN, generator=torch.Generator().manual_seed(3)).cuda()
    loader = torch.utils.data.DataLoader(Rows(), batch_size=64, num_workers=2, pin_memory=True, persistent_workers=True,
                                         multiprocessing_context=method)
    total = torch.zeros(HIDDEN, device="cuda")
    pinned, places = True, 0
    for _ in range(3):
        for rows, indices in loader:
            pinned = pinned and rows.is_pinned()
            places += int(indices.sum())
            total += (rows.cuda(non_blocking=True) @ weights).square().sum(0)
    print("pinned", pinned, "places", places, digest(*host([total])))


@scene
def workers_fork():
    """Forked after CUDA has started: the children only compute on the host."""
    workers("fork")


@scene
def workers_spawn():
    workers("spawn")


def add_one(inbox, outbox):
    """In a process of its own: changes what it is given in place, and answers with memory of its own."""
    kept = []  # until the other side no longer needs it
    for tensor in iter(inbox.get, None):
        seen = digest(*host([tensor]))
        tensor.add_(1)
        kept.append(tensor * 2)
        outbox.put((seen, kept[-1]))
    inbox.get()


@scene
def sharing():
    """Tensors on the device go to another process and come back, among them parts of larger ones."""
    torch = prepared()
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=add_one, args=(inbox, outbox), daemon=True)
    process.start()
    generator = torch.Generator().manual_seed(4)
    whole = torch.randn(100000, generator=generator).cuda()
    tensors = [torch.randn(n, generator=generator).cuda() for n in (10, 1000, 100000, 3000000)] + [whole[777:50777]]
    for tensor in tensors:
        inbox.put(tensor)
        seen, answer = outbox.get(timeout=60)
        print(seen, digest(*host([answer])), digest(*host([tensor])))
        del answer
    print(digest(*host([whole])))
    inbox.put(None)
    inbox.put(None)
    process.join(60)
    print("ended with", process.exitcode)


if __name__ == "__main__":
    sys.exit(main(__doc__))
