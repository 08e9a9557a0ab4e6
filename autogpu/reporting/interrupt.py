"""How a script ends that was interrupted while autogpu made it wait."""

from __future__ import annotations

import sys

from autogpu.reporting.stderr import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


def end_in_one_line(error: KeyboardInterrupt, line: str) -> None:
    """Let Python print ``line`` in place of a traceback, if the script catches ``error`` nowhere.

    It stays the exception that the script expects, and ends the process by SIGINT as always. A ``sys.excepthook`` of
    the script's own is left as it is.
    """
    before = sys.excepthook
    # A subclass of KeyboardInterrupt would do without a hook, and Python ends by SIGINT for that very class only.
    if before is not sys.__excepthook__:
        return

    def report(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = before
        if value is error:
            say(line)
        else:
            before(kind, value, trace)

    sys.excepthook = report
