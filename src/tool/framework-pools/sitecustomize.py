# SPDX-License-Identifier: Apache-2.0
"""`rmmshim run --framework-pools off` puts this folder in front of PYTHONPATH, as CuPy has no variable for it:
when a program imports CuPy, its pools are switched off, and each array is an allocation that rmmshim serves.
The sitecustomize that Python would have found without this one runs as it would have.

For every Python that a program may start, so: nothing is imported that Python has not imported by now."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def switch_off(cupy):
    try:
        cupy.cuda.set_allocator(None)
        cupy.cuda.set_pinned_memory_allocator(None)
    except Exception as error:  # an unknown CuPy: the program runs with its pools
        sys.stderr.write("rmmshim: CuPy's memory pools stay on: %s: %s\n" % (type(error).__name__, error))


class Loader(object):
    """CuPy's own loader, but for what happens after it."""

    def __init__(self, loader):
        self.loader = loader

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        switch_off(module)


class Finder(object):
    """Finds CuPy where the finders behind it do."""

    def find_spec(self, name, path=None, target=None):
        if name != "cupy":
            return None
        for finder in sys.meta_path:
            spec = finder is not self and hasattr(finder, "find_spec") and finder.find_spec(name, path, target)
            if spec:
                if hasattr(spec.loader, "exec_module"):  # a folder without __init__.py has no such loader
                    spec.loader = Loader(spec.loader)
                return spec
        return None


def is_here(entry):
    return isinstance(entry, str) and os.path.abspath(entry) == HERE


def run_the_hidden_one():
    """The next sitecustomize; this module stands in for it where there is none, as Python looks for one."""
    this = sys.modules.pop(__name__)
    sys.path[:] = [entry for entry in sys.path if not is_here(entry)]
    try:
        __import__(__name__)
    except ImportError as error:
        if getattr(error, "name", __name__) != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, this)


sys.meta_path.insert(0, Finder())
run_the_hidden_one()
