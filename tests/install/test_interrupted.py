"""Installs and uninstalls that are killed at each step, run at once, or find no room: the next one succeeds."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator

import pytest

from tests.install.test_install import tree
from tests.support import environments

TIMEOUT_S = 120

# Runs a verb, and dies just before the change of a number that it is given; ends by itself where there are fewer.
KILLED = """
import os, signal, sys
number, folder = int(sys.argv[1]), sys.argv[2]
seen = 0

def on_event(event, arguments):
    global seen
    is_change = event in ("os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link")
    is_change = is_change or (event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT)
    if is_change and any(folder in str(argument) for argument in arguments):
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

from autogpu.cli.main import run
sys.addaudithook(on_event)
status = run(sys.argv[3:])
print(seen)
sys.exit(status)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the wheel, in which nothing has been installed yet."""
    folder = tmp_path_factory.mktemp("env") / "venv"
    base = environments.interpreter("3.11")
    if base is None:
        pytest.skip("no Python 3.11 on this machine")
    subprocess.run([str(base), "-m", "venv", "--without-pip", str(folder)], check=True, timeout=TIMEOUT_S)
    made = folder / "bin" / "python"
    wheel = str(environments.wheel())
    pip = [sys.executable, "-m", "pip", "--python", str(made), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, wheel], check=True, timeout=TIMEOUT_S)
    return made


@pytest.fixture
def packages(python: Path) -> Iterator[Path]:
    """Its site-packages, which must be the same byte for byte after the test."""
    folder = next((python.parent.parent / "lib").glob("python3*")) / "site-packages"
    before = tree(folder)
    yield folder
    done = autogpu(python, "uninstall")
    assert done.returncode == 0, done.stderr
    assert tree(folder) == before


def started(python: Path, *arguments: str, **options: object) -> subprocess.Popen:
    # -B: what is compiled on the way is no start-up file, and would differ in the comparison of the trees.
    pipe = subprocess.PIPE
    return subprocess.Popen([str(python), "-B", *arguments], stdout=pipe, stderr=pipe, text=True, **options)


def ended(process: subprocess.Popen) -> subprocess.CompletedProcess:
    out, errors = process.communicate(timeout=TIMEOUT_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def autogpu(python: Path, *arguments: str, **options: object) -> subprocess.CompletedProcess:
    return ended(started(python, "-m", "autogpu", *arguments, **options))


def killed_at_each_step(python: Path, packages: Path, verb: str, prepare: Callable[[], None]) -> Iterator[int]:
    """Let the verb die before its first change, its second, and so on."""
    number = 0
    while True:
        number += 1
        prepare()
        done = ended(started(python, "-c", KILLED, str(number), str(packages), verb))
        if done.returncode != -signal.SIGKILL:
            assert (done.returncode, int(done.stdout.splitlines()[-1])) == (0, number - 1), done.stderr
            return
        yield number


def test_an_install_killed_at_any_step_is_completed_by_the_next(python, packages):
    before = tree(packages)
    steps = 0
    for steps in killed_at_each_step(python, packages, "install", lambda: autogpu(python, "uninstall")):
        done = autogpu(python, "install")
        assert done.returncode == 0, f"after step {steps}: {done.stderr}"
    print(f"\ninstall: killed before each of its {steps} changes; the next install and uninstall succeeded")
    assert steps > 10
    assert autogpu(python, "uninstall").returncode == 0
    assert tree(packages) == before


@pytest.mark.parametrize(("verb", "other"), [("install", "uninstall"), ("uninstall", "install")])
def test_after_a_kill_at_any_step_an_uninstall_leaves_everything_as_it_was(python, packages, verb, other):
    before = tree(packages)
    step = 0
    for step in killed_at_each_step(python, packages, verb, lambda: autogpu(python, other)):
        done = autogpu(python, "uninstall")
        assert done.returncode == 0, f"after step {step}: {done.stderr}"
        assert tree(packages) == before, f"after step {step}"
    print(f"\n{verb}: killed before each of its {step} changes; an uninstall left the tree byte for byte as before")


def test_six_at_once_in_a_fresh_environment_all_succeed(python, packages):
    before = tree(packages)
    for verbs in (["install"] * 6, ["uninstall", "install"] * 3):
        for done in [ended(each) for each in [started(python, "-m", "autogpu", verb) for verb in verbs]]:
            assert done.returncode == 0, done.stderr
        assert autogpu(python, "uninstall").returncode == 0
        assert tree(packages) == before


@pytest.mark.parametrize("most_bytes", [0, 100, 1500, 4200], ids=str)
@pytest.mark.parametrize("earlier", [False, True], ids=["fresh", "damaged"])
def test_where_no_more_can_be_written_nothing_changes(python, packages, most_bytes, earlier):
    if earlier:
        assert autogpu(python, "install").returncode == 0
        (packages / "_autogpu_hook.py").write_text("# autogpu start-up file, of an earlier version\n")
    before = tree(packages)

    def as_on_a_full_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    done = autogpu(python, "install", preexec_fn=as_on_a_full_disk)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr
    assert tree(packages) == before
    assert autogpu(python, "install").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_disk_that_is_read_only_is_named_and_nothing_changes(python, packages):
    assert autogpu(python, "install").returncode == 0
    before = tree(packages)
    for options in (["--bind"], ["-o", "remount,bind,ro"]):
        mounted = subprocess.run(
            ["mount", *options, str(packages), str(packages)], capture_output=True, timeout=10, check=False
        )
        if mounted.returncode:
            pytest.skip(f"nothing can be mounted: {mounted.stderr.decode().strip()}")
    try:
        done = autogpu(python, "uninstall")
    finally:
        subprocess.run(["umount", "--lazy", str(packages)], timeout=10, check=True)
    assert (done.returncode, "Read-only file system" in done.stderr) == (1, True), done.stderr
    assert tree(packages) == before
