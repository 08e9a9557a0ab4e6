"""Tests autogpu with failing drivers, lost GPUs, and GPUs whose readings are missing or misleading."""

import time

import pytest

from tests.gpusim import Gpu
from tests.support.tensorflow_runner import LAB

pytestmark = pytest.mark.timeout(600)

USE = "import tensorflow as tf\ntf.random.uniform((2, 2))\nprint('done')\n"
BUSY = {5004242: "9GiB"}


def test_16_job_gets_only_the_idlest_instance_of_a_mig_card(lab):
    card = Gpu(name="NVIDIA A100-SXM4-40GB", memory="40960MiB", compute_capability="8.0", mig=["2g.10gb", "1g.5gb"])
    autogpu = lab(card)
    parts = {gpu["uuid"]: gpu["name"].rpartition(" ")[2] for gpu in autogpu.status()["gpus"]}
    first = autogpu.hold("--count", "2")
    assert parts[first.line()] == "2g.10gb"
    second = autogpu.hold()
    assert parts[second.line()] == "1g.5gb"
    assert [holder.end()[0] for holder in (first, second)] == [0, 0]


def test_16_gpu_of_unknown_utilization_is_chosen_after_an_idle_gpu(lab):
    silent = Gpu(unsupported=["utilization", "samples"])
    autogpu = lab(Gpu(), silent, Gpu(processes=BUSY))
    assert autogpu.pick("--count", "2") == [0, 1]
    assert autogpu.status()["gpus"][1]["utilization_percent"] is None


@pytest.mark.tensorflow
def test_17_gpu_of_unknown_memory_is_used_if_there_is_no_other(train, commands):
    gb10 = Gpu(name="NVIDIA GB10", unsupported=["memory", "process_memory"])
    run = train(gb10)
    assert run(USE).contexts == [0]
    assert commands(run.server).status()["gpus"][0]["memory_total_bytes"] is None
    assert commands(train(Gpu(), gb10).server).pick() == [0]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("fault", "lines"), [("DRIVER_NOT_LOADED", 0), ("LIB_RM_VERSION_MISMATCH", 1), ("UNKNOWN", 1), ("crash", 1)]
)
def test_18_failing_driver_causes_at_most_one_line_of_output(train, commands, fault, lines):
    cuda = {"DRIVER_NOT_LOADED": "NO_DEVICE", "LIB_RM_VERSION_MISMATCH": "SYSTEM_DRIVER_MISMATCH"}
    run = train(Gpu(), nvml=fault, cuda_init=cuda.get(fault, "UNKNOWN"))
    ran = run(USE)
    assert (ran.stdout, len(ran.said), ran.contexts) == ("done\n", lines, []), ran.stderr
    done = commands(run.server)("pick")
    assert done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
@pytest.mark.tensorflow
def test_19_hanging_driver_delays_a_start_by_seconds_only(train, commands):
    # When TensorFlow 2.21 lists GPUs, it calls NVML itself, and hangs there even without autogpu. So this script only
    # imports TensorFlow.
    run = train(Gpu(), nvml="hang")
    begun_s = time.monotonic()
    assert run("import tensorflow\nprint('imported')\n").stdout == "imported\n"
    assert time.monotonic() - begun_s < 60
    done = commands(run.server)("status")
    said = "NVML timed out after 15 s; perhaps the driver is just busy: try again when `nvidia-smi` answers"
    assert (done.stdout.splitlines()[1:], done.stderr) == ([said], "")


@pytest.mark.slow
def test_19_autogpu_prints_one_line_if_driver_hangs_with_fake_tensorflow(lab, stand_in):
    autogpu = lab(Gpu(), nvml="hang")
    script = stand_in("import tensorflow; print('imported')")
    done = autogpu.server.run([str(autogpu.python), script], environ={"AUTOGPU_LIMIT": "2GiB"}, timeout=60)
    assert (done.returncode, done.stdout) == (0, "imported\n")
    # autogpu prints one line. It says that autogpu chose no GPU and that the memory limit is not in force.
    assert [line.startswith("autogpu: ") for line in done.stderr.splitlines()] == [True], done.stderr


@pytest.mark.tensorflow
def test_19_gpu_that_hangs_nvml_is_not_chosen(train):
    ran = train(Gpu(), Gpu(nvml="hang"), Gpu())(USE)
    assert (ran.stdout, ran.contexts) == ("done\n", [2])
    assert "the idlest of 2" in ran.said[0]


@pytest.mark.tensorflow
@pytest.mark.parametrize("fault", ["GPU_IS_LOST", "RESET_REQUIRED"])
def test_20_lost_gpu_is_not_chosen_although_plain_tensorflow_fails(train, commands, fault):
    run = train(Gpu(), Gpu(nvml=fault), Gpu())
    ran = run(USE)
    assert (ran.stdout, ran.contexts) == ("done\n", [2])
    assert "the idlest of 2" in ran.said[0]
    told = commands(run.server).status()
    assert [gpu["index"] for gpu in told["gpus"]] == [0, 2]
    assert [gpu["index"] for gpu in told["unreadable"]] == [1]


def test_21_autogpu_sorts_gpu_indices_as_numbers_and_not_as_text(lab):
    autogpu = lab(*[Gpu()] * 12)
    assert autogpu.pick("--count", "12") == [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert autogpu.pick("--count", "all", "--devices", "1,9-10") == [10, 9, 1]
    assert autogpu.pick("--exclude", "11") == [10]
    assert autogpu.pick(CUDA_VISIBLE_DEVICES="2,10") == [10]
    assert [gpu["index"] for gpu in autogpu.status()["gpus"]] == list(range(12))


@pytest.mark.tensorflow
def test_22_autogpu_devices_counts_gpus_as_nvml_does_on_mixed_models(train):
    # CUDA gives number 0 to the fastest GPU. NVML numbers the GPUs in PCI order.
    run = train(*LAB)
    policy = {"AUTOGPU_VISIBLE": "chosen", "AUTOGPU_WAIT": "0"}
    for number in range(4):
        ran = run(USE, AUTOGPU_DEVICES=str(number), **policy)
        assert ran.contexts == [number]
        assert ran.said[0].startswith(f"autogpu: GPU {number} ("), ran.said


def test_22_idle_small_gpu_is_chosen_before_a_busy_large_one(lab):
    large = Gpu(name="NVIDIA A100-SXM4-80GB", memory="80GiB", processes=BUSY, utilization=50)
    assert lab(Gpu(memory="11GiB"), large).pick() == [0]


def test_23_gpu_is_busy_if_its_memory_is_used_but_no_process_is_listed(lab):
    autogpu = lab(Gpu(), Gpu(used="20GiB"))
    assert autogpu.pick() == [0]
    zombie = autogpu.status()["gpus"][1]
    assert (zombie["state"], zombie["unlisted_bytes"] >> 30) == ("busy", 20)


@pytest.mark.tensorflow
def test_24_gpu_in_exclusive_mode_that_a_process_uses_is_not_chosen(train, commands):
    exclusive = Gpu(memory="80GiB", compute_mode="exclusive_process", processes={5004242: "0.2GiB"})
    assert train(Gpu(processes=BUSY), exclusive)(USE).contexts == [0]
    run = train(exclusive)
    ran = run(USE, AUTOGPU_BUSY="cpu")
    assert (ran.stdout, ran.contexts) == ("done\n", [])
    assert ran.said[1:] == ["autogpu: GPU 0: its compute mode is EXCLUSIVE and another process uses it"]
    assert commands(run.server).pick("--busy", "error") == []


def test_27_gpu_whose_job_pauses_briefly_is_not_chosen_as_idle(lab):
    pausing = Gpu(processes=BUSY, utilization_samples=[97, 98, 95, 99, 0])
    # If two GPUs are equally idle, autogpu chooses the higher index.
    assert lab(Gpu(processes=BUSY, utilization=30), pausing).pick() == [0]
