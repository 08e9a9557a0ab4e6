"""Installs and uninstalls that are killed at each step, run at once, or find no room: the next one succeeds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Iterator

import pytest

from tests.install.test_install import installed, tree
from tests.support import environments

pytestmark = [pytest.mark.thorough, pytest.mark.slow, pytest.mark.xdist_group("interrupted")]

# For each line: runs verbs at once, each in a process of its own that has imported what a verb needs. Such a process
# dies just before the change of a number that it is given, or can write no files larger than so many bytes.
VERBS = """
import json, os, resource, signal, sys
from autogpu.cli import install, main

def run(verb, folder, number, most_bytes):
    seen = 0
    def on_event(event, arguments):
        nonlocal seen
        is_change = event in ("os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link")
        is_change = is_change or (event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT)
        if is_change and any(folder in str(argument) for argument in arguments):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    sys.addaudithook(on_event)
    status = main.run([verb])
    print(seen, flush=True)
    return status

for line in sys.stdin:
    asked = json.loads(line)
    started = []
    for verb in asked.pop("verbs"):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            os._exit(run(verb, **asked))
        os.close(writer)
        started.append((pid, reader))
    answer = []
    for pid, reader in started:
        with open(reader) as stream:
            said = stream.read()
        status = os.waitpid(pid, 0)[1]
        answer.append((-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), said))
    print(json.dumps(answer), flush=True)
"""


class Verbs:
    """What runs verbs of autogpu in an environment.

    Attributes:
        packages: The folder that they work on.
    """

    def __init__(self, python: Path) -> None:
        self.packages = environments.site_packages(python)
        # -B: what is compiled on the way is no start-up file, and would differ in the comparison of the trees.
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([str(python), "-B", "-c", VERBS], text=True, **pipes)

    def at_once(self, *verbs: str, number: int = 0, most_bytes: int | None = None) -> list:
        """The status and the words of each."""
        asked = {"verbs": verbs, "folder": str(self.packages), "number": number, "most_bytes": most_bytes}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def run(self, verb: str, **options: int) -> tuple:
        ((status, said),) = self.at_once(verb, **options)
        return status, said

    def succeed(self, *verbs: str) -> None:
        for status, said in self.at_once(*verbs):
            assert status == 0, said

    def start(self) -> None:
        """A fresh Python of the environment starts, and says nothing."""
        command = [self.process.args[0], "-B", "-c", "pass"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def killed_at_each_step(self, verb: str, before: str) -> Iterator[int]:
        """Let the verb die before its first change, its second, and so on, each time after another verb."""
        number = 0
        while True:
            number += 1
            self.succeed(before)
            status, said = self.run(verb, number=number)
            if status != -signal.SIGKILL:
                assert (status, int(said.splitlines()[-1])) == (0, number - 1), said
                return
            yield number


@pytest.fixture(scope="module")
def running() -> Iterator[Verbs]:
    base = environments.interpreter("3.11")
    if base is None:
        pytest.skip("no Python 3.11 on this machine")
    started = Verbs(environments.environment(base, name="interrupted installs"))
    with started.process:
        yield started


@pytest.fixture
def verbs(running: Verbs) -> Iterator[Verbs]:
    """Its site-packages must be the same byte for byte after the test."""
    running.succeed("uninstall")
    before = tree(running.packages)
    yield running
    running.succeed("uninstall")
    assert tree(running.packages) == before


def test_an_install_killed_at_any_step_is_completed_by_the_next(verbs):
    steps = 0
    for steps in verbs.killed_at_each_step("install", before="uninstall"):
        verbs.start()
        status, said = verbs.run("install")
        assert status == 0, f"after step {steps}: {said}"
    print(f"\ninstall: killed before each of its {steps} changes; the next install and uninstall succeeded")
    assert steps > 10


@pytest.mark.parametrize(("verb", "other"), [("install", "uninstall"), ("uninstall", "install")])
def test_after_a_kill_at_any_step_an_uninstall_leaves_everything_as_it_was(verbs, verb, other):
    before = tree(verbs.packages)
    step = 0
    for step in verbs.killed_at_each_step(verb, before=other):
        verbs.start()
        verbs.succeed("uninstall")
        assert tree(verbs.packages) == before, f"after step {step}"
    print(f"\n{verb}: killed before each of its {step} changes; an uninstall left the tree byte for byte as before")


def test_an_upgrade_killed_at_any_step_leaves_a_silent_python_and_is_completed_by_the_next(verbs):
    verbs.succeed("install")
    after = installed(verbs.packages)
    hook, earlier = verbs.packages / "_autogpu_hook.py", "# autogpu start-up file, of an earlier version\n"

    def downgrade() -> None:
        verbs.succeed("uninstall")
        verbs.succeed("install")
        hook.write_text(earlier)
        (info,) = verbs.packages.glob("autogpu_autoload-*.dist-info")
        info.rename(verbs.packages / "autogpu_autoload-0.0.1.dist-info")

    step = 1
    downgrade()
    while verbs.run("install", number=step)[0] == -signal.SIGKILL:
        verbs.start()
        verbs.succeed("install")
        assert installed(verbs.packages) == after, f"after step {step}"
        downgrade()
        step += 1
    assert step > 10
    print(f"\nupgrade: killed before each of its {step - 1} changes; every Python start was silent")


def test_six_at_once_in_a_fresh_environment_all_succeed(verbs):
    before = tree(verbs.packages)
    for each in (["install"] * 6, ["uninstall", "install"] * 3):
        verbs.succeed(*each)
        verbs.succeed("uninstall")
        assert tree(verbs.packages) == before


@pytest.mark.parametrize("most_bytes", [0, 100, 1500, 4200], ids=str)
@pytest.mark.parametrize("earlier", [False, True], ids=["fresh", "damaged"])
def test_where_no_more_can_be_written_nothing_of_ours_is_left_and_the_next_install_succeeds(verbs, most_bytes, earlier):
    before = tree(verbs.packages)
    if earlier:
        verbs.succeed("install")
        for name in ("_autogpu_hook.py", "_autogpu_steps.py"):
            (verbs.packages / name).write_text("# autogpu start-up file, of an earlier version\n")
    status, said = verbs.run("install", most_bytes=most_bytes)
    assert (status, "Traceback" in said, "File too large" in said) == (1, False, True), said
    assert tree(verbs.packages) == before
    verbs.succeed("install")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_disk_that_is_read_only_is_named_and_nothing_changes(verbs):
    packages = str(verbs.packages)
    verbs.succeed("install")
    before = tree(verbs.packages)
    for options in (["--bind"], ["-o", "remount,bind,ro"]):
        mounted = subprocess.run(["mount", *options, packages, packages], capture_output=True, timeout=10, check=False)
        if mounted.returncode:
            pytest.skip(f"nothing can be mounted: {mounted.stderr.decode().strip()}")
    try:
        status, said = verbs.run("uninstall")
    finally:
        subprocess.run(["umount", "--lazy", packages], timeout=10, check=True)
    assert (status, "Read-only file system" in said) == (1, True), said
    assert tree(verbs.packages) == before
