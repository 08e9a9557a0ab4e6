"""``autogpu completion``: what a shell needs to complete verbs and flags."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog="""\b
Examples:
  autogpu completion bash   into ~/.local/share/bash-completion/completions/autogpu
  autogpu completion zsh    into a file that ~/.zshrc reads with `source`
  autogpu completion fish   into ~/.config/fish/completions/autogpu.fish"""
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes verbs and flags in SHELL: bash, zsh or fish.

    Write it to a file: a line in ~/.bashrc that runs autogpu fails in every shell outside of its environment.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "autogpu", "_AUTOGPU_COMPLETE").source())
