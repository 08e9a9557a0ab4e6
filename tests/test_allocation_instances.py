"""A process on a server with MIG instances: what it claims before CUDA starts, and what CUDA is shown."""

from __future__ import annotations

import pytest

from autogpu.allocator import Allocator
from autogpu.frozen import replace
from autogpu.reporting.text import GIB
from autogpu.variables import CUDA_VISIBLE_DEVICES, WORKERS
from tests.support.fakes import FakeCuda, FakeDriver, FakeFramework
from tests.support.holders import other_job
from tests.support.processes import Process
from tests.support.values import cut, gpu, instance

R535, R570 = "535.104.05", "570.86.15"
CUT = cut(0, 5, 5, 5)
MIXED = (*cut(0, 20, 5), gpu(1, total_gib=40.0), gpu(2, total_gib=40.0))


class LateFramework(FakeFramework):
    """As PyTorch, which starts CUDA in our hooks alone."""

    TAKES_FIRST_GPUS = True
    WANTS_ORDER = True


def of_cuda(device):
    """As the CUDA driver calls it."""
    return replace(device, uuid="GPU-" + device.uuid[4:])


@pytest.fixture
def process(tmp_path):
    """Import a framework on these GPUs, in a process to which CUDA shows ``counted``."""
    processes = []

    def process(*devices, counted=(), version=R535, kind=FakeFramework, **environ):
        driver = FakeDriver(*devices, driver_version=version)
        each = Process(tmp_path, driver=driver, cuda=FakeCuda(list(map(of_cuda, counted))), **environ)
        each.framework = kind(each.cuda)
        each.allocation._frameworks.clear()
        each.allocator = Allocator(each.allocation, each.framework, each.cuda)
        processes.append(each.imports())
        return each

    yield process
    for each in processes:
        if each.allocation.lease:
            each.allocation.lease.release()


def listed(process):
    """What CUDA is shown, by the numbers of the GPUs."""
    known = {device.uuid: device.label for device in process.driver.now.devices}
    return [known[uuid] for uuid in process.environ[CUDA_VISIBLE_DEVICES].split(",")]


def held(process):
    known = {device.uuid: device.label for device in process.driver.now.devices}
    return sorted(known[uuid] for uuid in (process.allocation.lease.claims if process.allocation.lease else ()))


def device_of(process):
    return [device.uuid for device in process.allocation.decision.devices]


def test_the_idlest_instance_is_claimed_at_the_import_and_shown_alone(process):
    mine = process(*CUT, counted=[CUT[3]])
    assert (listed(mine), held(mine), mine.lines) == (["0:2"], ["0:2"], [])
    assert mine.framework.take().ordinals == (0,)
    assert held(mine) == ["0:2"]
    assert mine.lines == [
        "GPU 0:2 (NVIDIA A100 MIG 1g.5gb, 5.0 of 5.0 GiB free): the idlest of 3; "
        "memory allocated as needed; policy: defaults"
    ]


@pytest.mark.parametrize(
    ("gpus", "version", "workers"),
    [
        (CUT, R570, 3),
        (CUT, R535, 1),
        (MIXED, R535, 2),
        # More of them would include one that is shown its instance alone, and is told number 2.
        (MIXED, R570, 2),
    ],
)
def test_as_many_workers_choose_together_as_one_list_has_gpus_of_a_kind(process, gpus, version, workers):
    parent, begun = process(*gpus, version=version, kind=LateFramework), []
    for count in range(1, 5):
        parent.allocator.on_workers(count, 1)
        begun += [count] if WORKERS in parent.environ else []
        parent.allocator.on_workers_started()
    assert begun == list(range(1, workers + 1))


def test_an_instance_that_another_job_has_claimed_is_passed_over(process, tmp_path):
    with other_job({"AUTOGPU_LEASE_DIR": str(tmp_path)}, {CUT[3].uuid: 5 * GIB}):
        mine = process(*CUT)
    assert (listed(mine), held(mine)) == (["0:1"], ["0:1"])


def test_a_claim_that_is_not_used_yet_says_so_until_there_is_a_context(process):
    mine = process(*CUT, counted=[CUT[3]])
    assert [holder.is_unused for holder in mine.holders] == [True]
    mine.framework.take()
    assert [holder.is_unused for holder in mine.holders] == [False]


def test_a_framework_that_starts_cuda_in_our_hooks_claims_no_instance_at_its_import(process):
    mine = process(*CUT, counted=[CUT[3]], kind=LateFramework)
    assert (listed(mine), held(mine)) == (["0:2"], [])
    with other_job(mine.environ, {CUT[3].uuid: 5 * GIB}):
        mine.cuda._devices = (of_cuda(CUT[2]),)
        assert mine.framework.take().ordinals == (0,)
        assert (listed(mine), held(mine)) == (["0:1"], ["0:1"])


def test_of_whole_cards_beside_instances_all_are_shown_the_claimed_one_first(process):
    mine = process(*MIXED, counted=[MIXED[4], MIXED[3]])
    assert (listed(mine), held(mine)) == (["2", "1"], ["2"])


def test_an_instance_is_taken_where_the_cards_are_others(process, tmp_path):
    with other_job({"AUTOGPU_LEASE_DIR": str(tmp_path)}, {gpu(1).uuid: GIB, gpu(2).uuid: GIB}):
        mine = process(*MIXED)
    assert (listed(mine), held(mine)) == (["0:0"], ["0:0"])


def test_two_gpus_are_whole_cards(process):
    mine = process(*MIXED, AUTOGPU_COUNT="2")
    assert (sorted(listed(mine)), held(mine)) == (["1", "2"], ["1", "2"])


def test_no_gpu_wanted_claims_and_lists_nothing(process):
    mine = process(*CUT, AUTOGPU_COUNT="0")
    assert (mine.environ.get(CUDA_VISIBLE_DEVICES), held(mine)) == (None, [])


@pytest.mark.parametrize("kind", [FakeFramework, LateFramework])
def test_one_instance_alone_needs_no_claim_before_there_is_a_context(process, kind):
    mine = process(*cut(0, 5), counted=[instance()], kind=kind)
    assert held(mine) == []
    assert mine.framework.take().ordinals == (0,)
    assert held(mine) == ["0:0"]


def test_of_an_inherited_list_of_instances_the_idlest_is_the_first_that_cuda_shows(process):
    mine = process(*CUT, CUDA_VISIBLE_DEVICES=f"{CUT[1].uuid},{CUT[2].uuid}")
    assert (listed(mine), held(mine)) == (["0:1"], ["0:1"])


def test_since_r570_instances_are_listed_as_cards_are_and_an_import_claims_none(process):
    mine = process(*CUT, version=R570, counted=[CUT[3], CUT[2], CUT[1]])
    assert (listed(mine), held(mine)) == (["0:2", "0:1", "0:0"], [])
    with other_job(mine.environ, {CUT[3].uuid: 5 * GIB}):
        assert mine.framework.take().ordinals == (1,)
        assert held(mine) == ["0:1"]


def test_since_r570_a_script_finds_whole_cards_and_instances(process):
    mine = process(*MIXED, version=R570)
    assert (listed(mine), held(mine)) == (["2", "1", "0:0", "0:1"], [])


def test_a_list_that_a_script_has_written_is_a_pool_as_well(process):
    mine = process(*CUT, kind=LateFramework, counted=[CUT[2]])
    mine.environ[CUDA_VISIBLE_DEVICES] = f"{CUT[1].uuid},{CUT[2].uuid}"
    mine.framework.take()
    assert (listed(mine), held(mine)) == (["0:1"], ["0:1"])


def test_the_one_instance_that_a_script_names_stays_in_its_words(process):
    mine = process(*CUT, kind=LateFramework, counted=[CUT[1]])
    mine.environ[CUDA_VISIBLE_DEVICES] = CUT[1].uuid[:18]
    mine.framework.take()
    assert (mine.environ[CUDA_VISIBLE_DEVICES], held(mine)) == (CUT[1].uuid[:18], ["0:0"])


def test_a_policy_for_what_is_chosen_shows_no_other_card(process):
    assert listed(process(*MIXED, AUTOGPU_VISIBLE="chosen")) == ["2"]


@pytest.mark.parametrize(
    ("version", "size", "devices", "shown"),
    [
        # Whole cards are shown to all ranks in one order, since scripts count them by their rank.
        pytest.param(R535, 2, MIXED, [["1", "2"]] * 2, id="enough-whole-cards-before-R570"),
        pytest.param(R570, 2, MIXED, [["1", "2"]] * 2, id="enough-whole-cards"),
        pytest.param(R535, 4, MIXED, [["0:0"], ["0:1"], ["1", "2"], ["1", "2"]], id="one-kind-is-shown-before-R570"),
        pytest.param(R570, 4, MIXED, [["0:0", "0:1", "1", "2"]] * 4, id="cards-and-instances"),
    ],
)
def test_ranks_have_a_gpu_each(process, version, size, devices, shown):
    named = ["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"]
    ranks = [process(*devices, version=version, **dict(zip(named, (str(rank), str(size))))) for rank in range(size)]
    assert sorted(sorted(listed(rank)) for rank in ranks) == shown
    assert len({uuid for rank in ranks for uuid in device_of(rank)}) == size


@pytest.mark.parametrize(
    ("version", "shown"), [(R535, [["0:1"], ["0:2"]]), (R570, [["0:1", "0:2"], ["0:1", "0:2"]])], ids=["535", "570"]
)
def test_ranks_on_instances_count_each_others_where_cuda_shows_several(process, version, shown):
    named = ["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"]
    ranks = [process(*CUT, version=version, **dict(zip(named, (str(rank), "2")))) for rank in range(2)]
    assert [listed(rank) for rank in ranks] == shown


def test_a_card_in_mig_mode_without_instances_is_said_to_be_the_reason(process):
    mine = process(*cut(0))
    mine.framework.take()
    assert mine.environ.get(CUDA_VISIBLE_DEVICES) is None
    assert mine.lines == [
        "no GPU for this process, Fakeflow starts on CPU: "
        "no GPU is suitable (GPU 0: in MIG mode, and has no instance here); policy: defaults"
    ]


def test_a_driver_that_shows_another_instance_than_the_claimed_one_is_followed(process):
    mine = process(*CUT, counted=[CUT[1]])
    mine.framework.take()
    assert held(mine) == ["0:0"]


def test_a_worker_counts_what_its_parent_has_listed(process):
    parent = process(*MIXED, kind=LateFramework)
    environ = {name: value for name, value in parent.environ.items() if name.startswith(("CUDA", "AUTOGPU_ORIG"))}
    child = process(*MIXED, kind=LateFramework, LOCAL_RANK="1", **environ)
    assert listed(child) == listed(parent) == ["2", "1"]
