"""The file of each layer: its path, its contents, and a check of who could have written it."""

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
_USUAL_MISTAKES = 'put text in quotes, as in "6GiB"; each key and table may appear only once'

# A reason from `_distrust` begins like this if other users can write the file itself. Then chmod is a remedy.
_ITS_MODE = "it can be written"

# Finds our table in a pyproject.toml that can't be parsed, or that is not parsed because it is not trusted.
_OUR_HEADER = re.compile(rb"""^[ \t]*\[+[ \t]*["']?tool["']?[ \t]*\.[ \t]*["']?autogpu["']?[ \t]*[].]""", re.MULTILINE)
_HEADER = re.compile(r"^[ \t]*\[+[ \t]*([^][\n]+)", re.MULTILINE)
_MOST_DOTS = _DEEPEST_BRACKETS = 100

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\\\n]*"|'[^'\n]*')"""
_LONG_NAME = rf"(?<![\w-])(?:{_PART}[ \t]*\.[ \t]*){{{_MOST_DOTS + 1}}}"


class UnreadableFile(Exception):
    """A file can't be used. The message continues a sentence that begins with the file's name.

    Attributes:
        line: The line of the mistake; ``None`` if it is unknown.
    """

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why)
        self.line = line


class Source(Value):
    """The file of one layer, and the table of its keys.

    Attributes:
        file: ``None`` if the layer has no file, or the file is ignored.
        place: The path of the file for messages, with ``~`` for the home folder.
    """

    layer: LayerName
    file: Path | None = None
    place: str = ""
    table: Mapping[str, object] = MappingProxyType({})
    text: str = ""
    problems: tuple[Problem, ...] = ()

    def origin(self, name: str) -> Origin:
        return Origin(self.layer, self.place, line_of(self.text, name))


def homes_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the home folder, and its path with links resolved; ``()`` if ``HOME`` is missing or relative."""
    home = _absolute(environ.get("HOME", ""))
    return (str(home), os.path.realpath(str(home))) if home else ()


def user_file_of(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the user file; ``None`` if neither ``HOME`` nor ``XDG_CONFIG_HOME`` is an absolute path.

    A relative ``XDG_CONFIG_HOME`` is ignored, as the XDG specification requires.
    """
    home = _absolute(environ.get("HOME", ""))
    config = _absolute(environ.get("XDG_CONFIG_HOME", "")) or (home / ".config" if home else None)
    return config / "autogpu" / PROJECT_FILE if config else None


def named_source(homes: Sequence[str], name: str, working_directory: Path) -> Source:
    """Read the project file that ``AUTOGPU_POLICY`` is set to, whoever owns it. A missing file is a problem."""
    if name == os.devnull:
        return Source(LayerName.PROJECT)
    if name.startswith("~/") and homes:
        name = str(Path(homes[0], name[2:]))
    file = working_directory / name
    source = source_of(homes, LayerName.PROJECT, file)
    if source.file or source.problems:
        return source
    what = f"{POLICY_FILE} is {short_path(file, homes)}, which does not exist or can't be reached"
    origin = Origin(LayerName.ENVIRONMENT, POLICY_FILE)
    return replace(source, problems=(Problem(what, origin, instead="no project file is read"),))


def found_source(
    homes: Sequence[str], script: Path | None, working_directory: Path, of_other_layers: Collection[Path | None]
) -> Source:
    """Read the nearest project file: search upwards from the script, and then from the working directory.

    A file that another user could have written is skipped, so that a file in a shared folder can't hide the project's
    own file. The files of other layers are skipped too.
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
    # The search upwards ends at the home folder or the root. It includes both, because a script may lie there.
    for start in ([working_directory / script.parent] if script else []) + [working_directory]:
        for folder in (start, *start.parents):
            yield folder / PROJECT_FILE
            yield folder / PYPROJECT
            if str(folder) in homes:
                break


def source_of(homes: Sequence[str], layer: LayerName, file: Path, *, judge: bool = False) -> Source:
    """Read one file. If the file is ignored, the result has no ``file``, and a search can go on.

    Args:
        judge: Ignore the file if another user could have written it.
    """
    place = short_path(file, homes)
    none = Source(layer)
    is_shared = file.name == PYPROJECT
    # A search also finds a pyproject.toml that has no table of ours. That is not a problem.
    is_ours = not (judge and is_shared)
    try:
        opened = read_file(file, judge=judge)
        if opened is None or not (is_ours or b"autogpu" in opened[0]):
            return none
        content, distrust = opened
        is_ours = is_ours or bool(_OUR_HEADER.search(content))
        if distrust:
            raise _distrusted(file, distrust)
        table, text = _parsed(content, is_shared=is_shared)
        table = _table_of_ours(table) if is_shared else table
    except UnreadableFile as error:
        origin = Origin(layer, place, error.line)
        problem = Problem(f"{origin} {error}", origin, instead="this file is ignored")
        return replace(none, problems=(problem,)) if is_ours else none
    return Source(layer, file, place, table, text)


def _distrusted(file: Path, distrust: str) -> UnreadableFile:
    name = printable(str(file))
    ways = (f"chmod go-w {name}, or " if distrust.startswith(_ITS_MODE) else "") + f"{POLICY_FILE}={name}"
    return UnreadableFile(f"is not used as a project file: {printable(distrust)} (to use it: {ways})")


def _table_of_ours(pyproject: Mapping[str, Any]) -> Mapping[str, Any]:
    tool = pyproject.get("tool")
    table = tool.get("autogpu") if isinstance(tool, dict) else None
    if not isinstance(table, dict):
        raise UnreadableFile("has no table [tool.autogpu]")
    return table


def _parsed(content: bytes, *, is_shared: bool) -> tuple[Any, str]:
    try:
        # Editors on Windows begin a file with a byte order mark, which TOML does not allow.
        text = content.decode("utf-8-sig")
        _refuse_excess(text)
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            from autogpu._vendor import tomli as tomllib  # type: ignore[attr-defined]
        # The parser reports no line number for a mistake in a last line without a line end.
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
    """Return the mistake in the last of ``lines`` if it is a usual one; else ``why`` and a list of usual mistakes.

    Args:
        lines: The file up to the line at which the parser stopped; empty if the parser does not report it.
        why: The parser's reason.
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
    text = value.strip("“”")
    try:
        meant = key.written(key.kind.read(text))
    except Refused:
        meant = key.kind.nearest(text)
    if meant:
        return f"write {name} = {meant}, not {name} = {printable(value)}"
    return f"{name} can't be {printable(value)}; allowed: {key.kind.allowed}"


def _refuse_excess(text: str) -> None:
    """Raise :class:`UnreadableFile` for a text that could take a parser seconds, or crash the process."""
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        if depth > _DEEPEST_BRACKETS:
            # A compiled parser could overflow the C stack, which crashes the process without an exception.
            raise UnreadableFile(f"can't be read: brackets are nested more than {_DEEPEST_BRACKETS} deep")
    if text.count(".") > _MOST_DOTS and re.search(_LONG_NAME, text):
        # The time of the parsers grows with the square of the number of dots.
        raise UnreadableFile(f"can't be read: a name has more than {_MOST_DOTS} dots")


def line_of(text: str, name: str) -> int | None:
    """Return the line of the key or table with this name; ``None`` if no line or several lines match."""
    key = rf"""["']?{re.escape(name)}["']?[ \t]*"""
    at_the_start = rf"(?:[^=#\n]*[.\[ \t])?{key}[=.\]]"
    in_a_table = rf"[^#\n]*[{{,.][ \t]*{key}="
    found = [*re.finditer(f"^(?:{at_the_start}|{in_a_table})", text, re.MULTILINE)]
    return text.count("\n", 0, found[0].start()) + 1 if len(found) == 1 else None


def read_file(path: Path, *, judge: bool) -> tuple[bytes, str] | None:
    """Return the content of a file, and the reason not to trust it; ``None`` if the file does not exist.

    The reason is the end of a sentence, or ``""`` if the file is trusted. The function never blocks on a pipe or a
    device. It opens the file once, and checks and reads the open file. So nobody can replace the file after the check.

    Args:
        path: The file, or a link to it.
        judge: Check if another user could have written the file. There is no check on Windows, where files have no uid.

    Raises:
        UnreadableFile: The path is not a regular file, the file is too large, or this user may not read it.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise_if_from_script(error)
        # The file does not exist, or this user may not enter its folder: sudo may have kept the HOME of another user.
        return None
    try:
        # Opening a device can already have an effect, so check the type before opening, and once more after it.
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
    """Return the reason why another user could have written or placed the open file; ``""`` if there is none."""
    foreign = _foreign(descriptor, found)
    if foreign:
        return f"it {foreign}"
    foreign = _foreign(path.parent, path.parent.stat())
    if foreign:
        return f"its folder {path.parent} {foreign}"
    # Don't trust a link: anyone who can write to a folder on the way to its target could have replaced the target.
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
    """True if a file's group is its owner's private group.

    A private group is the owner's primary group, has the owner's name, and lists no other member. Debian, Ubuntu and
    Fedora give every user such a group and an umask of 002. If every file that a group can write were refused, every
    project there would be refused. A primary group that many users share ("users") does not have the owner's name. One
    case is not detected: an account whose primary group is another user's group. Only a list of all accounts would show
    it, which takes minutes on a host with a directory service.
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
    # If a file has an access control list, the group bits are the list's mask. They don't show who may write.
    with ignoring(AttributeError, OSError):  # only Linux has the function
        return bool(os.getxattr(place, "system.posix_acl_access"))
    return False


def working_directory() -> Path:
    """Return the working directory, or the root of the file system if the directory was removed."""
    try:
        return Path.cwd()
    except OSError as error:
        raise_if_from_script(error)
        return Path(os.sep)


def _absolute(text: str) -> Path | None:
    path = Path(text)
    return path if path.is_absolute() and "\0" not in text else None
