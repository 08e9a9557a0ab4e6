from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autogpu.frozen import replace
from autogpu.policy import KEYS, MemoryLimit, Policy, resolve

ROOT = Path(__file__).resolve().parent.parent.parent


def test_without_any_layer_the_defaults_hold(workplace):
    resolved = workplace.resolve()
    assert resolved.policy == Policy()
    assert resolved.problems == resolved.system_notes == resolved.files == ()
    assert resolved.project_file is None
    assert [str(setting.origin) for setting in resolved.settings.values()] == ["default"] * len(KEYS)


def test_each_layer_overrides_the_one_below_and_remembers_it(workplace):
    workplace.system("[select]\ncount = 2\n")
    workplace.user("\n[select]\ncount = 3\n")
    workplace.autogpu_toml("\n\n[select]\ncount = 4\n")
    resolved = workplace.resolve({"AUTOGPU_COUNT": "5"}, flags={"count": "6"})
    assert resolved.policy.count == 6
    history, setting = [], resolved.settings["select.count"]
    while setting is not None:
        history.append((setting.value, setting.origin.layer, str(setting.origin)))
        setting = setting.overrides
    assert history == [
        (6, "command line", "--count"),
        (5, "environment", "AUTOGPU_COUNT"),
        (4, "project", "~/proj/autogpu.toml:4"),
        (3, "user", "~/.config/autogpu/autogpu.toml:3"),
        (2, "system", f"{workplace.system_file}:2"),
        (1, "default", "default"),
    ]
    assert resolved.files == (workplace.system_file, workplace.user_file, workplace.project / "autogpu.toml")
    assert resolved.problems == ()


def test_keys_are_decided_one_by_one(workplace):
    workplace.user('[select]\ncount = 2\nbusy = "wait"\n')
    workplace.autogpu_toml('[memory]\nlimit = "50%"\n')
    assert workplace.resolve({"AUTOGPU_COUNT": "all"}).policy == Policy(
        count="all", busy="wait", limit=MemoryLimit(percent=50)
    )


# A value other than the default for each key that any layer may set: as TOML, as text, and in the policy.
OTHERS = {
    "enabled": ("false", "0", False),
    "select.count": ('"all"', "all", "all"),
    "select.need": ('"6GiB"', "6GiB", 6 * 1024**3),
    "select.devices": ('[0, "*A100*"]', "0,*A100*", ("0", "*A100*")),
    "select.exclude": ('["2-3"]', "2-3", ("2-3",)),
    "select.faulty": ('"never"', "never", "never"),
    "select.busy": ('"share-own"', "SHARE-OWN", "share-own"),
    "select.wait": ('"90s"', "90s", 90.0),
    "select.script": ('"override"', "override", "override"),
    "select.visible": ('"chosen"', "chosen", "chosen"),
    "select.identifier": ('"index"', "index", "index"),
    "memory.growth": ("false", "no", False),
    "memory.limit": ('"8GiB"', "8GiB", MemoryLimit(bytes=8 * 1024**3)),
    "memory.limit_includes": ('"process"', "process", "process"),
    "memory.virtual_gpus": ("2", "2", 2),
    "report.level": ('"explain"', "explain", "explain"),
}
OPEN_KEYS = [pytest.param(key, id=key.dotted) for key in KEYS if not key.system_only]


@pytest.mark.parametrize("key", OPEN_KEYS)
def test_every_key_can_be_said_in_a_file(workplace, key):
    toml, _, value = OTHERS[key.dotted]
    workplace.autogpu_toml((f"[{key.section}]\n" if key.section else "") + f"{key.name} = {toml}\n")
    resolved = workplace.resolve()
    assert resolved.policy == replace(Policy(), **{key.attribute: value})
    assert resolved.problems == ()


@pytest.mark.parametrize("key", OPEN_KEYS)
def test_every_key_can_be_said_in_pyproject_toml(workplace, key):
    toml, _, value = OTHERS[key.dotted]
    header = f"[tool.autogpu.{key.section}]" if key.section else "[tool.autogpu]"
    workplace.pyproject(f"[project]\nname = 'mine'\n{header}\n{key.name} = {toml}\n")
    resolved = workplace.resolve()
    assert getattr(resolved.policy, key.attribute) == value
    assert str(resolved.settings[key.dotted].origin) == "~/proj/pyproject.toml:4"


@pytest.mark.parametrize("key", OPEN_KEYS)
def test_every_key_has_a_variable_and_a_flag(workplace, key):
    _, text, value = OTHERS[key.dotted]
    assert getattr(workplace.resolve({key.variable: text}).policy, key.attribute) == value
    assert getattr(workplace.resolve(flags={key.name: text}).policy, key.attribute) == value
    assert getattr(workplace.resolve(flags={key.dotted: text}).policy, key.attribute) == value
    assert getattr(workplace.resolve(flags={key.flag: text}).policy, key.attribute) == value


def test_names_are_unique_across_sections():
    assert len({key.name for key in KEYS}) == len(KEYS)


def test_every_field_of_the_policy_is_one_key():
    assert sorted(key.attribute for key in KEYS) == sorted(vars(Policy()))


@pytest.mark.parametrize("text", ["", "  "], ids=["empty", "blank"])
def test_an_empty_variable_counts_as_unset(workplace, text):
    workplace.autogpu_toml("[select]\ncount = 4\n")
    resolved = workplace.resolve({"AUTOGPU_COUNT": text, "AUTOGPU": text, "AUTOGPU_POLICY": text})
    assert (resolved.policy.count, resolved.problems) == (4, ())


@pytest.mark.parametrize("text", ["0", "off", "false", "NO"])
def test_autogpu_0_switches_off(workplace, text):
    resolved = workplace.resolve({"AUTOGPU": text})
    assert resolved.policy.enabled is False
    assert str(resolved.settings["enabled"].origin) == "AUTOGPU"


def test_autogpu_0_stands_above_every_layer_and_lock(workplace):
    workplace.system('enabled = true\nlocked = ["enabled"]\n')
    resolved = workplace.resolve({"AUTOGPU": "0", "AUTOGPU_ENABLED": "1"}, flags={"enabled": "1"})
    assert (resolved.policy.enabled, resolved.problems) == (False, ())


def test_autogpu_1_switches_on_what_a_file_switched_off(workplace):
    workplace.user("enabled = false\n")
    assert workplace.resolve({"AUTOGPU": "1"}).policy.enabled is True


def test_autogpu_1_does_not_open_a_lock(workplace):
    workplace.system('enabled = false\nlocked = ["enabled"]\n')
    resolved = workplace.resolve({"AUTOGPU": "1"})
    assert resolved.policy.enabled is False
    assert [str(problem) for problem in resolved.problems] == [
        f"AUTOGPU: enabled is locked by {workplace.system_file}:2; false from {workplace.system_file}:1 is used"
    ]


def test_locked_keys_hold_and_each_attempt_is_told(workplace):
    workplace.system('locked = ["select.exclude", "limit"]\n[select]\nexclude = ["0"]\n')
    workplace.autogpu_toml("[select]\nexclude = []\n")
    resolved = workplace.resolve({"AUTOGPU_LIMIT": "50%"}, flags={"exclude": "none"})
    assert (resolved.policy.exclude, resolved.policy.limit) == (("0",), None)
    assert resolved.policy.locked == frozenset(["select.exclude", "memory.limit"])
    file = workplace.system_file
    assert [str(problem) for problem in resolved.problems] == [
        f'~/proj/autogpu.toml:2: select.exclude is locked by {file}:1; ["0"] from {file}:3 is used',
        f'AUTOGPU_LIMIT: memory.limit is locked by {file}:1; the default "" is used',
        f'--exclude: select.exclude is locked by {file}:1; ["0"] from {file}:3 is used',
    ]


def test_saying_what_is_locked_anyway_is_no_offence(workplace):
    workplace.system('locked = ["select.count"]\n[select]\ncount = 2\n')
    assert workplace.problems({"AUTOGPU_COUNT": "2"}) == []


def test_a_lock_stands_although_the_locked_value_is_bad(workplace):
    workplace.system('locked = ["select.count"]\n[select]\ncount = -1\n')
    assert workplace.resolve({"AUTOGPU_COUNT": "2"}).policy.count == 1


def test_unknown_names_in_locked_are_for_doctor(workplace):
    workplace.system('locked = ["select.exlude", "select.count"]\n')
    resolved = workplace.resolve({"AUTOGPU_COUNT": "2"})
    assert (resolved.policy.count, resolved.policy.locked) == (1, frozenset(["select.count"]))
    assert [str(note) for note in resolved.system_notes] == [
        f'{workplace.system_file}:1: locked names "select.exlude", which is no key, nearest is '
        "select.exclude; "
        "it locks nothing"
    ]


def test_per_user_counts_in_the_system_file(workplace):
    workplace.system("[limits]\nper_user = 3\n")
    assert workplace.resolve().policy.per_user == 3


@pytest.mark.parametrize(
    ("file", "environ", "origin"),
    [
        pytest.param("[limits]\nper_user = 9\n", {}, "~/proj/autogpu.toml:2", id="project"),
        pytest.param("", {"AUTOGPU_PER_USER": "9"}, "AUTOGPU_PER_USER", id="environment"),
    ],
)
def test_per_user_elsewhere_is_told_and_left_out(workplace, file, environ, origin):
    workplace.system("[limits]\nper_user = 3\n")
    workplace.autogpu_toml(file)
    resolved = workplace.resolve(environ)
    assert resolved.policy.per_user == 3
    assert [str(problem) for problem in resolved.problems] == [
        f"{origin}: limits.per_user counts only in the system file, /etc/autogpu/autogpu.toml; "
        f"3 from {workplace.system_file}:2 is used"
    ]


def test_locked_elsewhere_is_told_and_locks_nothing(workplace):
    workplace.autogpu_toml('locked = ["select.count"]\n')
    resolved = workplace.resolve({"AUTOGPU_COUNT": "2"})
    assert resolved.policy.count == 2
    assert [str(problem) for problem in resolved.problems] == [
        "~/proj/autogpu.toml:1: locked counts only in the system file, /etc/autogpu/autogpu.toml; "
        "the default [] is used"
    ]


def test_a_copy_of_the_defaults_of_system_keys_is_no_offence(workplace):
    workplace.system("[limits]\nper_user = 3\n")
    workplace.autogpu_toml("locked = []\n[limits]\nper_user = 0\n")
    resolved = workplace.resolve()
    assert (resolved.policy.per_user, resolved.problems) == (3, ())


def test_percentages_of_virtual_gpus_must_fit_on_the_card(workplace):
    workplace.user('[memory]\nlimit = "60%"\n')
    resolved = workplace.resolve({"AUTOGPU_VIRTUAL_GPUS": "2"})
    assert (resolved.policy.virtual_gpus, resolved.policy.limit) == (2, None)
    assert [str(problem) for problem in resolved.problems] == [
        '~/.config/autogpu/autogpu.toml:2: memory.limit can\'t be "60%" with memory.virtual_gpus = 2 '
        "(AUTOGPU_VIRTUAL_GPUS); allowed: up to 50%; each virtual GPU gets an equal share"
    ]


def test_a_locked_limit_does_not_give_way_to_virtual_gpus(workplace):
    workplace.system('locked = ["memory.limit"]\n[memory]\nlimit = "60%"\n')
    resolved = workplace.resolve({"AUTOGPU_VIRTUAL_GPUS": "2"})
    assert (resolved.policy.virtual_gpus, resolved.policy.limit) == (1, MemoryLimit(percent=60))
    (problem,) = resolved.problems
    assert str(problem).startswith("AUTOGPU_VIRTUAL_GPUS: memory.virtual_gpus can't be 2 with memory.limit = ")
    assert "which is locked; allowed: up to 1" in str(problem)


def test_percentages_of_virtual_gpus_that_just_fit_hold(workplace):
    resolved = workplace.resolve({"AUTOGPU_VIRTUAL_GPUS": "2", "AUTOGPU_LIMIT": "50%"})
    assert (resolved.policy.limit, resolved.problems) == (MemoryLimit(percent=50), ())


def test_virtual_gpus_need_no_limit(workplace):
    assert workplace.problems({"AUTOGPU_VIRTUAL_GPUS": "4"}) == []


def test_without_home_there_is_no_user_file(workplace):
    workplace.user("[select]\ncount = 3\n")
    resolved = resolve({}, script=None, working_directory=workplace.project, system_file=workplace.system_file)
    assert resolved.policy.count == 1


def test_xdg_config_home_moves_the_user_file(workplace, tmp_path):
    workplace.write(tmp_path / "config" / "autogpu" / "autogpu.toml", "[select]\ncount = 3\n")
    assert workplace.resolve({"XDG_CONFIG_HOME": str(tmp_path / "config")}).policy.count == 3


def test_a_relative_xdg_config_home_does_not_count(workplace):
    workplace.user("[select]\ncount = 3\n")
    assert workplace.resolve({"XDG_CONFIG_HOME": "config"}).policy.count == 3


def test_reading_a_policy_needs_no_toml_parser_where_there_is_no_file(workplace):
    code = (
        "import sys; from pathlib import Path; from autogpu.policy import resolve\n"
        "resolve({}, script=None, working_directory=Path('/'), system_file=Path('/nowhere'))\n"
        "print(sorted({'tomllib', 'tomli', 'difflib', 'json', 'logging'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=str(ROOT))
    assert ran.stdout == "[]\n"
