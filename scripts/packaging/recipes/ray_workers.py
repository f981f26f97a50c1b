# SPDX-License-Identifier: Apache-2.0
import subprocess

import ray


def init_limited(limit, **more):
    library = subprocess.run(["rmmshim", "path"], check=True, capture_output=True, text=True).stdout.strip()
    ray.init(runtime_env={"env_vars": {"LD_PRELOAD": library, "RMM_LIMIT": limit}}, **more)
