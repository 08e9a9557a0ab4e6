"""An environment for one Python with the real hook and stand-ins that write down what happens to them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Sequence

from autogpu.install import template
from tests.support.environments import ROOT

TEMPLATES = ROOT / "sitecustomize_template"
TIMEOUT_S = 60

# One write per line with O_APPEND: children and threads write to the same file.
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


@dataclass(frozen=True)
class Ran:
    """One finished process: what it wrote, and the events in their order."""

    returncode: int
    stdout: str
    stderr: str
    events: tuple[str, ...]

    @property
    def steps(self) -> str:
        return " ".join(event.split()[0] for event in self.events)


@dataclass(frozen=True)
class Throwaway:
    python: Path
    version: tuple[int, int]
    site_packages: Path

    def run(
        self,
        code: str,
        folder: Path,
        *,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        as_file: bool = False,
    ) -> Ran:
        events = folder / "events"
        if as_file:
            script = folder / "script.py"
            script.write_text(code)
            command = [str(self.python), *options, str(script)]
        else:
            command = [str(self.python), *options, *(["-c", code] if code else [])]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=str(folder),
            env={**os.environ, "EVENTS": str(events), **(environ or {})},
            check=False,
        )
        lines = tuple(events.read_text().splitlines()) if events.exists() else ()
        return Ran(done.returncode, done.stdout, done.stderr, lines)

    def run_without_hook(self, code: str, folder: Path, *, environ: Mapping[str, str]) -> Ran:
        """The same start, but for ``site``: no ``.pth`` is read."""
        environ = {**environ, "PYTHONPATH": str(self.site_packages)}
        return self.run(code, folder, options=["-S"], environ=environ, as_file=True)


def make(base: Path, version: tuple[int, int], folder: Path) -> Throwaway:
    subprocess.run(
        [str(base), "-m", "venv", "--without-pip", str(folder)], check=True, timeout=TIMEOUT_S, capture_output=True
    )
    site_packages = next((folder / "lib").glob("python3*")) / "site-packages"
    write(site_packages, PACKAGES)
    for name in ("_autogpu_hook.py", "_autogpu_steps.py", "autogpu.pth"):
        (site_packages / name).write_bytes(template(TEMPLATES, name).read_bytes())
    return Throwaway(folder / "bin" / "python", version, site_packages)


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
