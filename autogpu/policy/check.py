"""What the layers say, held against the model: types, ranges, and names that do not exist.

A key that can't be read is left out of its layer and becomes a :class:`Problem`; the others hold.
"""

from __future__ import annotations

import re

from autogpu import variables
from autogpu.policy import model
from autogpu.policy.kinds import Refused, brief, quoted
from autogpu.policy.model import BY_DOTTED, BY_NAME, KEYS, SECTIONS, Key, Origin, Problem
from autogpu.reporting.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Mapping

    from autogpu.policy.sources import PolicyPaths, Source

NOT_FOLLOWED = "it is ignored"
MOST_PROBLEMS = 20
_LONGEST_NAME = 64


class Layer:
    """What one source says.

    Attributes:
        values: By dotted key, the value and where it stands.
        problems: What is wrong in it, in the order of the text where that is known.
        unknown: Names this version does not know, apart because in the system file they are no problem.
    """

    def __init__(self, name: str, problems: Iterable[Problem] = ()) -> None:
        self.name = name
        self.values: dict[str, tuple[object, Origin]] = {}
        self.problems = list(problems)
        self.unknown: list[Problem] = []


def file_layer(source: Source, paths: PolicyPaths) -> Layer:
    """The keys of a file."""
    layer = Layer(source.layer, source.problems)
    if source.file is None or source.table is None:
        return layer
    _Reader(layer, source, paths).read()
    layer.problems = _bounded(layer.problems)
    layer.unknown = _bounded(layer.unknown)
    return layer


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """The ``AUTOGPU_*`` variables. An empty one counts as unset."""
    layer = Layer(model.ENVIRONMENT)
    by_variable = {key.variable: key for key in KEYS}
    ends = {name[len(variables.PREFIX) :].lower(): name for name in (*by_variable, *variables.INTERNAL)}
    for name in sorted(environ):
        if not name.startswith(variables.PREFIX) or not environ[name].strip():
            continue
        if name in variables.INTERNAL or name.startswith(variables.INTERNAL_PREFIXES):
            continue
        origin = Origin(model.ENVIRONMENT, printable(name, _LONGEST_NAME), variable=name)
        if name in by_variable:
            _take_text(layer, by_variable[name], environ[name], origin)
        else:
            near = ends.get(_nearest_name(name[len(variables.PREFIX) :], ends) or "")
            hint = f", nearest is {near}" if near else "; `autogpu config` lists the keys"
            allowed = f" ({by_variable[near].kind.allowed})" if near in by_variable else ""
            what = f"{origin} is not a variable of autogpu{hint}{allowed}"
            layer.problems.append(Problem(what, NOT_FOLLOWED, origin))
    layer.problems = _bounded(layer.problems)
    return layer


def switch_layer(environ: Mapping[str, str]) -> Layer:
    """``AUTOGPU`` itself, the switch for one process."""
    layer = Layer(model.ENVIRONMENT)
    text = environ.get(variables.SWITCH, "").strip()
    if text:
        origin = Origin(model.ENVIRONMENT, variables.SWITCH, variable=variables.SWITCH)
        _take_text(layer, BY_DOTTED["enabled"], text, origin)
    return layer


def flag_layer(flags: Mapping[str, str]) -> Layer:
    """The command line of ``autogpu run``: keys by name or dotted, values as in the environment."""
    layer = Layer(model.COMMAND_LINE)
    for name, text in flags.items():
        plain = name.lstrip("-").replace("-", "_")
        key = BY_DOTTED.get(plain) or BY_NAME.get(plain)
        flag = key.flag if key else "--" + printable(name.lstrip("-"), _LONGEST_NAME)
        origin = Origin(model.COMMAND_LINE, flag)
        if key is None:
            near = _nearest_key(plain, KEYS)
            hint = f", nearest is {near.flag} ({near.kind.allowed})" if near else ""
            layer.problems.append(Problem(f"{origin} is not a key of the policy{hint}", NOT_FOLLOWED, origin))
        elif text.strip():
            _take_text(layer, key, text, origin)
    layer.problems = _bounded(layer.problems)
    return layer


class _Reader:
    """Walks the table of one file."""

    def __init__(self, layer: Layer, source: Source, paths: PolicyPaths) -> None:
        self._layer = layer
        self._source = source
        self._paths = paths

    def read(self) -> None:
        table = self._source.table
        if not isinstance(table, dict):
            self._problem((), f"{self._header('')} must be a table, not {brief(table)}")
            return
        for name, value in table.items():
            key = BY_DOTTED.get(name)
            if key is not None and not key.section:
                self._take(key, value)
            elif name == "tool" and not self._source.prefix and isinstance(value, dict) and "autogpu" in value:
                self._of_pyproject(value["autogpu"])
            elif name not in SECTIONS or not name:
                self._unknown("", name, value)
            elif not isinstance(value, dict):
                names = ", ".join(key.name for key in KEYS if key.section == name)
                self._problem((name,), f"{name} can't be {brief(value)}; allowed: a table with {names}")
            else:
                for inner, inner_value in value.items():
                    key = BY_DOTTED.get(f"{name}.{inner}")
                    if key is not None and key.section:
                        self._take(key, inner_value)
                    else:
                        self._unknown(name, inner, inner_value)

    def _take(self, key: Key, value: object) -> None:
        origin = self._origin((key.section, key.name) if key.section else (key.name,))
        try:
            read = key.kind.from_toml(value)
        except Refused as refused:
            self._layer.problems.append(_refusal(key, value, refused, origin))
        else:
            _keep(self._layer, key, read, origin)

    def _of_pyproject(self, ours: object) -> None:
        """Answer ``[tool.autogpu.select]`` in a file that is all autogpu's."""
        inside = ours if isinstance(ours, dict) else {}
        sections = [name for name in SECTIONS if name and name in inside]
        for name in sections:
            what = f"[tool.autogpu.{name}] is for pyproject.toml; here it is written [{name}]"
            self._problem(("tool", "autogpu", name), what)
        if not sections or len(inside) > len(sections):
            what = "[tool.autogpu] is for pyproject.toml; here its keys are written at the top, without a table"
            self._problem(("tool", "autogpu"), what)

    def _unknown(self, section: str, name: str, value: object) -> None:
        key = BY_NAME.get(name)
        # Hosts carry several versions: what this one does not know may be another's. A known key elsewhere is not.
        is_for_doctor = self._layer.name == model.SYSTEM and key is None
        problems = self._layer.unknown if is_for_doctor else self._layer.problems
        if len(problems) > MOST_PROBLEMS:
            # The rest is only counted; to look for the nearest of thousands would take seconds.
            problems.append(problems[-1])
            return
        origin = self._origin((section, name) if section else (name,))
        if key is not None:
            here, there = self._place(section), self._place(key.section)
            what = f"{origin}: {name} belongs {there}, not {here}; allowed: {key.kind.allowed}"
        else:
            hint = self._hint(section, name, value)
            bare = name if re.fullmatch("[A-Za-z0-9_-]{1,64}", name) else quoted(name)
            dotted = f"{section}.{bare}" if section else bare
            what = f"{origin}: unknown {'table' if isinstance(value, dict) else 'key'} {dotted}{hint}"
        problems.append(Problem(what, NOT_FOLLOWED, origin))

    def _hint(self, section: str, name: str, value: object) -> str:
        here = [key for key in KEYS if key.section == section]
        near = _nearest_key(name, here) or _nearest_key(name, KEYS)
        near_section = _nearest(name, [s for s in SECTIONS if s]) if not section else None
        if near_section and (near is None or isinstance(value, dict)):
            return f", nearest is {self._header(near_section)}"
        if near:
            return f", nearest is {near.dotted} ({near.kind.allowed})"
        names = [key.name for key in here] + ([] if section else [f"[{s}]" for s in SECTIONS if s])
        return f"; known {self._place(section)}: " + ", ".join(names)

    def _problem(self, path: tuple[str, ...], what: str) -> None:
        origin = self._origin(path)
        self._layer.problems.append(Problem(f"{origin}: {what}", NOT_FOLLOWED, origin))

    def _origin(self, path: tuple[str, ...]) -> Origin:
        source = self._source
        line = source.lines.of(source.prefix + path) if source.lines else None
        assert source.file is not None
        return self._paths.origin(source.layer, source.file, line)

    def _place(self, section: str) -> str:
        return f"in {self._header(section)}" if section or self._source.prefix else "at the top level"

    def _header(self, section: str) -> str:
        parts = self._source.prefix + ((section,) if section else ())
        return f"[{'.'.join(parts)}]"


def _take_text(layer: Layer, key: Key, text: str, origin: Origin) -> None:
    try:
        value = key.kind.from_text(text.strip())
    except Refused as refused:
        layer.problems.append(_refusal(key, text, refused, origin))
    else:
        _keep(layer, key, value, origin)


def _keep(layer: Layer, key: Key, value: object, origin: Origin) -> None:
    """Take a value into its layer, unless it says in the wrong layer what only the system file may say."""
    if not key.system_only or layer.name == model.SYSTEM:
        layer.values[key.dotted] = (value, origin)
    elif value != key.default:
        # The default says nothing, so a copy of the example file is allowed in any place.
        what = f"{origin}: {key.dotted} counts only in the system file, {model.SYSTEM_FILE}"
        layer.problems.append(Problem(what, "", origin, key.dotted))


def _refusal(key: Key, value: object, refused: Refused, origin: Origin) -> Problem:
    verb = "can't be" if refused.element is None else "can't hold"
    hint = f" ({refused.why})" if refused.why else ""
    if isinstance(value, str) and not hint:
        near = _nearest(value.strip(), key.kind.words)
        hint = f' (nearest is "{near}")' if near else ""
    seen = refused.element or brief(value)
    what = f"{origin}: {key.dotted} {verb} {seen}{hint}; allowed: {key.kind.allowed}"
    return Problem(what, "", origin, key.dotted)


def locks(system: Layer) -> dict[str, Origin]:
    """The dotted keys that the system file locks, and where it says so. A bare name will do."""
    names, origin = _locked(system)
    found = (BY_DOTTED.get(name) or BY_NAME.get(name) for name in names)
    return {key.dotted: origin for key in found if key is not None}


def unknown_locks(system: Layer) -> list[Problem]:
    """Names in ``locked`` that are no keys. A lock that locks nothing is shown by ``doctor``."""
    names, origin = _locked(system)
    notes = []
    for name in sorted(names)[:MOST_PROBLEMS]:
        if name not in BY_DOTTED and name not in BY_NAME:
            near = _nearest_key(name, KEYS)
            hint = f", nearest is {near.dotted}" if near else ""
            what = f"{origin}: locked names {brief(name)}, which is no key{hint}"
            notes.append(Problem(what, "it locks nothing", origin))
    return notes


def _locked(system: Layer) -> tuple[frozenset[str], Origin]:
    names, origin = system.values.get("locked", (frozenset(), Origin(model.DEFAULT, model.DEFAULT)))
    assert isinstance(names, frozenset)
    return names, origin


def _nearest_key(name: str, keys: Iterable[Key]) -> Key | None:
    """The key that was meant: the one that a longer name ends in (``memory_limit``), or the most similar."""
    by_name = {key.name: key for key in keys}
    return by_name.get(_nearest_name(name, by_name) or "")


def _nearest_name(name: str, names: Iterable[str]) -> str | None:
    plain = name.lower().replace("-", "_").split(".")[-1]
    for own in sorted(names, key=len, reverse=True):
        if plain == own or plain.endswith("_" + own):
            return own
    return _nearest(plain, names)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    import difflib

    matches = difflib.get_close_matches(name[:_LONGEST_NAME], list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def _bounded(problems: list[Problem]) -> list[Problem]:
    if len(problems) <= MOST_PROBLEMS:
        return problems
    rest = len(problems) - MOST_PROBLEMS
    origin = problems[MOST_PROBLEMS].origin
    return [*problems[:MOST_PROBLEMS], Problem(f"{origin}: and {rest} more", "they are ignored", origin)]
