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

from autogpu.errors import Stopped
from autogpu.frozen import Value
from autogpu.status import model
from autogpu.status.model import VERSION, Answer, HostStatus, RemoteFault, RemoteProblem

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


class NoStatus(Stopped):
    """Another host sent no status."""

    problem: RemoteProblem


def has_ssh() -> bool:
    """True if this host has the program ``ssh``."""
    return shutil.which("ssh") is not None


def ask_hosts(hosts: Sequence[str], command: str) -> tuple[Answer, ...]:
    """Return the answer of each host, in the order of ``hosts``. A terminal's Ctrl-C also ends each ``ssh``.

    Args:
        command: The command that starts autogpu on the hosts, in the syntax of their shell.
    """
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
            return Answer(host, None, RemoteProblem(RemoteFault.NO_ANSWER, number=TIMEOUT_S))
        except NoStatus as error:
            return Answer(host, None, error.problem)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _status_in(ended: int, text: str, said: str) -> HostStatus:
    """Return the status in ``text``, the output of the command on the host.

    Args:
        ended: The exit status, or a negative signal number.
        said: The last line on stderr.

    Raises:
        NoStatus: The output has no status.
    """
    if ended == -signal.SIGXFSZ:
        raise NoStatus(RemoteProblem(RemoteFault.TOO_LARGE, number=_MOST_MIB))
    if ended == _EXIT_SSH:
        raise NoStatus(RemoteProblem(RemoteFault.SSH_FAILED, said))
    # If the driver can't be read, `autogpu status` exits with 1, and its output has the reason.
    if ended not in (0, 1) or "{" not in text:
        raise NoStatus(RemoteProblem(RemoteFault.NOTHING_PRINTED, said, number=ended))
    # Skip the lines that a start-up file of the remote shell may have printed.
    begin = 0 if text.startswith("{") else text.find("\n{") + 1
    try:
        values, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError) as error:  # not JSON, a number with too many digits, or too deep
        raise NoStatus(RemoteProblem(RemoteFault.NOT_JSON, str(error))) from None
    return from_json(values)


def from_json(values: Mapping[str, Any]) -> HostStatus:
    """Return the status from the result of :meth:`HostStatus.to_json`, which may come from another host.

    Fields of a newer autogpu are ignored. Fields that an older autogpu lacks have their defaults.

    Raises:
        NoStatus: ``values`` is not a status, or its format has another version.
    """
    if values.get("version") != VERSION:
        raise NoStatus(RemoteProblem(RemoteFault.OTHER_VERSION))
    status: HostStatus = _object(HostStatus, values)
    return status


def _object(kind: type[Value], plain: Mapping[str, Any]) -> Any:
    # Fields that were added later have defaults, because the host may have an older autogpu.
    missing = [name for name in kind._fields if name not in plain and name not in kind._defaults]
    if missing:
        raise NoStatus(RemoteProblem(RemoteFault.FIELD_MISSING, missing[0]))
    return kind(**{name: _value(type_, plain[name], name) for name, type_ in kind._fields.items() if name in plain})


def _value(kind: str, plain: Any, name: str) -> Any:
    """Return ``plain`` as a value of the model's annotation ``kind``. Another host may have sent any type.

    Raises:
        NoStatus: ``plain`` has another type, or a number is out of range.
    """
    if kind.endswith(_OR_NONE):
        return None if plain is None else _value(kind[: -len(_OR_NONE)], plain, name)
    if kind.startswith("tuple["):
        if not isinstance(plain, (list, tuple)):
            raise NoStatus(RemoteProblem(RemoteFault.NOT_A_LIST, name))
        return tuple(_value(kind[len("tuple[") : -len(", ...]")], item, name) for item in plain)
    # Compare the exact types: for isinstance(), a bool is an int.
    is_valid = type(plain) in _SCALARS.get(kind, (dict,))
    if not is_valid or (kind in ("int", "float") and not 0 <= plain < _TOO_LARGE):
        raise NoStatus(RemoteProblem(RemoteFault.INVALID_FIELD, name, kind=kind))
    return _object(_MODELS[kind], plain) if kind in _MODELS else plain
