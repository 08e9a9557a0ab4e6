"""`autogpu run` gives autogpu to Pythons of other environments, or prints the reason if it can't."""

import os
import subprocess
import sys

import pytest
import uv

from autogpu.cli.reach import why_not_reached
from tests.cli.conftest import AUTOGPU
from tests.conftest import each_python
from tests.hook import throwaway
from tests.support.environments import ROOT, interpreter

IGNORES = "-{} makes Python ignore PYTHONPATH"


@pytest.fixture
def programs(tmp_path):
    """Return a folder with files that look like interpreters, and with entry scripts as installers write them."""
    for name in ("python3.12", "python3.6", "pythonic"):
        (tmp_path / name).write_bytes(b"\x7fELF")
    (tmp_path / "python").symlink_to("python3.12")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "python").symlink_to("../python3.6")
    lines = {"tool": f"#!{tmp_path}/python", "pipx-tool": f"#!{tmp_path}/python -sE", "by-env": "#!/usr/bin/env python"}
    for name, line in lines.items():
        (tmp_path / name).write_text(f"{line}\n")
    for file in tmp_path.rglob("*"):
        if file.is_file():
            file.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("python train.py -E", ""),
        ("python -u -B train.py", ""),
        ("python -E train.py", IGNORES.format("E")),
        ("python -uI train.py", IGNORES.format("I")),
        ("python -WE -XE -W E train.py", ""),
        ("python -mE -E", ""),
        ("python -c E -E", ""),
        ("python -IS train.py", f"{IGNORES.format('I')}; -S keeps Python from reading start-up files"),
        ("python -S train.py", "-S keeps Python from reading start-up files"),
        ("python3.6 train.py", "python3.6 is older than Python 3.7"),
        ("old/python train.py", "python3.6 is older than Python 3.7"),
        ("tool --fast -E", ""),
        ("by-env -E", ""),
        ("pipx-tool", IGNORES.format("E")),
        ("pythonic -E", ""),
        ("gone -E", ""),
    ],
)
def test_why_not_reached_returns_the_reason_or_nothing(programs, command, why):
    first, *others = command.split()
    named = [str(programs / first) if "/" in first else first, *others]
    assert why_not_reached(named, {"PATH": str(programs)}) == why


# Prints which of autogpu's modules a script can import, and the policy that autogpu read.
LOOK = """
import importlib.util, sys
print([name for name in ("pynvml", "tomli", "click", "rich", "autogpu", "_autogpu_steps", "_autogpu_hook")
       if importlib.util.find_spec(name) is not None])
import tensorflow
import autogpu.policy, pathlib, os
here = pathlib.Path.cwd()
resolved = autogpu.policy.resolve(os.environ, script=here / "x.py", working_directory=here)
print(resolved.policy.count, [*resolved.problems], autogpu.__file__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", each_python())
def test_python_of_another_environment_has_autogpu_and_the_policy(version, tmp_path):
    subprocess.run(
        [str(interpreter(version)), "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True, timeout=60
    )
    throwaway.write(tmp_path, {"look.py": LOOK, "tensorflow.py": "", "autogpu.toml": "[select]\ncount = 3\n"})
    command = [*AUTOGPU, "run", "--", str(tmp_path / "env" / "bin" / "python"), "-W", "error", "look.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    importable = "['autogpu', '_autogpu_hook']"
    assert done.stdout.splitlines() == [importable, f"3 [] {ROOT / 'autogpu' / '__init__.py'}"], done.stderr
    assert done.stderr == ""


INLINE = """
# /// script
# requires-python = ">=3.9"
# dependencies = []
# ///
import sys, tensorflow
print(sys.prefix, "autogpu.activation" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [("run", "--quiet"), ("tool", "run", "--quiet")], ids=["uv-run", "uvx"])
def test_temporary_environment_of_uv_has_autogpu(tmp_path, command):
    throwaway.write(tmp_path, {"train.py": INLINE, "tensorflow.py": ""})
    python = [] if command[0] == "run" else ["python"]
    own = [uv.find_uv_bin(), *command, "--offline", "--python", str(interpreter("3.9") or sys.executable), *python]
    environ = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [*AUTOGPU, "run", "--", *own, "train.py"],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    prefix, has_autogpu = done.stdout.split() or ("", done.stderr)
    assert (prefix != sys.prefix, has_autogpu) == (True, "True")


@pytest.mark.slow
def test_command_without_autogpu_prints_one_line_and_runs(tmp_path):
    command = [*AUTOGPU, "run", "--", "python3.11", "-I", "-c", "print('ran')"]
    path = f"{interpreter('3.11').parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    said = "autogpu: python3.11 runs without autogpu: -I makes Python ignore PYTHONPATH\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", said)
