"""Sentences about `autogpu host-setup --all-pythons`."""

from pathlib import Path

import pytest

from autogpu.host.edits import Edit, Plan
from autogpu.host.model import Action, Change, Fault, HostProblem
from autogpu.host.setup import HookPlan
from autogpu.reporting.host_setup import change_line, folder_problem, omission, preview, stop

PYTHON = "/opt/lab/bin/python3"
BASE = "set --python to a base Python, 3.7 or later, that only root can change"

# Why a Python is left out, keyed by fault.
PYTHONS = {
    Fault.UNSUPPORTED: "it does not start, or is not CPython 3.7 or later",
    Fault.OTHER_LIBRARY: "it uses another standard library than /x, which was checked",
    Fault.IN_ENVIRONMENT: "it belongs to a virtual environment and is not a base Python",
    Fault.NO_LIBRARY: "it has no standard library, or more than one",
    Fault.NOT_EXAMINED: "it can't be examined: /x",
    Fault.PYTHON_OPEN_TO_OTHERS: "users other than root can change /x",
}
FILES = {
    Fault.NOT_REGULAR: "/f is left alone: it is not a regular file",
    Fault.UNREADABLE: "/f is left alone: Permission denied",
    Fault.NOT_OURS: "/f is left alone: it exists and was not written by autogpu",
    Fault.SETS_PYTHONPATH: "/f is left alone: it sets PYTHONPATH; add :/usr/local/lib/autogpu to its value",
    Fault.NO_TARGET: "/f is left alone: it does not exist, but a Python's sitecustomize.py is a link to it",
    Fault.PARENT_OPEN_TO_OTHERS: "/f is left alone: users other than root can change its folder",
    Fault.NOT_WRITTEN: "/f can't be changed: Permission denied",
}
FOLDERS = {
    Fault.FOLDER_UNREADABLE: "/f can't be read: Permission denied",
    Fault.FOLDER_OPEN_TO_OTHERS: "users other than root can change /f",
    Fault.FOLDER_DIFFERS: "the files in /f differ from those that host-setup wrote",
    Fault.LINK_GONE: "the link is gone, but /f still leads to it",
    Fault.FILE_DIFFERS: "/f has changed since host-setup wrote it",
}
STOPS = [
    (HostProblem(Fault.UNUSABLE_PYNVML, detail="pynvml fails"), "pynvml fails", "pip install nvidia-ml-py"),
    (HostProblem(Fault.NOT_INSTALLED, detail="tomli"), "tomli is not installed", "pip install tomli"),
    (
        HostProblem(Fault.ON_NETWORK, "/usr/local/lib", "nfs4"),
        "/usr/local/lib is on a network file system (nfs4): if its server hangs, every Python of this host hangs",
        "mount a local disk at /usr/local/lib",
    ),
    (HostProblem(Fault.NOT_A_LINK, "/f"), "/f exists and is not the link that autogpu makes", "move it away"),
    (
        HostProblem(Fault.NOT_COMPILED, PYTHON, "no {space}"),
        f"{PYTHON} can't compile autogpu: no {{space}}",
        "repair this Python",
    ),
    (HostProblem(Fault.PLAN_OUTDATED, "/f"), "/f has changed since the plan was made", "run the command again"),
]


def test_each_fault_of_host_setup_has_a_sentence():
    assert PYTHONS.keys() | FILES.keys() | FOLDERS.keys() | {problem.fault for problem, _, _ in STOPS} == set(Fault)


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
    for fault in (Fault.UNSUPPORTED, Fault.NOT_OURS, Fault.NOT_WRITTEN):
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
