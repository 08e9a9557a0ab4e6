"""What a package index gets: the page made of README.md, the licence, and an archive that has all of the project."""

from __future__ import annotations

import email
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

import autogpu
from autogpu.install import plan_install
from tests.support.environments import ROOT, files_of_the_project, source_archive, wheel


@pytest.fixture(scope="module")
def metadata():
    with zipfile.ZipFile(wheel()) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_string(opened.read(name).decode("utf-8"))


@pytest.fixture(scope="module")
def page(metadata):
    return metadata.get_payload()


def test_the_page_leads_nowhere_that_only_the_repository_has(page):
    assert re.findall(r"\]\((?!https?://)[^)]*\)", page) == []
    assert re.findall(r"\bdocs/[\w/.-]+|\bmake \w+|pip install \.", page) == []


def test_the_page_has_what_a_user_reads_first(page):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^##+ .*$", readme, re.MULTILINE)
    left_out = ["## See it", "## Read on"]
    assert re.findall(r"^##+ .*$", page, re.MULTILINE) == [each for each in headings if each not in left_out]
    assert page.startswith("# autogpu\n\nEvery ")
    assert "```console\n$ pip install autogpu\n$ autogpu install\n```\n" in page
    # Nothing of a link or of a picture is left over where one was.
    assert re.findall(r"^.*(?:!\[|\]\(| [,.:]\s).*$", page, re.MULTILINE) == []


def test_the_licence_is_named_as_indexes_read_it(metadata):
    assert (metadata["License-Expression"], metadata["License"]) == ("Apache-2.0", None)
    assert not any("License" in each for each in metadata.get_all("Classifier"))
    assert metadata["Description-Content-Type"].partition(";")[0] == "text/markdown"


@pytest.mark.parametrize("folder", ["", "sitecustomize_template"])
def test_the_pip_of_python_3_6_reads_the_file_and_can_say_that_python_is_too_old(folder):
    lines = (ROOT / folder / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    # Its parser ends at them with a traceback; in the header of a table it knows them.
    assert [line for line in lines if re.match(r"""\s*("[^"]*"|'[^']*'|[\w-]+)\s*\.[^=]*=""", line)] == []


def test_the_wheel_of_the_start_up_files_has_what_install_writes():
    installed = {path.name: content for path, content in plan_install(Path(), "pth").items()}
    with zipfile.ZipFile(wheel("autogpu_autoload")) as opened:
        contents = {name: opened.read(name) for name in opened.namelist()}
    info = f"autogpu_autoload-{autogpu.__version__}.dist-info"
    files = ("_autogpu_hook.py", "_autogpu_steps.py", "autogpu.pth", "autogpu.start")
    assert set(contents) == {*files, *(f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD"))}
    assert {name: contents[name] for name in files} == {name: installed[name] for name in files}
    metadata = email.message_from_bytes(contents[f"{info}/METADATA"])
    assert metadata["Name"] == email.message_from_bytes(installed["METADATA"])["Name"] == "autogpu-autoload"
    # Of the same version: no other pair is tested together.
    assert metadata["Requires-Dist"] == f"autogpu>={autogpu.__version__}"


@pytest.mark.slow
def test_the_source_archive_has_every_file_of_the_project(tmp_path):
    with tarfile.open(source_archive(tmp_path)) as opened:
        names = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}
    assert names - {"PKG-INFO"} == set(files_of_the_project())
