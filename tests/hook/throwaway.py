"""An environment for one Python, with the real hook and stand-in packages that log their imports."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from autogpu.install import template_file
from tests.support.environments import ROOT

TEMPLATES = ROOT / "sitecustomize_template"
TIMEOUT_S = 60

# Write each line with one write() and O_APPEND, because child processes and threads share the file.
LOG = """
import os

def log(*words):
    descriptor = os.open(os.environ["EVENTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, (" ".join(map(str, words)) + "\\n").encode())
    os.close(descriptor)
"""

ACTIVATION = """
import os
from events import log

def fail(step):
    failure = os.environ.get("FAIL_" + step)
    if failure:
        raise {"ZeroDivisionError": ZeroDivisionError, "SystemExit": SystemExit}[failure](step + "\\nfailed")

def before_import(framework, started_with):
    assert framework == "tensorflow", framework
    log("before", started_with)
    fail("BEFORE")

def after_import(framework, module):
    assert framework == "tensorflow" and module.__name__ == "tensorflow", (framework, module)
    log("after")
    fail("AFTER")
    module.configured = True
"""

TENSORFLOW = """
import os
from events import log

log("body")
failure = os.environ.pop("FAIL_BODY", None)
if failure == "ImportError":
    import missing_library
elif failure:
    raise {"ZeroDivisionError": ZeroDivisionError, "KeyboardInterrupt": KeyboardInterrupt}[failure]("body")
keras_api = 1
"""

PACKAGES = {
    "events.py": LOG,
    "autogpu/__init__.py": "",
    "autogpu/activation.py": ACTIVATION,
    "tensorflow/__init__.py": TENSORFLOW,
    "tensorflow/python.py": "",
    "tensorflow/tool.py": "import sys, tensorflow\nassert tensorflow.configured\n",
    "tensorflow/data.txt": "data",
    "keras/__init__.py": "import tensorflow\n",
}


_UNREAD = """
import fcntl, os, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
reading, writing = os.pipe()
{}
os.dup2(writing, 2)
import tensorflow
os.write(1, b"alive")
os._exit(0)
"""
_FULL = """
fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
try:
    while True:
        os.write(writing, b"x" * 4096)
except BlockingIOError:
    fcntl.fcntl(writing, fcntl.F_SETFL, 0)
"""

# Scripts that import TensorFlow while their stderr is not read, keyed by the reason.
UNREAD = {
    "pipe-without-a-reader": _UNREAD.format("os.close(reading)"),
    "full-pipe": _UNREAD.format(_FULL),
    "stderr-is-none": _UNREAD.format("sys.stderr = None"),
}


@dataclass(frozen=True)
class Ran:
    """Output of a finished process, and the events that it logged, in their order."""

    returncode: int
    stdout: str
    stderr: str
    events: tuple[str, ...]

    @property
    def steps(self):
        return " ".join(event.split()[0] for event in self.events)


@dataclass(frozen=True)
class Throwaway:
    python: Path
    version: tuple[int, int]
    site_packages: Path

    def run(self, program, folder, *, options=(), environ=None):
        """Run a script, or the text of a program, in ``folder``. Its events go to the file ``folder/events``."""
        events = folder / "events"
        named = [str(program)] if isinstance(program, Path) else ["-c", program] if program else []
        command = [str(self.python), *options, *named]
        given = {**os.environ, "EVENTS": str(events), **(environ or {})}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=folder, env=given, check=False
        )
        lines = tuple(events.read_text().splitlines()) if events.exists() else ()
        return Ran(done.returncode, done.stdout, done.stderr, lines)


def make(base, version, folder, starters=("autogpu.pth",)):
    command = [str(base), "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True, timeout=TIMEOUT_S, capture_output=True)
    site_packages = next((folder / "lib").glob("python3*")) / "site-packages"
    write(site_packages, PACKAGES)
    for name in ("_autogpu_hook.py", "_autogpu_steps.py", *starters):
        (site_packages / name).write_bytes(template_file(TEMPLATES, name).read_bytes())
    return Throwaway(folder / "bin" / "python", version, site_packages)


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
