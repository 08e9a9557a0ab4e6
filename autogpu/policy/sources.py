"""Where a policy is written: the files of each layer."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from autogpu.frozen import frozen
from autogpu.policy import model, trust
from autogpu.policy.model import Origin, Problem
from autogpu.reporting.text import printable, short_path
from autogpu.variables import POLICY_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Mapping

    from autogpu.policy.lines import KeyLines

PROJECT_FILE = "autogpu.toml"
PYPROJECT = "pyproject.toml"
IGNORED = "this file is ignored"

# A header is looked for by eye where the file can't be parsed, or is not trusted enough to be.
_OUR_HEADER = re.compile(r"""^[ \t]*\[+[ \t]*["']?tool["']?[ \t]*\.[ \t]*["']?autogpu["']?[ \t]*[\].]""", re.MULTILINE)
_DEEPEST_BRACKETS = 100
_DEEPEST_NAME = 100


class InvalidFile(Exception):
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
class PolicyPaths:
    """Where a user's policy files are, by the environment of the process.

    Attributes:
        homes: The home folder, and what it really is where it is a link; empty where there is none.
        user_file: ``None`` where there is no home and no configuration folder.
    """

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

    def origin(self, layer: str, file: Path, line: int | None = None) -> Origin:
        """The origin of something in a file."""
        return Origin(layer, self.short(file), file, line)


def system_source(paths: PolicyPaths, file: Path) -> Source:
    """The host's file. Its owner is not checked: who can write there owns the host."""
    return _source(paths, model.SYSTEM, file)


def user_source(paths: PolicyPaths) -> Source:
    """The file in the user's configuration folder, if there is a home."""
    return _source(paths, model.USER, paths.user_file) if paths.user_file else Source(model.USER)


def named_source(paths: PolicyPaths, name: str, working_directory: Path) -> Source:
    """The project file that ``AUTOGPU_POLICY`` names: trusted, and missed if it is not there."""
    if name == os.devnull:
        return Source(model.PROJECT)
    if name.startswith("~/") and paths.homes:
        name = str(paths.homes[0] / name[2:])
    file = working_directory / name
    source = _source(paths, model.PROJECT, file)
    if source.file is None:
        origin = Origin(model.ENVIRONMENT, POLICY_FILE, variable=POLICY_FILE)
        what = f"{POLICY_FILE} names {paths.short(file)}, which does not exist or can't be reached"
        return Source(model.PROJECT, problems=(Problem(what, "no project file is read", origin),))
    if source.table is None and not source.problems:
        what = f"{POLICY_FILE} names {paths.short(file)}, which has no [tool.autogpu]"
        problem = Problem(what, "no project file is read", paths.origin(model.PROJECT, file))
        return Source(model.PROJECT, file, problems=(problem,))
    return source


def plain_source(paths: PolicyPaths, file: Path, layer: str) -> Source:
    """A file as it is, whatever its owner."""
    return _source(paths, layer, file)


def found_source(paths: PolicyPaths, script: Path | None, working_directory: Path, *, system_file: Path) -> Source:
    """The nearest project file that counts, walking up from the script, else from the working directory.

    A file that other users could have written is as good as absent: the search goes on, so that a file left in a
    shared folder can't hide a project's own. What is already the user's or the system's file is not a project's.
    """
    refused: list[Problem] = []
    for file in _candidates(paths, script, working_directory):
        if file in (system_file, paths.user_file):
            continue
        source = _source(paths, model.PROJECT, file, judge=True)
        if source.file is None:
            refused.extend(source.problems)
        elif source.table is not None or source.problems:
            problems = (*refused, *source.problems)
            return Source(source.layer, file, source.table, source.prefix, source.lines, problems)
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


def _source(paths: PolicyPaths, layer: str, file: Path, *, judge: bool = False) -> Source:
    """Read one file. No ``file`` in the result: none that counts. No ``table``: nothing in it for us."""
    is_shared = file.name == PYPROJECT
    origin = paths.origin(layer, file)
    try:
        opened = trust.read_file(file, judge=judge)
    except trust.UnreadableFile as error:
        problems = (Problem(f"{origin} {printable(str(error))}", IGNORED, origin),)
        if not judge:
            return Source(layer, file, problems=problems)
        # Its owner is unknown, so it hides no other file; a folder or a closed pyproject.toml does not concern us.
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
            f"({POLICY_FILE}={printable(str(file))} names it outright)"
        )
        return Source(layer, problems=(Problem(what, IGNORED, origin),))
    try:
        text = _decoded(opened.content)
        table = _parsed(text)
    except InvalidFile as error:
        if is_shared and not has_our_header:
            return Source(layer, file)
        origin = paths.origin(layer, file, error.line)
        return Source(layer, file, problems=(Problem(f"{origin} {error}", IGNORED, origin),))
    # Most processes have no file, and its expressions take a ms to compile.
    from autogpu.policy.lines import KeyLines

    if not is_shared:
        return Source(layer, file, table, (), KeyLines(text))
    tool = table.get("tool")
    ours = tool.get("autogpu") if isinstance(tool, dict) else None
    return Source(layer, file, ours, ("tool", "autogpu"), None if ours is None else KeyLines(text))


def _decoded(content: bytes) -> str:
    try:
        # Editors on Windows put a byte order mark in front, which TOML does not know.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidFile("is not valid TOML: it is not UTF-8", content.count(b"\n", 0, error.start) + 1) from None


def _parsed(text: str) -> dict[str, object]:
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        if depth > _DEEPEST_BRACKETS:
            # The compiled parsers may overflow the C stack, which no exception reports.
            raise InvalidFile(f"is not valid TOML: brackets are nested more than {_DEEPEST_BRACKETS} deep")
    if text.count(".") > _DEEPEST_NAME:
        from autogpu.policy.lines import deepest_name

        if deepest_name(text) > _DEEPEST_NAME:
            # The parsers take time that grows with the square of it.
            raise InvalidFile(f"can't be read: a name has more than {_DEEPEST_NAME} dots")
    try:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
    except ImportError:
        raise InvalidFile("can't be read: the package tomli is not installed") from None
    try:
        table: dict[str, object] = tomllib.loads(text)
    except RecursionError:
        raise InvalidFile("is not valid TOML: it is nested too deep") from None
    except ValueError as error:
        why = str(error)
        place = re.search(r" \(at line ([0-9]+), column [0-9]+\)$", why)
        line = int(place.group(1)) if place else None
        why = why[: place.start()] if place else why
        raise InvalidFile(f"is not valid TOML: {printable(why)}", line) from None
    return table


def working_directory() -> Path:
    """The working directory; the root of the file system where it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return Path(os.sep)


def _absolute(text: str) -> Path | None:
    path = Path(text)
    return path if path.is_absolute() and "\0" not in text else None
