"""What holds, who said it, and a file to start from."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from autogpu.cli import main as frame
from autogpu.history import History
from autogpu.policy import KEYS, Policy, resolve

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(project, capsys):
    def run(*arguments):
        status = frame.run(list(arguments))
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def test_every_key_is_shown_with_its_value_and_where_it_was_said(run, project, monkeypatch):
    (project / "autogpu.toml").write_text('[select]\ncount = 2\n\n[memory]\nlimit = "4GiB"\n')
    monkeypatch.setenv("AUTOGPU_LIMIT", "8GiB")
    status, out, err = run("config")
    assert (status, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert [line.split()[0] for line in lines] == [key.dotted for key in KEYS]
    file = project / "autogpu.toml"
    assert f"select.count 2 {file}:2, overrides 1 (default)" in lines
    assert f'memory.limit "8GiB" AUTOGPU_LIMIT, overrides "4GiB" ({file}:5), "" (default)' in lines
    assert 'select.busy "share" default' in lines


def test_changed_leaves_the_defaults_out(run, monkeypatch):
    assert run("config", "--changed")[1] == "Nothing is set: the defaults are used.\n"
    monkeypatch.setenv("AUTOGPU_COUNT", "all")
    assert run("config", "--changed")[1] == 'select.count  "all"  AUTOGPU_COUNT, overrides 1 (default)\n'


def test_where_runs_are_kept_is_told(run, project):
    History(os.environ).keep(("a", "--token", "secret"), 1)
    *_, last = run("config", "--changed")[1].splitlines()
    where = "kept in ~/.local/state/autogpu/runs, for you alone"
    assert last == f"1 run of your scripts {where}; the file may be deleted"


def test_a_problem_is_told_and_is_the_exit_status(run, monkeypatch):
    monkeypatch.setenv("AUTOGPU_CUONT", "2")
    status, out, _ = run("config")
    assert status == 1
    assert "nearest is AUTOGPU_COUNT" in out.splitlines()[-1]


def test_json_holds_the_whole_history(run, project, monkeypatch):
    (project / "autogpu.toml").write_text("[select]\ncount = 2\n")
    monkeypatch.setenv("AUTOGPU_COUNT", "3")
    told = json.loads(run("config", "--json")[1])
    assert told["version"] == 1
    assert told["project_file"] == str(project / "autogpu.toml")
    (count,) = [setting for setting in told["settings"] if setting["key"] == "select.count"]
    assert (count["value"], count["origin"]["variable"]) == (3, "AUTOGPU_COUNT")
    lower = [(each["value"], each["origin"]["layer"], each["origin"]["line"]) for each in count["overrides"]]
    assert lower == [(2, "project", 2), (1, "default", None)]


def test_json_below_run_names_the_variable(run, monkeypatch):
    monkeypatch.setenv("AUTOGPU_NEED", "6GiB")
    monkeypatch.setenv("AUTOGPU_RUN_NEED", "6GiB")
    (need,) = [each for each in json.loads(run("config", "--json")[1])["settings"] if each["key"] == "select.need"]
    assert (need["origin"]["layer"], need["origin"]["variable"]) == ("environment", "AUTOGPU_NEED")


@pytest.mark.parametrize(
    ("name", "text", "status", "said"),
    [
        ("autogpu.toml", "[select]\ncount = 2\n", 0, "autogpu.toml: valid"),
        ("autogpu.toml", "[select]\ncuont = 2\n", 1, "select.count"),
        ("autogpu.toml", "[limits]\nper_user = 2\n", 1, "limits.per_user"),
        ("autogpu.toml", "[select\n", 1, "is not valid TOML"),
        ("autogpu.toml", '[select]\ncount = "two"\n[memory]\nlimit = "8GB of"\n', 1, "memory.limit"),
        ("pyproject.toml", "[project]\nname = 'x'\n", 1, "pyproject.toml has no [tool.autogpu]"),
    ],
    ids=["valid", "unknown-key", "of-the-hosts-file-alone", "no-toml", "all-at-once", "pyproject-without-a-policy"],
)
def test_checking_a_file_tells_what_is_wrong_in_it_and_does_not_ask_whose_it_is(run, project, name, text, status, said):
    (project / name).write_text(text)
    (project / name).chmod(0o666)
    found, out, err = run("config", "check", name)
    assert (found, err, said in out) == (status, "", True), out


def test_init_writes_a_file_in_which_nothing_is_set(run, project):
    status, out, err = run("init")
    assert (status, err) == (0, "")
    assert out == "wrote autogpu.toml, in which nothing is set yet; `autogpu config` shows the values in use\n"
    assert run("config", "check", "autogpu.toml")[0] == 0
    resolved = resolve({}, script=None, working_directory=project, system_file=project / "none")
    assert resolved.policy == Policy()
    assert resolved.project_file == project / "autogpu.toml"


def test_init_tells_editors_where_the_schema_is_and_each_line_can_be_switched_on(run, project):
    run("init")
    file = project / "autogpu.toml"
    first, _, rest = file.read_text().partition("\n")
    assert first.startswith("#:schema file:///")
    schema = Path(unquote(urlsplit(first[len("#:schema ") :]).path))
    assert json.loads(schema.read_text())["title"] == "autogpu.toml"
    lines = rest.split("\n\n", 1)[1].splitlines()
    file.write_text("\n".join(line[2:] if line.startswith("# ") else line for line in lines))
    assert run("config", "check", "autogpu.toml")[1] == "autogpu.toml: valid\n"
    said = tomllib.loads(file.read_text())
    assert {section for section in said if section != "enabled"} == {"select", "memory", "report"}


def test_init_never_overwrites(run, project):
    (project / "autogpu.toml").write_text("# mine\n")
    status, out, err = run("init")
    assert (status, out) == (1, "")
    assert err.startswith("autogpu: autogpu.toml is there already\n")
    assert (project / "autogpu.toml").read_text() == "# mine\n"


TABLE = "[tool.autogpu.select]\ncount = 2\n"


@pytest.mark.parametrize(
    ("name", "text", "folder", "named", "said"),
    [
        ("autogpu.toml", "[select]\ncount = 2\n", "code", "", "{} is not."),
        ("pyproject.toml", TABLE, "code", "", "[tool.autogpu] in {} is not."),
        ("pyproject.toml", TABLE, "", "", "[tool.autogpu] in {} is not."),
        ("pyproject.toml", "[project]\nname = 'x'\n", "", "", None),
        ("pyproject.toml", "", "", "/dev/null", "It is not used as long as AUTOGPU_POLICY names /dev/null."),
    ],
    ids=["above", "table-above", "table-beside", "no-policy", "another-is-named"],
)
def test_init_says_which_of_two_files_counts(run, project, monkeypatch, name, text, folder, named, said):
    (project / "code").mkdir()
    (project / name).write_text(text)
    monkeypatch.chdir(project / folder)
    monkeypatch.setenv("AUTOGPU_POLICY", named)
    both = "It is used in and below its folder from now on, and "
    lines = [] if said is None else [said if named else both + said.format(project / name)]
    assert run("init")[1].splitlines()[1:] == lines


def test_init_for_the_user(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert run("init", "--user")[0] == 0
    assert (tmp_path / "config" / "autogpu" / "autogpu.toml").exists()
