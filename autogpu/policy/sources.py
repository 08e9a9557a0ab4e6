"""The files of each layer: where they are, and what is in them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any, Iterator, Mapping, Sequence

from autogpu.frozen import frozen, replace
from autogpu.policy import model, trust
from autogpu.policy.kinds import Refused, brief
from autogpu.policy.model import BY_NAME, Origin, Problem
from autogpu.reporting.text import printable, short_path
from autogpu.variables import POLICY_FILE

PROJECT_FILE = "autogpu.toml"
PYPROJECT = "pyproject.toml"
IGNORED = "this file is ignored"

# Searched for where a pyproject.toml can't be parsed, or is not trusted enough to be.
_OUR_HEADER = re.compile(rb"""^[ \t]*\[+[ \t]*["']?tool["']?[ \t]*\.[ \t]*["']?autogpu["']?[ \t]*[].]""", re.MULTILINE)
_MOST_DOTS = _DEEPEST_BRACKETS = 100

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\\\n]*"|'[^'\n]*')"""
_NAME = rf"({_PART}(?:[ \t]*\.[ \t]*{_PART})*)"
_HEADER, _ASSIGNMENT = rf"[ \t]*\[(\[)?[ \t]*{_NAME}[ \t]*\]\]?[ \t]*(?:#.*)?\r?$", rf"[ \t]*{_NAME}[ \t]*="
_LONG_NAME = rf"(?<![\w-])(?:{_PART}[ \t]*\.[ \t]*){{{_MOST_DOTS + 1}}}"


@frozen
class Source:
    """The file of one layer, if there is one that counts, and the table of its keys, if that could be read.

    Attributes:
        place: The file, as people write its name.
        prefix: Where in the file the keys are: ``("tool", "autogpu")`` in a pyproject.toml.
        lines: The lines of keys and tables by their paths; ``None`` where that is not certain.
    """

    layer: str
    file: Path | None = None
    place: str = ""
    table: Mapping[str, object] | None = None
    prefix: tuple[str, ...] = ()
    lines: Mapping[Sequence[str], int | None] = MappingProxyType({})
    problems: tuple[Problem, ...] = ()

    def origin(self, *path: str) -> Origin:
        """The origin of a key or table of the file: its line, or that of what it is in, or of the first thing in it."""
        path = self.prefix + path
        found = (path[:end] for end in range(len(path), 0, -1))
        above = [self.lines[each] for each in found if each in self.lines]
        inside = (line for each, line in self.lines.items() if each[: len(path)] == path)
        line = above[0] if above else next(inside, None)
        return Origin(self.layer, self.place, self.file, line)


@frozen
class PolicyPaths:
    """Where a user's policy files are. ``homes`` has the home folder, and what it really is where it is a link."""

    homes: tuple[Path, ...]
    user_file: Path | None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> PolicyPaths:
        """``HOME`` and ``XDG_CONFIG_HOME`` as the XDG specification reads them: relative ones don't count."""
        home = _absolute(environ.get("HOME", ""))
        config = _absolute(environ.get("XDG_CONFIG_HOME", "")) or (home / ".config" if home else None)
        homes = (home, Path(os.path.realpath(str(home)))) if home else ()
        return cls(homes, config / "autogpu" / PROJECT_FILE if config else None)

    def short(self, file: Path) -> str:
        """A path as people write it, with ``~`` for the home folder."""
        return short_path(file, tuple(map(str, self.homes)))


def named_source(paths: PolicyPaths, name: str, working_directory: Path) -> Source:
    """The project file that ``AUTOGPU_POLICY`` names: trusted, and missed if it is not there."""
    if name == os.devnull:
        return Source(model.PROJECT)
    if name.startswith("~/") and paths.homes:
        name = str(paths.homes[0] / name[2:])
    file = working_directory / name
    source = source_of(paths, model.PROJECT, file)
    if source.file or source.problems:
        return source
    is_there = os.path.exists(str(file))  # noqa: PTH110  (answers for a name of any length)
    why = "has no [tool.autogpu]" if is_there else "does not exist or can't be reached"
    what, origin = f"{POLICY_FILE} names {paths.short(file)}, which {why}", Origin(model.ENVIRONMENT, POLICY_FILE)
    return replace(source, problems=(Problem(what, "no project file is read", origin),))


def found_source(paths: PolicyPaths, script: Path | None, working_directory: Path, *, system_file: Path) -> Source:
    """The nearest project file that counts, walking up from the script, else from the working directory.

    A file that other users could have written is as good as absent: the search goes on, so that a file left in a
    shared folder can't hide a project's own. What is already the user's or the system's file is not a project's.
    """
    refused: list[Problem] = []
    for file in _candidates(paths, script, working_directory):
        if file in (system_file, paths.user_file):
            continue
        source = source_of(paths, model.PROJECT, file, judge=True)
        refused.extend(source.problems)
        if source.file:
            return replace(source, problems=tuple(refused))
    return Source(model.PROJECT, problems=tuple(refused))


def _candidates(paths: PolicyPaths, script: Path | None, working_directory: Path) -> Iterator[Path]:
    # The home folder and the root are looked at, and end the walk: a script that lies directly in one of them
    # has its policy beside it as any other has.
    seen: set[Path] = set()
    for start in ([working_directory / script.parent] if script else []) + [working_directory]:
        for folder in (start, *start.parents):
            if folder in seen:
                break
            seen.add(folder)
            yield folder / PROJECT_FILE
            yield folder / PYPROJECT
            if folder in paths.homes:
                break


def source_of(paths: PolicyPaths, layer: str, file: Path, *, judge: bool = False) -> Source:
    """Read one file; ``judge`` counts it only if no other user could have written it."""
    is_shared = file.name == PYPROJECT
    here, none = Source(layer, file, paths.short(file)), Source(layer)
    origin = here.origin()
    try:
        opened = trust.read_file(file, judge=judge)
    except trust.UnreadableFile as error:
        problem = Problem(f"{origin} {printable(str(error))}", IGNORED, origin)
        return none if judge and is_shared else replace(none, problems=(problem,))
    if opened is None:
        return none
    content, distrust = opened
    if is_shared and b"autogpu" not in content:
        return none
    is_ours = not is_shared or bool(_OUR_HEADER.search(content))
    if distrust:
        what = f"{origin} does not count as a project file: {printable(distrust)}"
        name = printable(str(file))
        repair = f"chmod go-w {name}, or " if distrust.startswith(trust.ITS_MODE) else ""
        problem = Problem(f"{what} (to use it: {repair}{POLICY_FILE}={name})", IGNORED, origin)
        return replace(none, problems=(problem,)) if is_ours else none
    try:
        # Editors on Windows put a byte order mark in front, which TOML does not know.
        text = content.decode("utf-8-sig")
        table = _parsed(text)
    except trust.UnreadableFile as error:
        return replace(here, problems=(Problem(f"{origin} {error}", IGNORED, origin),)) if is_ours else none
    except (ValueError, RecursionError) as error:
        why, line = _what_is_wrong(error, content)
        origin = replace(origin, line=line)
        problem = Problem(f"{origin} is not valid TOML: {why}", IGNORED, origin)
        return replace(here, problems=(problem,)) if is_ours else none
    if not is_shared:
        return replace(here, table=table, lines=key_lines(text))
    tool = table.get("tool")
    ours = tool.get("autogpu") if isinstance(tool, dict) else None
    if ours is None:
        return none
    here = replace(here, prefix=("tool", "autogpu"), lines=key_lines(text))
    if isinstance(ours, dict):
        return replace(here, table=ours)
    origin = here.origin()
    what = f"{origin}: [tool.autogpu] can't be {brief(ours)}; allowed: a table"
    return replace(here, problems=(Problem(what, IGNORED, origin),))


def _parsed(text: str) -> dict[str, Any]:
    _refuse_excess(text)
    try:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
    except ImportError:
        raise trust.UnreadableFile("can't be read: the package tomli is not installed") from None
    # The parser tells no line number for a mistake in a last line that has no line end.
    table: dict[str, Any] = tomllib.loads(text + "\n")
    return table


def _refuse_excess(text: str) -> None:
    """Keep from the parsers what costs them seconds, or brings the process down with them."""
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        if depth > _DEEPEST_BRACKETS:
            # A compiled parser may overflow the C stack, which no exception reports.
            raise trust.UnreadableFile(f"can't be read: brackets are nested more than {_DEEPEST_BRACKETS} deep")
    if text.count(".") > _MOST_DOTS and re.search(_LONG_NAME, text):
        # The time that the parsers take grows with the square of it.
        raise trust.UnreadableFile(f"can't be read: a name has more than {_MOST_DOTS} dots")


def _what_is_wrong(error: Exception, content: bytes) -> tuple[str, int | None]:
    """The mistake that makes a file invalid, and its line where it is known."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8", content.count(b"\n", 0, error.start) + 1
    found = re.match(r"(.*) \(at line ([0-9]+), column [0-9]+\)$", str(error), re.DOTALL)
    if found is None:
        return printable(str(error)), None
    why, line = found.group(1), int(found.group(2))
    return printable(_mistake(content.decode("utf-8-sig").split("\n")[line - 1], why) or why), line


def _mistake(line: str, why: str) -> str:
    """Name the mistake in the line at which the parser stopped, if it is a usual one; else ``""``."""
    if why.startswith(("Cannot overwrite", "Cannot declare")):
        return f"{re.split('[=#]', line)[0].strip()} is written twice"
    name, _, value = line.partition("#")[0].partition("=")
    key = BY_NAME.get(name.strip().rpartition(".")[2])
    if key is not None and value.strip():
        try:
            right = key.written(key.kind.read(value.strip()))
        except Refused:
            return ""
        return f"write {key.name} = {right}, not {key.name} = {value.strip()}"
    return ""


def key_lines(text: str) -> dict[Sequence[str], int | None]:
    """By path, the lines of the keys and tables of a valid TOML file, which the standard parser does not tell.

    What is written in a way that this does not follow is missing, and what seems to be written twice has no line.
    """
    header, assignment = re.compile(_HEADER), re.compile(_ASSIGNMENT)
    lines: dict[Sequence[str], int | None] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        begins_table, sets_key = header.match(line), assignment.match(line)
        if begins_table:
            table = path = _parts(begins_table.group(2))
        elif sets_key:
            path = table + _parts(sets_key.group(1))
        else:
            continue
        is_certain = path not in lines and not (begins_table and begins_table.group(1))
        lines[path] = number if is_certain else None
    return lines


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part[1:-1] if part[0] in "\"'" else part for part in re.findall(_PART, name))


def working_directory() -> Path:
    """The working directory; the root of the file system where it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return Path(os.sep)


def _absolute(text: str) -> Path | None:
    path = Path(text)
    return path if path.is_absolute() and "\0" not in text else None
