# SPDX-License-Identifier: Apache-2.0
"""What the GPU tests in Python share."""
import ctypes
import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def load_compare():
    sys.dont_write_bytecode = True
    path = os.path.join(HERE, "..", "..", "scripts", "compare")
    loader = importlib.machinery.SourceFileLoader("compare", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare", loader))
    loader.exec_module(module)
    return module


compare = load_compare()


def device_count():
    """Real ones.  With RMMSHIM_DRY_RUN set the device in host memory will do."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if hasattr(driver, "hostcuda_call_count") and not os.environ.get("RMMSHIM_DRY_RUN"):
        return 0
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def has_gpu():
    return device_count() > 0


def run(command, setting, timeout, environment=None):
    return compare.run(command, setting, os.environ["RMMSHIM_LIBRARY"], timeout, environment,
                       os.environ.get("PRELOAD_FIRST", ""))


def tail(result, lines=6):
    """The end of what a run said, for messages."""
    text = result.stdout.decode(errors="replace").splitlines() + result.stderr.decode(errors="replace").splitlines()
    return ["    " + line for line in text[-lines:]]
