"""Containers for tests: processes with their own mount and PID namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess

# The whole command is [*CONTAINER, SHARED or PRIVATE, "sh", *command].
CONTAINER = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--", "sh", "-c")

# SHARED keeps the host's lease folder. PRIVATE mounts a lease folder that no process outside the container sees.
SHARED = 'exec "$@"'
PRIVATE = 'mount -t tmpfs -o mode=1777 none "$AUTOGPU_LEASE_DIR" && exec "$@"'


def _why_none() -> str:
    if shutil.which("unshare") is None:
        return "no unshare on this machine"
    if os.geteuid():
        return "new namespaces for mounts need root"
    done = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, timeout=60, check=False)
    return f"this machine allows no namespaces: {done.stderr.strip()}" if done.returncode else ""


# The reason why this machine can't start such a container; empty if it can.
NO_NAMESPACES = _why_none()
