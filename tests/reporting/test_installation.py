"""Problems of an installation, and commands and web pages by which a user installs autogpu or a framework for GPUs."""

from pathlib import Path

import pytest

from autogpu.install import NAME, UNKNOWN_INSTALLER, InstallFault, InstallProblem
from autogpu.reporting.installation import autogpu_from_a_clone, cuda_build, framework_to_install, install_problem
from tests.support.doctor_facts import healthy_facts

TF_PAGE = "https://www.tensorflow.org/install/source#gpu lists the CUDA and cuDNN for each TensorFlow"
JAX_PAGE = "https://docs.jax.dev/en/latest/installation.html lists the wheels for each CUDA version"
TORCH_PAGE = "https://pytorch.org/get-started/locally lists the wheels for each CUDA version"

OWN = "run this as the owner of the environment, or in one of your own: python3 -m venv .venv"
OTHER_FILE = "leave out --method, or remove the file that comes first; to find it: /env/python -v -c pass"


def problem(fault, path="/x", *facts):
    return InstallProblem(fault, Path(path), *facts)


PROBLEMS = [
    (problem(InstallFault.NO_FOLDER, "/my x"), "/my x is not a folder", "make it first: mkdir -p '/my x'"),
    (problem(InstallFault.NOT_WRITTEN, "/x", "Read-only"), "can't write /x: Read-only", OWN),
    (problem(InstallFault.NOT_REMOVED, "/x", "Read-only"), "can't remove /x: Read-only", OWN),
    (
        problem(InstallFault.OTHER_INSTALLER, "/x", "uv"),
        "the start-up files in /x belong to uv",
        "upgrade or remove autogpu-autoload with uv",
    ),
    (
        problem(InstallFault.OTHER_INSTALLER, "/x", UNKNOWN_INSTALLER),
        "the start-up files in /x belong to another installer",
        "upgrade or remove autogpu-autoload with that installer",
    ),
    (
        problem(InstallFault.NOT_OURS),
        "/x exists and was not written by autogpu",
        "move it away, or choose another method with --method",
    ),
    (
        problem(InstallFault.NOT_LOADED, "/x", "", "/env/python"),
        f"a fresh {NAME} did not load /x",
        OTHER_FILE,
    ),
    (
        problem(InstallFault.NOT_LOADED, "/x", "", "/env/python", Path("/y")),
        f"a fresh {NAME} did not load /x: /y comes first",
        OTHER_FILE,
    ),
    (
        problem(InstallFault.NOT_LOADED, "/x", "Error: {no}", "/env/python", Path("/y")),
        f"a fresh {NAME} did not load /x: Error: {{no}}",
        OTHER_FILE,
    ),
]


def test_each_install_fault_has_a_sentence():
    assert {each.fault for each, _, _ in PROBLEMS} == set(InstallFault)


@pytest.mark.parametrize(("found", "what", "remedy"), PROBLEMS)
def test_problem_of_an_installation_has_a_reason_and_a_remedy(found, what, remedy):
    assert install_problem(found) == (what, remedy)


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
