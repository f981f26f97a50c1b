# SPDX-License-Identifier: Apache-2.0
"""A process below `rmmshim run` that offers it a copy of another's page: offer_scene.py PID sealed|unsealed|ordinary.
Says whether `run` holds it.  It has no CUDA and no library."""
import fcntl
import mmap
import os
import struct
import sys
import tempfile

import page_scenes

# The layout of shared/job.h.
SLOT = struct.Struct("IiQ")
FIRST_SLOT_AT = 8
OFFERED, HELD = 1, 2


def file_of(page, kind):
    """The page in a file that can shrink, or cannot."""
    if kind == "ordinary":
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    else:
        fd = os.memfd_create("rmmshim", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, page_scenes.BYTES)
    os.pwrite(fd, page[:1 << 20], 0)
    if kind == "sealed":
        fcntl.fcntl(fd, page_scenes.F_ADD_SEALS, page_scenes.F_SEAL_SHRINK)
    return fd


def main(process, kind):
    page = page_scenes.page_of(process)
    page_scenes.Head.from_buffer(page).process = os.getpid()
    fd = file_of(page, kind)
    holder, its_fd, _ = os.environ["RMMSHIM_JOB"].split(":")
    with open("/proc/%s/fd/%s" % (holder, its_fd), "r+b") as file:
        job = mmap.mmap(file.fileno(), 0)
    SLOT.pack_into(job, FIRST_SLOT_AT, os.getpid() << 2 | OFFERED, fd, os.fstat(fd).st_ino)
    while (state := SLOT.unpack_from(job, FIRST_SLOT_AT)[0]) == os.getpid() << 2 | OFFERED:
        pass  # `run` looks at least once a second
    print("held" if state == os.getpid() << 2 | HELD else "refused")


if __name__ == "__main__":
    main(*sys.argv[1:])
