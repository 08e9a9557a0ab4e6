"""The policy on the command line: its keys as options, and what holds for a script in the working directory."""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Mapping, Sequence

import click

from autogpu import policy
from autogpu.policy import KEYS, Resolved, kinds
from autogpu.policy.model import COMMAND_LINE
from autogpu.reporting.stderr import say
from autogpu.reporting.text import printable


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in later versions
    """A time as a policy writes it; the value is in seconds."""

    name = "value"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            return kinds.DURATION.read(value)
        except kinds.Refused as refused:
            why = str(refused) or f"allowed: {kinds.DURATION.allowed}"
            self.fail(f"can't be {kinds.quoted(str(value))}; {why}", param, ctx)


def uid_of(name: str) -> int:
    """The number of a user of this host, whom an option names, or gives by it."""
    import pwd  # not on Windows

    # A user without a name here is called so.
    number = re.fullmatch("(?:uid )?([0-9]{1,10})", name)
    try:
        return int(number.group(1)) if number else pwd.getpwnam(name).pw_uid
    except KeyError:
        near = policy.most_similar(name, [user.pw_name for user in pwd.getpwall()])
        hint = f"; did you mean {printable(near, 32)}?" if near else ""
        raise click.UsageError(f"there is no user {printable(name, 32)} here{hint}") from None


def policy_options(*sections: str, without: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command an option for each key of ``sections`` but ``without``; they come as one mapping, ``flags``."""
    keys = [k for k in KEYS if k.section in sections and not k.system_only and k.name not in without]

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for key in reversed(keys):
            command = click.option(
                key.flag,
                key.name,
                metavar="VALUE",
                help=f"{key.dotted}: {' '.join(key.about.split())}",
                expose_value=False,
                multiple=isinstance(key.default, tuple),  # --exclude 0 --exclude 3 is --exclude 0,3
                callback=_note,
                shell_complete=_completing(key.kind.words),
            )(command)
        return command

    return add


def _note(ctx: click.Context, param: click.Parameter, given: str | tuple[str, ...] | None) -> None:
    flags = ctx.params.setdefault("flags", {})
    text = ",".join(given) or None if isinstance(given, tuple) else given
    if text is not None:
        flags[param.name] = text


def _completing(words: Sequence[str]) -> Callable[..., list[str]]:
    # Not click.Choice: what is wrong in a policy is said in one way, wherever it stands.
    return lambda ctx, param, incomplete: [word for word in words if word.startswith(incomplete)]


def resolve_here(flags: Mapping[str, str]) -> Resolved:
    """The policy for a script in the working directory."""
    return policy.resolve(os.environ, script=None, working_directory=policy.working_directory(), flags=flags)


def resolve_or_complain(flags: Mapping[str, str]) -> Resolved:
    """The policy, after saying what is wrong in it; a flag that is wrong is an error."""
    resolved = resolve_here(flags)
    for problem in resolved.problems:
        if problem.origin.layer == COMMAND_LINE:
            raise click.UsageError(problem.what)
        say(str(problem))
    return resolved
