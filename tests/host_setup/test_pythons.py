"""host-setup runs a Python as root only if root alone can change each of its files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autogpu.host import pythons
from autogpu.host.model import HostFault, HostProblem, SetupStopped
from tests.support.environments import interpreter

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")

ANOTHER = 4242
LIBRARY = f"opt/lab/lib/python{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def root(tmp_path):
    """A host with one Python: a shell script that answers like a Python, and makes a file if it runs."""
    library, executable = tmp_path / LIBRARY, tmp_path / "opt/lab/bin/python3"
    for folder in (library / "encodings", executable.parent):
        folder.mkdir(parents=True)
    for name in ("os.py", "encodings/__init__.py"):
        (library / name).write_text("")
    answer = f'["cpython", [{sys.version_info[0]}, {sys.version_info[1]}], "cpython-x", "{library}"]'
    executable.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\necho '{answer}'\n")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    return tmp_path


def test_python_that_only_root_can_change_is_run(root):
    (found,), left_out = pythons.find_pythons(root)
    assert (found.tag, left_out, (root / "ran").exists()) == ("cpython-x", [], True)


def left_out_for(root, fault, detail=""):
    return HostProblem(fault, f"{root}/opt/lab/bin/python3", detail)


def open_to_others(root, part):
    return left_out_for(root, HostFault.PYTHON_OPEN_TO_OTHERS, str(part))


SPOIL = {
    "owned-by-another-user": lambda place: os.chown(place, ANOTHER, 0),
    "writable-by-everybody": lambda place: place.chmod(0o757),
    "writable-by-a-group": lambda place: (os.chown(place, 0, ANOTHER), place.chmod(0o775)),
}


@pytest.mark.parametrize("spoil", SPOIL)
@pytest.mark.parametrize(
    "part",
    ["opt/lab/bin/python3", "opt/lab/bin", "opt", "opt/lab/lib", LIBRARY, f"{LIBRARY}/os.py", f"{LIBRARY}/encodings"],
)
def test_python_with_a_part_that_others_can_change_is_never_run(root, part, spoil):
    SPOIL[spoil](root / part)
    found, left_out = pythons.find_pythons(root)
    assert (found, (root / "ran").exists()) == ([], False)
    assert left_out == [open_to_others(root, root / part)]
    with pytest.raises(SetupStopped) as stopped:
        pythons.find_pythons(root, [str(root / "opt/lab/bin/python3")])
    assert stopped.value.problem == open_to_others(root, root / part)
    assert not (root / "ran").exists()


@pytest.mark.skipif(shutil.which("setfacl") is None, reason="no setfacl on this machine")
def test_python_with_an_access_control_list_is_never_run(root):
    subprocess.run(["setfacl", "-m", f"u:{ANOTHER}:rwx", str(root / "opt/lab/bin")], check=True, timeout=60)
    assert pythons.find_pythons(root)[0] == []
    assert not (root / "ran").exists()


def test_link_of_a_user_is_followed_before_python_runs(root):
    """A pyvenv.cfg next to the link would make even `python -I -S` use the user's standard library."""
    (root / "opt/alice/bin").mkdir(parents=True)
    (root / "opt/alice/bin/python3").symlink_to(root / "opt/lab/bin/python3")
    os.chown(root / "opt/alice", ANOTHER, ANOTHER)
    found, left_out = pythons.find_pythons(root)
    assert ([python.executable for python in found], left_out) == ([str(root / "opt/lab/bin/python3")], [])


def test_virtual_environment_with_a_copied_python_is_never_run(root):
    (root / "opt/lab/pyvenv.cfg").write_text("home = /home/alice/bin\n")
    assert pythons.find_pythons(root) == ([], [left_out_for(root, HostFault.IN_ENVIRONMENT)])
    assert not (root / "ran").exists()


def test_python_without_a_standard_library_is_never_run(root):
    (root / LIBRARY / "os.py").unlink()
    assert pythons.find_pythons(root) == ([], [left_out_for(root, HostFault.NO_LIBRARY)])
    assert not (root / "ran").exists()


@pytest.mark.parametrize(
    ("answer", "fault", "detail"),
    [
        pytest.param(
            '["pypy", [3, 11], "pypy311", "{library}"]', HostFault.UNSUPPORTED, "", id="another-implementation"
        ),
        pytest.param('["cpython", [3, 6], "cpython-36", "{library}"]', HostFault.UNSUPPORTED, "", id="too-old"),
        pytest.param("no answer", HostFault.UNSUPPORTED, "", id="no-answer"),
        pytest.param('["cpython", [3, 11], "x", "/usr/lib"]', HostFault.OTHER_LIBRARY, "{library}", id="other-library"),
    ],
)
def test_python_that_gives_another_answer_than_expected_is_left_out(root, answer, fault, detail):
    library = str(root / LIBRARY)
    (root / "opt/lab/bin/python3").write_text(f"#!/bin/sh\necho '{answer.replace('{library}', library)}'\n")
    problem = left_out_for(root, fault, detail.replace("{library}", library))
    assert pythons.find_pythons(root) == ([], [problem])


@pytest.mark.parametrize("target", ["python3", "/proc/self/fd/99", "gone"])
def test_link_without_a_target_is_left_out(root, target):
    (root / "opt/alice/bin").mkdir(parents=True)
    (root / "opt/alice/bin/python3").symlink_to(target)
    found, left_out = pythons.find_pythons(root)
    assert len(found) == 1
    assert {problem.fault for problem in left_out} <= {HostFault.NOT_EXAMINED}, "some Pythons' glob skips broken links"
    with pytest.raises(SetupStopped) as stopped:
        pythons.find_pythons(root, [f"{root}/opt/alice/bin/python3"])
    assert stopped.value.problem.fault is HostFault.NOT_EXAMINED


@pytest.mark.parametrize("spoil", [None, *SPOIL])
def test_link_to_a_missing_file_is_refused_if_others_can_make_the_file(root, spoil):
    """Debian's standard library has a link to /etc/python3.11/sitecustomize.py, which an administrator may remove."""
    (root / "etc").mkdir(mode=0o755)
    (root / LIBRARY / "sitecustomize.py").symlink_to(root / "etc/python/sitecustomize.py")
    if spoil:
        SPOIL[spoil](root / "etc")
    found, left_out = pythons.find_pythons(root)
    assert (len(found), left_out) == ((0, [open_to_others(root, root / "etc")]) if spoil else (1, []))


def test_named_python_before_3_7_is_an_error():
    old = interpreter("3.6") or interpreter("2.7")
    if old is None:
        pytest.skip("no older Python on this machine")
    with pytest.raises(SetupStopped) as stopped:
        pythons.find_pythons(Path("/"), [str(old)])
    assert stopped.value.problem.path == str(old)
    assert stopped.value.problem.fault in (HostFault.UNSUPPORTED, HostFault.NO_LIBRARY)
