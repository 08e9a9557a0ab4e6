"""A notebook's kernel: its cells run twice, its user reads the line in the cell, its end gives the GPU back."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from tests.gpusim import Gpu, Server
from tests.support import environments
from tests.support.tensorflow_runner import CONTEXT, LAB

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

# Stands for Jupyter, VS Code and PyCharm, which speak the same protocol to the same kernel.
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


@pytest.fixture(scope="module")
def python() -> Path:
    base = environments.tensorflow()
    wanted = ("ipykernel>=6", "nbclient>=0.8", "nbformat>=5")
    return environments.environment(base.resolve(), wanted, on_top_of=base, with_hook=True)


def run_cells(python, server, cells, folder, lease_folder):
    """What the kernel of a notebook in ``folder`` prints in these cells, and what it holds."""
    done = server.run(
        [str(python), "-c", textwrap.dedent(CLIENT)],
        input=json.dumps(cells),
        environ={"AUTOGPU_LEASE_DIR": str(lease_folder), "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=600,
        cwd=str(folder),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.thorough
def test_cells_run_twice_and_the_line_is_in_the_cell_that_took_the_gpu(python, tmp_path, lease_folder):
    cells = [
        "import tensorflow as tf",
        "gpus = tf.config.list_physical_devices('GPU')",
        "print(tf.random.uniform((2, 2)).device[-5:])",
    ]
    # Beside the notebook: its kernel's own script lies in the environment.
    (tmp_path / "autogpu.toml").write_text('[memory]\nlimit = "2GiB"\n')
    with Server(LAB, folder=tmp_path, context=CONTEXT) as server:
        told = run_cells(python, server, cells, tmp_path, lease_folder)
        contexts = {call.gpu for call in server.calls(call="context")}
    assert contexts == {3}
    assert [text for text in told["said"] if "autogpu:" in text] == [told["said"][2]]
    assert "autogpu: GPU 3 (NVIDIA TITAN RTX, " in told["said"][2]
    assert "memory limited to 2048 MiB" in told["said"][2]
    assert told["said"][2].endswith("GPU:0\n")
    assert told["said"][5] == "GPU:0\n"
    assert (told["held"], told["held_afterwards"]) == (1, 0)


@pytest.mark.thorough
def test_a_cell_that_runs_out_of_memory_says_why_below_its_traceback(python, tmp_path, lease_folder):
    fill = "while len(kept) < 30: kept.append(tf.random.uniform((256, 1024, 1024)))"
    cells = [
        "import tensorflow as tf\nkept = []",
        f"try:\n    {fill}\nexcept tf.errors.ResourceExhaustedError:\n    kept.clear()",
        fill,
        "1 / 0",
        "%run fill.py",
    ]
    (tmp_path / "fill.py").write_text(f"import tensorflow as tf\nkept = []\n{fill}\n")
    with Server([Gpu(memory="4GiB")], folder=tmp_path, context=CONTEXT) as server:
        said = run_cells(python, server, cells, tmp_path, lease_folder)["said"]
    # In the second round in the same words.
    told = ["autogpu: out of memory on GPU 0 (4.0 GiB): " in text for text in said]
    assert told == [False, False, True, False, True] * 2
