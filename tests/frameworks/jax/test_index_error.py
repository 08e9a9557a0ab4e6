"""The number of devices that a script needs, read from the line that raised ``IndexError``."""

import runpy
import sys
from types import SimpleNamespace

import pytest

from autogpu.frameworks.jax.index_error import devices_needed


class Device:
    """A stand-in for JAX's device class. Its module name, set below, makes autogpu take it for JAX's."""

    platform = "gpu"


Device.__module__ = "jaxlib._jax"


def devices(backend=None):
    return [Device()]


def needed(text, folder, **variables):
    """Run a script whose ``jax.devices`` is the function above; return ``devices_needed`` for its ``IndexError``."""
    file = folder / "train.py"
    file.write_text(text)
    with pytest.raises(IndexError) as caught:
        runpy.run_path(str(file), {"jax": SimpleNamespace(devices=devices), "devices": devices, **variables})
    return devices_needed(caught.value, 1, (devices,))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("jax.devices()[2]", 3, id="constant"),
        pytest.param("jax.devices('gpu')[2]", 3, id="devices-of-the-gpu-platform"),
        pytest.param("devices()[2]", 3, id="imported-function"),
        pytest.param("jax.devices()[-2]", 2, id="negative-index"),
        pytest.param("gpu = 3\njax.devices()[gpu]", 4, id="variable"),
        pytest.param("jax.devices()[args.gpu]", 3, id="attribute"),
        pytest.param("jax.devices()[config['gpu']]", 4, id="dictionary-entry"),
        pytest.param("jax.devices()[int('2')]", 2, id="computed-index-needs-one-more-device"),
        pytest.param("found = jax.devices()\nfound[1]", 2, id="devices-in-a-variable"),
        pytest.param("def use(n):\n    return jax.devices()[n]\nuse(2)", 3, id="index-inside-a-function"),
        pytest.param("print(\n    jax.devices(\n    )[2]\n)", 3, id="expression-over-several-lines"),
        pytest.param("[][2]", 0, id="other-list"),
        pytest.param("found = [1]\nfound[2]", 0, id="other-list-in-a-variable"),
        pytest.param("found = []\nfound[0], jax.devices()[0]", 0, id="other-list-beside-an-existing-device"),
        pytest.param("jax.devices('cpu')[2]", 0, id="devices-of-the-cpu-platform"),
        pytest.param("jax.devices()[:2], [][0]", 0, id="other-list-beside-a-slice-of-devices"),
        pytest.param("raise IndexError('list index out of range')", 0, id="error-raised-by-the-script"),
    ],
)
def test_failed_line_gives_the_number_of_devices_needed(text, count, tmp_path):
    found = needed(text, tmp_path, args=SimpleNamespace(gpu=2), config={"gpu": 3})
    assert (found if found > 1 else 0) == count


def test_property_in_the_index_is_not_called_again(tmp_path):
    class Computed:
        @property
        def gpu(self):
            asked.append(self)
            return 2

    asked = []
    assert needed("jax.devices()[args.gpu]", tmp_path, args=Computed()) == 2
    assert len(asked) == 1


@pytest.mark.skipif(sys.version_info < (3, 11), reason="only the line is known")
def test_index_error_inside_of_the_index_needs_no_device(tmp_path):
    assert needed("jax.devices()[[0][1]]", tmp_path) == 0


def test_missing_source_file_gives_no_number():
    with pytest.raises(IndexError) as caught:
        exec(compile("devices()[2]", "gone.py", "exec"), {"devices": devices})
    assert devices_needed(caught.value, 1, (devices,)) == 0
