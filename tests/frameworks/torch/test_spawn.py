"""PyTorch programs whose workers take the GPUs, one each, and that do no more than start them."""

from __future__ import annotations

import pytest

from tests.gpusim import Gpu
from tests.support import framework_environments
from tests.support.framework_machines import BUSY

IDLE = (Gpu(), Gpu(), Gpu(), Gpu())

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("torch-spawn")]

# Says when it is imported, starts two workers at a line of input, says where they are, and ends them at another one.
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
    workers = mp.start_processes(work, (answers, end), nprocs=2, join=False, start_method={method!r})
    for rank, pid, device in sorted(answers.get() for _ in range(2)):
        print(pid, device, flush=True)
    sys.stdin.readline()
    end.set()
    while not workers.join():
        pass
"""

ASKS = 'assert torch.cuda.is_available(), "no GPU"'


def two(*, module_level="", main="", method="spawn", device='f"cuda:{rank}"'):
    return TWO.format(module_level=module_level, main=main, method=method, device=device)


def started_at_once(machine, *scripts):
    """Their jobs, with what each has of its workers: their pids and the GPUs on which they are."""
    jobs = [machine.start(script) for script in scripts]
    assert [job.line() for job in jobs] == ["imported"] * len(jobs)
    for job in jobs:
        job.go_on()
    return [(job, [workers_gpu(machine, job.line(), rank) for rank in range(2)]) for job in jobs]


def workers_gpu(machine, line, rank):
    pid, _, device = line.partition(" ")
    assert device == f"cuda:{rank}"
    (gpu,) = machine.server.contexts()[int(pid)]
    return int(pid), gpu


def assert_they_have_a_gpu_each(machine, started):
    assert sorted(gpu for _, workers in started for _, gpu in workers) == [0, 1, 2, 3]
    for job, _ in started:
        job.go_on()
        ran = job.end()
        assert ran.exit_status == 0, ran.stderr
    assert machine.claims() == {}


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(two(), id="without-a-question"),
        pytest.param(two(method="fork"), id="forked"),
        pytest.param(two(module_level=ASKS), id="asked-by-each-worker-as-well"),
        pytest.param(two(main=ASKS), id="asked-by-the-parent"),
        pytest.param(two(main="assert torch.cuda.device_count() == 4"), id="counted-by-the-parent"),
    ],
)
def test_two_jobs_at_once_whose_workers_take_the_gpus_have_four(script, framework_pythons, machine_of):
    machine = machine_of(framework_pythons["torch"], *IDLE)
    assert_they_have_a_gpu_each(machine, started_at_once(machine, script, script))


@pytest.mark.parametrize("version", framework_environments.TORCHES[1:], ids=lambda version: version.version)
def test_so_with_older_versions(version, machine_of):
    machine = machine_of(framework_environments.with_autogpu(framework_environments.torch(version)), *IDLE)
    assert_they_have_a_gpu_each(machine, started_at_once(machine, two(main=ASKS), two()))


def test_workers_that_use_no_gpu_take_none(framework_pythons, machine_of):
    machine = machine_of(framework_pythons["torch"], *IDLE)
    job = machine.start(two(device='"cpu"').replace('f"cuda:{rank}"', '"cpu"'))
    assert job.line() == "imported"
    job.go_on()
    assert [job.line().partition(" ")[2] for _ in range(2)] == ["cpu", "cpu"]
    assert machine.claims() == {}
    job.go_on()
    assert job.end().exit_status == 0


# Its workers import PyTorch, and it does not.
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


def gpus_of_workers(machine, count, *, device='f"cuda:{rank}"', method="spawn", script=PLAIN, **environ):
    job = machine.start(script.format(device=device, method=method, count=count, environ=environ))
    lines = [job.line() for _ in range(count)]
    contexts = machine.server.contexts()
    found = [contexts[int(line.partition(" ")[0])] for line in lines]
    job.go_on()
    assert job.end().exit_status == 0
    return found


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_that_import_pytorch_themselves_count_as_without_autogpu(method, framework_pythons, machine_of):
    machine = machine_of(framework_pythons["torch"], BUSY, Gpu(), Gpu(), Gpu())
    assert gpus_of_workers(machine, 4, method=method) == [[0], [1], [2], [3]]


def test_so_do_those_that_pass_their_number_on(framework_pythons, machine_of):
    machine = machine_of(framework_pythons["torch"], BUSY, Gpu(), Gpu(), Gpu())
    begun = "def work(rank, answers, end):"
    script = PLAIN.replace(begun, f"{begun}\n    train(rank, answers, end)\n\n{begun.replace('work', 'train')}")
    assert gpus_of_workers(machine, 4, script=script) == [[0], [1], [2], [3]]


def test_they_count_a_list_of_their_script(framework_pythons, machine_of):
    machine = machine_of(framework_pythons["torch"], *IDLE)
    assert gpus_of_workers(machine, 3, CUDA_VISIBLE_DEVICES="1,3,0") == [[1], [3], [0]]


def test_those_that_name_no_number_have_a_gpu_each(framework_pythons, machine_of):
    machine = machine_of(framework_pythons["torch"], *IDLE)
    assert sorted(gpus_of_workers(machine, 4, device='"cuda"')) == [[0], [1], [2], [3]]
