"""Where a policy is written: the files in their places, and the environment."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from autogpu.frozen import frozen
from autogpu.policy import model, trust
from autogpu.policy.lines import KeyLines
from autogpu.policy.model import Origin, Problem
from autogpu.policy.values import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Mapping

PROJECT_FILE = "autogpu.toml"
PYPROJECT = "pyproject.toml"
LEFT_OUT = "this file is left out"

# A header is looked for by eye where the file can't be parsed, or is not trusted enough to be.
_OUR_HEADER = re.compile(r"""^[ \t]*\[+[ \t]*["']?tool["']?[ \t]*\.[ \t]*["']?autogpu["']?[ \t]*[\].]""", re.MULTILINE)
_DEEPEST_BRACKETS = 100


class Broken(Exception):
    """A file that can't be parsed: why, to follow its name in a sentence, and the line where it is known."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why)
        self.line = line


@frozen
class Source:
    """What was found for one layer of files.

    Attributes:
        layer: Which layer it is.
        file: ``None`` where there is none.
        table: The keys in it; ``None`` where there is no file or it could not be read.
        prefix: Where in the file the keys stand: ``("tool", "autogpu")`` in a pyproject.toml.
        lines: On which lines they stand.
    """

    layer: str
    file: Path | None = None
    table: object = None
    prefix: tuple[str, ...] = ()
    lines: KeyLines | None = None
    problems: tuple[Problem, ...] = ()


@frozen
class Places:
    """The places to look in, from the environment of the process.

    Attributes:
        homes: The home folder, and what it really is where it is a link; empty where there is none.
        user_file: ``None`` where there is no home and no configuration folder.
    """

    homes: tuple[Path, ...]
    user_file: Path | None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Places:
        """``HOME`` and ``XDG_CONFIG_HOME`` as the XDG specification reads them: relative ones don't count."""
        home = _absolute(environ.get("HOME", ""))
        config = _absolute(environ.get("XDG_CONFIG_HOME", "")) or (home / ".config" if home else None)
        homes = (home, Path(os.path.realpath(str(home)))) if home else ()
        return cls(homes, config / "autogpu" / PROJECT_FILE if config else None)

    def shown(self, file: Path) -> str:
        """A path as people write it, with ``~`` for the home folder, safe for a terminal."""
        text = str(file)
        for home in self.homes:
            if home in file.parents and home != Path(home.anchor):
                text = str(Path("~") / file.relative_to(home))
        return printable(text)

    def origin(self, layer: str, file: Path, line: int | None = None) -> Origin:
        """The origin of something in a file."""
        return Origin(layer, self.shown(file) + (f":{line}" if line else ""), file, line)


def system_source(places: Places, file: Path) -> Source:
    """The host's file. It is not judged: whoever can write there owns the host."""
    return _source(places, model.SYSTEM, file)


def user_source(places: Places) -> Source:
    """The file in the user's configuration folder, if there is a home."""
    return _source(places, model.USER, places.user_file) if places.user_file else Source(model.USER)


def named_source(places: Places, name: str, working_directory: Path) -> Source:
    """The project file that ``AUTOGPU_POLICY`` names: trusted, and missed if it is not there."""
    if name == os.devnull:
        return Source(model.PROJECT)
    if name.startswith("~/") and places.homes:
        name = str(places.homes[0] / name[2:])
    file = working_directory / name
    source = _source(places, model.PROJECT, file)
    if source.file is None:
        origin = Origin(model.ENVIRONMENT, model.FILE_VARIABLE, variable=model.FILE_VARIABLE)
        what = f"{model.FILE_VARIABLE} names {places.shown(file)}, which does not exist or can't be reached"
        return Source(model.PROJECT, problems=(Problem(what, "no project file is read", origin),))
    if source.table is None and not source.problems:
        what = f"{model.FILE_VARIABLE} names {places.shown(file)}, which has no [tool.autogpu]"
        problem = Problem(what, "no project file is read", places.origin(model.PROJECT, file))
        return Source(model.PROJECT, file, problems=(problem,))
    return source


def plain_source(places: Places, file: Path, layer: str) -> Source:
    """A file as it is, whoever's it is."""
    return _source(places, layer, file)


def found_source(places: Places, script: Path | None, working_directory: Path, *, system_file: Path) -> Source:
    """The nearest project file that counts, walking up from the script, else from the working directory.

    A file that others could have written is as good as absent: the walk goes on, so that nobody can hide a
    project's own file by leaving one in a shared folder. What is already the user's or the system's file is
    not a project's.
    """
    refused: list[Problem] = []
    for file in _candidates(places, script, working_directory):
        if file in (system_file, places.user_file):
            continue
        source = _source(places, model.PROJECT, file, judge=True)
        if source.file is None:
            refused.extend(source.problems)
        elif source.table is not None or source.problems:
            problems = (*refused, *source.problems)
            return Source(source.layer, file, source.table, source.prefix, source.lines, problems)
    return Source(model.PROJECT, problems=tuple(refused))


def _candidates(places: Places, script: Path | None, working_directory: Path) -> Iterator[Path]:
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
            if folder in places.homes:
                break


def _source(places: Places, layer: str, file: Path, *, judge: bool = False) -> Source:
    """Read one file. No ``file`` in the result: none that counts. No ``table``: nothing in it for us."""
    is_shared = file.name == PYPROJECT
    origin = places.origin(layer, file)
    try:
        opened = trust.read(file, judge=judge)
    except trust.Unreadable as error:
        problems = (Problem(f"{origin} {printable(str(error))}", LEFT_OUT, origin),)
        if not judge:
            return Source(layer, file, problems=problems)
        # Whose it is can't be told, so it hides nothing; a folder or a closed pyproject.toml is not about us.
        return Source(layer, problems=() if is_shared or file.is_dir() else problems)
    if opened is None:
        return Source(layer)
    if is_shared and b"autogpu" not in opened.content:
        return Source(layer, file)
    has_our_header = _OUR_HEADER.search(opened.content.decode("utf-8", "replace"))
    if opened.distrust:
        if is_shared and not has_our_header:
            return Source(layer)
        what = (
            f"{origin} does not count as a project file: {printable(opened.distrust)} "
            f"({model.FILE_VARIABLE}={printable(str(file))} names it outright)"
        )
        return Source(layer, problems=(Problem(what, LEFT_OUT, origin),))
    try:
        text = _text(opened.content)
        table = _parsed(text)
    except Broken as error:
        if is_shared and not has_our_header:
            return Source(layer, file)
        origin = places.origin(layer, file, error.line)
        return Source(layer, file, problems=(Problem(f"{origin} {error}", LEFT_OUT, origin),))
    if not is_shared:
        return Source(layer, file, table, (), KeyLines(text))
    tool = table.get("tool")
    ours = tool.get("autogpu") if isinstance(tool, dict) else None
    return Source(layer, file, ours, ("tool", "autogpu"), None if ours is None else KeyLines(text))


def _text(content: bytes) -> str:
    try:
        # Editors on Windows put a byte order mark in front, which TOML does not know.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Broken("is not valid TOML: it is not UTF-8", content.count(b"\n", 0, error.start) + 1) from None


def _parsed(text: str) -> dict[str, object]:
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        if depth > _DEEPEST_BRACKETS:
            # The compiled parsers may overflow the C stack, which no exception reports.
            raise Broken(f"is not valid TOML: brackets are nested more than {_DEEPEST_BRACKETS} deep")
    try:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
    except ImportError:
        raise Broken("can't be read: the package tomli is not installed") from None
    try:
        table: dict[str, object] = tomllib.loads(text)
    except RecursionError:
        raise Broken("is not valid TOML: it is nested too deep") from None
    except ValueError as error:
        why = str(error)
        place = re.search(r" \(at line ([0-9]+), column [0-9]+\)$", why)
        line = int(place.group(1)) if place else None
        why = why[: place.start()] if place else why
        raise Broken(f"is not valid TOML: {printable(why)}", line) from None
    return table


def _absolute(text: str) -> Path | None:
    path = Path(text)
    return path if path.is_absolute() and "\0" not in text else None
