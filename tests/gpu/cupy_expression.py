# SPDX-License-Identifier: Apache-2.0
"""Array expressions with CuPy, deterministic; prints results and a digest.

cupy_expression.py [pool|nopool]    with CuPy's own memory pool, or without"""
import hashlib
import sys
import time

try:
    import cupy
    import numpy
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)

ROUNDS = 30


def main():
    if len(sys.argv) > 1 and sys.argv[1] not in ("pool", "nopool"):
        sys.exit(__doc__)
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        print(error, file=sys.stderr)
        sys.exit(77)
    if "nopool" in sys.argv[1:]:
        cupy.cuda.set_allocator(None)
        cupy.cuda.set_pinned_memory_allocator(None)

    random = numpy.random.Generator(numpy.random.PCG64(3))
    digest = hashlib.sha256()
    seconds = []
    for round_ in range(ROUNDS):
        n = 1 << (12 + round_ % 10)
        a = cupy.asarray(random.standard_normal(n, dtype=numpy.float32))
        b = cupy.asarray(random.standard_normal(n, dtype=numpy.float32))
        cupy.cuda.Device().synchronize()
        begin = time.perf_counter()
        c = (a * 2 + b) * (a - b) + a * b
        d = cupy.where(c > 0, c, -c) + 1
        e = d * d - c / d
        cupy.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - begin)
        digest.update(cupy.asnumpy(e).tobytes())
        if round_ % 10 == 9:
            print("sum %d %.9g" % (round_, float(cupy.asnumpy(e).astype(numpy.float64).sum())))
    # A library with a workspace of its own.
    m = cupy.asarray(random.standard_normal((512, 512), dtype=numpy.float32))
    for _ in range(4):
        m = cupy.matmul(m, m) / 512
    digest.update(cupy.asnumpy(m).tobytes())
    digest.update(cupy.asnumpy(cupy.sort(e)).tobytes())
    print("digest", digest.hexdigest())
    print("ms_per_iteration %.3f" % (sorted(seconds)[len(seconds) // 2] * 1e3), file=sys.stderr)


main()
