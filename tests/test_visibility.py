"""The pool in the environment of a process, and what the script writes there."""

from __future__ import annotations

import pytest

from autogpu.policy import Policy
from autogpu.selection.grants import NO_ENGINE, Grant
from autogpu.selection.model import VisibleSpec
from autogpu.selection.ranks import LONE_RANK, LocalRank
from autogpu.variables import CUDA_DEVICE_ORDER
from autogpu.variables import CUDA_VISIBLE_DEVICES as VISIBLE
from autogpu.variables import ORIGINAL_VISIBLE_DEVICES as ORIGINAL
from autogpu.variables import WRITTEN_VISIBLE_DEVICES as WRITTEN
from autogpu.visibility import VisibleDevices
from tests.support.fakes import FakeCuda
from tests.support.values import gpu, inventory

MACHINE = inventory(gpu(0), gpu(1, pids=[7], used_gib=9), gpu(2))
IDLEST_FIRST = ",".join(gpu(index).uuid for index in (2, 0, 1))


def made(environ, *, policy=Policy(), started_with=None, cuda=None, grant=NO_ENGINE, is_worker=False):  # noqa: B008
    return VisibleDevices(policy, environ, started_with, cuda or FakeCuda(), grant, is_worker=lambda: is_worker)


def test_the_pool_is_written_idlest_first():
    environ = {}
    made(environ).write(MACHINE, "pool")
    assert environ[VISIBLE] == environ[WRITTEN] == IDLEST_FIRST


def test_ranks_keep_the_pools_order():
    environ = {VISIBLE: "2,0"}
    made(environ, started_with="2,0", grant=Grant(rank=LocalRank(0, 2, "MPICH"))).write(MACHINE, "pool")
    assert environ[VISIBLE] == f"{gpu(2).uuid},{gpu(0).uuid}"


@pytest.mark.parametrize("listed", [(1, 0), (1, 0, 2)], ids=["narrowed", "all"])
def test_a_rank_that_was_told_no_more_than_its_number_counts_what_its_parent_listed(listed):
    parents = ",".join(gpu(index).uuid for index in listed)
    environ = {VISIBLE: parents, WRITTEN: parents}
    lone = Grant(rank=LocalRank(1, 2, LONE_RANK))
    made(environ, started_with=parents, grant=lone).write(MACHINE, "pool")
    assert environ[VISIBLE] == parents


@pytest.mark.parametrize(
    ("listed", "is_worker", "order", "follows"),
    [
        (None, True, (0, 1, 2), True),
        ("1,0", True, (1, 0), True),
        (None, False, (2, 0, 1), False),
        ("1,0", False, (0, 1), False),
    ],
    ids=str,
)
def test_workers_that_are_told_a_number_each_count_by_one_order(listed, is_worker, order, follows):
    environ = {} if listed is None else {VISIBLE: listed}
    visible = made(environ, started_with=listed, is_worker=is_worker)
    visible.write(MACHINE, "pool")
    visible.count_with_siblings(MACHINE, "pool")
    assert environ[VISIBLE] == ",".join(gpu(index).uuid for index in order)
    assert visible.follows_parent is follows
    assert visible.refresh(MACHINE, NO_ENGINE, "pool") is False


def test_workers_count_a_list_of_their_scripts_own_in_its_order():
    environ = {}
    visible = made(environ, is_worker=True)
    visible.write(MACHINE, "pool")
    environ[VISIBLE] = "1,0"
    visible.refresh(MACHINE, NO_ENGINE, "pool")
    assert (visible.keeps_scripts_order, visible.follows_parent) == (False, False)
    visible.count_with_siblings(MACHINE, "pool")
    assert (visible.keeps_scripts_order, visible.follows_parent, environ[VISIBLE]) == (True, False, "1,0")


def test_workers_follow_a_list_that_their_parents_autogpu_left_as_it_was():
    environ = {VISIBLE: "2,0", WRITTEN: "2,0", ORIGINAL: "2,0"}
    visible = made(environ, started_with="2,0", is_worker=True)
    visible.write(MACHINE, "pool")
    assert visible.follows_parent
    assert visible.pool == (gpu(2).uuid, gpu(0).uuid)


def test_chosen_lists_as_many_as_the_policy_wants():
    environ = {}
    made(environ, policy=Policy(count=2)).write(MACHINE, "chosen")
    assert environ[VISIBLE] == f"{gpu(2).uuid},{gpu(0).uuid}"


@pytest.mark.parametrize(
    ("machine", "policy", "cuda", "reason"),
    [
        (None, Policy(), FakeCuda(), "no reading"),
        (MACHINE, Policy(count=0), FakeCuda(), "no GPU wanted"),
        (MACHINE, Policy(), FakeCuda([gpu(0)], initialised=True), "CUDA has read it"),
        (inventory(gpu(0, mig_enabled=True)), Policy(), FakeCuda(), "MIG"),
        (inventory(), Policy(), FakeCuda(), "no GPU"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_is_written_where_it_would_not_help(machine, policy, cuda, reason):
    environ = {}
    made(environ, policy=policy, cuda=cuda).write(machine, "pool")
    assert environ == {}, reason


def test_a_policy_that_excludes_everything_hides_everything():
    environ = {}
    made(environ, policy=Policy(exclude=("0-2",))).write(MACHINE, "pool")
    assert environ[VISIBLE] == "-1"


def test_an_empty_list_is_left_alone_and_known_to_hide_all():
    environ = {VISIBLE: ""}
    visible = made(environ, started_with="")
    visible.write(MACHINE, "pool")
    assert (environ, visible.may_have_gpus) == ({VISIBLE: ""}, False)


def test_what_the_script_wrote_before_the_import_is_its_own():
    environ = {VISIBLE: "1"}
    visible = made(environ)
    visible.write(MACHINE, "pool")
    # As the script wrote it, for it may read it again: no UUID, and in its order.
    assert (visible.spec, environ[VISIBLE]) == (VisibleSpec("1", "script"), "1")
    assert visible.environ_without_ours()[VISIBLE] == "1"
    assert not visible.is_our_order


def test_what_an_ancestor_left_behind_is_replaced():
    environ = {VISIBLE: "1,2", "AUTOGPU_ORIG_CUDA_VISIBLE_DEVICES": "0"}
    made(environ, started_with="0").write(MACHINE, "chosen")
    assert environ["AUTOGPU_ORIG_CUDA_VISIBLE_DEVICES"] == "1,2"
    environ = {"AUTOGPU_ORIG_CUDA_VISIBLE_DEVICES": "0"}
    made(environ).write(MACHINE, "pool")
    assert "AUTOGPU_ORIG_CUDA_VISIBLE_DEVICES" not in environ


def test_what_the_script_wrote_is_changed_where_the_policy_has_a_say_in_it():
    environ = {VISIBLE: "1,2"}
    visible = made(environ, policy=Policy(exclude=("1",), locked=frozenset({"select.exclude"})))
    visible.write(MACHINE, "pool")
    assert environ[VISIBLE] == gpu(2).uuid
    environ = {VISIBLE: "1,2"}
    made(environ).write(MACHINE, "chosen")
    assert environ[VISIBLE] == gpu(2).uuid


def test_what_the_script_wrote_after_the_import_is_followed():
    environ = {}
    visible = made(environ)
    visible.write(MACHINE, "pool")
    environ[VISIBLE] = "1"
    visible.refresh(MACHINE, NO_ENGINE, "pool")
    assert (visible.spec, environ[VISIBLE], visible.ignored_value) == (VisibleSpec("1", "script"), "1", None)


def test_what_the_script_wrote_after_cuda_had_read_it_is_remembered_as_ignored():
    environ, cuda = {}, FakeCuda([gpu(2), gpu(0), gpu(1)])
    visible = made(environ, cuda=cuda)
    visible.write(MACHINE, "pool")
    cuda.initialise()
    visible.refresh(MACHINE, NO_ENGINE, "pool")
    assert visible.ignored_value is None
    environ[VISIBLE] = "1"
    visible.refresh(MACHINE, NO_ENGINE, "pool")
    assert (visible.ignored_value, environ[VISIBLE]) == ("1", "1")


def test_override_restores_what_was_inherited():
    environ = {VISIBLE: "1"}
    visible = made(environ, policy=Policy(script="override"), started_with="0,2")
    visible.write(MACHINE, "pool")
    assert environ[VISIBLE] == f"{gpu(2).uuid},{gpu(0).uuid}"


def test_children_are_compared_with_what_this_process_was_started_with():
    environ = {VISIBLE: "0,2"}
    visible = made(environ, started_with="0,2")
    visible.write(MACHINE, "pool")
    assert visible.environ_without_ours()[VISIBLE] == "0,2"
    environ[VISIBLE] = "1"
    assert visible.environ_without_ours()[VISIBLE] == "1"


def test_where_an_engine_granted_nothing_every_gpu_is_hidden():
    environ = {}
    visible = made(environ, grant=Grant("Slurm", "no GPU", is_none=True))
    visible.write(MACHINE, "pool")
    assert environ[VISIBLE] == environ[WRITTEN] == "-1"
    assert set(visible.hidden_pool) == {gpu(index).uuid for index in range(3)}
    assert not visible.is_our_order


def test_where_an_engine_granted_nothing_the_scripts_own_list_stands():
    environ = {VISIBLE: "1"}
    visible = made(environ, grant=Grant("Slurm", "no GPU", is_none=True))
    visible.write(MACHINE, "pool")
    assert (environ[VISIBLE], visible.spec) == ("1", VisibleSpec("1", "script"))


def test_what_an_engine_grants_without_setting_it_is_the_pool():
    environ = {}
    visible = made(environ, grant=Grant("Ray", visible="1"))
    visible.write(MACHINE, "pool")
    assert environ[VISIBLE] == gpu(1).uuid


def test_an_engine_that_grants_anew_to_each_task_is_followed():
    environ, none = {"RAY_RAYLET_PID": "7"}, Grant("Ray", is_none=True)
    visible = made(environ, grant=none)
    visible.write(MACHINE, "pool")
    visible.refresh(MACHINE, Grant("Ray", visible="2"), "pool")
    assert environ[VISIBLE] == gpu(2).uuid
    visible.refresh(MACHINE, none, "pool")
    assert environ[VISIBLE] == "-1"
    environ[VISIBLE] = "1"
    visible.refresh(MACHINE, Grant("Ray"), "pool")
    assert environ[VISIBLE] == gpu(1).uuid


def test_an_engines_numbers_are_positions_on_the_bus():
    mixed = inventory(gpu(0), gpu(1, name="NVIDIA A100"), gpu(2))
    environ = {VISIBLE: "1,2"}
    visible = made(environ, started_with="1,2", grant=Grant("Slurm", counts_by_bus=True))
    visible.write(mixed, "pool")
    assert environ[VISIBLE] == f"{gpu(2).uuid},{gpu(1).uuid}"
    assert environ[CUDA_DEVICE_ORDER] == "PCI_BUS_ID"
    # The script's own numbers are meant as CUDA counts, which only CUDA knows here.
    environ = {VISIBLE: "1,2"}
    made(environ, grant=Grant("Slurm", counts_by_bus=True)).write(mixed, "pool")
    assert environ == {VISIBLE: "1,2"}
