"""Report an exception that nothing has caught, from what Python and IPython keep of it. No hook is replaced."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class Watch:
    """Calls ``report`` with each exception that ends a script, a notebook's cell or a statement at the prompt.

    Source: ``sys.last_value``, which Python sets before it prints a traceback, whatever ``sys.excepthook`` is; not for
    ``SystemExit``, nor in other threads, whose errors end no process.
    """

    def __init__(self, report: Callable[[BaseException], None]) -> None:
        """Watch in this process; a forked child watches for itself."""
        self._report = report
        self._pid = os.getpid()
        self._told: int | None = None
        atexit.register(self.look)
        prompt: Any = getattr(sys, "ps1", None)
        shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if shell is not None:
            shell.events.register("post_run_cell", self._after_cell)
        elif type(prompt) is str:
            # Python asks for its text before each prompt, which is the first moment after a traceback there.
            sys.ps1 = _Prompt(prompt, [self])
        elif type(prompt) is _Prompt:
            prompt.watches.append(self)

    def look(self) -> None:
        """Report the last exception that Python has printed, once."""
        self._tell(getattr(sys, "last_value", None))

    def _after_cell(self, result: Any = None) -> None:
        self._tell(getattr(result, "error_in_exec", None))

    def _tell(self, error: BaseException | None) -> None:
        # Not the exception itself: its frames hold what the script had on the GPU.
        if error is None or id(error) == self._told or os.getpid() != self._pid:
            return
        self._told = id(error)
        with suppress(Exception, KeyboardInterrupt):  # it would be printed below the script's own error
            self._report(error)


class _Prompt(str):
    """A prompt that looks first; in every other way the text that it was."""

    watches: list[Watch]

    def __new__(cls, text: str, watches: list[Watch]) -> _Prompt:
        prompt = super().__new__(cls, text)
        prompt.watches = watches
        return prompt

    def __str__(self) -> str:
        for watch in self.watches:
            watch.look()
        return self[:]
