"""The list of GPUs in CUDA_VISIBLE_DEVICES: the value that CUDA reads, and the value that the script finds."""

import pytest

from autogpu.devices.model import UnreadableDevice
from autogpu.engines.model import LONE_RANK, NO_ENGINE, Denial, Grant, LocalRank
from autogpu.policy import Policy
from autogpu.selection.decision import Decision, Reason, Verdict
from autogpu.selection.model import VisibleSpec
from autogpu.selection.visible_devices import Order, initial_visibility
from autogpu.variables import CUDA_DEVICE_ORDER as ORDER
from autogpu.variables import CUDA_VISIBLE_DEVICES as VISIBLE
from autogpu.variables import ORIGINAL_VISIBLE_DEVICES as ORIGINAL
from autogpu.variables import SHOWN_VISIBLE_DEVICES as SHOWN
from autogpu.variables import WRITTEN_VISIBLE_DEVICES as WRITTEN
from autogpu.visibility import GpuList
from tests.support.fakes import FakeCuda
from tests.support.values import gpu, inventory

MACHINE = inventory(gpu(0), gpu(1, pids=[7], used_gib=9), gpu(2))


def listing(*indices):
    return ",".join(gpu(index).uuid for index in indices)


class Listed(GpuList):
    """A GpuList that has written its list into ``environ``.

    Args:
        started_with: The value of CUDA_VISIBLE_DEVICES at the start of the process.
        options: ``cuda``, ``grant``, ``how`` ("chosen" if the list has only the idlest GPUs), and policy keys.
    """

    def __init__(self, environ, started_with=None, *, machine=MACHINE, **options):
        self.environ, self.for_cuda = environ, started_with
        initial = initial_visibility(environ, started_with)
        cuda, grant, how = options.pop("cuda", FakeCuda()), options.pop("grant", NO_ENGINE), options.pop("how", "pool")
        super().__init__(Policy(**options), environ, initial, cuda, grant, write_for_cuda=self._note)
        self.lists_chosen = how == "chosen"
        self.list_gpus(machine)

    def _note(self, value):
        self.for_cuda = value

    @property
    def seen(self):
        """The value that CUDA reads, and the value that the script finds."""
        return self.for_cuda, self.environ.get(VISIBLE)


LOCKED = {"exclude": ("1",), "locked": frozenset({"select.exclude"})}
OF_TWO = Grant(rank=LocalRank(0, 2, "MPICH"))
LONE = Grant(rank=LocalRank(1, 2, LONE_RANK, job="ranks.1"))
NONE = Grant("Slurm", Denial.SLURM_GRANTED_NONE)
NARROWED = {WRITTEN: listing(1, 0), ORIGINAL: "0,1", VISIBLE: "0,1"}
UUIDS = f"{gpu(0).uuid},{gpu(2).uuid}"


@pytest.mark.parametrize(
    ("found", "environ", "options", "for_cuda", "shown"),
    [
        pytest.param(None, {}, {}, listing(2, 0, 1), None, id="idlest-first-and-only-for-cuda"),
        pytest.param(None, {}, {"exclude": ("0-2",)}, "-1", "-1", id="none-if-all-are-excluded"),
        pytest.param(None, {}, {"exclude": ("2",)}, listing(0, 1), "0,1", id="numbers-if-some-are-excluded"),
        pytest.param(None, {}, {"how": "chosen"}, listing(2), "2", id="number-of-the-chosen-gpu"),
        pytest.param("0,1,2", {}, {}, listing(2, 0, 1), "0,1,2", id="a-shells-list-is-not-rewritten"),
        pytest.param("2,0", {}, {"grant": OF_TWO}, listing(2, 0), "2,0", id="ranks-keep-the-pools-order"),
        pytest.param("0,1,2", {}, LOCKED, listing(2, 0), "2,0", id="locked-exclude-in-a-shells-list"),
        pytest.param(UUIDS, {}, {"how": "chosen"}, listing(2), listing(2), id="uuids-if-the-shell-wrote-uuids"),
        pytest.param("0,1", NARROWED, {"grant": LONE}, listing(1, 0), "0,1", id="lone-rank-keeps-its-parents-order"),
        pytest.param("", {}, {}, "", "", id="an-empty-list-is-left-alone"),
        pytest.param("2", {}, {}, "2", "2", id="a-list-of-one-is-left-alone"),
        pytest.param(None, {VISIBLE: "1,2"}, LOCKED, listing(2), "2", id="locked-exclude-in-the-scripts-list"),
        pytest.param(None, {VISIBLE: "1,2"}, {"how": "chosen"}, listing(2), "2", id="chosen-gpu-of-the-scripts-list"),
        pytest.param(
            "0,2", {VISIBLE: "1"}, {"script": "override"}, listing(2, 0), "2,0", id="override-of-the-scripts-list"
        ),
        pytest.param(None, {VISIBLE: "1"}, {"grant": NONE}, "1", "1", id="scripts-list-if-nothing-was-granted"),
        pytest.param(None, {}, {"grant": NONE}, "-1", "-1", id="none-if-nothing-was-granted"),
        pytest.param(None, {}, {"grant": Grant("Ray", visible="1")}, listing(1), "1", id="grant-without-a-list"),
        pytest.param(None, {ORDER: "FASTEST_FIRST"}, {"exclude": ("2",)}, listing(0, 1), listing(0, 1), id="own-order"),
    ],
)
def test_cuda_reads_the_ordered_pool_and_the_script_finds_its_own_form(found, environ, options, for_cuda, shown):
    environ = {**({} if found is None else {VISIBLE: found}), **environ}
    visible = Listed(environ, found, **options)
    assert visible.seen == (for_cuda, shown)
    # A child process starts with one of these two values. From either value it recognizes its parent's list.
    if environ.get(WRITTEN):
        children = [initial_visibility(environ, value) for value in visible.seen]
        assert {child.parents_list for child in children} == {for_cuda}


ONE = inventory(gpu(0))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"machine": None}, id="no-reading"),
        pytest.param({"count": 0}, id="count-0"),
        pytest.param({"cuda": FakeCuda([gpu(0)], initialised=True)}, id="cuda-has-started"),
        pytest.param({"machine": inventory(gpu(0, mig_enabled=True))}, id="mig"),
        pytest.param({"machine": inventory()}, id="no-gpu"),
        pytest.param({"machine": ONE}, id="one-gpu"),
    ],
)
def test_no_gpu_list_is_written_if_it_would_not_help(options):
    visible = Listed({}, **options)
    visible.show_claimed(ONE)
    assert (*visible.seen, visible.environ.get(ORDER)) == (None, None, None)


def test_the_pool_is_known_if_an_engine_granted_none_of_it():
    visible = Listed({}, grant=NONE).visible
    assert set(visible.hidden) == {gpu(index).uuid for index in range(3)}
    assert visible.order is Order.FOREIGN


@pytest.mark.parametrize(
    ("found", "order", "shown", "shown_order"),
    [
        pytest.param(None, None, "2,0,1", "PCI_BUS_ID", id="no-list"),
        pytest.param(None, "PCI_BUS_ID", "2,0,1", "PCI_BUS_ID", id="same-device-order"),
        pytest.param(None, "FASTEST_FIRST", None, "FASTEST_FIRST", id="device-order-of-the-user"),
        pytest.param("0,1,2", None, "0,1,2", None, id="list-of-the-shell"),
    ],
)
def test_script_finds_gpu_numbers_once_the_process_has_claimed(found, order, shown, shown_order):
    given = {VISIBLE: found, ORDER: order}
    environ = {name: value for name, value in given.items() if value is not None}
    visible = Listed(environ, found)
    assert {name: environ.get(name) for name in given} == given
    visible.show_claimed(MACHINE)
    assert (visible.seen, environ.get(ORDER)) == ((listing(2, 0, 1), shown), shown_order)
    assert visible.environ_without_autogpu().get(VISIBLE) == found
    # A child process starts with one of these two values. From either it finds the value without autogpu.
    assert [initial_visibility(environ, value).value for value in visible.seen] == [found, found]


def test_gpu_list_is_written_as_soon_as_there_is_a_reading():
    visible = Listed({}, machine=None)
    assert visible.follow(MACHINE, NO_ENGINE)
    assert visible.seen == (listing(2, 0, 1), None)


def test_list_with_a_lost_card_is_kept_for_cuda_and_not_shown():
    visible, lost = Listed({}), inventory(gpu(0), gpu(1), unreadable=(UnreadableDevice(2, "GPU is lost"),))
    decision = Decision(Verdict.TAKE, Reason.IDLEST, ordinals=(1,), visible=(None, gpu(0), gpu(1)))
    assert visible.list_claimed(lost, decision, (), is_parents=False) == ()
    visible.show_claimed(lost)
    assert visible.seen == (listing(0, 2, 1), None)


# Values that the script or an engine sets


def test_list_that_the_script_set_before_the_import_is_its_own():
    visible = Listed({VISIBLE: "1"})
    assert (visible.visible.spec, visible.environ[VISIBLE]) == (VisibleSpec("1", is_scripts=True), "1")
    assert visible.environ_without_autogpu()[VISIBLE] == "1"
    assert visible.visible.order is Order.FOREIGN


def test_list_that_the_script_set_after_the_import_is_followed():
    environ = {VISIBLE: "0,2"}
    visible = Listed(environ, "0,2")
    assert visible.environ_without_autogpu()[VISIBLE] == "0,2", "what this process was started with"
    environ[VISIBLE] = "1"
    assert visible.environ_without_autogpu()[VISIBLE] == "1"
    assert visible.follow(MACHINE, NO_ENGINE)
    assert (visible.visible.spec, visible.seen) == (VisibleSpec("1", is_scripts=True), ("1", "1"))
    assert initial_visibility(environ, "1").parents_list is None


def test_a_list_that_the_script_changed_and_put_back_is_written_again():
    visible = Listed({})
    visible.for_cuda = None  # by `os.environ[...] = "0"` and `del os.environ[...]`
    assert not visible.follow(MACHINE, NO_ENGINE)
    assert visible.seen == (listing(2, 0, 1), None)


def test_list_that_os_reload_environ_shows_is_not_the_scripts_own():
    visible = Listed({}, None)
    visible.environ[VISIBLE] = visible.for_cuda
    assert not visible.follow(MACHINE, NO_ENGINE)
    assert visible.environ_without_autogpu().get(VISIBLE) is None
    visible.show_claimed(MACHINE)
    assert visible.seen == (listing(2, 0, 1), "2,0,1")


def test_device_order_that_the_script_sets_is_kept():
    visible = Listed({})
    visible.environ[ORDER] = "FASTEST_FIRST"
    visible.show_claimed(MACHINE)
    assert (visible.seen, visible.environ[ORDER]) == ((listing(2, 0, 1), None), "FASTEST_FIRST")


def test_list_that_the_script_sets_for_its_children_is_kept():
    visible = Listed({}, cuda=FakeCuda([gpu(0)]))
    visible.environ[VISIBLE] = "-1"
    visible.list_for_children(visible.visible.pool[::-1])
    assert (visible.environ[VISIBLE], visible.environ[WRITTEN]) == ("-1", listing(2, 0, 1))


def test_child_reads_the_device_order_that_its_parent_found():
    environ = {}
    Listed(environ).show_claimed(MACHINE)
    child = initial_visibility(environ, environ[VISIBLE])
    assert (child.order, child.shown) == (None, {VISIBLE: "2,0,1", ORDER: "PCI_BUS_ID"})


def test_list_that_the_script_set_after_cudas_start_is_kept():
    environ, cuda = {}, FakeCuda([gpu(2), gpu(0), gpu(1)])
    visible = Listed(environ, cuda=cuda)
    cuda.initialise()
    visible.follow(MACHINE, NO_ENGINE)
    assert not visible.has_changed
    environ[VISIBLE] = "1"
    visible.follow(MACHINE, NO_ENGINE)
    visible.show_claimed(MACHINE)
    assert (visible.has_changed, environ[VISIBLE]) == (True, "1")


def test_override_restores_an_inherited_list_that_only_cuda_can_resolve():
    environ, mixed = {VISIBLE: "1"}, inventory(gpu(0), gpu(1, name="NVIDIA A100"), gpu(2))
    assert Listed(environ, "0,2", script="override", machine=mixed).seen == ("0,2", "0,2")


@pytest.mark.parametrize(("environ", "started_with", "original"), [({VISIBLE: "1,2"}, "0", "1,2"), ({}, None, None)])
def test_variables_left_by_an_ancestor_are_replaced(environ, started_with, original):
    environ = {**environ, ORIGINAL: "0", SHOWN: "5"}
    Listed(environ, started_with, how="chosen")
    assert (environ.get(ORIGINAL), environ[SHOWN]) == (original, "2")


def test_list_follows_the_grant_of_each_task():
    environ, none = {"RAY_RAYLET_PID": "7"}, Grant("Ray", Denial.RAY_ASSIGNED_NONE)
    visible = Listed(environ, grant=none)
    for grant, for_cuda, shown in ((Grant("Ray", visible="2"), listing(2), "2"), (none, "-1", "-1")):
        visible.follow(MACHINE, grant)
        assert visible.seen == (for_cuda, shown)
    environ[VISIBLE] = "1"
    visible.follow(MACHINE, Grant("Ray"))
    assert visible.seen == ("1", "1")


def test_gpu_numbers_of_an_engine_are_indices_in_pci_bus_order():
    mixed, by_bus = inventory(gpu(0), gpu(1, name="NVIDIA A100"), gpu(2)), Grant("Slurm", counts_by_bus=True)
    environ = {VISIBLE: "1,2"}
    assert Listed(environ, "1,2", machine=mixed, grant=by_bus).seen == (listing(2, 1), "1,2")
    assert environ[ORDER] == "PCI_BUS_ID"
    # The script's own numbers are in CUDA's order, which only CUDA can report for cards of several models.
    environ = {VISIBLE: "1,2"}
    assert Listed(environ, machine=mixed, grant=by_bus).seen == ("1,2", "1,2")
    assert ORDER not in environ


@pytest.mark.parametrize(
    ("engine", "for_cuda"),
    [pytest.param("Ray", listing(0, 1, 2), id="ray"), pytest.param("Slurm", listing(0, 2, 1), id="slurm")],
)
def test_gpus_of_ranks_come_first_except_under_ray(engine, for_cuda):
    listed = Listed({VISIBLE: "0,1,2"}, "0,1,2", grant=Grant(engine, rank=LocalRank(0, 2, "torchrun")))
    claimed = Decision(Verdict.TAKE, Reason.IDLEST, of_ranks=(gpu(0).uuid, gpu(2).uuid))
    listed.list_claimed(MACHINE, claimed, (0,), is_parents=False)
    assert listed.seen == (for_cuda, "0,1,2")
