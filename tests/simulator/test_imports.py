"""Stand-ins for functions that nobody wrote: for a library that is linked against ones of NVIDIA's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.gpusim import Gpu, Server, build, imports
from tests.gpusim.imports import Imports
from tests.support.simulator_client import PYTHON

# A library with one function and one variable, and a program's library that is linked against it.
THEIRS = "int cudaOfTheFuture(void) { return 0; } int nvshmem_of_the_future = 1;"
ITS_VERSIONS = "libcudart.so.99 { cudaOfTheFuture; }; NVSHMEM { nvshmem_of_the_future; };"
OURS = """
int cudaOfTheFuture(void); int cudaGetLastError(void); extern int nvshmem_of_the_future;
int call(void) { return cudaGetLastError() + nvshmem_of_the_future * 1000 + cudaOfTheFuture(); }
"""


def link(folder: Path, name: str, code: str, *options: str) -> Path:
    library = folder / name
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(library), *options]
    subprocess.run(command, input=code, text=True, check=True, timeout=60)
    return library


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    script = tmp_path / "versions"
    script.write_text(ITS_VERSIONS)
    theirs = link(tmp_path, "libcudart.so.99", THEIRS, f"-Wl,--version-script={script},-soname=libcudart.so.99")
    return link(tmp_path, "libours.so", OURS, str(theirs), "-Wl,--allow-shlib-undefined")


def test_what_a_library_imports_is_read_from_it(linked):
    assert imports.of_libraries([linked]) == Imports(
        frozenset(("libcudart.so.99", version) for version in ("", "libcudart.so.99", "NVSHMEM")),
        frozenset({"cudaOfTheFuture", "cudaGetLastError"}),
        frozenset({"nvshmem_of_the_future"}),
    )


def test_a_list_that_is_kept_says_the_same(linked, tmp_path, monkeypatch):
    wanted = imports.of_libraries([linked])
    monkeypatch.setattr(imports, "LISTS", tmp_path)
    (tmp_path / "one.txt").write_text("\n".join(wanted.lines()))
    assert imports.recorded() == wanted


def test_a_missing_function_fails_and_is_in_the_log(linked, tmp_path, monkeypatch):
    wanted = imports.of_libraries([linked])
    monkeypatch.setattr(build, "CACHE", tmp_path)
    monkeypatch.setattr(imports, "recorded", lambda: wanted)
    program = f"import ctypes; print(ctypes.CDLL({str(linked)!r}).call())"
    with Server([Gpu()], folder=tmp_path) as server:
        done = server.run([PYTHON, "-c", program])
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == 801
        assert done.stderr == ""
        assert [call.call for call in server.calls()] == ["missing cudaOfTheFuture"]
