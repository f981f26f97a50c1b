# SPDX-License-Identifier: Apache-2.0
"""Leak reports and memory mistakes: programs with one of each, whose right place is named, and right
programs, which stay silent and compute the same."""
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import unittest

import support
from support import run

BYTES = 100000
POOL = {"RMM_POOL_SIZE": "64MiB"}
# What a program does is seen at once where its frees wait.
POISON = {"RMM_RESOURCE": "poison(pool(cuda))", "RMM_FREE": "wait"}
RACE = {"HOSTCUDA_RACE": "1", "HOSTCUDA_RACE_OWNER": "librmmshim.so"}

PYTHON_PROGRAM = """\
import ctypes, sys, threading
cuda = getattr(ctypes, sys.argv[1])(sys.argv[2])

def keep(count):
    block = ctypes.c_void_p()
    assert cuda.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(count)) == 0
    return block

def step():
    try:
        raise KeyError("pending")
    except KeyError:
        return [keep(1000 + i) for i in range(4)]

class Step:
    def __del__(self):
        print("collected")

for count in range(200):
    cycle = Step()
    cycle.itself = cycle
del cycle
blocks = step()
thread = threading.Thread(target=keep, args=(5000,))
thread.start()
thread.join()
assert cuda.cudaFree(blocks.pop()) == 0
print("done")
"""

PYTHON_FREES_TWICE = """\
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def make():
    block = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1000)) == 0
    return block
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context := ctypes.c_void_p()), 0) == cuda.cuCtxSetCurrent(context) == 0
block = make()
assert (cuda.cuMemFree_v2(block), cuda.cuMemFree_v2(block)) == (0, 1)
"""

# It says itself who called, for each size.  Code is made and dropped again and again, so that its parts lie
# where those of other code lay.
PYTHON_KEEP = """\
import ctypes, json, sys
cuda = getattr(ctypes, sys.argv[1])(sys.argv[2])
callers = {}

def said(frame):
    lines = []
    while frame and len(lines) < 8:
        lines.append("%s:%d in %s" % (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return lines

def keep(count):
    callers[count] = said(sys._getframe()); assert cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(count)) == 0
"""
PYTHON_CALLERS = PYTHON_KEEP + """
class Module:
    def __init__(self, inner):
        self.inner = inner

    def __call__(self, count):
        if count % 2:
            return self.inner(count)
        return self.inner(
            count)

def each(counts):
    for count in counts:
        keep(count)
        yield count

deep = keep
for _ in range(6):
    deep = Module(deep)
for i in range(8):
    keep(100 + i)
    deep(200 + i)
    list(each([300 + i, 400 + i]))
    sorted([500 + i, 600 + i], key=lambda count: keep(count) or count)
for i in range(60):
    exec(compile("\\n" * (i % 3) + "def made_%d(count):\\n  pass\\n" % (i % 10) + "\\n" * (i % 7) + "  keep(count)\\nmade_%d(%d)"
                 % (i % 10, 1000 + i), "<cell %02d>" % (i % 20), "exec"))
for i in range(30):
    exec(compile("keep(%d)" % (3000 + i), "<part %02d>" % i, "exec"))
for i, name in enumerate(("n\xe4m\xe9", "\u540d\u524d", "\U00020000")):
    exec(compile("def %s(count):\\n  keep(count)\\n%s(%d)" % (name, name, 2000 + i), "/" + name + ".py", "exec"))
    exec(compile("keep(%d)" % (2100 + i), "/" + name + ".py", "exec"))
json.dump(callers, sys.stdout)
"""

# All are among the first calls, which make the library trust the interpreter's structures or not.
PYTHON_NAMES = PYTHON_KEEP + """
def call(name, deep, count):
    made = {"keep": keep}
    exec(compile("def f0(n): keep(n)\\n" + "".join("def f%d(n): f%d(n)\\n" % (i + 1, i) for i in range(deep)), name, "exec"), made)
    made["f%d" % deep](count)

for i in range(12):
    call("/" + "d" * 300 + "/%d.py" % i, 8, 100 + i)
    call("/" + "d" * 900 + "/%d.py" % i, 1, 200 + i)
    call("/" + "d" * 700 + "\\xe9" * 100 + "\\u540d/%d.py" % i, 1, 300 + i)
    call("/" + "\\u540d" * 300 + "/%d.py" % i, 1, 400 + i)
    call("/\\udcff/\\n%d.py" % i, 1, 500 + i)
json.dump(callers, sys.stdout)
"""

# Makes Py_GetVersion return another version: mov TEXT, %rax; ret.
PYTHON_PRETENDS = """\
import ctypes, mmap, struct, sys
function = ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value
text = ctypes.create_string_buffer(sys.argv[3].encode())
code = b"\\x48\\xb8" + struct.pack("<Q", ctypes.addressof(text)) + b"\\xc3"
page = function & -mmap.PAGESIZE
if ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * mmap.PAGESIZE), 7) != 0:
    sys.exit(77)
ctypes.memmove(function, code, len(code))
""" + PYTHON_KEEP + """
for i in range(20):
    keep(100 + i)
json.dump(callers, sys.stdout)
"""

# In the other interpreter, where the same thread runs, the caller may not be known: the thread has two states.
PYTHON_INTERPRETERS = """\
import sys
if sys.version_info >= (3, 13):
    import _interpreters
    shared = ["legacy"], {}
else:
    import _xxsubinterpreters as _interpreters
    shared = [], {"isolated": False} if sys.version_info >= (3, 9) else {}
""" + PYTHON_KEEP + """
within = '''
import ctypes
cuda = getattr(ctypes, %r)(%r)
for i in range(10):
    assert cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(%%d + i)) == 0
''' % tuple(sys.argv[1:])

def inside(first):
    other = _interpreters.create(*shared[0], **shared[1])
    _interpreters.run_string(other, within % first)
    if sys.argv[1] == "PyDLL":
        keep(first + 50)
    _interpreters.destroy(other)
    for i in range(10):
        callers[first + i] = []

inside(100)
for i in range(10):
    keep(300 + i)
inside(500)
keep(700)
json.dump(callers, sys.stdout)
"""

# Containers may forbid process_vm_readv: load the number, compare it, EPERM, all others are allowed.
PYTHON_FORBIDDEN = """\
import ctypes, platform, struct, sys
number = {"x86_64": 310, "aarch64": 270}[platform.machine()]
filter = b"".join(struct.pack("<HBBI", *row) for row in
                  ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)))
kept = ctypes.create_string_buffer(filter)
program = ctypes.create_string_buffer(struct.pack("<H6xQ", 4, ctypes.addressof(kept)))
libc = ctypes.CDLL(None)
if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program, 0, 0) != 0:
    sys.exit(77)
""" + PYTHON_KEEP + """
for i in range(20):
    keep(100 + i)
json.dump(callers, sys.stdout)
"""

# Greenlets run by turns on one stack, to which their frames are copied, and each has Python frames of its own.
PYTHON_GREENLETS = PYTHON_KEEP + """
import threading
from greenlet import getcurrent, greenlet

def deep(levels, function):
    return deep(levels - 1, function) if levels else function()

def work(number, rounds):
    for i in range(rounds):
        deep((number + i) % 17, lambda: keep(number * 1000 + 2 * i))
        home.switch()
        keep(number * 1000 + 2 * i + 1)
        home.switch()

def turns(first):
    global home
    home = getcurrent()
    greenlets = [greenlet(work) for _ in range(20)]
    for i, one in enumerate(greenlets):
        one.switch(first + i, 40)
    while any(not one.dead for one in greenlets):
        for i, one in enumerate(greenlets):
            if not one.dead:
                deep(i % 5, one.switch)
    keep(first * 1000 + 100)

turns(1)
thread = threading.Thread(target=turns, args=(101,))
thread.start()
thread.join()
json.dump(callers, sys.stdout)
"""

# A handler may have interrupted the interpreter, but not where the thread has let go of Python's lock.  One of
# sysv_signal runs with its signal not blocked.
PYTHON_HANDLER = PYTHON_KEEP + """
import signal
libc = ctypes.PyDLL(None)
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: keep(200 + number))
for i in range(10):
    keep(100 + i)
libc.signal(signal.SIGUSR1, handler)
libc.kill(libc.getpid(), signal.SIGUSR1)
libc.sysv_signal(signal.SIGHUP, handler)
libc.kill(libc.getpid(), signal.SIGHUP)
if sys.argv[1] == "PyDLL":
    callers[200 + signal.SIGUSR1] = callers[200 + signal.SIGHUP] = []
keep(300)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
keep(301)
json.dump(callers, sys.stdout)
"""

# The first calls make the library trust the interpreter's structures.
PYTHON_LENGTHS = """\
import ctypes, sys
cuda = getattr(ctypes, sys.argv[1])(sys.argv[2])

def keep(count):
    assert cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(count)) == 0

for i in range(20):
    keep(100)
for character in "f", "\xe9", "\u540d", "\U00020000":
    for length in 100, 1024, 1025, 2048, 100000:
        exec(compile("keep(100)", length * character, "exec"))
print("done")
"""


def with_greenlets():
    """An interpreter that has them, in the tree's own environment (scripts/setup) if not this one; or None."""
    tree = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    for path in sys.executable, os.path.join(tree, ".venv", "bin", "python3"):
        if os.path.exists(path) and subprocess.run([path, "-c", "import greenlet"], stderr=subprocess.DEVNULL,
                                                   check=False).returncode == 0:
            return path
    return None


def interpreters():
    """This one, and each other version that is installed as python3.N."""
    found = {sys.version_info[:2]: sys.executable}
    for minor in range(8, 15):
        path = shutil.which("python3.%d" % minor)
        if path and subprocess.run([path, "-c", "import ctypes, json"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            found.setdefault((3, minor), path)
    return found


class Programs(support.Test):
    programs = ("debug_blocks_shared", "debug_blocks_static")

    def scene(self, name, scene, settings, **how):
        result = run([support.program(name), scene], settings, **how)
        self.assertEqual(result.status, 0, result)
        self.assertTrue(result.stdout.endswith(scene + " is done\n"), result)
        return result


class Leaks(Programs):
    def report(self, name, scene, settings):
        path = self.path("leaks.json")
        result = self.scene(name, scene, dict(settings, RMM_TRACKING="json:" + path))
        self.assertEqual(result.stderr, "")
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def test_a_program_shows_exactly_its_leaks(self):
        for name in self.programs:
            for settings in ({}, POOL, {"RMM_RESOURCE": "tracking(pool(cuda))"}, POISON):
                for scene in ("leaks", "leaks_and_resets"):
                    with self.subTest("%s %s under %s" % (name, scene, settings)):
                        self.check_leaks(name, scene, settings)

    def check_leaks(self, name, scene, settings):
        report = self.report(name, scene, settings)
        self.assertEqual(report["schema"], 1)
        self.assertEqual(report["others"], {"bytes": 0, "blocks": 0})
        self.assertEqual(len(report["leaks"]), 1)
        leak = report["leaks"][0]
        self.assertEqual((leak["device"], leak["kind"]), (0, "device"))
        self.assertEqual((leak["bytes"], leak["blocks"]), (6 * BYTES + BYTES + 1, 4))
        self.assertEqual(leak["more"], {"call_sites": 0, "bytes": 0, "blocks": 0})
        sites = leak["call_sites"]
        self.assertEqual([(site["bytes"], site["blocks"]) for site in sites],
                         [(6 * BYTES, 3), (BYTES + 1, 1)])
        for site, function in zip(sites, ("forgets_three", "forgets_one")):
            self.assertEqual(site["context_ended"], scene == "leaks_and_resets")
            self.assertEqual(site["python"], [])
            # Where the runtime is in the program itself, its frames are the program's.
            frames = [frame for frame in site["frames"] if frame["function"] != "cudaMalloc"]
            functions = [frame["function"].split(".")[0] for frame in frames]  # gcc's clones have suffixes
            self.assertEqual(functions[0], function)
            self.assertIn("main", functions[1:4])
            self.assertEqual(frames[0]["object"], name)
            for frame in site["frames"]:
                self.assertNotIn("rmmshim", frame["object"])
                self.assertNotIn("libcudart", frame["object"])

    def test_text_names_the_function_first(self):
        result = self.scene("debug_blocks_shared", "leaks", dict(POOL, RMM_TRACKING="1"))
        lines = result.stderr.splitlines()
        self.assertRegex(lines[0], r"^rmmshim\[\d+\]: debug_blocks_shared, device 0: leaked 684 KiB in 4 blocks "
                                   r"from 2 call sites$")
        self.assertEqual(lines[1], "  586 KiB in 3 blocks, allocated at")
        self.assertRegex(lines[2], r"^    forgets_three[.\w]*\+0x[0-9a-f]+ \(debug_blocks_shared\+0x[0-9a-f]+\)$")

    def test_a_program_that_frees_all_has_no_leaks(self):
        """Which is said, as text; not where nothing was looked at."""
        for name in self.programs:
            for settings in ({"RMM_TRACKING": "1"}, dict(POOL, RMM_TRACKING="text"),
                             dict(POOL, RMM_TRACKING="1", RMM_PINNED_POOL_SIZE="1MiB")):
                result = self.assert_same([support.program(name), "right"], settings, silent=False)
                blocks = 120 if "RMM_PINNED_POOL_SIZE" in settings else 80
                self.assertRegex(result.stderr, r"^rmmshim\[\d+\]: %s: no leaks: all %d blocks were freed(; \S+ [KM]iB "
                                                r"not served by rmmshim was not checked)?\n$" % (name, blocks))
            self.assert_same([support.program(name), "right"], dict(POOL, RMM_TRACKING="json:" + os.devnull))
        self.assert_same(["true"], dict(POOL, RMM_TRACKING="1"))

    def test_blocks_of_a_pushed_resource_without_tracking_are_counted(self):
        for count, said in ((1, "1 block from resources without tracking was not freed"),
                            (2, "2 blocks from resources without tracking were not freed")):
            result = run([support.program("memory_steps"), "push", "statistics(cuda)"] + count * ["device", "1"],
                         dict(POOL, RMM_TRACKING="1"))
            self.assertRegex(result.stderr, r"memory_steps: no leaks among tracked allocations; %s\n$" % said)
        result = run([support.program("memory_steps"), "push", "statistics(cuda)"], dict(POOL, RMM_TRACKING="1"))
        self.assertRegex(result.stderr, r"memory_steps: leaks were not looked for, because rmmshim served no allocation \(if it ")

    def test_memory_that_was_not_checked_is_said(self):
        result = run([support.program("memory_steps"), "device", "1", "free", "managed", "2"], dict(POOL, RMM_TRACKING="1"))
        self.assertRegex(result.stderr, r"no leaks: 1 block was freed; 2\.00 MiB not served by rmmshim was not checked\n$")

    def test_without_stacks_only_amounts(self):
        result = self.scene("debug_blocks_shared", "leaks", {"RMM_RESOURCE": "tracking(pool(cuda))"})
        self.assertIn("684 KiB in 4 blocks from 1 call site\n", result.stderr)
        self.assertIn("in 4 blocks, allocated at an unknown place", result.stderr)
        result = self.scene("debug_blocks_shared", "leaks",
                            {"RMM_RESOURCE": "tracking(pool(cuda))", "RMM_TRACKING": "0"})
        self.assertEqual(result.stderr, "")

    def test_pinned_memory_is_told_apart(self):
        path = self.path("leaks.json")
        result = run([support.program("life_runtime_shared"), "plain", "live"],
                     dict(POOL, RMM_PINNED_POOL_SIZE="1MiB", RMM_TRACKING="json:" + path))
        self.assertEqual(result.status, 0, result)
        with open(path, encoding="utf-8") as file:
            leaks = json.load(file)["leaks"]
        self.assertEqual([(leak["kind"], leak["blocks"]) for leak in leaks], [("device", 16)])

    def test_the_first_allocation_has_no_frames_of_ours(self):
        """A shared runtime asks the driver for it, through our function: it is the same call site."""
        result = run([support.program("life_runtime_shared"), "leave"], dict(POOL, RMM_TRACKING="1"))
        self.assertIn("in 16 blocks from 1 call site\n", result.stderr, result)
        self.assertNotIn("librmmshim", result.stderr, result)

    def test_the_library_under_another_name(self):
        copy = self.path("shim.so")
        shutil.copy(support.SHIM, copy)
        result = run([support.program("life_runtime_shared"), "leave"], dict(POOL, RMM_TRACKING="1"), preload=[copy])
        self.assertIn("in 16 blocks from 1 call site\n", result.stderr, result)
        self.assertNotIn("shim.so", result.stderr, result)

    def test_forked_children_and__exit_report_nothing(self):
        result = run([support.program("life_runtime_shared"), "leave", "_exit"], dict(POOL, RMM_TRACKING="1"))
        self.assertEqual((result.status, result.stderr), (5, ""), result)
        path = self.path("leaks.%p.json")
        result = run([support.program("life_runtime_shared"), "fork_after"],
                     dict(POOL, RMM_TRACKING="json:" + path))
        self.assertEqual(result.status, 0, result)
        self.assertEqual(len(os.listdir(self.folder)), 1)

    def test_an_unwritable_path_is_one_line(self):
        result = self.scene("debug_blocks_shared", "leaks",
                            dict(POOL, RMM_TRACKING="json:" + self.path("no/where")))
        self.assertEqual(len(result.stderr.splitlines()), 1, result)
        self.assertIn("RMM_TRACKING", result.stderr)


@unittest.skipIf(support.PRELOAD_FIRST, "the interpreter is not built with sanitizers")
class Python(support.Test):
    """Bindings keep Python's lock during a call (PyDLL) or let go of it (CDLL, as most do)."""

    INTERPRETERS = interpreters()

    def each(self, check, *arguments):
        for version, interpreter in self.INTERPRETERS.items():
            for binding in "PyDLL", "CDLL":
                with self.subTest("3.%d, %s" % (version[1], binding)):
                    check(interpreter, binding, *arguments)

    def command(self, interpreter, script, binding, *more):
        return [interpreter, script, binding, os.path.join(support.HOSTCUDA, "libcudart.so"), *more]

    def test_python_frames(self):
        script, path = self.path("train.py"), self.path("leaks.json")
        with open(script, "w", encoding="utf-8") as file:
            file.write(PYTHON_PROGRAM)
        numbers = {text.strip(): number for number, text in enumerate(PYTHON_PROGRAM.splitlines(), 1)}
        called = next(number for text, number in numbers.items() if "cudaMalloc" in text)
        stepped = next(number for text, number in numbers.items() if "1000 + i" in text)
        def check(interpreter, binding):
            command = self.command(interpreter, script, binding)
            plain = support.run_plain(command)
            result = run(command, dict(POOL, RMM_TRACKING="json:" + path))
            self.assertEqual(result.outcome, plain.outcome, result)
            self.assertEqual((result.status, result.stderr), (0, ""), result)
            with open(path, encoding="utf-8") as file:
                leak, = json.load(file)["leaks"]
            self.assertEqual((leak["bytes"], leak["blocks"]), (3003 + 5000, 4))
            by_python = {}
            for site in leak["call_sites"]:
                entry = by_python.setdefault(tuple(site["python"][:3]), [0, 0])
                entry[0] += site["bytes"]
                entry[1] += site["blocks"]
            frame = "%s:%d in keep" % (script, called)
            for lines, amounts in by_python.items():
                self.assertEqual(lines[0], frame)
                if amounts[1] == 3:
                    self.assertTrue(lines[1].startswith("%s:%d in " % (script, stepped)), lines)
            self.assertEqual(sorted(by_python.values()), [[3003, 3], [5000, 1]], by_python)

        self.each(check)

    def test_names_of_any_length(self):
        script = self.path("long.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(PYTHON_LENGTHS)

        def check(interpreter, binding):
            result = run(self.command(interpreter, script, binding), dict(POOL, RMM_TRACKING="json:" + os.devnull))
            self.assertEqual((result.status, result.stdout, result.stderr), (0, "done\n", ""), result)

        self.each(check)

    def test_each_block_has_its_callers(self):
        for folder in ".", "j\xfcrgen \u540d \U00020000":
            self.each(self.assert_callers, PYTHON_CALLERS, folder)

    def test_long_names(self):
        self.each(self.assert_callers, PYTHON_NAMES)

    def test_beside_another_interpreter(self):
        self.each(self.assert_callers, PYTHON_INTERPRETERS, ".", ("<string>:5 in <module>",))

    def test_in_a_signal_handler(self):
        self.each(self.assert_callers, PYTHON_HANDLER)

    def test_where_reading_by_the_kernel_is_forbidden(self):
        self.each(self.assert_callers, PYTHON_FORBIDDEN)

    def test_in_greenlets(self):
        interpreter = with_greenlets()
        if not interpreter:
            self.skipTest("no interpreter has greenlets")
        for binding in "PyDLL", "CDLL":
            with self.subTest(binding):
                self.assert_callers(interpreter, binding, PYTHON_GREENLETS)

    @unittest.skipIf(platform.machine() != "x86_64", "it makes a function return something else")
    def test_an_interpreter_of_another_kind_names_nobody(self):
        script, path = self.path("pretends.py"), self.path("leaks.json")
        with open(script, "w", encoding="utf-8") as file:
            file.write(PYTHON_PRETENDS)
        for version, interpreter in self.INTERPRETERS.items():
            for minor in range(7, 16):
                if minor == version[1] or {minor, version[1]} <= {8, 9, 10}:  # these are alike
                    continue
                with self.subTest("3.%d as 3.%d" % (version[1], minor)):
                    result = run(self.command(interpreter, script, "CDLL", "3.%d.1" % minor),
                                 dict(POOL, RMM_TRACKING="json:" + path))
                    self.assertEqual((result.status, result.stderr), (0, ""), result)
                    with open(path, encoding="utf-8") as file:
                        leak, = json.load(file)["leaks"]
                    self.assertEqual([site["python"] for site in leak["call_sites"]], [[]] * len(leak["call_sites"]))

    def assert_callers(self, interpreter, binding, program, folder=".", inside=()):
        """`inside`: how the other interpreter's blocks may be named, or not at all."""
        script, path = self.path(os.path.join(folder, "callers.py")), self.path("leaks.json")
        os.makedirs(os.path.dirname(script), exist_ok=True)
        with open(script, "w", encoding="utf-8") as file:
            file.write(program)
        result = run(self.command(interpreter, script, binding), dict(POOL, RMM_TRACKING="json:" + path))
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        expected, found = {}, {}
        for count, lines in json.loads(result.stdout).items():
            entry = expected.setdefault(tuple(re.sub("[\udc00-\udfff]", "???", line).replace("\n", "?")
                                              for line in lines), [0, 0])
            entry[0] += int(count)
            entry[1] += 1
        with open(path, encoding="utf-8") as file:
            leak, = json.load(file)["leaks"]
        for site in leak["call_sites"]:
            lines = tuple(site["python"])
            entry = found.setdefault(() if lines == inside else lines, [0, 0])
            entry[0] += site["bytes"]
            entry[1] += site["blocks"]
        self.assertEqual(found, expected)


class Mistakes(Programs):
    def assert_named(self, scene, what, settings=None, function=None):
        for name in self.programs:
            result = self.scene(name, scene, dict(settings or POISON))
            self.assertEqual(len(result.said), 1, result)
            self.assertRegex(result.said[0], r"^poison: device 0: block 0x[0-9a-f]+ of %d bytes%s; the block was allocated at "
                             r"(?:cudaMalloc \S+, from )?%s \(debug_blocks\w*\+0x[0-9a-f]+\), from " % (BYTES, re.escape(what), function or scene))

    def test_a_byte_past_the_end(self):
        self.assert_named("writes_past_the_end", ": the program wrote past the block's end: byte %d is 0x77" % BYTES)
        for resource in ("poison(cuda)", "poison(managed)", "poison(pool(cuda), guard=512)"):
            self.assert_named("writes_past_the_end", ": the program wrote past the block's end: byte %d is 0x77" % BYTES,
                              dict(POISON, RMM_RESOURCE=resource))

    def test_before_the_beginning(self):
        self.assert_named("writes_before_the_beginning", ": the program wrote before the block's beginning: byte -4 is 0x77")

    def test_after_the_free(self):
        self.assert_named("writes_after_the_free", ": the program wrote into the freed block: byte 1000 is 0x77")

    def test_blocks_that_are_handed_out_again(self):
        """A block comes back to `poison` each time, whatever else keeps freed blocks."""
        for free in ("wait", "deferred"):
            self.assert_named("writes_long_after_the_free", ": the program wrote into the freed block: byte 1000 is 0x77",
                              {"RMM_RESOURCE": "poison(pool(cuda))", "RMM_FREE": free})

    def test_a_block_that_is_freed_twice(self):
        for free in ("wait", "deferred"):
            for resource in ("poison(pool(cuda))", "poison(cuda)", "statistics(poison(managed))"):
                self.assert_named("frees_twice", " was freed twice", {"RMM_RESOURCE": resource, "RMM_FREE": free})
        self.assertEqual(self.scene(self.programs[0], "frees_twice", POOL).said, [])

    def test_python_is_named(self):
        program = self.path("program.py")
        with open(program, "w", encoding="utf-8") as file:
            file.write(PYTHON_FREES_TWICE)
        result = run([sys.executable, program], POISON)
        self.assertEqual(result.status, 0, result)
        self.assertRegex(result.said[0], r"^poison: .* was freed twice; the block was allocated at \S+/program.py:5 in make, from "
                         r"\S+/program.py:8 in <module>$")

    def test_mistakes_are_counted(self):
        path = self.path("report.json")
        result = self.scene("debug_blocks_shared", "writes_past_the_end",
                            dict(POISON, RMM_STATISTICS="json:" + path))
        self.assertEqual(len(result.said), 1)
        with open(path, encoding="utf-8") as file:
            counters = {counter["name"]: counter["value"] for counter in json.load(file)["devices"][0]["counters"]
                        if counter["resource"] == "poison"}
        self.assertEqual([counters[name] for name in ("written_before", "written_past_end", "written_after_free",
                                                      "unchecked")], [0, 1, 0, 0])

    def test_abort(self):
        for option in ("abort=1", "on_error=abort"):
            for scene in ("writes_past_the_end", "frees_twice"):
                result = run([support.program("debug_blocks_shared"), scene],
                             dict(POISON, RMM_RESOURCE="poison(pool(cuda), %s)" % option))
                self.assertEqual(result.status, -6, result)
                self.assertEqual(len(result.said), 1)

    def test_right_programs_are_silent_and_compute_the_same(self):
        commands = [([support.program(name), "right"], RACE) for name in self.programs]
        # It frees in ways that the detector does not see; random programs (tests/fuzz) do not.
        commands.append(([support.program("sample_memory_mix_shared"), "--threads", "4", "--rounds", "400",
                          "--seed", "7", "mix"], None))
        for command, more in commands:
            for mode in ("wait", "deferred"):
                for resource in ("poison(pool(cuda))", "poison(cuda)", "poison(managed)",
                                 "poison(pool(cuda), keep=0)", "binning(poison(pool(cuda)))",
                                 "tracking(poison(pool(cuda)), stacks=1)"):
                    if resource.startswith("binning"):
                        resource = resource[:-1] + ", minimum_size=1KiB, maximum_size=32KiB)"
                    with self.subTest("%s under %s, %s" % (command, resource, mode)):
                        self.assert_same(command, {"RMM_RESOURCE": resource, "RMM_FREE": mode,
                                                   "RMM_PINNED_RESOURCE": "poison(pool(pinned, initial_size=1MiB))",
                                                   "RMM_TRACKING": "json:" + os.devnull}, more=more)


class NumaNodes(Programs):
    def test_pinned_memory_near_the_device(self):
        for numa in ("device", "0", "none"):
            self.assert_same([support.program("debug_blocks_shared"), "right"],
                             {"RMM_PINNED_RESOURCE": "pool(pinned(numa=%s))" % numa})


if __name__ == "__main__":
    support.main()
