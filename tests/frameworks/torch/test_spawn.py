"""PyTorch programs that only start workers, each of which takes one GPU."""

import pytest

from tests.gpusim import Gpu
from tests.support.framework_environments import TORCHES, each_other, torch, with_autogpu
from tests.support.framework_machines import BUSY, FOUR, GIB, IDLE, Installed, all_at_once

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("torch-spawn")]

# This program prints "imported", starts two workers at a line of input, prints their devices, and ends them at another
# line.
TWO = """
import os
import sys
import torch
import torch.multiprocessing as mp
{module_level}

def work(rank, answers, end):
    x = torch.ones(3, device={device})
    answers.put((rank, os.getpid(), str(x.device)))
    end.wait()

if __name__ == "__main__":
    print("imported", flush=True)
    sys.stdin.readline()
    {main}
    context = mp.get_context({method!r})
    answers, end = context.SimpleQueue(), context.Event()
    workers = {start}(work, (answers, end), nprocs=2, join=False, start_method={method!r})
    for rank, pid, device in sorted(answers.get() for _ in range(2)):
        print(pid, device, flush=True)
    sys.stdin.readline()
    end.set()
    while not workers.join():
        pass
"""

ASKS = 'assert torch.cuda.is_available(), "no GPU"'


def two(*, module_level="", main="", method="spawn", device='f"cuda:{rank}"'):
    start = "mp.spawn" if method == "spawn" else "mp.start_processes"
    return TWO.format(module_level=module_level, main=main, method=method, start=start, device=device)


def assert_they_have_a_gpu_each(machine, *scripts):
    """Start one job for each script in the same instant, and check that their workers have four different GPUs."""
    jobs = [machine.start(script) for script in scripts]
    gpus = []
    for job, first in zip(jobs, all_at_once(*jobs)):
        for rank, line in enumerate((first, job.line())):
            pid, _, device = line.partition(" ")
            assert device == f"cuda:{rank}"
            gpus += machine.server.contexts()[int(pid)]
    assert sorted(gpus) == [0, 1, 2, 3]
    for job in jobs:
        ran = job.end()
        assert ran.exit_status == 0, ran.stderr
    assert machine.claims() == {}


@pytest.mark.parametrize(
    "scripts",
    [
        pytest.param((two(), two(main=ASKS)), id="no-query-and-query-by-the-parent"),
        pytest.param((two(method="fork"), two(method="fork")), id="forked"),
        pytest.param(
            (two(module_level=ASKS), two(main="assert torch.cuda.device_count() == 4")),
            id="query-by-each-worker-and-count-by-the-parent",
        ),
    ],
)
def test_workers_of_two_jobs_that_start_at_once_have_four_gpus(scripts, machine_of):
    assert_they_have_a_gpu_each(machine_of("torch", *IDLE), *scripts)


@pytest.mark.parametrize("version", each_other(TORCHES))
def test_workers_of_two_jobs_have_four_gpus_with_older_pytorch(version, machine_of):
    machine = machine_of(Installed(with_autogpu(torch(version))), *IDLE)
    assert_they_have_a_gpu_each(machine, two(main=ASKS), two())


PARALLEL = """
import sys
import torch
print("imported", flush=True)
sys.stdin.readline()
model = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=[0, 1]).cuda()
print("made", flush=True)
sys.stdin.readline()
"""


def test_program_claims_as_many_gpus_as_its_dataparallel_names(machine_of):
    machine = machine_of("torch", *IDLE)
    assert all_at_once(*[machine.start(PARALLEL) for _ in range(2)]) == ["made", "made"]
    claimed = list(machine.claimed_bytes().values())
    assert [len(each) for each in claimed] == [2, 2]
    assert sorted(gpu for each in claimed for gpu in each) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("environ", "left"),
    [({}, {0, 1}), ({"AUTOGPU": "0"}, {2, 3})],
    ids=["contexts-of-a-job", "contexts-without-a-claim"],
)
def test_gpus_with_unused_contexts_stay_open_to_later_jobs(environ, left, machine_of):
    machine = machine_of("torch", *IDLE)
    script = PARALLEL.replace('print("made"', 'model(torch.ones(4, 2).cuda()).sum().backward()\nprint("made"')
    for options in (environ, {"AUTOGPU_BUSY": "error"}):
        job = machine.start(script, **options)
        assert all_at_once(job) == ["made"]
        assert job.contexts == [0, 1, 2, 3]
    assert machine.claimed_bytes()[job.pid] == dict.fromkeys(left, 24 * GIB)


# After DataParallel, this script puts tensors on the GPUs of device_ids.
WORKS = """
import torch
model = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids={ids})
kept = [torch.empty(1 << 20, dtype=torch.uint8, device=f"cuda:{{number}}") for number in model.device_ids]
print("made", flush=True)
input()
"""


@pytest.mark.parametrize(
    ("ids", "claimed", "used"),
    [
        pytest.param("[2, 3]", {3, 2}, [3, 2], id="last-two-gpus"),
        pytest.param("[1, 3]", {3, 2}, [3, 2], id="gap-between-two-gpus"),
        pytest.param("[2, 1]", {3, 2}, [3, 2], id="descending-numbers"),
        pytest.param("[2]", {3}, [3], id="one-gpu"),
        pytest.param("[0, 0]", {3}, [3], id="same-gpu-twice"),
        pytest.param("[0, 1, 2, 3]", {3}, [3, 2, 1, 0], id="all-gpus"),
    ],
)
def test_dataparallel_gets_idle_gpus_under_the_numbers_that_it_names(ids, claimed, used, machine_of):
    machine = machine_of("torch", *FOUR)
    job = machine.start(WORKS.format(ids=ids))
    assert job.line() == "made"
    (shown,) = machine.claimed_bytes().values()
    assert set(shown) == claimed
    assert [gpu for gpu, size in job.end().allocated.items() if size] == used


# The workers import PyTorch, and their parent process doesn't.
PLAIN = """
import multiprocessing
import os
import sys

def work(rank, answers, end):
    import torch
    x = torch.ones(3, device={device})
    answers.put((rank, os.getpid(), str(x.device)))
    end.wait()

if __name__ == "__main__":
    os.environ.update({environ})
    context = multiprocessing.get_context({method!r})
    answers, end = context.SimpleQueue(), context.Event()
    workers = [context.Process(target=work, args=(rank, answers, end)) for rank in range({count})]
    for worker in workers:
        worker.start()
    for rank, pid, device in sorted(answers.get() for _ in workers):
        print(pid, device, flush=True)
    sys.stdin.readline()
    end.set()
    for worker in workers:
        worker.join()
"""


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        pytest.param({"count": 4}, [[0], [1], [2], [3]], id="gpu-of-their-rank"),
        pytest.param({"method": "fork"}, [[0], [1]], id="forked"),
        pytest.param({"environ": {"CUDA_VISIBLE_DEVICES": "1,3,0"}}, [[1], [3]], id="list-set-by-the-script"),
        pytest.param({"device": '"cuda"'}, [[2], [3]], id="cuda-without-number-uses-idle-gpus"),
    ],
)
def test_workers_that_import_pytorch_number_gpus_as_without_autogpu(changes, gpus, machine_of):
    machine = machine_of("torch", *FOUR)
    fields = {"device": 'f"cuda:{rank}"', "method": "spawn", "count": 2, "environ": {}, **changes}
    job = machine.start(PLAIN.format(**fields), fresh=True)
    pids = [int(job.line().partition(" ")[0]) for _ in gpus]
    contexts = machine.server.contexts()
    found = [contexts[pid] for pid in pids]
    assert (sorted(found) if "device" in changes else found) == gpus
    assert job.end().exit_status == 0


# Each worker gets its number as an argument. NCCL's C++ counts the GPUs before the worker calls set_device().
GROUP = """
import multiprocessing
import os
import torch
import torch.distributed as dist

def work(rank, store):
    dist.init_process_group("nccl", init_method=store, rank=rank, world_size=2)
    torch.cuda.set_device(rank)
    torch.ones(3).cuda()
    os._exit(0)  # without the wait for the other

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    store = "file://" + os.path.abspath("store")
    workers = [context.Process(target=work, args=(rank, store)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
"""


def test_workers_that_join_nccl_before_set_device_get_idle_gpus(machine_of):
    ran = machine_of("torch", BUSY, Gpu(), BUSY, Gpu()).run(GROUP)
    allocated = {gpu for gpu, size in ran.allocated.items() if size}
    assert (ran.exit_status, allocated) == (0, {1, 3}), ran.stderr
    assert sorted(line[:14] for line in ran.said) == ["autogpu: GPU 1", "autogpu: GPU 3"]
