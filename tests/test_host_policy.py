"""The policy file that host-setup proposes: what it says, and whose it is once it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from autogpu import host as hosts
from autogpu.host import Places, Step
from autogpu.host.proposal import seal
from autogpu.policy import KEYS, Policy, reference, resolve
from tests import host_image
from tests.host_image import tree

image, places = host_image.image, host_image.places


def resolved(file: Path):
    return resolve({}, script=None, working_directory=file.parent, flags={}, system_file=file)


def test_proposed_policy_is_read_and_says_nothing(image: Path, places: Places) -> None:
    hosts.setup(image)
    found = resolved(places.policy)
    assert found.files == (places.policy,)
    assert (found.policy, found.problems, found.system_notes) == (Policy(), (), ())
    assert {setting.origin.layer for setting in found.settings.values()} == {"default"}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.dotted)
def test_one_hash_less_sets_the_key_for_the_host(image: Path, places: Places, key) -> None:
    hosts.setup(image)
    text = places.policy.read_text(encoding="ascii")
    line = f"\n#{key.name} = "
    assert text.count(line) == 1
    places.policy.write_text(text.replace(line, line.replace("#", "")))
    found = resolved(places.policy)
    assert (found.problems, found.system_notes) == ((), ())
    assert found.settings[key.dotted].origin.layer == "system"


def test_policy_lists_what_the_example_lists() -> None:
    lines = hosts.policy_text().decode().splitlines()
    listing = reference.example().partition("\n\n")[2].splitlines()
    assert [line[1:] if line.startswith("#") else line for line in lines[-len(listing) :]] == listing
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("dotted", ["limits.per_user", "locked", "select.exclude"])
def test_policy_explains_what_an_administrator_wants(image: Path, places: Places, dotted: str) -> None:
    key = next(key for key in KEYS if key.dotted == dotted)
    head = hosts.policy_text().decode().partition("\n\n")[0]
    said = " ".join(line.lstrip("# ") for line in head.splitlines())
    assert key.more in said
    # The example that stands there is good TOML, and not the default.
    example = next(line.lstrip("# ") for line in head.splitlines() if line.startswith(f"#   {key.name} = "))
    places.policy.parent.mkdir()
    places.policy.write_text((f"[{key.section}]\n" if key.section else "") + example)
    found = resolved(places.policy)
    assert found.problems == ()
    assert getattr(found.policy, key.attribute) != key.default


def test_existing_policy_stays_at_setup_and_at_undo(image: Path, places: Places) -> None:
    places.policy.parent.mkdir()
    places.policy.write_text("[limits]\nper_user = 2\n")
    before = tree(image)[str(places.policy.relative_to(image))]
    hosts.setup(image)
    assert hosts.undo(image).left == (Step("leave", places.policy, why="was not written by autogpu"),)
    assert tree(image)[str(places.policy.relative_to(image))] == before


def test_changed_policy_stays(image: Path, places: Places) -> None:
    hosts.setup(image)
    changed = places.policy.read_bytes().replace(b"#per_user = 0", b"per_user = 2 ")
    places.policy.write_bytes(changed)
    assert hosts.setup(image).steps == ()
    done = hosts.undo(image)
    assert done.left == (Step("leave", places.policy, why="has been changed since autogpu wrote it"),)
    assert done.in_use == ""
    assert places.policy.read_bytes() == changed


def test_policy_of_an_earlier_version_that_nobody_changed_follows(image: Path, places: Places) -> None:
    hosts.setup(image)
    rest = places.policy.read_bytes().partition(b"\n")[2].replace(b"#count = 1", b"#howmany = 1")
    places.policy.write_bytes(seal(rest) + rest)
    assert hosts.setup(image).steps == (Step("write", places.policy, hosts.policy_text()),)
    places.policy.write_bytes(seal(rest) + rest)
    assert places.policy in hosts.undo(image).removed
