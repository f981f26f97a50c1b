# SPDX-License-Identifier: Apache-2.0
"""Device arrays and kernels with Numba, which has no pool: every array is an allocation.  Prints
results and a digest."""
import hashlib
import sys
import time

try:
    import numpy
    from numba import cuda
except Exception as error:  # numba-cuda fails in many ways on a NumPy that it does not know
    print("numba cannot be used: %s: %s" % (type(error).__name__, error), file=sys.stderr)
    sys.exit(77)

ROUNDS = 60


@cuda.jit
def combine(out, a, b, factor):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * factor + b[i]


def run_kernel(out, a, b, host_a, host_b):
    """On the device; where Numba lacks its compiler library, on the host: the arrays matter here."""
    global combine
    if combine:
        try:
            combine[(out.size + 255) // 256, 256](out, a, b, numpy.float32(2.0))
            return
        except Exception as error:
            print("no kernels: %s: %s" % (type(error).__name__, error), file=sys.stderr)
            combine = None
    out.copy_to_device(host_a * numpy.float32(2.0) + host_b)


def main():
    if not cuda.is_available():
        print("no CUDA device for Numba", file=sys.stderr)
        sys.exit(77)
    random = numpy.random.Generator(numpy.random.PCG64(4))
    digest = hashlib.sha256()
    kept, seconds = [], []
    for round_ in range(ROUNDS):
        n = 1000 + 4093 * round_
        host_a = random.standard_normal(n).astype(numpy.float32)
        host_b = random.standard_normal(n).astype(numpy.float32)
        begin = time.perf_counter()
        a, b = cuda.to_device(host_a), cuda.to_device(host_b)
        out = cuda.device_array(n, dtype=numpy.float32)
        run_kernel(out, a, b, host_a, host_b)
        del a, b
        result = out.copy_to_host()
        seconds.append(time.perf_counter() - begin)
        digest.update(result.tobytes())
        kept.append(out)
        if len(kept) > 7:
            kept.pop(0)
        if round_ % 20 == 19:
            print("sum %d %.9g" % (round_, float(result.astype(numpy.float64).sum())))
    for array in kept:
        digest.update(array.copy_to_host().tobytes())
    print("digest", digest.hexdigest())
    print("ms_per_iteration %.3f" % (sorted(seconds)[len(seconds) // 2] * 1e3), file=sys.stderr)


main()
