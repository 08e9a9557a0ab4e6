"""JAX scripts that use one GPU by number: that device is the idlest GPU, and JAX has enough devices for the number."""

import pytest

from tests.support.framework_environments import JAXES, each_other, jax, with_autogpu
from tests.support.framework_machines import FOUR, GIB, IDLE, Installed, all_at_once

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("jax-numbered")]

# This script waits for a line of input after its imports. Then it starts JAX, waits, uses the device, and waits again.
TRAINING = """
import sys
import argparse
import jax
parser = argparse.ArgumentParser()
parser.add_argument("--gpu", type=int)
args = parser.parse_args()
print("imported", flush=True)
sys.stdin.readline()
device = jax.devices()[args.gpu]
print("ready", device.id, len(jax.devices()), flush=True)
sys.stdin.readline()
x = jax.device_put(1.0, device)
print("used", *[each.id for each in x.devices()], flush=True)
sys.stdin.readline()
"""

LITERAL = "import jax\nprint(jax.device_put(1.0, jax.devices()[2]).devices())\n"
NUMBERED = "import jax\ngpu = 2\nprint(jax.device_put(1.0, jax.devices()[gpu]).devices(), len(jax.devices()))\n"

# Some tests run on all releases, because the number depends on the functions that autogpu hooks in JAX.
RELEASES = [pytest.param(JAXES[0], id=str(JAXES[0])), *each_other(JAXES)]


@pytest.fixture
def on_release(importers, machine_of):
    return lambda release, *gpus: machine_of(Installed(with_autogpu(jax(release)), importers["jax"]), *gpus)


def of(machine, job, call):
    """Return the GPUs on which a job has made this driver call so far."""
    return sorted({each.gpu for each in machine.server.calls(pid=job.pid, call=call)})


@pytest.mark.parametrize("release", RELEASES)
def test_jobs_numbered_0_to_3_started_at_once_get_different_gpus(release, on_release):
    machine = on_release(release, *IDLE)
    jobs = [machine.start(TRAINING, arguments=("--gpu", str(number)), AUTOGPU_BUSY="error") for number in range(4)]
    assert all_at_once(*jobs) == [f"ready {number} {number + 1}" for number in range(4)]
    claims = machine.claims()
    assert sorted(claims.values()) == [[0], [1], [2], [3]]
    for number, job in enumerate(jobs):
        job.go_on()
        assert job.line() == f"used {number}"
    assert {job.pid: of(machine, job, "allocate") for job in jobs} == claims
    assert [len(job.contexts) for job in jobs] == [1, 2, 3, 4]


DEFAULT = "import jax, numpy\ngpu = 2\nx = {}\nprint(*[device.id for device in x.devices()])\n"
FIRST_USES = ["jax.numpy.ones(3)", "jax.device_put(numpy.zeros(3))", "jax.jit(lambda x: x)(numpy.zeros(3))"]
SET_BY_SCRIPT = DEFAULT.replace("x =", "jax.config.update('jax_default_device', jax.devices()[1])\nx =", 1)


@pytest.mark.parametrize("first_use", FIRST_USES)
@pytest.mark.parametrize("release", RELEASES)
def test_array_without_a_device_is_on_the_claimed_gpu(release, first_use, on_release):
    ran = on_release(release, *FOUR).run(DEFAULT.format(first_use))
    assert (ran.exit_status, ran.stdout, list(ran.allocated)) == (0, "2\n", [3]), ran.stderr


@pytest.mark.parametrize(
    ("script", "environ", "stdout"),
    [
        pytest.param(SET_BY_SCRIPT, {}, "1\n", id="default-device-of-the-script"),
        pytest.param(DEFAULT, {"JAX_PLATFORMS": "cpu,cuda"}, "0\n", id="first-platform-of-the-shell"),
    ],
)
def test_default_device_that_the_user_sets_stays(script, environ, stdout, machine_of):
    ran = machine_of("jax", *FOUR).run(script.format(FIRST_USES[0]), fresh=True, **environ)
    assert (ran.exit_status, ran.stdout) == (0, stdout), ran.stderr


@pytest.mark.parametrize("numbers", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 2, 2, 2)], ids=["upwards", "downwards", "equal"])
def test_jobs_started_in_turn_get_different_gpus_before_any_array(numbers, machine_of):
    machine = machine_of("jax", *IDLE)
    jobs = []
    for number in numbers:
        jobs.append(machine.start(TRAINING, arguments=("--gpu", str(number)), AUTOGPU_BUSY="error"))
        assert all_at_once(jobs[-1]) == [f"ready {number} {number + 1}"]
    claims = machine.claims()
    assert claims[jobs[0].pid] == [3]
    assert sorted(claims.values()) == [[0], [1], [2], [3]]


def test_line_names_the_number_and_the_gpus_that_only_get_a_context(machine_of):
    ran = machine_of("jax", *FOUR).run(NUMBERED)
    assert (ran.exit_status, ran.stdout) == (0, "{CudaDevice(id=2)} 3\n"), ran.stderr
    assert (ran.contexts, list(ran.allocated)) == ([1, 2, 3], [3])
    line, second = ran.said
    assert line.endswith("the idlest of 4, cuda:2 in the script")
    assert second == "autogpu: memory allocated as needed, JAX also creates a CUDA context on GPU 2 and GPU 1"


@pytest.mark.parametrize("number", [pytest.param("gpu", id="variable"), pytest.param("args.gpu", id="attribute")])
def test_number_in_a_global_variable_counts_in_a_thread(number, machine_of):
    script = f"""
import threading, types, jax
{"args = types.SimpleNamespace(gpu=2)" if "." in number else "gpu = 2"}
def work():
    print(jax.devices()[{number}].id, len(jax.devices()))
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    ran = machine_of("jax", *FOUR).run(script)
    assert (ran.exit_status, ran.stdout) == (0, "2 3\n"), ran.stderr


@pytest.mark.parametrize("release", RELEASES)
def test_index_error_for_a_constant_number_suggests_the_count(release, on_release):
    machine = on_release(release, *FOUR)
    ran = machine.run(LITERAL, fresh=True)
    assert (ran.exit_status, ran.error) == (1, "IndexError: list index out of range")
    assert ran.said[1:] == [
        "autogpu: JAX sees 1 of 4 GPUs, but the script's device number needs at least 3; for more GPUs: AUTOGPU_COUNT=3"
    ]
    assert machine.run(LITERAL, AUTOGPU_COUNT="3").exit_status == 0


def test_policy_count_may_be_above_or_below_the_number(machine_of):
    machine = machine_of("jax", *FOUR)
    assert machine.run(NUMBERED.replace("2", "1"), AUTOGPU_COUNT="3").stdout == "{CudaDevice(id=1)} 3\n"
    ran = machine.run(NUMBERED, AUTOGPU_COUNT="2")
    assert (ran.stdout, sorted(ran.allocated)) == ("{CudaDevice(id=2)} 3\n", [2, 3]), ran.stderr
    assert "the 2 idlest of 4, cuda:2 and cuda:0 in the script" in ran.said[0]


def test_nothing_is_allocated_in_advance_on_an_unclaimed_gpu(machine_of):
    script = "import jax\ngpu = 2\nfound = [jax.device_put(1.0, device) for device in jax.devices()]\n"
    ran = machine_of("jax", *FOUR).run(script, AUTOGPU_GROWTH="false")
    assert (ran.exit_status, ran.contexts) == (0, [1, 2, 3]), ran.stderr
    assert max(ran.allocated.values()) < GIB


@pytest.mark.parametrize(
    ("before", "environ", "stdout", "contexts"),
    [
        pytest.param(
            "import os\ngpu = 2\nos.environ['CUDA_VISIBLE_DEVICES'] = str(gpu)\nindex = 0",
            {},
            "0 1",
            [2],
            id="list-of-the-script",
        ),
        pytest.param(
            "gpu = index = 1",
            {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            "1 2",
            [0, 1],
            id="list-of-the-shell",
        ),
        pytest.param(
            "gpu = index = 1\njax.config.update('jax_cuda_visible_devices', '1,2')", {}, "1 2", [1, 2], id="jax-flag"
        ),
        pytest.param("gpu = 2\nindex = 0\njax.config.update('jax_platforms', 'cpu')", {}, "0 1", [], id="cpu-platform"),
    ],
)
def test_explicit_setting_overrides_a_number(before, environ, stdout, contexts, machine_of):
    script = f"import jax\n{before}\nprint(jax.devices()[index].id, len(jax.devices()))\n"
    ran = machine_of("jax", *FOUR).run(script, fresh=True, **environ)
    assert (ran.exit_status, ran.stdout.strip(), ran.contexts) == (0, stdout, contexts), ran.stderr


def test_child_with_the_number_of_its_parent_is_on_the_same_gpu(machine_of):
    script = (
        f"import subprocess, sys\n{NUMBERED}if not sys.argv[1:]:\n    subprocess.run([sys.executable, __file__, '-'])"
    )
    ran = machine_of("jax", *FOUR).run(script)
    assert (ran.exit_status, list(ran.allocated)) == (0, [3]), ran.stderr


@pytest.mark.parametrize(
    ("script", "stdout", "contexts"),
    [
        pytest.param(
            "import os, jax\nlocal_rank = int(os.environ['LOCAL_RANK'])\ndevice = jax.devices()[local_rank]",
            "2 3",
            [0, 1, 2],
            id="device-of-the-local-rank",
        ),
        pytest.param("import jax\ngpu = 1\ndevice = jax.devices()[0]", "0 1", [2], id="other-number-is-ignored"),
    ],
)
def test_rank_uses_its_own_gpu(script, stdout, contexts, machine_of):
    ranks = {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4", "RANK": "2", "WORLD_SIZE": "4"}
    text = f"{script}\nprint(device.id, len(jax.devices()))\nx = jax.device_put(1.0, device)"
    ran = machine_of("jax", *IDLE).run(text, MASTER_ADDR="127.0.0.1", MASTER_PORT="2222", **ranks)
    assert (ran.exit_status, ran.stdout.strip()) == (0, stdout), ran.stderr
    assert len(ran.contexts) == len(contexts)


def test_keras_device_sets_the_number(together, machine_of):
    script = """
import keras
with keras.device("gpu:1"):
    x = keras.ops.ones(3)
print([each.id for each in x.devices()])
"""
    ran = machine_of(together["jax"], *FOUR).run(script, fresh=True, KERAS_BACKEND="jax")
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "[1]\n", [2, 3]), ran.stderr
    assert "cuda:1 in the script" in ran.said[0]
