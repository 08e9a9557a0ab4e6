"""Choice of GPUs for unmodified scripts on unmodified TensorFlow, checked by the calls to the driver."""

import os
import re

import pytest

from tests.gpusim import Gpu
from tests.support.live_jobs import HOLD, leases
from tests.support.tensorflow_runner import GIB, script

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

LISTING = "gpus = tf.config.list_physical_devices('GPU')\n"
WORK = "with tf.device('/GPU:0'):\n    x = tf.random.uniform((256, 256))\n    y = x + x\nprint('done')\n"


def test_machine_without_a_gpu_prints_no_line(installed, forks, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(script("print(tf.config.list_physical_devices('GPU'), tf.constant(1) + 1)"))
    done = forks.run(installed, file, environ=os.environ, folder=tmp_path)
    assert (done.returncode, done.stdout[:2], "autogpu" in done.stderr) == (0, "[]", False)


def test_gpus_are_chosen_from_an_inherited_cuda_visible_devices(run, server):
    listed = f"{server.gpus[0].uuid},{server.gpus[2].uuid}"
    ran = run(script(WORK), CUDA_VISIBLE_DEVICES=listed)
    assert ran.contexts == [2]
    assert "the least busy of 2 in CUDA_VISIBLE_DEVICES" in ran.said[0]
    assert "GPU 1 and GPU 3 are free" in ran.said[1]


def test_count_0_means_cpu_and_the_usual_growth_boilerplate_still_runs(run):
    work = "assert gpus\ntf.config.experimental.set_memory_growth(gpus[0], True)\nprint(tf.constant(1) + 1)"
    ran = run(script(LISTING, work), AUTOGPU_COUNT="0")
    assert ran.contexts == []
    assert ran.said == [
        "autogpu: no GPU for this process, TensorFlow starts on CPU: select.count is 0; policy: AUTOGPU_COUNT"
    ]


def test_project_policy_with_a_misspelt_key_is_applied_and_named(run):
    (run.folder / "autogpu.toml").write_text('[select]\ncuont = 2\nexclude = ["3"]\n[memory]\ngrowth = false\n')
    ran = run(script(WORK))
    assert (ran.contexts, ran.allocated[1] > 20 * GIB) == ([1], True)
    bad, chosen = ran.said
    assert re.search("cuont.*count", bad)
    assert chosen.endswith("memory allocated at once")


def test_visible_chosen_sets_the_gpu_number_and_the_device_order(run):
    show = "print(len(gpus), os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'])"
    ran = run(script(LISTING, show, WORK), AUTOGPU_VISIBLE="chosen")
    assert (ran.stdout.splitlines()[0], ran.contexts) == ("1 3 PCI_BUS_ID", [3])


COUNTS_IN_TENSORS = """
import sys

class Counted:
    def write(self, text):
        self.lines = int(tf.constant(getattr(self, "lines", 0)) + 1)
        sys.__stderr__.write(text)

    def flush(self):
        sys.__stderr__.flush()

sys.stderr = Counted()
"""


def test_script_with_a_stderr_object_that_makes_tensors_runs_to_its_end(run):
    ran = run(script(COUNTS_IN_TENSORS, WORK))
    assert ran.contexts == [3]
    assert ran.said[0].startswith("autogpu: GPU 3 ")


def test_level_quiet_prints_nothing_and_keeps_the_exit_status(run):
    ran = run(script(WORK, "raise SystemExit(3)"), AUTOGPU_LEVEL="quiet", exit_status=3, fresh=True)
    assert (ran.said, ran.contexts) == ([], [3])


HARD_CODED = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = {value!r}\n" + HOLD


@pytest.mark.parametrize("value", ["", "-1"])
def test_script_that_hides_all_gpus_gets_none_with_script_override(host, lease_folder, value):
    start = host(Gpu(), script=HARD_CODED.format(value=value))
    job = start(AUTOGPU_SCRIPT="override")
    assert job.ready() == "ready CPU:0"
    assert (job.gpus(), leases(lease_folder), job.end()) == ([], {}, (0, []))
