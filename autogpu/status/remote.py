"""Ask other hosts for their status, all at once: ``autogpu status --json`` there, over plain ``ssh``."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import IO, Any, Mapping, Sequence

from autogpu.errors import AutoGpuError
from autogpu.frozen import Value
from autogpu.status import model
from autogpu.status.model import VERSION, Answer, HostStatus
from autogpu.text import printable, span

# 64 GPUs with 2,000 processes on them are 0.5 MB. A host that prints without end must not fill this one's disk; the
# shell's limit is in units of 512 bytes.
_MOST_MIB = 4
_LIMITED = ["sh", "-c", f'ulimit -f {_MOST_MIB * 2048}; exec "$@"', "sh"]

# For each host.
TIMEOUT_S = 10.0

# It must never ask for a password; the rest is said in ssh_config(5).
_SSH = ["ssh", "-T", "-o", "BatchMode=yes", "--"]

# What ssh itself ends with. ssh(1), EXIT STATUS.
_EXIT_SSH = 255

_MODELS = {name: kind for name, kind in vars(model).items() if isinstance(kind, type) and issubclass(kind, Value)}
_SCALARS: Mapping[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "int": (int,), "float": (int, float)}
_OR_NONE = " | None"

# Above every size, span and time; no calendar has a date for what is larger.
_TOO_LARGE = 1 << 53


def ask_hosts(hosts: Sequence[str], command: str) -> tuple[Answer, ...]:
    """The status of each host, in that order. A terminal's Ctrl-C ends each ``ssh`` as well.

    Args:
        command: What starts autogpu there, as the remote shell reads it.

    Raises:
        AutoGpuError: There is no ``ssh`` here.
    """
    if not shutil.which("ssh"):
        raise AutoGpuError("there is no ssh on this machine", remedy="install OpenSSH's client")
    with ThreadPoolExecutor(len(hosts)) as pool:
        return tuple(pool.map(partial(_ask_host, command=command), hosts))


def _ask_host(host: str, command: str) -> Answer:
    # Into files: a pipe may be kept open by what ssh leaves in the background.
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        command_line = [*_LIMITED, *_SSH, host, f"{command} status --json"]
        nothing = subprocess.DEVNULL
        try:
            ended = subprocess.run(
                command_line, stdin=nothing, stdout=printed, stderr=errors, timeout=TIMEOUT_S, check=False
            ).returncode
            said = _read(errors).strip().split("\n")[-1].strip()
            return Answer(host, _status_in(ended, _read(printed), said))
        except subprocess.TimeoutExpired:
            return Answer(host, None, f"no answer within {span(TIMEOUT_S)}")
        except ValueError as error:
            return Answer(host, None, printable(str(error), 400))


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _status_in(ended: int, text: str, said: str) -> HostStatus:
    """Read the status that a command at the host printed before it ended; a ValueError says why there is none."""
    if ended == -signal.SIGXFSZ:
        raise ValueError(f"its answer is longer than {_MOST_MIB} MiB")
    if ended == _EXIT_SSH:
        raise ValueError(said or "ssh failed and does not say why")
    # With a driver that can't be read its status is 1, and says so.
    if ended not in (0, 1) or "{" not in text:
        why = f"what was started there ended with status {ended}{said and f': {said}'} and printed no status of autogpu"
        raise ValueError(f"{why}; --remote-command says how it is started there")
    # Behind what a start-up file of the remote shell may have printed.
    begin = 0 if text.startswith("{") else text.find("\n{") + 1
    try:
        values, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError) as error:  # no JSON, numbers without end, too deep
        raise ValueError(f"this is not what `autogpu status --json` prints: {error}") from None
    return from_json(values)


def from_json(values: Mapping[str, Any]) -> HostStatus:
    """The status that ``to_json`` gave, here or on another host.

    Fields that this version does not know are ignored, and those that an older one lacks have their defaults.

    Raises:
        ValueError: It is no status of a version that this one can read.
    """
    if values.get("version") != VERSION:
        raise ValueError(f"this is not version {VERSION} of what `autogpu status --json` prints")
    try:
        status: HostStatus = _object(HostStatus, values)
    except (KeyError, TypeError, AttributeError) as error:
        why = f"it has no {error.args[0]}" if isinstance(error, KeyError) else error
        raise ValueError(f"this is not what `autogpu status --json` prints: {why}") from None
    return status


def _object(kind: type[Value], plain: Mapping[str, Any]) -> Any:
    # A field that came later has a default, for the hosts whose autogpu does not have it yet.
    names = [name for name in kind._fields if name in plain or name not in kind._defaults]
    return kind(**{name: _value(kind._fields[name], plain[name], name) for name in names})


def _value(kind: str, plain: Any, name: str) -> Any:
    """``plain`` as the model's annotation ``kind`` says: another host may have sent anything."""
    if kind.endswith(_OR_NONE):
        return None if plain is None else _value(kind[: -len(_OR_NONE)], plain, name)
    if kind.startswith("tuple["):
        if not isinstance(plain, (list, tuple)):
            raise TypeError(f"{name} is no list")
        return tuple(_value(kind[len("tuple[") : -len(", ...]")], item, name) for item in plain)
    if kind in _MODELS:
        return _object(_MODELS[kind], plain)
    # By its own type: a bool would pass as an int.
    if type(plain) not in _SCALARS[kind] or (kind in ("int", "float") and not 0 <= plain < _TOO_LARGE):
        raise TypeError(f"{name} is no {kind} in its range")
    return plain
