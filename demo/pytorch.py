"""Environments with the PyTorch of the shell that ran ``make``, for the demo and the lab."""

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
print(json.dumps([sys.executable, getattr(sys, "_base_executable", sys.executable), folder, cuda]))
"""


def pythons_with_torch() -> tuple[Path, Path] | None:
    """Return the Pythons of two environments, without and with autogpu, on top of the shell's environment.

    Return ``None`` if the shell's ``python`` has no PyTorch for CUDA.
    """
    python = shutil.which("python")
    if python is None:
        return None
    asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=60, check=False)
    if asked.returncode:
        return None
    executable, base, folder, cuda = json.loads(asked.stdout)
    below = Path(executable)
    # With a system's Python, PyTorch may be outside site-packages. The new environments would not find it there.
    if not cuda or Path(folder).parent not in below.parent.parent.glob("lib/python*/site-packages"):
        return None
    plain = environments.environment(Path(base), on_top_of=below, with_autogpu=False)
    return plain, environments.environment(Path(base), on_top_of=below, with_hook=True)
