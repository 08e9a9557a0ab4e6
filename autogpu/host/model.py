"""Changes that `autogpu host-setup --all-pythons` makes on a host, and its reasons to leave something out or to stop.

These are facts. ``autogpu.reporting.host_setup`` has the sentences.
"""

from __future__ import annotations

import enum

from autogpu.errors import Stopped
from autogpu.frozen import Value


class HostFault(enum.Enum):
    """A reason why host-setup leaves something out, rejects the hook folder, or stops.

    The comments state what ``detail`` of a problem holds.
    """

    # A Python is left out. The problem's path is the executable.
    UNSUPPORTED = enum.auto()  # not CPython, too old, or does not start
    OTHER_LIBRARY = enum.auto()  # detail: the standard library that was checked, and that the Python does not use
    IN_ENVIRONMENT = enum.auto()  # the Python of a virtual environment
    NO_LIBRARY = enum.auto()  # not exactly one standard library was found
    NOT_EXAMINED = enum.auto()  # detail: the system's reason
    PYTHON_OPEN_TO_OTHERS = enum.auto()  # detail: the part that users other than root can change

    # A file is left alone.
    NOT_REGULAR = enum.auto()
    UNREADABLE = enum.auto()  # detail: the system's reason
    NOT_OURS = enum.auto()
    SETS_PYTHONPATH = enum.auto()
    NO_TARGET = enum.auto()  # the file does not exist; a sitecustomize.py is a link to it
    PARENT_OPEN_TO_OTHERS = enum.auto()  # users other than root can change the folder of the file

    # Scripts must not rely on the hook folder.
    FOLDER_UNREADABLE = enum.auto()  # detail: the reason
    FOLDER_OPEN_TO_OTHERS = enum.auto()  # the path is the part that users other than root can change
    FOLDER_DIFFERS = enum.auto()  # its files differ from those that host-setup wrote
    LINK_GONE = enum.auto()  # the path is a file that still leads to the folder
    FILE_DIFFERS = enum.auto()  # a file that leads to the folder has changed

    # The run can't change a file. It goes on with the others.
    NOT_WRITTEN = enum.auto()  # detail: the system's reason

    # The run stops.
    UNUSABLE_PYNVML = enum.auto()  # detail: the reason
    NOT_INSTALLED = enum.auto()  # detail: the missing package
    ON_NETWORK = enum.auto()  # detail: the file system
    NOT_A_LINK = enum.auto()  # the link's path belongs to something else
    NOT_COMPILED = enum.auto()  # detail: the error from the Python at this path
    PLAN_OUTDATED = enum.auto()  # the file has changed since the plan was made


class HostProblem(Value):
    """A fault, with its details. The texts may contain any character."""

    fault: HostFault
    path: str = ""
    detail: str = ""


class NotUsable(Exception):
    """A Python or a file can't be used. Its path is known to the caller."""

    def __init__(self, fault: HostFault, detail: str = "") -> None:
        super().__init__(fault, detail)
        self.fault = fault
        self.detail = detail

    def problem(self, path: object) -> HostProblem:
        return HostProblem(self.fault, str(path), self.detail)


class SetupStopped(Stopped):
    """host-setup can't go on."""

    problem: HostProblem


class Action(enum.Enum):
    """What host-setup did to a file or folder."""

    BUILT = "built"
    REMOVED = "removed"
    WROTE = "wrote"
    CHANGED = "changed"


class Change(Value):
    """A change that host-setup made to a file or folder.

    Attributes:
        versions: The Python versions for which a folder was built.
    """

    action: Action
    path: str
    versions: tuple[str, ...] = ()
