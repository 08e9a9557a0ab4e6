"""Allocation of GPUs to one process, with a fake driver, a fake framework and real leases."""

import json
import re

import pytest

from autogpu.caps import Cap, CapCause, within_context
from autogpu.devices.model import NVLINK, FailureCause
from autogpu.errors import NoEligibleDevice
from autogpu.frameworks.model import DeviceRequest
from autogpu.text import GIB, MIB
from autogpu.variables import CUDA_VISIBLE_DEVICES
from tests.support.fakes import FakeDriver, FirstGpusFramework
from tests.support.holders import claims_on, other_job
from tests.support.processes import in_a_fork
from tests.support.values import gpu

BUSY = gpu(0, pids=[7], used_gib=9, busy=90)
TWO = (gpu(0), gpu(1))
THREE = (BUSY, gpu(1), gpu(2))
ALL = 24 * 1024
NO_DRIVER = FailureCause.NO_DRIVER


# Assignments


def case(rule, gpus, options, said=None, **expected):
    """Return a row of the table.

    Args:
        said: Fields of the framework's request.
        expected: Fields of the assignment; ``claims`` in MiB, keyed by GPU index; printed lines ``first``, ``more``.
    """
    return pytest.param(gpus, options, said or {}, expected, id=rule)


FREE = "GPU 2 (NVIDIA TITAN RTX, 24.0 of 24.0 GiB free): the idlest of 3; memory allocated as needed"
NONE = "no GPU for this process, Fakeflow starts on CPU: select.count is 0; policy: AUTOGPU_COUNT"
IMPOSSIBLE_QUIETLY = {"AUTOGPU_NEED": "99GiB", "AUTOGPU_LEVEL": "quiet"}
IMPOSSIBLE = "no GPU for this process, Fakeflow starts on CPU: no GPU is suitable; policy: AUTOGPU_NEED, AUTOGPU_LEVEL"
EXPLAINED = [
    "for more GPUs: AUTOGPU_COUNT=2",
    "policy: AUTOGPU_LEVEL",
    "  GPU 1: taken: free, 0 % busy, 24.0 of 24.0 GiB free",
    "  GPU 0: choice 2: busy, pid 7 (no claim), 90 % busy, 15.0 of 24.0 GiB free",
]
ONE, FULL = [gpu(0)], [gpu(0, pids=[7], used_gib=14, busy=90)]
BESIDE = within_context(10 * GIB)
LIMIT = {"AUTOGPU_LIMIT": "2GiB"}
TWO_LIMITED = {**LIMIT, "AUTOGPU_COUNT": "2", "AUTOGPU_GROWTH": "0"}
LIMITED = {"cap_bytes": dict.fromkeys(range(3), 2 * GIB), "claims": {2: 2048 + 512, 1: 2048 + 512}}
OF_PROCESS = {"AUTOGPU_LIMIT": "4GiB", "AUTOGPU_LIMIT_INCLUDES": "process"}
LARGE_CONTEXT = {**OF_PROCESS, "contexts": {"context_bytes": 700 * MIB}}
TWICE = {"limits": (4 * GIB,), "named": 2, "logical": 2}


@pytest.mark.parametrize(
    ("gpus", "options", "said", "expected"),
    [
        case("idlest-gpu", THREE, {}, ordinals=(0,), growth=True, cap_bytes={}, claims={2: ALL}, first=FREE),
        case("two-gpus-with-a-limit", THREE, TWO_LIMITED, ordinals=(0, 1), growth=None, **LIMITED),
        case("limit-on-the-process", ONE, LARGE_CONTEXT, cap_bytes={0: (4096 - 700 - 256) * MIB}, claims={0: 4096}),
        case("explain-adds-a-line-per-gpu", THREE[:2], {"AUTOGPU_LEVEL": "explain"}, more=EXPLAINED),
        case("quiet-prints-nothing", ONE, {"AUTOGPU_LEVEL": "quiet"}, claims={0: ALL}, first=""),
        case(
            "quiet-prints-that-no-gpu-is-suitable",
            ONE,
            IMPOSSIBLE_QUIETLY,
            ordinals=(),
            claims={},
            first=IMPOSSIBLE,
            more=["GPU 0: 99.0 GiB needed, the GPU has 24.0 GiB"],
        ),
        case(
            "quiet-and-busy-cpu-print-nothing",
            ONE,
            {**IMPOSSIBLE_QUIETLY, "AUTOGPU_BUSY": "cpu"},
            ordinals=(),
            first="",
        ),
        case("count-0", ONE, {"AUTOGPU_COUNT": "0"}, ordinals=(), claims={}, first=NONE, more=[]),
        case("script-chooses-no-gpu", ONE, {}, {"chosen": ()}, ordinals=None, claims={}, first=""),
        case("scripts-limit", ONE, LIMIT, {"limits": (8 * GIB,)}, cap_bytes={0: 2 * GIB}, claims={0: 8192 + 512}),
        case("scripts-fraction", ONE, LIMIT, {"fraction": 0.25}, claims={0: 6144 + 512}),
        case("scripts-limit-on-one-of-two", TWO, {"AUTOGPU_COUNT": "2"}, {"limits": (GIB,)}, claims={0: ALL, 1: ALL}),
        case("two-logical-gpus-claim-twice-the-limit", TWO, {"AUTOGPU_COUNT": "1"}, TWICE, claims={1: 8192 + 512}),
        case(
            "fraction-is-capped-beside-others",
            FULL,
            {},
            {"fraction": 0.9},
            ceilings={0: Cap(BESIDE, CapCause.SHARED)},
            claims={0: 0},
        ),
        case("as-many-gpus-as-the-script-names", TWO, {}, {"named": 2}, claims={0: ALL, 1: ALL}),
        case("count-overrides-the-scripts-names", TWO, {"AUTOGPU_COUNT": "1"}, {"named": 2}, claims={1: ALL}),
    ],
)
def test_first_context_is_assigned_gpus_by_the_policy(started, gpus, options, said, expected):
    process = started(*gpus, **options)
    assigned = process.framework.take(**said)
    first, *more = process.lines or [""]
    found = {
        "claims": process.claims if process.holders else {},
        "first": first,
        "more": more,
        "cap_bytes": {ordinal: cap.bytes for ordinal, cap in assigned.caps.items()},
        "ordinals": assigned.ordinals,
        "growth": assigned.growth,
        "ceilings": assigned.ceilings,
    }
    assert {name: found[name] for name in expected} == expected


def test_context_decides_by_a_newer_reading_than_the_import(started):
    process = started(*TWO)
    process.driver.change(1, utilization_percent=99)
    # The import has used its reading to list the GPUs, so the context takes a new one.
    assert process.framework.take().ordinals == (1,)
    assert process.claims == {0: ALL}


def test_a_second_context_has_the_same_assignment_and_no_second_lease(started):
    process = started(*TWO)
    assert process.framework.take() is process.framework.take()
    assert (len(process.holders), len(process.lines)) == (1, 1)


def test_gpu_index_matches_nothing_if_count_is_0(started):
    process = started(*TWO, AUTOGPU_COUNT="0")
    for chosen in ((1,), None, (0, 1)):
        assert process.framework.take(chosen=chosen).ordinals == ()
    assert (list(process.holders), len(process.lines)) == ([], 1)


NAMES_NONE = "CUDA_VISIBLE_DEVICES=9 matches no GPU of this host, Fakeflow starts on CPU; valid indices: 0 to 1"
BROKEN = "Fakeflow sees no GPU: broken; if `nvidia-smi` fails too, tell the administrator"
SILENT = "Fakeflow sees no GPU: NVML timed out; perhaps the driver is just busy: try again when `nvidia-smi` answers"
DRIVERS = {
    "no-driver": lambda: FakeDriver.failing("no library", NO_DRIVER),
    "driver-fails": lambda: FakeDriver.failing("broken"),
    "driver-is-silent": FakeDriver.silent,
    "no-gpu": FakeDriver,
    "two-gpus": lambda: FakeDriver(*TWO),
}
FAULTS = {"driver-fails": BROKEN, "driver-is-silent": SILENT}


@pytest.mark.parametrize(
    ("value", "policy", "lines"),
    [
        pytest.param(None, {}, FAULTS, id="no-list"),
        pytest.param("0", {}, FAULTS, id="first-gpu"),
        pytest.param("9", {}, {**FAULTS, "two-gpus": NAMES_NONE}, id="unknown-number"),
        pytest.param("GPU-9", {}, {**FAULTS, "two-gpus": NAMES_NONE.replace("=9", "=GPU-9")}, id="unknown-uuid"),
        pytest.param("", {}, {}, id="list-hides-all"),
        pytest.param("-1", {}, {}, id="minus-one"),
        pytest.param("NoDevFiles", {}, {}, id="nodevfiles"),
        pytest.param("9", {"AUTOGPU_COUNT": "0"}, {}, id="count-0"),
        pytest.param("9", {"AUTOGPU_BUSY": "error"}, {**FAULTS, "two-gpus": NAMES_NONE}, id="busy-error"),
        pytest.param("9", {"AUTOGPU_LEVEL": "quiet"}, FAULTS, id="quiet"),
    ],
)
@pytest.mark.parametrize("driver", DRIVERS)
def test_process_without_gpus_reports_only_unexpected_causes(started, driver, value, policy, lines):
    environ = policy if value is None else {**policy, CUDA_VISIBLE_DEVICES: value}
    process = started(driver=DRIVERS[driver](), counted=(), **environ)
    assert process.framework.take() is None
    assert process.lines == [line for name, line in lines.items() if name == driver]


def test_message_names_the_engine_that_granted_no_gpu(started, tmp_path):
    (tmp_path / "slurm.conf").write_text("GresTypes=gpu\n")
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "0", "SLURM_CONF": str(tmp_path / "slurm.conf")}
    process = started(driver=FakeDriver(), counted=(), **slurm)
    assert process.framework.take() is None
    assert "Slurm granted no GPU here" in process.lines[0]


def test_ranks_other_than_the_first_are_silent(started):
    rank = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    process = started(*TWO, counted=TWO, **rank)
    assert (process.framework.take().ordinals, process.lines) == ((1,), [])


def test_gpu_list_that_is_set_after_cudas_start_is_reported(started):
    process = started(*TWO)
    process.cuda.initialise()
    process.environ[CUDA_VISIBLE_DEVICES] = "1"
    process.framework.take()
    assert process.lines[1].startswith("CUDA_VISIBLE_DEVICES=1 has no effect: CUDA had already read it")


def test_gpu_number_means_the_same_gpu_until_the_process_ends(started):
    process = started(*TWO)
    process.driver.change(0, utilization_percent=99)
    process.framework.prepare()
    process.framework.prepare()
    assert [process.framework.take(chosen=(1,)).moved for _ in range(2)] == [{1: 0, 0: 1}] * 2
    assert "the idlest of 2, numbered 1 in the script" in process.lines[0]


def test_gpu_number_that_does_not_exist_is_left_to_the_framework(started):
    assert started(gpu(0), gpu(1)).framework.assign(DeviceRequest(2, (1, 2))).ordinals is None


def test_child_counts_the_gpus_in_the_order_of_its_parent(started):
    parent = started(gpu(0), gpu(1), gpu(2))
    parent.framework.take(chosen=(2,))
    assert (parent.claims, parent.listed) == ({2: ALL}, "1 0 2")
    now = parent.driver.now.devices

    def work():
        child = started(*now, counted=(gpu(1), gpu(0), gpu(2)), **parent.environ)
        return child.framework.take(chosen=(2,)).ordinals, child.lines[0]

    ordinals, line = in_a_fork(work)
    assert (ordinals, "shared with the parent process" in line) == ((2,), True)


def test_gpu_list_of_a_script_keeps_its_order(started):
    process = started(gpu(0), gpu(1), gpu(2), counted=(gpu(0), gpu(1)))
    process.environ[CUDA_VISIBLE_DEVICES] = "0,1"
    assert process.framework.take(chosen=(0,)).ordinals == (1,)
    assert process.environ[CUDA_VISIBLE_DEVICES] == "0,1"
    assert "the idlest of 2 in the script's CUDA_VISIBLE_DEVICES" in process.lines[0]


def test_gpu_number_means_the_same_gpu_in_two_frameworks(started):
    process = started(gpu(0), gpu(1), gpu(2))
    other = process.imports_another()
    assert [framework.take(chosen=(2,)).ordinals for framework in (process.framework, other)] == [(0,), (0,)]
    assert process.claims == {2: ALL}


def test_gpu_number_is_not_moved_beside_a_framework_in_cudas_order(started):
    process = started(gpu(0), gpu(1), gpu(2))
    process.imports_another(kind=FirstGpusFramework)
    assert process.framework.take(chosen=(2,)).ordinals == (2,)
    assert (process.claims, process.listed) == ({0: ALL}, "2 1 0")


def test_tf_config_set_after_the_import_makes_the_process_a_rank(started):
    process = started(*TWO, counted=TWO)
    cluster = {"cluster": {"worker": ["a:1", "a:2"]}, "task": {"type": "worker", "index": 1}}
    process.environ["TF_CONFIG"] = json.dumps(cluster)
    process.framework.prepare()
    assert (process.framework.take().ordinals, process.listed) == ((1,), "0 1")


# The braces stand for the number of the rank.
HOROVOD = {"HOROVOD_GLOO_RENDEZVOUS_PORT": "4000", "HOROVOD_LOCAL_SIZE": "2", "HOROVOD_LOCAL_RANK": "{}"}
LISTED = {**HOROVOD, CUDA_VISIBLE_DEVICES: "0,1,2,3"}
MPIRUN = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "{}"}
IDLE_1_AND_3 = (BUSY, gpu(1), gpu(2, pids=[8], used_gib=9, busy=90), gpu(3))
BY_RANK, TWO_BY_RANK = [(0,), (1,)], [(0, 1), (2, 3)]
ONE_EACH = ([(1,), (3,)], [{1: ALL, 3: ALL}] * 2)
TWO_SHARED = ([(1, 3), (0, 2)], [{1: ALL, 3: ALL, 0: 0, 2: 0}] * 2)


@pytest.mark.parametrize(
    ("launcher", "named", "order", "expected"),
    [
        pytest.param(HOROVOD, BY_RANK, [0, 1], ONE_EACH, id="horovod"),
        pytest.param(HOROVOD, BY_RANK, [1, 0], ONE_EACH, id="horovod-second-rank-first"),
        pytest.param(MPIRUN, BY_RANK, [0, 1], ONE_EACH, id="mpirun"),
        pytest.param(LISTED, BY_RANK, [0, 1], ([None] * 2, [{0: ALL}, {1: ALL}]), id="inherited-list"),
        pytest.param(HOROVOD, TWO_BY_RANK, [0, 1], TWO_SHARED, id="two-idle-and-two-busy-gpus"),
    ],
)
def test_gpu_number_of_a_rank_is_an_index_into_its_jobs_gpus(started, launcher, named, order, expected):
    environs = [{name: value.format(number) for name, value in launcher.items()} for number in range(2)]
    ranks = [started(*IDLE_1_AND_3, counted=IDLE_1_AND_3, **environ) for environ in environs]
    assigned = {number: ranks[number].framework.take(chosen=named[number]).ordinals for number in order}
    indices = {device.uuid: device.index for device in IDLE_1_AND_3}
    leases = [rank.allocation.lease.claims for rank in ranks]
    claims = [{indices[uuid]: size // MIB for uuid, size in claimed.items()} for claimed in leases]
    assert ([assigned[0], assigned[1]], claims) == expected


def test_a_listing_claims_nothing_and_shows_the_pool(started):
    process = started(*TWO)
    process.cuda.initialise()
    listing = process.framework.listing()
    assert [each.attributes.name for each in listing] == ["NVIDIA TITAN RTX"] * 2
    assert listing[0].memory_bytes == int((ALL - 512) * MIB * 0.9)
    assert (process.framework.assignment, process.holders) == (None, ())
    assert started(gpu(0), AUTOGPU_COUNT="0").framework.listing() == ()


@pytest.mark.parametrize("visible", ["pool", "chosen"])
def test_best_connected_of_equally_idle_gpus_are_taken(started, visible):
    # NVLink connects GPU 0 with GPU 2 and GPU 1 with GPU 3. Without NVLink autogpu would take GPU 2 and GPU 3.
    nvlinks = {frozenset((gpu(one).uuid, gpu(one + 2).uuid)): NVLINK for one in range(2)}
    four, options = [gpu(index) for index in (3, 2, 1, 0)], {"AUTOGPU_COUNT": "2", "AUTOGPU_VISIBLE": visible}
    process = started(driver=FakeDriver(*four[::-1], topology=nvlinks), counted=four, **options)
    process.framework.take()
    assert set(process.claims) == {1, 3}


# Refuse, wait, share


def test_busy_error_raises_if_no_gpu_is_free(started):
    process = started(gpu(0), AUTOGPU_BUSY="error")
    with other_job(process.environ, claims_on(gpu(0))):
        with pytest.raises(NoEligibleDevice, match=r"claimed by other\.py"):
            process.framework.take()
        assert process.allocation.holding is None
    assert process.framework.take().ordinals == (0,), "the script may try again"


def test_a_job_waits_until_the_gpu_comes_free(started):
    process = started(gpu(0), AUTOGPU_BUSY="wait", AUTOGPU_WAIT="60s")
    with other_job(process.environ, claims_on(gpu(0))) as other:
        process.on_line = lambda line: other.end()
        assert process.framework.take().ordinals == (0,)
    assert process.lines[0].startswith("waiting for a GPU, place 1 in the queue, waited 0 s of 1 min: no GPU is free; ")
    assert process.claims == {0: ALL}


@pytest.mark.parametrize(("typed", "remedy"), [({}, "AUTOGPU_WAIT=1h"), ({"AUTOGPU_RUN_WAIT": "0"}, "--wait 1h")])
def test_a_wait_that_was_too_long_ends_the_script_with_status_75(started, capsys, typed, remedy):
    process = started(gpu(0), AUTOGPU_BUSY="wait", AUTOGPU_WAIT="0", **typed)
    with other_job(process.environ, claims_on(gpu(0))), pytest.raises(SystemExit) as ended:
        process.framework.take()
    assert ended.value.code == 75
    assert re.search(f"gave up after 0 s at place 1; to wait longer: {remedy};", capsys.readouterr().err)


# Children and forks


def in_bytes(caps):
    return {ordinal: cap.bytes for ordinal, cap in caps.items()}


@pytest.mark.parametrize(
    ("gpus", "policy", "caps"),
    [
        pytest.param(TWO, {}, {}, id="no-cap"),
        pytest.param(FULL, {}, {0: BESIDE}, id="parents-cap"),
        pytest.param(TWO, LIMIT, {0: 2 * GIB, 1: 2 * GIB}, id="policy-limit"),
    ],
)
def test_child_shares_its_parents_gpu_and_caps(started, gpus, policy, caps):
    parent = started(*gpus, **policy)
    assert in_bytes(parent.framework.take().caps) == caps
    now, counted = parent.driver.now.devices, parent.cuda.devices

    def work():
        inherited = {name: value for name, value in parent.environ.items() if name.startswith(("AUTOGPU_", "CUDA_"))}
        child = started(*now, counted=counted, **{**policy, **inherited})
        assigned = child.framework.take()
        return assigned.ordinals, in_bytes(assigned.caps), child.lines[0]

    ordinals, found, line = in_a_fork(work)
    assert (ordinals, found) == ((0,), caps)
    assert re.match(rf"GPU {gpus[-1].index}[ :]", line), line
    assert "shared with the parent process" in line


def test_fork_after_the_context_can_not_release_its_parents_lease(started):
    process = started(*TWO)
    process.framework.take()

    def work():
        process.allocation.lease.release()
        return process.framework.take().ordinals, len(process.holders)

    assert in_a_fork(work) == ((0,), 1)
    assert len(process.holders) == 1


def test_a_fork_before_the_context_chooses_for_itself(started):
    process = started(*TWO)
    with other_job(process.environ, claims_on(gpu(1))):
        assert in_a_fork(lambda: process.framework.take().ordinals) == (1,)
    assert process.framework.take().ordinals == (0,)
