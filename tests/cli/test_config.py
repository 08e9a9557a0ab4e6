"""``autogpu config`` shows and checks policies; ``autogpu init`` writes a new policy file."""

import json
import sys

import pytest

from autogpu.cli import main as frame
from autogpu.policy import KEYS, Policy, resolve

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")

WROTE = "wrote autogpu.toml, which sets no key yet"


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


def test_config_shows_every_key_with_its_value_and_origin(run, project, monkeypatch):
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


def test_config_changed_leaves_the_defaults_out(run, monkeypatch):
    assert run("config", "--changed")[1] == "Nothing is set: the defaults are used.\n"
    monkeypatch.setenv("AUTOGPU_COUNT", "all")
    assert run("config", "--changed")[1] == 'select.count  "all"  AUTOGPU_COUNT, overrides 1 (default)\n'


def test_policy_problem_is_printed_and_exits_with_1(run, monkeypatch):
    monkeypatch.setenv("AUTOGPU_CUONT", "2")
    status, out, _ = run("config")
    assert status == 1
    assert "nearest is AUTOGPU_COUNT" in out.splitlines()[-1]


def test_config_json_has_the_value_of_each_layer(run, project, monkeypatch):
    (project / "autogpu.toml").write_text("[select]\ncount = 2\n")
    monkeypatch.setenv("AUTOGPU_COUNT", "3")
    told = json.loads(run("config", "--json")[1])
    assert (told["version"], told["problems"]) == (1, [])
    (count,) = [setting for setting in told["settings"] if setting["key"] == "select.count"]
    assert (count["value"], count["layer"], count["origin"]) == (3, "environment", "AUTOGPU_COUNT")
    lower = [(each["value"], each["layer"], each["origin"]) for each in count["overrides"]]
    assert lower == [(2, "project", f"{project / 'autogpu.toml'}:2"), (1, "default", "default")]


CHECKED = {
    "valid": ("[select]\ncount = 2\n", 0, "autogpu.toml: valid"),
    "unknown-key": ("[select]\ncuont = 2\n", 1, "select.count"),
    "key-for-the-system-file-only": ("[limits]\nper_user = 2\n", 1, "limits.per_user"),
    "not-toml": ("[select\n", 1, "is not valid TOML"),
    "several-problems": ('[select]\ncount = "two"\n[memory]\nlimit = "8GB of"\n', 1, "memory.limit"),
    "pyproject": ("[project]\nname = 'x'\n", 1, "pyproject.toml has no table [tool.autogpu]"),
}


@pytest.mark.parametrize(("text", "status", "said"), CHECKED.values(), ids=list(CHECKED))
def test_config_check_prints_mistakes_and_ignores_file_permissions(run, project, text, status, said):
    name = "pyproject.toml" if "[project]" in text else "autogpu.toml"
    (project / name).write_text(text)
    (project / name).chmod(0o666)
    found, out, err = run("config", "check", name)
    assert (found, err, said in out) == (status, "", True), out


AS_SYSTEM = {
    "limits": ("locked = ['select.count']\n[limits]\nper_user = 2\n", 0, "draft.toml: valid"),
    "misspelt-lock": ("locked = ['select.cuont']\n", 1, "nearest is select.count"),
    "unknown-key": ("[limits]\nper_usr = 2\n", 1, "nearest is limits.per_user"),
    "wrong-value": ("[limits]\nper_user = -1\n", 1, "limits.per_user can't be -1"),
}


@pytest.mark.parametrize(("text", "status", "said"), AS_SYSTEM.values(), ids=list(AS_SYSTEM))
def test_config_check_system_applies_the_rules_of_the_system_file(run, project, text, status, said):
    (project / "draft.toml").write_text(text)
    found, out, err = run("config", "check", "draft.toml", "--system")
    assert (found, err, said in out) == (status, "", True), out


def test_init_writes_a_valid_file_in_which_each_setting_is_a_comment(run, project):
    end = "; in this folder and below, it replaces any other project file"
    assert run("init") == (0, f"{WROTE}{end}\n", "")
    resolved = resolve({}, script=None, working_directory=project, system_file=project / "none")
    assert (resolved.policy, resolved.problems) == (Policy(), ())
    assert resolved.files == (project / "autogpu.toml",)
    file = project / "autogpu.toml"
    lines = file.read_text().split("\n\n", 1)[1].splitlines()
    file.write_text("\n".join(line[2:] if line.startswith("# ") else line for line in lines))
    assert run("config", "check", "autogpu.toml") == (0, "autogpu.toml: valid\n", "")
    assert tomllib.loads(file.read_text()).keys() == {"enabled", "select", "memory", "report"}


def test_init_prints_no_effect_of_a_file_that_a_variable_overrides(run, monkeypatch):
    monkeypatch.setenv("AUTOGPU_POLICY", "/dev/null")
    assert run("init") == (0, f"{WROTE}\n", "")


def test_init_never_overwrites_a_file(run, project):
    (project / "autogpu.toml").write_text("# mine\n")
    assert run("init") == (
        1,
        "",
        "autogpu: autogpu.toml already exists and was not changed\nautogpu: edit it, or move it away first\n",
    )
    assert (project / "autogpu.toml").read_text() == "# mine\n"


def test_init_user_writes_into_the_home_folder(run, tmp_path):
    assert run("init", "--user")[0] == 0
    assert (tmp_path / "home" / ".config" / "autogpu" / "autogpu.toml").exists()
