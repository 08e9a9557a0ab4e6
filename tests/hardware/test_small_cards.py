"""A small display card beside larger GPUs: autogpu, like TensorFlow, chooses it only if no larger GPU may be used."""

from dataclasses import replace

import pytest

from tests.gpusim import Gpu
from tests.support.framework_jobs import AT_ONCE, FRAMEWORKS

pytestmark = [pytest.mark.timeout(600), pytest.mark.tensorflow]

# This card has 384 CUDA cores in 3 multiprocessors.
GT_1030 = Gpu(name="NVIDIA GeForce GT 1030", memory="2GiB", compute_capability="6.1", multiprocessors=3)
TITAN = Gpu(name="NVIDIA TITAN RTX", memory="24GiB")
USE = """
import tensorflow as tf
print(len(tf.config.list_physical_devices("GPU")), tf.random.uniform((2, 2)).device[-5:])
from tensorflow.python.client import device_lib
print(sum(device.device_type == "GPU" for device in device_lib.list_local_devices()))
"""
PCI_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


BUSY_TITAN = replace(TITAN, processes={5004242: "9GiB"}, utilization=90)
NAMED = "GPU-aaaa0000-1111-2222-3333-444444444444"
SMALL_FIRST = [GT_1030, TITAN, TITAN]
RANKS = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", **PCI_ORDER}
IDLEST, ONLY = "the idlest of 2", "the only one"
RANK_0 = ": local rank 0 of 2 (Open MPI); "
# Keyed by rule: the cards, the environment, the number of GPUs that the script has, the GPUs that it uses, and a part
# of autogpu's message.
CHOICES = {
    "small-card-first": (SMALL_FIRST, PCI_ORDER, 2, [2], IDLEST),
    "small-card-in-the-middle": ([TITAN, GT_1030, TITAN], PCI_ORDER, 2, [2], IDLEST),
    "small-card-last": ([TITAN, TITAN, GT_1030], PCI_ORDER, 2, [1], IDLEST),
    "count-all-leaves-out-small-card": (SMALL_FIRST, {"AUTOGPU_COUNT": "all"}, 2, [1, 2], "both"),
    "rank-0-gets-first-large-card": (SMALL_FIRST, {**RANKS, "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, 2, [1], RANK_0),
    "rank-1-gets-second-large-card": (SMALL_FIRST, {**RANKS, "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 2, [2], None),
    "large-enough-for-tf-variable": (
        [replace(GT_1030, memory="24GiB"), BUSY_TITAN],
        {"TF_MIN_GPU_MULTIPROCESSOR_COUNT": "2"},
        *(2, [0], IDLEST),
    ),
    "small-cards-only": ([GT_1030, GT_1030], {}, 2, [1], IDLEST),
    "largest-of-small-cards": ([replace(GT_1030, multiprocessors=5), GT_1030], PCI_ORDER, 1, [0], ONLY),
    "small-card-in-devices": ([GT_1030, TITAN], {"AUTOGPU_DEVICES": "0"}, 1, [0], ONLY),
    "small-card-in-cuda-list": ([replace(GT_1030, uuid=NAMED), TITAN], {"CUDA_VISIBLE_DEVICES": NAMED}, 1, [0], ONLY),
}


@pytest.mark.parametrize(("cards", "environ", "gpus", "contexts", "said"), CHOICES.values(), ids=CHOICES)
def test_tensorflow_gets_a_small_card_only_if_named_or_alone(train, cards, environ, gpus, contexts, said):
    ran = train(*cards)(USE, **environ)
    assert (ran.stdout, ran.contexts) == (f"{gpus} GPU:0\n{gpus}\n", contexts), ran.stderr
    assert [said in line for line in ran.said] == [True] * (said is not None), ran.said


def test_two_jobs_get_the_two_large_cards_and_a_third_shares_one(host):
    start = host(GT_1030, TITAN, TITAN)
    first = start()
    assert first.ready() == "ready GPU:0"
    second = start()
    assert second.ready() == "ready GPU:0"
    assert (first.gpus(), second.gpus()) == ([2], [1])
    third = start(AUTOGPU_WAIT="0")
    assert third.ready() == "ready GPU:0"
    assert third.gpus() in ([1], [2])
    assert third.end()[1][1].startswith("autogpu: memory limited by other jobs")


def test_commands_never_choose_a_small_card_unless_it_is_listed(lab):
    autogpu = lab(GT_1030, BUSY_TITAN, BUSY_TITAN)
    assert autogpu.pick() in ([1], [2])
    assert autogpu.pick("--busy", "error") == []
    assert autogpu.pick("--devices", "0") == [0]
    only = autogpu("pick", "--devices", "0,1").stderr
    assert "the only one of select.devices\nautogpu: shared: " in only
    assert "; left out: GPU 0 (a small card, used only" in only
    assert "0 of 2 GPUs free" in autogpu("status").stdout
    told = autogpu("pick", "--explain").stderr
    assert "GPU 0: not suitable: a small card, used only without larger ones" in told
    assert autogpu("wait", "--timeout", "1").returncode == 75
    assert autogpu.hold().gpus()[0] in (1, 2)


@pytest.mark.framework
@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_pytorch_or_jax_job_shares_a_busy_large_card_before_a_small_one(framework, machine_of):
    machine = machine_of(framework, GT_1030, BUSY_TITAN, BUSY_TITAN)
    job = machine.start(AT_ONCE[framework])
    assert job.line() == "imported"
    job.go_on()
    assert job.line().startswith("ready")
    assert job.contexts in ([1], [2])
