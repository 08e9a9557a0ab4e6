"""The frame of the command line: the verbs, and how errors become lines and exit statuses."""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import NoReturn, Sequence

import click

from autogpu import __version__
from autogpu.errors import AutoGpuError

# One row per verb, in the order of the help. A verb's module is imported when it is run, so that
# `autogpu --help` stays fast however much the verbs need.
VERBS = {
    "status": ("autogpu.cli.status:status", "Show every GPU, who has it, and which one you would get."),
    "run": ("autogpu.cli.run:run", "Run one command under autogpu; --hold for any program."),
    "pick": ("autogpu.cli.pick:pick", "Print which GPUs to use, for shells and containers."),
    "config": ("autogpu.cli.config:config", "Show what holds here, and where each value was said."),
    "init": ("autogpu.cli.init:init", "Write an autogpu.toml for this project, with nothing set."),
    "doctor": ("autogpu.cli.doctor:doctor", "Look for what keeps a script from its GPU, with remedies."),
    "install": ("autogpu.cli.install:install", "Make every Python start of this environment load autogpu."),
    "uninstall": ("autogpu.cli.uninstall:uninstall", "Take the start-up files away again."),
    "completion": ("autogpu.cli.completion:completion", "Print what bash, zsh or fish need to complete verbs."),
    "host-setup": ("autogpu.cli.host_setup:host_setup", "Give all users of this host one folder to meet in (root)."),
}

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class VerbGroup(click.Group):
    """A group that names the nearest verb where there is none of that name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb that ``args`` begins with."""
        verbs = self.list_commands(ctx)
        if args and args[0] not in verbs and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], verbs, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(verbs)}"
            raise click.UsageError(f"no verb {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(VerbGroup):
    """A group whose commands are imported by name, from :data:`VERBS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb; ``None`` if there is no such verb."""
        if cmd_name not in VERBS:
            return None
        module, _, function = VERBS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table, importing none of them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


@click.command(
    cls=LazyGroup,
    invoke_without_command=True,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  autogpu install             once per environment; scripts stay as they are
  AUTOGPU=0 python train.py   one run without autogpu""",
)
@click.version_option(__version__, prog_name="autogpu", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Every TensorFlow script gets the idlest GPU and a memory policy, unchanged."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit status; a verb may return one of its own."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the one place where errors become messages and exit statuses."""
    try:
        status = cli.main(
            args=None if arguments is None else list(arguments), prog_name="autogpu", standalone_mode=False
        )
    except AutoGpuError as error:
        _say(str(error), error.remedy)
        return EXIT_ERROR
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "autogpu"
        _say(error.format_message(), f"see `{command} --help`")
        return EXIT_USAGE
    except click.ClickException as error:
        _say(error.format_message())
        return error.exit_code
    except OSError as error:  # a full disk, say, under what is printed
        _say(f"{error.filename}: {error.strerror}" if error.filename else f"can't write: {error.strerror}")
        return EXIT_ERROR
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return EXIT_INTERRUPTED
    return status if isinstance(status, int) else 0


def _say(*lines: str) -> None:
    for line in lines:
        click.echo(f"autogpu: {line}", err=True)
