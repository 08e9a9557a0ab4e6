"""autogpu's lines after an out-of-memory error, for errors that the frameworks raise on the simulated server."""

from __future__ import annotations

import re

import pytest

from tests.gpusim import Gpu
from tests.support.framework_machines import BUSY

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600)]

# Each script's ``fill`` allocates blocks of 1 GiB until the script holds ``most`` blocks.
ALLOCATE = {
    name: f"""
import {name}
kept = []
def fill(most=99):
    while len(kept) < most:
        kept.append({one})
"""
    for name, one in {
        "torch": "torch.empty(1 << 30, dtype=torch.uint8, device='cuda')",
        "jax": "jax.numpy.zeros(1 << 30, dtype='uint8').block_until_ready()",
        "tensorflow": "tensorflow.random.uniform((256, 1024, 1024))",
    }.items()
}
FILL = {name: script + "fill()\n" for name, script in ALLOCATE.items()}


def told(ran) -> list[str]:
    """Return autogpu's lines after the traceback, without their prefix. The last one must end stderr."""
    after = ran.stderr.rpartition("Traceback (most recent call last):")[2]
    lines = [line for line in after.splitlines() if line.startswith("autogpu: ")]
    assert after.rstrip().endswith(lines[-1] if lines else ""), ran.stderr
    return [line[len("autogpu: ") :] for line in lines]


def test_lines_after_an_error_name_the_cap_the_other_jobs_and_the_need(framework, on):
    ran = on(BUSY).run(FILL[framework], fresh=True)
    first, second, third = told(ran)
    assert ran.exit_status == 1
    assert re.fullmatch(
        r"out of memory on GPU 0 \(24.0 GiB\): limited to \d+\.\d GiB by other jobs on the GPU; "
        r"had \d+\.\d GiB, requested 1.0 GiB more",
        first,
    ), first
    assert second == "also on this GPU: pid 5004242, 9.0 GiB"
    need = r"the next run waits until \d+\.\d GiB is free; to reserve that much: AUTOGPU_NEED=\d+GiB"
    assert re.fullmatch(need, third), third


def test_error_at_the_policy_limit_suggests_a_higher_limit(framework, on):
    first, second = told(on(Gpu()).run(FILL[framework], fresh=True, AUTOGPU_LIMIT="3GiB"))
    assert first.startswith(
        "out of memory on GPU 0 (24.0 GiB): limited to 3.0 GiB by memory.limit (AUTOGPU_LIMIT); had "
    )
    assert second in ("for more memory: AUTOGPU_LIMIT=4GiB", "for more memory: AUTOGPU_LIMIT=5GiB")


# Limit and remedy in the lines for a process alone on a GPU of 4 GiB, keyed by framework.
AT_ONCE = "for more memory, allocated at once: AUTOGPU_LIMIT=95% AUTOGPU_GROWTH=false"
ALONE = {
    "torch": (
        "no memory limit applies to this process",
        "the script needs more memory than the GPU has: use a larger GPU, or less memory in the script",
    ),
    "jax": ("limited to 2.6 GiB, the part that JAX takes by default", AT_ONCE),
    "tensorflow": ("limited to 3.3 GiB, the part that TensorFlow takes by default", AT_ONCE),
}


def test_error_of_a_process_alone_on_its_gpu_names_limit_and_remedy(framework, on):
    machine = on(Gpu(memory="4GiB"))
    first, remedy = told(machine.run(FILL[framework], fresh=True))
    assert (first.partition("; had")[0], remedy) == (
        f"out of memory on GPU 0 (4.0 GiB): {ALONE[framework][0]}",
        ALONE[framework][1],
    )


def as_told(remedy) -> dict[str, str]:
    return dict(re.findall(r"(AUTOGPU_\w+)=(\S+)", remedy))


def test_suggested_settings_lift_the_default_share_of_jax(machine_of):
    machine = machine_of("jax", Gpu())
    script = FILL["jax"].replace("fill()", "fill(20)")
    _, remedy = told(machine.run(script, fresh=True))
    assert machine.run(script, fresh=True, **as_told(remedy)).exit_status == 0


def test_suggested_settings_let_a_large_tensorflow_model_fit(machine_of, together):
    machine = machine_of(together["tensorflow"], Gpu())
    script = "import tensorflow as tf\nx = [tf.raw_ops.Empty(shape=[10240, 1 << 18], dtype=tf.float32) for n in '12']\n"
    first, remedy = told(machine.run(script, fresh=True))
    assert "the part that TensorFlow takes by default; had" in first
    assert machine.run(script, fresh=True, **as_told(remedy)).exit_status == 0


CHILD = """
if len(sys.argv) == 1:
    fill(1)
    sys.exit(subprocess.call([sys.executable, __file__, "child"]))
fill()
"""


def test_error_of_a_child_lists_its_parent_among_the_others(machine_of):
    script = "import subprocess, sys\n" + ALLOCATE["torch"] + CHILD
    first, second, third = told(machine_of("torch", BUSY).run(script, fresh=True, AUTOGPU_WAIT="0"))
    assert re.search(r"limited to 1\d.\d GiB by other jobs on the GPU; had 1\d", first), first
    assert re.fullmatch(r"also on this GPU: pid 5004242, 9.0 GiB; \S+'s train.py \(pid \d+\), 1.\d GiB", second), second
    assert third == "to reserve enough memory next time: AUTOGPU_NEED=15GiB"


# The statement that starts a worker, and the number of reports. The parent uses the GPU as well. A worker that ends by
# the error reports it; a worker of a pool goes on and reports nothing.
WORKERS = {
    "spawn": ("torch.multiprocessing.spawn(work, nprocs=1)", 1),
    "process": ("worker = multiprocessing.Process(target=fill)\n    worker.start()\n    worker.join()", 1),
    "executor": ("concurrent.futures.ProcessPoolExecutor(1).submit(fill).result()", 0),
    "loader": ("list(torch.utils.data.DataLoader(Data(), num_workers=1))", 0),
}
START = """
import concurrent.futures, multiprocessing
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, number):
        fill()
def work(rank):
    fill()
if __name__ == "__main__":
    fill(1)
    multiprocessing.set_start_method("spawn")
    """


@pytest.mark.parametrize(("statement", "tellers"), WORKERS.values(), ids=WORKERS)
def test_error_in_a_worker_is_reported_only_if_it_ends_the_worker(machine_of, statement, tellers):
    script = ALLOCATE["torch"] + START + statement + "\n"
    ran = machine_of("torch", Gpu(memory="6GiB")).run(script, fresh=True, AUTOGPU_WAIT="0")
    lines = [line for line in ran.said if "out of memory" in line]
    assert len(lines) == tellers, ran.stderr
    assert all("no memory limit applies to this process; had" in line for line in lines)


def test_error_at_the_scripts_own_limit_suggests_raising_it(machine_of):
    script = "import torch\ntorch.cuda.set_per_process_memory_fraction(0.1)\n" + FILL["torch"]
    late = ALLOCATE["torch"] + "fill(1)\ntorch.cuda.set_per_process_memory_fraction(0.1)\nfill()\n"
    for each in (script, late):
        first, second = told(machine_of("torch", Gpu()).run(each, fresh=True))
        assert "limited to 2.4 GiB by the script's own limit; had 2." in first
        assert second == "for more memory: raise the limit in the script"
    assert machine_of("torch", Gpu()).run(script, fresh=True, AUTOGPU_LEVEL="quiet").said == []


# Each script fills the second of its two GPUs.
SECOND = {
    "torch": "import torch\nx = [torch.empty(1 << 30, dtype=torch.uint8, device=f'cuda:{n}') for n in (0, *[1] * 9)]\n",
    "jax": "import jax\nx = [jax.device_put(jax.numpy.zeros(1 << 30, 'uint8'), jax.devices()[1]) for n in range(9)]\n",
}


@pytest.mark.parametrize("framework", SECOND)
def test_error_names_the_gpu_that_is_full(machine_of, framework):
    machine = machine_of(framework, *[Gpu(memory="4GiB")] * 2, Gpu(memory="9GiB"))
    line, _ = told(machine.run(SECOND[framework], fresh=True, AUTOGPU_COUNT="2"))
    assert line.startswith("out of memory on GPU 1 ("), line
