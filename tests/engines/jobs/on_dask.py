"""A script that starts a Dask cluster whose workers use GPUs.

Usage: ``on_dask.py CLUSTER FRAMEWORK [LAUNCHER]``. CLUSTER is ``two_each`` for two workers, or ``local``, ``rotated``,
``one_each`` or ``dask_cuda`` for three. Worker 0 uses FRAMEWORK, and the others use ``toyflow``. Each worker sets the
variables of LAUNCHER after the import of its framework, like a library that trains in Dask's workers.
"""

import json
import os
import sys

import distributed
from taking import take, toyflow

ADDRESSES = [f"127.0.0.1:{port}" for port in (29510, 29511, 29512)]
LAUNCHERS = {
    "": lambda rank, size: {},
    "TF_CONFIG": lambda rank, size: {
        "TF_CONFIG": json.dumps({"cluster": {"worker": ADDRESSES[:size]}, "task": {"type": "worker", "index": rank}})
    },
    "Horovod": lambda rank, size: {"HOROVOD_LOCAL_RANK": str(rank), "HOROVOD_LOCAL_SIZE": str(size)},
}


def local():
    return distributed.LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None)


# CUDA_VISIBLE_DEVICES of each worker, keyed by cluster.
LISTS = {"rotated": ["0,1,2", "1,2,0", "2,0,1"], "one_each": ["1", "2", "0"], "two_each": ["0,1", "2,3"]}


def nannies(lists):
    place = {"nthreads": 1, "host": "127.0.0.1"}
    workers = {
        number: {"cls": distributed.Nanny, "options": {**place, "env": {"CUDA_VISIBLE_DEVICES": gpus}}}
        for number, gpus in enumerate(lists)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard": False, "host": "127.0.0.1"}}
    return distributed.SpecCluster(workers=workers, scheduler=scheduler)


def dask_cuda():
    import dask_cuda

    return dask_cuda.LocalCUDACluster(dashboard_address=None)


def compute(size, framework, launcher):
    given, number = os.environ.get("CUDA_VISIBLE_DEVICES"), distributed.get_worker().name
    mine = framework if number == 0 else "toyflow"
    if mine == "tensorflow":
        import tensorflow  # noqa: F401
    else:
        toyflow()
    os.environ.update(LAUNCHERS[launcher](number, size))
    take(22, mine)
    return {"pid": os.getpid(), "given": given}


# Workers are started by "spawn" and import this file.
if __name__ == "__main__":
    kind = sys.argv[1]
    made = nannies(LISTS[kind]) if kind in LISTS else globals()[kind]()
    with made as cluster, distributed.Client(cluster) as client:
        size = len(cluster.worker_spec)
        client.wait_for_workers(size, timeout=120)
        addresses = client.scheduler_info()["workers"]
        tasks = [client.submit(compute, size, *sys.argv[2:], workers=[each], pure=False) for each in addresses]
        print(json.dumps(client.gather(tasks)), flush=True)
        # The workers keep their GPUs until the test closes this script's input.
        sys.stdin.read()
