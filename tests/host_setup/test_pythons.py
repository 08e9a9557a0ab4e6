"""Which Pythons root runs to give them autogpu."""

import os
import sys

import pytest

from autogpu.errors import InstallError
from autogpu.host import pythons
from tests.support.environments import interpreter

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def root(tmp_path):
    """A host whose one Python lies in /opt/lab/bin: a program that is the interpreter of this test."""
    found = tmp_path / "opt/lab/bin/python3"
    found.parent.mkdir(parents=True)
    found.write_text(f'#!/bin/sh\ntouch {tmp_path}/ran\nexec {sys.executable} "$@"\n')
    found.chmod(0o755)
    for folder in (tmp_path, *found.parents[:3]):
        folder.chmod(0o755)
    return tmp_path


def test_a_python_that_only_root_can_change_is_run(root, monkeypatch):
    monkeypatch.setattr(pythons, "_foreign_part", lambda path, root: None)
    found, left_out = pythons.find_pythons(root)
    assert ([python.tag for python in found], left_out) == ([sys.implementation.cache_tag], [])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda place: os.chown(place, 4242, 0),
        lambda place: place.chmod(0o757),
        lambda place: (os.chown(place, 0, 4242), place.chmod(0o775)),
    ],
    ids=["anothers", "for-everybody", "for-a-group"],
)
@pytest.mark.parametrize("part", ["opt/lab/bin/python3", "opt/lab/bin", "opt/lab", "opt"])
def test_a_python_that_others_can_change_is_never_run(root, part, spoil):
    spoil(root / part)
    found, left_out = pythons.find_pythons(root)
    assert (found, (root / "ran").exists()) == ([], False)
    assert left_out == [f"{root}/opt/lab/bin/python3 is left out: not only root can change {root / part}"]


def test_a_link_in_the_folder_of_a_user_is_not_what_is_run(root):
    """Beside it a pyvenv.cfg would lead even python -I -S to the user's standard library."""
    real = root / "usr/lib/real/python3"
    real.parent.mkdir(parents=True)
    (root / "opt/lab/bin/python3").rename(real)
    (root / "opt/lab/bin/python3").symlink_to(real)
    os.chown(root / "opt/lab", 4242, 4242)
    real.write_text(f'#!/bin/sh\necho "$0" >{root}/asked\n')
    pythons.find_pythons(root)
    asked = (root / "asked").read_text().split()
    assert asked == [str(real)]


def test_a_named_python_that_is_too_old_is_an_error():
    old = interpreter("3.6") or interpreter("2.7")
    if old is None:
        pytest.skip("no older Python on this machine")
    with pytest.raises(InstallError, match=r"is no CPython 3\.7 or later"):
        pythons.find_pythons(old.parent, [str(old)])
