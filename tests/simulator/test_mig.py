"""MIG instances in CUDA's list of devices, with drivers before and since R570."""

import dataclasses

import pytest

from tests.gpusim.fleets import A100
from tests.support.simulator_client import PCI, seen_by_cuda

BEFORE_R570, R570 = "550.54.15", "570.133.20"


def a100(*mig, **fields):
    return dataclasses.replace(A100, mig=mig, **fields)


def uuids(server):
    return [each.uuid for each in server.instances]


def names_of(server):
    """Return the UUIDs keyed by short names: A and B for cards, a0 for an instance of A, a0:old for its older name."""
    names = {chr(ord("A") + place): gpu.uuid for place, gpu in enumerate(server.gpus)}
    for each in server.instances:
        short = f"{chr(ord('a') + each.card)}{each.index}"
        names[short] = each.uuid
        names[f"{short}:old"] = f"MIG-{server.gpus[each.card].uuid}/{each.gpu_instance}/0"
    return names


def seen(server, *values):
    """Return CUDA's devices, as short names, for each value of CUDA_VISIBLE_DEVICES. ``None`` leaves it unset."""
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


# Cards A and D have two instances each, B and E are whole cards, and C is in MIG mode without an instance.
# Keyed by rule: CUDA_VISIBLE_DEVICES, CUDA's devices with a driver before R570, and its devices since R570.
VISIBLE = {
    "variable not set": (None, "a0", "B E a0 a1 d0 d1"),
    "whole cards are numbered first": ("0", "B", "B"),
    "second whole card": ("1", "E", "E"),
    "instances are numbered after whole cards": ("2", "a0", "a0"),
    "older drivers number one instance of each card": ("3", "d0", "a1"),
    "older drivers number no second instance": ("4", "", "d0"),
    "two whole cards by number": ("0,1", "B E", "B E"),
    "two instances by number": ("2,3", "a0", "a0 a1"),
    "whole card and instance by number": ("0,3", "d0", "B a1"),
    "instance": ("a1", "a1", "a1"),
    "two instances": ("a1,d0", "a1", "a1 d0"),
    "whole card and instance by name": ("B,d1", "d1", "B d1"),
    "two whole cards by name": ("B,E", "B E", "B E"),
    "instance by its older name": ("a1:old", "a1", "a1"),
    "instance twice, by both names": ("a1:old,a1", "", ""),
    "instance twice": ("a1,a1", "", ""),
    "card in MIG mode by name": ("A", "a0", "a0"),
    "card without instances": ("C", "", ""),
    "ends at an invalid entry": ("a1,nonsense,d0", "a1", "a1"),
    "names and numbers are not mixed": ("a1,0", "a1", "a1"),
    "unknown instance": ("MIG-00000000-0000-0000-0000-000000000000", "", ""),
    "instance name is not abbreviated": ("MIG-", "", ""),
    "prefix in lower case": ("mig-", "", ""),
}


@pytest.mark.parametrize(("driver", "since"), [(BEFORE_R570, False), (R570, True)], ids=["before-R570", "R570"])
def test_gpu_list_with_mig_instances_is_read_as_cuda_reads_it(server_of, driver, since):
    halves = a100("3g.20gb", "1g.5gb"), a100("2g.10gb", "2g.10gb")
    server = server_of(halves[0], A100, a100(), halves[1], A100, driver=driver)
    shown = seen(server, *[value for value, _, _ in VISIBLE.values()])
    assert dict(zip(VISIBLE, shown)) == {rule: new if since else old for rule, (_, old, new) in VISIBLE.items()}
    name = uuids(server)[0][4:]
    assert seen(server, f"MIG-{name.upper()}", f"mig-{name}") == ["a0", ""], "the prefix counts as written"
