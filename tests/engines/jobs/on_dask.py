"""Starts a Dask cluster of three workers, of which each takes a GPU; ``on_dask.py local|nannies|dask_cuda FRAMEWORK``.

The worker with the number 0 uses that framework.
"""

from __future__ import annotations

import json
import os
import sys

import distributed
from taking import take

ROTATED = ["0,1,2", "1,2,0", "2,0,1"]


def local():
    return distributed.LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None)


def nannies():
    place = {"nthreads": 1, "host": "127.0.0.1"}
    workers = {
        number: {"cls": distributed.Nanny, "options": {**place, "env": {"CUDA_VISIBLE_DEVICES": gpus}}}
        for number, gpus in enumerate(ROTATED)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard": False, "host": "127.0.0.1"}}
    return distributed.SpecCluster(workers=workers, scheduler=scheduler)


def dask_cuda():
    import dask_cuda

    return dask_cuda.LocalCUDACluster(dashboard_address=None)


def compute(framework, dask_worker):
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    take(0.1, framework if dask_worker.name == 0 else "toyflow")
    return {"pid": os.getpid(), "given": given}


# Workers are started by "spawn" and import this file.
if __name__ == "__main__":
    with globals()[sys.argv[1]]() as cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(3, timeout=120)
        # By each worker; a task would be done by any.
        print(json.dumps(list(client.run(compute, sys.argv[2]).values())), flush=True)
        # The workers keep their GPUs until the test has seen what it wants to see.
        sys.stdin.read()
