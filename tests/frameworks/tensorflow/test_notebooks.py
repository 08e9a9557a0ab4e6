"""Tests autogpu in notebook kernels.

A user can run each cell twice. autogpu's messages appear below the cell that caused them. When the kernel ends, its GPU
is free again.
"""

import json
import re

import pytest

from tests.gpusim import Gpu, Server
from tests.support import environments
from tests.support.holders import other_job
from tests.support.tensorflow_runner import CONTEXT, LAB

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

# Jupyter, VS Code and PyCharm run notebooks with the same kernel and protocol. This client stands for all three.
CLIENT = """
import json, os, sys
import nbclient, nbformat
from autogpu import lease

def leased():
    return sum(len(holder.claims) for holder in lease.snapshot(lease.find_folder(os.environ)).holders)

notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in json.load(sys.stdin)])
client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=True)
said = []
with client.setup_kernel():
    for again in range(2):
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
            said.append("".join(out.get("text", "") for out in cell.outputs))
    held = leased()
print(json.dumps({"said": said, "held": held, "held_afterwards": leased()}))
"""


def kernel_python():
    base = environments.tensorflow()
    wanted = ("ipykernel>=6", "nbclient>=0.8", "nbformat>=5")
    return environments.environment(base.resolve(), wanted, on_top_of=base, with_hook=True)


@pytest.mark.thorough
def test_messages_appear_below_their_cell_and_cells_can_run_twice(tmp_path, lease_folder):
    fill = "while len(kept) < 30: kept.append(tf.random.uniform((256, 1024, 1024)))"
    cells = [
        "import tensorflow as tf\nkept = []",
        "gpus = tf.config.list_physical_devices('GPU')",
        "print(tf.random.uniform((2, 2)).device[-5:])",
        f"try:\n    {fill}\nexcept tf.errors.ResourceExhaustedError:\n    kept.clear()",
        fill,
        "1 / 0",
        "%run fill.py",
    ]
    (tmp_path / "fill.py").write_text(f"import tensorflow as tf\nkept = []\n{fill}\n")
    # The kernel's own script lies in the virtual environment. So the policy file lies beside the notebook.
    (tmp_path / "autogpu.toml").write_text('[memory]\nlimit = "2GiB"\n')
    with Server(LAB, folder=tmp_path, context=CONTEXT) as server:
        done = server.run(
            [str(kernel_python()), "-c", CLIENT],
            input=json.dumps(cells),
            environ={"AUTOGPU_LEASE_DIR": str(lease_folder), "TF_CPP_MIN_LOG_LEVEL": "3"},
            timeout=600,
            cwd=str(tmp_path),
        )
        assert done.returncode == 0, done.stderr
        assert {call.gpu for call in server.calls(call="context")} == {3}
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["held"], told["held_afterwards"]) == (1, 0)
    first, second = told["said"][:7], told["said"][7:]
    assert re.match(r"autogpu: GPU 3 \(.*memory limited to 2048 MiB", first[2])
    assert [first[2].splitlines()[-1], second[2]] == ["GPU:0", "GPU:0\n"]
    # autogpu's message is in the output of the cell that ran out of memory, and appears again when the cell runs again.
    why = ["autogpu: out of memory on GPU 3 (24.0 GiB): " in text for text in told["said"]]
    assert why == [False, False, False, False, True, False, True] * 2
    assert ["autogpu:" in text for text in second] == why[7:]
    assert ["autogpu:" in text for text in first] == [False, False, True, False, True, False, True]


@pytest.mark.thorough
def test_interrupt_of_a_wait_for_a_gpu_ends_the_cell_but_not_the_kernel(tmp_path, lease_folder):
    interrupt = "threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()"
    cells = [
        "import os, signal, threading\nimport tensorflow as tf",
        f"{interrupt}\ntf.random.uniform((2, 2))\nprint('not reached')",
        "print('alive')",
    ]
    environ = {"AUTOGPU_LEASE_DIR": str(lease_folder), "TF_CPP_MIN_LOG_LEVEL": "3", "AUTOGPU_BUSY": "wait"}
    with Server([Gpu()], folder=tmp_path, context=CONTEXT) as server, other_job(
        environ, {server.gpus[0].uuid: 24 << 30}
    ):
        done = server.run(
            [str(kernel_python()), "-c", CLIENT],
            input=json.dumps(cells),
            environ=environ,
            timeout=600,
            cwd=str(tmp_path),
        )
    assert done.returncode == 0, done.stderr
    _, waited, after, _, again, after_again = json.loads(done.stdout.splitlines()[-1])["said"]
    for each in (waited, again):
        assert each.startswith("autogpu: waiting for a GPU, place 1 in the queue")
    assert (after, after_again) == ("alive\n", "alive\n")


@pytest.mark.thorough
def test_notebook_that_ran_out_of_memory_on_a_gpu_may_share_it_again(tmp_path, lease_folder):
    state = tmp_path / "state"
    environ = {"AUTOGPU_LEASE_DIR": str(lease_folder), "TF_CPP_MIN_LOG_LEVEL": "3", "XDG_STATE_HOME": str(state)}
    cells = ["import tensorflow as tf", "tf.random.uniform((14 * 256, 1024, 1024))"]
    neighbour = Gpu(memory="24GiB", processes={5004242: "12GiB"}, utilization=97)
    with Server([neighbour], folder=tmp_path, context=CONTEXT) as server:
        command = [str(kernel_python()), "-c", CLIENT]
        kernels = [
            server.run(command, input=json.dumps(cells), environ=environ, timeout=600, cwd=str(tmp_path)) for _ in "12"
        ]
    assert [kernel.returncode for kernel in kernels] == [0, 0], kernels
    first, second = (json.loads(kernel.stdout.splitlines()[-1])["said"][1] for kernel in kernels)
    assert re.match(r"autogpu: GPU 0 .*\nautogpu: memory limited by other jobs", first), first
    assert first == second
    assert "autogpu: out of memory on GPU 0" in first
    assert not (state / "autogpu/runs").exists()
