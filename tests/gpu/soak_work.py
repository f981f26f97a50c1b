# SPDX-License-Identifier: Apache-2.0
"""One long-lived process of PyTorch for soak.py: the same work again and again, with 20 seeds by turns.

    soak_work.py train|generate|graphs SECONDS SEED

`train` is torch_transformer's model in batches of changing lengths, `generate` the same model with a cache of keys and
values that grows by each word, `graphs` torch_scenes' captured training.  Each round prints `round SEED NUMBERS DIGEST`,
then, with all of its tensors gone, `idle BYTES BLOCKS`: what rmmshim says is in use, which without it is what PyTorch
has reserved."""
import contextlib
import gc
import io
import os
import random
import sys
import time

sys.dont_write_bytecode = True
import scenes
import torch_scenes
import torch_transformer as model_of

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "python"))
import rmmshim

SEEDS = 20
STEPS, WORDS = 12, 200


def digest(torch, tensors):
    torch.cuda.synchronize()
    return scenes.digest(*torch_scenes.host(tensors))


def train(torch, seed):
    draw = random.Random(seed)
    model = model_of.Transformer().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        tokens = torch.randint(model_of.WORDS, (draw.choice((2, 8, 16)), draw.randrange(9, 256))).cuda()
        scores = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.reshape(-1, model_of.WORDS), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return "%.9g %.9g %s" % (losses[0], losses[-1], digest(torch, model.parameters()))


def decode(torch, block, x, cache):
    """Block.forward for one more word."""
    batch, heads = len(x), model_of.HEADS
    q, *new = block.qkv(block.norm1(x)).view(batch, 1, 3, heads, -1).permute(2, 0, 3, 1, 4)
    cache[:] = [torch.cat((old, more), 2) for old, more in zip(cache, new)] if cache else new
    scores = (q @ cache[0].transpose(-1, -2)) * q.shape[-1] ** -0.5
    x = x + block.out((scores.softmax(-1) @ cache[1]).transpose(1, 2).reshape(batch, 1, model_of.WIDTH))
    return x + block.down(torch.nn.functional.gelu(block.up(block.norm2(x))))


def generate(torch, seed):
    batch = random.Random(seed).randrange(8, 65)
    model = model_of.Transformer().cuda().eval()
    tokens = torch.randint(model_of.WORDS, (batch, 1)).cuda()
    caches = [[] for _ in model.blocks]
    with torch.no_grad():
        for place in range(WORDS):
            x = model.words(tokens[:, -1:]) + model.places[place]
            for block, cache in zip(model.blocks, caches):
                x = decode(torch, block, x, cache)
            tokens = torch.cat((tokens, model.head(x).argmax(-1)), 1)
    total = sum(part.double().sum() for cache in caches for part in cache)
    return "%.9g %s" % (total.item(), digest(torch, [tokens, *caches[-1]]))


def graphs(torch, seed):
    del seed  # its weights come from torch.manual_seed
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        torch_scenes.captured_training(torch)
    words = said.getvalue().split()
    return " ".join((words[1], words[3], words[-1]))


def idle(torch):
    """cuBLAS has a workspace for each stream, and PyTorch 32 streams."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    if not rmmshim.is_active():
        return torch.cuda.memory_reserved(), 0
    now = rmmshim.statistics()
    return now["used_bytes"], now["used_blocks"]


def main():
    work = {"train": train, "generate": generate, "graphs": graphs}[sys.argv[1]]
    end, first = time.monotonic() + float(sys.argv[2]), int(sys.argv[3])
    torch = torch_scenes.prepared()
    turn = 0
    while time.monotonic() < end:
        seed = first + turn % SEEDS
        torch.manual_seed(seed)
        print("round", seed, work(torch, seed), flush=True)
        print("idle", *idle(torch), flush=True)
        turn += 1


if __name__ == "__main__":
    main()
