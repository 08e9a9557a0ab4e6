"""``limits.per_user`` as a table of numbers, keyed by Unix group."""

import grp
import os

import pytest

from autogpu.policy import problems_of
from tests.lease.conftest import ALICE, needs_root
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
    where, instead = "the system file, /etc/autogpu/autogpu.toml", f"{{default = 2}} from {file}:2 is used"
    told = f"limits.per_user can be set only in {where}; {instead}"
    assert [*map(str, resolved.problems)] == [f"~/proj/autogpu.toml:1: {told}", f"AUTOGPU_PER_USER: {told}"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('students = "two"', 'can\'t contain students = "two"; allowed'),
        ("students = -1", "can't contain students = -1; allowed: a number of GPUs (0 for no cap), or a table"),
        ("students = true", "can't contain students = true; allowed"),
        ('"a b" = [1]', 'can\'t contain "a b" = a list; allowed'),
        ("students = {x = 1}", "can't contain students = a table; allowed"),
    ],
)
def test_group_limit_that_is_not_a_number_is_reported(workplace, table, said):
    workplace.system(f"[limits]\nper_user = {{{table}}}\n")
    resolved = workplace.resolve()
    assert resolved.policy.per_user == 0
    (problem,) = map(str, resolved.problems)
    assert said in problem


def test_unknown_group_is_reported_to_the_administrator_only(workplace):
    file = workplace.system("[limits.per_user]\nstudnets = 1\ndaemon = 1\n")
    resolved = workplace.resolve()
    what = f'{file}:2: limits.per_user contains "studnets", which is not a group on this host; it is ignored'
    assert [*map(str, resolved.problems)] == []
    assert [*map(str, resolved.system_notes)] == [what]
    assert [*map(str, problems_of(file, {}, is_system=True))] == [what]
