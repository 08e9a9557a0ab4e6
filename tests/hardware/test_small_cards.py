"""A small card for the display beside those for computing: TensorFlow leaves it out, and so does every choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.gpusim import Gpu
from tests.support.framework_jobs import AT_ONCE, FRAMEWORKS

pytestmark = [pytest.mark.timeout(600), pytest.mark.tensorflow]

# What nvidia-smi shows of it is 384 CUDA cores.
GT_1030 = Gpu(name="NVIDIA GeForce GT 1030", memory="2GiB", compute_capability="6.1", multiprocessors=3)
TITAN = Gpu(name="NVIDIA TITAN RTX", memory="24GiB")
USE = """
import tensorflow as tf
print(len(tf.config.list_physical_devices("GPU")), tf.random.uniform((2, 2)).device[-5:])
from tensorflow.python.client import device_lib
print(sum(device.device_type == "GPU" for device in device_lib.list_local_devices()))
"""
PCI_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize("at", [0, 1, 2], ids=["first", "middle", "last"])
def test_tensorflow_gets_one_of_the_others_wherever_a_small_card_is(train, at):
    cards = [TITAN, TITAN]
    cards.insert(at, GT_1030)
    ran = train(*cards)(USE, **PCI_ORDER)
    assert ran.stdout == "2 GPU:0\n2\n", ran.stderr
    assert ran.contexts == [max(number for number in range(3) if number != at)]
    assert "the idlest of 2" in ran.said[0]


def test_two_jobs_beside_a_small_card_have_a_gpu_each(host):
    start = host(GT_1030, TITAN, TITAN)
    first = start()
    assert first.ready() == "ready GPU:0"
    second = start()
    assert second.ready() == "ready GPU:0"
    assert (first.gpus(), second.gpus()) == ([2], [1])
    third = start(AUTOGPU_WAIT="0")
    assert third.ready() == "ready GPU:0"
    assert third.gpus() in ([1], [2])
    assert "shared" in third.end()[1][0]


def test_all_gpus_are_all_but_the_small_card(train):
    ran = train(GT_1030, TITAN, TITAN)(USE, AUTOGPU_COUNT="all")
    assert ran.contexts == [1, 2], ran.stderr
    assert "all 2" in ran.said[0]


def test_a_small_card_counts_where_the_variable_of_tensorflow_says_so(train, commands):
    run = train(replace(GT_1030, memory="24GiB"), replace(TITAN, processes={5004242: "9GiB"}, utilization=90))
    ran = run(USE, TF_MIN_GPU_MULTIPROCESSOR_COUNT="2")
    assert (ran.stdout, ran.contexts) == ("2 GPU:0\n2\n", [0]), ran.stderr
    assert "the idlest of 2" in ran.said[0]


def test_small_cards_alone_are_cards_like_others(train):
    ran = train(GT_1030, GT_1030)(USE)
    assert (ran.stdout, ran.contexts) == ("2 GPU:0\n2\n", [1]), ran.stderr
    assert "the idlest of 2" in ran.said[0]


def test_of_small_cards_alone_tensorflow_takes_the_largest(train):
    ran = train(replace(GT_1030, multiprocessors=5), GT_1030)(USE, **PCI_ORDER)
    assert (ran.stdout, ran.contexts) == ("1 GPU:0\n1\n", [0]), ran.stderr


def test_a_small_card_that_is_named_is_taken(train):
    run = train(GT_1030, TITAN)
    for environ in ({"AUTOGPU_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": run.server.gpus[0].uuid}):
        ran = run(USE, **environ)
        assert (ran.stdout, ran.contexts) == ("1 GPU:0\n1\n", [0]), ran.stderr
        assert "the only one" in ran.said[0]


def test_ranks_divide_what_is_not_small(train):
    run = train(GT_1030, TITAN, TITAN)
    for rank in (0, 1):
        environ = {"OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        assert run(USE, **environ, **PCI_ORDER).contexts == [1 + rank]


def test_every_command_leaves_a_free_small_card_to_the_display(lab):
    busy = replace(TITAN, processes={5004242: "9GiB"}, utilization=90)
    autogpu = lab(GT_1030, busy, busy)
    assert autogpu.pick() in ([1], [2])
    assert autogpu.pick("--busy", "error") == []
    assert autogpu.pick("--devices", "0") == [0]
    only = autogpu("pick", "--devices", "0,1").stderr
    assert "the only one of select.devices; left out: GPU 0 (a small card, taken only" in only
    assert "0 of 2 GPUs free" in autogpu("status").stdout
    told = autogpu("pick", "--explain").stderr
    assert "GPU 0: not eligible: a small card, taken only where no larger one may be" in told
    assert autogpu("wait", "--timeout", "1").returncode == 75
    holder = autogpu.hold()
    assert holder.gpus()[0] in (1, 2)


@pytest.mark.framework
@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_another_framework_shares_a_large_card_rather_than_take_a_free_small_one(framework, machine_of):
    busy = replace(TITAN, processes={5004242: "9GiB"}, utilization=90)
    machine = machine_of(framework, GT_1030, busy, busy)
    job = machine.start(AT_ONCE[framework])
    assert job.line() == "imported"
    job.go_on()
    assert job.line().startswith("ready")
    assert job.contexts in ([1], [2])
