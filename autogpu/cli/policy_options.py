"""The policy on the command line: its keys as options, and what holds for a script in the working directory."""

from __future__ import annotations

import os

import click

from autogpu import policy
from autogpu.policy import KEYS, kinds
from autogpu.policy.model import COMMAND_LINE
from autogpu.reporting.stderr import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, Callable, Mapping, Sequence

    from autogpu.policy import Resolved


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """For an option that is a time as a policy writes it, its callback: the seconds.

    Raises:
        BadParameter: It is none.
    """
    if value is None:
        return None
    try:
        seconds = kinds.Duration().from_text(value)
    except kinds.Refused as refused:
        why = str(refused) or f"allowed: {kinds.Duration.allowed}"
        raise click.BadParameter(f"can't be {kinds.quoted(value)}; {why}", ctx, param) from None
    assert isinstance(seconds, float)
    return seconds


def policy_options(*sections: str, without: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command an option for each key of ``sections``; they come as one mapping, ``flags``.

    Args:
        without: The names of keys that mean nothing to the command.
    """
    keys = [k for k in KEYS if k.section in sections and not k.system_only and k.name not in without]

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        def command(*arguments: Any, **options: Any) -> Any:
            given = {key.name: options.pop(f"policy_{key.name}") for key in keys}
            flags = {name: text for name, text in given.items() if text is not None}
            return function(*arguments, flags=flags, **options)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        for key in reversed(keys):
            about = f"{key.dotted}: {' '.join(key.about.split())}"
            words = getattr(key.kind, "words", ())
            command = click.option(
                key.flag, f"policy_{key.name}", metavar="VALUE", help=about, shell_complete=_completing(words)
            )(command)
        return command

    return add


def _completing(words: Sequence[str]) -> Callable[..., list[str]]:
    # Not click.Choice: what is wrong in a policy is said in one way, wherever it stands.
    return lambda ctx, param, incomplete: [word for word in words if word.startswith(incomplete)]


def resolve_here(flags: Mapping[str, str], script: Path | None = None) -> Resolved:
    """The policy for a script, or for one in the working directory."""
    return policy.resolve(os.environ, script=script, working_directory=policy.working_directory(), flags=flags)


def resolve_or_complain(flags: Mapping[str, str]) -> Resolved:
    """The policy, after saying what is wrong in it.

    Raises:
        UsageError: A flag is wrong.
    """
    resolved = resolve_here(flags)
    for problem in resolved.problems:
        if problem.origin.layer == COMMAND_LINE:
            raise click.UsageError(problem.what, click.get_current_context())
        say(str(problem))
    return resolved
