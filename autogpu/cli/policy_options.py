"""The policy on the command line: its keys as options, and what holds for a script in the working directory."""

from __future__ import annotations

import click

from autogpu import policy
from autogpu.policy import KEYS
from autogpu.policy.model import COMMAND_LINE
from autogpu.reporting.stderr import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Sequence

    from autogpu.policy import Resolved


def policy_options(*sections: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command an option for each key of ``sections``; they come as one mapping, ``flags``."""
    keys = [key for key in KEYS if key.section in sections and not key.system_only]

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


def resolve_here(environ: Mapping[str, str], flags: Mapping[str, str] | None = None) -> Resolved:
    """The policy for a script in the working directory."""
    return policy.resolve(environ, script=None, working_directory=policy.working_directory(), flags=flags or {})


def resolve_or_complain(environ: Mapping[str, str], flags: Mapping[str, str]) -> Resolved:
    """The policy, after saying what is wrong in it.

    Raises:
        UsageError: A flag is wrong.
    """
    resolved = resolve_here(environ, flags)
    for problem in resolved.problems:
        if problem.origin.layer == COMMAND_LINE:
            raise click.UsageError(problem.what, click.get_current_context())
        say(str(problem))
    return resolved
