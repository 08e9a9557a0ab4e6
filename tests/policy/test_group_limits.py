"""``limits.per_user`` as a table of numbers, keyed by Unix group."""

import grp
import os

import pytest

from autogpu.policy import Origin, problems_of
from autogpu.policy.model import LayerName, Mistake
from tests.lease.conftest import ALICE, needs_root
from tests.support.problems import in_file, in_variable, problem
from tests.support.processes import in_a_fork

TABLE = """\
[limits.per_user]
default = 2
daemon = 1
mail = 4
www-data = 0
"""


@needs_root
@pytest.mark.parametrize(
    ("groups", "number"),
    [
        pytest.param([], 2, id="in-no-listed-group"),
        pytest.param(["daemon"], 1, id="number-below-the-default"),
        pytest.param(["daemon", "mail"], 4, id="largest-number-of-two-groups"),
        pytest.param(["mail", "daemon", "www-data"], 0, id="zero-is-no-cap"),
    ],
)
def test_each_process_has_the_largest_number_of_its_groups(workplace, groups, number):
    workplace.system(TABLE)
    workplace.resolve()  # import everything now: the user below may not be able to read this checkout
    gids = [grp.getgrnam(name).gr_gid for name in groups] or [ALICE]

    def as_user():
        os.setgroups(gids)
        os.setgid(gids[0])
        return workplace.resolve().policy.per_user

    assert in_a_fork(as_user) == number


def test_group_may_be_a_number_and_no_default_means_no_cap(workplace):
    workplace.system(f"[limits]\nper_user = {{{os.getegid()} = 3}}\n")
    assert workplace.resolve().policy.per_user == 3
    workplace.system("[limits]\nper_user = {4294900001 = 3}\n")
    assert workplace.resolve().policy.per_user == 0


def test_only_the_system_file_may_set_limits_per_user(workplace):
    file = workplace.system("\n[limits.per_user]\ndefault = 2\n")
    workplace.autogpu_toml("[limits.per_user]\ndefault = 9\n")
    resolved = workplace.resolve({"AUTOGPU_PER_USER": "9"})
    setting = resolved.settings["limits.per_user"]
    assert (resolved.policy.per_user, setting.value, str(setting.origin)) == (2, {"default": 2}, f"{file}:2")
    assert resolved.problems == (
        in_file(Mistake.SYSTEM_ONLY, 1, key="limits.per_user", used=setting),
        in_variable(Mistake.SYSTEM_ONLY, "AUTOGPU_PER_USER", key="limits.per_user", used=setting),
    )


@pytest.mark.parametrize(
    ("table", "written"),
    [
        ('students = "two"', 'students = "two"'),
        ("students = -1", "students = -1"),
        ("students = true", "students = true"),
        ('"a b" = [1]', '"a b" = a list'),
        ("students = {x = 1}", "students = a table"),
    ],
)
def test_group_limit_that_is_not_a_number_is_reported(workplace, table, written):
    workplace.system(f"[limits]\nper_user = {{{table}}}\n")
    resolved = workplace.resolve()
    assert resolved.policy.per_user == 0
    origin = Origin(LayerName.SYSTEM, str(workplace.system_file), 2)
    assert resolved.problems == (problem(Mistake.REFUSED_ENTRY, origin, key="limits.per_user", written=written),)


def test_unknown_group_is_reported_to_the_administrator_only(workplace):
    file = workplace.system("[limits.per_user]\nstudnets = 1\ndaemon = 1\n")
    resolved = workplace.resolve()
    origin = Origin(LayerName.SYSTEM, str(file), 2)
    note = problem(Mistake.UNKNOWN_GROUP, origin, written='"studnets"')
    assert (resolved.problems, resolved.system_notes) == ((), (note,))
    assert problems_of(file, {}, is_system=True) == (note,)
