"""Pairs of environments, without and with autogpu, for the demo and the lab."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.support import environments

_ASK = """
import importlib.util, json, os, runpy, sys
spec = importlib.util.find_spec("torch")
folder = spec.submodule_search_locations[0] if spec else ""
cuda = spec and runpy.run_path(os.path.join(folder, "version.py")).get("cuda")
print(json.dumps([sys.executable, folder, cuda]))
"""


def pythons_on_top_of(python: Path) -> tuple[Path, Path]:
    """Return the Pythons of two environments that see the packages of ``python``'s: without and with autogpu."""
    plain = environments.environment(python.resolve(), on_top_of=python, with_autogpu=False)
    return plain, environments.environment(python.resolve(), on_top_of=python, with_hook=True)


def pythons_with_torch() -> tuple[Path, Path] | None:
    """Return the pair on top of the shell's ``python``; ``None`` if that has no PyTorch for CUDA."""
    python = shutil.which("python")
    if python is None:
        return None
    asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=60, check=False)
    if asked.returncode:
        return None
    executable, folder, cuda = json.loads(asked.stdout)
    below = Path(executable)
    # With a system's Python, PyTorch may be outside site-packages. The new environments would not find it there.
    if not cuda or Path(folder).parent not in below.parent.parent.glob("lib/python*/site-packages"):
        return None
    return pythons_on_top_of(below)
