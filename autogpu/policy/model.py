"""The keys of a policy, their defaults, and where each value was set.

Checks, example file, JSON schema and reference page are derived from ``KEYS`` and the defaults of :class:`Policy`, so
that a key is described once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

from autogpu.frozen import frozen
from autogpu.policy import kinds
from autogpu.policy.kinds import MemoryLimit
from autogpu.variables import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

SYSTEM_FILE = Path("/etc/autogpu/autogpu.toml")

# The layers, lowest first.
DEFAULT, SYSTEM, USER, PROJECT = "default", "system", "user", "project"
ENVIRONMENT, COMMAND_LINE = "environment", "command line"


@frozen
class Policy:
    """The settings of this process, all layers merged. The defaults here are the defaults of the product.

    Attributes:
        need_bytes: ``None`` means unknown; so does "learned", as long as nothing is known of the last runs.
        devices: Empty means all. Each entry is an index (``"0"``), a range (``"0-3"``), an instance of a card
            (``"0:1"``), a UUID prefix (``"GPU-5d0f"``, ``"MIG-..."``), or a name in which ``*`` stands for anything.
        limit: On each GPU, or on each virtual GPU where there are several; ``None`` means no cap.
        per_user: Of this process's user, whatever the groups of others; 0 means no cap.
        locked: Dotted keys that only the system file may change; names of no key are not in it.
    """

    enabled: bool = True
    locked: frozenset[str] = frozenset()
    count: int | Literal["all"] = 1
    need_bytes: int | Literal["learned"] | None = None
    devices: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    faulty: Literal["last", "never"] = "last"
    busy: Literal["share", "wait", "cpu", "error"] = "share"
    wait_s: float = 1800.0
    script: Literal["respect", "override"] = "respect"
    visible: Literal["pool", "chosen"] = "pool"
    identifier: Literal["uuid", "index"] = "uuid"
    growth: bool = True
    limit: MemoryLimit | None = None
    limit_includes: Literal["arena", "process"] = "arena"
    virtual_gpus: int = 1
    per_user: int = 0
    level: Literal["quiet", "line", "explain"] = "line"
    history: bool = True


_WITH_UNIT = {"need": "need_bytes", "wait": "wait_s"}


@frozen
class Key:
    """One setting of a policy.

    Attributes:
        dotted: The name that messages and ``locked`` use: ``select.count``.
        about: What it does, in the few words that fit beside it in the example file.
        more: The same at length, for the reference page.
        system_only: Counts in the system file alone.
    """

    dotted: str
    kind: kinds.Kind
    about: str
    more: str
    system_only: bool = False

    @property
    def section(self) -> str:
        """The TOML table it stands in; ``""`` is the top level."""
        return self.dotted.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Its name in that table, which no other key has."""
        return self.dotted.rpartition(".")[2]

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
        """The value where no layer sets it."""
        return getattr(Policy(), self.attribute)

    @property
    def sentence(self) -> str:
        """``about`` on one line, with a capital and a full stop."""
        return (self.about[0].upper() + self.about[1:].rstrip(".") + ".").replace("\n", " ")

    def written(self, value: object) -> str:
        """A value of this key as a TOML file holds it."""
        return kinds.toml_text(self.kind.plain(value))


@frozen
class Origin:
    """Where a value was written.

    Attributes:
        place: For people: ``~/proj/autogpu.toml``, ``AUTOGPU_COUNT``, ``--count`` or ``default``.
        line: In ``file``, from 1; ``None`` where it is not certain.
    """

    layer: str
    place: str
    file: Path | None = None
    line: int | None = None

    def __str__(self) -> str:
        return self.place if self.line is None else f"{self.place}:{self.line}"


@frozen
class Setting:
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
    def text(self) -> str:
        """The value as a TOML file would hold it; safe for a terminal."""
        return BY_DOTTED[self.key].written(self.value)


@frozen
class Problem:
    """A mistake in the policy, as one line that is safe for a terminal.

    Attributes:
        what: Where it is, what is wrong, and what is allowed.
        instead: What is used in its place.
        key: Dotted; ``None`` where it is about a file or an unknown name.
    """

    what: str
    instead: str
    origin: Origin
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.what}; {self.instead}"


@frozen
class Resolved:
    """All layers merged, with their history.

    Attributes:
        settings: One for each key, under its dotted name, in the order of ``KEYS``.
        problems: In the order of the layers. For people, at every run.
        system_notes: Names in the system file that this version does not know. For ``doctor`` alone, since a host
            carries several versions.
        project_file: The one that counts, also where it could not be read.
        files: Every file that was read in full, lowest layer first.
    """

    policy: Policy
    settings: Mapping[str, Setting]
    problems: tuple[Problem, ...]
    system_notes: tuple[Problem, ...]
    project_file: Path | None
    files: tuple[Path, ...]

    def as_typed(self, text: str) -> str:
        """``text`` with the options of ``autogpu run`` that were typed in place of the variables that they override."""
        for key in KEYS:
            if self.settings[key.dotted].origin.place == key.flag:
                text = text.replace(f"{key.variable}=", f"{key.flag} ")
        return text


# Section titles, in the order in which the generated documents show them.
SECTIONS = {
    "": "General",
    "select": "Which GPU",
    "memory": "How much of its memory",
    "limits": "Limits of the host",
    "report": "What is printed",
}

KEYS = (
    Key(
        "enabled",
        kinds.FLAG,
        about="whether autogpu does anything at all",
        more="With `false` the framework starts as if autogpu were not installed. For one process, `AUTOGPU=0` does "
        "the same; it overrides every layer and every lock, because it is checked before any policy is read.",
    ),
    Key(
        "locked",
        kinds.KEY_NAMES,
        about="keys that no other layer may change. Counts only in the system file",
        more="The value that the system file gives a locked key, or else the default, is final. Where another layer "
        "asks for a different one, a line says that it is not followed.",
        system_only=True,
    ),
    Key(
        "select.count",
        kinds.number('a number of GPUs (0 for CPU only; which ones: devices), or "all"', 0, 1024, ("all",)),
        about='GPUs for this process: a number, "all", or 0 for CPU only',
        more="Where the machine has fewer, the process gets those, and one line says so. With 0 the script runs on "
        "the CPU although GPUs exist.",
    ),
    Key(
        "select.need",
        kinds.NEED,
        about='memory the job will need on each GPU, such as "6GiB", or "learned". "" = unknown',
        more="A GPU with less memory left is not chosen, and only that much is claimed, so that others may use the "
        "rest. Unknown means that the whole GPU is claimed. `GiB`, `Gi` and `G` are 2^30 bytes, `GB` is 10^9; a bare "
        "number below 1048576 is refused, because its unit was left out. `learned` is the most that the last three "
        "runs of the same script with the same arguments took, a tenth more, and 512 MiB for the CUDA context; the "
        "whole GPU until there are three, and again after a run that ran out of memory.",
    ),
    Key(
        "select.devices",
        kinds.DEVICES,
        about='choose only among these: index, range "0-3", UUID prefix, or name pattern "*A100*"',
        more="An empty list means every GPU. Indexes are those of `nvidia-smi`. A UUID prefix begins with `GPU-` or "
        "`MIG-`. Anything else is a name, in which `*` stands for any text; without a `*` it must be the whole name. "
        "A MIG instance is `0:1` (the instance 1 of GPU 0) or is named by what it is made of, as in `1g.*`; what "
        "means a GPU means its instances. In a variable, entries are separated by commas, and `none` is the empty "
        "list.",
    ),
    Key(
        "select.exclude",
        kinds.DEVICES,
        about="never choose these; written like devices",
        more="Overrides `devices`. A `CUDA_VISIBLE_DEVICES` that you set yourself overrides `exclude`, unless the "
        "system file locks it.",
    ),
    Key(
        "select.prefer",
        kinds.DEVICES,
        about="of equally good ones, these first; written like devices",
        more="The GPUs of the first entry come first, then those of the second. It decides only between GPUs that are "
        "equally free, healthy, idle and well connected and have as much free memory; without it the one with the "
        "highest number is taken.",
    ),
    Key(
        "select.faulty",
        kinds.choice("last", "never"),
        about='a GPU whose memory has faults: "last", after the healthy ones, or "never"',
        more="Faults are a row remapping that failed or waits for a reset of the GPU, and uncorrectable errors since "
        "boot, as NVML tells them. A job there may crash. `last` takes such a GPU only where no healthy one is "
        "equally free, and the line says what is wrong with it. A `CUDA_VISIBLE_DEVICES` that you set yourself "
        "overrides `never`, unless the system file locks it.",
    ),
    Key(
        "select.busy",
        kinds.choice("share", "wait", "cpu", "error"),
        about='when no GPU is free: "share" one with memory left, "wait" for one,\n'
        '"cpu" to continue without, or "error"',
        more="What happens when every GPU has a job. With `share` a job that does not say what it needs joins others "
        "on the GPU with the most free memory, once everything there has run for a minute and a quarter of the GPU is "
        "free; it may take all that is free; until then it waits in line, for `wait` at most. A job with `need` or "
        "`limit` starts at once where that is unclaimed, and else joins others where that is free. `wait` queues for "
        "a free GPU, `cpu` continues without one, `error` stops the script.",
    ),
    Key(
        "select.wait",
        kinds.DURATION,
        about='how long "wait" waits, and "share" at most',
        more='With `busy = "wait"` the script ends after that time with an error and exit status 75. With '
        '`busy = "share"` it then joins others however little is free, once all on a GPU have run for a minute, and '
        "may take what is free there. `AUTOGPU_WAIT=0` starts it at once, where the most is free.",
    ),
    Key(
        "select.script",
        kinds.choice("respect", "override"),
        about='a CUDA_VISIBLE_DEVICES that the script itself sets: "respect" or "override"',
        more="Scripts copied from another machine often carry a number that means nothing here. `override` chooses "
        "as if that line were not there. A `CUDA_VISIBLE_DEVICES` that was set outside the script, by you, a shell "
        "or a scheduler, is respected in any case.",
    ),
    Key(
        "select.visible",
        kinds.choice("pool", "chosen"),
        about='CUDA_VISIBLE_DEVICES holds the whole "pool", idlest first, or only the "chosen"',
        more="With `pool`, code that names another GPU stays valid, and only the framework is restricted to the "
        "chosen one. `chosen` hides the others from every library in the process. It chooses, claims and waits at "
        "the import already, also for a process that only imports the framework.",
    ),
    Key(
        "select.identifier",
        kinds.choice("uuid", "index"),
        about='"uuid", or "index" for code that reads CUDA_VISIBLE_DEVICES as numbers',
        more="How GPUs are written into `CUDA_VISIBLE_DEVICES`. With `index`, `CUDA_DEVICE_ORDER=PCI_BUS_ID` is set "
        "along with it, without which a number would not say which GPU is meant.",
    ),
    Key(
        "memory.growth",
        kinds.FLAG,
        about="allocate memory as needed, instead of all at the start",
        more="Memory that has been allocated is kept until the process ends.",
    ),
    Key(
        "memory.limit",
        kinds.LIMIT,
        about='hard cap on each GPU: "8GiB" or "50%", "" = none. With growth it grows up to the cap',
        more="A job that needs more gets the framework's out-of-memory error, and the other jobs on the GPU are not "
        "affected. Sizes are written as for `need`.",
    ),
    Key(
        "memory.limit_includes",
        kinds.choice("arena", "process"),
        about='"arena": what the framework allocates; a context of 300 to 600 MiB comes in addition.\n'
        '"process": all that nvidia-smi shows; the framework gets what the context leaves.',
        more="A CUDA context and the libraries loaded into it take some hundreds of MiB that the framework's own "
        "accounting does not include. `arena` gives the framework exactly `limit`; `process` keeps the whole process "
        "within `limit`, so that shares of a card add up. The context is measured on the GPU just before the "
        "framework makes it, and 256 MiB are added for the libraries that a script loads later, which can't be known "
        "beforehand; at least 512 MiB are reserved, also where the driver does not show what a process takes.",
    ),
    Key(
        "memory.virtual_gpus",
        kinds.number("a number from 1 to 64", 1, 64),
        about="split each chosen GPU into N logical GPUs of `limit` each",
        more="For writing multi-GPU code on one card: a distribution strategy sees N replicas on each chosen GPU. N "
        "times `limit` is claimed. Without `limit` each gets an equal part of what the framework would allocate: "
        "what is free, less the CUDA context and 6 %; for a best-effort job on a shared GPU, of what it may take. "
        "Limits that add up to more than the whole GPU are cut to equal parts of it.",
    ),
    Key(
        "limits.per_user",
        kinds.by_group(
            "a number of GPUs (0 for no cap), or a table of such numbers by Unix group, as {default = 2, staff = 4}",
            kinds.number("", 0, 1024),
        ),
        about="GPUs one user may lease at a time; 0 = no cap. Counts only in the system file",
        more="Applies to all who use autogpu on this host. It does not apply to programs that use a GPU without it. A "
        "table gives each Unix group its number, by the group's name, and `default` is for who is in none of them: who "
        "is in several has the largest.",
        system_only=True,
    ),
    Key(
        "report.level",
        kinds.choice("quiet", "line", "explain"),
        about='"quiet", "line" (one line on stderr when a GPU is claimed), or "explain"',
        more="`explain` adds why each of the other GPUs was not taken. `quiet` prints nothing as long as there is no "
        "problem.",
    ),
    Key(
        "report.history",
        kinds.FLAG,
        about="keep how much memory each script took, for you alone, and say what it needs",
        more="At the end of a script the largest amount that its framework counted on one GPU is kept in "
        "`~/.local/state/autogpu` (or `$XDG_STATE_HOME/autogpu`), for 90 days and readable only by you; scripts and "
        "arguments are hashed. From the fourth run on, the line says what the last three took. `false` keeps nothing "
        "and says nothing; `autogpu config forget` deletes what is kept.",
    ),
)

BY_DOTTED = {key.dotted: key for key in KEYS}
BY_NAME = {key.name: key for key in KEYS}
