# SPDX-License-Identifier: Apache-2.0
"""A program of steps, for tests of what processes write: output_scenes.py STEP...

    use:N         allocates and frees N times, CUDA started when need be
    hold:SIZE     allocates once and keeps it, with a size in bytes; a refusal is no failure
    pin:SIZE      allocates page-locked memory of the host, and keeps it
    array:SIDE    makes a square array of floats, which no stack serves, and keeps it
    drop          frees what was kept last
    reset         ends the device's primary context, with all memory; the next use makes another
    say           writes "ready"
    wait          reads a line
    chdir:PATH    changes the working directory
    worker:STEP,STEP...   a child of fork that takes these steps and ends by _exit; waited for
    stayer        a child of fork that stays until stdin ends; not waited for
    again:STEP,STEP...    the same program anew, in the same process
    end:HOW       return, exit (with 3), pthread_exit and cancel (of the main thread), _exit, quick_exit, abort, exec,
                  or a signal's name

At the end of the steps the program returns."""
import ctypes
import os
import signal
import sys

device = []
held = []


def driver():
    if not device:
        cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        for result in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                       cuda.cuCtxSetCurrent(context)):
            assert result == 0, result
        device.append(cuda)
    return device[0]


def use(count):
    cuda, block = driver(), ctypes.c_uint64()
    for i in range(int(count)):
        assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1000 + i)) == 0
        assert cuda.cuMemFree_v2(block) == 0


def hold(size):
    block = ctypes.c_uint64()
    if driver().cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(int(size))) == 0:
        held.append(block)


def pin(size):
    assert driver().cuMemAllocHost_v2(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(int(size))) == 0


def array(side):
    class Descriptor(ctypes.Structure):
        _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_uint),
                    ("channels", ctypes.c_uint)]

    descriptor = Descriptor(int(side), int(side), 0x20, 1)
    assert driver().cuArrayCreate_v2(ctypes.byref(ctypes.c_void_p()), ctypes.byref(descriptor)) == 0


def drop():
    assert driver().cuMemFree_v2(held.pop()) == 0


def reset():
    assert driver().cuDevicePrimaryCtxReset_v2(0) == 0
    device.clear()


def say():
    os.write(1, b"ready\n")


def wait():
    while os.read(0, 1) not in (b"\n", b""):
        pass


def worker(steps):
    child = os.fork()
    if child == 0:
        take(steps.split(","))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status


def stayer():
    if os.fork() == 0:
        while os.read(0, 1):
            pass
        os._exit(0)


def again(steps):
    os.execv(sys.executable, [sys.executable, __file__] + steps.split(","))


def end(how):
    libc = ctypes.CDLL(None)
    if how == "return":
        return
    if how == "exit":
        libc.exit(3)
    elif how == "pthread_exit":
        libc.pthread_exit(None)
    elif how == "cancel":
        libc.pthread_self.restype = ctypes.c_void_p
        libc.pthread_cancel(ctypes.c_void_p(libc.pthread_self()))
        libc.pthread_testcancel()
    elif how == "_exit":
        os._exit(0)
    elif how == "quick_exit":
        libc.quick_exit(0)
    elif how == "abort":
        os.abort()
    elif how == "exec":
        os.execvp("true", ["true"])
    else:
        if how != "SIGKILL":
            signal.signal(getattr(signal, how), signal.SIG_DFL)
        os.kill(os.getpid(), getattr(signal, how))


KINDS = {"use": use, "hold": hold, "pin": pin, "array": array, "drop": drop, "reset": reset, "say": say, "wait": wait, "chdir": os.chdir, "worker": worker, "stayer": stayer,
         "again": again, "end": end}


def take(steps):
    for step in steps:
        name, _, argument = step.partition(":")
        KINDS[name](*([argument] if argument else []))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    take(sys.argv[1:])
