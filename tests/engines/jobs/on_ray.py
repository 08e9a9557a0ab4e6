"""A script that starts Ray, runs tasks on GPUs, reports their GPUs, and keeps them until its input ends.

- ``on_ray.py managed|unmanaged``: Ray manages four GPUs, or none.
- ``on_ray.py driver imports|computes told|counted``: the driver imports a framework, or computes with it, before it
  starts Ray with all GPUs. It passes their number (``told``), or Ray counts them (``counted``).
- ``on_ray.py subprocesses``: the tasks start programs, each of which is ``on_ray.py script``.
- ``on_ray.py out_of_memory``: the driver uses a framework, and ends by the error of an actor that runs out of memory.
- ``on_ray.py train WORKERS GPUS FRAMEWORK``: a TensorflowTrainer has WORKERS workers with GPUS GPUs each.
- ``on_ray.py torch WORKERS GPUS``: the workers of a TorchTrainer compute on the devices that Ray returns.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import ray
from taking import GIB, take, toyflow


def begin(**options):
    temporary = os.environ["FOLDER_OF_RAY"]
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, _temp_dir=temporary, **options)


def compute(gib=0.1, framework="toyflow", count="", more_gib=0):
    if count:
        os.environ["AUTOGPU_COUNT"] = count
    gpus = take(gib, framework, more_gib)
    ids = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    return {"pid": os.getpid(), "ids": ids, "gpus": len(gpus)}


class Actor:
    def compute(self, *arguments):
        return compute(*arguments)


Actors = ray.remote(Actor)


def actors(count, gib=0.1, **options):
    """Start actors one after another; return them and their reports. They keep their GPUs until they are killed."""
    made, told = [], []
    for _ in range(count):
        # If two were started at once, either could get the first GPU.
        made.append(Actors.options(**options).remote())
        told.append(ray.get(made[-1].compute.remote(gib)))
    return made, told


def free(made=()):
    """Kill actors, and wait until Ray has all GPUs back, including those of tasks that have just ended."""
    for actor in made:
        ray.kill(actor)
    deadline = time.monotonic() + 60
    while ray.available_resources().get("GPU") != 4:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.05)


def report(value):
    print(json.dumps(value), flush=True)


def managed():
    begin(num_gpus=4)
    # Ray ends the worker of ``once`` after one task, and reuses the worker of ``task``.
    once, task = ray.remote(max_calls=1)(compute), ray.remote(compute)
    made, told = actors(2, num_gpus=1)
    report(told)
    free(made)
    made, told = actors(2, 22, num_gpus=0.5)
    report(told)
    # The test checks the claims of the actors now.
    sys.stdin.readline()
    free(made)
    made, told = actors(2, num_gpus=1, runtime_env={"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}})
    report(told)
    free(made)
    report(ray.get([once.remote(), Actors.remote().compute.remote()]))
    report(ray.get(once.options(num_gpus=2).remote(count="all")))
    free()
    # Tasks made by ``options`` share one worker. The first task has GPU 1, because an actor has GPU 0.
    actor = Actors.options(num_gpus=1).remote()
    ray.get(actor.__ray_ready__.remote())
    first = ray.get(task.options(num_gpus=1).remote(framework="tensorflow"))
    free([actor])
    report([first, ray.get(task.options(num_gpus=0.5).remote(framework="tensorflow"))])


def script():
    """Take GPUs, report them, and keep them until the input ends. A task of Ray runs this as a program."""
    report({"pid": os.getpid(), "gpus": len(toyflow().take(round(22 * GIB)))})
    sys.stdin.read()


def starts_scripts(count):
    """Start programs and return their reports. This task itself uses no GPU."""
    command = [sys.executable, __file__, "script"]
    pipe = subprocess.PIPE
    started = []
    told = []
    for _ in range(count):
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        told.append(json.loads(started[-1].stdout.readline()))
    for each, script in zip(told, started):
        each["said"] = script.communicate(timeout=60)[1]
    return told


def subprocesses():
    """Run tasks that only start programs: a task without a GPU, one with half a GPU, and one with two."""
    begin(num_gpus=4, runtime_env={"env_vars": {"AUTOGPU_WAIT": "0"}})
    task = ray.remote(starts_scripts)
    for gpus, count in ((0, 1), (0.5, 2), (2, 2)):
        report(ray.get(task.options(num_gpus=gpus).remote(count)))
        free()


def unmanaged():
    begin(num_gpus=0)
    _, told = actors(2)
    report(told)


def out_of_memory():
    toyflow().take(GIB)
    begin(num_gpus=4)
    actor = Actors.options(num_gpus=0.5).remote()
    report([ray.get(actor.compute.remote())])
    ray.get(actor.compute.remote(0.1, "toyflow", "", 99))


def driver(use, count):
    if use == "computes":
        toyflow().take(GIB)
    else:
        toyflow()
    begin(**({"num_gpus": 4} if count == "told" else {}))
    _, told = actors(2, num_gpus=1)
    report([ray.cluster_resources()["GPU"], told])


def train_worker(config):
    """Take GPUs, report, and keep them until the driver has seen all reports and its input ends."""
    from ray import train

    place, rank = Path(config["place"]), train.get_context().get_world_rank()
    # TensorFlow allocates little: more than the free memory of a GPU that another process uses would be refused.
    told = compute(22 if config["framework"] == "toyflow" else 0.1, config["framework"])
    new = place / f"{rank}.new"
    new.write_text(json.dumps({"pid": os.getpid(), "ids": told["ids"], "gpus": told["gpus"], "rank": rank}))
    new.rename(place / f"{rank}.json")
    while not (place / "end").exists():
        time.sleep(0.05)


def train(workers, gpus, framework):
    from ray.train import RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    # The trainer imports TensorFlow in the workers before their function runs, and autogpu reads the policy then.
    begin(num_gpus=4, runtime_env={"env_vars": {"AUTOGPU_COUNT": "all"}})
    place = Path(os.environ["FOLDER_OF_RAY"]) / "told"
    place.mkdir()
    trainer = TensorflowTrainer(
        train_worker,
        train_loop_config={"place": str(place), "framework": framework},
        scaling_config=ScalingConfig(
            num_workers=int(workers), use_gpu=True, resources_per_worker={"CPU": 0.1, "GPU": float(gpus)}
        ),
        run_config=RunConfig(storage_path=str(place / "results")),
    )
    job = threading.Thread(target=trainer.fit)
    job.start()
    while len(list(place.glob("*.json"))) < int(workers) and job.is_alive():
        time.sleep(0.05)
    report([json.loads(file.read_text()) for file in sorted(place.glob("*.json"))])
    sys.stdin.read()
    (place / "end").touch()
    job.join()


def torch_worker(config):
    """Compute on the devices that Ray returns, report, and wait until all workers have reported."""
    import torch
    from ray import train
    from ray.train.torch import get_device, get_devices

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    tensors = [torch.ones(3, device=device) for device in get_devices()]
    told = {
        "pid": os.getpid(),
        "ids": ray.get_runtime_context().get_accelerator_ids()["GPU"],
        "device": str(get_device()),
        "devices": [str(tensor.device) for tensor in tensors],
        "visible": [visible, os.environ.get("CUDA_VISIBLE_DEVICES")],
    }
    Path(config["place"], str(train.get_context().get_world_rank())).write_text(json.dumps(told))
    torch.distributed.barrier()


def torch(workers, gpus):
    begin(num_gpus=4)
    # Imported after Ray's start, like the imports in a user's function that starts Ray.
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    place = Path(os.environ["FOLDER_OF_RAY"]) / "told"
    place.mkdir()
    TorchTrainer(
        torch_worker,
        train_loop_config={"place": str(place)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=int(workers), use_gpu=True, resources_per_worker={"CPU": 0.1, "GPU": float(gpus)}
        ),
        run_config=RunConfig(storage_path=str(place / "results")),
    ).fit()
    report([json.loads((place / str(rank)).read_text()) for rank in range(int(workers))])


globals()[sys.argv[1]](*sys.argv[2:])
if sys.argv[1] != "script":
    sys.stdin.read()
    ray.shutdown()
