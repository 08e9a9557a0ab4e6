"""The GPUs that a value of CUDA_VISIBLE_DEVICES means."""

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
        pytest.param(None, [0, 1, 2, 3], id="unset-means-all"),
        pytest.param("-1", [], id="minus-one-means-none"),
        pytest.param("1,1", [], id="repeated-number-empties-the-list"),
        pytest.param("0,9,1", [0], id="number-out-of-range-ends-the-list"),
        pytest.param(" 1 , 3", [1, 3], id="spaces-around-numbers"),
        pytest.param("1gpu2,2x", [1, 2], id="letters-after-a-number-are-ignored"),
        pytest.param("GPU-00000002", [2], id="unique-uuid-prefix"),
        pytest.param("GPU-0000000", [], id="ambiguous-uuid-prefix-is-invalid"),
        pytest.param("GPU-00000001,2", [1], id="number-after-a-uuid-ends-the-list"),
        pytest.param("1,GPU-00000002", [1], id="uuid-after-a-number-ends-the-list"),
        pytest.param("GPU-00000001,GPU-00000001", [], id="repeated-uuid-empties-the-list"),
        pytest.param("MIG-1234", [], id="unknown-instance-ends-the-list"),
        pytest.param("gpu-00000001", None, id="lower-case-uuid-is-left-to-the-driver"),
        pytest.param("-0,+1", [0, 1], id="signed-numbers"),
        pytest.param("0002", [2], id="leading-zeros"),
        pytest.param("\u0661,0", [], id="digits-that-are-not-ascii"),
        pytest.param("1," + "9" * 5000, [1], id="number-too-long-for-python"),
        pytest.param("0" * 5000 + "1", [1], id="leading-zeros-too-long-for-python"),
    ],
)
def test_cuda_visible_devices_means_the_gpus_that_cuda_would_show(value, expected):
    assert indices(named_uuids(value, SAME, None)) == expected


MIXED_LOST = inventory(gpu(0), gpu(2), unreadable=(UnreadableDevice(1, "GPU is lost"),))


@pytest.mark.parametrize(
    ("value", "machine", "order", "expected"),
    [
        pytest.param("1", MIXED, None, None, id="several-models-in-default-order"),
        pytest.param("1", MIXED, "FASTEST_FIRST", None, id="several-models-fastest-first"),
        pytest.param("1", MIXED, "PCI_BUS_ID", [1], id="several-models-in-pci-order"),
        pytest.param("-1", MIXED, None, [], id="minus-one-means-none-in-any-order"),
        pytest.param("1", MIXED_LOST, "PCI_BUS_ID", None, id="number-beside-a-lost-gpu"),
        pytest.param(None, MIXED_LOST, None, [0, 2], id="unset-beside-a-lost-gpu"),
    ],
)
def test_number_means_a_known_gpu_only_in_pci_order_or_with_one_model(value, machine, order, expected):
    assert indices(named_uuids(value, machine, order), machine) == expected
