"""Tests of what a package index receives: the page made from README.md, the licence and the source archive."""

import email
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import uv

import autogpu
from autogpu.install import plan_install
from tests.support.environments import ENVIRON, ROOT, files_of_the_project, interpreter, source_archive, wheel

NO_PYTHON = r"(?:ERROR: )?No matching distribution found for autogpu==0\+needs\.python\.3\.7\.or\.newer"


@pytest.fixture
def clone(tmp_path):
    for name in files_of_the_project():
        (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "clone" / name)
    return tmp_path / "clone"


def metadata_of(file):
    with zipfile.ZipFile(file) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_string(opened.read(name).decode("utf-8"))


@pytest.fixture(scope="module")
def metadata():
    return metadata_of(wheel())


@pytest.fixture(scope="module")
def page(metadata):
    return metadata.get_payload()


def test_index_page_has_no_link_or_command_that_needs_the_repository(page):
    assert re.findall(r"\]\((?!https?://)[^)]*\)", page) == []
    assert re.findall(r"\bdocs/[\w/.-]+|\bmake \w+|pip install \.", page) == []


def test_index_page_has_the_sections_of_readme(page):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^##+ .*$", readme, re.MULTILINE)
    left_out = ["## See it", "## Read on"]
    assert re.findall(r"^##+ .*$", page, re.MULTILINE) == [each for each in headings if each not in left_out]
    assert page.startswith("# autogpu\n\nEvery ")
    assert "```console\n$ pip install autogpu\n$ autogpu install\n```\n" in page
    assert "there the first line is `uv pip install autogpu`" in page
    # Links and pictures that were removed left no brackets and no stray spaces.
    assert re.findall(r"^.*(?:!\[|\]\(| [,.:]\s).*$", page, re.MULTILINE) == []


def test_metadata_has_the_licence_as_an_spdx_expression(metadata):
    assert (metadata["License-Expression"], metadata["License"]) == ("Apache-2.0", None)
    assert not any("License" in each for each in metadata.get_all("Classifier"))
    assert metadata["Description-Content-Type"].partition(";")[0] == "text/markdown"


@pytest.mark.slow
def test_repository_line_of_pyproject_becomes_a_project_url(clone, tmp_path):
    project = clone / "pyproject.toml"
    line = 'Repository = "https://host.example/autogpu"'
    # The line is commented out until the repository has an address.
    text, count = re.subn('^(# )?Repository = ".*"$', line, project.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count == 1
    project.write_text(text, encoding="utf-8")
    build = [uv.find_uv_bin(), "build", "--quiet", "--wheel", "--out-dir", str(tmp_path), str(clone)]
    subprocess.run(build, env=ENVIRON, timeout=280, check=True)
    (built,) = tmp_path.glob("autogpu-*.whl")
    assert metadata_of(built).get_all("Project-URL") == ["Repository, https://host.example/autogpu"]


@pytest.mark.parametrize("folder", ["", "sitecustomize_template"])
def test_pyproject_can_be_parsed_by_the_pip_of_python_3_6(folder):
    lines = (ROOT / folder / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    # That pip's TOML parser fails with a traceback at dotted keys; it accepts them only in the header of a table.
    assert [line for line in lines if re.match(r"""\s*("[^"]*"|'[^']*'|[\w-]+)\s*\.[^=]*=""", line)] == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("python", "pip", "code", "line"),
    [
        ("3.6", "9.0.3", 1, r"autogpu needs Python 3\.7 or newer, this is Python 3\.6"),
        ("3.6", "18.1", 1, NO_PYTHON),
        ("3.6", "21.3.1", 1, NO_PYTHON),
        ("3.7", "18.1", 1, r"autogpu needs pip 19 or newer .*"),
        ("3.7", "19.0.3", 0, r"Successfully installed autogpu-.*"),
    ],
)
def test_old_pip_installs_a_clone_or_prints_one_line_with_the_reason(python, pip, code, line, clone, tmp_path):
    found = interpreter(python)
    if found is None:
        pytest.skip(f"no Python {python} on this machine")
    # Ignore a configured mirror. Its pages may lack each file's required Python version, which an old pip reads there.
    environ = {**ENVIRON, "PIP_CONFIG_FILE": "/dev/null"}

    def run(*command):
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)

    executable = str(tmp_path / "venv" / "bin" / "python")
    assert run(str(found), "-m", "venv", str(tmp_path / "venv")).returncode == 0
    assert run(executable, "-m", "pip", "install", f"pip=={pip}").returncode == 0
    done = run(executable, "-m", "pip", "install", "--no-deps", str(clone))
    said = [each.strip() for each in (done.stdout + done.stderr).splitlines()]
    assert (done.returncode, sum(re.fullmatch(line, each) is not None for each in said)) == (code, 1), said
    assert not any("Traceback" in each for each in said), said


def test_wheel_of_the_start_up_files_has_the_files_that_install_writes():
    installed = {path.name: content for path, content in plan_install(Path(), "pth").items()}
    with zipfile.ZipFile(wheel("autogpu_autoload")) as opened:
        contents = {name: opened.read(name) for name in opened.namelist()}
    info = f"autogpu_autoload-{autogpu.__version__}.dist-info"
    files = ("_autogpu_hook.py", "_autogpu_steps.py", "autogpu.pth")
    assert set(contents) == {*files, *(f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD"))}
    assert {name: contents[name] for name in files} == {name: installed[name] for name in files}
    metadata = email.message_from_bytes(contents[f"{info}/METADATA"])
    assert metadata["Name"] == email.message_from_bytes(installed["METADATA"])["Name"] == "autogpu-autoload"
    # The wheel requires autogpu of at least its own version; older ones are not tested with it.
    assert metadata["Requires-Dist"] == f"autogpu>={autogpu.__version__}"


@pytest.mark.slow
def test_source_archive_has_every_file_of_the_project(tmp_path):
    with tarfile.open(source_archive(tmp_path)) as opened:
        names = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}
    assert names - {"PKG-INFO"} == set(files_of_the_project())
