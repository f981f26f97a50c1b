# SPDX-License-Identifier: Apache-2.0
"""The kinds of memory that Numba can take: device, pinned, mapped and managed arrays, on streams.
Deterministic; prints digests.

    numba_scenes.py NAME        one of those below; `numba_scenes.py list` names them"""
import sys

from scenes import Absent, digest, main, scene


def prepared():
    """Numba's cuda module, NumPy, and a kernel out = a * factor + b."""
    try:
        import numpy
        from numba import cuda
    except Exception as error:  # numba-cuda fails in many ways on a NumPy that it does not know
        raise Absent("Numba cannot be used: %s: %s" % (type(error).__name__, error)) from error
    if not cuda.is_available():
        raise Absent("no CUDA device for Numba")

    @cuda.jit
    def combine(out, a, b, factor):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a[i] * factor + b[i]
    return cuda, numpy, combine


def random_pair(numpy, random, n):
    return [random.standard_normal(n).astype(numpy.float32) for _ in range(2)]


def launch(numpy, combine, stream, out, a, b):
    combine[(out.size + 255) // 256, 256, stream](out, a, b, numpy.float32(1.5))


@scene
def device_arrays():
    """Also slices, and arrays that live while their neighbours go."""
    cuda, numpy, combine = prepared()
    random = numpy.random.Generator(numpy.random.PCG64(8))
    results, kept = [], []
    for i in range(40):
        a, b = (cuda.to_device(array) for array in random_pair(numpy, random, 1000 + 3001 * i))
        out = cuda.device_array_like(a)
        launch(numpy, combine, 0, out, a, b)
        launch(numpy, combine, 0, out[100:900], a[:800], b[200:1000])
        results.append(out.copy_to_host())
        kept = kept[-5:] + [out]
    results += [array.copy_to_host() for array in kept]
    print(digest(*results))


@scene
def pinned_arrays():
    """Memory that Numba allocates pinned or mapped, and memory that it pins."""
    cuda, numpy, combine = prepared()
    random = numpy.random.Generator(numpy.random.PCG64(9))
    results = []
    stream = cuda.stream()
    for i in range(20):
        n = 1000 + 10007 * i
        sources = [cuda.pinned_array(n, dtype=numpy.float32) for _ in range(2)]
        for source, values in zip(sources, random_pair(numpy, random, n)):
            source[:] = values
        a, b = (cuda.to_device(source, stream=stream) for source in sources)
        out = cuda.device_array(n, dtype=numpy.float32, stream=stream)
        launch(numpy, combine, stream, out, a, b)
        plain = numpy.zeros(n, dtype=numpy.float32)
        with cuda.pinned(plain):
            out.copy_to_host(plain, stream=stream)
            stream.synchronize()
        mapped = cuda.mapped_array(n, dtype=numpy.float32)
        launch(numpy, combine, stream, mapped, a, b)
        stream.synchronize()
        results += [plain, numpy.array(mapped)]
    print(digest(*results))


@scene
def managed_arrays():
    cuda, numpy, combine = prepared()
    random = numpy.random.Generator(numpy.random.PCG64(10))
    results = []
    for i in range(20):
        n = 1000 + 5003 * i
        a, b, out = (cuda.managed_array(n, dtype=numpy.float32) for _ in range(3))
        a[:], b[:] = random_pair(numpy, random, n)
        launch(numpy, combine, 0, out, a, b)
        cuda.synchronize()
        results.append(numpy.array(out))
    print(digest(*results))


@scene
def streams():
    """Two streams and the default one, freed arrays while work is in flight."""
    cuda, numpy, combine = prepared()
    random = numpy.random.Generator(numpy.random.PCG64(12))
    kinds = [cuda.stream(), cuda.stream(), cuda.default_stream()]
    results = []
    for i in range(40):
        stream = kinds[i % 3]
        hosts = random_pair(numpy, random, 4000 * (i % 9 + 1))
        a, b = (cuda.to_device(array, stream=stream) for array in hosts)
        out = cuda.device_array_like(a)
        launch(numpy, combine, stream, out, a, b)
        launch(numpy, combine, stream, b, out, a)
        del a
        result = b.copy_to_host(stream=stream)
        stream.synchronize()
        results.append(result)
    with cuda.defer_cleanup():
        for array in random_pair(numpy, random, 100000):
            results.append(cuda.to_device(array).copy_to_host())
    print(digest(*results))


if __name__ == "__main__":
    sys.exit(main(__doc__))
