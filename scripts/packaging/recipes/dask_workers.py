# SPDX-License-Identifier: Apache-2.0
import subprocess

import dask
from distributed import LocalCluster

ENVIRONMENT = "distributed.nanny.pre-spawn-environ"


def limited_cluster(limit, workers):
    library = subprocess.run(["rmmshim", "path"], check=True, capture_output=True, text=True).stdout.strip()
    dask.config.set({ENVIRONMENT: {**dask.config.get(ENVIRONMENT), "LD_PRELOAD": library, "RMM_LIMIT": limit}})
    return LocalCluster(n_workers=workers, threads_per_worker=1)
