"""PyTorch in unusual processes and on machines with faults."""

import pytest

from tests.gpusim import Gpu, Server
from tests.support.framework_jobs import AT_ONCE, READY
from tests.support.framework_machines import FOUR

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("torch-failures")]

TAKE = "x = torch.ones(8, device='cuda')\nprint(x.device)\n"


@pytest.fixture
def machine(machine_of):
    return lambda *gpus: machine_of("torch", *gpus)


def test_sigchld_handler_of_a_script_sees_no_child_of_autogpu(machine):
    reaper = """
import os, signal
known = {}
signal.signal(signal.SIGCHLD, lambda *_: known.pop(os.wait()[0]))
import torch
"""
    ran = machine(*FOUR).run(reaper + TAKE)
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "cuda:0\n", [3]), ran.stderr


def test_threads_that_start_cuda_at_the_same_time_make_one_claim(machine):
    threads = """
import sys, threading, torch
assert torch.cuda.is_available()
starting = [threading.Thread(target=torch.cuda.init) for _ in range(8)]
for thread in starting:
    thread.start()
for thread in starting:
    thread.join()
print("started", flush=True)
sys.stdin.readline()
"""
    here = machine(*FOUR)
    job = here.start(threads)
    assert job.line() == "started"
    assert here.claims() == {job.pid: [3]}
    assert job.end().exit_status == 0


def test_card_that_hangs_after_the_import_is_not_chosen(machine):
    here = machine(*FOUR)
    job = here.start(AT_ONCE["torch"])
    assert job.line() == "imported"
    here.server.change(3, nvml="hang")
    job.go_on()
    assert job.line() == READY["torch"]
    assert job.contexts == [2]
    assert job.end().exit_status == 0


def test_nothing_is_claimed_if_cuda_does_not_start(newest, tmp_path):
    asks = "import sys, torch\nprint(torch.cuda.is_available(), flush=True)\nsys.stdin.readline()\n"
    leases = tmp_path / "leases"
    leases.mkdir()
    (tmp_path / "server").mkdir()
    with Server([Gpu()], folder=tmp_path / "server", cuda_init="NO_DEVICE") as server:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), -1)
        python = str(newest["torch"].python)
        job = server.popen([python, "-c", asks], environ={"AUTOGPU_LEASE_DIR": str(leases)}, **pipes)
        assert job.stdout.readline() == "False\n"
        assert list(leases.glob("job.*")) == []
        _, errors = job.communicate("\n", timeout=120)
    assert (job.returncode, "GPU 0" in errors) == (0, False), errors


def test_unsupported_jax_does_not_affect_pytorch_in_the_same_process(machine):
    here = machine(*FOUR)
    (here.project / "jax.py").write_text("__version__ = '0.3'\n")
    ran = here.run("import jax\nimport torch\n" + TAKE)
    assert (ran.exit_status, ran.contexts) == (0, [3]), ran.stderr
    assert ran.said[0] == (
        "autogpu: settings are not applied: this JAX (0.3) has no xla_client.make_c_api_client; "
        "JAX continues with its defaults"
    )
    assert ran.said[1].startswith("autogpu: GPU 3 ")


JOINS_ALL = """
import threading
import torch
x = torch.ones(3, device="cuda")
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
print(threading.active_count(), x.device)
"""


def test_script_that_joins_all_threads_does_not_hang(machine):
    ran = machine(*FOUR).run(JOINS_ALL)
    assert (ran.exit_status, ran.stdout) == (0, "1 cuda:0\n"), ran.stderr


@pytest.mark.parametrize(
    "starts_cuda", ["torch.cuda.Stream()", "torch.randn(3).pin_memory()", "torch.Generator('cuda')"]
)
def test_count_0_uses_no_gpu_even_if_cuda_starts_inside_pytorch(machine, starts_cuda):
    script = f"import torch\ntry:\n    {starts_cuda}\nexcept RuntimeError:\n    pass\nprint('done')"
    ran = machine(*FOUR).run(script, AUTOGPU_COUNT="0")
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "done\n", []), ran.stderr


def test_launcher_takes_no_gpu_from_its_ranks(machine):
    rank = "import os, torch\ntorch.ones(3, device=f\"cuda:{os.environ['LOCAL_RANK']}\")\n"
    command = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")
    ran = machine(*FOUR).run(rank, launcher=command, AUTOGPU_VISIBLE="chosen")
    assert (ran.exit_status, ran.contexts) == (0, [2, 3]), ran.stderr


AFTER_THE_START = """
import atexit, pickle, torch
from torch.cuda import current_device, device_count, get_device_properties, set_device
atexit.register(lambda: print("at the end"))
atexit.register(device_count)
x = torch.ones(3, device="cuda")
print(*[pickle.loads(pickle.dumps(each)) is each for each in (current_device, device_count, set_device)])
print(get_device_properties(0).major, current_device(), device_count())
"""


def test_functions_of_torch_cuda_can_be_pickled_and_called_at_exit(machine):
    ran = machine(*FOUR).run(AFTER_THE_START, fresh=True)
    assert (ran.exit_status, ran.stdout) == (0, "True True True\n7 0 4\nat the end\n"), ran.stderr
    assert "Error" not in ran.stderr
