"""Servers with unusual drivers or GPUs: WSL2, GH200, MPS, prohibited compute mode, and all GPUs lost.

``tests/failure_modes/test_hardware.py`` tests GPUs without a reading of their memory, GPUs in exclusive mode, denied
GPUs, GPUs without a matching library, and a server on which some GPUs are lost.
"""

import json
import re

import pytest

from tests.gpusim import Gpu
from tests.gpusim.fleets import A100
from tests.support.containers import NO_NAMESPACES
from tests.support.live_jobs import leases

pytestmark = [pytest.mark.timeout(600), pytest.mark.tensorflow]

USE = "import tensorflow as tf\ntf.random.uniform((2, 2))\nprint('done')\n"
GIB = 1 << 30


def wsl2(**fields):
    """Return a GPU under WSL2: Windows draws its desktop on it, and the driver reports neither processes nor load."""
    fields = {"used": "0.8GiB", **fields}
    silent = ["processes", "graphics_processes", "process_memory", "utilization", "samples"]
    return Gpu(name="NVIDIA GeForce RTX 4090", memory="24GiB", unsupported=silent, **fields)


def test_choice_under_wsl2_uses_memory_and_leases(train, commands, lease_folder):
    run = train(wsl2(), wsl2(used="9GiB"))
    ran = run(USE)
    assert (ran.stdout, ran.contexts) == ("done\n", [0]), ran.stderr
    assert "the idlest of 2" in ran.said[0]
    autogpu = commands(run.server)
    holder = autogpu.hold("--limit", "4GiB")
    assert holder.gpus() == [0]
    # A second job of that size fits, both beside the claim and into the free memory.
    (lease,) = leases(lease_folder).values()
    assert 4 * GIB <= sum(lease["gpus"].values()) < 5 * GIB
    assert autogpu.pick("--need", "4GiB") == [0]
    assert autogpu.pick("--need", "20GiB", "--busy", "error") == []
    claimed, busy = autogpu.status()["gpus"]
    assert (claimed["utilization_percent"], claimed["state"], busy["state"]) == (None, "busy", "busy")
    assert holder.end()[0] == 0


# Fakes files of the driver and the kernel, which describe the GPU's memory as NUMA node 1 of the host.
GH200 = """
mount -t tmpfs none /proc/driver && mkdir -p /proc/driver/nvidia/gpus/{bus}
printf 'Node: 1\nStatus: online\n' >/proc/driver/nvidia/gpus/{bus}/numa_status
mount -t tmpfs none /sys/devices/system/node && mkdir /sys/devices/system/node/node1
printf 'Node 1 MemTotal: 99614720 kB\nNode 1 FilePages: {kib} kB\n' >/sys/devices/system/node/node1/meminfo
exec "$@"
"""


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
@pytest.mark.parametrize(("cached_gib", "state"), [(39.5, "free"), (10, "busy")])
def test_page_cache_in_gh200_memory_does_not_count_as_used(lab, cached_gib, state):
    autogpu = lab(Gpu(name="NVIDIA GH200 480GB", memory="95GiB", used="40GiB", pci="0009:01:00.0"))
    mounts = GH200.format(bus="0009:01:00.0", kib=int(cached_gib * (1 << 20)))
    mounted = ["unshare", "--mount", "sh", "-euc", mounts, "sh"]
    done = autogpu.server.run([*mounted, str(autogpu.python), "-m", "autogpu", "status", "--json"])
    (gpu,) = json.loads(done.stdout)["gpus"]
    used_gib = gpu["memory_used_bytes"] / GIB
    assert (gpu["state"], round(used_gib)) == (state, round(40 - cached_gib)), (used_gib, done.stderr)
    assert autogpu.status()["gpus"][0]["state"] == "busy"


@pytest.fixture
def mps(tmp_path, monkeypatch):
    folder = tmp_path / "mps"
    folder.mkdir()
    (folder / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(folder))
    return folder


def test_exclusive_gpu_is_shared_if_mps_runs(train, commands, mps):
    # NVIDIA recommends exclusive mode with MPS: the MPS server is then the only process with its own context.
    exclusive = Gpu(compute_mode="exclusive_process", processes={5004242: "0.2GiB"})
    run = train(exclusive)
    ran = run(USE, AUTOGPU_LIMIT="2GiB")
    assert (ran.stdout, ran.contexts) == ("done\n", [0]), ran.stderr
    assert commands(run.server).pick("--need", "2GiB") == [0]
    (mps / "control").unlink()
    assert run(USE, AUTOGPU_BUSY="cpu").contexts == []


PROHIBITED = Gpu(compute_mode="prohibited")


def cut(*profiles, **fields):
    return Gpu(**{**vars(A100), "mig": profiles, **fields})


@pytest.mark.parametrize(
    ("gpus", "free", "picked"),
    [
        pytest.param([PROHIBITED, Gpu(), PROHIBITED], "1 of 1 GPU free", True, id="prohibited-gpus-and-one-usable"),
        pytest.param([PROHIBITED, PROHIBITED], "no usable GPU", False, id="all-gpus-prohibited"),
        pytest.param([cut(*["1g.5gb"] * 4), cut(*["1g.5gb"] * 4)], "8 of 8 GPUs free", True, id="eight-mig-instances"),
        pytest.param([PROHIBITED, cut("3g.20gb")], "1 of 1 GPU free", True, id="prohibited-gpu-and-mig-instance"),
        pytest.param(
            [cut(), cut("3g.20gb", compute_mode="prohibited")], "no usable GPU", False, id="no-usable-mig-instance"
        ),
    ],
)
def test_status_counts_only_gpus_that_a_job_can_get_as_free(lab, gpus, free, picked):
    autogpu = lab(*gpus)
    head, _, *page = autogpu("status").stdout.splitlines()
    assert head.endswith(f", {free}")
    # The number in the heading equals the count of free rows, and `pick` succeeds if it is not 0.
    rows = [re.split("  +", line)[-1] for line in page if re.match(r"(GPU|   ) [\d:]+ ", line)]
    assert rows.count("free") == int(free.split()[0].replace("no", "0")), page
    assert (autogpu("pick").returncode == 0) is picked


def test_job_never_gets_a_prohibited_gpu_and_falls_back_to_the_cpu(train):
    ran = train(PROHIBITED, Gpu(), PROHIBITED)(USE, AUTOGPU_COUNT="2")
    assert (ran.stdout, ran.contexts) == ("done\n", [1]), ran.stderr
    assert "the only one here" in ran.said[0]
    fewer = "select.count asks for 2 GPUs, but only 1 is free"
    assert ran.said[1].startswith(f"autogpu: {fewer}; left out: GPU 0 (its compute mode is"), ran.said
    assert "the idlest of 2" in train(Gpu(), Gpu(), PROHIBITED)(USE).said[0]
    ran = train(PROHIBITED, PROHIBITED)(USE)
    assert (ran.stdout, ran.contexts, len(ran.said)) == ("done\n", [], 2), ran.stderr
    assert "GPU 0: its compute mode is PROHIBITED" in ran.said[1]


def test_pick_reports_the_lost_gpu_that_it_left_out(lab):
    autogpu = lab(Gpu(), Gpu(nvml="GPU_IS_LOST"))
    picked = "autogpu: picked GPU 0 (not reserved): the only one"
    assert autogpu("pick").stderr == f"{picked} here\nautogpu: left out: GPU 1 (GPU is lost)\n"
    assert autogpu("pick", "--devices", "0").stderr == f"{picked} of select.devices\n"


WHICH = {"unset": "", "by-index": "0", "by-a-list": "0,1", "by-uuid": "GPU-70fa"}


@pytest.mark.parametrize("visible", WHICH.values(), ids=list(WHICH))
def test_every_command_reports_that_all_gpus_are_lost(lab, visible):
    autogpu = lab(*[Gpu(nvml="GPU_IS_LOST")] * 2)
    listed = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    why = "no GPU can be read (GPU 0: GPU is lost; GPU 1: GPU is lost)"
    for command in (["pick"], ["pick", "--count", "2"], ["run", "--hold", "--", "true"], ["wait", "--timeout", "1"]):
        done = autogpu(*command, **listed)
        told = [f"autogpu: {why}", "autogpu: if `nvidia-smi` fails too, tell the administrator"]
        assert (done.returncode, done.stderr.splitlines()) == (1, told), command
    page = autogpu("status", **listed).stdout
    assert "GPU 0  not readable: GPU is lost\nGPU 1  not readable: GPU is lost\n" in page
    assert f"would get the GPUs that the framework chooses: {why}; policy: defaults\n" in page
    assert "would get the CPU: no GPU" in autogpu("status", CUDA_VISIBLE_DEVICES="-1").stdout


def test_job_reports_all_gpus_lost_and_fails_as_without_autogpu(train):
    run = train(*[Gpu(nvml="GPU_IS_LOST")] * 2)
    for environ in ({}, {"CUDA_VISIBLE_DEVICES": "1"}):
        ran = run(USE, exit_status=1, **environ)
        assert "NVML can't read any of the GPUs; memory " in ran.said[0]
        assert ran.said[1:] == ["autogpu: GPU 0: GPU is lost; GPU 1: GPU is lost"]
        assert run(USE, exit_status=1, AUTOGPU="0", **environ).error == ran.error


@pytest.mark.slow
def test_driver_without_an_answer_is_reported_as_possibly_busy(lab):
    autogpu = lab(*[Gpu(nvml="hang")] * 2)
    why = "no GPU can be read (GPU 0: the driver does not answer; GPU 1: the driver does not answer)"
    for command in (["pick"], ["run", "--hold", "--", "true"]):
        done = autogpu(*command)
        told = [f"autogpu: {why}", "autogpu: perhaps the driver is just busy: try again when `nvidia-smi` answers"]
        assert (done.returncode, done.stderr.splitlines()) == (1, told), command
