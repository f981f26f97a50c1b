# SPDX-License-Identifier: Apache-2.0
"""CuPy arrays shared through runtime.ipcGetMemHandle and ipcOpenMemHandle: the pointer that is opened is
used as it is, with no offset.  Events too.  Prints checksums."""
import multiprocessing
import sys

try:
    import cupy
    from cupy.cuda import runtime
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)

SIZES = [64, 250, 1000, 5000, 70001, 300000, 1 << 19, 3 << 19]  # of 4 bytes
INTERPROCESS_EVENT = 2 | 4  # cudaEventDisableTiming, cudaEventInterprocess


def values(size, seed):
    return (cupy.arange(size, dtype=cupy.uint32) * 7919 + seed) % 10007


def opened(handle, size):
    pointer = runtime.ipcOpenMemHandle(handle)
    memory = cupy.cuda.UnownedMemory(pointer, size * 4, None)
    return pointer, cupy.ndarray(size, cupy.uint32, cupy.cuda.MemoryPointer(memory, 0))


def child(connection):
    cupy.cuda.set_allocator(None)
    event, handles = connection.recv()
    event = runtime.ipcOpenEventHandle(event)
    runtime.streamWaitEvent(cupy.cuda.Stream.null.ptr, event, 0)
    pointers, sums = [], []
    for turn, (size, handle) in enumerate(zip(SIZES, handles)):
        pointer, array = opened(handle, size)
        again, same = opened(handle, size)
        assert again == pointer
        sums.append(int(array.sum()))
        same += turn + 1
        pointers += [pointer, again]
    runtime.eventRecord(event, cupy.cuda.Stream.null.ptr)
    connection.send(sums)
    assert connection.recv() == "close"
    for pointer in pointers:
        runtime.ipcCloseMemHandle(pointer)
    runtime.eventDestroy(event)
    connection.send("closed")


def main():
    try:
        runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        print(error, file=sys.stderr)
        sys.exit(77)
    cupy.cuda.set_allocator(None)  # each array is an allocation, so that the handle is its own
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=child, args=(there,))
    process.start()
    arrays = [values(size, turn) for turn, size in enumerate(SIZES)]
    event = runtime.eventCreateWithFlags(INTERPROCESS_EVENT)
    runtime.eventRecord(event, cupy.cuda.Stream.null.ptr)
    handles = [runtime.ipcGetMemHandle(array.data.ptr) for array in arrays]
    assert len(set(handles)) == len(handles)
    assert handles == [runtime.ipcGetMemHandle(array.data.ptr) for array in arrays]
    here.send((runtime.ipcGetEventHandle(event), handles))
    assert here.poll(120)
    sums = here.recv()
    assert sums == [int(values(size, turn).sum()) for turn, size in enumerate(SIZES)], sums
    runtime.eventSynchronize(event)
    for turn, (size, array) in enumerate(zip(SIZES, arrays)):
        assert bool((array == values(size, turn) + turn + 1).all()), size
    here.send("close")
    assert here.poll(120) and here.recv() == "closed"
    print(sums, [int(array.sum()) for array in arrays])
    process.join(120)
    sys.exit(process.exitcode)


if __name__ == "__main__":
    main()
