"""Unmodified scripts on unmodified TensorFlow, judged by what the driver was asked."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.gpusim import Gpu, Server
from tests.support import environments
from tests.support.tensorflow_runner import GIB, LAB, MIB

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

LISTING = "gpus = tf.config.list_physical_devices('GPU')\n"
WORK = "with tf.device('/GPU:0'):\n    x = tf.random.uniform((256, 256))\n    y = x + x\nprint('done')\n"


@pytest.fixture(scope="module")
def python() -> Path:
    return environments.tensorflow_with_autogpu()


@pytest.fixture
def server(tmp_path):
    (tmp_path / "server").mkdir()
    with Server(LAB, folder=tmp_path / "server", context="256MiB") as running:
        yield running


class Ran:
    """One script that has ended, with what it asked of the driver."""

    def __init__(self, server, done):
        self.exit_status, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr
        self.lines = [line for line in done.stderr.splitlines() if line.startswith("autogpu: ")]
        self.calls = server.calls()
        self.contexts = sorted({call.gpu for call in self.calls if call.call == "context"})

    def allocated(self, gpu):
        return sum(call.bytes for call in self.calls if call.call == "allocate" and call.gpu == gpu)


def run(server, python, tmp_path, script, forks=None, **environ):
    """Run ``script``; without ``forks`` as a process that imports TensorFlow itself."""
    folder = tmp_path / "project"
    folder.mkdir(exist_ok=True)
    file = folder / "train.py"
    file.write_text(script)
    if forks:
        return Ran(server, forks.run(python, file, environ=server.environ_of_child(environ), folder=folder))
    done = server.run([str(python), str(file)], environ=environ, timeout=300, cwd=str(folder))
    return Ran(server, done)


def script(*parts):
    return "import os\nimport tensorflow as tf\n" + "".join(textwrap.dedent(part) for part in parts)


def test_a_script_that_says_nothing_gets_the_idlest_gpu_with_growth(server, python, tmp_path):
    ran = run(server, python, tmp_path, script(LISTING, "print([g.name for g in gpus])\n", WORK))
    assert ran.exit_status == 0, ran.stderr
    assert ran.contexts == [3]
    assert 0 < ran.allocated(3) < GIB
    assert ran.lines == [
        "autogpu: GPU 3 (NVIDIA TITAN RTX, 24.0 of 24.0 GiB free): the idlest of 4; memory allocated as needed; "
        "policy: defaults; for more GPUs: AUTOGPU_COUNT=2"
    ]
    assert "GPU:3" in ran.stdout, "the whole pool stays addressable"


def test_importing_takes_nothing_and_says_nothing(server, python, tmp_path):
    ran = run(server, python, tmp_path, script("print('imported')\n"))
    assert (ran.exit_status, ran.lines) == (0, [])
    assert not [call for call in ran.calls if call.call in ("cuInit", "context")]


@pytest.mark.parametrize(
    "question", ["gpus = tf.config.list_physical_devices('GPU')", "tf.debugging.get_log_device_placement()"]
)
def test_asking_takes_nothing_and_says_nothing(server, python, tmp_path, forks, question):
    ran = run(server, python, tmp_path, script(question + "\n"), forks)
    assert (ran.exit_status, ran.lines, ran.contexts) == (0, [], [])


def test_switched_off_it_is_plain_tensorflow(server, python, tmp_path):
    ran = run(server, python, tmp_path, script(WORK), AUTOGPU="0")
    assert (ran.exit_status, ran.lines, ran.contexts) == (0, [], [0, 1, 2, 3])
    assert max(ran.allocated(gpu) for gpu in range(4)) > 20 * GIB


def test_without_a_gpu_it_is_silent(python, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(script("print(tf.config.list_physical_devices('GPU'), tf.constant(1) + 1)\n"))
    done = subprocess.run([str(python), str(file)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0
    assert "autogpu" not in done.stderr
    assert done.stdout.startswith("[]")


BEFORE = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '{}'\nimport tensorflow as tf\n" + WORK
AFTER = "import os\nimport tensorflow as tf\nos.environ['CUDA_VISIBLE_DEVICES'] = '{}'\n" + WORK


@pytest.mark.parametrize("where", [BEFORE, AFTER], ids=["before-the-import", "after-the-import"])
@pytest.mark.parametrize(
    ("value", "order", "expected"),
    [
        # Fastest first: CUDA's 2 is the first 1080 Ti, NVML's index 0.
        pytest.param("2", None, [0], id="index-in-cudas-order"),
        pytest.param("2", "PCI_BUS_ID", [2], id="index-in-pci-order"),
        pytest.param("-1", None, [], id="none"),
    ],
)
def test_a_hard_coded_choice_is_respected(server, python, tmp_path, forks, where, value, order, expected):
    environ = {"CUDA_DEVICE_ORDER": order} if order else {}
    work = where.format(value).replace("with tf.device('/GPU:0')", "with tf.device(None)")
    ran = run(server, python, tmp_path, work, forks, **environ)
    assert ran.exit_status == 0, ran.stderr
    assert ran.contexts == expected
    assert len(ran.lines) == len(expected)


def test_a_choice_that_comes_after_cuda_has_read_it_is_named_as_such(server, python, tmp_path, forks):
    late = "os.environ['CUDA_VISIBLE_DEVICES'] = '1'\n"
    ran = run(server, python, tmp_path, script(LISTING, late, WORK), forks)
    assert ran.contexts == [3]
    chosen, unheard = ran.lines
    assert "the idlest of 4;" in chosen
    assert unheard == (
        "autogpu: CUDA_VISIBLE_DEVICES=1 was set after CUDA had read it and has no effect, as without autogpu; "
        "set it before TensorFlow lists GPUs"
    )


@pytest.mark.parametrize("where", [BEFORE, AFTER], ids=["before-the-import", "after-the-import"])
def test_a_hard_coded_choice_can_be_overridden(server, python, tmp_path, forks, where):
    ran = run(server, python, tmp_path, where.format("2"), forks, AUTOGPU_SCRIPT="override")
    assert (ran.exit_status, ran.contexts) == (0, [3]), ran.stderr


def test_an_inherited_list_is_the_pool(server, python, tmp_path, forks):
    listed = f"{server.gpus[0].uuid},{server.gpus[2].uuid}"
    ran = run(server, python, tmp_path, script(WORK), forks, CUDA_VISIBLE_DEVICES=listed)
    assert (ran.exit_status, ran.contexts) == (0, [2])
    assert "the least busy of 2 in CUDA_VISIBLE_DEVICES" in ran.lines[0]
    assert "busy while GPU 1 and GPU 3 are idle" in ran.lines[0]


@pytest.mark.parametrize(
    ("setting", "contexts", "least", "most"),
    [
        pytest.param("tf.config.set_visible_devices(gpus[2], 'GPU')", 1, 0, GIB, id="visible-devices"),
        pytest.param("tf.config.set_visible_devices(gpus, 'GPU')", 4, 0, GIB, id="all-visible"),
        pytest.param("[tf.config.experimental.set_memory_growth(g, True) for g in gpus]", 1, 0, GIB, id="growth-loop"),
        pytest.param("tf.config.experimental.set_memory_growth(gpus[0], True)", 1, 0, GIB, id="growth-of-the-first"),
        pytest.param("tf.config.experimental.set_memory_growth(gpus[2], True)", 1, 0, GIB, id="growth-of-another"),
        pytest.param(
            "[tf.config.experimental.set_memory_growth(g, False) for g in gpus]",
            1,
            20 * GIB,
            24 * GIB,
            id="no-growth",
        ),
        pytest.param(
            "tf.config.set_logical_device_configuration(gpus[0], [tf.config.LogicalDeviceConfiguration(1024)])",
            1,
            1024 * MIB,
            1024 * MIB,
            id="limit-on-the-first",
        ),
        pytest.param(
            "tf.config.set_logical_device_configuration(gpus[2], [tf.config.LogicalDeviceConfiguration(1024)])",
            1,
            1024 * MIB,
            1024 * MIB,
            id="limit-on-another",
        ),
        pytest.param(
            "tf.config.set_visible_devices(gpus[1], 'GPU')\n"
            "tf.config.set_logical_device_configuration(gpus[1], [tf.config.LogicalDeviceConfiguration(2048)])",
            1,
            2048 * MIB,
            2048 * MIB,
            id="visible-and-limit",
        ),
    ],
)
def test_a_scripts_own_settings_never_raise_and_win(server, python, tmp_path, forks, setting, contexts, least, most):
    ran = run(server, python, tmp_path, script(LISTING, setting + "\n", WORK), forks)
    assert (ran.exit_status, ran.stdout) == (0, "done\n"), ran.stderr
    assert len(ran.contexts) == contexts
    taken = max(ran.allocated(gpu) for gpu in ran.contexts)
    assert least <= taken <= most, f"{taken / MIB:.0f} MiB"


def test_a_script_that_hides_every_gpu_runs_on_cpu_in_silence(server, python, tmp_path, forks):
    ran = run(
        server,
        python,
        tmp_path,
        script("tf.config.set_visible_devices([], 'GPU')\nprint(tf.constant(1) + 1)\n"),
        forks,
    )
    assert (ran.exit_status, ran.contexts, ran.lines) == (0, [], [])


def test_count_two_gives_two_replicas(server, python, tmp_path, forks):
    ran = run(
        server,
        python,
        tmp_path,
        script("print(tf.distribute.MirroredStrategy().num_replicas_in_sync)\n"),
        forks,
        AUTOGPU_COUNT="2",
    )
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "2\n", [1, 3])
    assert "the 2 idlest of 4" in ran.lines[0]


def test_count_zero_is_cpu_and_the_usual_boilerplate_still_passes(server, python, tmp_path, forks):
    work = "assert gpus\ntf.config.experimental.set_memory_growth(gpus[0], True)\nprint(tf.constant(1) + 1)\n"
    ran = run(server, python, tmp_path, script(LISTING, work), forks, AUTOGPU_COUNT="0")
    assert (ran.exit_status, ran.contexts) == (0, []), ran.stderr
    assert ran.lines == [
        "autogpu: no GPU for this process, TensorFlow starts on CPU: select.count is 0; policy: AUTOGPU_COUNT"
    ]


def test_the_projects_policy_holds_and_is_named(server, python, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "autogpu.toml").write_text('[select]\nexclude = ["3"]\n[memory]\ngrowth = false\n')
    ran = run(server, python, tmp_path, script(WORK))
    assert (ran.exit_status, ran.contexts) == (0, [1]), ran.stderr
    assert ran.allocated(1) > 20 * GIB
    assert "memory allocated whole at once" in ran.lines[0]
    assert "autogpu.toml" in ran.lines[0]


def test_a_bad_policy_is_one_line_and_the_rest_of_it_holds(server, python, tmp_path, forks):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "autogpu.toml").write_text('[select]\ncuont = 2\nexclude = ["3"]\n')
    ran = run(server, python, tmp_path, script(WORK), forks)
    assert (ran.exit_status, ran.contexts) == (0, [1]), ran.stderr
    assert len(ran.lines) == 2
    assert "cuont" in ran.lines[0]
    assert "count" in ran.lines[0]


def test_chosen_hides_the_others_and_index_comes_with_its_order(server, python, tmp_path, forks):
    show = "print(len(gpus), os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'])\n"
    ran = run(
        server,
        python,
        tmp_path,
        script(LISTING, show, WORK),
        forks,
        AUTOGPU_VISIBLE="chosen",
        AUTOGPU_IDENTIFIER="index",
    )
    assert ran.stdout.splitlines()[0] == "1 3 PCI_BUS_ID"
    assert ran.contexts == [3]


def test_a_stderr_that_makes_tensors_itself_neither_hangs_nor_ends_the_script(server, python, tmp_path):
    own = """
class Counted:
    def write(self, text):
        self.lines = int(tf.constant(getattr(self, "lines", 0)) + 1)
        sys.__stderr__.write(text)

    def flush(self):
        sys.__stderr__.flush()

sys.stderr = Counted()
"""
    ran = run(server, python, tmp_path, script("import sys\n", own, WORK))
    assert (ran.exit_status, ran.contexts) == (0, [3]), ran.stderr
    assert ran.lines[0].startswith("autogpu: GPU 3 ")


def test_explain_names_every_gpu(server, python, tmp_path, forks):
    ran = run(server, python, tmp_path, script(WORK), forks, AUTOGPU_LEVEL="explain")
    assert [re.sub(r"^autogpu: +", "", line) for line in ran.lines[1:]] == [
        "GPU 3: taken: free, 0 % busy, 24.0 of 24.0 GiB free",
        "GPU 1: place 2: free, 0 % busy, 24.0 of 24.0 GiB free",
        "GPU 2: place 3: busy, pid 5004243 on it without a claim, 40 % busy, 9.0 of 11.0 GiB free",
        "GPU 0: place 4: busy, pid 5004242 on it without a claim, 97 % busy, 2.0 of 11.0 GiB free",
        "GPU 3: NVML shows 256 MiB of this process before TensorFlow allocates anything",
    ]


def test_quiet_is_silent(server, python, tmp_path):
    ran = run(server, python, tmp_path, script(WORK), AUTOGPU_LEVEL="quiet")
    assert (ran.exit_status, ran.lines, ran.contexts) == (0, [], [3])


def test_cuda_initialised_by_another_library_keeps_its_gpus(server, python, tmp_path):
    first = (
        "import ctypes, os\ncuda = ctypes.CDLL('libcuda.so.1')\nassert cuda.cuInit(0) == 0\nimport tensorflow as tf\n"
    )
    ran = run(server, python, tmp_path, first + "assert 'CUDA_VISIBLE_DEVICES' not in os.environ\n" + WORK)
    assert (ran.exit_status, ran.contexts) == (0, [3]), ran.stderr


def test_a_child_of_a_process_that_only_imported_chooses_from_the_whole_machine(server, python, tmp_path):
    parent = "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'], check=True)\n"
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "child.py").write_text(script(WORK))
    ran = run(server, python, tmp_path, script(parent))
    assert (ran.exit_status, ran.contexts) == (0, [3]), ran.stderr
    assert "the idlest of 4; " in ran.lines[0]


def test_exit_status_and_exceptions_are_the_scripts_own(server, python, tmp_path):
    ran = run(server, python, tmp_path, script(WORK, "raise SystemExit(3)\n"))
    assert ran.exit_status == 3


@pytest.mark.parametrize("fault", ["GPU_IS_LOST", "hang"])
def test_a_broken_gpu_is_left_out_where_plain_tensorflow_fails(python, tmp_path, fault):
    with Server([Gpu(), Gpu(nvml=fault), Gpu()], folder=tmp_path) as server:
        ran = run(server, python, tmp_path, script(WORK))
    assert (ran.exit_status, ran.contexts) == (0, [2]), ran.stderr
    assert "the idlest of 2" in ran.lines[0]


def test_a_driver_that_does_not_start_is_one_line_and_the_script_runs(python, tmp_path):
    with Server([Gpu()], folder=tmp_path, nvml="LIB_RM_VERSION_MISMATCH") as server:
        ran = run(server, python, tmp_path, script("print(int(tf.constant(1) + 1))\n"))
    assert (ran.exit_status, ran.stdout, len(ran.lines)) == (0, "2\n", 1), ran.stderr
    assert ran.lines[0].startswith("autogpu: TensorFlow sees no GPU; NVML reports: ")
