# SPDX-License-Identifier: Apache-2.0
"""Asks a `rmmshim run` as src/shared/job.h says."""
import os
import socket
import struct

REQUEST = struct.Struct("16s33s3xII")
ANSWER = struct.Struct("I")
LAYOUT = b"rmmshim job 4"
HOLD_PAGE, GIVE_LIMIT, NONSENSE = 1, 2, 99


def variable_of(process):
    """RMMSHIM_JOB of a process that was started with it."""
    with open("/proc/%d/environ" % process, "rb") as file:
        return next(entry.partition(b"=")[2].decode() for entry in file.read().split(b"\0")
                    if entry.startswith(b"RMMSHIM_JOB="))


def send(variable, wish, fds=(), number=0, layout=LAYOUT):
    """The connection by which the answer comes."""
    name, token = variable.split(":")[:2]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect("\0" + name)
    socket.send_fds(connection, [REQUEST.pack(layout, token.encode(), wish, number)], list(fds))
    return connection


def ask(*request, **more):
    """Whether the wish was granted, and the descriptors that came; None where the request was not answered."""
    with send(*request, **more) as connection:
        answer, received, _, _ = socket.recv_fds(connection, ANSWER.size, 1)
    return (ANSWER.unpack(answer) != (0,), received) if answer else None


def file_of(variable):
    """A descriptor of the memory file."""
    _, _, process, fd = variable.split(":")[:4]
    return os.open("/proc/%s/fd/%s" % (process, fd), os.O_RDWR)
