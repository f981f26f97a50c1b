# SPDX-License-Identifier: Apache-2.0
"""Programs below `rmmshim run` that mean it no good: hostile_scenes.py SCENE [argument...].  They run with the library."""
import ctypes
import os
import signal
import socket
import sys

import offer_scene
import page_scenes
import run_socket

NOBODY = 65534


def own_page():
    for name in os.listdir("/proc/self/fd"):
        path = "/proc/self/fd/" + name
        if os.path.lexists(path) and os.readlink(path) == "/memfd:rmmshim (deleted)":
            with open(path, "rb") as file:
                return bytearray(file.read())
    raise AssertionError("there is no page")


def report_at(path):
    """As another user, offers a page that asks for the report at that path, and leaves it to `run`."""
    cuda = ctypes.CDLL("libcuda.so.1")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    context, block = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1000)) == 0
    page = own_page()
    head = page_scenes.Head.from_buffer(page)
    head.path = os.fsencode(path)
    head.report = 1  # begun, so that what the file has does not count
    granted, _ = run_socket.ask(os.environ["RMMSHIM_JOB"], run_socket.HOLD_PAGE, [offer_scene.file_of(page, "sealed")])
    print("held" if granted else "refused", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def without_the_token():
    """Asks for the file of the limit, with two wrong tokens and with the right one."""
    name, token, *rest = os.environ["RMMSHIM_JOB"].split(":")
    for other in "0" * len(token), token[:-1] + ("1" if token[-1] == "0" else "0"), token:
        try:
            answer = run_socket.ask(":".join([name, other, *rest]), run_socket.GIVE_LIMIT)
        except ConnectionError:
            answer = None
        print("limit" if answer and len(answer[1]) == 1 else "no answer", flush=True)


def descriptors_of(process):
    """How many it has, but for those of /proc: `run` reads these now and then, at any time."""
    count = 0
    for name in os.listdir("/proc/%s/fd" % process):
        try:
            count += not os.readlink("/proc/%s/fd/%s" % (process, name)).startswith("/proc")
        except FileNotFoundError:
            pass  # closed meanwhile
    return count


def more_descriptors():
    """Sends messages with up to four, and counts what is left of them."""
    name, token, process, *rest = os.environ["RMMSHIM_JOB"].split(":")
    before = descriptors_of(process)
    for count in (1, 2, 3, 4) * 5:
        for word in token, "0" * len(token):
            try:
                run_socket.ask(":".join([name, word, process, *rest]), run_socket.NONSENSE, [0] * count)
            except ConnectionError:
                pass  # closed without an answer
    print(descriptors_of(process) - before, "are left", flush=True)


def connect(count):
    name, connections = os.environ["RMMSHIM_JOB"].split(":")[0], []
    for _ in range(count):
        connections.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        connections[-1].connect("\0" + name)
    return connections


def many_silent(*command):
    """Two processes connect, together more often than `run` has descriptors for, and say nothing while the command runs."""
    ready, done = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(done[1])
        kept = connect(25)
        os.write(ready[1], b".")
        os.read(done[0], 1)
        os._exit(len(kept) != 25)
    os.read(ready[0], 1)
    kept = connect(25)
    print(len(kept) + 25, "connected", flush=True)
    status = os.waitpid(os.posix_spawn(command[0], command, os.environ), 0)[1]
    os.close(done[1])
    os.wait()
    sys.exit(status)


if __name__ == "__main__":
    {scene.__name__: scene for scene in (report_at, without_the_token, more_descriptors, many_silent)}[sys.argv[1]](*sys.argv[2:])
