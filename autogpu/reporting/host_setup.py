"""Sentences about `autogpu host-setup --all-pythons`: changes, omissions and reasons to stop."""

from __future__ import annotations

import difflib
from typing import Iterator

from autogpu.host.hook_folder import LINK
from autogpu.host.model import Action, Change, HostFault, HostProblem
from autogpu.host.setup import HookPlan
from autogpu.text import printable

# Settings of PYTHONPATH that the administrator must make, keyed by the program that starts Python.
RECIPES = {
    "a systemd service": f"Environment=PYTHONPATH={LINK}",
    "Slurm's TaskProlog": f'echo "export PYTHONPATH=${{PYTHONPATH:+$PYTHONPATH:}}{LINK}"',
    "JupyterHub": f'c.Spawner.environment = {{"PYTHONPATH": "{LINK}"}}',
    "docker run": f"-v {LINK}:{LINK}:ro -e PYTHONPATH={LINK}",
    "sudo -u NAME": "--preserve-env=PYTHONPATH",
}

# The reasons why host-setup leaves out a Python, and why it leaves a file alone.
_PYTHONS = {
    HostFault.UNSUPPORTED: "it does not start, or is not CPython 3.7 or later",
    HostFault.OTHER_LIBRARY: "it uses another standard library than {detail}, which was checked",
    HostFault.IN_ENVIRONMENT: "it belongs to a virtual environment and is not a base Python",
    HostFault.NO_LIBRARY: "it has no standard library, or more than one",
    HostFault.NOT_EXAMINED: "it can't be examined: {detail}",
    HostFault.PYTHON_OPEN_TO_OTHERS: "users other than root can change {detail}",
}
_FILES = {
    HostFault.NOT_REGULAR: "it is not a regular file",
    HostFault.UNREADABLE: "{detail}",
    HostFault.NOT_OURS: "it exists and was not written by autogpu",
    HostFault.SETS_PYTHONPATH: f"it sets PYTHONPATH; add :{LINK} to its value",
    HostFault.NO_TARGET: "it does not exist, but a Python's sitecustomize.py is a link to it",
    HostFault.PARENT_OPEN_TO_OTHERS: "users other than root can change its folder",
}

# The reasons why no script should load autogpu from the hook folder.
_FOLDERS = {
    HostFault.FOLDER_UNREADABLE: "{path} can't be read: {detail}",
    HostFault.FOLDER_OPEN_TO_OTHERS: "users other than root can change {path}",
    HostFault.FOLDER_DIFFERS: "the files in {path} differ from those that host-setup wrote",
    HostFault.LINK_GONE: "the link is gone, but {path} still leads to it",
    HostFault.FILE_DIFFERS: "{path} has changed since host-setup wrote it",
}

# The reason and the remedy for each fault that makes host-setup stop.
_STOPS = {
    HostFault.UNUSABLE_PYNVML: ("{detail}", "pip install nvidia-ml-py"),
    HostFault.NOT_INSTALLED: ("{detail} is not installed", "pip install {detail}"),
    HostFault.ON_NETWORK: (
        "{path} is on a network file system ({detail}): if its server hangs, every Python of this host hangs",
        "mount a local disk at {path}",
    ),
    HostFault.NOT_A_LINK: ("{path} exists and is not the link that autogpu makes", "move it away"),
    HostFault.NOT_COMPILED: ("{path} can't compile autogpu: {detail}", "repair this Python"),
    HostFault.PLAN_OUTDATED: ("{path} has changed since the plan was made", "run the command again"),
}
_NAME_ANOTHER = "set --python to a base Python, 3.7 or later, that only root can change"


def omission(problem: HostProblem) -> str:
    """Return the line about a Python that is left out, or about a file that is left alone or can't be changed."""
    if problem.fault is HostFault.NOT_WRITTEN:
        return printable(f"{problem.path} can't be changed: {problem.detail}", 400)
    is_python = problem.fault in _PYTHONS
    why = {**_PYTHONS, **_FILES}[problem.fault].format(**vars(problem))
    return printable(f"{problem.path} is left {'out' if is_python else 'alone'}: {why}", 400)


def folder_problem(problem: HostProblem) -> str:
    """Return the reason why no script should load autogpu from the hook folder of this host."""
    return _FOLDERS[problem.fault].format(**vars(problem))


def stop(problem: HostProblem) -> tuple[str, str]:
    """Return why host-setup stops, and the remedy. It also stops if it can't use a Python that ``--python`` names."""
    facts = vars(problem)
    if problem.fault in _PYTHONS:
        return f"{problem.path}: {_PYTHONS[problem.fault].format(**facts)}", _NAME_ANOTHER
    what, remedy = _STOPS[problem.fault]
    return what.format(**facts), remedy.format(**facts)


def change_line(change: Change) -> str:
    end = f" for Python {', '.join(change.versions)}" if change.action is Action.BUILT else ""
    return f"{change.action.value} {change.path}{end}"


def preview(planned: HookPlan) -> Iterator[str]:
    """Yield the changes that a run would make, files as a diff."""
    if planned.folder is not None:
        yield f"# build the folder {planned.folder}, and make {planned.link} a link to it"
    for edit in planned.files.edits:
        old, new = ((text or b"").decode(errors="replace").splitlines() for text in (edit.before, edit.after))
        yield from difflib.unified_diff(old, new, str(edit.path), str(edit.path), lineterm="")
