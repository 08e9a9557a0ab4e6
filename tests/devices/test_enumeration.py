"""Which GPUs a value of CUDA_VISIBLE_DEVICES names."""

import pytest

from autogpu.devices.enumeration import named_uuids
from autogpu.devices.model import UnreadableDevice
from tests.support.values import gpu, inventory

SAME = inventory(*(gpu(i) for i in range(4)))
MIXED = inventory(gpu(0, name="A"), gpu(1, name="B"))


def indices(uuids, machine=SAME):
    if uuids is None:
        return None
    return [device.index for uuid in uuids for device in machine.devices if device.uuid == uuid]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, [0, 1, 2, 3], id="unset-is-all"),
        pytest.param("-1", [], id="minus-one-is-none"),
        pytest.param("1,1", [], id="a-repeated-gpu-empties-the-list"),
        pytest.param("0,9,1", [0], id="out-of-range-ends-the-list"),
        pytest.param(" 1 , 3", [1, 3], id="spaces"),
        pytest.param("1gpu2,2x", [1, 2], id="a-number-is-read-as-far-as-it-goes"),
        pytest.param("GPU-00000002", [2], id="unique-uuid-prefix"),
        pytest.param("GPU-0000000", [], id="ambiguous-prefix-is-invalid"),
        pytest.param("GPU-00000001,2", [1], id="kinds-are-not-mixed"),
        pytest.param("1,GPU-00000002", [1], id="kinds-are-not-mixed-either-way"),
        pytest.param("GPU-00000001,GPU-00000001", [], id="a-repeated-uuid"),
        pytest.param("MIG-1234", [], id="an-instance-that-is-not-there"),
        pytest.param("gpu-00000001", None, id="a-prefix-in-lower-case-is-the-drivers"),
        pytest.param("-0,+1", [0, 1], id="signs"),
        pytest.param("0002", [2], id="leading-zeros"),
        pytest.param("\u0661,0", [], id="digits-that-c-does-not-know"),
        pytest.param("1," + "9" * 5000, [1], id="a-number-longer-than-python-reads"),
        pytest.param("0" * 5000 + "1", [1], id="zeros-longer-than-python-reads"),
    ],
)
def test_named_uuids(value, expected):
    assert indices(named_uuids(value, SAME, None)) == expected


MIXED_LOST = inventory(gpu(0), gpu(2), unreadable=(UnreadableDevice(1, "GPU is lost"),))


@pytest.mark.parametrize(
    ("value", "machine", "order", "expected"),
    [
        pytest.param("1", MIXED, None, None, id="of-several-models"),
        pytest.param("1", MIXED, "FASTEST_FIRST", None, id="fastest-first"),
        pytest.param("1", MIXED, "PCI_BUS_ID", [1], id="in-pci-order"),
        pytest.param("-1", MIXED, None, [], id="no-gpu-is-certain-whatever-the-order"),
        pytest.param("1", MIXED_LOST, "PCI_BUS_ID", None, id="beside-a-lost-gpu"),
        pytest.param(None, MIXED_LOST, None, [0, 2], id="all-beside-a-lost-gpu"),
    ],
)
def test_an_index_is_certain_only_in_pci_order_or_with_one_model(value, machine, order, expected):
    assert indices(named_uuids(value, machine, order), machine) == expected
