import subprocess
import sys
from pathlib import Path

import pytest

from autogpu.frozen import replace
from autogpu.policy import KEYS, MemoryLimit, Origin, Policy, Problem, resolve
from autogpu.policy.model import LayerName, Mistake

ROOT = Path(__file__).resolve().parent.parent.parent


def test_defaults_hold_without_any_layer(workplace):
    resolved = workplace.resolve()
    assert resolved.policy == Policy()
    assert resolved.problems == resolved.system_notes == resolved.files == ()
    assert [str(setting.origin) for setting in resolved.settings.values()] == ["default"] * len(KEYS)


def test_each_layer_overrides_the_layer_below_and_remembers_its_value(workplace):
    workplace.system("[select]\ncount = 2\n")
    workplace.user("\n[select]\ncount = 3\n")
    workplace.autogpu_toml("\n\n[select]\ncount = 4\n")
    resolved = workplace.resolve({"AUTOGPU_COUNT": "5"}, flags={"count": "6"})
    assert resolved.policy.count == 6
    history, setting = [], resolved.settings["select.count"]
    while setting is not None:
        history.append((setting.value, setting.origin.layer.value, str(setting.origin)))
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


# A value other than the default for each key that every layer may set: in TOML, as text, and in the policy.
OTHERS = {
    "enabled": ("false", "0", False),
    "select.count": ('"all"', "all", "all"),
    "select.need": ('"6GiB"', "6GiB", 6 * 1024**3),
    "select.devices": ('[0, "*A100*"]', "0,*A100*", ("0", "*A100*")),
    "select.exclude": ('["2-3"]', "2-3", ("2-3",)),
    "select.prefer": ('["3", "0-1"]', "3,0-1", ("3", "0-1")),
    "select.busy": ('"wait"', "WAIT", "wait"),
    "select.wait": ('"90s"', "90s", 90.0),
    "select.script": ('"override"', "override", "override"),
    "select.visible": ('"chosen"', "chosen", "chosen"),
    "memory.growth": ("false", "no", False),
    "memory.limit": ('"8GiB"', "8GiB", MemoryLimit(bytes=8 * 1024**3)),
    "memory.limit_includes": ('"process"', "process", "process"),
    "memory.virtual_gpus": ("2", "2", 2),
    "report.level": ('"explain"', "explain", "explain"),
    "report.history": ("false", "no", False),
}


@pytest.mark.parametrize("key", [pytest.param(key, id=key.dotted) for key in KEYS if not key.system_only])
def test_every_key_can_be_set_in_either_file_by_variable_and_by_flag(workplace, key):
    toml, text, value = OTHERS[key.dotted]
    expected = replace(Policy(), **{key.attribute: value})
    header = f"[tool.autogpu.{key.section}]" if key.section else "[tool.autogpu]"
    workplace.pyproject(f"[project]\nname = 'mine'\n{header}\n{key.name} = {toml}\n")
    resolved = workplace.resolve()
    assert (resolved.policy, resolved.problems) == (expected, ())
    assert str(resolved.settings[key.dotted].origin) == "~/proj/pyproject.toml:4"
    # autogpu.toml comes before pyproject.toml.
    workplace.autogpu_toml((f"[{key.section}]\n" if key.section else "") + f"{key.name} = {toml}\n")
    resolved = workplace.resolve()
    assert (resolved.policy, resolved.problems) == (expected, ())
    workplace.autogpu_toml("")
    assert workplace.resolve({key.variable: text}).policy == expected
    assert workplace.resolve(flags={key.name: text}).policy == expected


def test_each_field_of_the_policy_is_one_key_with_a_unique_name():
    assert sorted(key.attribute for key in KEYS) == sorted(vars(Policy()))
    assert len({key.name for key in KEYS}) == len(KEYS)


@pytest.mark.parametrize("text", ["", "  "], ids=["empty", "blank"])
def test_empty_variable_counts_as_unset(workplace, text):
    workplace.autogpu_toml("[select]\ncount = 4\n")
    resolved = workplace.resolve({"AUTOGPU_COUNT": text, "AUTOGPU": text, "AUTOGPU_POLICY": text})
    assert (resolved.policy.count, resolved.problems) == (4, ())


@pytest.mark.parametrize("text", ["0", "off", "false", "NO"])
def test_autogpu_0_switches_off_whatever_a_layer_or_a_lock_sets(workplace, text):
    workplace.system('enabled = true\nlocked = ["enabled"]\n')
    resolved = workplace.resolve({"AUTOGPU": text, "AUTOGPU_ENABLED": "1"})
    assert (resolved.policy.enabled, resolved.problems) == (False, ())
    assert str(resolved.settings["enabled"].origin) == "AUTOGPU"


ASKS_2 = {"AUTOGPU_COUNT": "2"}
OFF_LOCKED = {"system": 'enabled = false\nlocked = ["enabled"]\n'}
OFF = (Mistake.LOCKED, "AUTOGPU", "enabled", "SYSTEM:2", "SYSTEM:1")
TWO_LOCKED = {"system": 'locked = ["select.count"]\n[select]\ncount = 2\n'}
LOCKED_ELSEWHERE = {"autogpu_toml": 'locked = ["select.count"]\n'}
NOT_HERE = (Mistake.SYSTEM_ONLY, "~/proj/autogpu.toml:1", "locked", "", "default")
COPIED = {"system": "[limits]\nper_user = 3\n", "autogpu_toml": "locked = []\n[limits]\nper_user = 0\n"}


@pytest.mark.parametrize(
    ("files", "environ", "policy", "problems"),
    [
        pytest.param({"user": "enabled = false\n"}, {"AUTOGPU": "1"}, {}, [], id="AUTOGPU=1-switches-on"),
        pytest.param(
            OFF_LOCKED, {"AUTOGPU": "1"}, {"enabled": False, "locked": {"enabled"}}, [OFF], id="AUTOGPU=1-opens-no-lock"
        ),
        pytest.param(
            {
                "system": 'locked = ["select.exclude", "limit"]\n[select]\nexclude = ["0"]\n',
                "autogpu_toml": "[select]\nexclude = []\n",
            },
            {"AUTOGPU_LIMIT": "50%", "--exclude": "none"},
            {"exclude": ("0",), "locked": {"select.exclude", "memory.limit"}},
            [
                (Mistake.LOCKED, "~/proj/autogpu.toml:2", "select.exclude", "SYSTEM:1", "SYSTEM:3"),
                (Mistake.LOCKED, "AUTOGPU_LIMIT", "memory.limit", "SYSTEM:1", "default"),
                (Mistake.LOCKED, "--exclude", "select.exclude", "SYSTEM:1", "SYSTEM:3"),
            ],
            id="locked-keys-hold-and-each-attempt-is-reported",
        ),
        pytest.param(
            TWO_LOCKED, ASKS_2, {"count": 2, "locked": {"select.count"}}, [], id="locked-value-may-be-repeated"
        ),
        pytest.param(LOCKED_ELSEWHERE, ASKS_2, {"count": 2}, [NOT_HERE], id="locked-in-a-project-file-locks-nothing"),
        pytest.param(COPIED, {}, {"per_user": 3}, [], id="defaults-of-system-keys-may-be-repeated"),
    ],
)
def test_locked_keys_hold(workplace, files, environ, policy, problems):
    for layer, text in files.items():
        getattr(workplace, layer)(text)
    flags = {name[2:]: text for name, text in environ.items() if name.startswith("--")}
    resolved = workplace.resolve(environ, flags=flags)
    assert resolved.policy == replace(Policy(), **policy)
    found = []
    for problem in resolved.problems:
        lock, used = (
            str(text).replace(str(workplace.system_file), "SYSTEM") for text in (problem.detail, problem.used.origin)
        )
        found.append((problem.mistake, str(problem.origin), problem.key, lock, used))
    assert found == problems


def test_lock_holds_even_if_the_locked_value_is_invalid(workplace):
    workplace.system('locked = ["select.count"]\n[select]\ncount = -1\n')
    assert workplace.resolve({"AUTOGPU_COUNT": "2"}).policy.count == 1


def test_unknown_names_in_locked_are_notes_for_doctor(workplace):
    workplace.system('locked = ["select.exlude", "select.count"]\n')
    resolved = workplace.resolve({"AUTOGPU_COUNT": "2"})
    assert (resolved.policy.count, resolved.policy.locked) == (1, frozenset(["select.count"]))
    origin = Origin(LayerName.SYSTEM, str(workplace.system_file), 1)
    note = Problem(Mistake.UNKNOWN_LOCK, origin, written='"select.exlude"', nearest="select.exclude")
    assert resolved.system_notes == (note,)


def test_user_file_is_found_by_an_absolute_xdg_config_home(workplace, tmp_path):
    workplace.user("[select]\ncount = 3\n")
    workplace.write(tmp_path / "config" / "autogpu" / "autogpu.toml", "[select]\ncount = 4\n")
    places = {"": 3, "config": 3, str(tmp_path / "config"): 4}
    assert {place: workplace.resolve({"XDG_CONFIG_HOME": place}).policy.count for place in places} == places
    no_home = resolve({}, script=None, working_directory=workplace.project, system_file=workplace.system_file)
    assert no_home.policy.count == 1


def test_no_toml_parser_is_imported_without_a_policy_file(workplace):
    code = (
        "import sys; from pathlib import Path; from autogpu.policy import resolve\n"
        "resolve({}, script=None, working_directory=Path('/'), system_file=Path('/nowhere'))\n"
        "unneeded = {'tomllib', 'tomli', 'difflib', 'json', 'logging', 'autogpu.policy.parsing', 'autogpu.reporting'}\n"
        "print(sorted(unneeded & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=str(ROOT))
    assert ran.stdout == "[]\n"
