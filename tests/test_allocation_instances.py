"""A process on a server with MIG instances: its claim before CUDA starts, and the list that CUDA reads."""

from contextlib import nullcontext

import pytest

from autogpu.frozen import replace
from autogpu.text import GIB
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE_DIR
from tests.support.fakes import FakeDriver, FakeFramework, FirstGpusFramework
from tests.support.holders import other_job
from tests.support.values import cut, gpu

R535, R570 = "535.104.05", "570.86.15"
CUT = cut(0, 5, 5, 5)
ONE = cut(0, 5)
MIXED = (*cut(0, 20, 5), gpu(1, total_gib=40.0), gpu(2, total_gib=40.0))


@pytest.fixture
def process(started):
    """Return a function that imports a framework in a process with these GPUs, of which CUDA shows ``counted``.

    ``FirstGpusFramework`` starts CUDA only in autogpu's hooks.
    """

    def process(*devices, counted=(), version=R535, **options):
        return started(driver=FakeDriver(*devices, driver_version=version), counted=of_cuda(*counted), **options)

    return process


def of_cuda(*devices):
    """Return the devices with the UUIDs of the CUDA driver, which begin with ``GPU-`` for an instance as well."""
    return [replace(device, uuid="GPU-" + device.uuid[4:]) for device in devices]


@pytest.fixture
def other(tmp_path):
    """Return a function that starts another job, which claims 1 GiB on each given device; without devices, no job."""
    environ = {LEASE_DIR: str(tmp_path)}
    return lambda *devices: other_job(environ, {d.uuid: GIB for d in devices}) if devices else nullcontext()


def ranks(process, *devices, size, **options):
    named = ["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"]
    job = [process(*devices, **dict(zip(named, (str(rank), str(size)))), **options) for rank in range(size)]
    for rank in job:
        rank.framework.on_listing()
    return job


NO_INSTANCE = [
    "no GPU for this process, Fakeflow starts on CPU: no GPU is suitable; policy: defaults",
    "GPU 0: in MIG mode, and has no instance here",
]
FIRST_TWO = {CUDA_VISIBLE_DEVICES: f"{CUT[1].uuid},{CUT[2].uuid}"}


@pytest.mark.parametrize(
    ("devices", "options", "others", "listed", "held"),
    [
        pytest.param(CUT, {}, [], "0:2", "0:2", id="idlest-instance-only"),
        pytest.param(CUT, {}, [CUT[3]], "0:1", "0:1", id="unclaimed-instance"),
        pytest.param(CUT, {"version": R570}, [], "0:2 0:1 0:0", "", id="since-r570-all-instances"),
        pytest.param(CUT, FIRST_TWO, [], "0:1", "0:1", id="idlest-of-an-inherited-list"),
        pytest.param(ONE, {}, [], "", "", id="single-instance"),
        pytest.param(MIXED, {}, [], "2 1", "2", id="claimed-card-first"),
        pytest.param(MIXED, {}, MIXED[3:], "0:0", "0:0", id="instance-if-the-cards-are-claimed"),
        pytest.param(MIXED, {"version": R570}, [], "2 1 0:0 0:1", "", id="since-r570-cards-and-instances"),
        pytest.param(MIXED, {"AUTOGPU_COUNT": "2"}, [], "2 1", "1 2", id="count-2-takes-whole-cards"),
        pytest.param(MIXED, {"AUTOGPU_VISIBLE": "chosen"}, [], "2", "2", id="visible-chosen-hides-the-other-card"),
    ],
)
def test_import_claims_nothing_and_a_listing_claims_if_needed(process, other, devices, options, others, listed, held):
    with other(*others):
        mine = process(*devices, **options)
        assert mine.held == ""
        mine.framework.on_listing()
    assert (mine.listed, mine.held, mine.lines) == (listed, held, [])


@pytest.mark.parametrize(
    ("devices", "environ", "lines"),
    [
        pytest.param(CUT, {"AUTOGPU_COUNT": "0"}, [], id="count-0"),
        pytest.param(cut(0), {}, NO_INSTANCE, id="card-in-mig-mode-without-instances"),
    ],
)
def test_process_without_a_gpu_claims_and_lists_nothing(process, devices, environ, lines):
    mine = process(*devices, **environ)
    mine.framework.take()
    assert (mine.environ.get(CUDA_VISIBLE_DEVICES), mine.held, mine.lines) == (None, "", lines)


def test_instance_that_was_claimed_at_the_listing_is_taken(process):
    mine = process(*CUT, counted=[CUT[3]])
    mine.framework.on_listing()
    written = mine.holders
    assert mine.framework.take().ordinals == (0,)
    assert (mine.held, mine.holders) == ("0:2", written)
    assert mine.lines == [
        "GPU 0:2 (NVIDIA A100 MIG 1g.5gb, 5.0 of 5.0 GiB free): the idlest of 3; memory allocated as needed"
    ]


@pytest.mark.parametrize("kind", [FakeFramework, FirstGpusFramework])
def test_single_instance_is_claimed_only_at_the_context(process, kind):
    mine = process(*ONE, counted=ONE[1:], kind=kind)
    assert mine.held == ""
    assert mine.framework.take().ordinals == (0,)
    assert mine.held == "0:0"


@pytest.mark.parametrize(
    ("options", "counted", "ordinals", "listed"),
    [
        pytest.param({"kind": FirstGpusFramework}, [CUT[2]], (0,), "0:1", id="before-r570-one-instance"),
        pytest.param({"version": R570}, [CUT[3], CUT[2], CUT[1]], (1,), "0:2 0:1 0:0", id="since-r570-every-instance"),
    ],
)
def test_context_claims_an_instance_that_is_free_at_that_time(process, other, options, counted, ordinals, listed):
    mine = process(*CUT, counted=counted, **options)
    with other(CUT[3]):
        assert mine.framework.take().ordinals == ordinals
        assert (mine.listed, mine.held) == (listed, "0:1")


@pytest.mark.parametrize(
    ("written", "counted", "shown", "held"),
    [
        pytest.param(FIRST_TWO[CUDA_VISIBLE_DEVICES], CUT[2], CUT[2].uuid, "0:1", id="several-entries-are-a-pool"),
        pytest.param(CUT[1].uuid[:18], CUT[1], CUT[1].uuid[:18], "0:0", id="single-entry-is-not-rewritten"),
    ],
)
def test_gpu_list_of_a_script_is_a_pool_if_it_has_several_entries(process, written, counted, shown, held):
    mine = process(*CUT, kind=FirstGpusFramework, counted=[counted])
    mine.environ[CUDA_VISIBLE_DEVICES] = written
    mine.framework.take()
    assert (mine.environ[CUDA_VISIBLE_DEVICES], mine.held) == (shown, held)


def test_claim_follows_the_instance_that_the_driver_shows(process):
    mine = process(*CUT, counted=[CUT[1]])
    mine.framework.take()
    assert mine.held == "0:0"


@pytest.mark.parametrize(
    ("size", "devices", "shown"),
    [
        # All ranks see the whole cards in one order, because scripts use their rank as an index.
        pytest.param(2, MIXED, ["1 2"] * 2, id="enough-whole-cards"),
        pytest.param(4, MIXED, ["0:0", "0:1", "1 2", "1 2"], id="cards-or-one-instance-for-each-rank"),
        pytest.param(2, CUT, ["0:1", "0:2"], id="one-instance-each"),
    ],
)
def test_each_rank_has_its_own_gpu(process, size, devices, shown):
    job = ranks(process, *devices, size=size)
    assert sorted(" ".join(sorted(rank.listed.split())) for rank in job) == shown
    assert len({device.uuid for rank in job for device in rank.allocation.decision.devices}) == size


@pytest.mark.parametrize(("size", "devices"), [(2, MIXED), (4, MIXED), (2, CUT)], ids=["cards", "both", "instances"])
def test_since_r570_all_ranks_list_instances_and_cards_in_one_order(process, size, devices):
    job = ranks(process, *devices, size=size, version=R570, counted=devices[1:])
    assert [rank.listed for rank in job] == [" ".join(device.label for device in devices[1:])] * size
    for rank in job:
        rank.framework.take()
    assert len({device.uuid for rank in job for device in rank.allocation.decision.devices}) == size


@pytest.mark.parametrize(
    ("gpus", "version", "workers"), [(CUT, R570, 3), (CUT, R535, 1), (MIXED, R535, 2), (MIXED, R570, 4)]
)
def test_workers_choose_together_if_one_list_has_a_gpu_for_each(process, gpus, version, workers):
    parent, begun = process(*gpus, version=version, kind=FirstGpusFramework), []
    for count in range(1, 5):
        begun += [count] if parent.framework.let_workers_choose(count) else []
    assert begun == list(range(2, workers + 1))


def test_worker_has_the_gpu_list_of_its_parent(process):
    parent = process(*MIXED, kind=FirstGpusFramework)
    environ = {name: value for name, value in parent.environ.items() if name.startswith(("CUDA", "AUTOGPU_ORIG"))}
    child = process(*MIXED, kind=FirstGpusFramework, LOCAL_RANK="1", **environ)
    assert child.listed == parent.listed == "2 1"
