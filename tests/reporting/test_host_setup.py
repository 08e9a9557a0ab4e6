"""Sentences about `autogpu host-setup --all-pythons`."""

from pathlib import Path

import pytest

from autogpu.host.edits import Edit, Plan
from autogpu.host.model import Action, Change, HostFault, HostProblem
from autogpu.host.setup import HookPlan
from autogpu.reporting.host_setup import change_line, folder_problem, omission, preview, stop

PYTHON = "/opt/lab/bin/python3"
BASE = "set --python to a base Python, 3.7 or later, that only root can change"

# Why a Python is left out, keyed by fault.
PYTHONS = {
    HostFault.UNSUPPORTED: "it does not start, or is not CPython 3.7 or later",
    HostFault.OTHER_LIBRARY: "it uses another standard library than /x, which was checked",
    HostFault.IN_ENVIRONMENT: "it belongs to a virtual environment and is not a base Python",
    HostFault.NO_LIBRARY: "it has no standard library, or more than one",
    HostFault.NOT_EXAMINED: "it can't be examined: /x",
    HostFault.PYTHON_OPEN_TO_OTHERS: "users other than root can change /x",
}
FILES = {
    HostFault.NOT_REGULAR: "/f is left alone: it is not a regular file",
    HostFault.UNREADABLE: "/f is left alone: Permission denied",
    HostFault.NOT_OURS: "/f is left alone: it exists and was not written by autogpu",
    HostFault.SETS_PYTHONPATH: "/f is left alone: it sets PYTHONPATH; add :/usr/local/lib/autogpu to its value",
    HostFault.NO_TARGET: "/f is left alone: it does not exist, but a Python's sitecustomize.py is a link to it",
    HostFault.PARENT_OPEN_TO_OTHERS: "/f is left alone: users other than root can change its folder",
    HostFault.NOT_WRITTEN: "/f can't be changed: Permission denied",
}
FOLDERS = {
    HostFault.FOLDER_UNREADABLE: "/f can't be read: Permission denied",
    HostFault.FOLDER_OPEN_TO_OTHERS: "users other than root can change /f",
    HostFault.FOLDER_DIFFERS: "the files in /f differ from those that host-setup wrote",
    HostFault.LINK_GONE: "the link is gone, but /f still leads to it",
    HostFault.FILE_DIFFERS: "/f has changed since host-setup wrote it",
}
STOPS = [
    (HostProblem(HostFault.UNUSABLE_PYNVML, detail="pynvml fails"), "pynvml fails", "pip install nvidia-ml-py"),
    (HostProblem(HostFault.NOT_INSTALLED, detail="tomli"), "tomli is not installed", "pip install tomli"),
    (
        HostProblem(HostFault.ON_NETWORK, "/usr/local/lib", "nfs4"),
        "/usr/local/lib is on a network file system (nfs4): if its server hangs, every Python of this host hangs",
        "mount a local disk at /usr/local/lib",
    ),
    (HostProblem(HostFault.NOT_A_LINK, "/f"), "/f exists and is not the link that autogpu makes", "move it away"),
    (
        HostProblem(HostFault.NOT_COMPILED, PYTHON, "no {space}"),
        f"{PYTHON} can't compile autogpu: no {{space}}",
        "repair this Python",
    ),
    (HostProblem(HostFault.PLAN_OUTDATED, "/f"), "/f has changed since the plan was made", "run the command again"),
]


def test_each_fault_of_host_setup_has_a_sentence():
    assert PYTHONS.keys() | FILES.keys() | FOLDERS.keys() | {problem.fault for problem, _, _ in STOPS} == set(HostFault)


@pytest.mark.parametrize("fault", PYTHONS, ids=lambda fault: fault.name)
def test_python_is_left_out_and_refused_for_the_same_reason(fault):
    problem = HostProblem(fault, PYTHON, "/x")
    assert omission(problem) == f"{PYTHON} is left out: {PYTHONS[fault]}"
    assert stop(problem) == (f"{PYTHON}: {PYTHONS[fault]}", BASE)


@pytest.mark.parametrize("fault", FILES, ids=lambda fault: fault.name)
def test_line_about_a_file_that_is_not_changed_has_the_reason(fault):
    assert omission(HostProblem(fault, "/f", "Permission denied")) == FILES[fault]


@pytest.mark.parametrize("fault", FOLDERS, ids=lambda fault: fault.name)
def test_sentence_about_an_unusable_folder_has_the_reason(fault):
    assert folder_problem(HostProblem(fault, "/f", "Permission denied")) == FOLDERS[fault]


@pytest.mark.parametrize(("problem", "what", "remedy"), STOPS)
def test_run_that_stops_has_a_reason_and_a_remedy(problem, what, remedy):
    assert stop(problem) == (what, remedy)


def test_escape_sequence_in_a_path_is_not_printed():
    for fault in (HostFault.UNSUPPORTED, HostFault.NOT_OURS, HostFault.NOT_WRITTEN):
        assert omission(HostProblem(fault, "/opt/a\x1b]0;owned\x07\nwrote all/bin")).isprintable()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (Change(Action.BUILT, "/f", ("3.9", "3.11")), "built /f for Python 3.9, 3.11"),
        (Change(Action.REMOVED, "/f"), "removed /f"),
        (Change(Action.WROTE, "/f"), "wrote /f"),
        (Change(Action.CHANGED, "/f"), "changed /f"),
    ],
)
def test_each_change_has_a_line(change, line):
    assert change_line(change) == line


def test_preview_has_the_folder_and_a_diff_of_each_file():
    files = Plan((Edit(Path("/f"), None, b"new\n"),), (), ())
    planned = HookPlan(Path("/link"), Path("/folder"), None, (), (), files, ())
    assert list(preview(planned)) == [
        "# build the folder /folder, and make /link a link to it",
        *("--- /f", "+++ /f", "@@ -0,0 +1 @@", "+new"),
    ]
