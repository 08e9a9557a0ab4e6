"""Libraries on top of PyTorch that would use every GPU that they see: Lightning, accelerate and transformers."""

from __future__ import annotations

import pytest

from tests.frameworks.torch.cases import ALL, FIRST_TWO, NEITHER, ONLY_ONE, SAYS_NOTHING
from tests.support import framework_environments
from tests.support.framework_machines import IDLE, Machine
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

trainer = lightning.Trainer(
    max_epochs=1,
    devices={devices!r},
    strategy="auto" if {devices!r} == 1 else DDPStrategy(process_group_backend="gloo"),
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

TRAINER = """
import tempfile
{imports}
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {{"x": torch.ones(8), "labels": torch.ones(1)}}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x, labels=None):
        y = self.layer(x)
        return {{"loss": ((y - labels) ** 2).mean(), "logits": y}}

from transformers.trainer_callback import PrinterCallback

with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        output_dir=folder,
        max_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(Model(), args, train_dataset=Data())
    trainer.remove_callback(PrinterCallback)  # it prints durations
    trainer.train()
print(args.n_gpu, args.train_batch_size, torch.cuda.device_count())
"""

# With ARGUMENTS_FIRST, PyTorch is imported while transformers' module of TrainingArguments is being imported.
TORCH_FIRST = "import torch\nfrom transformers import Trainer, TrainingArguments"
ARGUMENTS_FIRST = "from transformers import TrainingArguments, Trainer\nimport torch"

SCRIPTS = {
    "lightning_auto": LIGHTNING.format(devices="auto"),
    "lightning_one": LIGHTNING.format(devices=1),
    "lightning_all": LIGHTNING.format(devices=-1),
    "lightning_two": LIGHTNING.format(devices=2),
    "device_map_auto": DEVICE_MAP_AUTO,
    "trainer": TRAINER.format(imports=TORCH_FIRST),
    "trainer_arguments_first": TRAINER.format(imports=ARGUMENTS_FIRST),
}


def narrowed(script: str, granted: str, prints: str, **more: str) -> Case:
    """Return a case whose policy lets libraries see only the chosen GPUs."""
    return Case(script, (ALL[0], granted), None, None, {"AUTOGPU_VISIBLE": "chosen", **more}, prints=prints)


SPREAD = ALL[0]
TWO_LISTED = ("GPU 1 < 1 GiB, GPU 2 < 1 GiB",) * 2
# PyTorch makes contexts on the other GPUs when it copies between two.
TWO_OF_FOUR = "GPU 2 < 1 GiB, GPU 3 < 1 GiB, contexts on 0, 1"

# With gloo, every rank has a context on cuda:0 of the first rank, as without autogpu.
CASES = (
    Case("lightning_auto", (SPREAD, SAYS_NOTHING[1]), ONLY_ONE, NEITHER, prints="1 cuda:0"),
    Case("lightning_auto", (SPREAD, FIRST_TWO[1]), None, None, {"AUTOGPU_COUNT": "2"}, prints="2 cuda:0"),
    Case("lightning_auto", TWO_LISTED, None, None, {"CUDA_VISIBLE_DEVICES": "1,2"}, note="the user's own list"),
    narrowed("lightning_auto", SAYS_NOTHING[1], "1 cuda:0"),
    narrowed("lightning_auto", FIRST_TWO[1], "2 cuda:0", AUTOGPU_COUNT="2"),
    Case("lightning_one", SAYS_NOTHING, None, None),
    Case("lightning_two", FIRST_TWO, None, None),
    Case("lightning_all", ALL, None, None),
    Case("device_map_auto", ALL, ONLY_ONE, None),
    narrowed("device_map_auto", SAYS_NOTHING[1], "(1, 8, 64)\non one"),
    Case("trainer", (SPREAD, SAYS_NOTHING[1]), ONLY_ONE, None, prints="1 2 4"),
    Case("trainer", (SPREAD, TWO_OF_FOUR), None, None, {"AUTOGPU_COUNT": "2"}, prints="2 4 4"),
    Case("trainer_arguments_first", (SPREAD, SAYS_NOTHING[1]), None, None, prints="1 2 4", fresh=True),
    narrowed("trainer", SAYS_NOTHING[1], "1 2 1"),
)

# Older versions of Lightning and transformers.
OLD_LIGHTNING = SCRIPTS["lightning_auto"].replace("lightning.pytorch", "pytorch_lightning")
OLD_SCRIPTS = {
    "lightning_auto": OLD_LIGHTNING.replace("import lightning\n", "import pytorch_lightning as lightning\n"),
    "trainer": SCRIPTS["trainer"],
}
OLD_CASES = (
    Case("lightning_auto", (SPREAD, SAYS_NOTHING[1]), None, None, prints="1 cuda:0"),
    Case("trainer", (SPREAD, SAYS_NOTHING[1]), None, None, prints="1 2 4"),
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
def test_library_that_uses_all_gpus_is_granted_what_its_case_expects(laboratory, case, machine):
    complaint = laboratory.complaint(case, machine)
    assert not complaint, complaint


@pytest.fixture(scope="module")
def old_laboratory(tmp_path_factory):
    python = framework_environments.old_torch_libraries_with_autogpu()
    made = Laboratory(python, OLD_SCRIPTS, tmp_path_factory.mktemp("old_laboratory"))
    yield made
    made.close()


@pytest.mark.turns(3)
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in OLD_CASES])
def test_older_library_is_granted_what_its_case_expects(old_laboratory, case):
    complaint = old_laboratory.complaint(case, "four-gpus")
    assert not complaint, complaint


DATA_PARALLEL = """
import torch
model = torch.nn.DataParallel(torch.nn.Linear(8, 8){cuda}).cuda()
for _ in range(2):
    torch.nn.parallel.data_parallel(model.module, torch.ones(16, 8).cuda())
    model(torch.ones(16, 8).cuda())
"""
OTHERS = (
    "also uses GPU 0, GPU 1 and GPU 2, which this process has not claimed; to use GPU 3 alone: AUTOGPU_VISIBLE=chosen"
)


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("script", "environ", "said"),
    [
        pytest.param(DATA_PARALLEL.format(cuda=".cuda()"), {}, [f"DataParallel {OTHERS}"], id="parallel-after-claim"),
        pytest.param(DATA_PARALLEL.format(cuda=""), {}, [f"DataParallel {OTHERS}"], id="parallel-before-claim"),
        pytest.param(DEVICE_MAP_AUTO, {}, [f'device_map="auto" {OTHERS}'], id="device-map"),
        pytest.param(DATA_PARALLEL.format(cuda=""), {"AUTOGPU_COUNT": "all"}, [], id="all-gpus-claimed"),
        pytest.param(DATA_PARALLEL.format(cuda=""), {"AUTOGPU_VISIBLE": "chosen"}, [], id="only-chosen-gpus-visible"),
        pytest.param(DATA_PARALLEL.format(cuda=""), {"AUTOGPU_LEVEL": "quiet"}, [], id="quiet"),
    ],
)
def test_gpus_used_without_a_claim_are_named_once(python, importers, tmp_path, script, environ, said):
    with Machine(python, tmp_path / "machine", IDLE, importers["torch"]) as machine:
        ran = machine.run(script, **environ)
    assert ran.exit_status == 0, ran.error
    found = [line for line in ran.said if "AUTOGPU_VISIBLE=chosen" in line]
    assert found == [f"autogpu: {line}" for line in said]


# Rank 0 waits after its first step; the other ranks wait for rank 0 in the second step.
HOLDS = """
    def on_train_batch_end(self, outputs, batch, index):
        if self.trainer.is_global_zero and index == 0:
            print("training", flush=True)
            input()

"""


@pytest.mark.turns(3)
def test_leases_of_a_multi_process_trainer_cover_all_gpus_that_it_uses(python, tmp_path):
    begin, end = SCRIPTS["lightning_all"].split("\n    def configure_optimizers")
    with Machine(python, tmp_path / "machine", IDLE) as machine:
        job = machine.start(f"{begin}{HOLDS}    def configure_optimizers{end}")
        assert job.line() == "training"
        assert sorted(set().union(*machine.claims().values())) == [0, 1, 2, 3]
        job.go_on()
        assert job.end().exit_status == 0
