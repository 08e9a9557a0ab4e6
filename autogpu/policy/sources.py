"""The file of each layer: its path, its contents, and a check of who could have written it."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Collection, Iterator, Mapping, Sequence

from autogpu.errors import ignoring, raise_if_from_script
from autogpu.frozen import Value, replace
from autogpu.policy.model import LayerName, Mistake, Origin, Problem, UnusableFile
from autogpu.text import printable, short_path
from autogpu.users import UNKNOWN_UID
from autogpu.variables import POLICY_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

    from autogpu.policy.parsing import Contents

    # Why another user could have written a file, and the number of that user or group.
    Distrust = Tuple[Mistake, str]

PROJECT_FILE = "autogpu.toml"
PYPROJECT = "pyproject.toml"
LARGEST_FILE_BYTES = 1024**2
_OF_FILES = (Mistake.FILE_OF_OTHERS, Mistake.FILE_OPEN_TO_ALL, Mistake.FILE_OPEN_TO_GROUP)
_OF_FOLDERS = (Mistake.FOLDER_OF_OTHERS, Mistake.FOLDER_OPEN_TO_ALL, Mistake.FOLDER_OPEN_TO_GROUP)

# Finds our table in a pyproject.toml that can't be parsed, or that is not parsed because it is not trusted.
_OUR_HEADER = re.compile(rb"""^[ \t]*\[+[ \t]*["']?tool["']?[ \t]*\.[ \t]*["']?autogpu["']?[ \t]*[].]""", re.MULTILINE)


class Source(Value):
    """The file of one layer, and the table of its keys.

    Attributes:
        file: ``None`` if the layer has no file, or the file is ignored.
        place: The path of the file for messages, with ``~`` for the home folder.
        contents: What the file holds; ``None`` if ``file`` is.
    """

    layer: LayerName
    file: Path | None = None
    place: str = ""
    contents: Contents | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def table(self) -> Mapping[str, object]:
        return self.contents.table if self.contents else {}

    def origin(self, *path: str) -> Origin:
        """Return the origin of a key or table of ``table``, such as ``"select", "count"``."""
        return Origin(self.layer, self.place, self.contents.line_of(path) if self.contents else None)


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
    origin = Origin(LayerName.ENVIRONMENT, POLICY_FILE)
    return replace(source, problems=(Problem(Mistake.NO_FILE, origin, written=short_path(file, homes)),))


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
    is_shared = file.name == PYPROJECT
    # A search also finds a pyproject.toml that has no table of ours. That is not a problem.
    is_ours = not (judge and is_shared)
    try:
        opened = read_file(file, judge=judge)
        if opened is None or not (is_ours or b"autogpu" in opened[0]):
            return Source(layer)
        content, distrust = opened
        is_ours = is_ours or bool(_OUR_HEADER.search(content))
        if distrust:
            mistake, number = distrust
            raise UnusableFile(mistake, written=printable(str(file)), detail=number)
        # Most processes have no policy file, and need no parser.
        from autogpu.policy import parsing

        return Source(layer, file, place, parsing.parse(content, is_shared=is_shared))
    except UnusableFile as error:
        return Source(layer, problems=(error.problem(layer, place),) if is_ours else ())


def read_file(path: Path, *, judge: bool) -> tuple[bytes, Distrust | None] | None:
    """Return the content of a file, and the reason not to trust it; ``None`` if the file does not exist.

    The function never blocks on a pipe or a device. It opens the file once, and checks and reads the open file. So
    nobody can replace the file after the check.

    Args:
        path: The file, or a link to it.
        judge: Check if another user could have written the file. There is no check on Windows, where files have no uid.

    Raises:
        UnusableFile: The path is not a regular file, the file is too large, or this user may not read it.
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
            raise UnusableFile(Mistake.NOT_REGULAR)
        with open(path, "rb", opener=_opened) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UnusableFile(Mistake.NOT_REGULAR)
            distrust = _distrust(path, file.fileno(), found) if judge and hasattr(os, "geteuid") else None
            content = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise_if_from_script(error)
        return None
    except OSError as error:
        raise_if_from_script(error)
        raise UnusableFile(Mistake.UNREADABLE, detail=printable(error.strerror or str(error))) from None
    if len(content) > LARGEST_FILE_BYTES:
        raise UnusableFile(Mistake.TOO_LARGE)
    return content, distrust


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _distrust(path: Path, descriptor: int, found: os.stat_result) -> Distrust | None:
    """Return the reason why another user could have written or placed the open file; ``None`` if there is none."""
    foreign = _foreign(descriptor, found, _OF_FILES) or _foreign(path.parent, path.parent.stat(), _OF_FOLDERS)
    if foreign:
        return foreign
    # Don't trust a link: anyone who can write to a folder on the way to its target could have replaced the target.
    # The test also finds a file that was replaced while it was read.
    now = path.lstat()
    is_same = (now.st_dev, now.st_ino) == (found.st_dev, found.st_ino)
    return None if is_same else (Mistake.LINK, "")


def _foreign(place: int | Path, found: os.stat_result, mistakes: tuple[Mistake, Mistake, Mistake]) -> Distrust | None:
    of_others, open_to_all, open_to_group = mistakes
    if found.st_uid == UNKNOWN_UID or found.st_uid not in (os.geteuid(), 0):
        return of_others, str(found.st_uid)
    if found.st_mode & stat.S_IWOTH:
        return open_to_all, ""
    if found.st_mode & stat.S_IWGRP and (_has_access_list(place) or not _is_private_group(found)):
        return open_to_group, str(found.st_gid)
    return None


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
