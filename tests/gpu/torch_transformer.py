# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer for 20 steps with PyTorch, deterministically, and prints losses and a
digest of all parameters.  PYTORCH_NO_CUDA_MEMORY_CACHING=1 turns PyTorch's own pool off."""
import hashlib
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
try:
    import torch
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)
if not torch.cuda.is_available():
    print("no CUDA device for PyTorch", file=sys.stderr)
    sys.exit(77)

torch.use_deterministic_algorithms(True)
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = False
torch.manual_seed(1)

WORDS, WIDTH, HEADS, LAYERS, BATCH, STEPS = 1000, 256, 8, 4, 16, 20


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        # Written out: fused attention kernels are not all deterministic.
        scores = (q @ k.transpose(-1, -2)) * (WIDTH // HEADS) ** -0.5
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.places = torch.nn.Parameter(torch.randn(256, WIDTH) * 0.02)
        self.blocks = torch.nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.head(self.blocks(self.words(tokens) + self.places[:tokens.shape[1]]))


def main():
    model = Transformer().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(2)
    seconds = []
    for step in range(STEPS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        length = 64 + 32 * (step % 4)  # changing lengths: changing sizes
        tokens = torch.randint(WORDS, (BATCH, length + 1), generator=generator).cuda()
        scores = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.reshape(-1, WORDS), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        if step % 5 == 4:
            print("loss %d %.9g" % (step, loss.item()))
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    print("digest", digest.hexdigest())
    print("ms_per_iteration %.3f" % (sorted(seconds[2:])[len(seconds[2:]) // 2] * 1e3), file=sys.stderr)


if __name__ == "__main__":
    main()
