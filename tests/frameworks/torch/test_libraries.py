"""What people use on top of PyTorch and that takes every GPU that it sees: Lightning, accelerate and transformers."""

from __future__ import annotations

import pytest

from tests.frameworks.torch.cases import ALL, FIRST_TWO, NEITHER, ONLY_ONE, SAYS_NOTHING
from tests.gpusim import Gpu
from tests.support import framework_environments
from tests.support.framework_machines import Machine
from tests.support.patterns import Case, Laboratory, each_case

pytestmark = [pytest.mark.framework, pytest.mark.timeout(900), pytest.mark.xdist_group("torch-libraries")]

LIGHTNING = """
import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 2)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

several = {devices!r} == "auto" and torch.cuda.device_count() > 1
trainer = lightning.Trainer(
    max_epochs=1,
    devices={devices!r},
    strategy=DDPStrategy(process_group_backend="gloo") if several else "auto",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(16, 32), batch_size=4))
if trainer.is_global_zero:
    print(trainer.num_devices, trainer.strategy.root_device)
"""

DEVICE_MAP_AUTO = """
import tempfile
import torch
from transformers import BertConfig, BertModel
config = BertConfig(hidden_size=64, num_hidden_layers=8, num_attention_heads=4, intermediate_size=128, vocab_size=1000)
with tempfile.TemporaryDirectory() as folder:
    BertModel(config).save_pretrained(folder)
    model = BertModel.from_pretrained(folder, device_map="auto")
print(tuple(model(torch.ones(1, 8, dtype=torch.long).to(model.device)).last_hidden_state.shape))
print("on several" if len({weights.device for weights in model.parameters()}) > 1 else "on one")
"""

SCRIPTS = {
    "lightning_auto": LIGHTNING.format(devices="auto"),
    "lightning_one": LIGHTNING.format(devices=1),
    "device_map_auto": DEVICE_MAP_AUTO,
}


def narrowed(script: str, granted: str, prints: str, **more: str) -> Case:
    """The policy says that libraries see only the chosen GPUs."""
    return Case(script, (ALL[0], granted), None, None, {"AUTOGPU_VISIBLE": "chosen", **more}, prints=prints)


# With gloo every rank has a context on what the first one calls cuda:0, as without us.
CASES = (
    Case("lightning_auto", ALL, ONLY_ONE, NEITHER),
    narrowed("lightning_auto", SAYS_NOTHING[1], "1 cuda:0"),
    narrowed("lightning_auto", FIRST_TWO[1], "2 cuda:0", AUTOGPU_COUNT="2"),
    Case("lightning_one", SAYS_NOTHING, None, None),
    Case("device_map_auto", ALL, ONLY_ONE, None),
    narrowed("device_map_auto", SAYS_NOTHING[1], "(1, 8, 64)\non one"),
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
    begin, end = SCRIPTS["lightning_auto"].split("\n    def configure_optimizers")
    with Machine(python, tmp_path / "machine", (Gpu(), Gpu(), Gpu(), Gpu())) as machine:
        job = machine.start(f"{begin}{HOLDS}    def configure_optimizers{end}")
        assert job.line() == "training"
        assert sorted(set().union(*machine.claims().values())) == [0, 1, 2, 3]
        job.go_on()
        assert job.end().exit_status == 0
