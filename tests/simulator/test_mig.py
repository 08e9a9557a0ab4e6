"""Cards in MIG mode: what NVML and CUDA show of their instances."""

import dataclasses

import pytest

from tests.gpusim.fleets import A100
from tests.support.simulator_client import PCI, seen_by_cuda

BEFORE_R570, R570 = "550.54.15", "570.133.20"


def a100(*mig, **fields):
    return dataclasses.replace(A100, mig=mig, **fields)


def uuids(server):
    return [each.uuid for each in server.instances]


# ---- NVML ----


# ---- CUDA ----


def names_of(server):
    """By letters: A, B for whole cards, a0, a1 for the instances of the first one, a0:old for their older names."""
    names = {chr(ord("A") + place): gpu.uuid for place, gpu in enumerate(server.gpus)}
    for each in server.instances:
        short = f"{chr(ord('a') + each.card)}{each.index}"
        names[short] = each.uuid
        names[f"{short}:old"] = f"MIG-{server.gpus[each.card].uuid}/{each.gpu_instance}/0"
    return names


def seen(server, *values):
    """What CUDA shows of each value of CUDA_VISIBLE_DEVICES, in letters; ``None`` is not set."""
    names = names_of(server)
    environs = [
        {
            **PCI,
            **({} if value is None else {"CUDA_VISIBLE_DEVICES": ",".join(names.get(w, w) for w in value.split(","))}),
        }
        for value in values
    ]
    letters = {uuid.partition("-")[2]: letter for letter, uuid in names.items()}
    return [" ".join(letters[each[4:]] for each in shown) for shown in seen_by_cuda(server, environs)]


# A: cut in two; B: whole; C: in MIG mode without instances; D: cut in two; E: whole. By the rule: the variable, what
# is seen with a driver before R570, and since.
VISIBLE = {
    "not set": (None, "a0", "B E a0 a1 d0 d1"),
    "whole cards are numbered first": ("0", "B", "B"),
    "second whole card": ("1", "E", "E"),
    "then instances": ("2", "a0", "a0"),
    "before, one of each card": ("3", "d0", "a1"),
    "before, no more numbers": ("4", "", "d0"),
    "whole cards": ("0,1", "B E", "B E"),
    "two numbers of instances": ("2,3", "a0", "a0 a1"),
    "whole and instance by number": ("0,3", "d0", "B a1"),
    "instance": ("a1", "a1", "a1"),
    "two instances": ("a1,d0", "a1", "a1 d0"),
    "whole and instance": ("B,d1", "d1", "B d1"),
    "two whole by name": ("B,E", "B E", "B E"),
    "older name": ("a1:old", "a1", "a1"),
    "twice by both names": ("a1:old,a1", "", ""),
    "twice": ("a1,a1", "", ""),
    "card in MIG mode by name": ("A", "a0", "a0"),
    "card without instances": ("C", "", ""),
    "ends at an invalid entry": ("a1,nonsense,d0", "a1", "a1"),
    "kinds are not mixed": ("a1,0", "a1", "a1"),
    "unknown": ("MIG-00000000-0000-0000-0000-000000000000", "", ""),
    "no abbreviation": ("MIG-", "", ""),
    "lower case": ("mig-", "", ""),
}


@pytest.mark.parametrize(("driver", "since"), [(BEFORE_R570, False), (R570, True)], ids=["before-R570", "R570"])
def test_a_list_of_visible_devices_is_read_as_cuda_does(server_of, driver, since):
    halves = a100("3g.20gb", "1g.5gb"), a100("2g.10gb", "2g.10gb")
    server = server_of(halves[0], A100, a100(), halves[1], A100, driver=driver)
    shown = seen(server, *[value for value, _, _ in VISIBLE.values()])
    assert dict(zip(VISIBLE, shown)) == {rule: new if since else old for rule, (_, old, new) in VISIBLE.items()}
    name = uuids(server)[0][4:]
    assert seen(server, f"MIG-{name.upper()}", f"mig-{name}") == ["a0", ""], "the prefix counts as written"
