"""Entry point of the command line: the table of verbs, and messages and exit statuses for errors."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
from contextlib import suppress
from typing import NoReturn, Sequence

import click

from autogpu import __doc__ as product
from autogpu import __version__
from autogpu.errors import EXIT_TRY_AGAIN, AutoGpuError, WaitTimeout

# One row per verb, in the order of the help. A verb's module is imported when the verb runs, so that `autogpu --help`
# stays fast.
VERBS = {
    "status": ("autogpu.cli.status:status", "Show every GPU, its jobs, and the GPU that you would get."),
    "run": ("autogpu.cli.run:run", "Run a command with autogpu, or any program with --hold."),
    "pick": ("autogpu.cli.pick:pick", "Print GPUs to use, for shell scripts and containers."),
    "wait": ("autogpu.cli.wait:wait", "Wait until enough GPUs are free, or until jobs have ended."),
    "config": ("autogpu.cli.config:config", "Show each policy key with its value here and its origin."),
    "init": ("autogpu.cli.config:init", "Write an autogpu.toml here, with a project's keys as comments."),
    "doctor": ("autogpu.cli.doctor:doctor", "Find problems that keep scripts from their GPUs, with remedies."),
    "install": ("autogpu.cli.install:install", "Make every Python process of this environment load autogpu."),
    "uninstall": ("autogpu.cli.install:uninstall", "Remove the start-up files that `autogpu install` wrote."),
    "host-setup": ("autogpu.cli.host_setup:host_setup", "Set up a host for several users (once, as root)."),
}

# Without these formats the output of `pick` is for `eval`, which succeeds if the output is empty. So a failure of
# `pick` prints an `exit`.
_NOT_FOR_EVAL = re.compile("--format[= ](?:uuid|index|docker)")

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class LazyGroup(click.Group):
    """A click group that imports a verb's module, by its name in :data:`VERBS`, when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, function = VERBS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in VERBS and not name.startswith("-") and not ctx.resilient_parsing:
            from autogpu.cli import suggestions

            ctx.fail(suggestions.unknown_command(name, list(VERBS)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


@click.command(
    cls=LazyGroup,
    help=(product or "").partition("\n")[0]
    + "\n\nInstall autogpu once per environment; scripts need no change. AUTOGPU=0 turns it off for one run.",
    invoke_without_command=True,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  autogpu install
  AUTOGPU=0 python train.py""",
)
@click.version_option(__version__, "-V", "--version", prog_name="autogpu", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, and end with its exit status or by its signal."""
    status = run(arguments)
    if status < 0:
        # A shell's loop continues after a command with exit status 130. It stops after a command that SIGINT has ended.
        with suppress(OSError):  # the pipe's reader has ended
            sys.stdout.flush()
        with suppress(OSError):  # SIGKILL can't have a handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and turn errors into messages and exit statuses.

    Returns:
        The exit status; as in :mod:`subprocess`, a negative number stands for the signal by which to end.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if hasattr(sys.stdout, "reconfigure"):
        # The encoding of the terminal may lack the blocks of a bar, or letters of a script's name.
        sys.stdout.reconfigure(errors="replace")
    status = EXIT_ERROR  # for an unexpected exception
    try:
        status = _run(given)
        return status
    finally:
        shown = EXIT_INTERRUPTED if status == -signal.SIGINT else status
        if shown > 0 and given[:1] == ["pick"] and not _NOT_FOR_EVAL.search(" ".join(given)):
            with suppress(OSError):  # the pipe's reader has ended
                click.echo(f"(exit {shown})")


def _run(given: list[str]) -> int:
    try:
        status = cli.main(given, "autogpu", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt) as error:
        if error.__cause__ is None:  # click ends the line with the terminal's ^C, but not at a prompt
            click.echo(err=True)
        _echo("interrupted")
        return -signal.SIGINT
    except AutoGpuError as error:
        from autogpu.policy.model import with_options

        _echo(error.what, with_options(error.remedy))
        return EXIT_TRY_AGAIN if isinstance(error, WaitTimeout) else EXIT_ERROR
    except click.UsageError as error:
        _echo_usage(error, given)
        return error.exit_code
    except click.ClickException as error:
        _echo(" ".join(error.format_message().split()))
        return error.exit_code
    except OSError as error:  # for example, stdout is a file on a full disk
        _echo(f"{error.filename}: {error.strerror}" if error.filename else f"can't write the output: {error.strerror}")
        return EXIT_ERROR
    return status if isinstance(status, int) else 0


def _echo_usage(error: click.UsageError, given: list[str]) -> None:
    from autogpu.cli import suggestions

    # If an option lacks its value, click's error has no context.
    verb = VERBS.keys() & {*given[:1]}
    command = error.ctx.command_path if error.ctx else " ".join(["autogpu", *verb])
    _echo(" ".join(suggestions.message(error).split()), f"see `{command} --help`")


def _echo(*texts: str) -> None:
    from autogpu.text import printable

    for line in (line for text in texts for line in text.splitlines()):
        click.echo(f"autogpu: {printable(line, 4000)}", err=True)
