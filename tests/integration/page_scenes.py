# SPDX-License-Identifier: Apache-2.0
"""A process whose page is a changed copy of another's: page_scenes.py PID CHANGE.  It has no CUDA and no library.

    same          nothing is changed but whose it is
    version       it is of a library of another version
    directory:N   its directory is at N
    truncated     it is shorter
    unsealed      it may shrink
    ordinary      it is no memory file but one of that name, which may shrink, too
    mine          it says that it is PID's
    random:N      numbers in its directory are others; N is the seed
    rename:A:B    counters and resources that are called A are called B
    empty         nothing is in it but its head
    many:N        N children have each such a page, and the process itself has none"""
import ctypes
import fcntl
import os
import random
import sys
import tempfile

BYTES = 32 << 20
F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2


class Head(ctypes.Structure):
    """struct rs_publication of src/report/publish.h."""
    _fields_ = [("layout", ctypes.c_char * 32), ("process", ctypes.c_int32), ("format", ctypes.c_int32),
                ("report", ctypes.c_uint32), ("has_report", ctypes.c_uint32), ("path", ctypes.c_char * 4096),
                ("file", ctypes.c_uint64 * 2), ("changed", ctypes.c_int64 * 2), ("program", ctypes.c_char * 256), ("rank", ctypes.c_char * 16),
                ("directory", ctypes.c_uint64)]


def page_of(process):
    folder = "/proc/%s/fd" % process
    for name in os.listdir(folder):
        if os.readlink(os.path.join(folder, name)) == "/memfd:rmmshim (deleted)":
            with open(os.path.join(folder, name), "rb") as file:
                return bytearray(file.read())
    raise AssertionError("%s has no page" % process)


def spoil(page, begin, seed):
    """Some numbers from `begin` on."""
    chance = random.Random(seed)
    for _ in range(chance.randrange(1, 40)):
        number = chance.choice([0, 1, 8, 2 ** 31, 2 ** 32 - 1, 2 ** 63, 2 ** 64 - 1, chance.getrandbits(chance.randrange(1, 65))])
        at = begin + 8 * chance.randrange((64 << 10) // 8)
        page[at:at + 8] = number.to_bytes(8, "little")


def rename(page, begin, old, new):
    """Names stand in fields of 24 bytes (the resource's) and 40 (the counter's), filled up with zeros."""
    at = begin
    while (at := page.find(old + b"\0", at)) >= 0:
        if page[at - 1] == 0 or at % 8 == 0:
            page[at:at + max(len(old), len(new)) + 1] = new.ljust(max(len(old), len(new)) + 1, b"\0")
        at += 1


def file_of(change):
    """Ordinary files have no seals at all.  One that was at the root has the name of a memory file when it is gone."""
    if change != "ordinary":
        return os.memfd_create("rmmshim", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fd, path = tempfile.mkstemp(dir="/")
    os.rename(path, "/memfd:rmmshim")
    try:
        os.unlink("/memfd:rmmshim")
    except FileNotFoundError:
        pass  # another test has done so
    return fd


def change(page, name, value):
    head = Head.from_buffer(page)
    if name == "version":
        head.layout = b"rmmshim 999.0.0 1"
    elif name == "directory":
        head.directory = int(value)
    elif name == "random":
        spoil(page, head.directory, int(value))
    elif name == "rename":
        rename(page, head.directory, *value.encode().split(b":"))
    elif name == "empty":
        page[ctypes.sizeof(Head):] = bytes(len(page) - ctypes.sizeof(Head))
    if name != "mine":
        head.process = os.getpid()


def publish(page, name):
    fd = file_of(name)
    os.truncate(fd, BYTES // 2 if name == "truncated" else BYTES)
    os.pwrite(fd, page[:1 << 20], 0)
    if name not in ("unsealed", "ordinary"):
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)


def be_many(page, count):
    """Returns in each of the children, and in the parent when all have their pages."""
    begin, end = os.pipe()
    del page[len(page.rstrip(b"\0")):]
    for _ in range(count):
        if os.fork() == 0:
            change(page, "same", "")
            publish(page, "same")
            os.write(end, b".")
            return
    for _ in range(count):
        os.read(begin, 1)
    os.write(1, b"ready\n")


def main(process, words):
    name, _, value = words.partition(":")
    page = page_of(process)
    head = Head.from_buffer(page)
    assert head.layout.startswith(b"rmmshim ") and head.process == int(process) and head.directory < BYTES
    del head  # it keeps the page's length
    if name == "many":
        be_many(page, int(value))
    else:
        change(page, name, value)
        publish(page, name)
        os.write(1, b"ready\n")
    while os.read(0, 1):
        pass
    os._exit(0)  # hundreds of them are slow to tidy up


if __name__ == "__main__":
    main(*sys.argv[1:])
