"""A real browser without a window: Debian's Chromium."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

# Chromium must not use the network by itself: no updates, no downloaded lists, no names of other hosts.
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-breakpad"),
)
_ONLY_THIS_HOST = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


NO_CHROMIUM = "no chromium on this machine; Debian's package of that name has it"


def chromium() -> str | None:
    return shutil.which("chromium")


def browse(address: str, folder: Path, *options: str, is_dark: bool = False, timeout_s: float = 60.0) -> str:
    """Return Chromium's stdout for ``address``. ``folder`` must be empty; it becomes Chromium's home."""
    scheme = f"--blink-settings=preferredColorScheme={0 if is_dark else 1}"
    home = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    command = [chromium() or "chromium", *_OPTIONS, _ONLY_THIS_HOST, f"--user-data-dir={folder / 'profile'}", scheme]
    with subprocess.Popen(
        [*command, *options, address],
        env=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
        encoding="utf-8",
    ) as browser:
        try:
            printed, _ = browser.communicate(timeout=timeout_s)
        finally:
            # Chromium's helper processes are in its process group.
            with suppress(ProcessLookupError):
                os.killpg(browser.pid, signal.SIGKILL)
    if browser.returncode:
        raise RuntimeError(f"Chromium ended with status {browser.returncode}")
    return printed
