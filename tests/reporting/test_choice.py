"""The sentences about a choice, once each. Tests of decisions compare values and repeat none of these."""

import pytest

from autogpu.devices.model import NO_READING, ComputeMode
from autogpu.engines.model import Denial, Grant, LocalRank
from autogpu.frozen import replace
from autogpu.reporting.choice import busy_remedy, idle_remedy, notes, why
from autogpu.selection.decision import Decision, ParentProcess, Reason, Verdict, left_alone
from autogpu.selection.model import LastRuns, VisibleSpec
from autogpu.text import GIB
from tests.support.selections import ME, claim, decided, request
from tests.support.values import DeviceFields, cut, gpu, inventory, unreadable

ONE = [gpu(0)]
TWO = [gpu(0), gpu(1)]
THREE = [gpu(0), gpu(1), gpu(2)]
POOL = [gpu(3), gpu(2), gpu(1), gpu(0)]
BUSY = gpu(0, pids=[7], used_gib=9, busy=90)
ONE_BUSY = [BUSY, *THREE[1:]]
SMALL = gpu(0, total_gib=8)
UNWELL: DeviceFields = {"remapping_failed": True}
INSTANCES = cut(0, 5, 5)
BY_SCRIPT = {"visible_spec": VisibleSpec("0", is_scripts=True)}
SLURM = {"grant": Grant("Slurm")}
MINE = {"held": {0: claim(24, uid=ME, age_s=60.0)}, "per_user": 1}
YOUNG = {"held": {0: claim(24)}}

ON_BUSY = "shared: pid 7 (no claim), 90 % busy"
ON_HELD = "shared: claimed by train.py (pid 7), 0 % busy"
HELD = "claimed by train.py (pid 7), 0 % busy, 24.0 of 24.0 GiB free"
CONTEXT = "because another library in this process already uses it"
AT_CAP = "you hold 1 GPU, limits.per_user allows 1"
SHARES = "shares a GPU whose jobs have run 1 min"
NOW = "to start now: AUTOGPU_WAIT=0"
TOO_SMALL = "GPU 1: 12.0 GiB needed, all memory is used or claimed; GPU 0: 12.0 GiB needed, the GPU has 8.0 GiB"
LEFT_OUT = "in MIG mode, and has no instance here"
ON_THE_CARD = "the others become logical GPUs on the same card"
UNWELL_0 = "not healthy, tell the administrator: GPU 0: row remapping failed"
HALF = "the only one granted by Ray, 50 % of the GPU"
NO_CARD = "a process can use only one MIG instance, and no whole GPU is left"


def sentence(rule, gpus, asked, expected):
    return pytest.param(gpus, asked, expected, id=rule)


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        sentence("only-one", ONE, {}, "the only one here"),
        sentence("only-one-of-devices", [gpu(1)], {"devices": ("1",)}, "the only one of select.devices"),
        sentence("only-one-not-excluded", ONE, {"exclude": ("1",)}, "the only one that select.exclude leaves"),
        sentence("idlest", [BUSY, gpu(1), gpu(2, busy=30)], {}, "the idlest of 3"),
        sentence("two", THREE, {"count": 2}, "the 2 idlest of 3"),
        sentence("all", THREE, {"count": "all"}, "all 3"),
        sentence("no-more", THREE, {"count": 5}, "all 3; select.count asks for 5 GPUs, but only 3 are available"),
        sentence(
            "fewer-are-free",
            ONE_BUSY,
            {"count": 3, "busy": "cpu"},
            "the 2 idlest of 3; select.count asks for 3 GPUs, but only 2 are free",
        ),
        sentence("shared", [BUSY, gpu(1, pids=[8], used_gib=20)], {}, f"the least busy of 2; {ON_BUSY}"),
        sentence(
            "four-of-six-shared",
            [gpu(index, pids=[7], used_gib=20) for index in range(6)],
            {"count": "all", "wait_s": 0.0},
            "all 6; shared: GPU 5: pid 7 (no claim), 0 % busy; GPU 4: pid 7 (no claim), 0 % busy; and 4 more",
        ),
        sentence("not-healthy", [gpu(0, **UNWELL)], {}, f"the only one here; {UNWELL_0}"),
        sentence(
            "one-of-two-not-healthy",
            [gpu(0), gpu(1, **UNWELL)],
            {"count": 2},
            "both; not healthy, tell the administrator: GPU 1: row remapping failed",
        ),
        sentence(
            "shared-and-not-healthy",
            [replace(BUSY, **UNWELL)],
            {},
            f"the only one here; {ON_BUSY}; {UNWELL_0}",
        ),
        sentence("list-of-the-script", TWO, BY_SCRIPT, "the idlest of 2 in the script's CUDA_VISIBLE_DEVICES"),
        sentence(
            "busy-gpu-in-the-scripts-list",
            [BUSY],
            {**BY_SCRIPT, "inventory": inventory(*ONE_BUSY)},
            "the only one in the script's CUDA_VISIBLE_DEVICES; GPU 1 and GPU 2 are free; "
            f"to use the idlest GPU: AUTOGPU_SCRIPT=override; {ON_BUSY}",
        ),
        sentence("scripts-number", POOL, {"numbers": (2,)}, "the idlest of 4, numbered 2 in the script"),
        sentence("scripts-numbers", POOL, {"numbers": (2, 0)}, "the 2 idlest of 4, numbered 2 and 0 in the script"),
        sentence("numbers-from-zero", POOL, {"numbers": (0,)}, "the idlest of 4"),
        sentence(
            "number-at-its-place",
            POOL,
            {"numbers": (2,), "keeps_places": True},
            "1 of 4, numbered 2 in the script",
        ),
        sentence(
            "number-of-a-gpu-with-a-context",
            POOL,
            {"numbers": (2,), "in_use": [2], "held": {1: claim(24)}},
            f"1 of 4, numbered 2 in the script, {CONTEXT}; GPU 3, GPU 2 and GPU 0 are free; {ON_HELD}",
        ),
        sentence("context-of-another-library", THREE, {"in_use": [0]}, f"1 of 3, {CONTEXT}"),
        sentence(
            "fewer-than-named",
            POOL,
            {"named_count": 2, "count_is_set": True},
            f"the idlest of 4; the script uses 2 GPUs, but select.count is 1: {ON_THE_CARD}",
        ),
        sentence(
            "cap-for-numbers",
            POOL,
            {"numbers": (0, 1), "per_user": 1},
            f"the idlest of 4; the script uses 2 GPUs, but the host's limits.per_user allows 1: {ON_THE_CARD}",
        ),
        sentence("at-the-cap-on-an-own-gpu", TWO, MINE, f"the least busy of 2; {ON_HELD}; {AT_CAP}"),
        sentence(
            "below-the-cap",
            THREE,
            {**MINE, "per_user": 2, "count": 2},
            "the idlest of 3; select.count asks for 2 GPUs, "
            "but the host's limits.per_user allows 2 and you hold 1 already",
        ),
        sentence(
            "script-asks-for-more",
            TWO,
            {"asked_count": 3},
            "both; the script asks for 3 GPUs, but only 2 are available",
        ),
        sentence(
            "script-asks-above-the-cap",
            THREE,
            {"asked_count": 2, "per_user": 1},
            "the idlest of 3; the script asks for 2 GPUs, but the host's limits.per_user allows 1",
        ),
        sentence(
            "one-instance-of-two",
            INSTANCES,
            {"count": 2},
            f"the idlest of 2; select.count asks for 2 GPUs, but {NO_CARD}",
        ),
        sentence(
            "shared-card-beside-a-free-instance",
            [*INSTANCES[:2], gpu(1, pids=[7], used_gib=4, busy=90)],
            {"count": 2},
            f"the least busy of 2; select.count asks for 2 GPUs, but only 1 is free; {ON_BUSY}; "
            "GPU 0:0 is free, but a process can use only one MIG instance",
        ),
        sentence("granted", ONE, {"grant": Grant("Slurm")}, "the only one granted by Slurm"),
        sentence("granted-half", ONE, {"grant": Grant("Ray", fraction=0.5)}, HALF),
        sentence(
            "granted-although-excluded",
            [BUSY],
            {"grant": Grant("Slurm"), "visible_spec": VisibleSpec("0"), "exclude": ("0",)},
            f"the only one granted by Slurm; {ON_BUSY}; select.exclude has no effect: Slurm granted the GPUs",
        ),
        sentence(
            "listed-although-excluded",
            ONE,
            {"visible_spec": VisibleSpec("0"), "exclude": ("0",), "devices": ("1",)},
            "the only one in CUDA_VISIBLE_DEVICES; select.devices and select.exclude have no effect: "
            "CUDA_VISIBLE_DEVICES is set",
        ),
        sentence(
            "lost-gpu-left-out",
            ONE,
            {"inventory": inventory(gpu(0), unreadable=unreadable(1))},
            "the only one here; left out: GPU 1 (lost)",
        ),
        sentence("waited", ONE, {"waited_s": 1.0}, "the only one here, after 1 s of waiting"),
        sentence("waited-less-than-a-second", ONE, {"waited_s": 0.9}, "the only one here"),
        sentence("rank", TWO, {"grant": Grant(rank=LocalRank(1, 2, "MPICH"))}, "local rank 1 of 2 (MPICH)"),
        sentence(
            "ranks-share",
            ONE,
            {"grant": Grant(rank=LocalRank(1, 2, "MPICH"))},
            "local rank 1 of 2 (MPICH), 2 ranks share it",
        ),
        sentence("chosen-by-the-script", TWO, {"chosen": [0]}, "chosen by the script"),
        sentence(
            "busy-gpu-chosen-by-the-script",
            ONE_BUSY,
            {"chosen": [0]},
            "chosen by the script; GPU 1 and GPU 2 are free",
        ),
    ],
)
def test_sentence_about_taken_gpus(gpus, asked, expected):
    assert why(decided(*gpus, **asked)) == expected


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        sentence("count-is-zero", ONE, {"count": 0}, "select.count is 0"),
        sentence("claimed", ONE, {**YOUNG, "busy": "cpu"}, f"no GPU is free; GPU 0: {HELD}"),
        sentence(
            "awaited",
            ONE,
            {"awaited": [gpu(0).uuid], "busy": "cpu"},
            "no GPU is free; GPU 0: a job in the queue waits for this GPU",
        ),
        sentence(
            "need-larger-than-cards",
            TWO,
            {"devices": ("1",), "need_bytes": 30 * GIB},
            "no GPU is suitable; GPU 1: 30.0 GiB needed, the GPU has 24.0 GiB; GPU 0: not among select.devices",
        ),
        sentence(
            "need-larger-than-free-memory",
            ONE,
            {"need_bytes": 12 * GIB, "held": {0: claim(14)}, "busy": "cpu"},
            "no GPU has 12.0 GiB left; GPU 0: 12.0 GiB needed, 10.0 GiB left",
        ),
        sentence("excluded", ONE, {"exclude": ("0",)}, "no GPU is suitable; GPU 0: excluded by select.exclude"),
        sentence(
            "prohibited",
            [gpu(0, compute_mode=ComputeMode.PROHIBITED)],
            {},
            "no GPU is suitable; GPU 0: its compute mode is PROHIBITED",
        ),
        sentence(
            "exclusive",
            [gpu(0, compute_mode=ComputeMode.EXCLUSIVE_PROCESS, pids=[7])],
            {"busy": "cpu"},
            "no GPU is free; GPU 0: its compute mode is EXCLUSIVE and another process uses it",
        ),
        sentence("mig-without-instance", cut(0), {}, f"no GPU is suitable; GPU 0: {LEFT_OUT}"),
        sentence("at-the-cap", [gpu(1)], {**MINE, "busy": "cpu"}, AT_CAP),
        sentence(
            "above-the-cap",
            [gpu(2)],
            {"held": {0: claim(24, uid=ME), 1: claim(24, uid=ME)}, "per_user": 1, "busy": "cpu"},
            "you hold 2 GPUs, limits.per_user allows 1",
        ),
        sentence(
            "waits-for-one-more",
            ONE_BUSY,
            {"count": 3, "busy": "wait"},
            "2 of the 3 GPUs are free",
        ),
        sentence(
            "waits-for-one-more-beside-one-that-can-be-shared",
            [gpu(0, pids=[7], used_gib=22, busy=90), gpu(1, pids=[8], used_gib=14, busy=70)],
            {"count": 2},
            "1 of the 2 GPUs is available; "
            "shares a GPU whose jobs have run 1 min (the next 30 min only if enough is free); "
            "to start now: AUTOGPU_WAIT=0",
        ),
        sentence(
            "waits-for-fewer-than-asked-for",
            [SMALL, gpu(1)],
            {"count": 2, "busy": "wait", "need_bytes": 12 * GIB, "held": {1: claim(24)}},
            f"no GPU has 12.0 GiB left; 2 GPUs are requested, but this job can get at most 1; {TOO_SMALL}",
        ),
        sentence(
            "waits-to-share",
            ONE,
            YOUNG,
            f"no GPU is free; {SHARES} (the next 30 min only if enough is free); {NOW}; GPU 0: {HELD}",
        ),
        sentence(
            "waits-12-min-to-share",
            ONE,
            {**YOUNG, "waited_s": 720.0},
            f"no GPU is free; {SHARES} (the next 18 min only if enough is free); {NOW}; GPU 0: {HELD}",
        ),
        sentence(
            "waits-for-as-much-as-the-last-runs-used",
            ONE,
            {**YOUNG, "last_runs": {gpu(0).name: LastRuns("a.py", 9 * GIB)}},
            f"no GPU is free; {SHARES} (the next 30 min only if 9.0 GiB is free); {NOW}; "
            f"a.py used 9.0 GiB in its last runs; GPU 0: {HELD}",
        ),
        sentence(
            "waits-for-two-models-of-which-one-is-known",
            [gpu(0), gpu(1, name="NVIDIA A100")],
            {"held": {0: claim(24), 1: claim(24)}, "last_runs": {gpu(0).name: LastRuns("a.py", 9 * GIB)}},
            f"no GPU is free; {SHARES} (the next 30 min only if enough is free); {NOW}; GPU 1: {HELD}; GPU 0: {HELD}",
        ),
        sentence(
            "waits-for-a-quarter-which-is-more",
            ONE,
            {**YOUNG, "last_runs": {gpu(0).name: LastRuns("a.py", GIB)}},
            f"no GPU is free; {SHARES} (the next 30 min only if enough is free); {NOW}; GPU 0: {HELD}",
        ),
        sentence(
            "waits-for-as-much-as-failed",
            ONE,
            {**YOUNG, "last_runs": {gpu(0).name: LastRuns("a.py", 9 * GIB, has_failed=True)}},
            f"no GPU is free; {SHARES} (the next 30 min only if 9.0 GiB is free); {NOW}; "
            f"a.py needed 9.0 GiB in all when it ran out of memory; GPU 0: {HELD}",
        ),
        sentence(
            "waits-until-the-job-has-run-a-minute",
            ONE,
            {**YOUNG, "waited_s": 1800.0},
            f"no GPU is free; {SHARES}; {NOW}; GPU 0: {HELD}",
        ),
        sentence(
            "waits-at-the-cap",
            TWO,
            {"held": {0: claim(24, uid=ME)}, "per_user": 1, "waited_s": 1800.0},
            f"{AT_CAP}; {SHARES}; {NOW}",
        ),
        sentence(
            "slurm-granted-none",
            ONE,
            {"grant": Grant("Slurm", Denial.SLURM_GRANTED_NONE)},
            "Slurm granted no GPU here; to get a GPU: srun --gres=gpu:1",
        ),
        sentence(
            "ray-assigned-none",
            ONE,
            {"grant": Grant("Ray", Denial.RAY_ASSIGNED_NONE)},
            "Ray granted no GPU to this task; to get a GPU: @ray.remote(num_gpus=1)",
        ),
        sentence(
            "coordinating-task",
            ONE,
            {"grant": Grant("TF_CONFIG", Denial.COORDINATOR, "chief")},
            "TF_CONFIG: the role chief needs no GPU with parameter servers; to use a GPU: AUTOGPU_COUNT=1",
        ),
        sentence(
            "slurm-does-not-say-which",
            ONE,
            {"grant": Grant("Slurm", Denial.UNKNOWN_WHICH, unnamed=2, on_host=4)},
            "Slurm granted 2 of 4 GPUs here, but autogpu can't determine which; leave --gpu-bind=none out",
        ),
        sentence("driver-fails", ONE, {"inventory": inventory(failure="mismatch")}, "mismatch"),
        sentence("no-answer-in-time", ONE, {"inventory": NO_READING}, "NVML timed out"),
        sentence(
            "counts-differ", ONE, {"gpu_count": 2}, "the CUDA driver and the framework see different numbers of GPUs"
        ),
        sentence(
            "unreadable",
            ONE,
            {"inventory": inventory(unreadable=unreadable(0))},
            "NVML can't read any of the GPUs; GPU 0: lost",
        ),
    ],
)
def test_sentence_about_no_gpu(gpus, asked, expected):
    assert why(decided(*gpus, **asked)) == expected


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        pytest.param(Decision(Verdict.CANNOT_CHOOSE, Reason.DISABLED), "autogpu is switched off", id="disabled"),
        pytest.param(
            Decision(Verdict.TAKE, Reason.PARENT, request(), parent=ParentProcess("launch.py", 7)),
            "shared with the parent process, launch.py (pid 7)",
            id="parent",
        ),
        pytest.param(
            replace(decided(*POOL), script_numbers=(2,)),
            "the idlest of 4, cuda:2 in the script",
            id="index-of-the-script",
        ),
        pytest.param(
            replace(decided(BUSY, gpu(1, pids=[8], used_gib=20)), reason=Reason.COUNTED_BEFORE),
            f"CUDA was initialised before autogpu could choose; {ON_BUSY}",
            id="counted-before",
        ),
        pytest.param(
            left_alone(request(*TWO, busy="wait"), Reason.WORKERS_NUMBER),
            'the worker process chose the GPU itself; select.busy = "wait" has no effect: '
            "autogpu did not choose the GPU",
            id="number-of-a-worker",
        ),
        pytest.param(
            Decision(Verdict.CANNOT_CHOOSE, Reason.ONLY_CUDA_KNOWS, request()),
            "autogpu can't resolve the numbers in CUDA_VISIBLE_DEVICES; "
            "CUDA numbers the fastest GPU first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; "
            "to name GPUs unambiguously: CUDA_DEVICE_ORDER=PCI_BUS_ID, or UUIDs in CUDA_VISIBLE_DEVICES",
            id="only-cuda-knows",
        ),
        pytest.param(
            Decision(Verdict.CPU, Reason.NO_DEVICE, request(gpu(0))),
            "CUDA_VISIBLE_DEVICES hides every GPU",
            id="hidden",
        ),
        pytest.param(Decision(Verdict.CPU, Reason.NO_DEVICE, request()), "no GPU here", id="no-gpu"),
        pytest.param(
            Decision(Verdict.CANNOT_CHOOSE, Reason.NO_DEVICE, request(inventory=inventory(unreadable=unreadable(0)))),
            "no GPU can be read (GPU 0: lost)",
            id="none-readable",
        ),
    ],
)
def test_reason_apart_from_the_usual_ones_has_its_own_sentence(decision, expected):
    assert why(decision) == expected


def test_every_reason_has_a_sentence():
    spec = {"grant": Grant("Slurm", Denial.SLURM_GRANTED_NONE), "inventory": inventory(gpu(0), failure="lost")}
    facts = decided(*ONE, grant=Grant(rank=LocalRank(0, 1, "MPICH")))
    for reason in Reason:
        decision = replace(facts, reason=reason, request=request(gpu(0), **spec), parent=ParentProcess("a.py", 7))
        assert why(decision), reason


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        pytest.param([BUSY], BY_SCRIPT, "AUTOGPU_SCRIPT=override", id="list-of-script"),
        pytest.param([BUSY], {"visible_spec": VisibleSpec("0")}, "unset CUDA_VISIBLE_DEVICES", id="list-of-shell"),
        pytest.param([BUSY], {**SLURM, "visible_spec": VisibleSpec("0")}, "", id="list-of-slurm"),
        pytest.param([BUSY], {}, "", id="no-list"),
        pytest.param([BUSY], {**BY_SCRIPT, "exclude": ("1", "2")}, "", id="free-gpus-are-excluded"),
        pytest.param([gpu(1)], BY_SCRIPT, "", id="idle"),
    ],
)
def test_remedy_for_a_busy_gpu_names_the_setting_for_an_idle_one(gpus, asked, expected):
    remedy = idle_remedy(decided(*gpus, inventory=inventory(*ONE_BUSY), **asked))
    assert remedy == (f"to use the idlest GPU: {expected}" if expected else "")


def test_notes_on_cuda_started_early_have_the_command_for_an_idle_gpu():
    decision = decided(BUSY, inventory=inventory(*ONE_BUSY), wait_s=0.0)
    counted = replace(decision, reason=Reason.COUNTED_BEFORE)
    assert notes(counted)[:2] == [
        "GPU 1 and GPU 2 are free",
        "to use the idlest GPU: start the program as `autogpu run --hold COMMAND`",
    ]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(YOUNG, "to wait for one: AUTOGPU_BUSY=wait; to share one: AUTOGPU_BUSY=share", id="claimed"),
        pytest.param({"need_bytes": 20 * GIB, **YOUNG}, "to wait for one: AUTOGPU_BUSY=wait", id="need-beside-a-claim"),
        pytest.param({"exclude": ("0",)}, "`autogpu status --explain` shows the obstacle on each GPU", id="excluded"),
    ],
)
def test_remedy_for_a_refused_script_names_a_setting_or_command(asked, expected):
    assert busy_remedy(decided(gpu(0), busy="error", **asked)) == expected
