"""The import of a framework lists the GPUs and claims none. With visible = "chosen" the first query claims."""

import pytest

from autogpu import activation
from autogpu.errors import NoEligibleDevice
from autogpu.frameworks.model import Hooks
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE_DIR
from tests.support.fakes import FakeDriver
from tests.support.holders import claims_on, other_job
from tests.support.values import gpu

BUSY = gpu(0, pids=[7], used_gib=9, busy=90)
TWO = (gpu(0), gpu(1))
THREE = (BUSY, gpu(1), gpu(2))
ALL = 24 * 1024
CHOSEN = {"AUTOGPU_VISIBLE": "chosen"}


def test_an_import_orders_the_pool_and_claims_nothing(started):
    process = started(*THREE)
    assert process.listed == "2 1 0"
    assert (process.framework.assignment, process.allocation.lease, process.holders) == (None, None, ())
    assert (process.driver.taken, process.lines) == (1, [])


def test_visible_chosen_claims_at_the_first_query_and_hides_the_rest(started, tmp_path):
    with other_job({LEASE_DIR: str(tmp_path)}, claims_on(gpu(1))):
        process = started(*TWO, counted=[gpu(0)], **CHOSEN)
        assert (process.listed, process.allocation.lease) == ("1 0", None)
        process.framework.on_listing()
    assert (process.listed, process.claims) == ("0", {0: ALL})
    (before,) = process.holders
    assert [process.framework.take(chosen=chosen).ordinals for chosen in (None, (0,))] == [(0,), (0,)]
    assert [holder.name for holder in process.holders] == [before.name]
    assert process.lines[0].startswith("GPU 0 (NVIDIA TITAN RTX, 24.0 of 24.0 GiB free): ")


def test_gpu_list_that_the_script_writes_after_the_claim_is_followed(started):
    process = started(*TWO, counted=[gpu(0)], **CHOSEN)
    process.framework.on_listing()
    assert process.listed == "1"
    process.environ[CUDA_VISIBLE_DEVICES] = "0"
    process.framework.take()
    assert process.claims == {0: ALL}


def test_visible_chosen_shows_only_the_claimed_gpu_of_the_scripts_list(started):
    process = started(gpu(0), gpu(1), gpu(2), counted=[gpu(0)], **CHOSEN)
    process.environ[CUDA_VISIBLE_DEVICES] = "0,1"
    # The driver does not show this claim yet, so a choice that ignored leases would take GPU 1.
    with other_job(process.environ, claims_on(gpu(1))):
        process.framework.prepare()
        assert (process.listed, process.held) == ("0", "0")


def test_nothing_is_hidden_if_the_first_query_finds_no_gpu(started):
    process = started(BUSY, counted=[BUSY], AUTOGPU_BUSY="cpu", **CHOSEN)
    process.framework.on_listing()
    assert (process.environ.get(CUDA_VISIBLE_DEVICES), process.listed, process.holders) == (None, "", ())


def test_a_framework_that_can_not_be_hooked_into_is_left_alone(started):
    process = started(gpu(0), hooks=Hooks("1.0", obstacle="too old"))
    assert (CUDA_VISIBLE_DEVICES in process.environ, process.reading.is_closed) == (False, True)
    assert process.lines == ["settings are not applied: too old; Fakeflow continues with its defaults"]


def test_framework_without_the_essential_hook_is_limited_by_environment(started):
    hooks = Hooks("9.0", missing={"take": "takes all"}, variables={"FAKEFLOW_GROWTH": "1"})
    process = started(BUSY, gpu(1), hooks=hooks, AUTOGPU_LIMIT="2GiB")
    assert (process.listed, process.environ["FAKEFLOW_GROWTH"]) == ("1", "1")
    why = "lacks functions that autogpu hooks into: take (takes all); memory.limit (AUTOGPU_LIMIT) has no effect"
    assert process.lines == [f"Fakeflow 9.0 {why}"]


@pytest.mark.parametrize(
    ("driver", "is_named"),
    [(FakeDriver(*THREE), True), (FakeDriver.silent(), True), (FakeDriver(), False)],
    ids=["gpus", "no-reading-in-time", "no-gpu"],
)
def test_missing_hook_is_reported_if_there_may_be_gpus(started, driver, is_named):
    hooks = Hooks("9.0", ("take",), {"list": "lists all"})
    line = "Fakeflow 9.0 lacks functions that autogpu hooks into: list (lists all)"
    assert started(driver=driver, hooks=hooks, counted=THREE).lines == [line] * is_named


def test_policy_list_that_matches_no_gpu_is_reported_at_the_import(started):
    process = started(gpu(0), counted=(), AUTOGPU_DEVICES="*A100*")
    assert process.environ[CUDA_VISIBLE_DEVICES] == "-1"
    assert process.lines[0].startswith("select.devices = *A100* (AUTOGPU_DEVICES) matches none of the GPUs here; ")
    process.framework.take()
    assert process.lines[1:] == [
        "no GPU for this process, Fakeflow starts on CPU: no GPU is suitable; policy: AUTOGPU_DEVICES",
        "GPU 0: not among select.devices",
    ]
    refused = started(gpu(0), counted=(), AUTOGPU_DEVICES="*A100*", AUTOGPU_BUSY="error")
    with pytest.raises(NoEligibleDevice, match=r"not among select\.devices.*`autogpu status --explain` shows"):
        refused.framework.take()


def test_prefer_list_that_matches_no_gpu_causes_one_line(started):
    process = started(gpu(0), counted=(), AUTOGPU_PREFER="*H200*")
    (line,) = process.lines
    assert line.startswith("select.prefer = *H200* (AUTOGPU_PREFER) matches none of the GPUs here; ")


def test_second_import_of_a_framework_keeps_its_object():
    try:
        activation.before_import("jax", None)
        first = activation.imported["jax"]
        activation.before_import("jax", None)
        assert activation.imported["jax"] is first
    finally:
        activation.imported.pop("jax", None)
