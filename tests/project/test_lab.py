"""``make lab``: a living server behind a shell, which others join, and of which nothing is left."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.failure_modes.holding import ALICE, as_user, needs_other_users
from tests.gpusim.build import build
from tests.gpusim.fleets import FLEETS
from tests.lease.conftest import until
from tests.support.environments import ROOT
from tests.support.terminal import PATIENCE_S, Terminal


@pytest.fixture
def terminals():
    """Opens terminals on a lab of their own; a short path, for it is in the environment of all that they start."""
    with tempfile.TemporaryDirectory(prefix="lab-test-", ignore_cleanup_errors=True) as folder, ExitStack() as opened:
        Path(folder).chmod(0o755)
        # The person's own start-up file is no part of this.
        environ = {**os.environ, "TMPDIR": folder, "HOME": folder}

        def open_one(*arguments, before=()):
            command = [*before, sys.executable, "-m", "demo.lab", *arguments]
            return opened.enter_context(Terminal(ROOT, environ, command, r"lab\$ "))

        terminals: Any = open_one
        terminals.folder = folder
        terminals.environ = environ
        try:
            yield terminals
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


@pytest.mark.slow
def test_the_server_lives_and_others_join(terminals):
    first = terminals("--fleet", "rtx-4090")
    assert "8 GPUs (rtx-4090)" in first.greeting
    found = json.loads(first.type("autogpu status --json").text)
    jobs = [job for gpu in found["gpus"] for job in gpu["jobs"]]
    scripts = {job["script"].rpartition("-")[2] for job in jobs}
    assert {"ipykernel_launcher.py", "bert.py", "resnet.py", "train.py", "eval.py"} <= scripts
    assert sum(gpu["state"] == "free" for gpu in found["gpus"]) == 1, "for the visitor"
    (notebook,) = [gpu for gpu in found["gpus"] if gpu["state"] == "idle_lease"]
    assert notebook["jobs"][0]["age_s"] > 25 * 3600
    assert [gpu["index"] for gpu in found["gpus"] if gpu["unmanaged_processes"]] == [0]
    assert max(len(gpu["jobs"]) for gpu in found["gpus"]) == 2
    assert found["queue"][0]["script"] == "sweep.py"
    assert [gpu["index"] for gpu in found["unreadable"]] == [7]
    owners = {job["uid"] for job in jobs}
    assert len(owners) >= 4 if os.getuid() == 0 else owners == {os.getuid()}

    if "To be one of them: su anna" in first.greeting:
        assert "train.py" in first.type("su anna -c 'autogpu status --mine' | cat").text
    elif os.getuid() == 0:
        assert "this checkout or its Python is closed to them" in first.greeting

    other = [sys.executable, "-m", "demo.lab", "--fleet", "t4"]
    done = subprocess.run(other, cwd=ROOT, env=terminals.environ, capture_output=True, timeout=120, check=False)
    assert b"a server runs already, and it is rtx-4090; end that first" in done.stderr
    second = terminals()
    assert "A shell on the server that runs already" in second.greeting
    assert "ipykernel_launcher.py" in second.type("autogpu status").text
    assert "not reserved: the idlest of 7" in first.type("autogpu pick").text
    held = second.type("autogpu run --hold -- autogpu status --mine | cat").text
    assert re.search(r"GPU \d for autogpu: the idlest of 7", held), held
    assert re.search("ok +environment", first.type("autogpu doctor").text)
    assert f"{terminals.folder}/" in first.type('echo "$XDG_STATE_HOME"').text, "of simulated runs"
    first.type("sleep 1000 &")
    first.write("exit\n")
    assert first.process.wait(timeout=PATIENCE_S) == 0
    second.until(r"The server has ended\.")
    assert second.process.wait(timeout=PATIENCE_S) == 0
    until(lambda: not processes_of(terminals.folder), PATIENCE_S)
    assert list(Path(terminals.folder).glob("autogpu-lab*")) == [], "no folder either"


@needs_other_users
@pytest.mark.slow
def test_for_a_plain_user_scripts_say_whose_they_are(terminals):
    Path(terminals.folder).chmod(0o1777)
    build()  # who may not write in the checkout finds it there
    lab = terminals("--fleet", "t4", before=as_user(ALICE))
    assert "all are you here" in lab.greeting
    assert "only root can" in lab.greeting
    page = lab.type("autogpu status").text
    assert [name for name in ("chen-ipyk", "anna-train.py", "fatma-sweep.py") if name not in page] == []
    assert "1 of 4 GPUs free" in page


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
    until(lambda: not processes_of(terminals.folder), PATIENCE_S)


@pytest.mark.slow
@pytest.mark.turns(4)
@pytest.mark.parametrize("name", [name for name in FLEETS if name not in ("rtx-4090", "t4")])
def test_every_server_that_ships_can_be_had(terminals, name):
    page = terminals("--fleet", name).type("autogpu status").text
    assert "0 of" not in page.splitlines()[0], "the visitor finds a free one"
    # The last one waits.
    assert [who for who in ("dora", "anna", "fatma") if who not in page] == []
