# SPDX-License-Identifier: Apache-2.0
"""Trains a small network for 20 steps with JAX, deterministically, and prints losses and a digest of
all parameters.  XLA_PYTHON_CLIENT_ALLOCATOR=platform makes each buffer an allocation."""
import hashlib
import os
import sys
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")  # no TF32
os.environ.setdefault("JAX_PLATFORMS", "cuda")
try:
    import jax
    import numpy
    from jax import numpy as jnp
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)

STEPS = 20
WIDTHS = [64, 512, 512, 512, 10]


def loss_of(parameters, x, y):
    for weight, bias in parameters[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = parameters[-1]
    return ((x @ weight + bias - y) ** 2).mean()


@jax.jit
def step_of(parameters, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
    return loss, jax.tree_util.tree_map(lambda p, g: p - 0.05 * g, parameters, gradients)


def main():
    try:
        jax.devices("cuda")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        sys.exit(77)
    random = numpy.random.Generator(numpy.random.PCG64(5))

    def normal(*shape):
        return jnp.asarray(random.standard_normal(shape).astype(numpy.float32) * shape[0] ** -0.5)

    parameters = [(normal(a, b), normal(b)) for a, b in zip(WIDTHS, WIDTHS[1:])]
    seconds = []
    for step in range(STEPS):
        batch = 128 if step % 2 else 256  # two programs
        x, y = normal(batch, WIDTHS[0]), normal(batch, WIDTHS[-1])
        begin = time.perf_counter()
        loss, parameters = step_of(parameters, x, y)
        loss = float(loss)
        seconds.append(time.perf_counter() - begin)
        if step % 5 == 4:
            print("loss %d %.9g" % (step, loss))
    # Factorisations bring libraries with workspaces of their own.
    square = normal(256, 256)
    solution = jnp.linalg.solve(square @ square.T + jnp.eye(256), normal(256, 4))
    digest = hashlib.sha256()
    for array in jax.tree_util.tree_leaves(parameters) + [solution]:
        digest.update(numpy.asarray(array).tobytes())
    print("digest", digest.hexdigest())
    print("ms_per_iteration %.3f" % (sorted(seconds[2:])[len(seconds[2:]) // 2] * 1e3), file=sys.stderr)


main()
