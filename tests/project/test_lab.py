"""``make lab``: a living server behind a shell, which others join, and of which nothing is left."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pytest

from demo.lab.scene import PEOPLE, UNMANAGED, comings, scene_for
from tests.gpusim.fleets import FLEETS
from tests.support.environments import ROOT

PATIENCE_S = 120
PROMPT = "lab$ "


class Terminal:
    """A person at a terminal of their own who has typed ``make lab``, or rather what that runs."""

    def __init__(self, folder, *arguments):
        self._own, terminal = pty.openpty()
        self._left = ""

        def take_terminal():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        # The person's own start-up file is no part of this.
        environ = {**os.environ, "TMPDIR": str(folder), "HOME": str(folder), "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "demo.lab", *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=ROOT,
            env=environ,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(terminal)
        self.shown = self.until(PROMPT)

    def until(self, words):
        """What is shown from the last time on up to these words, and them."""
        end_s = time.monotonic() + PATIENCE_S
        while words not in self._left:
            assert select.select([self._own], [], [], max(0.0, end_s - time.monotonic()))[0], self._left
            try:
                self._left += os.read(self._own, 65536).decode(errors="replace")
            except OSError:  # Linux says so that no process has it open any more
                raise AssertionError(f"closed after {self._left!r}") from None
        before, _, self._left = self._left.partition(words)
        return before + words

    def type(self, line):
        """What is shown for a line, from its end to the next prompt."""
        os.write(self._own, f"{line}\n".encode())
        self.until("\n")
        return self.until(PROMPT).replace("\r", "")[: -len(PROMPT)]

    def close(self):
        """As the window that it is in."""
        if self._own is not None:
            os.close(self._own)
            self._own = None

    def end(self):
        self.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=PATIENCE_S)


@pytest.fixture
def terminals():
    """Opens terminals on a lab of their own; a short path, for it is in the environment of all that they start."""
    opened = []
    with tempfile.TemporaryDirectory(prefix="lab-test-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)

        def open_one(*arguments):
            opened.append(Terminal(folder, *arguments))
            return opened[-1]

        open_one.folder = folder
        yield open_one
        for terminal in opened:
            terminal.end()


def processes_of(folder):
    """Every process that is alive and was started, by whatever way, below one whose TMPDIR is ``folder``."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit() and f"TMPDIR={folder}\0".encode() in (each / "environ").read_bytes():
                found.append(int(each.name))
        except OSError:  # it has just ended, or is not ours
            continue
    return found


def wait_until_nothing_is_left(folder):
    end_s = time.monotonic() + PATIENCE_S
    while processes_of(folder):
        assert time.monotonic() < end_s, [Path(f"/proc/{pid}/cmdline").read_text() for pid in processes_of(folder)]
        time.sleep(0.05)


def test_the_server_lives_and_others_join(terminals):
    first = terminals("--fleet", "rtx-4090")
    assert "8 GPUs (rtx-4090)" in first.shown
    found = json.loads(first.type("autogpu status --json"))
    jobs = [job for gpu in found["gpus"] for job in gpu["jobs"]]
    assert {"ipykernel_launcher.py", "bert.py", "resnet.py", "train.py", "eval.py"} <= {job["script"] for job in jobs}
    (notebook,) = [gpu for gpu in found["gpus"] if gpu["state"] == "idle_lease"]
    assert notebook["jobs"][0]["age_s"] > 25 * 3600
    assert [gpu["index"] for gpu in found["gpus"] if gpu["unmanaged_processes"]] == [0]
    assert max(len(gpu["jobs"]) for gpu in found["gpus"]) == 2
    assert found["queue"][0]["script"] == "sweep.py"
    assert found["unreadable"] == [{"index": 7, "reason": found["unreadable"][0]["reason"]}]
    owners = {job["uid"] for job in jobs}
    assert len(owners) >= 4 if os.getuid() == 0 else owners == {os.getuid()}

    second = terminals()
    assert "A shell on the server that runs already" in second.shown
    assert "ipykernel_launcher.py" in second.type("autogpu status")
    assert "GPU" in second.type("autogpu pick --explain")
    held = second.type("autogpu run --hold --need 1GiB -- autogpu status --mine | cat")
    assert " for autogpu: " in held, held
    first.type("sleep 1000 &")
    os.write(first._own, b"exit\n")
    assert first.process.wait(timeout=PATIENCE_S) == 0
    assert "The server has ended." in second.until("ended.")
    assert second.process.wait(timeout=PATIENCE_S) == 0
    wait_until_nothing_is_left(terminals.folder)
    assert list(Path(terminals.folder).glob("autogpu-lab-*")) == [], "no folder either"


@pytest.mark.parametrize("end", ["terminal", "kill-shell", "kill-lab", "told"])
def test_nothing_is_left_however_it_ends(terminals, end):
    first = terminals("--fleet", "t4")
    shell = int(first.type("echo $$"))
    # One in the background, one that has left the shell's session, and one that ignores a hangup.
    first.type("sleep 1000 &")
    first.type("nohup sleep 1001 > /dev/null 2>&1 &")
    if end != "kill-lab":
        first.type("setsid sleep 1002 > /dev/null 2>&1 < /dev/null &")
    second = terminals()
    if end == "terminal":
        first.close()
    else:
        pid = shell if end == "kill-shell" else first.process.pid
        os.kill(pid, signal.SIGTERM if end == "told" else signal.SIGKILL)
    first.process.wait(timeout=PATIENCE_S)
    second.process.wait(timeout=PATIENCE_S)
    if end == "kill-lab":
        # What asks to outlive a hangup does so where the one process that would end it is killed itself.
        for pid in processes_of(terminals.folder):
            if "1001" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
    wait_until_nothing_is_left(terminals.folder)


@pytest.mark.parametrize("name", FLEETS)
def test_every_server_that_ships_can_be_had(terminals, name):
    page = terminals("--fleet", name).type("autogpu status")
    assert all(who in page for who in ("dora", "anna"))
    assert "fatma" in page, "one waits"


@pytest.mark.parametrize("name", [name for name in FLEETS if name != "a100-mig"])
def test_a_scene_fits_the_servers_that_ship(name):
    gpus = len(FLEETS[name].gpus)
    scene = scene_for(gpus)
    assert scene.lost == gpus - 1
    taken = sum(int((part.settings or {}).get("AUTOGPU_COUNT", "1")) for part in scene.parts)
    assert taken >= gpus - 1, "there is something on every GPU, or one is left"
    assert UNMANAGED in scene.parts
    assert len({part.script for part in scene.parts}) == len(scene.parts), "a picture tells them apart by it"


def test_what_comes_is_the_same_for_a_seed():
    def first_ten(seed):
        return [part for (_, part), _ in zip(comings(seed), range(10))]

    assert first_ten(1) == first_ten(1) != first_ten(2)
    assert {part.who for part in first_ten(1)} <= set(PEOPLE)
    assert all(part.stays_s for part in first_ten(1)), "each goes again"
