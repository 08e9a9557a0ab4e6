"""MIG instances in the screen, the JSON and the metrics of ``autogpu status``."""

import json

from autogpu.cli.status_screen import View, lines
from autogpu.devices.model import Process
from autogpu.frozen import replace
from autogpu.status.prometheus import exposition
from autogpu.status.remote import from_json
from autogpu.text import GIB
from tests.support.host_states import holder, host
from tests.support.values import cut, gpu, inventory

CARD, *PARTS = cut(0, 20, 5, 5, 5, compute_processes=(Process(7, GIB), Process(9, GIB), Process(99, GIB)))
USED = [
    replace(PARTS[0], memory_used_bytes=2 * GIB, compute_processes=(Process(7, GIB), Process(9, GIB))),
    *PARTS[1:],
]
MINE = replace(holder("a"), claims={PARTS[0].uuid: 20 * GIB})
LAB = host(inventory(CARD, *USED, gpu(1, name="NVIDIA A100", total_gib=40.0)), [MINE])


def screen(view, user=None):
    """Return the rows of the screen without their bars."""
    shown = [line.plain for line in lines(view, View(120, user))]
    return [" ".join(word for word in line.split() if set(word) - set("█▒░?")) for line in shown]


def test_mig_instances_are_listed_below_their_card():
    rows = screen(LAB)
    start = rows.index("GPU 0 A100 0.0 of 24.0 - % MIG")
    assert rows[start + 1 : start + 9] == [
        "bob python (pid 99), uses 1.0 GiB, no claim",
        "0:0 MIG 4g.20gb 2.0 of 20.0 20.0 % busy",
        "ann train.py (pid 7) uses 1.0 of 20.0 GiB, for 60 s",
        "bob python (pid 9), uses 1.0 GiB, no claim",
        *(f"0:{number} MIG 1g.5gb 0.0 of 5.0 - % free" for number in (1, 2, 3)),
        "GPU 1 A100 0.0 of 40.0 - 0 % free",
    ]


def test_mig_instances_are_counted_instead_of_their_card():
    assert screen(LAB)[0].endswith("4 of 5 GPUs free")
    assert screen(host(inventory(*cut(0), gpu(1))))[0].endswith("1 of 1 GPU free")


def test_json_has_the_card_and_the_number_of_each_mig_instance():
    told = json.loads(json.dumps(LAB.to_json()))
    assert [(each["parent"], each["instance"]) for each in told["gpus"]][:2] == [(None, None), (CARD.uuid, 0)]
    assert from_json(told) == LAB
    for each in told["gpus"]:
        del each["parent"], each["instance"]  # older versions of autogpu lack these fields
    assert [each.label for each in from_json(told).gpus] == ["0", "0", "0", "0", "0", "1"]


def test_metrics_have_the_state_of_mig_instances_and_not_of_their_card():
    states = [
        line for line in exposition(LAB).splitlines() if line.startswith("autogpu_gpu_state{") and line[-1] == "1"
    ]
    assert [line.split('"')[1] for line in states] == ["0:0", "0:1", "0:2", "0:3", "1"]
    assert f'autogpu_gpu_memory_bytes{{gpu="0:1",uuid="{PARTS[1].uuid}"' in exposition(LAB)
