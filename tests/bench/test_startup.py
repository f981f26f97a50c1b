# SPDX-License-Identifier: Apache-2.0
"""The driver calls that a program's start makes on the host-memory device, with the library and without:
none more before the first allocation, and a few when the pool is made."""
import os
import re
import subprocess
import sys

POOL_CALLS = 30 # of the first allocation, which makes the context's stack and the pool's memory


def calls(program, settings):
    done = subprocess.run([os.path.join(os.environ["PROGRAMS"], program), os.environ["EXPORTS"]],
                          stdout=subprocess.PIPE, env=dict(os.environ, **settings), timeout=300, check=True, text=True)
    return {step: int(count) for step, count in re.findall(r"^startup/(\w+) (\d+) calls$", done.stdout, re.M)}


def main():
    wrong = 0
    for program in ("startup_shared", "startup_static"):
        alone = calls(program, {})
        for settings in ({}, {"RMM_POOL_SIZE": "1GiB"}):
            preloaded = calls(program, dict(settings, LD_PRELOAD=os.environ["RMMSHIM_LIBRARY"]))
            allowed = dict(alone, first=alone["first"] + POOL_CALLS) if settings else alone
            good = alone["init"] > 0 and all(preloaded[step] <= allowed[step] for step in allowed)
            wrong += not good
            print(program, settings, preloaded, "without rmmshim", alone, "ok" if good else "TOO MANY")
    return 1 if wrong else 0


sys.exit(main())
