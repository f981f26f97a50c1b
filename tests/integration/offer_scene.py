# SPDX-License-Identifier: Apache-2.0
"""A process below `rmmshim run` that offers it a copy of another's page: offer_scene.py PID sealed|unsealed|ordinary.
Says whether `run` holds it.  It has no CUDA and no library."""
import fcntl
import os
import sys
import tempfile

import page_scenes
import run_socket


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
    granted, _ = run_socket.ask(os.environ["RMMSHIM_JOB"], run_socket.HOLD_PAGE, [fd])
    print("held" if granted else "refused")


if __name__ == "__main__":
    main(*sys.argv[1:])
