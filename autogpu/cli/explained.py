"""Errors of the commands that change an environment or a host."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator

from autogpu.errors import InstallError, Stopped


@contextmanager
def explained(kind: type[Stopped], explain: Callable[[Any], tuple[str, str]]) -> Iterator[None]:
    """Raise :class:`InstallError`, with the sentences of ``explain`` about the problem, for an error of this kind."""
    try:
        yield
    except kind as error:
        what, remedy = explain(error.problem)
        raise InstallError(what, remedy=remedy) from error
