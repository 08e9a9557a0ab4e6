"""What people use on top of PyTorch and that takes every GPU that it sees: Lightning, accelerate and transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.torch.cases import ALL, NEITHER, ONLY_ONE, SAYS_NOTHING
from tests.gpusim import Gpu
from tests.support import framework_environments
from tests.support.framework_machines import Machine
from tests.support.patterns import Case, Difference, Laboratory, each_case

SCRIPTS = Path(__file__).resolve().parent / "libraries"

pytestmark = [pytest.mark.framework, pytest.mark.timeout(900), pytest.mark.xdist_group("torch-libraries")]

ONLY_THE_CHOSEN = {"AUTOGPU_VISIBLE": "chosen"}
NARROWED = "the policy says that libraries see only the chosen GPU"

# With gloo every rank has a context on what the first one calls cuda:0, as without us.
CASES = (
    Case("lightning_auto", ALL, ONLY_ONE, NEITHER),
    Case(
        "lightning_auto",
        (ALL[0], SAYS_NOTHING[1]),
        None,
        None,
        environ=ONLY_THE_CHOSEN,
        differs=Difference({"four-gpus": "1 cuda:0"}, NARROWED),
    ),
    Case(
        "lightning_auto",
        (ALL[0], "GPU 2 < 1 GiB, GPU 3 < 1 GiB"),
        None,
        None,
        environ={**ONLY_THE_CHOSEN, "AUTOGPU_COUNT": "2"},
        differs=Difference({"four-gpus": "2 cuda:0"}, NARROWED),
    ),
    Case("lightning_one", SAYS_NOTHING, None, None),
    Case("accelerate_training", SAYS_NOTHING, None, NEITHER),
    Case("device_map_auto", ALL, ONLY_ONE, None),
    Case(
        "device_map_auto",
        (ALL[0], SAYS_NOTHING[1]),
        None,
        None,
        environ=ONLY_THE_CHOSEN,
        differs=Difference({"four-gpus": "(1, 8, 64)\non one"}, NARROWED),
    ),
)


@pytest.fixture(scope="module")
def python():
    return framework_environments.torch_libraries_with_autogpu()


@pytest.fixture(scope="module")
def laboratory(python, importers, tmp_path_factory):
    made = Laboratory(python, SCRIPTS, tmp_path_factory.mktemp("laboratory"), importers["torch"])
    yield made
    made.close()


@pytest.mark.turns(3)
@pytest.mark.parametrize(("case", "machine"), [pytest.param(*each.values, id=each.id) for each in each_case(CASES)])
def test_a_library_takes_what_it_sees(laboratory, case, machine):
    complaint = laboratory.complaint(case, machine)
    assert not complaint, complaint


# After the first step; the other ranks wait for it in the second.
HOLDS = """
    def on_train_batch_end(self, outputs, batch, index):
        if self.trainer.is_global_zero and index == 0:
            print("training", flush=True)
            input()

"""


@pytest.mark.turns(3)
def test_the_leases_of_a_trainer_with_several_processes_name_all_that_it_uses(python, tmp_path):
    begin, end = (SCRIPTS / "lightning_auto.py").read_text().split("\n    def configure_optimizers")
    with Machine(python, tmp_path / "machine", (Gpu(), Gpu(), Gpu(), Gpu())) as machine:
        job = machine.start(f"{begin}{HOLDS}    def configure_optimizers{end}")
        assert job.line() == "training"
        assert sorted(set().union(*machine.claims().values())) == [0, 1, 2, 3]
        job.go_on()
        assert job.end().exit_status == 0
