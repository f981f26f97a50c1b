#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs whose allocations are recorded as traces: what real programs do with device memory, each in a
few seconds.

    trace_programs.py NAME          one of those below; `trace_programs.py list` names them

Run them under rmmshim with RMM_RESOURCE=cuda and RMM_LOG, PyTorch's with PYTORCH_NO_CUDA_MEMORY_CACHING=1
(record_traces.py does).  Exit status 77: the framework is not there."""
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


class Absent(Exception):
    pass


def torch_module():
    try:
        import torch
    except ImportError as error:
        raise Absent(error) from error
    if not torch.cuda.is_available():
        raise Absent("no CUDA device for PyTorch")
    torch.backends.cuda.enable_cudnn_sdp(False)  # in all of them the same kernels
    torch.manual_seed(1)
    return torch


# ---- PyTorch ----


@program
def transformer():
    """Trains a transformer encoder in bfloat16 (autocast, AdamW), lengths and batch sizes changing."""
    torch = torch_module()
    words, width = 8000, 512
    with torch.device("cuda"):
        embedding = torch.nn.Embedding(words, width)
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        layers = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        head = torch.nn.Linear(width, words)
    model = torch.nn.Sequential(embedding, layers, head).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for length, batch in [(128, 16), (320, 12), (192, 16), (448, 8), (256, 16), (96, 24), (512, 8), (160, 16),
                          (384, 12), (288, 14)]:
        tokens = torch.zeros((batch, length + 1), dtype=torch.int64, device="cuda")
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.float().reshape(-1, words), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()


@program
def inference():
    """Generates text with a decoder: requests with prompts of different lengths come and go, and each layer's
    cache of keys and values grows by one token at a time."""
    torch = torch_module()
    words, width, heads, layers = 16000, 1024, 8, 6
    with torch.device("cuda"), torch.no_grad():
        embedding = torch.nn.Embedding(words, width, dtype=torch.float16)
        blocks = [[torch.nn.Linear(a, b, bias=False, dtype=torch.float16)
                   for a, b in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))]
                  for _ in range(layers)]
        head = torch.nn.Linear(width, words, bias=False, dtype=torch.float16)

    def split(x):
        return x.view(x.shape[0], x.shape[1], heads, width // heads).transpose(1, 2)

    def forward(tokens, cache):
        x = embedding(tokens)
        for i, (qkv, out, up, down) in enumerate(blocks):
            query, key, value = (split(part) for part in qkv(x).chunk(3, dim=-1))
            if cache[i] is not None:
                key, value = torch.cat([cache[i][0], key], dim=2), torch.cat([cache[i][1], value], dim=2)
            cache[i] = (key.contiguous(), value.contiguous())
            attended = torch.nn.functional.scaled_dot_product_attention(query, key, value,
                                                                        is_causal=tokens.shape[1] > 1)
            x = x + out(attended.transpose(1, 2).reshape(x.shape))
            x = x + down(torch.nn.functional.gelu(up(x)))
        return head(x[:, -1])

    requests = [(2, 300, 20), (1, 1200, 30), (4, 90, 12), (1, 40, 40), (3, 500, 16), (2, 770, 24), (1, 2000, 18),
                (8, 1250, 14)]  # batch, prompt, tokens to generate
    with torch.no_grad():
        live = []
        for batch, prompt, count in requests:
            live.append([torch.zeros((batch, prompt), dtype=torch.int64, device="cuda"), [None] * layers, count])
            while len(live) == 3 or (len(live) > 0 and (batch, prompt, count) == requests[-1]):
                for request in live:
                    request[0] = forward(request[0], request[1]).argmax(dim=-1, keepdim=True)
                    request[2] -= 1
                live = [request for request in live if request[2] > 0]
    torch.cuda.synchronize()


@program
def mlp():
    """Trains a wide network on batches of different sizes with Adam, evaluating in between."""
    torch = torch_module()
    layers = []
    with torch.device("cuda"):
        for a, b in [(784, 2048)] + [(2048, 2048)] * 6 + [(2048, 10)]:
            layers += [torch.nn.Linear(a, b), torch.nn.BatchNorm1d(b), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(24):
        rows = 512 + 131 * (step * 7 % 11)
        x = torch.zeros((rows, 784), device="cuda")
        y = torch.zeros(rows, dtype=torch.int64, device="cuda")
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % 6 == 5:
            model.eval()
            with torch.no_grad():
                scores = [model(torch.zeros((4000 + 1000 * part, 784), device="cuda")) for part in range(3)]
            del scores
            model.train()
    torch.cuda.synchronize()


# ---- CuPy ----


def cupy_module():
    try:
        import cupy
    except ImportError as error:
        raise Absent(error) from error
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Absent(error) from error
    cupy.cuda.set_allocator(None)
    cupy.cuda.set_pinned_memory_allocator(None)
    return cupy


@program
def expression():
    """Array expressions, a temporary for each operation, lengths growing and shrinking."""
    xp = cupy_module()
    import numpy
    random = numpy.random.Generator(numpy.random.PCG64(3))
    kept = []
    for round_ in range(60):
        n = int(10 ** random.uniform(4, 7))
        a = xp.asarray(random.random(n, dtype=numpy.float32))
        b = xp.asarray(random.random(n, dtype=numpy.float32))
        c = xp.add(xp.multiply(xp.add(xp.multiply(a, a), b), xp.subtract(a, b)), xp.multiply(a, b))
        d = xp.where(xp.greater(c, b), c, xp.negative(c))
        e = xp.subtract(xp.multiply(d, d), xp.divide(c, xp.add(d, b)))
        f = xp.sort(e)
        g = xp.cumsum(f.astype(numpy.float64) if round_ % 3 == 0 else f)
        kept.append(g)
        if len(kept) > 6:
            kept.pop(int(random.integers(len(kept))))
        if round_ % 10 == 9:
            side = 1000 + 173 * (round_ // 10)
            m = xp.asarray(random.random((side, side), dtype=numpy.float32))
            for _ in range(3):
                m = xp.matmul(m, m)


@program
def columns():
    """What a data frame library does: tables of columns are read in batches of different lengths, filtered, sorted,
    joined with a table of dimensions, grouped, and the results concatenated."""
    xp = cupy_module()
    import numpy
    random = numpy.random.Generator(numpy.random.PCG64(5))

    def take(table, rows):
        return {name: xp.take(column, rows) for name, column in table.items()}

    def read(n):
        return {"key": xp.asarray(random.integers(0, 50000, n)),
                "value": xp.asarray(random.random(n)),
                "amount": xp.asarray(random.random(n, dtype=numpy.float32)),
                "flag": xp.asarray(random.integers(0, 200, n, dtype=numpy.uint8)),
                "characters": xp.asarray(random.integers(32, 127, 11 * n, dtype=numpy.uint8)),
                "offsets": xp.asarray(random.integers(1, 20, n, dtype=numpy.int32))}

    def rows_only(table):
        return {name: column for name, column in table.items() if name != "characters"}

    def join(left, right):
        """Inner; the right side has each key once, sorted."""
        places = xp.searchsorted(right["key"], left["key"])
        places = xp.minimum(places, len(right["key"]) - 1)
        found = xp.flatnonzero(xp.equal(xp.take(right["key"], places), left["key"]))
        joined = take(left, found)
        joined["rate"] = xp.take(right["rate"], xp.take(places, found))
        return joined

    def group(table):
        """Sums by key."""
        table = take(table, xp.argsort(table["key"]))
        ends = xp.flatnonzero(xp.not_equal(table["key"][1:], table["key"][:-1]))
        result = {"key": xp.take(table["key"], ends)}
        for name in ("value", "amount", "rate"):
            sums = xp.take(xp.cumsum(table[name]), ends)
            result[name] = xp.subtract(sums[1:], sums[:-1])
        result["key"] = xp.add(result["key"][1:], 0)
        return result

    def concatenate(tables):
        return {name: xp.concatenate([table[name] for table in tables]) for name in tables[0]}

    dimensions = {"key": xp.asarray(numpy.unique(random.integers(0, 50000, 40000)))}
    dimensions["rate"] = xp.asarray(random.random(len(dimensions["key"])))
    results, window = [], []
    for round_ in range(24):
        table = read(int(10 ** random.uniform(4.5, 6.3)))
        lengths = xp.cumsum(table["offsets"])
        selected = take(rows_only(table), xp.flatnonzero(xp.greater(table["flag"], 40 + 5 * round_)))
        del table, lengths
        joined = join(selected, dimensions)
        del selected
        joined["product"] = xp.multiply(joined["value"], joined["rate"])
        results.append(group(joined))
        window.append(joined)
        del joined
        if len(window) > 3:
            window.pop(0)
        if round_ % 4 == 3:
            merged = concatenate(window)
            merged = take(merged, xp.argsort(merged["product"]))
            results = [group(merged), concatenate(results)]
            del merged
    concatenate(results)


def main():
    arguments = sys.argv[1:]
    if arguments == ["list"]:
        print("\n".join(PROGRAMS))
        return 0
    if len(arguments) != 1 or arguments[0] not in PROGRAMS:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        PROGRAMS[arguments[0]]()
    except Absent as error:
        print(error, file=sys.stderr)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
