# SPDX-License-Identifier: Apache-2.0
"""Processes that share device memory: scenes for ipc_peer, on the device in host memory and on a GPU.

A scene is a function of one argument, `start`: start(settings, shim=True) gives a Peer, a process
under these settings, with the library or without it.  A scene that goes wrong raises."""
import contextlib
import itertools
import json
import os
import re
import select
import signal
import subprocess
import tempfile

from support import ENOUGH_SECONDS, let_end, until

KIB = 1 << 10
MIB = 1 << 20
POOL = {"RMM_POOL_SIZE": "64MiB"}
DEDICATED = {"RMM_POOL_SIZE": "64MiB", "RMM_IPC": "dedicated"}
MAPPED = {"virtual": {"RMM_RESOURCE": "virtual"},
          "pool_of_virtual": {"RMM_RESOURCE": "pool(virtual(granularity=4MiB), initial_size=64MiB)"}}
POOLED = {"async": {"RMM_RESOURCE": "async(ipc=true)"},
          "pool_of_async": {"RMM_RESOURCE": "pool(async(ipc=true), initial_size=64MiB)"}}
SIZES = [256, 512, 1000, 4 * KIB, 33 * KIB + 4, 256 * KIB, 700 * KIB, MIB, 2 * MIB, 3 * MIB + 512, 8 * MIB]

INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, MAP_FAILED, INVALID_HANDLE, NOT_FOUND = 1, 2, 201, 205, 400, 500
NOT_READY, NOT_PERMITTED, NOT_SUPPORTED = 600, 800, 801


class Failure(Exception):
    """An answer of CUDA's."""

    def __init__(self, command, answer):
        super().__init__("%s: %s" % (command[:60], answer))
        found = re.match(r"error (\d+)$", answer)
        self.code = int(found.group(1)) if found else None


class Peer:
    """One process; a command that fails raises Failure."""

    def __init__(self, command, environment):
        self.stderr = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.stderr, start_new_session=True)
        self.buffer = b""
        first = self.read_line()
        if first != "ready":
            raise Failure("start", "%s\n%s" % (first, self.said))

    def read_line(self):
        while b"\n" not in self.buffer:
            if not select.select([self.process.stdout], [], [], ENOUGH_SECONDS)[0]:
                raise Failure("wait", "no answer")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                raise Failure("wait", "the process ended with %s\n%s" % (self.process.wait(), self.said))
            self.buffer += more
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.decode()

    def tell(self, *words):
        """As ask, without waiting for the answer."""
        command = " ".join(str(word) for word in words)
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()
        return command

    def ask(self, *words):
        return self.hear(self.tell(*words))

    def hear(self, command):
        answer = self.read_line()
        if answer.split(" ")[0] != "ok":
            raise Failure(command, answer)
        return answer[3:]

    def refuses(self, code, *words):
        """With that error of CUDA's; None: whatever error."""
        try:
            self.ask(*words)
        except Failure as failure:
            assert failure.code and code in (None, failure.code), "%s, expected %s" % (failure, code)
            return
        raise AssertionError("%s succeeded, expected error %s" % (words[:2], code))

    def calls(self, name):
        """How often the driver saw that call; None where only the device in host memory could tell."""
        count = int(self.ask("calls", name))
        return None if count < 0 else count

    def share(self, name, size, seed):
        """A new block with that content; its handle."""
        self.ask("allocate", name, size)
        self.ask("fill", name, seed)
        return self.ask("export", name)

    @property
    def said(self):
        self.stderr.seek(0)
        return self.stderr.read().decode(errors="replace")

    @property
    def lines(self):
        return [line.split(": ", 1)[1] for line in self.said.splitlines() if line.startswith("rmmshim[")]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Lets it end by itself; its exit status."""
        self.process.stdin.close()
        return self.process.wait(ENOUGH_SECONDS)

    def clean_up(self):
        let_end(self.process)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.stderr):
            with contextlib.suppress(OSError):
                stream.close()


def range_of(peer, name, offset=0):
    start, size, capable = peer.ask("range", name, offset).split()
    return int(start), int(size), int(capable)


def settle(peer):
    """What was freed is clean, what is held for others has been looked at: unless the machine is so busy that the
    fences are late, as a trim waits for them for a bounded time."""
    peer.ask("trim")
    peer.ask("synchronize")
    peer.ask("trim")


def reuses(exporter, name, of, size=256 * KIB):
    """True when a block like the freed one gets its memory (whose address the name `of` kept)."""
    exporter.ask("allocate", name, size)
    same = exporter.ask("compare", name, of) == "same"
    return same


def comes_back(exporter, name, of, size=256 * KIB):
    """Takes blocks until one gets the memory of the freed one; that one has the name, and the others go."""
    others = []

    def again():
        settle(exporter)
        if reuses(exporter, name, of, size):
            return True
        others.append("%s.%d" % (name, len(others)))
        exporter.ask("rename", name, others[-1])
        return False

    until(again, "memory that was freed")
    for other in others:
        exporter.ask("free", other)


# ---- scenes ----

def sizes(start, settings=None, capable=1):
    """Blocks of all sizes, several in each 2 MiB; both ways; what observers say of them."""
    a, b = start(POOL if settings is None else settings), start(POOL)
    for turn, size in enumerate(SIZES * 2):
        handle = a.share("x%d" % turn, size, turn)
        b.ask("open", "x%d" % turn, size, handle)
    for turn, size in enumerate(SIZES * 2):
        name = "x%d" % turn
        b.ask("check", name, turn)
        b.ask("fill", name, turn + 100)
        assert range_of(a, name, size - 1) == (0, size, capable), range_of(a, name, size - 1)
        start_at, seen = range_of(b, name, size - 1)[:2]
        assert start_at == 0 and size <= seen < size + 512, (name, size, start_at, seen)
    for turn in range(len(SIZES) * 2):
        a.ask("check", "x%d" % turn, turn + 100)
    for turn in range(len(SIZES) * 2):
        b.ask("close", "x%d" % turn)
        a.ask("free", "x%d" % turn)
    assert not a.lines and not b.lines, a.lines + b.lines


def three(start):
    """A shares with B and C, B with C and A; all write."""
    peers = [start(POOL) for _ in range(3)]
    size = 300 * KIB
    for peer in peers:
        peer.ask("allocate", "first", 5 * KIB)
    handles = [peer.share("mine", size, 10 * i) for i, peer in enumerate(peers)]
    for i, peer in enumerate(peers):
        for j in range(3):
            if i != j:
                peer.ask("open", "of%d" % j, size, handles[j])
                peer.ask("check", "of%d" % j, 10 * j)
    for round_number in range(3):
        for writer, peer in enumerate(peers):
            owner = (writer + 1) % 3
            reader = (writer + 2) % 3
            peer.ask("fill", "of%d" % owner, 1000 + round_number)
            peers[owner].ask("check", "mine", 1000 + round_number)
            peers[reader].ask("check", "of%d" % owner, 1000 + round_number)
    for i, peer in enumerate(peers):
        for j in range(3):
            if i != j:
                peer.ask("close", "of%d" % j)
        peer.ask("free", "mine")
        assert not peer.lines and peer.end() == 0, peer.lines


def handles(start):
    """The same block always the same bytes, whatever address inside is given; another block others."""
    a, b = start(POOL), start(POOL)
    handle = a.share("x", 256 * KIB, 1)
    assert handle == a.ask("export", "x") == a.ask("export", "x", 1000) == a.ask("export", "x", 256 * KIB - 1)
    b.ask("open", "x", 256 * KIB, handle)
    assert a.ask("export", "x") == handle
    b.ask("close", "x")
    other = a.share("y", 256 * KIB, 2)
    assert other != handle
    a.ask("view", "old", "x", 0, 256 * KIB)
    seen = {handle, other}
    for turn in range(5):
        a.ask("free", "x")
        a.refuses(INVALID_VALUE, "export", "old")
        b.refuses(INVALID_VALUE, "open", "x", 256 * KIB, handle)
        settle(a)
        comes_back(a, "x", "old")
        b.refuses(INVALID_VALUE, "open", "x", 256 * KIB, handle)
        handle = a.ask("export", "x")
        assert handle not in seen
        seen.add(handle)
        a.ask("fill", "x", turn)
        b.ask("open", "x", 256 * KIB, handle)
        b.ask("check", "x", turn)
        b.ask("close", "x")
    assert a.lines == [], a.lines
    assert [line for line in b.lines if "the process that shared the memory has freed it" in line] == b.lines and len(b.lines) == 1, b.lines


def counts(start):
    """Opening again gives the same address, and each open wants its close."""
    a, b = start(POOL), start(POOL)
    first, second = a.share("x", 256 * KIB, 1), a.share("y", 256 * KIB, 2)
    for name in ("x1", "x2", "x3"):
        b.ask("open", name, 256 * KIB, first)
    b.ask("open_v1", "y1", 256 * KIB, second)
    assert sum(b.calls(name) or 0 for name in ("cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2")) <= 1
    assert b.ask("compare", "x1", "x2") == b.ask("compare", "x1", "x3") == "same"
    assert b.ask("compare", "x1", "y1") == "different"
    b.ask("close", "x1")
    b.ask("close", "x2")
    b.ask("check", "x3", 1)
    b.ask("view", "x", "x3", 0, 256 * KIB)
    b.ask("close", "x3")
    b.refuses(INVALID_VALUE, "close", "x")
    b.refuses(NOT_FOUND, "range", "x")  # though the driver has it mapped, for y's sake
    b.ask("check", "y1", 2)
    b.ask("view", "y", "y1", 0, 256 * KIB)
    b.ask("view", "inside", "y1", 512, 512)
    b.refuses(INVALID_VALUE, "close", "inside")
    b.refuses(INVALID_VALUE, "free", "y1")
    b.ask("close", "y1")
    b.refuses(INVALID_VALUE, "close", "y")
    a.ask("export", "x")
    a.refuses(INVALID_CONTEXT, "open", "own", 256 * KIB, first)
    assert b.ask("open_wrongly", first) == "%d %d %d" % (INVALID_VALUE, INVALID_VALUE, INVALID_CONTEXT)
    b.ask("open", "again", 256 * KIB, first)
    b.ask("check", "again", 1)


def base_and_offset(start):
    """As PyTorch and CuPy do it: the range's base is exported, the place inside travels beside it."""
    a, b = start(POOL), start(POOL)
    a.ask("allocate", "other", 100 * KIB)
    a.ask("allocate", "block", 640 * KIB)
    a.ask("view", "tensor", "block", 200 * KIB, 64 * KIB)
    a.ask("fill", "tensor", 5)
    offset = -range_of(a, "tensor", 10)[0]
    assert offset == 200 * KIB, offset
    a.ask("view", "base", "tensor", -offset, 640 * KIB)
    b.ask("open", "base", 640 * KIB, a.ask("export", "base"))
    b.ask("view", "tensor", "base", offset, 64 * KIB)
    b.ask("check", "tensor", 5)
    start_at, size = range_of(b, "tensor")[:2]
    assert (start_at, size) == (-offset, 640 * KIB), (start_at, size)
    b.ask("fill", "tensor", 6)
    a.ask("check", "tensor", 6)


def held(start, end="close", settings=None):
    """A block that is freed while another process has it open is nobody else's until that closes it."""
    a, b = start(settings or POOL), start(POOL)
    handle = a.share("x", 256 * KIB, 1)
    a.share("wall", 256 * KIB, 1)
    b.ask("open", "x", 256 * KIB, handle)
    b.ask("open", "wall", 256 * KIB, a.ask("export", "wall"))  # so that the allocation stays open
    a.ask("view", "old", "x", 0, 256 * KIB)
    a.ask("free", "x")
    a.refuses(INVALID_VALUE, "free", "old")
    a.refuses(NOT_FOUND, "range", "old")
    settle(a)
    for turn in range(20):
        assert not reuses(a, "n%d" % turn, "old")
        a.ask("fill", "n%d" % turn, 50 + turn)
    b.ask("check", "x", 1)
    b.ask("fill", "x", 2)
    for turn in range(20):
        a.ask("check", "n%d" % turn, 50 + turn)
    if end in ("kill", "kill, with a child"):
        if end != "kill":
            b.ask("fork")
        b.kill()
    elif end == "exit":
        assert b.end() == 0
    elif end == "reset":
        b.ask("reset")
    else:
        b.ask("close", "x")
    comes_back(a, "m", "old")
    assert not a.lines, a.lines


def held_back(start):
    """What was held comes back with the next calls, without a trim."""
    a, b = start(POOL), start(POOL)
    b.ask("open", "x", 256 * KIB, a.share("x", 256 * KIB, 1))
    a.share("wall", 256 * KIB, 1)
    a.ask("view", "old", "x", 0, 256 * KIB)
    a.ask("free", "x")
    b.ask("close", "x")
    numbers = itertools.count()
    until(lambda: reuses(a, "n%d" % next(numbers), "old"), "memory that was held")  # past what the pool holds now


def late_work(start):
    """Work of the importer that is under way when it closes is done before the memory is another's."""
    a, b = start(POOL), start(POOL)
    b.ask("open", "wall", 256 * KIB, a.share("wall", 256 * KIB, 1))
    b.ask("open", "x", 256 * KIB, a.share("x", 256 * KIB, 1))
    a.ask("view", "old", "x", 0, 256 * KIB)
    b.ask("later", "x", 77, 300000)
    b.ask("close", "x")
    a.ask("free", "x")
    comes_back(a, "y", "old")
    a.ask("fill", "y", 9)
    b.ask("synchronize")
    a.ask("check", "y", 9)


def without_shim(start, refusal=INVALID_HANDLE):
    """A block inside a larger allocation is refused to an importer without the library; one that is an
    allocation of its own is not."""
    a, b = start({"RMM_RESOURCE": "pool(cuda)"}), start({}, shim=False)
    whole = a.share("whole", 40 * MIB, 3)  # the pool's first, so a driver allocation of its own
    b.ask("open", "whole", 40 * MIB, whole)
    b.ask("check", "whole", 3)
    b.ask("close", "whole")
    part = a.share("part", 256 * KIB, 4)
    b.refuses(refusal, "open", "part", 256 * KIB, part)
    b.ask("open", "whole", 40 * MIB, whole)  # and it goes on
    b.ask("check", "whole", 3)


def whole_then_part(start):
    """The driver's handle of an allocation is one block's alone: a later one gets another."""
    a, b = start({"RMM_RESOURCE": "pool(cuda)"}), start(POOL)
    first = a.share("x", 40 * MIB, 3)
    assert a.ask("export", "x") == first
    b.ask("open", "x", 40 * MIB, first)
    b.ask("check", "x", 3)
    b.ask("close", "x")
    a.ask("view", "old", "x", 0, 40 * MIB)
    a.ask("free", "x")
    comes_back(a, "y", "old", 40 * MIB)
    second = a.ask("export", "y")
    assert second != first and a.ask("export", "y") == second
    a.ask("fill", "y", 4)
    b.ask("open", "y", 40 * MIB, second)
    b.ask("check", "y", 4)


def dedicated(start):
    """RMM_IPC=dedicated: every block opens anywhere, by the driver's own handle."""
    a, b = start(DEDICATED), start({}, shim=False)
    for turn, size in enumerate(SIZES * 2):
        b.ask("open", "x%d" % turn, size, a.share("x%d" % turn, size, turn))
    for turn in range(len(SIZES) * 2):
        b.ask("check", "x%d" % turn, turn)
        b.ask("fill", "x%d" % turn, turn + 50)
        b.ask("close", "x%d" % turn)
        a.ask("check", "x%d" % turn, turn + 50)
        a.ask("free", "x%d" % turn)
    assert not a.lines, a.lines


def native_and_ours(start):
    """The driver's handle of an allocation that is cut up later: both opens at its address count."""
    a, b = start({"RMM_RESOURCE": "pool(cuda, maximum_size=40MiB)"}), start(POOL)
    b.ask("open", "whole", 40 * MIB, a.share("whole", 40 * MIB, 3))
    a.ask("free", "whole")
    a.ask("synchronize")
    handle = a.share("first", 256 * KIB, 1)
    b.ask("open", "first", 256 * KIB, handle)
    assert b.ask("compare", "first", "whole") == "same", "another address: the test tests nothing"
    b.ask("close", "whole")
    a.ask("view", "old", "first", 0, 256 * KIB)
    a.ask("free", "first")
    settle(a)
    assert not reuses(a, "second", "old")
    b.ask("check", "first", 1)
    b.ask("view", "closed", "first", 0, 256 * KIB)
    b.ask("close", "first")
    b.refuses(INVALID_VALUE, "close", "closed")


def without_settings(start):
    """An importer whose own memory is not served opens our handles all the same."""
    a, b = start(POOL), start({})
    b.ask("open", "x", 256 * KIB, a.share("x", 256 * KIB, 1))
    b.ask("check", "x", 1)
    assert range_of(b, "x", 5)[:2] == (0, 256 * KIB)
    b.ask("close", "x")
    assert not b.lines, b.lines


def exporter_dies(start):
    """What is open stays what it is; what is not can no longer be opened."""
    a, b = start(POOL), start(POOL)
    opened, other = a.share("x", 256 * KIB, 1), a.share("y", 256 * KIB, 2)
    b.ask("open", "x", 256 * KIB, opened)
    b.ask("check", "x", 1)
    a.kill()
    b.refuses(MAP_FAILED, "open", "y", 256 * KIB, other)
    b.ask("close", "x")
    b.refuses(MAP_FAILED, "open", "x", 256 * KIB, opened)
    assert len(b.lines) == 1 and "has ended" in b.lines[0], b.lines


def damaged(start):
    """A handle of which a byte is wrong is refused, wherever that is."""
    a, b = start(POOL), start(POOL)
    handle = a.share("x", 256 * KIB, 1)
    for byte in range(7, 64):
        wrong = handle[:2 * byte] + "%02x" % (int(handle[2 * byte:2 * byte + 2], 16) ^ 1) + handle[2 * byte + 2:]
        b.refuses(INVALID_HANDLE, "open", "x", 256 * KIB, wrong)
    b.ask("open", "x", 256 * KIB, handle)
    assert len(b.lines) == 1 and "damaged" in b.lines[0], b.lines


def files_closed(start):
    """A program that closes files it did not open: nothing goes wrong, and one line."""
    a, b = start(POOL), start(POOL)
    handle = a.share("x", 256 * KIB, 1)
    a.ask("view", "old", "x", 0, 256 * KIB)
    a.ask("close_files")
    b.refuses(MAP_FAILED, "open", "x", 256 * KIB, handle)
    a.ask("free", "x")
    a.ask("trim")
    for turn in range(20):
        assert not reuses(a, "n%d" % turn, "old")
    assert len(a.lines) == 1 and "closed a file" in a.lines[0], a.lines
    a.refuses(NOT_SUPPORTED, "export", "n0")
    assert "set RMM_IPC=dedicated, which needs none" in a.lines[1], a.lines
    as_said = start({"RMM_RESOURCE": "cuda", "RMM_IPC": "dedicated"})
    as_said.ask("close_files")
    b.ask("open", "x", 256 * KIB, as_said.share("x", 256 * KIB, 1))
    b.ask("check", "x", 1)
    assert not as_said.lines, as_said.lines


def importer_closes_files(start):
    """The same on the other side: what it opens later is right, and what it had open it can close."""
    a, b = start(POOL), start(POOL)
    first, second = a.share("x", 256 * KIB, 1), a.share("y", 256 * KIB, 2)
    b.ask("open", "x", 256 * KIB, first)
    b.ask("close_files")
    b.ask("open", "y", 256 * KIB, second)
    b.ask("check", "y", 2)
    a.ask("view", "old", "y", 0, 256 * KIB)
    b.ask("close", "x")
    a.ask("free", "y")
    settle(a)
    assert not reuses(a, "n", "old")
    b.ask("close", "y")
    comes_back(a, "m", "old")


def held_as_cuda_free(start):
    """A free that holds the block still waits for the work that was given before, as cudaFree does."""
    a, b = start({"RMM_POOL_SIZE": "64MiB", "RMM_FREE": "wait"}), start(POOL)
    a.ask("event", "e")
    b.ask("open", "x", 256 * KIB, a.share("x", 256 * KIB, 1))
    a.ask("later", "x", 5, 200000)
    a.ask("record_event", "e")
    a.ask("free", "x")
    a.ask("query_event", "e")
    b.ask("words", "x", 5)


def contexts(start):
    """A context's end, on either side, ends what was shared."""
    a, b = start(POOL), start(POOL)
    handle = a.share("x", 256 * KIB, 1)
    b.ask("open", "x", 256 * KIB, handle)
    b.ask("reset")
    b.ask("open", "x", 256 * KIB, handle)
    b.ask("check", "x", 1)
    b.ask("close", "x")
    b.ask("open", "x", 256 * KIB, handle)
    a.ask("free", "x")  # held
    live = a.share("live", 256 * KIB, 7)
    a.ask("reset")
    b.refuses(INVALID_VALUE, "open", "live", 256 * KIB, live)
    fresh = a.share("x", 256 * KIB, 3)
    assert fresh != handle
    b.ask("close", "x")
    b.refuses(INVALID_VALUE, "open", "y", 256 * KIB, handle)
    b.ask("open", "z", 256 * KIB, fresh)
    b.ask("check", "z", 3)


def again_and_again(start, rounds=20, frees=1):
    """A block is opened and closed for each message, as PyTorch does: besides the open and the close that
    takes the wait of a close, one small block freed and taken again; `frees` counts the close's own."""
    a, b = start(POOL), start(POOL)
    handle = a.share("x", 256 * KIB, 1)

    def message():
        b.ask("open", "x", 256 * KIB, handle)
        b.ask("check", "x", 1)
        b.ask("close", "x")

    message()
    before = [b.calls("cuMemAlloc_v2") or 0, b.calls("cuMemFree_v2") or 0]
    for _ in range(rounds):
        message()
    after = [b.calls("cuMemAlloc_v2") or 0, b.calls("cuMemFree_v2") or 0]
    assert after[0] - before[0] <= rounds and after[1] - before[1] <= rounds * frees, (before, after)


def resets(start, rounds=70):
    """More contexts than are remembered, each ending with a block that another process has open."""
    a, b = start(POOL), start(POOL)
    for turn in range(rounds):
        b.ask("open", "x%d" % turn, 256 * KIB, a.share("x", 256 * KIB, turn))
        a.ask("free", "x")
        a.ask("reset")
    a.ask("allocate", "y", 256 * KIB)
    for turn in range(rounds):
        b.ask("close", "x%d" % turn)
        a.ask("allocate", "z%d" % turn, 4 * KIB)
    settle(a)
    a.ask("fill", "y", 1)
    a.ask("check", "y", 1)


def many(start):
    """Hundreds of blocks, opened and closed in another order, with frees in between."""
    a, b = start(POOL), start(POOL)
    size = 40 * KIB
    for turn in range(300):
        b.ask("open", "x%d" % turn, size, a.share("x%d" % turn, size, turn))
        if turn % 3 == 2:
            b.ask("close", "x%d" % (turn - 1))
            a.ask("free", "x%d" % (turn - 1))
        if turn % 5 == 4 and (turn - 2) % 3 != 1:
            a.ask("free", "x%d" % (turn - 2))  # held
    for turn in range(300):
        if turn % 3 != 1:
            b.ask("check", "x%d" % turn, turn)
    for turn in range(299, -1, -1):
        if turn % 3 != 1:
            b.ask("close", "x%d" % turn)
    assert not a.lines and not b.lines, a.lines + b.lines


def storm(start, threads=4, rounds=60):
    """Threads of two importers open, look and close while the exporter frees, allocates and fills."""
    peers = [start(POOL) for _ in range(3)]
    a, size = peers[0], 100 * KIB
    for turn in range(24):
        handle = a.share("x%d" % turn, size, turn)
        for b in peers[1:]:
            b.ask("known", turn, size, handle)
    told = [b.tell("storm", threads, rounds) for b in peers[1:]]
    for turn in range(16):
        a.ask("free", "x%d" % turn)
        a.ask("trim")
        for other in range(3):
            a.ask("allocate", "n%d.%d" % (turn, other), size)
            a.ask("fill", "n%d.%d" % (turn, other), 1000 + turn * 3 + other)
    for b, command in zip(peers[1:], told):
        opened, _ = b.hear(command).split()
        assert int(opened) > 0
    for turn in range(16):
        for other in range(3):
            a.ask("check", "n%d.%d" % (turn, other), 1000 + turn * 3 + other)
    for turn in range(16, 24):
        a.ask("check", "x%d" % turn, turn)


def churn(start, threads=4, rounds=300):
    """Threads allocate, export and free, while others' blocks are held and come back."""
    a, b = start(POOL), start(POOL)
    for turn in range(20):
        b.ask("open", "x%d" % turn, 40 * KIB, a.share("x%d" % turn, 40 * KIB, turn))
    for turn in range(20):
        a.ask("free", "x%d" % turn)
    command = a.tell("churn", threads, rounds)
    for turn in range(20):
        b.ask("check", "x%d" % turn, turn)
        b.ask("close", "x%d" % turn)
    a.hear(command)
    assert not a.lines, a.lines


def refused(start, unshared="async(ipc=false)"):
    """Memory for which the driver has no handle."""
    for resource in ("pool(%s)" % unshared, "pool(managed)"):
        a = start({"RMM_RESOURCE": resource})
        a.ask("allocate", "x", 256 * KIB)
        a.ask("allocate", "y", 256 * KIB)
        assert range_of(a, "x")[2] == 0, resource
        a.refuses(NOT_SUPPORTED, "export", "x")
        a.refuses(NOT_SUPPORTED, "export", "y")
        assert len(a.lines) == 1 and "other processes cannot open this block" in a.lines[0], a.lines
    for resource in (unshared, "managed"):  # a block fills its memory: the driver's own error, and why
        a = start({"RMM_RESOURCE": resource})
        a.ask("allocate", "x", 256 * KIB)
        a.refuses(INVALID_VALUE, "export", "x")
        a.refuses(INVALID_VALUE, "export", "x")
        assert len(a.lines) == 1 and "other processes cannot open this block" in a.lines[0], a.lines


def short_of_files(start):
    """With few descriptors left the exporter makes no handle, and says why, or one that opens; later it makes one."""
    refusals = 0
    for left in range(9):
        a, b = start(POOL), start({})
        a.ask("allocate", "x", 256 * KIB)
        a.ask("fill", "x", 1)
        a.ask("limit_files", 1024)
        a.ask("take_files", left)
        try:
            handle = a.ask("export", "x")
            assert not a.lines, a.lines
        except Failure as failure:
            assert failure.code == OUT_OF_MEMORY, failure
            assert len(a.lines) <= 1 and all("at least one of these is not available" in line for line in a.lines), a.lines
            handle = None
            refusals += 1
        a.ask("drop_files")
        b.ask("open", "x", 256 * KIB, handle or a.ask("export", "x"))
        b.ask("check", "x", 1)
        b.ask("close", "x")
        assert not b.lines, b.lines
    assert 0 < refusals < 9, refusals


def events(start):
    """Events between processes pass us by, and our own fences do not mind."""
    a, b = start(POOL), start(POOL)
    a.ask("event", "e")
    b.ask("open_event", "e", a.ask("export_event", "e"))
    handle = a.share("x", 256 * KIB, 1)
    b.ask("open", "x", 256 * KIB, handle)
    a.ask("stop")
    a.ask("later", "x", 5, 1)
    a.ask("record_event", "e")
    b.refuses(NOT_READY, "query_event", "e")
    b.ask("wait_event", "e")
    b.ask("later", "x", 6, 1)
    a.ask("go")
    for turn in range(40):
        a.ask("allocate", "n%d" % turn, 100 * KIB)
        a.ask("free", "n%d" % turn)
    b.ask("synchronize")
    b.ask("query_event", "e")
    a.ask("words", "x", 6)


SCENES = {scene.__name__: scene for scene in (
    sizes, three, handles, counts, base_and_offset, held, held_back, late_work, without_shim, whole_then_part,
    dedicated, native_and_ours, without_settings, exporter_dies, damaged, files_closed, importer_closes_files,
    held_as_cuda_free, contexts, again_and_again, resets, many, storm, churn, refused, short_of_files, events)}


# ---- scenes of mapped memory ----

PIECES = "virtual(granularity=2MiB)"


def pieces(start):
    """A block of many pieces, by few descriptors; what is opened is not counted against them."""
    a, b = start({"RMM_RESOURCE": PIECES}), start({})
    for peer in (a, b):
        peer.ask("limit_files", 256)
    size = 300 * MIB + 1000
    b.ask("open", "x", size, a.share("x", size, 1))
    b.ask("check", "x", 1)
    assert range_of(b, "x", size - 1)[:2] == (0, size)
    b.ask("fill", "x", 2)
    a.ask("check", "x", 2)
    for turn in range(120):
        b.ask("open", "y%d" % turn, 3 * MIB, a.share("y%d" % turn, 3 * MIB, turn))
    for turn in range(120):
        b.ask("check", "y%d" % turn, turn)
        b.ask("close", "y%d" % turn)
        a.ask("free", "y%d" % turn)
    b.ask("close", "x")
    a.ask("free", "x")
    assert not a.lines and not b.lines, a.lines + b.lines


def descriptors(start):
    """Where none is left a handle is refused, with one line; a few are enough."""
    a, b = start({"RMM_RESOURCE": PIECES}), start({})
    size = 41 * MIB
    handle = a.share("x", size, 1)
    b.ask("open", "other", MIB, a.share("other", MIB, 2))
    for peer in (a, b):
        peer.ask("limit_files", 1024)
    for left in (3, 2):
        a.ask("take_files", left)
        b.ask("open", "x", size, handle)
        b.ask("check", "x", 1)
        b.ask("close", "x")
        a.ask("drop_files")
    for left in (1, 0):
        a.ask("take_files", left)
        b.refuses(MAP_FAILED, "open", "x", size, handle)
        a.ask("drop_files")
    assert len(b.lines) == 1 and "could not send" in b.lines[0], b.lines
    for left in (2, 1, 0):
        b.ask("take_files", left)
        b.refuses(OUT_OF_MEMORY, "open", "x", size, handle)
        b.ask("drop_files")
    assert len(b.lines) > 1 and "no file descriptor left" in b.lines[1], b.lines
    for left in (3, 5):
        b.ask("take_files", left)
        b.ask("open", "x", size, handle)
        b.ask("check", "x", 1)
        b.ask("close", "x")
        b.ask("drop_files")
    assert not a.lines and len(b.lines) <= 4, a.lines + b.lines


def moves(start):
    """Free memory is moved to where a request needs it; what another process has open, or may open, is not."""
    with tempfile.NamedTemporaryFile() as report:
        a = start({"RMM_RESOURCE": "virtual(granularity=2MiB, maximum_size=64MiB)",
                   "RMM_STATISTICS": "json:" + report.name})
        b = start({})
        handles_of = {}
        for turn in range(16):  # all there is
            handles_of[turn] = a.share("x%d" % turn, 4 * MIB, turn)
        for turn in (3, 8):
            b.ask("open", "x%d" % turn, 4 * MIB, handles_of[turn])
        for turn in range(16):
            if turn not in (3, 8, 11):
                a.ask("free", "x%d" % turn)
        a.ask("free", "x8")  # held
        for turn in range(4):
            a.refuses(2, "allocate", "z", 54 * MIB)
            a.ask("allocate", "y", 52 * MIB)  # no free place is so large
            a.ask("fill", "y", 100 + turn)
            b.ask("check", "x3", 3)
            b.ask("check", "x8", 8)
            b.ask("open", "x11", 4 * MIB, handles_of[11])
            b.ask("check", "x11", 11)
            b.ask("fill", "x11", 11)
            b.ask("close", "x11")
            a.ask("check", "y", 100 + turn)
            a.ask("check", "x11", 11)
            a.ask("free", "y")
        b.ask("close", "x8")
        settle(a)
        a.ask("allocate", "z", 56 * MIB)
        a.ask("fill", "z", 9)
        b.ask("fill", "x3", 33)
        a.ask("check", "x3", 33)
        assert not b.lines, b.lines
        assert a.end() == 0
        counters = [counter for stack in json.load(report)["devices"] for counter in stack["counters"]
                    if counter["name"] == "moved"]
        assert sum(counter["value"] for counter in counters) > 0, counters


def same_attributes(start, settings=None, but=None):
    """Both processes are told of a block what they are told without the library, whichever byte they ask about."""
    told = []
    for served in (settings or {"RMM_RESOURCE": PIECES}, None):
        peers = [start(served or {}, shim=bool(served)) for _ in range(2)]
        handle = peers[0].share("x", 8 * MIB, 1)
        peers[1].ask("open", "x", 8 * MIB, handle)
        told.append([re.sub(r" %s=\S+" % but, "", peer.ask("attributes", "x", offset)) for peer in peers for offset in (0, 5 * MIB, 8 * MIB - 1)])
        assert not served or not peers[0].lines and not peers[1].lines
    for ours, bare in zip(*told):
        assert ours == bare, "\n".join((ours, bare))


def exporter_is_gone(start):
    """Mapped memory outlives the process that shared it, also one that has forked, whose child has its socket."""
    for forks in (False, True):
        a, b = start({"RMM_RESOURCE": PIECES}), start({})
        opened, other = a.share("x", 5 * MIB, 1), a.share("y", 5 * MIB, 2)
        if forks:
            a.ask("fork")
        b.ask("open", "x", 5 * MIB, opened)
        a.kill()
        b.refuses(MAP_FAILED, "open", "y", 5 * MIB, other)
        b.ask("check", "x", 1)
        b.ask("fill", "x", 3)
        b.ask("check", "x", 3)
        b.ask("close", "x")
        assert len(b.lines) == 1 and "has ended" in b.lines[0], b.lines


def switches(peer):
    """How often the process has waited for something."""
    with open("/proc/%d/status" % peer.process.pid, encoding="utf-8") as status:
        return int(re.search(r"\nvoluntary_ctxt_switches:\s*(\d+)", status.read()).group(1))


def exporter_is_stopped(start, settings=None):
    """An importer waits for a process that goes on later, and no longer for one that ends."""
    for ends in (False, True):
        a, b = start(settings or {"RMM_RESOURCE": PIECES}), start({})
        handle = a.share("x", 5 * MIB, 1)
        a.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, a.process.pid, os.WSTOPPED | os.WNOWAIT)
        command, looks = b.tell("open", "x", 5 * MIB, handle), switches(b)
        while switches(b) < looks + 8:  # it waits, and looks again and again
            assert not select.select([b.process.stdout], [], [], 0)[0], b.lines
        if ends:
            a.kill()
            try:
                b.hear(command)
            except Failure as failure:
                assert failure.code == MAP_FAILED, failure
            assert len(b.lines) == 1 and "has ended" in b.lines[0], b.lines
            continue
        a.process.send_signal(signal.SIGCONT)
        b.hear(command)
        b.ask("check", "x", 1)
        assert not a.lines and not b.lines, a.lines + b.lines


def pipe_closed(start):
    """A program that closes the pipe it did not open: a refusal on both sides, and nothing goes wrong."""
    a, b = start({"RMM_RESOURCE": PIECES}), start({})
    handle = a.share("x", 5 * MIB, 1)
    b.ask("open", "x", 5 * MIB, handle)
    other = a.share("y", 5 * MIB, 2)
    a.ask("close_pipes")
    b.refuses(MAP_FAILED, "open", "y", 5 * MIB, other)
    b.refuses(MAP_FAILED, "open", "y", 5 * MIB, other)
    assert len(b.lines) == 1 and "closed a file" in b.lines[0], b.lines
    a.ask("allocate", "z", MIB)
    a.refuses(NOT_SUPPORTED, "export", "z")
    assert len(a.lines) == 1 and "other processes cannot open this block" in a.lines[0], a.lines
    b.ask("check", "x", 1)
    b.ask("close", "x")
    a.ask("free", "x")


def mapped_without_shim(start, refusal=INVALID_HANDLE, settings=None):
    """A process without the library opens none of it."""
    a, b = start(settings or {"RMM_RESOURCE": PIECES}), start({}, shim=False)
    b.refuses(refusal, "open", "x", 5 * MIB, a.share("x", 5 * MIB, 1))


MAPPED_SCENES = {scene.__name__: scene for scene in (
    pieces, descriptors, moves, same_attributes, exporter_is_gone, exporter_is_stopped, pipe_closed, mapped_without_shim)}


# ---- scenes of a pool's memory ----

SHARED_POOL = {"RMM_RESOURCE": "async(ipc=true)"}
CHUNKS = {"RMM_RESOURCE": "pool(async(ipc=true), initial_size=64MiB)"}


def early_frees(peer):
    """How often the process freed what another had imported; 0 where only the device in host memory could tell."""
    return max(int(peer.ask("early_frees")), 0)


def pool_once(start):
    """A pool is sent once for all of its blocks that are open, and each allocation in it is imported once."""
    for settings, imports in ((SHARED_POOL, 6), (CHUNKS, 1)):
        a, b = start(settings), start({})
        for turn in range(6):
            b.ask("open", "x%d" % turn, 256 * KIB, a.share("x%d" % turn, 256 * KIB, turn))
        b.ask("push_context")
        b.refuses(NOT_SUPPORTED, "open", "y", 256 * KIB, a.ask("export", "x0"))
        b.ask("pop_context")
        assert b.calls("cuMemPoolImportFromShareableHandle") in (1, None)
        assert b.calls("cuMemPoolImportPointer") in (imports, None)
        for turn in range(6):
            b.ask("check", "x%d" % turn, turn)
            b.ask("close", "x%d" % turn)
            a.ask("free", "x%d" % turn)
        assert b.calls("cuMemPoolDestroy") in (1, None)
        settle(a)
        assert early_frees(a) == 0
        assert not a.lines and len(b.lines) == 1 and "only one CUDA context" in b.lines[0], a.lines + b.lines


def pool_freed_last(start):
    """The exporter frees only what no other process has imported any more."""
    for settings in (SHARED_POOL, dict(SHARED_POOL, RMM_FREE="immediate"), CHUNKS):
        for end in (("close", "x"), ("reset",), "kill"):
            a, b = start(settings), start({})
            b.ask("open", "x", 8 * MIB, a.share("x", 8 * MIB, 1))
            a.ask("free", "x")
            settle(a)
            b.ask("check", "x", 1)
            if end != "kill":
                command = b.tell(*end)
                while not select.select([b.process.stdout], [], [], 0)[0]:
                    settle(a)  # frees at once what it may
                b.hear(command)
            else:
                b.kill()
            settle(a)
            a.ask("allocate", "y", 8 * MIB)
            settle(a)
            assert early_frees(a) == 0
            assert not a.lines, a.lines


def pool_by_default(start):
    """As with ipc=true, where the driver is for CUDA 13.0 or newer."""
    for settings in ({"RMM_ASYNC": "1"}, {"RMM_ASYNC": "1", "RMM_POOL_SIZE": "64MiB"}):
        a, b = start(settings), start({})
        b.ask("open", "x", MIB, a.share("x", MIB, 1))
        b.ask("check", "x", 1)
        b.ask("close", "x")
        a.ask("free", "x")
        assert not a.lines and not b.lines, a.lines + b.lines


def pool_not_the_program_s(start):
    """What is imported from a pool is closed, not freed, as with the driver's own handles."""
    for settings in ({}, POOL):
        a, b = start(SHARED_POOL), start(settings)
        b.ask("open", "x", MIB, a.share("x", MIB, 1))
        b.refuses(INVALID_VALUE, "free", "x")
        b.refuses(INVALID_VALUE, "free_async", "x")
        b.ask("synchronize")
        b.ask("check", "x", 1)
        b.ask("close", "x")


def pool_descriptors(start):
    """Where the exporter has no descriptor left the pool is not sent, with one line; two are enough."""
    a, b = start(SHARED_POOL), start({})
    handle = a.share("x", MIB, 1)
    a.ask("limit_files", 1024)
    a.ask("take_files", 0)
    b.refuses(MAP_FAILED, "open", "x", MIB, handle)
    assert len(b.lines) == 1 and "could not send" in b.lines[0], b.lines
    a.ask("drop_files")
    a.ask("take_files", 2)
    b.ask("open", "x", MIB, handle)
    a.ask("take_files", 0)
    b.ask("open", "y", MIB, a.share("y", MIB, 2))  # the pool is there
    b.ask("check", "x", 1)
    b.ask("check", "y", 2)
    b.ask("close", "x")
    b.ask("close", "y")
    assert not a.lines and len(b.lines) == 1, a.lines + b.lines


def pool_without_shim(start, refusal=INVALID_HANDLE):
    """A process without the library opens none of it."""
    mapped_without_shim(start, refusal, SHARED_POOL)


def pool_attributes(start):
    """As same_attributes, but for GPUDirect, which the driver's pools do not have."""
    same_attributes(start, SHARED_POOL, 15)


POOLED_SCENES = {scene.__name__: scene for scene in (
    pool_once, pool_freed_last, pool_by_default, pool_not_the_program_s, pool_descriptors, pool_without_shim,
    pool_attributes)}


# Scenes that ask nothing of the exporter's stack but that its blocks can be opened under rmmshim.
FOR_ANY_STACK = ["sizes", "three", "handles", "counts", "base_and_offset", "held", "held_back", "late_work",
                 "without_settings", "exporter_dies", "damaged", "files_closed", "importer_closes_files",
                 "held_as_cuda_free", "contexts", "again_and_again", "resets", "many", "storm", "churn",
                 "short_of_files", "events"]


def arguments_under(name, stack):
    """What a scene is told of that stack: it has no handles of the driver's, and an import of a pool's is freed."""
    if name == "again_and_again" and stack in POOLED.values():
        return {"frees": 2}
    return {"capable": 0} if name == "sizes" else {}


def under(start, stack):
    """`start`, with that stack wherever a scene asks for POOL's."""
    def start_under(settings, shim=True, **how):
        if "RMM_POOL_SIZE" in settings:
            settings = {**{name: value for name, value in settings.items() if name != "RMM_POOL_SIZE"}, **stack}
        return start(settings, shim=shim, **how)
    return start_under
