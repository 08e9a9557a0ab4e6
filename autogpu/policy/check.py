"""The values of each layer, checked against the model: types, ranges, and names that do not exist.

A key that can't be read is left out of its layer and becomes a :class:`Problem`; the others count.
"""

from __future__ import annotations

import re

from autogpu import variables
from autogpu.policy import model
from autogpu.policy.kinds import DEFAULT_GROUP, GroupLimits, Refused, brief, group_number, quoted
from autogpu.policy.model import BY_DOTTED, BY_NAME, KEYS, SECTIONS, Key, Origin, Problem
from autogpu.reporting.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Collection, Iterable, Mapping

    from autogpu.policy.sources import Source

NOT_FOLLOWED = "it is ignored"
MOST_PROBLEMS = 20
_LONGEST_NAME = 64
_TABLES = [section for section in SECTIONS if section]

# Names by which people look for a key, or an option, whose own name is not similar.
_ALSO_CALLED = {
    **dict.fromkeys(("gpu", "gpu_id", "gpu_ids", "device"), "devices"),
    **dict.fromkeys(("gpus", "num_gpus", "ngpus"), "count"),
    **dict.fromkeys(("memory", "mem", "vram"), "need"),
    "timeout": "wait",
    "wait": "timeout",
    "verbose": "level",
}

# Values that are for another key: those of a key that look like this.
_FOR_ANOTHER = (
    ("select.count", r"a list$|[0-9]+ ?[,:-]|GPU-|MIG-", "select.devices"),
    ("select.need", r"[0-9.]+ ?%", "memory.limit"),
)


class Layer:
    """The settings of one source. Names that are ``unknown`` to this version are no problem in the system file."""

    def __init__(self, name: str, problems: Iterable[Problem] = ()) -> None:
        self.name = name
        self.values: dict[str, tuple[object, Origin]] = {}
        self.problems = list(problems)
        self.unknown: list[Problem] = []

    def take_text(self, key: Key, text: str, origin: Origin) -> None:
        """Read the value of a variable or a flag."""
        self.take(key, text.strip(), origin, key.kind.from_text)

    def take(self, key: Key, written: Any, origin: Origin, read: Callable[[Any], object]) -> None:
        """Read a value that is ``written`` somewhere."""
        try:
            value = read(written)
        except Refused as refused:
            self.problems.append(_refusal(key, written, refused, self.origin_of(key, refused.entry) or origin))
            return
        if not key.system_only or self.name == model.SYSTEM:
            self.values[key.dotted] = (value, origin)
        elif value != key.default:
            # The default says nothing, so a copy of the example file is allowed in any place.
            what = f"{origin}: {key.dotted} counts only in the system file, {model.SYSTEM_FILE}"
            self.problems.append(Problem(what, "", origin, key.dotted))

    def origin_of(self, key: Key, entry: str | None) -> Origin | None:
        """Where an entry of a table is written that is the value of ``key``; ``None`` in layers that are no files."""
        return None


def _refusal(key: Key, value: object, refused: Refused, origin: Origin) -> Problem:
    verb = "can't be" if refused.element is None else "can't hold"
    hint = refused.why or _for_another(key, value, origin)
    if not hint and isinstance(value, str):
        near = _nearest(value, key.kind.words)
        hint = f'nearest is "{near}"' if near else ""
    seen = (refused.element or brief(value)) + (f" ({hint})" if hint else "")
    return Problem(f"{origin}: {key.dotted} {verb} {seen}; allowed: {key.kind.allowed}", "", origin, key.dotted)


def _for_another(key: Key, value: object, origin: Origin) -> str:
    text = value.strip() if isinstance(value, str) else brief(value)
    for dotted, pattern, meant in _FOR_ANOTHER:
        if dotted == key.dotted and re.match(pattern, text, re.IGNORECASE):
            other = BY_DOTTED[meant]
            by_layer = {model.ENVIRONMENT: other.variable, model.COMMAND_LINE: other.flag}
            return f"did you mean {by_layer.get(origin.layer, meant)}?"
    return ""


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """The ``AUTOGPU_*`` variables, and ``AUTOGPU`` itself above them. An empty one counts as unset."""
    layer = Layer(model.ENVIRONMENT)
    by_variable = {key.variable: key for key in KEYS}
    for name in sorted(environ):
        is_ours = name.startswith(variables.PREFIX) and environ[name].strip()
        if not is_ours or name in variables.INTERNAL or name.startswith(variables.INTERNAL_PREFIXES):
            continue
        origin = Origin(model.ENVIRONMENT, printable(name, _LONGEST_NAME), variable=name)
        if environ.get(variables.TYPED + name[len(variables.PREFIX) :]) == environ[name] and name in by_variable:
            origin = Origin(model.ENVIRONMENT, by_variable[name].flag, variable=name)
        if name in by_variable:
            layer.take_text(by_variable[name], environ[name], origin)
        else:
            what = f"{origin} is not a variable of autogpu{_nearest_variable(name, by_variable)}"
            layer.problems.append(Problem(what, NOT_FOLLOWED, origin))
    switch = environ.get(variables.SWITCH, "")
    if switch.strip():
        origin = Origin(model.ENVIRONMENT, variables.SWITCH, variable=variables.SWITCH)
        layer.take_text(BY_DOTTED["enabled"], switch, origin)
    return layer


def _nearest_variable(name: str, by_variable: Mapping[str, Key]) -> str:
    ends = {known[len(variables.PREFIX) :].lower(): known for known in (*by_variable, *variables.INTERNAL)}
    near = ends.get(nearest_name(name[len(variables.PREFIX) :], ends) or "")
    if near is None:
        return "; `autogpu config` lists the keys"
    return f", nearest is {near}" + (f" ({by_variable[near].kind.allowed})" if near in by_variable else "")


def flag_layer(flags: Mapping[str, str]) -> Layer:
    """The command line of ``autogpu run``: the names of keys, and values as in the environment."""
    layer = Layer(model.COMMAND_LINE)
    for name, text in flags.items():
        if text.strip():
            layer.take_text(BY_NAME[name], text, Origin(model.COMMAND_LINE, BY_NAME[name].flag))
    return layer


class FileLayer(Layer):
    """The keys of a file."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.layer, source.problems)
        self._source = source
        if isinstance(source.table, dict):
            self._read(source.table)
        elif source.table is not None:
            self._problem(f"{self._header('')} must be a table, not {brief(source.table)}")

    def _read(self, table: Mapping[str, object]) -> None:
        for name, value in table.items():
            if name == "tool" and not self._source.prefix and isinstance(value, dict) and "autogpu" in value:
                first = tuple(value["autogpu"])[:1] if isinstance(value["autogpu"], dict) else ()
                what = "[tool.autogpu] is for pyproject.toml; here it is left out, as in [select] and enabled = true"
                self._problem(what, "tool", "autogpu", *first)
            elif name in _TABLES:
                self._section(name, value)
            else:
                self._entry("", name, value)

    def _section(self, section: str, table: object) -> None:
        if not isinstance(table, dict):
            names = ", ".join(key.name for key in KEYS if key.section == section)
            self._problem(f"{section} can't be {brief(table)}; allowed: a table with {names}", section)
            return
        for name, value in table.items():
            self._entry(section, name, value)

    def _entry(self, section: str, name: str, value: object) -> None:
        key = BY_NAME.get(name)
        if key is not None and key.section == section:
            self.take(key, value, self._origin(section, name), key.kind.from_toml)
        else:
            # "[limit]" is no misplaced "limit".
            self._unknown(section, name, value, None if isinstance(value, dict) else key)

    def _unknown(self, section: str, name: str, value: object, key: Key | None) -> None:
        # Hosts carry several versions: a name that this one does not know may be another's; a known one elsewhere
        # is a mistake.
        is_for_doctor = self.name == model.SYSTEM and key is None
        problems = self.unknown if is_for_doctor else self.problems
        if len(problems) > MOST_PROBLEMS:
            # The rest is only counted; to look for the nearest of thousands would take seconds.
            problems.append(problems[-1])
            return
        origin = self._origin(section, name)
        if key is not None:
            here, there = self._place(section), self._place(key.section)
            what = f"{origin}: {name} belongs {there}, not {here}; allowed: {key.kind.allowed}"
        else:
            bare = name if re.fullmatch("[A-Za-z0-9_-]{1,64}", name) else quoted(name)
            dotted = f"{section}.{bare}" if section else bare
            kind = "table" if isinstance(value, dict) else "key"
            what = f"{origin}: unknown {kind} {dotted}{self._hint(section, name, value)}"
        problems.append(Problem(what, NOT_FOLLOWED, origin))

    def _hint(self, section: str, name: str, value: object) -> str:
        near = _nearest_key(name) if section or not isinstance(value, dict) else None
        if near:
            return f", nearest is {near.dotted} ({near.kind.allowed})"
        near_section = "" if section else _nearest_section(name, value)
        if near_section:
            return f", nearest is {self._header(near_section)}"
        names = [key.name for key in KEYS if key.section == section]
        names += [] if section else [f"[{table}]" for table in _TABLES]
        return f"; known {self._place(section)}: " + ", ".join(names)

    def _problem(self, what: str, *path: str) -> None:
        origin = self._source.origin(*path)
        self.problems.append(Problem(f"{origin}: {what}", NOT_FOLLOWED, origin))

    def _origin(self, section: str, *names: str) -> Origin:
        return self._source.origin(*([section] if section else []), *names)

    def origin_of(self, key: Key, entry: str | None) -> Origin | None:
        """The line of the entry, else of the table."""
        return None if entry is None else self._origin(key.section, key.name, entry)

    def _place(self, section: str) -> str:
        return f"in {self._header(section)}" if section or self._source.prefix else "at the top level"

    def _header(self, section: str) -> str:
        parts = self._source.prefix + ((section,) if section else ())
        return f"[{'.'.join(parts)}]"


def locks(system: Layer) -> dict[str, Origin]:
    """The dotted keys that the system file locks, and where it says so. A bare name will do."""
    names, origin = _locked(system)
    found = (BY_DOTTED.get(name) or BY_NAME.get(name) for name in names)
    return {key.dotted: origin for key in found if key is not None}


def unknown_names(system: Layer) -> tuple[Problem, ...]:
    """Names in the system file that enforce nothing: of no key, in ``locked`` and elsewhere, and of no group."""
    notes = []
    names, origin = _locked(system)
    for name in sorted(names)[:MOST_PROBLEMS]:
        if name not in BY_DOTTED and name not in BY_NAME:
            near = _nearest_key(name)
            hint = f", nearest is {near.dotted}" if near else ""
            what = f"{origin}: locked names {brief(name)}, which is no key{hint}"
            notes.append(Problem(what, "it locks nothing", origin))
    limits, origin = system.values.get("limits.per_user", (None, origin))
    for name in limits.groups[:MOST_PROBLEMS] if isinstance(limits, GroupLimits) else ():
        if group_number(name) is None:
            line = system.origin_of(BY_DOTTED["limits.per_user"], name) or origin
            meant = f" (for who is in none of them: {DEFAULT_GROUP})" if name.lower() == DEFAULT_GROUP else ""
            what = f"{line}: limits.per_user names {brief(name)}, which is no group of this host{meant}"
            notes.append(Problem(what, "it has no effect", line))
    return (*bounded(system.unknown), *notes)


def _locked(system: Layer) -> tuple[frozenset[str], Origin]:
    names, origin = system.values.get("locked", (frozenset(), Origin(model.DEFAULT, model.DEFAULT)))
    assert isinstance(names, frozenset)
    return names, origin


def _nearest_section(name: str, table: object) -> str | None:
    """The section that was meant: the one whose keys are in the table, else the one with the most similar name."""
    inside = [BY_NAME[key].section for key in (table if isinstance(table, dict) else ()) if key in BY_NAME]
    return inside[0] if inside and inside[0] else _nearest(name, _TABLES)


def _nearest_key(name: str) -> Key | None:
    return BY_NAME.get(nearest_name(name, BY_NAME) or "")


def nearest_name(name: str, names: Collection[str]) -> str | None:
    """The one that was meant: that in which a longer name ends (``memory_limit``), or the most similar."""
    plain = name.lower().replace("-", "_").split(".")[-1]
    for own in sorted(names, key=len, reverse=True):
        if plain == own or plain.endswith("_" + own):
            return own
    also = _ALSO_CALLED.get(plain)
    return also if also in names else _nearest(plain, names)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    import difflib

    matches = difflib.get_close_matches(name[:_LONGEST_NAME], list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def bounded(problems: list[Problem]) -> list[Problem]:
    """The first of them, and how many there are besides."""
    if len(problems) <= MOST_PROBLEMS:
        return problems
    rest = len(problems) - MOST_PROBLEMS
    origin = problems[MOST_PROBLEMS].origin
    return [*problems[:MOST_PROBLEMS], Problem(f"{origin}: and {rest} more", "they are ignored", origin)]
