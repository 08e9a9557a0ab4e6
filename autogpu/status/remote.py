"""Ask other hosts for their status, all at once: ``autogpu status --json`` there, over plain ``ssh``."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import IO, Sequence

from autogpu.errors import AutoGpuError
from autogpu.reporting.text import printable, span
from autogpu.status.json import from_json
from autogpu.status.model import Answer, HostStatus

# 64 GPUs with 2,000 processes on them are 0.5 MB. A host that prints without end must not fill this one's disk; the
# shell's limit is in units of 512 bytes.
_MOST_MIB = 4
_LIMITED = ["sh", "-c", f'ulimit -f {_MOST_MIB * 2048}; exec "$@"', "sh"]

# It must never ask for a password; the rest is said in ssh_config(5).
_SSH = ["ssh", "-T", "-o", "BatchMode=yes", "--"]

# What ssh itself and a shell end with. ssh(1), EXIT STATUS; POSIX, 2.8.2.
_EXIT_SSH, _EXIT_NOT_FOUND = 255, 127


def ask(hosts: Sequence[str], command: str, timeout_s: float) -> tuple[Answer, ...]:
    """The status of each host, in that order; each may take so long. A terminal's Ctrl-C ends each ``ssh`` as well.

    Args:
        command: What starts autogpu there, as the remote shell reads it.

    Raises:
        AutoGpuError: There is no ``ssh`` here.
    """
    if not shutil.which("ssh"):
        raise AutoGpuError("there is no ssh on this machine", remedy="install OpenSSH's client")
    with ThreadPoolExecutor(len(hosts)) as pool:
        return tuple(pool.map(partial(_ask, command=command, timeout_s=timeout_s), hosts))


def _ask(host: str, command: str, timeout_s: float) -> Answer:
    # Into files: a pipe may be kept open by what ssh leaves in the background.
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        command_line = [*_LIMITED, *_SSH, host, f"{command} status --json"]
        nothing = subprocess.DEVNULL
        try:
            ended = subprocess.run(
                command_line, stdin=nothing, stdout=printed, stderr=errors, timeout=timeout_s, check=False
            ).returncode
            said = _read(errors).strip().split("\n")[-1].strip()
            return Answer(host, _status_in(ended, _read(printed), said))
        except subprocess.TimeoutExpired:
            return Answer(host, None, f"no answer within {span(timeout_s)}")
        except ValueError as error:
            return Answer(host, None, printable(str(error), 400))


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _status_in(ended: int, text: str, said: str) -> HostStatus:
    """Read the status that a command at the host printed before it ended; a ValueError says why there is none."""
    hint = "--remote-command says how it is started there"
    if ended == -signal.SIGXFSZ:
        raise ValueError(f"its answer is longer than {_MOST_MIB} MiB")
    if ended == _EXIT_SSH:
        raise ValueError(said or "ssh failed and does not say why")
    if ended == _EXIT_NOT_FOUND:
        raise ValueError(f"{said or 'autogpu was not found'}; {hint}")
    # With a driver that can't be read its status is 1, and says so.
    if ended not in (0, 1) or not text.strip():
        raise ValueError(f"what was started there ended with status {ended}{said and f': {said}'}")
    if "{" not in text:
        raise ValueError(f"what was printed there is no status of autogpu; {hint}")
    # Behind what a start-up file of the remote shell may have printed.
    begin = 0 if text.startswith("{") else text.find("\n{") + 1
    try:
        values, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError) as error:  # no JSON, numbers without end, too deep
        raise ValueError(f"this is not what `autogpu status --json` prints: {error}") from None
    return from_json(values)
