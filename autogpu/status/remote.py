"""Status of other hosts. ``autogpu status --json`` runs on all of them at once, over plain ``ssh``."""

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

# Maximum output of one host: a host that prints without end must not fill this host's disk. The status of 64 GPUs with
# 2,000 processes is 0.5 MB. `ulimit -f` counts in units of 512 bytes.
_MOST_MIB = 4
_LIMITED = ["sh", "-c", f'ulimit -f {_MOST_MIB * 2048}; exec "$@"', "sh"]

# Seconds for each host to answer.
TIMEOUT_S = 10.0

# BatchMode: ssh must never ask for a password. Users set all other options in ssh_config(5).
_SSH = ["ssh", "-T", "-o", "BatchMode=yes", "--"]

# Exit status of ssh's own failures. Source: ssh(1), EXIT STATUS.
_EXIT_SSH = 255

_MODELS = {name: kind for name, kind in vars(model).items() if isinstance(kind, type) and issubclass(kind, Value)}
_SCALARS: Mapping[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "int": (int,), "float": (int, float)}
_OR_NONE = " | None"

# A number from here on is refused. No size, span or time is as large, and `time.localtime` fails for much larger times.
_TOO_LARGE = 1 << 53


def ask_hosts(hosts: Sequence[str], command: str) -> tuple[Answer, ...]:
    """Return the answer of each host, in the order of ``hosts``. A terminal's Ctrl-C also ends each ``ssh``.

    Args:
        command: The command that starts autogpu on the hosts, in the syntax of their shell.

    Raises:
        AutoGpuError: This host has no ``ssh``.
    """
    if not shutil.which("ssh"):
        raise AutoGpuError("this machine has no ssh", remedy="install the OpenSSH client")
    with ThreadPoolExecutor(len(hosts)) as pool:
        return tuple(pool.map(partial(_ask_host, command=command), hosts))


def _ask_host(host: str, command: str) -> Answer:
    # Write into files: a process that ssh leaves in the background may keep a pipe open.
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
    """Return the status in ``text``, the output of the command on the host.

    Args:
        ended: The exit status, or a negative signal number.
        said: The last line on stderr.

    Raises:
        ValueError: There is no status. The message is the reason.
    """
    if ended == -signal.SIGXFSZ:
        raise ValueError(f"the host's output is larger than {_MOST_MIB} MiB and is ignored")
    if ended == _EXIT_SSH:
        raise ValueError(said or "ssh failed without a message; run ssh to this host to find the cause")
    # If the driver can't be read, `autogpu status` exits with 1, and its output has the reason.
    if ended not in (0, 1) or "{" not in text:
        why = f"the remote command exited with status {ended}{said and f' ({said})'} and printed no autogpu status"
        raise ValueError(f"{why}; set the command with --remote-command")
    # Skip the lines that a start-up file of the remote shell may have printed.
    begin = 0 if text.startswith("{") else text.find("\n{") + 1
    try:
        values, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError) as error:  # not JSON, a number with too many digits, or too deep
        raise ValueError(f"the output is not that of `autogpu status --json`: {error}") from None
    return from_json(values)


def from_json(values: Mapping[str, Any]) -> HostStatus:
    """Return the status from the result of :meth:`HostStatus.to_json`, which may come from another host.

    Fields of a newer autogpu are ignored. Fields that an older autogpu lacks have their defaults.

    Raises:
        ValueError: ``values`` is not a status, or its format has another version.
    """
    if values.get("version") != VERSION:
        raise ValueError(
            f"the output is not version {VERSION} of `autogpu status --json`; install the same autogpu on both hosts"
        )
    try:
        status: HostStatus = _object(HostStatus, values)
    except (KeyError, TypeError, AttributeError) as error:
        why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"the output is not that of `autogpu status --json`: {why}") from None
    return status


def _object(kind: type[Value], plain: Mapping[str, Any]) -> Any:
    # Fields that were added later have defaults, because the host may have an older autogpu.
    names = [name for name in kind._fields if name in plain or name not in kind._defaults]
    return kind(**{name: _value(kind._fields[name], plain[name], name) for name in names})


def _value(kind: str, plain: Any, name: str) -> Any:
    """Return ``plain`` as a value of the model's annotation ``kind``. Another host may have sent any type.

    Raises:
        TypeError: ``plain`` has another type, or a number is out of range.
    """
    if kind.endswith(_OR_NONE):
        return None if plain is None else _value(kind[: -len(_OR_NONE)], plain, name)
    if kind.startswith("tuple["):
        if not isinstance(plain, (list, tuple)):
            raise TypeError(f"{name} is not a list")
        return tuple(_value(kind[len("tuple[") : -len(", ...]")], item, name) for item in plain)
    if kind in _MODELS:
        return _object(_MODELS[kind], plain)
    # Compare the exact types: for isinstance(), a bool is an int.
    if type(plain) not in _SCALARS[kind] or (kind in ("int", "float") and not 0 <= plain < _TOO_LARGE):
        raise TypeError(f"{name} is not a valid {kind}")
    return plain
