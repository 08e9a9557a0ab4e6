"""The files of each layer: where they are, whose count, and what is in them."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any, Collection, Iterator, Mapping, Sequence

from autogpu.errors import ignoring, raise_if_from_script
from autogpu.frozen import Value, replace
from autogpu.policy.kinds import Refused
from autogpu.policy.model import BY_NAME, Key, LayerName, Origin, Problem
from autogpu.text import printable, short_path
from autogpu.users import UNKNOWN_UID
from autogpu.variables import POLICY_FILE

PROJECT_FILE = "autogpu.toml"
PYPROJECT = "pyproject.toml"
LARGEST_FILE_BYTES = 1024**2
_USUAL_MISTAKES = 'text stands in quotes, as in "6GiB", and a key or table only once'

# How the reason begins where the file itself can be written, which its owner can change.
_ITS_MODE = "it can be written"

# Searched for where a pyproject.toml can't be parsed, or is not trusted enough to be.
_OUR_HEADER = re.compile(rb"""^[ \t]*\[+[ \t]*["']?tool["']?[ \t]*\.[ \t]*["']?autogpu["']?[ \t]*[].]""", re.MULTILINE)
_HEADER = re.compile(r"^[ \t]*\[+[ \t]*([^][\n]+)", re.MULTILINE)
_MOST_DOTS = _DEEPEST_BRACKETS = 100

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\\\n]*"|'[^'\n]*')"""
_LONG_NAME = rf"(?<![\w-])(?:{_PART}[ \t]*\.[ \t]*){{{_MOST_DOTS + 1}}}"


class UnreadableFile(Exception):
    """A file can't be read: why, to follow its name in a sentence; ``line`` is the mistake's, ``None`` if unknown."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why)
        self.line = line


class Source(Value):
    """The file of one layer, if there is one that counts, and the table of its keys.

    Attributes:
        place: The file, as people write its name.
    """

    layer: LayerName
    file: Path | None = None
    place: str = ""
    table: Mapping[str, object] = MappingProxyType({})
    text: str = ""
    problems: tuple[Problem, ...] = ()

    def origin(self, name: str) -> Origin:
        """The origin of a key or table of the file."""
        return Origin(self.layer, self.place, line_of(self.text, name))


def homes_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The home folder, and what it really is where it is a link; none where ``HOME`` is missing or relative."""
    home = _absolute(environ.get("HOME", ""))
    return (str(home), os.path.realpath(str(home))) if home else ()


def user_file_of(environ: Mapping[str, str]) -> Path | None:
    """As the XDG specification reads ``XDG_CONFIG_HOME``: a relative one does not count. ``None`` without a home."""
    home = _absolute(environ.get("HOME", ""))
    config = _absolute(environ.get("XDG_CONFIG_HOME", "")) or (home / ".config" if home else None)
    return config / "autogpu" / PROJECT_FILE if config else None


def named_source(homes: Sequence[str], name: str, working_directory: Path) -> Source:
    """The project file that ``AUTOGPU_POLICY`` names: trusted, and missed if it is not there."""
    if name == os.devnull:
        return Source(LayerName.PROJECT)
    if name.startswith("~/") and homes:
        name = str(Path(homes[0], name[2:]))
    file = working_directory / name
    source = source_of(homes, LayerName.PROJECT, file)
    if source.file or source.problems:
        return source
    what = f"{POLICY_FILE} names {short_path(file, homes)}, which does not exist or can't be reached"
    origin = Origin(LayerName.ENVIRONMENT, POLICY_FILE)
    return replace(source, problems=(Problem(what, origin, instead="no project file is read"),))


def found_source(
    homes: Sequence[str], script: Path | None, working_directory: Path, of_other_layers: Collection[Path | None]
) -> Source:
    """The nearest project file that counts, walking up from the script, else from the working directory.

    A file that other users could have written is as good as absent: the search goes on, so that a file left in a
    shared folder can't hide a project's own. What is already the user's or the system's file is not a project's.
    """
    refused: list[Problem] = []
    for file in dict.fromkeys(_candidates(homes, script, working_directory)):
        if file in of_other_layers:
            continue
        source = source_of(homes, LayerName.PROJECT, file, judge=True)
        refused.extend(source.problems)
        if source.file:
            return replace(source, problems=tuple(refused))
    return Source(LayerName.PROJECT, problems=tuple(refused))


def _candidates(homes: Sequence[str], script: Path | None, working_directory: Path) -> Iterator[Path]:
    # The home folder and the root are looked at, and end the walk: a script that lies directly in one of them
    # has its policy beside it as any other has.
    for start in ([working_directory / script.parent] if script else []) + [working_directory]:
        for folder in (start, *start.parents):
            yield folder / PROJECT_FILE
            yield folder / PYPROJECT
            if str(folder) in homes:
                break


def source_of(homes: Sequence[str], layer: LayerName, file: Path, *, judge: bool = False) -> Source:
    """Read one file; ``judge`` counts it only if no other user could have written it.

    A file that is ignored leaves its place to another.
    """
    place = short_path(file, homes)
    none = Source(layer)
    is_shared = file.name == PYPROJECT
    # A pyproject.toml that is found and has no table of ours is no concern of anybody.
    is_ours = not (judge and is_shared)
    try:
        opened = read_file(file, judge=judge)
        if opened is None or not (is_ours or b"autogpu" in opened[0]):
            return none
        content, distrust = opened
        is_ours = is_ours or bool(_OUR_HEADER.search(content))
        if distrust:
            name = printable(str(file))
            ways = (f"chmod go-w {name}, or " if distrust.startswith(_ITS_MODE) else "") + f"{POLICY_FILE}={name}"
            raise UnreadableFile(f"does not count as a project file: {printable(distrust)} (to use it: {ways})")
        table, text = _parsed(content, is_shared=is_shared)
        if is_shared:
            tool = table.get("tool")
            table = tool.get("autogpu") if isinstance(tool, dict) else None
        if not isinstance(table, dict):
            raise UnreadableFile("has no table [tool.autogpu]")
    except UnreadableFile as error:
        origin = Origin(layer, place, error.line)
        problem = Problem(f"{origin} {error}", origin, instead="this file is ignored")
        return replace(none, problems=(problem,)) if is_ours else none
    return Source(layer, file, place, table, text)


def _parsed(content: bytes, *, is_shared: bool) -> tuple[Any, str]:
    try:
        # Editors on Windows put a byte order mark in front, which TOML does not know.
        text = content.decode("utf-8-sig")
        _refuse_excess(text)
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            from autogpu._vendor import tomli as tomllib  # type: ignore[attr-defined]
        # The parser tells no line number for a mistake in a last line that has no line end.
        return tomllib.loads(text + "\n"), text
    except ImportError as error:
        raise_if_from_script(error)
        raise UnreadableFile("can't be read: this Python has no parser for TOML") from None
    except (ValueError, RecursionError) as error:
        raise_if_from_script(error)
        found = re.match(r"(.*) \(at line ([0-9]+), column [0-9]+\)$", str(error), re.DOTALL)
        why, at = (found.group(1), int(found.group(2))) if found else (str(error), None)
        lines = content.decode("utf-8-sig", "replace").split("\n")[: at or 0]
        raise UnreadableFile(f"is not valid TOML: {_mistake(lines, why, is_shared=is_shared)}", at) from None


def _mistake(lines: Sequence[str], why: str, *, is_shared: bool) -> str:
    """Name the mistake in the last of the lines, where the parser stopped, if it is a usual one; else the usual ones.

    Args:
        lines: Empty if the parser does not report the line.
        is_shared: True for a file that also has tables of other programs.
    """
    line = lines[-1] if lines else ""
    name, _, value = (part.strip() for part in line.partition("#")[0].partition("="))
    if why.startswith(("Cannot overwrite", "Cannot declare")):
        return f"{printable(name, 64)} is written twice"
    tables = _HEADER.findall("\n".join(lines))
    is_ours = not is_shared or re.match(r"tool\.autogpu\b", tables[-1] if tables else "")
    key = BY_NAME.get(name.rpartition(".")[2]) if is_ours else None
    if key and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) and re.fullmatch(r"""[^][{}"'=]{1,60}""", value):
        return _without_quotes(key, name, value)
    return f"{printable(why)} ({_USUAL_MISTAKES})"


def _without_quotes(key: Key, name: str, value: str) -> str:
    """Say what to write in place of a text without quotes: the value that the key reads in it, or the nearest word."""
    text = value.strip("“”")
    try:
        meant = key.written(key.kind.read(text))
    except Refused:
        meant = key.kind.nearest(text)
    if meant:
        return f"write {name} = {meant}, not {name} = {printable(value)}"
    return f"{name} can't be {printable(value)}; allowed: {key.kind.allowed}"


def _refuse_excess(text: str) -> None:
    """Keep from the parsers what costs them seconds, or brings the process down with them."""
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        if depth > _DEEPEST_BRACKETS:
            # A compiled parser may overflow the C stack, which no exception reports.
            raise UnreadableFile(f"can't be read: brackets are nested more than {_DEEPEST_BRACKETS} deep")
    if text.count(".") > _MOST_DOTS and re.search(_LONG_NAME, text):
        # The time that the parsers take grows with the square of it.
        raise UnreadableFile(f"can't be read: a name has more than {_MOST_DOTS} dots")


def line_of(text: str, name: str) -> int | None:
    """The line of the key or table of a TOML file that has this name; ``None`` where several could be it, or none."""
    key = rf"""["']?{re.escape(name)}["']?[ \t]*"""
    at_the_start = rf"(?:[^=#\n]*[.\[ \t])?{key}[=.\]]"
    in_a_table = rf"[^#\n]*[{{,.][ \t]*{key}="
    found = [*re.finditer(f"^(?:{at_the_start}|{in_a_table})", text, re.MULTILINE)]
    return text.count("\n", 0, found[0].start()) + 1 if len(found) == 1 else None


def read_file(path: Path, *, judge: bool) -> tuple[bytes, str] | None:
    """Read a regular file of bounded size, and tell why it does not count, as the end of a sentence; ``""`` if it does.

    Never blocks on a pipe or a device. What is judged is the descriptor that is read from, so that the file can't
    be swapped in between.

    Args:
        path: The file, or a link to it; ``None`` is returned where there is none.
        judge: Ask who could have written it. Not asked where there are no owners (Windows).

    Raises:
        UnreadableFile: It exists, but it is not a file, too large, or not permitted.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise_if_from_script(error)
        # Also a folder that may not be entered, as with a foreign HOME kept by sudo: no file is known there.
        return None
    try:
        # Opening a device can already have an effect, so it is asked before, and again after opening.
        if not stat.S_ISREG(mode):
            raise UnreadableFile("is not a regular file")
        with open(path, "rb", opener=_opened) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UnreadableFile("is not a regular file")
            distrust = _distrust(path, file.fileno(), found) if judge and hasattr(os, "geteuid") else ""
            content = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise_if_from_script(error)
        return None
    except OSError as error:
        raise_if_from_script(error)
        raise UnreadableFile(f"can't be read ({printable(error.strerror or str(error))})") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise UnreadableFile(f"is larger than {LARGEST_FILE_BYTES // 1024} KiB")
    return content, distrust


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _distrust(path: Path, descriptor: int, found: os.stat_result) -> str:
    """Why another user could have written the opened file, or put it where it is."""
    foreign = _foreign(descriptor, found)
    if foreign:
        return f"it {foreign}"
    foreign = _foreign(path.parent, path.parent.stat())
    if foreign:
        return f"its folder {path.parent} {foreign}"
    # Not of what a link leads to: whoever can write in a folder on that way could have put another there.
    now = path.lstat()
    is_same = (now.st_dev, now.st_ino) == (found.st_dev, found.st_ino)
    return "" if is_same else "it is a link, or was replaced while it was read"


def _foreign(place: int | Path, found: os.stat_result) -> str:
    if found.st_uid == UNKNOWN_UID or found.st_uid not in (os.geteuid(), 0):
        return f"belongs to uid {found.st_uid}"
    if found.st_mode & stat.S_IWOTH:
        return "can be written by every user"
    if found.st_mode & stat.S_IWGRP and (_has_access_list(place) or not _is_private_group(found)):
        return f"can be written by group {found.st_gid}"
    return ""


def _is_private_group(found: os.stat_result) -> bool:
    """The group of a file has its owner as only member, as far as the group says.

    Debian, Ubuntu and Fedora give every user a group of the same name and an umask of 002, so refusing all
    that a group can write would refuse every project there. A primary group that many share ("users") has
    another name. An account that was made with another user's group as its primary one goes unseen: only a
    listing of all accounts would show it, which takes minutes on a host with a directory service.
    """
    import grp
    import pwd

    try:
        owner = pwd.getpwuid(found.st_uid)
        group = grp.getgrgid(found.st_gid)
    except KeyError as error:
        raise_if_from_script(error)
        return False
    is_own = group.gr_name == owner.pw_name and owner.pw_gid == found.st_gid
    return is_own and set(group.gr_mem) <= {owner.pw_name}


def _has_access_list(place: int | Path) -> bool:
    # With an access control list the group bits are its mask: they do not say who may write.
    with ignoring(AttributeError, OSError):  # only Linux has the function
        return bool(os.getxattr(place, "system.posix_acl_access"))
    return False


def working_directory() -> Path:
    """The working directory; the root of the file system where it was removed."""
    try:
        return Path.cwd()
    except OSError as error:
        raise_if_from_script(error)
        return Path(os.sep)


def _absolute(text: str) -> Path | None:
    path = Path(text)
    return path if path.is_absolute() and "\0" not in text else None
