"""Find the policy of a process: merge the settings of its files, environment variables and options.

Each of these is a layer, and a higher layer overrides a lower one. The result has the origin of each value. An invalid
value becomes a :class:`Problem`, and the other values of its layer apply.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any, Iterable, Iterator, Mapping, Sequence

from autogpu import variables
from autogpu.frozen import replace
from autogpu.policy import model, sources
from autogpu.policy.kinds import (
    DEFAULT_GROUP,
    LONGEST_NAME,
    MemoryLimit,
    Refused,
    bare,
    brief,
    group_number,
    most_similar,
    of_own_groups,
)
from autogpu.policy.model import (
    BY_DOTTED,
    BY_NAME,
    KEYS,
    SYSTEM_FILE,
    Key,
    LayerName,
    Mistake,
    Origin,
    Policy,
    Problem,
    Resolved,
    Setting,
)
from autogpu.policy.sources import Source, working_directory
from autogpu.text import printable

# Names of other modules that callers import from this package.
__all__ = ["BY_DOTTED", "KEYS", "SYSTEM_FILE", "MemoryLimit", "Origin", "Policy", "Problem", "Resolved", "Setting"]
__all__ += ["problems_of", "resolve", "working_directory"]

_MOST_PROBLEMS = 20
_TABLES = [section for section in model.SECTIONS if section]
_NO_LOCKS: tuple[Any, Origin] = (frozenset(), Origin(LayerName.DEFAULT, "default"))

# Other names that users write for a key, and the name of that key. `most_similar` does not find it, because the two
# names differ too much.
_OTHER_NAMES = {"gpu": "devices", "gpus": "count", "memory": "need", "disable": "enabled"}
_CALLED = {**BY_NAME, **{name: BY_NAME[own] for name, own in _OTHER_NAMES.items()}}


def resolve(
    environ: Mapping[str, str],
    *,
    script: Path | None,
    working_directory: Path,
    flags: Mapping[str, str] | None = None,
    system_file: Path = SYSTEM_FILE,
) -> Resolved:
    """Read all layers of the policy and merge them. A mistake in them raises no exception; ``problems`` lists it.

    Args:
        environ: autogpu reads ``HOME``, ``XDG_CONFIG_HOME`` and ``AUTOGPU_*`` from it. If neither ``HOME`` nor
            ``XDG_CONFIG_HOME`` is an absolute path, there is no user file.
        script: The script's file; ``None`` at a Python prompt, with ``python -c``, and in a notebook.
        working_directory: autogpu searches for a project file here after the script's folders. A relative path in
            ``AUTOGPU_POLICY`` is relative to this folder.
        flags: The text of each option of ``autogpu run``, keyed by the name of its key.
    """
    homes = sources.homes_of(environ)
    user_file = sources.user_file_of(environ)
    # Anyone who can write the system file or the user file controls the host or the home folder anyway. So don't check
    # who could have written these two files.
    system = sources.source_of(homes, LayerName.SYSTEM, system_file)
    user = sources.source_of(homes, LayerName.USER, user_file) if user_file else sources.Source(LayerName.USER)
    named = environ.get(variables.POLICY_FILE, "").strip()
    if named:
        project = sources.named_source(homes, named, working_directory)
    else:
        project = sources.found_source(homes, script, working_directory, (system_file, user_file))
    files = [_file_layer(source) for source in (system, user, project)]
    settings, problems = _merged([*files, _environment_layer(environ), _flag_layer(flags or {})])
    return Resolved(
        policy=_policy(settings),
        settings=MappingProxyType(settings),
        problems=problems,
        system_notes=tuple(files[0].unknown),
        files=tuple(s.file for s in (system, user, project) if s.file),
    )


def problems_of(file: Path, environ: Mapping[str, str], *, is_system: bool = False) -> tuple[Problem, ...]:
    """Return the mistakes in one policy file, whoever owns it. Unknown names count as mistakes in every file."""
    layer_name = LayerName.SYSTEM if is_system else LayerName.PROJECT
    layer = _file_layer(sources.source_of(sources.homes_of(environ), layer_name, file))
    return (*_merged([layer])[1], *layer.unknown)


def _merged(layers: Sequence[Layer]) -> tuple[dict[str, Setting], tuple[Problem, ...]]:
    """Merge layers over the defaults, lowest layer first. Return settings keyed by dotted name, and the problems."""
    origin = Origin(LayerName.DEFAULT, "default")
    settings = {key.dotted: Setting(key.dotted, key.default, origin) for key in KEYS}
    problems = [problem for layer in layers for problem in layer.problems]
    for layer in layers:
        locked = _locked(settings)
        for dotted, (value, origin) in layer.values.items():
            held = settings[dotted]
            # The start-up hook obeys AUTOGPU=0 before it imports this package. So a lock can't prevent it.
            if dotted not in locked or (origin.place == variables.SWITCH and value is False):
                settings[dotted] = Setting(dotted, value, origin, held)
            elif value != held.value:
                lock = str(settings["locked"].origin)
                problems.append(Problem(Mistake.LOCKED, origin, dotted, detail=lock))
    # The setting that applies instead of a mistake is known only after the merge.
    return settings, tuple(replace(problem, used=settings.get(problem.key)) for problem in problems)


def _locked(settings: Mapping[str, Setting]) -> frozenset[str]:
    """Return the dotted keys that no layer above the system file may change.

    Only the system file can set ``locked``. An entry of ``locked`` is a dotted name (``select.count``) or a bare one
    (``count``).
    """
    names: Any = settings["locked"].value
    found = (BY_DOTTED.get(name) or BY_NAME.get(name) for name in names)
    return frozenset(key.dotted for key in found if key is not None)


def _policy(settings: Mapping[str, Setting]) -> Policy:
    values = {key.attribute: settings[key.dotted].value for key in KEYS}
    values["locked"] = _locked(settings)
    if isinstance(values["per_user"], dict):
        values["per_user"] = of_own_groups(values["per_user"])
    return Policy(**values)  # type: ignore[arg-type]  # the kinds return the types of the fields; a test checks it


class Layer:
    """The settings of one layer (a file, the environment or the options), and the mistakes in it.

    Attributes:
        values: Value and origin of each valid setting, keyed by dotted name.
        unknown: Unknown names and settings without effect in the system file. Only ``autogpu doctor`` reports them.
    """

    def __init__(self, name: LayerName, problems: Iterable[Problem] = ()) -> None:
        self.name = name
        self.values: dict[str, tuple[Any, Origin]] = {}
        self.problems = list(problems)
        self.unknown: list[Problem] = []

    def take(self, key: Key, written: object, origin: Origin) -> None:
        try:
            value = key.kind.read(written)
        except Refused as refused:
            self.problems.append(_refused(key, written, refused.element, origin))
            return
        if not key.system_only or self.name is LayerName.SYSTEM:
            self.values[key.dotted] = (value, origin)
        elif value != key.default:
            # The example file has every key, and a user may copy it. So a key with its default value is no problem.
            self.problems.append(Problem(Mistake.SYSTEM_ONLY, origin, key.dotted))


def _refused(key: Key, written: object, element: str | None, origin: Origin) -> Problem:
    mistake = Mistake.REFUSED_VALUE if element is None else Mistake.REFUSED_ENTRY
    seen = brief(written) if element is None else element
    text = seen.strip('"')
    near = key.kind.nearest(text) if text != seen else ""
    return Problem(mistake, origin, key.dotted, written=seen, nearest=near)


def _environment_layer(environ: Mapping[str, str]) -> Layer:
    """Return the settings of ``AUTOGPU_*`` that aren't empty. ``AUTOGPU`` overrides ``AUTOGPU_ENABLED``."""
    layer = Layer(LayerName.ENVIRONMENT)
    keys = {**{key.variable: key for key in KEYS}, variables.SWITCH: BY_DOTTED["enabled"]}
    for name in (*sorted(name for name in environ if name.startswith(variables.PREFIX)), variables.SWITCH):
        text = environ.get(name, "").strip()
        if text and name in keys:
            is_typed = environ.get(variables.TYPED + name[len(variables.PREFIX) :]) == environ[name]
            place = keys[name].flag if is_typed else name  # the option of `autogpu run`
            layer.take(keys[name], text, Origin(LayerName.ENVIRONMENT, place))
        elif text and name not in variables.INTERNAL and not name.startswith(variables.INTERNAL_PREFIXES):
            layer.problems.append(_unknown_variable(name))
    return layer


def _unknown_variable(name: str) -> Problem:
    origin = Origin(LayerName.ENVIRONMENT, printable(name, LONGEST_NAME))
    return Problem(Mistake.UNKNOWN_VARIABLE, origin, nearest=_nearest(name[len(variables.PREFIX) :]))


def _flag_layer(flags: Mapping[str, str]) -> Layer:
    layer = Layer(LayerName.COMMAND_LINE)
    for name, text in flags.items():
        if text.strip():
            layer.take(BY_NAME[name], text.strip(), Origin(LayerName.COMMAND_LINE, BY_NAME[name].flag))
    return layer


def _file_layer(source: Source) -> Layer:
    layer = Layer(source.layer, source.problems)
    # A host may have several versions of autogpu. A name in the system file that this version does not know may be
    # valid in another.
    problems = layer.unknown if layer.name is LayerName.SYSTEM else layer.problems
    for path, value in _entries(source.table):
        key = BY_DOTTED.get(".".join(path))
        if key is not None:
            layer.take(key, value, source.origin(*path))
        elif len(problems) < _MOST_PROBLEMS:  # the search for similar keys takes seconds for thousands of names
            problems.append(_unknown(path, value, source.origin(*path)))
    if layer.name is LayerName.SYSTEM:
        problems += _without_effect(layer, source)
    return layer


def _entries(table: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in table.items():
        if name in model.SECTIONS and isinstance(value, dict):
            yield from (((name, inner), each) for inner, each in value.items())
        else:
            yield (name,), value


def _unknown(path: tuple[str, ...], value: object, origin: Origin) -> Problem:
    name = ".".join(map(bare, path))
    if name in _TABLES and name not in _CALLED:
        return Problem(Mistake.MUST_BE_TABLE, origin, written=name)
    if isinstance(value, dict):
        return Problem(Mistake.UNKNOWN_TABLE, origin, written=name, nearest=most_similar(path[-1], _TABLES))
    return Problem(Mistake.UNKNOWN_KEY, origin, written=name, nearest=_nearest(path[-1]))


def _without_effect(system: Layer, source: Source) -> Iterator[Problem]:
    names, origin = system.values.get("locked", _NO_LOCKS)
    for name in sorted(names - BY_DOTTED.keys() - BY_NAME.keys()):
        yield Problem(Mistake.UNKNOWN_LOCK, origin, written=brief(name), nearest=_nearest(name))
    limits, _ = system.values.get("limits.per_user", _NO_LOCKS)
    for name in limits if isinstance(limits, dict) else ():
        if name != DEFAULT_GROUP and group_number(name) is None:
            origin = source.origin("limits", "per_user", name)
            yield Problem(Mistake.UNKNOWN_GROUP, origin, written=brief(name))


def _nearest(name: str) -> str:
    """Return the dotted name of the key that the user probably meant; ``""`` if no key is similar.

    If a name ends in a key's name, the user means that key: ``memory_limit`` means ``limit``.
    """
    plain = "_" + name.lower().replace("-", "_").rpartition(".")[2]
    ends = [own for own in _CALLED if plain.endswith("_" + own)]
    own = max(ends, key=len, default="") or most_similar(plain[1:], _CALLED)
    return _CALLED[own].dotted if own else ""
