# SPDX-License-Identifier: Apache-2.0
"""Processes that share device memory (ipc_scenes.py), on the device in host memory."""
import functools
import itertools
import subprocess

import ipc_scenes
import support

ALL_SCENES = {**ipc_scenes.SCENES, **ipc_scenes.MAPPED_SCENES, **ipc_scenes.POOLED_SCENES}
PEERS = ("ipc_peer", "ipc_peer_shared", "ipc_peer_static")
STACKS = [
    {"RMM_POOL_SIZE": "64MiB", "RMM_FREE": "wait"},
    {"RMM_POOL_SIZE": "64MiB", "RMM_FREE": "immediate"},
    {"RMM_POOL_SIZE": "64MiB", "RMM_BINNING": "256KiB-4MiB"},
    {"RMM_ARENA_SIZE": "128MiB"},
    {"RMM_RESOURCE": "fixed_size(cuda, block_size=8MiB, blocks_to_preallocate=4)"},
    {"RMM_POOL_SIZE": "64MiB", "RMM_STATISTICS": "json:/dev/null", "RMM_LIMIT": "4GiB"},
    {"RMM_POOL_SIZE": "64MiB", "HOSTCUDA_DRIVER_VERSION": "11040"},
    {"RMM_RESOURCE": "poison(pool(cuda))"},
    {"RMM_RESOURCE": "cuda"},
]


class Ipc(support.Test):
    def start(self, settings, shim=True, program="ipc_peer", more=None, prefix=()):
        environment = support.environment(settings, None if shim else [], more=more)
        peer = ipc_scenes.Peer([*prefix, support.program(program)], environment)
        self.addCleanup(peer.clean_up)
        return peer

    def play(self, name, *arguments, **how):
        ALL_SCENES[name](functools.partial(self.start, **how), *arguments)

    def play_under(self, name, stack):
        ipc_scenes.SCENES[name](ipc_scenes.under(self.start, stack), **ipc_scenes.arguments_under(name, stack))

    def needs(self, prefix):
        """A command to start another with, where that is permitted."""
        if subprocess.run(prefix + ["true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("not permitted here: %s" % " ".join(prefix))
        return prefix

    def stranger(self, prefix, reason):
        """An importer that is started by that command is refused, and told why."""
        exporter = self.start(ipc_scenes.POOL)
        handle = exporter.share("x", 1 << 18, 1)
        importer = self.start({}, prefix=self.needs(prefix))
        importer.refuses(ipc_scenes.NOT_PERMITTED, "open", "x", 1 << 18, handle)
        importer.refuses(ipc_scenes.NOT_PERMITTED, "open", "x", 1 << 18, handle)
        self.assertEqual(len(importer.lines), 1, importer.lines)
        self.assertIn(reason, importer.lines[0])

    def test_other_user(self):
        self.stranger(["setpriv", "--reuid=65534", "--clear-groups"], "not allowed to access the process")

    def test_privileged_process_of_another_user(self):
        exporter = self.start(ipc_scenes.POOL, prefix=self.needs(["setpriv", "--reuid=65534", "--clear-groups"]))
        importer = self.start({})
        importer.refuses(ipc_scenes.NOT_PERMITTED, "open", "x", 1 << 18, exporter.share("x", 1 << 18, 1))
        self.assertIn("not allowed to access the process", importer.lines[0])

    def test_other_process_namespace(self):
        self.stranger(["unshare", "--pid", "--fork", "--mount-proc"], "another PID namespace")

    def test_opened_in_two_contexts(self):
        """Which a driver may refuse; this one gives the same address."""
        a, b = self.start(ipc_scenes.POOL), self.start(ipc_scenes.POOL)
        size = 256 << 10
        b.ask("open", "wall", size, a.share("wall", size, 7))
        handle = a.share("x", size, 1)
        for end in ("close", "pop_context"):
            b.ask("open", "first", size, handle)
            b.ask("push_context")
            b.ask("open", "second", size, handle)
            self.assertEqual(b.ask("compare", "first", "second"), "same")
            if end == "close":
                b.ask("close", "second")
            b.ask("pop_context")
            self.assertEqual(ipc_scenes.range_of(b, "first", 9)[:2], (0, size))
            a.ask("view", "old" + end, "x", 0, size)
            a.ask("free", "x")
            ipc_scenes.settle(a)
            self.assertFalse(ipc_scenes.reuses(a, "y" + end, "old" + end))
            b.ask("check", "first", 1)
            b.ask("close", "first")
            handle = a.share("x", size, 1)

    def test_driver_that_tells_nothing_of_opened_memory(self):
        exporter = self.start(ipc_scenes.POOL)
        importer = self.start({"HOSTCUDA_FAULT": "cuPointerGetAttribute:code=1;cuMemGetAddressRange_v2:code=500"})
        handles = [exporter.share("x%d" % turn, 1 << 18, turn) for turn in range(2)]
        for turn in range(2):
            importer.ask("open", "x%d" % turn, 1 << 18, handles[turn])
        for turn in range(2):
            importer.ask("check", "x%d" % turn, turn)
            importer.ask("close", "x%d" % turn)

    def test_refusals_of_the_driver(self):
        """The exporter's program gets the driver's error, and a handle when it asks again."""
        for stack, calls in (("virtual", ("cuMemRetainAllocationHandle", "cuMemExportToShareableHandle")),
                             ("async", ("cuMemPoolExportToShareableHandle", "cuMemPoolExportPointer"))):
            settings = {**ipc_scenes.MAPPED, **ipc_scenes.POOLED}[stack]
            for call, code in itertools.product(calls, (ipc_scenes.OUT_OF_MEMORY, 999)):
                with self.subTest("%s %d" % (call, code)):
                    exporter = self.start(dict(settings, HOSTCUDA_FAULT="%s:count=1:code=%d" % (call, code)))
                    importer = self.start({})
                    exporter.ask("allocate", "x", 1 << 20)
                    exporter.ask("fill", "x", 1)
                    exporter.refuses(code, "export", "x")
                    importer.ask("open", "x", 1 << 20, exporter.ask("export", "x"))
                    importer.ask("check", "x", 1)
                    self.assertFalse(importer.lines)

    def test_older_driver_that_may_not_take_back_what_can_be_shared(self):
        for version in ("11040", "12090"):
            old = {"HOSTCUDA_DRIVER_VERSION": version}
            self.play("refused", "async", more=old)
            exporter, importer = self.start({**ipc_scenes.SHARED_POOL, **old}), self.start(old)
            importer.ask("open", "x", 1 << 20, exporter.share("x", 1 << 20, 1))
            importer.ask("check", "x", 1)

    def test_driver_that_does_not_tell_the_context_s_id(self):
        """Mapped memory stays while the program has it open, if the driver fails to tell of the context for once."""
        exporter = self.start(ipc_scenes.MAPPED["virtual"])
        handles = [exporter.share("x%d" % turn, 1 << 18, turn) for turn in range(2)]
        for nth in range(1, 9):
            importer = self.start({"HOSTCUDA_FAULT": "cuCtxGetId:nth=%d:count=1:code=999" % nth})
            for turn in range(2):
                importer.ask("open", "x%d" % turn, 1 << 18, handles[turn])
            for turn in range(2):
                importer.ask("check", "x%d" % turn, turn)
                importer.ask("close", "x%d" % turn)

    def test_data_under_every_stack(self):
        for settings in STACKS:
            with self.subTest(str(settings)):
                self.play("sizes", settings)

    def test_held_under_every_stack(self):
        for settings in STACKS[:3] + STACKS[5:6]:
            with self.subTest(str(settings)):
                self.play("held", "close", settings)

    def test_ends_of_importers(self):
        for end in ("kill", "kill, with a child", "exit", "reset"):
            with self.subTest(end):
                self.play("held", end)

    def test_runtimes(self):
        names = ("sizes", "handles", "counts", "base_and_offset", "without_shim", "dedicated")
        for program, name in support.pairs(PEERS[1:], names):
            with self.subTest("%s, %s" % (name, program)):
                self.play(name, program=program)


def add_scene(name):
    setattr(Ipc, "test_" + name, lambda self: self.play(name))


def add_scene_under(name, kind, stack):
    setattr(Ipc, "test_%s_%s" % (name, kind), lambda self: self.play_under(name, stack))


for scene in ALL_SCENES:
    add_scene(scene)
for scene in ipc_scenes.FOR_ANY_STACK:
    add_scene_under(scene, "virtual", ipc_scenes.MAPPED["virtual"])
    add_scene_under(scene, "async", ipc_scenes.POOLED["async"])
for scene in ("sizes", "handles", "held", "many", "storm"):
    add_scene_under(scene, "pool_of_virtual", ipc_scenes.MAPPED["pool_of_virtual"])
    add_scene_under(scene, "pool_of_async", ipc_scenes.POOLED["pool_of_async"])


if __name__ == "__main__":
    support.main()
