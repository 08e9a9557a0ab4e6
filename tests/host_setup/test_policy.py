"""The policy file that host-setup proposes: what it says, and whose it is once it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autogpu.cli import host_setup as hosts
from autogpu.policy import KEYS, resolve
from autogpu.policy.templates import example
from tests.support import host_image
from tests.support.host_image import tree

image, paths = host_image.image, host_image.paths


def resolved(file: Path):
    return resolve({}, script=None, working_directory=file.parent, flags={}, system_file=file)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.dotted)
def test_one_hash_less_sets_the_key_for_the_host(image: Path, paths, key) -> None:
    host_image.setup(image)
    text = paths.policy.read_text(encoding="ascii")
    line = f"\n#{key.name} = "
    assert text.count(line) == 1
    paths.policy.write_text(text.replace(line, line.replace("#", "")))
    found = resolved(paths.policy)
    assert (found.problems, found.system_notes) == ((), ())
    assert found.settings[key.dotted].origin.layer == "system"


def test_policy_lists_what_the_example_lists() -> None:
    lines = hosts.policy_text().decode().splitlines()
    listing = example().partition("\n\n")[2].splitlines()
    assert [line[1:] if line.startswith("#") else line for line in lines[-len(listing) :]] == listing
    assert max(map(len, lines)) <= 120


def test_existing_policy_stays(image: Path, paths) -> None:
    paths.policy.parent.mkdir()
    paths.policy.write_text("[limits]\nper_user = 2\n")
    before = tree(image)[str(paths.policy.relative_to(image))]
    host_image.setup(image)
    assert tree(image)[str(paths.policy.relative_to(image))] == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('locked = ["select.exclud"]\n', 'locked names "select.exclud", which is no key, nearest is select.exclude'),
        ("[limits]\nper_user = -1\n", "limits.per_user"),
        ("[limits]\nper_users = 1\n", "per_users"),
        ("[limits\n", "is not valid TOML"),
    ],
    ids=["misspelt-lock", "value", "key", "syntax"],
)
def test_policy_that_is_not_in_force_is_a_problem_that_counts(image: Path, paths, text: str, said: str) -> None:
    host_image.setup(image)
    paths.policy.write_text(text)
    part = host_image.host(image).parts()[-1]
    assert (part.problem, part.is_required) == ("is not in force as it is written", True)
    assert said in part.consequence
    assert host_image.setup(image) == []


@pytest.mark.parametrize(
    ("at", "mode", "said"),
    [
        ("", 0o600, "the jobs of its users can't read it"),
        ("..", 0o700, "the jobs of its users can't read it"),
        ("", 0o666, "every user can change it"),
        ("", 0o664, ""),
    ],
    ids=["closed", "closed-folder", "open-to-all", "usual"],
)
def test_policy_that_only_root_can_read_or_anyone_can_change_counts(image: Path, paths, at: str, mode: int, said: str):
    host_image.setup(image)
    (paths.policy.parent if at else paths.policy).chmod(mode)
    part = host_image.host(image).parts()[-1]
    assert (bool(part.problem), said in part.consequence) == (bool(said), True)


def test_policy_for_a_group_of_its_own_is_a_choice(image: Path, paths) -> None:
    if os.geteuid():
        pytest.skip("only root may give a file to any group")
    host_image.setup(image)
    os.chown(paths.policy, 0, 4711)
    paths.policy.chmod(0o640)
    assert not host_image.host(image).parts()[-1].problem
