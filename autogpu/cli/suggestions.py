"""Suggestions for a mistyped command or option, or for a name that another program uses."""

from __future__ import annotations

from typing import Mapping, Sequence

import click

from autogpu.policy.kinds import most_similar

# The names that nvidia-smi, nvtop, gpustat, watch, Slurm, kubectl and docker use, keyed by the command or option of
# autogpu that does the same. An option is suggested only if the command has it.
COMMANDS = {
    "status --watch": "top htop nvtop watch monitor",
    "status": "ps ls list show info gpus queue squeue smi gpustat",
    "run": "exec start",
    "run --hold": "hold reserve lock lease srun sbatch submit",
    "pick": "get choose select find",
    "config": "policy settings env",
    "config check": "check validate lint",
    "init": "new create",
    "doctor": "diagnose debug test health",
    "install": "enable activate",
    "uninstall": "disable deactivate remove",
    "host-setup": "setup setup-host",
    "--help": "help",
    "--version": "version",
}
OPTIONS = {
    "--watch": "-l --loop -f --follow",
    "--interval": "-i -n -lms --loop-ms --iterate",
    "--json": "-o --output -q --query --query-gpu --query-compute-apps -x --xml-format --csv",
    "--mine": "--me",
    "--user": "-u --users --username",
    "--explain": "-a --all --long -v --verbose",
    "--on": "--host --hosts --node --nodes --nodelist",
    "--count": "-n -G --gpus --gpus-per-node --gres --num-gpus",
    "--devices": "-i -d --id --gpu --device --gpu-id",
    "--need": "--mem --memory --mem-per-gpu",
    "--timeout": "-t --time",
    "--job": "-p --pid --jobs",
}


def unknown_command(name: str, known: Sequence[str]) -> str:
    meant = _meant_by(name, COMMANDS) or [command for command in [most_similar(name, known)] if command]
    return " ".join([f"No such command {name!r}.", *(f"Did you mean `autogpu {command}`?" for command in meant)])


def _meant_by(name: str, names_of: Mapping[str, str]) -> list[str]:
    return [own for own, names in names_of.items() if name in names.split()]


def _options_of_command(error: click.UsageError) -> list[str]:
    parameters = error.ctx.command.params if error.ctx else []
    return [option for parameter in parameters for option in parameter.opts]


def message(error: click.UsageError) -> str:
    own = _options_of_command(error)
    if isinstance(error, click.NoSuchOption):
        meant = [option for option in _meant_by(error.option_name, OPTIONS) if option in own]
        if meant:
            return f"No such option {error.option_name!r}. Did you mean {' or '.join(meant)}?"
    refused = error.param if isinstance(error, click.BadParameter) else None
    if refused and "--format" in refused.opts and "--json" in own:
        return f"{error.format_message()} For JSON, use --json."
    return error.format_message()
