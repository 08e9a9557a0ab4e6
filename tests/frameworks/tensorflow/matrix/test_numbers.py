"""A script that selects GPU number 3 gets the idlest GPU, and not the small card that autogpu lists fourth."""

import pytest

from tests.gpusim import Gpu, Server

SMALL, LARGE = Gpu(memory="11GiB"), Gpu(memory="24GiB")

VISIBLE = (
    "named = [gpus[number] for number in {numbers}]\n"
    "tf.config.experimental.set_visible_devices(named, 'GPU')\n"
    "session = v1.Session()"
)
LISTED = (
    "options = v1.GPUOptions(visible_device_list=','.join(map(str, {numbers})))\n"
    "session = v1.Session(config=v1.ConfigProto(gpu_options=options))"
)
LIMITED = (
    "config = tf.config.experimental\n"
    "limits = [config.VirtualDeviceConfiguration(memory_limit=1024)] * 2\n"
    "for number in {numbers}: config.set_virtual_device_configuration(gpus[number], limits)\n" + VISIBLE
)
WAYS = {"set_visible_devices": (VISIBLE, 1), "visible_device_list": (LISTED, 1), "two-logical-gpus": (LIMITED, 2)}

SCRIPT = """
import tensorflow as tf
v1 = tf.compat.v1
gpus = tf.config.experimental.list_physical_devices("GPU")
with tf.Graph().as_default():
    {way}
    print([device.name[-5:] for device in session.list_devices() if device.device_type == "GPU"])
"""


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    with Server((SMALL, LARGE, LARGE, LARGE), folder=folder) as server:
        yield server


@pytest.mark.turns(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("numbers", "gpus"), [((3,), [3]), ((2, 0), [2, 3])], ids=["one-number", "two-numbers"])
def test_first_number_selects_the_idlest_gpu(with_autogpu, way, numbers, gpus):
    text, logical = WAYS[way]
    script = SCRIPT.format(way=text.format(numbers=numbers).replace("\n", "\n    "))
    ran = with_autogpu(script, TF_CPP_MIN_LOG_LEVEL="3")
    assert (ran.exit_status, ran.contexts) == (0, gpus), ran.stderr
    assert ran.stdout == f"{[f'GPU:{number}' for number in range(len(numbers) * logical)]}\n"
    assert ", numbered " in ran.said[0]
