"""Which devices a script needs that ends by an ``IndexError``, from the line that failed."""

import runpy
import sys
from types import SimpleNamespace

import pytest

from autogpu.frameworks.jax.index_error import devices_needed


class Device:
    """As JAX's own; a list of the test's class is one of JAX's devices."""

    platform = "gpu"


Device.__module__ = "jaxlib._jax"


def devices(backend=None):
    return [Device()]


def needed(text, folder, **variables):
    """What ``devices_needed`` tells of a script with one GPU, in which ``jax.devices`` is the function above."""
    file = folder / "train.py"
    file.write_text(text)
    with pytest.raises(IndexError) as caught:
        runpy.run_path(str(file), {"jax": SimpleNamespace(devices=devices), "devices": devices, **variables})
    return devices_needed(caught.value, 1, (devices,))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("jax.devices()[2]", 3, id="a-number"),
        pytest.param("jax.devices('gpu')[2]", 3, id="of-the-gpus"),
        pytest.param("devices()[2]", 3, id="an-imported-function"),
        pytest.param("jax.devices()[-2]", 2, id="from-the-end"),
        pytest.param("gpu = 3\njax.devices()[gpu]", 4, id="a-variable"),
        pytest.param("jax.devices()[args.gpu]", 3, id="an-attribute"),
        pytest.param("jax.devices()[config['gpu']]", 4, id="an-entry"),
        pytest.param("jax.devices()[int('2')]", 2, id="a-computed-number-is-one-more-at-least"),
        pytest.param("found = jax.devices()\nfound[1]", 2, id="a-list-in-a-variable"),
        pytest.param("def use(n):\n    return jax.devices()[n]\nuse(2)", 3, id="in-a-function"),
        pytest.param("print(\n    jax.devices(\n    )[2]\n)", 3, id="in-several-lines"),
        pytest.param("[][2]", 0, id="another-list"),
        pytest.param("found = [1]\nfound[2]", 0, id="another-list-in-a-variable"),
        pytest.param("found = []\nfound[0], jax.devices()[0]", 0, id="beside-a-device-that-there-is"),
        pytest.param("jax.devices('cpu')[2]", 0, id="of-the-cpus"),
        pytest.param("jax.devices()[:2], [][0]", 0, id="beside-a-part-of-the-list"),
        pytest.param("raise IndexError('list index out of range')", 0, id="raised-by-the-script"),
    ],
)
def test_devices_that_the_line_needs(text, count, tmp_path):
    found = needed(text, tmp_path, args=SimpleNamespace(gpu=2), config={"gpu": 3})
    assert (found if found > 1 else 0) == count


def test_no_code_of_the_script_is_run_for_its_index(tmp_path):
    class Computed:
        @property
        def gpu(self):
            asked.append(self)
            return 2

    asked = []
    assert needed("jax.devices()[args.gpu]", tmp_path, args=Computed()) == 2
    assert len(asked) == 1


@pytest.mark.skipif(sys.version_info < (3, 11), reason="only the line is known")
def test_a_list_inside_of_the_index_is_another_list(tmp_path):
    assert needed("jax.devices()[[0][1]]", tmp_path) == 0


def test_source_that_is_gone_tells_nothing():
    with pytest.raises(IndexError) as caught:
        exec(compile("devices()[2]", "gone.py", "exec"), {"devices": devices})
    assert devices_needed(caught.value, 1, (devices,)) == 0
