"""The policy file that host-setup proposes: what it says, and whose it is once it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from autogpu import host_setup as hosts
from autogpu.host_setup import HostPaths, Step
from autogpu.host_setup.texts import seal
from autogpu.policy import KEYS, resolve
from autogpu.policy.templates import example
from tests.support import host_image
from tests.support.host_image import tree

image, paths = host_image.image, host_image.paths


def resolved(file: Path):
    return resolve({}, script=None, working_directory=file.parent, flags={}, system_file=file)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.dotted)
def test_one_hash_less_sets_the_key_for_the_host(image: Path, paths: HostPaths, key) -> None:
    hosts.setup(image)
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


@pytest.mark.parametrize("dotted", ["limits.per_user", "locked", "select.exclude"])
def test_policy_explains_what_an_administrator_wants(image: Path, paths: HostPaths, dotted: str) -> None:
    key = next(key for key in KEYS if key.dotted == dotted)
    head = hosts.policy_text().decode().partition("\n\n")[0]
    said = " ".join(line.lstrip("# ") for line in head.splitlines())
    assert key.more in said
    # The example that stands there is valid TOML, and not the default.
    shown = next(line.lstrip("# ") for line in head.splitlines() if line.startswith(f"#   {key.name} = "))
    paths.policy.parent.mkdir()
    paths.policy.write_text((f"[{key.section}]\n" if key.section else "") + shown)
    found = resolved(paths.policy)
    assert found.problems == ()
    assert getattr(found.policy, key.attribute) != key.default


def test_existing_policy_stays_at_setup_and_at_undo(image: Path, paths: HostPaths) -> None:
    paths.policy.parent.mkdir()
    paths.policy.write_text("[limits]\nper_user = 2\n")
    before = tree(image)[str(paths.policy.relative_to(image))]
    hosts.setup(image)
    assert hosts.undo(image).left == (Step("leave", paths.policy, why="was not written by autogpu"),)
    assert tree(image)[str(paths.policy.relative_to(image))] == before


def test_changed_policy_stays(image: Path, paths: HostPaths) -> None:
    hosts.setup(image)
    changed = paths.policy.read_bytes().replace(b"#per_user = 0", b"per_user = 2 ")
    paths.policy.write_bytes(changed)
    assert hosts.setup(image).steps == ()
    done = hosts.undo(image)
    assert done.left == (Step("leave", paths.policy, why="has been changed since autogpu wrote it"),)
    assert done.in_use == ""
    assert paths.policy.read_bytes() == changed


def test_policy_of_an_earlier_version_that_is_unchanged_is_updated(image: Path, paths: HostPaths) -> None:
    hosts.setup(image)
    rest = paths.policy.read_bytes().partition(b"\n")[2].replace(b"#count = 1", b"#howmany = 1")
    paths.policy.write_bytes(seal(rest) + rest)
    assert hosts.setup(image).steps == (Step("write", paths.policy, hosts.policy_text()),)
    paths.policy.write_bytes(seal(rest) + rest)
    assert paths.policy in hosts.undo(image).removed
