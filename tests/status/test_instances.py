"""MIG instances, as the page, its JSON and its metrics show them below their card."""

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
    """Each row without its bars."""
    shown = [line.plain for line in lines(view, View(120, user))]
    return [" ".join(word for word in line.split() if set(word) - set("█▒░?")) for line in shown]


def test_instances_stand_below_their_card():
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


def test_a_card_that_is_split_is_counted_as_its_instances():
    assert screen(LAB)[0].endswith("4 of 5 GPUs free")
    assert screen(host(inventory(*cut(0), gpu(1))))[0].endswith("1 of 1 GPU free")


def test_the_json_names_the_card_and_the_number_of_an_instance():
    told = json.loads(json.dumps(LAB.to_json()))
    assert [(each["parent"], each["instance"]) for each in told["gpus"]][:2] == [(None, None), (CARD.uuid, 0)]
    assert from_json(told) == LAB
    for each in told["gpus"]:
        del each["parent"], each["instance"]  # as an older autogpu says it
    assert [each.label for each in from_json(told).gpus] == ["0", "0", "0", "0", "0", "1"]


def test_metrics_tell_the_state_of_what_a_job_can_take():
    states = [
        line for line in exposition(LAB).splitlines() if line.startswith("autogpu_gpu_state{") and line[-1] == "1"
    ]
    assert [line.split('"')[1] for line in states] == ["0:0", "0:1", "0:2", "0:3", "1"]
    assert f'autogpu_gpu_memory_bytes{{gpu="0:1",uuid="{PARTS[1].uuid}"' in exposition(LAB)
