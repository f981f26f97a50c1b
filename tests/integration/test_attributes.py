# SPDX-License-Identifier: Apache-2.0
"""Attribute by attribute, blocks of every stack look as what the driver allocates by itself; what does
not is in tests/conformance/attribute_differences.txt, with its reason."""
import os
import sys

import support
from support import run, run_plain

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "conformance"))
import attribute_list  # noqa: E402  (found by the path above)

DEVICE = {"HOSTCUDA_MEMORY": "2GiB"}
PAGEABLE = dict(DEVICE, HOSTCUDA_PAGEABLE="1")


class Attributes(support.Test):
    maxDiff = None

    def compare(self, stacks, more):
        command = [support.program("attributes")]
        rows = attribute_list.read_list("host")
        plain = run_plain(command, more=more)
        self.assertEqual((plain.status, plain.stderr), (0, ""), plain)
        wrong = []
        for name, settings in stacks.items():
            served = run(command, settings, more=more)
            self.assertEqual(served.status, 0, "%s\n%s" % (name, served))
            wrong += attribute_list.unlisted(rows, name, plain.stdout, served.stdout)
        wrong += attribute_list.unseen(rows, stacks)
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong[:100]))

    def test_stacks(self):
        self.compare(attribute_list.STACKS, DEVICE)

    def test_memory_of_the_process(self):
        self.compare(attribute_list.PAGEABLE_STACKS, PAGEABLE)

    def test_a_free_takes_sync_memops_back(self):
        """Also from what the driver holds, which several blocks share: its copies are slower by it."""
        script = """if True:
            import ctypes
            cuda = ctypes.CDLL("libcuda.so.1")
            context, block, one = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint(1)
            cuda.cuPointerSetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
            cuda.hostcuda_call_count.restype = ctypes.c_ulong
            calls = lambda: cuda.hostcuda_call_count(b"cuPointerSetAttribute")
            assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
            assert not cuda.cuCtxSetCurrent(context)
            for wanted in (0, 1):
                assert not cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(5000))
                if wanted:
                    assert not cuda.cuPointerSetAttribute(ctypes.byref(one), 6, block)
                before = calls()
                assert not cuda.cuMemFree_v2(block)
                print(wanted, calls() - before)
            """
        result = run(["python3", "-c", script], {"RMM_POOL_SIZE": "64MiB"})
        self.assertEqual(result.outcome, (0, "0 0\n1 1\n"), result)

    def test_a_program_asks_all_that_there_is(self):
        """Each attribute of the header is in the program."""
        plain = run_plain([support.program("attributes"), "device"], more=DEVICE)
        asked = {words[3] for words, _ in attribute_list.answers(plain.stdout)}
        with open(os.path.join(os.environ["CUDA_INCLUDE"], "cuda.h"), encoding="utf-8") as file:
            text = file.read()
        begin = text.index("typedef enum CUpointer_attribute_enum")
        names = support.re.findall(r"CU_POINTER_ATTRIBUTE_(\w+) = \d+", text[begin:text.index("}", begin)])
        self.assertGreater(len(names), 15)
        self.assertEqual([name for name in names if name not in asked], [])


if __name__ == "__main__":
    support.main()
