"""The commands and web pages by which a user installs autogpu, or a framework that is built for GPUs."""

import pytest

from autogpu.reporting.installation import autogpu_from_a_clone, cuda_build, framework_to_install
from tests.support.doctor_facts import healthy_facts

TF_PAGE = "https://www.tensorflow.org/install/source#gpu lists the CUDA and cuDNN for each TensorFlow"
JAX_PAGE = "https://docs.jax.dev/en/latest/installation.html lists the wheels for each CUDA version"
TORCH_PAGE = "https://pytorch.org/get-started/locally lists the wheels for each CUDA version"


@pytest.mark.parametrize(
    ("version", "package"),
    [
        ((3, 8), "tensorflow"),
        ((3, 9), "'tensorflow[and-cuda]'"),
        ((3, 14), "'tensorflow[and-cuda]'"),
        ((3, 15), "torch"),
    ],
    ids=str,
)
def test_suggested_framework_has_wheels_for_the_python(version, package):
    assert framework_to_install(version) == package


@pytest.mark.parametrize(
    ("module", "version", "lacks_libraries", "remedies"),
    [
        pytest.param("tensorflow", "2.14.0", False, ["tensorflow[and-cuda]==2.14.0"], id="first-with-extra"),
        pytest.param("tensorflow", "2.13.1", False, ["tensorflow==2.13.1", TF_PAGE], id="last-without-extra"),
        pytest.param("tensorflow", "2.1.0", False, ["tensorflow==2.1.0", TF_PAGE], id="first-with-one-package"),
        pytest.param("tensorflow", "1.15.5", False, ["tensorflow-gpu==1.15.5", TF_PAGE], id="package-for-gpus"),
        pytest.param("tensorflow", "2.16.0-rc0", True, ["tensorflow[and-cuda]==2.16.0-rc0"], id="libraries"),
        pytest.param("tensorflow", "2.4.4", True, [TF_PAGE], id="libraries-without-extra"),
        pytest.param("tensorflow", "1.15.5+nv22.10", False, ["tensorflow-gpu==1.15.5", TF_PAGE], id="local-version"),
        pytest.param("jax", "0.4.23", False, ["jax[cuda12]==0.4.23"], id="jax-first-with-extra"),
        pytest.param("jax", "0.4.22", False, [JAX_PAGE], id="jax-without-extra"),
        pytest.param("torch", "2.15.0", False, [TORCH_PAGE], id="torch"),
    ],
)
def test_remedy_fits_the_installed_version_of_the_framework(tmp_path, module, version, lacks_libraries, remedies):
    expected = [f"/env/bin/python -m pip install '{text}'" if "==" in text else text for text in remedies]
    remedy = cuda_build(module, version, healthy_facts(tmp_path), lacks_libraries=lacks_libraries)
    assert remedy == "; ".join(expected)


@pytest.mark.parametrize(
    ("has_pip", "command"),
    [(True, "'/my env/python' -m pip install ."), (False, "uv pip install . --python '/my env/python'")],
    ids=["pip", "uv"],
)
def test_autogpu_is_installed_from_a_clone(has_pip, command):
    assert autogpu_from_a_clone("/my env/python", has_pip=has_pip) == f"{command} (in a clone of autogpu)"
