"""The keys of a policy, their defaults, and the origins of values.

The checks, the example file, the JSON schema and the reference page are derived from ``KEYS`` and the defaults of
:class:`Policy`, so that each key is described only once.
"""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Iterable, Mapping

from autogpu.frozen import Value, replace
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
    """The settings of this process, merged from all layers. The defaults here are autogpu's defaults.

    Attributes:
        need_bytes: The memory that the job needs on each GPU, as a layer states it; ``None`` if no layer does.
        devices: The GPUs to choose from; empty means all. Each entry is an index (``"0"``), a range (``"0-3"``), a MIG
            instance (``"0:1"``), a UUID prefix (``"GPU-5d0f"``, ``"MIG-..."``), or a name in which ``*`` stands for
            anything.
        limit: The memory cap on each GPU, or on each virtual GPU if there are several; ``None`` means no cap.
        per_user: The largest number of GPUs that this process's user may lease at a time; 0 means no cap. If the system
            file has a cap for each Unix group, the process's groups decide.
        locked: Dotted keys that only the system file may change. Unknown names are left out.
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
        section: The TOML table of the key; ``""`` is the top level.
        name: The name in that table. No other key of any table has the same name.
        about: A short description, which stands next to the key in the example file. ``docs/policy-keys.toml`` has the
            full description.
        system_only: True if only the system file may set the key.
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
        """The name of the field in :class:`Policy`, which ends in the unit: ``need_bytes``."""
        return _WITH_UNIT.get(self.name, self.name)

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def default(self) -> object:
        return getattr(Policy(), self.attribute)

    def written(self, value: object) -> str:
        return kinds.toml_text(self.kind.plain(value))


class Origin(Value):
    """The place where a value is set.

    Attributes:
        place: The text for messages: ``~/proj/autogpu.toml``, ``AUTOGPU_COUNT``, ``--count`` or ``default``.
        line: The line in a file, from 1; ``None`` if it is unknown, or if there is no file.
    """

    layer: LayerName
    place: str
    line: int | None = None

    def __str__(self) -> str:
        return self.place if self.line is None else f"{self.place}:{self.line}"


class Setting(Value):
    """The value of one key, and the values that it overrides.

    Attributes:
        key: The dotted name, such as ``select.count``.
        overrides: The setting of the next lower layer that sets the key; the default if no lower layer sets it.
            ``None`` if this setting is the default itself.
    """

    key: str
    value: object
    origin: Origin
    overrides: Setting | None = None

    @property
    def is_set(self) -> bool:
        """True if a layer sets the key, even if the value equals the default."""
        return self.overrides is not None

    @property
    def text(self) -> str:
        """The value as TOML that is safe to print."""
        return BY_DOTTED[self.key].written(self.value)

    @property
    def overridden(self) -> tuple[Setting, ...]:
        """All overridden settings, highest layer first. The last is the default."""
        return () if self.overrides is None else (self.overrides, *self.overrides.overridden)


class Mistake(enum.Enum):
    """A kind of mistake in a policy. The comments state what ``written`` and ``detail`` of a problem hold."""

    REFUSED_VALUE = enum.auto()  # written: the value
    REFUSED_ENTRY = enum.auto()  # an entry of a list or table; written: the entry
    SYSTEM_ONLY = enum.auto()  # only the system file can set the key
    LOCKED = enum.auto()  # detail: the origin of ``locked``
    UNKNOWN_KEY = enum.auto()  # written: the name
    UNKNOWN_TABLE = enum.auto()  # written: the name
    UNKNOWN_VARIABLE = enum.auto()  # the origin is the variable
    MUST_BE_TABLE = enum.auto()  # the name of a table is used as a key; written: the name
    UNKNOWN_LOCK = enum.auto()  # `locked` has an entry that is not a key; written: the entry
    UNKNOWN_GROUP = enum.auto()  # `limits.per_user` has an entry that is not a group; written: the entry

    NO_FILE = enum.auto()  # AUTOGPU_POLICY is a path without a file; written: the path

    # autogpu ignores the whole file.
    NOT_REGULAR = enum.auto()
    UNREADABLE = enum.auto()  # detail: the system's reason
    TOO_LARGE = enum.auto()
    TOO_DEEP = enum.auto()  # brackets are nested too deep
    TOO_MANY_DOTS = enum.auto()  # in one name
    NO_PARSER = enum.auto()  # this Python can't read TOML
    NO_TABLE = enum.auto()  # pyproject.toml has no table of autogpu
    NOT_TOML = enum.auto()  # detail: the parser's reason
    WRITTEN_TWICE = enum.auto()  # written: the key, or the table's header
    UNQUOTED = enum.auto()  # a value without quotes; written: the value; detail: the key's name in the file
    REFUSED_UNQUOTED = enum.auto()  # likewise, and the value is not allowed in quotes either

    # Another user could have written or placed the file. written: its path; detail: the other uid or gid.
    FILE_OF_OTHERS = enum.auto()
    FILE_OPEN_TO_ALL = enum.auto()
    FILE_OPEN_TO_GROUP = enum.auto()
    FOLDER_OF_OTHERS = enum.auto()
    FOLDER_OPEN_TO_ALL = enum.auto()
    FOLDER_OPEN_TO_GROUP = enum.auto()
    LINK = enum.auto()


class Problem(Value):
    """A mistake in the policy, with its details. All texts are safe to print.

    Attributes:
        key: The dotted key that the mistake concerns; ``""`` if the mistake is an unknown name, or is in a file as a
            whole.
        written: The text that the user wrote, or the path of the file; see :class:`Mistake`.
        nearest: What the user probably meant: a dotted key, a table, or the text to write instead of ``written``.
            ``""`` if nothing is similar.
        detail: Another fact; see :class:`Mistake`.
        used: The setting of ``key`` that applies instead; ``None`` if there is no ``key``.
    """

    mistake: Mistake
    origin: Origin
    key: str = ""
    written: str = ""
    nearest: str = ""
    detail: str = ""
    used: Setting | None = None


class UnusableFile(Exception):
    """A policy file can't be used.

    Attributes:
        line: The line of the mistake; ``None`` if it is unknown.
        facts: The fields of the :class:`Problem` other than its mistake and origin.
    """

    def __init__(self, mistake: Mistake, line: int | None = None, **facts: str) -> None:
        super().__init__(mistake, line, facts)
        self.mistake = mistake
        self.line = line
        self.facts = facts

    def problem(self, layer: LayerName, place: str) -> Problem:
        return replace(Problem(self.mistake, Origin(layer, place, self.line)), **self.facts)


class Resolved(Value):
    """The result of merging all layers.

    Attributes:
        settings: The setting of each key, keyed by dotted name, in the order of ``KEYS``.
        problems: Mistakes that each run reports, lowest layer first. Values for locked keys come last.
        system_notes: Unknown names and settings without effect in the system file. Only ``doctor`` reports them,
            because a host may have several versions of autogpu.
        files: Every file that was read, lowest layer first.
    """

    policy: Policy
    settings: Mapping[str, Setting]
    problems: tuple[Problem, ...]
    system_notes: tuple[Problem, ...]
    files: tuple[Path, ...]

    def as_typed(self, text: str) -> str:
        """Return ``text`` with variables replaced by options, for keys that the user set by an option."""
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
    """Return a key. Without a ``kind``, the field in :class:`Policy` must be a ``Literal`` of words or a boolean.

    The kind of the key is then a choice of these words, or a boolean.
    """
    section, _, name = dotted.rpartition(".")
    words = re.findall(r"['\"](\w+)['\"]", "" if kind else Policy.__annotations__[name])
    return Key(section, name, kind or (kinds.choice(*words) if words else kinds.FLAG), about, system_only)


KEYS = (
    _key("enabled", "turn autogpu on or off"),
    _key(
        "locked",
        "keys that no other layer may change. Only the system file can set this key",
        kinds.KEY_NAMES,
        system_only=True,
    ),
    _key(
        "select.count",
        'GPUs for this process: a number, "all", or 0 for CPU only',
        kinds.number(
            'a number of GPUs (0 for CPU only; to choose which: AUTOGPU_DEVICES=1,2), or "all"', 0, 1024, ("all",)
        ),
    ),
    _key("select.need", 'memory the job will need on each GPU, such as "6GiB"; "" = unknown', kinds.NEED),
    _key(
        "select.devices",
        'choose only among these: index, range "0-3", UUID prefix, or name pattern "*A100*"',
        kinds.DEVICES,
    ),
    _key("select.exclude", "never choose these; written like devices", kinds.DEVICES),
    _key("select.prefer", "choose these first among equally good GPUs; written like devices", kinds.DEVICES),
    _key(
        "select.busy",
        'when no GPU is free: "share" one with memory left, "wait" for one,\n"cpu" to continue without, or "error"',
    ),
    _key(
        "select.wait",
        'how long a job waits: for a free GPU if busy is "wait",\nfor enough free memory if busy is "share"',
        kinds.DURATION,
    ),
    _key("select.script", 'a CUDA_VISIBLE_DEVICES that the script itself sets: "respect" or "override"'),
    _key(
        "select.visible",
        'the GPUs that the process sees: "pool" = all that it would see without autogpu,\n'
        'idlest first; "chosen" = only those that autogpu chose',
    ),
    _key("memory.growth", "allocate memory as needed, instead of all at the start"),
    _key(
        "memory.limit",
        'hard cap on each GPU: "8GiB" or "50%", "" = none. With growth, memory grows up to the cap',
        kinds.LIMIT,
    ),
    _key(
        "memory.limit_includes",
        'the memory that limit counts: "arena" = what the framework allocates, without\n'
        'the CUDA context (300 to 600 MiB); "process" = all that nvidia-smi shows for it',
    ),
    _key(
        "memory.virtual_gpus",
        "split each chosen GPU into N logical GPUs of `limit` each",
        kinds.number("a number from 1 to 64", 1, 64),
    ),
    _key(
        "limits.per_user",
        "GPUs one user may lease at a time; 0 = no cap. Only the system file can set this key",
        kinds.CAPS,
        system_only=True,
    ),
    _key("report.level", '"quiet", "line" (one line on stderr when a GPU is claimed), or "explain"'),
    _key("report.history", "record each script's memory use, for you only, and use it for its next run"),
)

BY_DOTTED = {key.dotted: key for key in KEYS}
BY_NAME = {key.name: key for key in KEYS}


def with_options(text: str, keys: Iterable[Key] = KEYS) -> str:
    """Return ``text`` with the variables of ``keys`` replaced by the options of commands such as ``autogpu run``."""
    for key in keys:
        text = text.replace(f"{key.variable}=", f"{key.flag} ")
    return text
