"""``make lab``: a living server behind a shell, which others join, and of which nothing is left."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gpusim.fleets import FLEETS
from tests.support.environments import ROOT
from tests.support.terminal import PATIENCE_S, Terminal


@pytest.fixture
def terminals():
    """Opens terminals on a lab of their own; a short path, for it is in the environment of all that they start."""
    with tempfile.TemporaryDirectory(prefix="lab-test-", ignore_cleanup_errors=True) as folder, ExitStack() as opened:
        Path(folder).chmod(0o755)
        # The person's own start-up file is no part of this.
        environ = {**os.environ, "TMPDIR": folder, "HOME": folder}

        def open_one(*arguments):
            command = [sys.executable, "-m", "demo.lab", *arguments]
            return opened.enter_context(Terminal(ROOT, environ, command, r"lab\$ "))

        open_one.folder = folder
        try:
            yield open_one
        finally:
            opened.close()
            for pid in processes_of(folder):
                os.kill(pid, signal.SIGKILL)


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
        time.sleep(0.02)


@pytest.mark.slow
def test_the_server_lives_and_others_join(terminals):
    first = terminals("--fleet", "rtx-4090")
    assert "8 GPUs (rtx-4090)" in first.greeting
    found = json.loads(first.type("autogpu status --json").text)
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
    assert "A shell on the server that runs already" in second.greeting
    assert "ipykernel_launcher.py" in second.type("autogpu status").text
    held = second.type("autogpu run --hold --need 1GiB -- autogpu status --mine | cat").text
    assert " for autogpu: " in held, held
    first.type("sleep 1000 &")
    first.write("exit\n")
    assert first.process.wait(timeout=PATIENCE_S) == 0
    second.until(r"The server has ended\.")
    assert second.process.wait(timeout=PATIENCE_S) == 0
    wait_until_nothing_is_left(terminals.folder)
    assert list(Path(terminals.folder).glob("autogpu-lab-*")) == [], "no folder either"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["terminal", "kill-shell", "kill-lab", "told"])
def test_nothing_is_left_however_it_ends(terminals, end):
    first = terminals("--fleet", "t4")
    shell = int(first.type("echo $$").text)
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


@pytest.mark.slow
@pytest.mark.turns(4)
@pytest.mark.parametrize("name", [name for name in FLEETS if name not in ("rtx-4090", "t4")])
def test_every_server_that_ships_can_be_had(terminals, name):
    page = terminals("--fleet", name).type("autogpu status").text
    # The last one waits.
    assert [who for who in ("dora", "anna", "fatma") if who not in page] == []
