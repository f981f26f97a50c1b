# SPDX-License-Identifier: Apache-2.0
"""The README's program: trains a ResNet-50 on random images in batches that grow, and that it halves when it is out of memory.

    rmmshim run --limit 8GiB python3 tests/gpu/train.py"""
import torch
import torchvision


def step(model, optimizer, batch):
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    loss = torch.nn.functional.cross_entropy(model(images), torch.zeros(batch, dtype=torch.long, device="cuda"))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss


def main():
    model = torchvision.models.resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch, done, loss = 32, 0, None
    while done < 12:
        try:
            loss = step(model, optimizer, batch)
            done += 1
            if done < 4:
                batch *= 2
        except torch.cuda.OutOfMemoryError:
            optimizer.zero_grad(set_to_none=True)
            loss = None
            torch.cuda.empty_cache()
            batch //= 2
            print("out of memory: going on with a batch of", batch, flush=True)
    print("trained with a batch of", batch, "loss is finite:", bool(torch.isfinite(loss)), flush=True)


main()
