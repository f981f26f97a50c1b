# SPDX-License-Identifier: Apache-2.0
"""How CuPy can take memory beyond its default pool on one stream: streams, captured graphs, the
driver's stream-ordered pool, managed memory.  Deterministic; prints sums and digests.

    cupy_scenes.py NAME        one of those below; `cupy_scenes.py list` names them"""
import sys

from scenes import Absent, digest, main, scene


def prepared():
    import cupy
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Absent(str(error)) from error
    return cupy


def generator():
    import numpy
    return numpy.random.Generator(numpy.random.PCG64(7))


def expression(cupy, a, b):
    """Several temporary arrays, elementwise kernels only."""
    c = (a * 2 + b) * (a - b) + a * b
    d = cupy.where(c > 0, c, -c) + 1
    return d * d - c / d


def rounds(cupy, count):
    """Expressions over many sizes, with a library's workspace at times; host arrays of results."""
    import numpy
    random = generator()
    results = []
    for i in range(count):
        n = 1000 * (i % 13 + 1) ** 2
        a = cupy.asarray(random.standard_normal(n, dtype=numpy.float32))
        b = cupy.asarray(random.standard_normal(n, dtype=numpy.float32))
        results.append(cupy.asnumpy(expression(cupy, a, b)))
        if i % 5 == 0:
            m = cupy.asarray(random.standard_normal((200, 200), dtype=numpy.float32))
            results.append(cupy.asnumpy(m @ m.T))
            results.append(cupy.asnumpy(cupy.sort(a)))
    return results


@scene
def streams():
    """Blocking, non-blocking and the default stream in turn; arrays cross them by events."""
    import numpy
    cupy = prepared()
    random = generator()
    kinds = [cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True),
             cupy.cuda.Stream.null]
    results = []
    for i in range(60):
        n = 5000 * (i % 11 + 1)
        first, second = kinds[i % 4], kinds[(i + 1) % 4]
        hosts = [random.standard_normal(n, dtype=numpy.float32) for _ in range(2)]
        with first:
            a, b = (cupy.asarray(array) for array in hosts)
            made = expression(cupy, a, b)
            ready = first.record()
        with second:
            second.wait_event(ready)
            doubled = made * 2
            result = cupy.asnumpy(doubled, stream=second)
        second.synchronize()
        results.append(result)
        del a, b, made, doubled
        if i % 20 == 19:
            cupy.get_default_memory_pool().free_all_blocks()
            print("sum %.9g" % float(result.astype(numpy.float64).sum()))
    print(digest(*results))


@scene
def graph():
    """Captures with allocations inside, launched again and again with other inputs."""
    import numpy
    cupy = prepared()
    random = generator()
    stream = cupy.cuda.Stream(non_blocking=True)
    results = []
    for n in (1000, 100000, 1000000):
        with stream:
            a, b = (cupy.zeros(n, dtype=cupy.float32) for _ in range(2))
            out = cupy.zeros(n, dtype=cupy.float32)
            out[...] = expression(cupy, a, b)  # compiles what the capture needs
            stream.synchronize()
            cupy.get_default_memory_pool().free_all_blocks()  # so that the capture asks the driver
            stream.begin_capture()
            temporary = expression(cupy, a, b)
            out[...] = temporary
            captured = stream.end_capture()
        for _ in range(5):
            a.set(random.standard_normal(n, dtype=numpy.float32), stream=stream)
            b.set(random.standard_normal(n, dtype=numpy.float32), stream=stream)
            captured.launch(stream)
            results.append(cupy.asnumpy(out, stream=stream))
            stream.synchronize()
            other = cupy.arange(n, dtype=cupy.float32)  # eager work between launches
            results.append(cupy.asnumpy(other * 3))
        del captured, temporary
    print(digest(*results))


@scene
def malloc_async():
    cupy = prepared()
    cupy.cuda.set_allocator(cupy.cuda.malloc_async)
    print(digest(*rounds(cupy, 40)))
    with cupy.cuda.Stream(non_blocking=True):
        print(digest(*rounds(cupy, 40)))


@scene
def malloc_managed():
    cupy = prepared()
    cupy.cuda.set_allocator(cupy.cuda.malloc_managed)
    print(digest(*rounds(cupy, 20)))
    cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)
    print(digest(*rounds(cupy, 20)))


if __name__ == "__main__":
    sys.exit(main(__doc__))
