"""``autogpu help``: what ``--help`` shows, for those who type it first."""

from __future__ import annotations

import click


@click.command(
    "help",
    epilog="""\b
Examples:
  autogpu help run
  autogpu help config check""",
)
@click.argument("verbs", metavar="[VERB]...", nargs=-1)
@click.pass_context
def help_(ctx: click.Context, verbs: tuple[str, ...]) -> None:
    """Show the help of a verb, or of autogpu."""
    about = ctx.find_root()
    for verb in verbs:
        if not isinstance(about.command, click.Group):
            raise click.UsageError(f"{about.command_path} has no verb {verb!r}", about)
        _, command, _ = about.command.resolve_command(about, [verb])
        if command is None:  # an option
            raise click.UsageError(f"{about.command_path} has no verb {verb!r}", about)
        about = click.Context(command, info_name=verb, parent=about)
    click.echo(about.get_help())
