"""The files of each layer: where they are, and what is in them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import MappingProxyType

from autogpu.frozen import frozen, replace
from autogpu.policy import model, trust
from autogpu.policy.kinds import Refused
from autogpu.policy.model import BY_NAME, Origin, Problem
from autogpu.reporting.text import printable, short_path
from autogpu.variables import POLICY_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Mapping, Sequence

PROJECT_FILE = "autogpu.toml"
PYPROJECT = "pyproject.toml"
IGNORED = "this file is ignored"

# A header is searched for where the file can't be parsed, or is not trusted enough to be.
_OUR_HEADER = re.compile(r"""^[ \t]*\[+[ \t]*["']?tool["']?[ \t]*\.[ \t]*["']?autogpu["']?[ \t]*[\].]""", re.MULTILINE)
_DEEPEST_BRACKETS = 100
_MOST_DOTS = 100

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\\\n]*"|'[^'\n]*')"""
_NAME = rf"({_PART}(?:[ \t]*\.[ \t]*{_PART})*)"
_HEADER, _ASSIGNMENT = rf"[ \t]*\[(\[)?[ \t]*{_NAME}[ \t]*\]\]?[ \t]*(?:#.*)?\r?$", rf"[ \t]*{_NAME}[ \t]*="
_LONG_NAME = rf"(?<![\w-])(?:{_PART}[ \t]*\.[ \t]*){{{_MOST_DOTS + 1}}}"


class InvalidFile(Exception):
    """A file that can't be parsed: why, to follow its name in a sentence, and the line where it is known."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why)
        self.line = line


@frozen
class Source:
    """The file of one layer, if there is one, and the table of its keys, if that could be read.

    Attributes:
        place: The file, as people write its name.
        prefix: Where in the file the keys are: ``("tool", "autogpu")`` in a pyproject.toml.
        lines: The lines of keys and tables by their paths; ``None`` where that is not certain.
    """

    layer: str
    file: Path | None = None
    place: str = ""
    table: object = None
    prefix: tuple[str, ...] = ()
    lines: Mapping[Sequence[str], int | None] = MappingProxyType({})
    problems: tuple[Problem, ...] = ()

    def origin(self, *path: str) -> Origin:
        """The origin of a key or table of the file: the line where that is written, or the one that holds it."""
        path = self.prefix + path
        found = (path[:end] for end in range(len(path), 0, -1))
        line = next((self.lines[each] for each in found if each in self.lines), None)
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
    if source.file is None:
        why, origin = "does not exist or can't be reached", Origin(model.ENVIRONMENT, POLICY_FILE, variable=POLICY_FILE)
    elif source.table is None and not source.problems:
        why, origin = "has no [tool.autogpu]", source.origin()
    else:
        return source
    what = f"{POLICY_FILE} names {paths.short(file)}, which {why}"
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
        if source.file is None:
            refused.extend(source.problems)
        elif source.table is not None or source.problems:
            return replace(source, problems=(*refused, *source.problems))
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
    """Read one file; ``judge`` counts it only if no other user could have written it.

    No ``file`` in the result: none that counts. No ``table``: nothing in it for us.
    """
    is_shared = file.name == PYPROJECT
    here, none = Source(layer, file, paths.short(file)), Source(layer)
    origin = here.origin()
    try:
        opened = trust.read_file(file, judge=judge)
    except trust.UnreadableFile as error:
        problems = (Problem(f"{origin} {printable(str(error))}", IGNORED, origin),)
        if not judge:
            return replace(here, problems=problems)
        # Its owner is unknown, so it hides no other file; a folder or a closed pyproject.toml does not concern us.
        return none if is_shared or file.is_dir() else replace(none, problems=problems)
    if opened is None:
        return none
    content, distrust = opened
    if is_shared and b"autogpu" not in content:
        return here
    is_ours = not is_shared or bool(_OUR_HEADER.search(content.decode("utf-8", "replace")))
    if distrust:
        what = (
            f"{origin} does not count as a project file: {printable(distrust)} "
            f"(to use it: {POLICY_FILE}={printable(str(file))})"
        )
        return replace(none, problems=(Problem(what, IGNORED, origin),) if is_ours else ())
    try:
        text = _decoded(content)
        table = _parsed(text)
    except InvalidFile as error:
        origin = replace(here.origin(), line=error.line)
        return replace(here, problems=(Problem(f"{origin} {error}", IGNORED, origin),) if is_ours else ())
    if not is_shared:
        return replace(here, table=table, lines=key_lines(text))
    tool = table.get("tool")
    ours = tool.get("autogpu") if isinstance(tool, dict) else None
    return replace(here, table=ours, prefix=("tool", "autogpu"), lines={} if ours is None else key_lines(text))


def _decoded(content: bytes) -> str:
    try:
        # Editors on Windows put a byte order mark in front, which TOML does not know.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidFile("is not valid TOML: it is not UTF-8", content.count(b"\n", 0, error.start) + 1) from None


def _parsed(text: str) -> dict[str, object]:
    _refuse_excess(text)
    try:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
    except ImportError:
        raise InvalidFile("can't be read: the package tomli is not installed") from None
    try:
        # The parser tells no line number for a mistake in a last line that has no line end.
        table: dict[str, object] = tomllib.loads(text + "\n")
    except RecursionError:
        raise InvalidFile("is not valid TOML: it is nested too deep") from None
    except ValueError as error:
        found = re.match(r"(.*) \(at line ([0-9]+), column [0-9]+\)$", str(error), re.DOTALL)
        why, line = (found.group(1), int(found.group(2))) if found else (str(error), None)
        mistake = _mistake(text.split("\n")[line - 1], why) if line else ""
        raise InvalidFile(f"is not valid TOML: {printable(mistake or why)}", line) from None
    return table


def _refuse_excess(text: str) -> None:
    """Keep from the parsers what brings the process down with them."""
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        if depth > _DEEPEST_BRACKETS:
            # The compiled parsers may overflow the C stack, which no exception reports.
            raise InvalidFile(f"is not valid TOML: brackets are nested more than {_DEEPEST_BRACKETS} deep")
    if text.count(".") > _MOST_DOTS and re.search(_LONG_NAME, text):
        # The parsers take time that grows with the square of it.
        raise InvalidFile(f"can't be read: a name has more than {_MOST_DOTS} dots")


def _mistake(line: str, why: str) -> str:
    """Name the mistake in the line at which the parser stopped, if it is a usual one; else ``""``."""
    if why.startswith(("Cannot overwrite", "Cannot declare")):
        return f"{re.split('[=#]', line)[0].strip()} is written twice"
    name, _, value = line.partition("#")[0].partition("=")
    key = BY_NAME.get(name.strip().rpartition(".")[2])
    if key is not None and value.strip():
        try:
            right = key.written(key.kind.from_text(value.strip()))
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
