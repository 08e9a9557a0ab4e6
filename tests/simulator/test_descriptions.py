"""Which machines can be described, in a file and by values."""

import dataclasses

import pytest

from tests.gpusim import Fleet, FleetError, Gpu, read_fleet
from tests.gpusim.fields import size_bytes
from tests.gpusim.fleets import A100, H100
from tests.support.environments import ROOT
from tests.support.simulator_client import MIB


def test_the_shipped_lab_shows_every_key():
    file = ROOT / "tests" / "gpusim" / "lab.toml"
    lab, fleet = file.read_text(), read_fleet(file)
    assert len({gpu.name for gpu in fleet.gpus}) == 4
    assert sum(1 for gpu in fleet.gpus if gpu.processes or gpu.used) == 2
    keys = [field.name for kind in (Fleet, Gpu) for field in dataclasses.fields(kind) if field.name != "gpus"]
    assert [key for key in keys if f"{key} =" not in lab] == []


def test_a_file_describes_instances(tmp_path):
    described = tmp_path / "cut.toml"
    described.write_text(
        """
        [[gpu]]
        name = "NVIDIA A100-SXM4-40GB"
        memory = "40960MiB"
        mig = ["3g.20gb", { profile = "2g.10gb", processes = { 5004242 = "6GiB" } }, "", "1g.5gb"]
        [[gpu]]
        name = "NVIDIA H100 80GB HBM3"
        memory = "81559MiB"
        mig = []
        [[gpu]]
        """
    )
    fleet = read_fleet(described)
    assert [(each.card, each.index, each.name) for each in fleet.instances] == [
        (0, 0, "NVIDIA A100-SXM4-40GB MIG 3g.20gb"),
        (0, 1, "NVIDIA A100-SXM4-40GB MIG 2g.10gb"),
        (0, 3, "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
    ]
    assert fleet.instances[1].instance.processes == {5004242: "6GiB"}
    assert [gpu.mig is None for gpu in fleet.gpus] == [False, False, True]


# What a file holds, and what is said of it behind its name; the last ones are of a card that can be cut.
CUT = '[[gpu]]\nname = "NVIDIA A100-SXM4-40GB"\nmemory = "40960MiB"\n'
UUID = "GPU-aaaa0000-1111-2222-3333-444444444444"
IMPOSSIBLE = {
    "no TOML": ("[[gpu]\n", "Expected"),
    "no such key": ("memory = 3\n", "memory: no such key; there are driver,"),
    "a fault": ("nvml = 'LIBRARY_NOT_FOUND'", "nvml: 'LIBRARY_NOT_FOUND' is not"),
    "a reading": ("[[gpu]]\nunsupported = ['colour']", "gpu 0: unsupported: ['colour'] is not a list out of name,"),
    "a mode": ("[[gpu]]\ncompute_mode = 'shared'", "gpu 0: compute_mode: 'shared' is not one of default,"),
    "a path": ("device_files = 'dev'", "device_files: 'dev' is not a path from the root of up to 1023 characters"),
    "a word": ("denied = 'hide'", "denied: 'hide' is not one of refuse, omit"),
    "one table for all": ("[gpu]\nname = 'x'\n", "gpu: write each GPU as a table [[gpu]]"),
    "a GPU by its position": ("[[gpu]]\n[[gpu]]\nutilization = 'high'\n", "gpu 1: utilization: 'high' is not a whole"),
    "a size": ("[[gpu]]\nmemory = '24Gigs'", "gpu 0: memory: '24Gigs' is not a size"),
    "a percentage": ("[[gpu]]\nutilization = 101", "gpu 0: utilization: 101 is not a whole number from 0 to 100"),
    "a UUID": ("[[gpu]]\nuuid = 'GPU-1'", "gpu 0: uuid: 'GPU-1' is not a UUID"),
    "an address": ("[[gpu]]\npci = '5'", "gpu 0: pci: '5' is not an address"),
    "a link": ("[[gpu]]\nnvlinks = ['GPU 1']", "gpu 0: nvlinks: ['GPU 1'] is not a list of up to 18 addresses"),
    "too many links": (f"[[gpu]]\nnvlinks = {['0000:01:00.0'] * 19}", "gpu 0: nvlinks: ["),
    "numbers": ("[[gpu]]\npath = '0/0/0/0/0/0'", "gpu 0: path: '0/0/0/0/0/0' is not up to five numbers"),
    "a name for a pid": ("[[gpu]]\nprocesses = { me = '1GiB' }\n", "gpu 0: processes: {'me': '1GiB'} is not"),
    "a pid of this machine's": ("[[gpu]]\nprocesses = { 4242 = 1 }\n", "gpu 0: processes: {4242: 1} is not at most 64"),
    "buses out of order": (
        "[[gpu]]\npci = '0000:05:00.0'\n[[gpu]]\npci = '0000:04:00.0'\n",
        "gpu 1: pci: 0000:04:00.0 is not after that of the GPU before",
    ),
    "one UUID twice": (f"[[gpu]]\nuuid = '{UUID}'\n" * 2, f"gpu 1: uuid: {UUID} is another GPU's already"),
    "no list of instances": (CUT + 'mig = "1g.5gb"', "gpu 0: mig: '1g.5gb' is not a list of up to 7 profiles such as"),
    "no profile": (CUT + 'mig = ["1g.6gb"]', "gpu 0: mig: '1g.6gb' is no profile of NVIDIA A100-SXM4-40GB; there are"),
    "too much": (CUT + 'mig = ["4g.20gb", "3g.20gb", "1g.5gb"]', "gpu 0: mig: 4g.20gb, 3g.20gb, 1g.5gb do not fit on"),
    "no place left": (CUT + f"mig = {['2g.10gb'] * 4}", "gpu 0: mig: 2g.10gb, 2g.10gb, 2g.10gb, 2g.10gb do not fit"),
    "a key that instances lack": (CUT + "mig = [{ utilization = 3 }]", "gpu 0: mig 0: utilization: no such key"),
    "a value of an instance": (CUT + 'mig = [{ used = "x" }]', "gpu 0: mig 0: used: 'x' is not a size"),
    "processes on a cut card": (
        CUT + "mig = []\nprocesses = { 5004242 = 1 }",
        "gpu 0: processes: on a card in MIG mode",
    ),
    "a card that can't be cut": (
        '[[gpu]]\nmig = ["1g.5gb"]',
        "gpu 0: mig: nothing is known of how NVIDIA TITAN RTX is",
    ),
}


@pytest.mark.parametrize(("text", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_impossible_file_is_refused_in_one_line_that_names_file_and_key(tmp_path, text, message):
    file = tmp_path / "lab.toml"
    file.write_text(text)
    with pytest.raises(FleetError) as caught:
        read_fleet(file)
    assert str(caught.value).startswith(f"{file}: {message}")
    assert "\n" not in str(caught.value)


def test_sizes_have_units():
    sizes = {"1.5GiB": 3 << 29, " 512 mib ": 512 << 20, "2TiB": 2 << 40, "3KiB": 3 << 10, "7": 7, "7B": 7}
    assert {size: size_bytes(size) for size in sizes} == sizes
    assert size_bytes(512) == 512


@pytest.mark.parametrize(
    ("card", "cut", "memory_mib", "gpu_instances"),
    [
        (A100, ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"), [20096, 9984, 4864, 4864], [2, 3, 9, 10]),
        (A100, ("1g.5gb",) * 7, [4864] * 7, [7, 8, 9, 10, 11, 12, 13]),
        (A100, ("4g.20gb", "3g.20gb"), [20096, 20096], [2, 1]),
        (A100, ("7g.40gb",), [40320], [0]),
        (H100, ("3g.40gb", "2g.20gb"), [40448, 20096], [2, 3]),
    ],
)
def test_instances_have_the_published_figures(card, cut, memory_mib, gpu_instances):
    instances = Fleet(gpus=(dataclasses.replace(card, mig=cut),)).instances
    assert [each.memory_bytes // MIB for each in instances] == memory_mib
    assert [each.gpu_instance for each in instances] == gpu_instances
