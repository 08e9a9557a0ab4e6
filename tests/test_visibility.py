"""The pool in the environment of a process, and what the script writes there."""

import pytest

from autogpu.policy import Policy
from autogpu.selection.grants import NO_ENGINE, Grant
from autogpu.selection.model import VisibleSpec
from autogpu.selection.ranks import LONE_RANK, LocalRank
from autogpu.variables import CUDA_DEVICE_ORDER
from autogpu.variables import CUDA_VISIBLE_DEVICES as VISIBLE
from autogpu.variables import ORIGINAL_VISIBLE_DEVICES as ORIGINAL
from autogpu.variables import WRITTEN_VISIBLE_DEVICES as WRITTEN
from autogpu.visibility import Order, VisibleDevices
from tests.support.fakes import FakeCuda
from tests.support.values import gpu, inventory

MACHINE = inventory(gpu(0), gpu(1, pids=[7], used_gib=9), gpu(2))


def listing(*indices):
    return ",".join(gpu(index).uuid for index in indices)


def written(environ, started_with=None, *, how="pool", machine=MACHINE, cuda=None, grant=NO_ENGINE, **options):
    """The pool of a process with this policy after it was written into ``environ``."""
    cuda = cuda or FakeCuda()
    pool = VisibleDevices(Policy(**options), environ, started_with, cuda, grant)
    pool.lists_chosen = how == "chosen"
    pool.write(machine)
    return pool


LOCKED = {"exclude": ("1",), "locked": frozenset({"select.exclude"})}
OF_TWO = Grant(rank=LocalRank(0, 2, "MPICH"))
LONE = Grant(rank=LocalRank(1, 2, LONE_RANK, job="ranks.1"))
NONE = Grant("Slurm", "no GPU", is_none=True)
NARROWED = {VISIBLE: listing(1, 0), WRITTEN: listing(1, 0)}


@pytest.mark.parametrize(
    ("environ", "started_with", "options", "expected"),
    [
        pytest.param({}, None, {}, listing(2, 0, 1), id="idlest-first"),
        pytest.param({}, None, {"exclude": ("0-2",)}, "-1", id="none-where-all-are-excluded"),
        pytest.param({VISIBLE: "2,0"}, "2,0", {"grant": OF_TWO}, listing(2, 0), id="ranks-keep-the-pools-order"),
        pytest.param(NARROWED, listing(1, 0), {"grant": LONE}, listing(1, 0), id="a-lone-rank-counts-as-its-parent"),
        pytest.param({VISIBLE: ""}, "", {}, "", id="an-empty-list-is-left-alone"),
        pytest.param({VISIBLE: "1,2"}, None, LOCKED, listing(2), id="the-scripts-less-what-a-locked-key-excludes"),
        pytest.param({VISIBLE: "1,2"}, None, {"how": "chosen"}, listing(2), id="the-chosen-of-the-scripts"),
        pytest.param({VISIBLE: "1"}, "0,2", {"script": "override"}, listing(2, 0), id="inherited-and-overridden"),
        pytest.param({VISIBLE: "1"}, None, {"grant": NONE}, "1", id="the-scripts-where-nothing-was-granted"),
        pytest.param({}, None, {"grant": NONE}, "-1", id="none-where-nothing-was-granted"),
        pytest.param({}, None, {"grant": Grant("Ray", visible="1")}, listing(1), id="granted-without-setting-it"),
    ],
)
def test_what_is_listed(environ, started_with, options, expected):
    environ, before = dict(environ), environ.get(VISIBLE)
    visible = written(environ, started_with, **options)
    # What is left as it was is the script's, or of who started it; of what autogpu wrote children can tell.
    assert (environ[VISIBLE], environ.get(WRITTEN, before)) == (expected, expected)
    assert visible.listed.may_have_gpus == (expected != "")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"machine": None}, "no reading"),
        ({"count": 0}, "no GPU wanted"),
        ({"cuda": FakeCuda([gpu(0)], initialised=True)}, "CUDA has read it"),
        ({"machine": inventory(gpu(0, mig_enabled=True))}, "MIG"),
        ({"machine": inventory()}, "no GPU"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_is_written_where_it_would_not_help(options, reason):
    environ = {}
    written(environ, **options)
    assert environ == {}, reason


def test_where_an_engine_granted_nothing_the_hidden_pool_is_known():
    visible = written({}, grant=NONE)
    assert set(visible.listed.hidden) == {gpu(index).uuid for index in range(3)}
    assert visible.listed.order is Order.GIVEN


# What the script and others write


def test_what_the_script_wrote_before_the_import_is_its_own():
    environ = {VISIBLE: "1"}
    visible = written(environ)
    # As the script wrote it, for it may read it again: no UUID, and in its order.
    assert (visible.spec, environ[VISIBLE]) == (VisibleSpec("1", is_scripts=True), "1")
    assert visible.environ_without_ours()[VISIBLE] == "1"
    assert visible.listed.order is Order.GIVEN


def test_what_the_script_wrote_after_the_import_is_followed_and_left_to_children():
    environ = {VISIBLE: "0,2"}
    visible = written(environ, "0,2")
    assert visible.environ_without_ours()[VISIBLE] == "0,2", "what this process was started with"
    environ[VISIBLE] = "1"
    assert visible.environ_without_ours()[VISIBLE] == "1"
    visible.refresh(MACHINE, NO_ENGINE)
    assert (visible.spec, environ[VISIBLE], visible.ignored_value) == (VisibleSpec("1", is_scripts=True), "1", None)


def test_what_the_script_wrote_after_cuda_had_read_it_is_remembered_as_ignored():
    environ, cuda = {}, FakeCuda([gpu(2), gpu(0), gpu(1)])
    visible = written(environ, cuda=cuda)
    cuda.initialise()
    visible.refresh(MACHINE, NO_ENGINE)
    assert visible.ignored_value is None
    environ[VISIBLE] = "1"
    visible.refresh(MACHINE, NO_ENGINE)
    assert (visible.ignored_value, environ[VISIBLE]) == ("1", "1")


def test_override_restores_what_was_inherited_also_where_only_cuda_can_tell_what_that_is():
    environ, mixed = {VISIBLE: "1"}, inventory(gpu(0), gpu(1, name="NVIDIA A100"), gpu(2))
    written(environ, "0,2", script="override", machine=mixed)
    assert environ == {VISIBLE: "0,2"}


@pytest.mark.parametrize(("environ", "started_with", "original"), [({VISIBLE: "1,2"}, "0", "1,2"), ({}, None, None)])
def test_what_an_ancestor_left_behind_is_replaced(environ, started_with, original):
    environ = {**environ, ORIGINAL: "0"}
    written(environ, started_with, how="chosen")
    assert environ.get(ORIGINAL) == original


def test_an_engine_that_grants_anew_to_each_task_is_followed():
    environ, none = {"RAY_RAYLET_PID": "7"}, Grant("Ray", is_none=True)
    visible = written(environ, grant=none)
    for grant, expected in ((Grant("Ray", visible="2"), listing(2)), (none, "-1")):
        visible.refresh(MACHINE, grant)
        assert environ[VISIBLE] == expected
    environ[VISIBLE] = "1"
    visible.refresh(MACHINE, Grant("Ray"))
    assert environ[VISIBLE] == listing(1)


def test_an_engines_numbers_are_positions_on_the_bus():
    mixed, by_bus = inventory(gpu(0), gpu(1, name="NVIDIA A100"), gpu(2)), Grant("Slurm", counts_by_bus=True)
    environ = {VISIBLE: "1,2"}
    written(environ, "1,2", machine=mixed, grant=by_bus)
    assert (environ[VISIBLE], environ[CUDA_DEVICE_ORDER]) == (listing(2, 1), "PCI_BUS_ID")
    # The script's own numbers are meant as CUDA counts, which only CUDA knows here.
    environ = {VISIBLE: "1,2"}
    written(environ, machine=mixed, grant=by_bus)
    assert environ == {VISIBLE: "1,2"}
