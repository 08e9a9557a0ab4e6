"""The installed module whose import asks PyTorch for GPUs."""

import importlib
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

ASKS = "from autogpu.frameworks.torch.at_import import importing_module as ask\nfound = ask()\n"
IMPORTS = "from {} import found\n"
CALLED = "def ask_again():\n    return ask()\n"


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Provide modules of a script, and in ``site-packages`` modules of libraries and of PyTorch."""
    installed = tmp_path / "lib" / "site-packages"
    (installed / "torch").mkdir(parents=True)
    files = {
        "mine.py": ASKS,
        "lib/site-packages/library.py": ASKS + CALLED,
        "lib/site-packages/larger_library.py": IMPORTS.format("library"),
        "lib/site-packages/library_of_mine.py": IMPORTS.format("mine"),
        "lib/site-packages/library_of_torch.py": IMPORTS.format("torch.testing"),
        "lib/site-packages/torch/__init__.py": "",
        "lib/site-packages/torch/testing.py": ASKS,
        "script.py": IMPORTS.format("torch.testing"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(installed), *sys.path])
    yield
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        pytest.param("library", "library", id="library"),
        pytest.param("larger_library", "library", id="innermost-import"),
        pytest.param("library_of_torch", "library_of_torch", id="torch-does-not-count"),
        pytest.param("mine", "", id="module-of-the-script"),
        pytest.param("library_of_mine", "", id="module-of-the-script-inside-a-library"),
        pytest.param("script", "", id="torch-imported-by-the-script"),
    ],
)
def test_innermost_importing_module_is_found_if_it_is_installed(modules, module, expected):
    assert importlib.import_module(module).found == expected


def test_installed_module_that_runs_as_a_program_is_not_importing(modules):
    assert runpy.run_module("library", run_name="__main__")["found"] == ""


def test_call_after_the_import_is_not_importing(modules):
    ask_again = importlib.import_module("library").ask_again
    # A thread has none of the frames in which pytest itself was imported.
    with ThreadPoolExecutor() as threads:
        assert threads.submit(ask_again).result() == ""
