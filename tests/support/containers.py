"""Containers as the kernel sees them: namespaces of their own for mounts and processes."""

from __future__ import annotations

import os
import shutil
import subprocess

# Started as [*CONTAINER, SHARED or PRIVATE, "sh", *command].
CONTAINER = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--", "sh", "-c")

# With the host's lease folder, or with one that no process outside sees.
SHARED = 'exec "$@"'
PRIVATE = 'mount -t tmpfs -o mode=1777 none "$AUTOGPU_LEASE_DIR" && exec "$@"'


def _why_none() -> str:
    if shutil.which("unshare") is None:
        return "no unshare on this machine"
    if os.geteuid():
        return "new namespaces for mounts need root"
    done = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, timeout=60, check=False)
    return f"this machine allows no namespaces: {done.stderr.strip()}" if done.returncode else ""


# Why there can't be one here; empty where there can.
NO_NAMESPACES = _why_none()
