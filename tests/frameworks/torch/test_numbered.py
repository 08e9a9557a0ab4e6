"""PyTorch scripts that use a GPU number. The number is a position, at which autogpu puts the idlest GPU."""

import pytest

from tests.support.framework_environments import TORCHES, each_other, torch, with_autogpu
from tests.support.framework_machines import BUSY, FOUR, IDLE, Installed, all_at_once

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("torch-numbered")]

# This script imports PyTorch, waits for a line of input, takes its GPU, and keeps it until another line.
TRAINING = """
import sys
import torch
print("imported", flush=True)
sys.stdin.readline()
device = torch.device("cuda", int(sys.argv[2]))
print("ready", torch.ones(3, device=device).device, torch.cuda.current_device(), flush=True)
sys.stdin.readline()
"""

ALWAYS_1 = TRAINING.replace('torch.device("cuda", int(sys.argv[2]))', '"cuda:1"')
ALWAYS_0 = TRAINING.replace("int(sys.argv[2])", "0 * len(sys.argv)")


@pytest.mark.parametrize(
    ("script", "named"),
    [
        pytest.param(TRAINING, (0, 1, 2, 3), id="loop-over-the-numbers"),
        pytest.param(ALWAYS_1, (1, 1, 1, 1), id="same-number-in-each-script"),
    ],
)
def test_jobs_that_start_in_the_same_instant_share_no_gpu(script, named, machine_of):
    machine = machine_of("torch", *IDLE)
    jobs = [machine.start(script, arguments=("--gpu", str(number))) for number in range(4)]
    assert all_at_once(*jobs) == [f"ready cuda:{number} 0" for number in named]
    assert sorted(job.contexts for job in jobs) == [[0], [1], [2], [3]]
    # A job that uses number 1 may at first have claimed the card of another job.
    assert machine.claims() == {job.pid: job.contexts for job in jobs}


@pytest.mark.parametrize(
    ("script", "numbers", "named"),
    [
        pytest.param(TRAINING, (0, 1, 2), (0, 1, 2), id="ascending-numbers"),
        pytest.param(TRAINING, (2, 1, 0), (2, 1, 0), id="descending-numbers"),
        pytest.param(TRAINING, (3, 3, 3), (3, 3, 3), id="same-number"),
        pytest.param(ALWAYS_0, (2, 2, 2), (0, 0, 0), id="number-that-is-not-a-gpu"),
    ],
)
def test_jobs_that_start_one_after_another_share_no_gpu(script, numbers, named, machine_of):
    machine = machine_of("torch", *FOUR)
    jobs = []
    for number, name in zip(numbers, named):
        jobs.append(machine.start(script, arguments=("--gpu", str(number))))
        assert all_at_once(jobs[-1]) == [f"ready cuda:{name} 0"]
    assert [job.contexts for job in jobs] == [[3], [2], [1]]
    assert f"the idlest of 4{', cuda:' if named[0] else ';'}" in jobs[0].heard("GPU 3")


@pytest.mark.parametrize("release", [TORCHES[0], *each_other(TORCHES)])
def test_limit_applies_to_the_used_number_and_keeps_the_current_device(release, importers, machine_of):
    script = """
import sys, torch
device = torch.device("cuda", int(sys.argv[2]))
kept = torch.ones(3, device=device)
print("ready", torch.cuda.current_device(), flush=True)
try:
    torch.empty(3 << 30, dtype=torch.uint8, device=device)
except torch.cuda.OutOfMemoryError:
    print("refused", flush=True)
"""
    machine = machine_of(Installed(with_autogpu(torch(release)), importers["torch"]), *FOUR)
    job = machine.start(script, arguments=("--gpu", "2"), AUTOGPU_LIMIT="2GiB")
    assert job.line() == "ready 0"
    assert job.line() == "refused"
    assert job.contexts == [3]


def test_number_is_a_position_in_the_list_that_the_script_sets(machine_of):
    # As without autogpu, number 1 is the second GPU of the list, GPU 1. The list has no third GPU.
    script = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\n" + TRAINING
    job = machine_of("torch", *FOUR).start(script, arguments=("--gpu", "1"))
    assert all_at_once(job) == ["ready cuda:1 0"]
    assert job.contexts == [1]


@pytest.mark.parametrize("begin", ["torch.cuda.device_count()", "torch.cuda.is_available()"])
def test_children_with_different_numbers_have_different_gpus(begin, machine_of):
    # Neither call claims a GPU for the parent, so each child is a job of its own.
    parent = f"""
import subprocess, sys, torch
{begin}
child = "import sys, torch; torch.ones(3, device='cuda:' + sys.argv[2]); print(sys.argv[2], torch.cuda.device_count())"
children = [
    subprocess.Popen([sys.executable, "-c", child, "--gpu", str(number)], stdout=subprocess.PIPE) for number in range(2)
]
print([each.communicate()[0].decode().strip() for each in children])
"""
    ran = machine_of("torch", *IDLE).run(parent)
    assert (ran.exit_status, ran.stdout) == (0, "['0 4', '1 4']\n"), ran.stderr
    assert sorted(call.gpu for call in ran.calls if call.call == "context") == [2, 3]


def test_child_program_with_its_parents_number_uses_the_same_gpu(machine_of):
    script = """
import subprocess, sys, torch
x = torch.ones(3, device=f"cuda:{sys.argv[2]}" if sys.argv[1:] else "cuda:2")
if not sys.argv[1:]:
    subprocess.run([sys.executable, __file__, "--gpu", "2"], check=True)
"""
    ran = machine_of("torch", *FOUR).run(script)
    assert ran.exit_status == 0, ran.stderr
    assert [call.gpu for call in ran.calls if call.call == "context"] == [3, 3]


def test_is_available_claims_no_gpu_and_does_not_start_cuda(machine_of):
    script = """
import sys, torch
assert torch.cuda.is_available()
print("asked", flush=True)
device = f"cuda:{sys.stdin.readline().strip()}"
print("ready", torch.ones(3, device=device).device, flush=True)
sys.stdin.readline()
"""
    machine = machine_of("torch", *FOUR)
    job = machine.start(script)
    assert job.line() == "asked"
    assert (machine.claims(), machine.server.calls(pid=job.pid, call="cuInit")) == ({}, [])
    job.go_on("2")
    assert job.line() == "ready cuda:2"
    assert (machine.claims(), job.contexts) == ({job.pid: [3]}, [3])


# Code that bitsandbytes, fastai and other libraries run while they are imported.
LIBRARIES = {
    "available": "assert torch.cuda.is_available()",
    "properties": """
def capabilities():
    return [torch.cuda.get_device_capability(torch.cuda.device(i)) for i in range(torch.cuda.device_count())]
assert capabilities() == [(7, 5)] * 4, capabilities()
assert torch.cuda.get_device_properties("cuda:1").total_memory == torch.cuda.get_device_properties(1).total_memory > 0
assert torch.cuda.get_device_name() == torch.cuda.get_device_name(torch.device("cuda", 2)) != ""
""",
    "current-device": """
if torch.cuda.is_available() and torch.cuda.current_device() == 0:
    torch.cuda.set_device(0)
""",
}

ASKS = "import torch\nDEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
SAYS = "import sys\nprint(DEVICE, flush=True)\nsys.stdin.readline()\n"


@pytest.mark.parametrize(
    ("module", "text", "script"),
    [
        pytest.param("settings", ASKS, f"from settings import DEVICE\n{SAYS}", id="module-of-the-script"),
        pytest.param(
            "site-packages/program",
            ASKS + SAYS,
            "import runpy, sys\nsys.path.append('site-packages')\n"
            "runpy.run_module('program', run_name='__main__', alter_sys=True)\n",
            id="installed-program-started-with-python-m",
        ),
        *(
            pytest.param(
                "site-packages/library",
                f"import torch\n{text}\nDEVICE = 'cuda'\n",
                f"import sys\nsys.path.append('site-packages')\nfrom library import DEVICE\n{SAYS}",
                id=name,
            )
            for name, text in LIBRARIES.items()
        ),
    ],
)
def test_gpu_query_at_import_claims_nothing_and_does_not_start_cuda(module, text, script, machine_of):
    machine = machine_of("torch", *IDLE)
    file = machine.project / f"{module}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    job = machine.start(script)
    assert job.line() == "cuda"
    assert (machine.claims(), machine.server.calls(pid=job.pid, call="cuInit")) == ({}, [])


def test_message_of_a_worker_with_unknown_gpu_number_lists_all_gpus(machine_of):
    script = """
import multiprocessing, torch
def work(rank):
    torch.ones(3, device=f"cuda:{rank}")
if __name__ == "__main__":
    workers = [multiprocessing.get_context("spawn").Process(target=work, args=(rank,)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
"""
    ran = machine_of("torch", *IDLE[:3]).run(script, AUTOGPU_BUSY="wait")
    assert sorted(call.gpu for call in ran.calls if call.call == "context") == [1, 2]
    chosen = "autogpu: GPU 2, GPU 1 and GPU 0: the worker process chose the GPU itself; "
    assert sum(line.startswith(chosen) for line in ran.said) == 2, ran.said
    assert sum('select.busy = "wait" has no effect' in line for line in ran.said) == 2, ran.said


WITH_LIBRARY = "import sys\nsys.path.append('site-packages')\nimport library\n"

USES_LIBRARY = """
import sys, torch
sys.path.append("site-packages")
print("imported", flush=True)
sys.stdin.readline()
import library
print("ready", torch.ones(3, device="cuda").device, torch.cuda.current_device(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def machine_with_library(machine_of):
    """Make a machine with an installed library that runs the given code while it is imported."""

    def made(text, *gpus):
        machine = machine_of("torch", *gpus)
        (machine.project / "site-packages").mkdir(exist_ok=True)
        (machine.project / "site-packages" / "library.py").write_text(f"import torch\n{text}\n")
        return machine

    return made


@pytest.mark.parametrize("asks", LIBRARIES)
def test_jobs_whose_library_queries_gpus_at_import_share_no_gpu(asks, machine_with_library):
    machine = machine_with_library(LIBRARIES[asks], *IDLE)
    jobs = [machine.start(USES_LIBRARY) for _ in range(4)]
    assert all_at_once(*jobs) == ["ready cuda:0 0"] * 4
    assert sorted(job.contexts for job in jobs) == [[0], [1], [2], [3]]


def test_gpu_query_at_import_does_not_wait_on_a_full_server(machine_with_library):
    machine = machine_with_library("print(torch.cuda.is_available())", BUSY, BUSY)
    ran = machine.run(WITH_LIBRARY, AUTOGPU_BUSY="wait")
    assert (ran.exit_status, ran.stdout, ran.said) == (0, "True\n", []), ran.stderr


def test_device_that_a_library_sets_at_import_stays_the_current_device(machine_with_library):
    machine = machine_with_library("torch.cuda.set_device(1)", *IDLE)
    ran = machine.run(f"{WITH_LIBRARY}import torch\nprint(torch.ones(3, device='cuda').device)")
    assert (ran.exit_status, ran.stdout) == (0, "cuda:1\n"), ran.stderr


def test_device_properties_that_nvml_lacks_start_cuda(machine_with_library):
    asks = "print(torch.cuda.get_device_properties(0).max_threads_per_multi_processor > 0)"
    ran = machine_with_library(asks, *IDLE).run(WITH_LIBRARY)
    assert (ran.exit_status, ran.stdout, len(ran.said)) == (0, "True\n", 1), ran.stderr
