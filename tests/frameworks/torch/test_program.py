"""The text of the program that runs, where it is looked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autogpu.frameworks.torch.program import is_launcher

ROOT = Path(__file__).resolve().parents[3]

SHOWS = """
import multiprocessing
from autogpu.frameworks.torch.program import sources
found = [source.decode() for source in sources()]
print(len(found), "import multiprocessing" in found[0], flush=True)
if __name__ == "__main__" and not {in_worker}:
    raise SystemExit
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=print, args=("worker",))
    child.start()
    child.join()
"""


def shown(*command, **options):
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=120, check=False, **options
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "command",
    [
        ["train.py"],
        ["-m", "train"],
        ["-m", "cProfile", "-o", "profile", "train.py"],
        ["-c", "import multiprocessing, runpy; runpy.run_path('train.py', run_name='__main__')"],
    ],
    ids=["script", "module", "profiled", "run by another"],
)
def test_a_script_finds_itself_and_its_modules(command, tmp_path):
    (tmp_path / "train.py").write_text("import placement\n" + SHOWS.format(in_worker=False))
    (tmp_path / "placement.py").write_text("DEVICE = 'cuda:2'\n")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    assert shown(*command, cwd=tmp_path, env=environ) == ["2 True"]


def test_so_does_a_worker_that_imports_it_anew(tmp_path):
    (tmp_path / "train.py").write_text(SHOWS.format(in_worker=True))
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert shown("train.py", cwd=tmp_path, env=environ) == ["1 True", "1 True", "worker"]


def test_a_program_that_is_no_file_is_what_the_command_line_says():
    code = "from autogpu.frameworks.torch.program import sources; print(sources())"
    assert shown("-c", code) == [f"{[code.encode()]}"]
    assert shown(input=code) == ["[]"]


@pytest.mark.parametrize(
    ("argv", "command", "is_one"),
    [
        (["/usr/bin/torchrun", "train.py"], [], True),
        (["deepspeed", "train.py"], [], True),
        (["/venv/torch/distributed/launch.py", "train.py"], [], True),
        (["/venv/accelerate/commands/launch.py", "train.py"], [], True),
        (["-m", "train.py"], ["python", "-m", "torch.distributed.launch", "train.py"], True),
        (["-m", "train.py"], ["python", "-m", "torch.distributed.run", "train.py"], True),
        (["-m"], ["python", "-m", "train", "torch.distributed.run"], False),
        (["-m"], ["python", "-m"], False),
        (["-m"], [], False),
        (["my-torchrun", "train.py"], [], False),
        (["train.py", "torchrun"], ["python", "train.py", "torchrun"], False),
        ([], [], False),
    ],
)
def test_a_launcher_is_known_by_its_path_or_as_a_module(argv, command, is_one):
    assert is_launcher(argv, command) is is_one
