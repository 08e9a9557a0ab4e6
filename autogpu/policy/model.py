"""The keys of a policy, their defaults, and where each value was set.

Checks, example file, JSON schema and reference page are derived from ``KEYS`` and the defaults of :class:`Policy`, so
that a key is described once.
"""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Iterable, Mapping

from autogpu.frozen import Value
from autogpu.policy import kinds
from autogpu.policy.kinds import MemoryLimit
from autogpu.variables import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

SYSTEM_FILE = Path("/etc/autogpu/autogpu.toml")


class LayerName(enum.Enum):
    """The layers, lowest first."""

    DEFAULT = "default"
    SYSTEM = "system"
    USER = "user"
    PROJECT = "project"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


class Policy(Value):
    """The settings of this process, all layers merged. The defaults here are the defaults of the product.

    Attributes:
        need_bytes: On each GPU; ``None`` means unknown.
        devices: Empty means all. Each entry is an index (``"0"``), a range (``"0-3"``), an instance of a card
            (``"0:1"``), a UUID prefix (``"GPU-5d0f"``, ``"MIG-..."``), or a name in which ``*`` stands for anything.
        limit: On each GPU, or on each virtual GPU where there are several; ``None`` means no cap.
        per_user: Of this process's user, whatever the groups of others; 0 means no cap.
        locked: Dotted keys that only the system file may change; names of no key are not in it.
    """

    enabled: bool = True
    locked: frozenset[str] = frozenset()
    count: int | Literal["all"] = 1
    need_bytes: int | None = None
    devices: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    busy: Literal["share", "wait", "cpu", "error"] = "share"
    wait_s: float = 1800.0
    script: Literal["respect", "override"] = "respect"
    visible: Literal["pool", "chosen"] = "pool"
    growth: bool = True
    limit: MemoryLimit | None = None
    limit_includes: Literal["arena", "process"] = "arena"
    virtual_gpus: int = 1
    per_user: int = 0
    level: Literal["quiet", "line", "explain"] = "line"
    history: bool = True


_WITH_UNIT = {"need": "need_bytes", "wait": "wait_s"}


class Key(Value):
    """One setting of a policy.

    Attributes:
        section: The TOML table it stands in; ``""`` is the top level.
        name: In that table; no other key has it.
        about: What it does, in the few words that fit beside it in the example file; ``docs/policy-keys.toml`` says
            more.
        system_only: Counts in the system file alone.
    """

    section: str
    name: str
    kind: kinds.Kind
    about: str
    system_only: bool = False

    @property
    def dotted(self) -> str:
        """The name that messages and ``locked`` use: ``select.count``."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def attribute(self) -> str:
        """Its name in :class:`Policy`, which carries the unit."""
        return _WITH_UNIT.get(self.name, self.name)

    @property
    def variable(self) -> str:
        """The name in the environment: ``AUTOGPU_COUNT``."""
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The name on the command line of ``autogpu run``: ``--count``."""
        return "--" + self.name.replace("_", "-")

    @property
    def default(self) -> object:
        return getattr(Policy(), self.attribute)

    def written(self, value: object) -> str:
        """A value of this key as a TOML file holds it."""
        return kinds.toml_text(self.kind.plain(value))


class Origin(Value):
    """Where a value was written.

    Attributes:
        place: For people: ``~/proj/autogpu.toml``, ``AUTOGPU_COUNT``, ``--count`` or ``default``.
        line: In a file, from 1; ``None`` where it is not certain.
    """

    layer: LayerName
    place: str
    line: int | None = None

    def __str__(self) -> str:
        return self.place if self.line is None else f"{self.place}:{self.line}"


class Setting(Value):
    """The value of one key, and what it overrode.

    Attributes:
        key: Dotted, such as ``select.count``.
        overrides: The next lower layer that sets the key, down to the default.
    """

    key: str
    value: object
    origin: Origin
    overrides: Setting | None = None

    @property
    def is_set(self) -> bool:
        """A layer has set it, be it to the default's value."""
        return self.overrides is not None

    @property
    def text(self) -> str:
        """The value as a TOML file would hold it; safe for a terminal."""
        return BY_DOTTED[self.key].written(self.value)

    @property
    def overridden(self) -> tuple[Setting, ...]:
        """All that it overrode, the highest layer first, down to the default."""
        return () if self.overrides is None else (self.overrides, *self.overrides.overridden)


class Problem(Value):
    """A mistake in the policy, as one line that is safe for a terminal.

    Attributes:
        what: Where it is, what is wrong, and what is allowed.
        key: Dotted; ``""`` where it is about a file or an unknown name.
        instead: What is done in its place.
    """

    what: str
    origin: Origin
    key: str = ""
    instead: str = "it is ignored"

    def __str__(self) -> str:
        return f"{self.what}; {self.instead}"


class Resolved(Value):
    """All layers merged, with their history.

    Attributes:
        settings: One for each key, under its dotted name, in the order of ``KEYS``.
        problems: In the order of the layers. For people, at every run.
        system_notes: Names in the system file that this version does not know. For ``doctor`` alone, since a host
            carries several versions.
        files: Every file that was read, lowest layer first.
    """

    policy: Policy
    settings: Mapping[str, Setting]
    problems: tuple[Problem, ...]
    system_notes: tuple[Problem, ...]
    files: tuple[Path, ...]

    def as_typed(self, text: str) -> str:
        """``text`` with the options of ``autogpu run`` that were typed in place of the variables that they override."""
        return with_options(text, [key for key in KEYS if self.settings[key.dotted].origin.place == key.flag])


# Section titles, in the order in which the generated documents show them.
SECTIONS = {
    "": "General",
    "select": "Which GPU",
    "memory": "How much of its memory",
    "limits": "Limits of the host",
    "report": "What is printed",
}


def _key(dotted: str, about: str, kind: kinds.Kind | None = None, *, system_only: bool = False) -> Key:
    """A key; without a ``kind`` it is what its field's type says, one of some words, or else true or false."""
    section, _, name = dotted.rpartition(".")
    words = re.findall(r"['\"](\w+)['\"]", "" if kind else Policy.__annotations__[name])
    return Key(section, name, kind or (kinds.choice(*words) if words else kinds.FLAG), about, system_only)


KEYS = (
    _key("enabled", "whether autogpu does anything at all"),
    _key(
        "locked",
        "keys that no other layer may change. Counts only in the system file",
        kinds.KEY_NAMES,
        system_only=True,
    ),
    _key(
        "select.count",
        'GPUs for this process: a number, "all", or 0 for CPU only',
        kinds.number('a number of GPUs (0 for CPU only; which ones: AUTOGPU_DEVICES=1,2), or "all"', 0, 1024, ("all",)),
    ),
    _key("select.need", 'memory the job will need on each GPU, such as "6GiB"; "" = unknown', kinds.NEED),
    _key(
        "select.devices",
        'choose only among these: index, range "0-3", UUID prefix, or name pattern "*A100*"',
        kinds.DEVICES,
    ),
    _key("select.exclude", "never choose these; written like devices", kinds.DEVICES),
    _key("select.prefer", "of equally good ones, these first; written like devices", kinds.DEVICES),
    _key(
        "select.busy",
        'when no GPU is free: "share" one with memory left, "wait" for one,\n"cpu" to continue without, or "error"',
    ),
    _key("select.wait", 'how long "wait" waits, and "share" for enough free memory', kinds.DURATION),
    _key("select.script", 'a CUDA_VISIBLE_DEVICES that the script itself sets: "respect" or "override"'),
    _key("select.visible", 'the process sees the whole "pool", idlest first, or only the "chosen" GPUs'),
    _key("memory.growth", "allocate memory as needed, instead of all at the start"),
    _key(
        "memory.limit",
        'hard cap on each GPU: "8GiB" or "50%", "" = none. With growth it grows up to the cap',
        kinds.LIMIT,
    ),
    _key(
        "memory.limit_includes",
        '"arena": what the framework allocates; a context of 300 to 600 MiB comes in addition.\n'
        '"process": all that nvidia-smi shows; the framework gets what the context leaves.',
    ),
    _key(
        "memory.virtual_gpus",
        "split each chosen GPU into N logical GPUs of `limit` each",
        kinds.number("a number from 1 to 64", 1, 64),
    ),
    _key(
        "limits.per_user",
        "GPUs one user may lease at a time; 0 = no cap. Counts only in the system file",
        kinds.CAPS,
        system_only=True,
    ),
    _key("report.level", '"quiet", "line" (one line on stderr when a GPU is claimed), or "explain"'),
    _key("report.history", "keep how much memory each script took, for you alone, and use it for its next run"),
)

BY_DOTTED = {key.dotted: key for key in KEYS}
BY_NAME = {key.name: key for key in KEYS}


def with_options(text: str, keys: Iterable[Key] = KEYS) -> str:
    """``text`` with the options of ``autogpu run`` and its kin in place of the variables of ``keys``."""
    for key in keys:
        text = text.replace(f"{key.variable}=", f"{key.flag} ")
    return text
