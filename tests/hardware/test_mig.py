"""Servers with cards in MIG mode: which instance or card a job gets, and what the commands say of them.

Places are written as ``nvidia-smi`` numbers them: ``0`` is a card, ``0:1`` the instance 1 of it.
"""

from __future__ import annotations

import json

import pytest

from tests.gpusim import Gpu, Instance, Server
from tests.gpusim.fleets import A100
from tests.support.framework_jobs import AT_ONCE, FRAMEWORKS
from tests.support.live_jobs import leases

pytestmark = pytest.mark.timeout(600)

GIB = 1 << 30
BEFORE_R570, R570 = "550.54.15", "570.133.20"
BALANCED = ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb")

# What a user writes, and nothing of MIG in it.
USE = "import tensorflow as tf\ntf.random.uniform((256, 256))\nprint(len(tf.config.list_logical_devices('GPU')))\n"


USE_THE_LAST = """
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices(gpus[-1], "GPU")
tf.random.uniform((256, 256))
print(len(gpus))
"""


def a100(*mig: str | Instance, **fields) -> Gpu:
    return Gpu(**{**vars(A100), "mig": mig, **fields})


WHOLE, CUT = A100, a100("3g.20gb", "2g.10gb")
BUSY = {"processes": {5004242: "15GiB"}}
BUSY_CARD = Gpu(**{**vars(A100), **BUSY, "utilization": 97})


def names(server: Server) -> dict[str, str]:
    """By UUID, the place of each card and instance."""
    cards = {gpu.uuid: str(position) for position, gpu in enumerate(server.gpus)}
    return {**cards, **{each.uuid: f"{each.card}:{each.index}" for each in server.instances}}


def uuid_of(server: Server, place: str) -> str:
    return {value: key for key, value in names(server).items()}[place]


def places(calls) -> list[str]:
    """Where contexts were made."""
    made = [(call.gpu, call.instance) for call in calls if call.call == "context"]
    return sorted({str(gpu) if instance is None else f"{gpu}:{instance}" for gpu, instance in made})


def claimed(folder, server: Server) -> dict[int, list[str]]:
    """By pid, the places that its lease names."""
    of = names(server)
    return {lease["pid"]: sorted(of[uuid] for uuid in lease["gpus"]) for lease in leases(folder).values()}


def picked(autogpu, *options: str, **environ: str) -> list[str]:
    printed = autogpu("pick", "--format", "uuid", *options, **environ).stdout.strip()
    return [names(autogpu.server)[uuid] for uuid in printed.split(",") if uuid]


def held(autogpu, *options: str, **environ: str):
    """A program that holds GPUs, and their places."""
    holder = autogpu.hold(*options, environ=environ)
    line = holder.line()
    assert line, f"it has no GPU: {holder.end()}"
    return holder, [names(autogpu.server)[uuid] for uuid in line.split(",")]


# ---- which one a job gets ----


@pytest.mark.tensorflow
def test_jobs_in_the_same_second_get_a_place_each(host, commands, lease_folder):
    start = host(WHOLE, CUT)
    jobs = [start() for _ in range(3)]
    assert [job.ready() for job in jobs] == ["ready GPU:0"] * 3
    used = {job.pid: places(start.server.calls(pid=job.pid)) for job in jobs}
    assert sorted(used.values()) == [["0"], ["1:0"], ["1:1"]]
    assert claimed(lease_folder, start.server) == used
    assert picked(commands(start.server), "--busy", "error") == []
    for job in jobs:
        assert job.end()[0] == 0
    assert leases(lease_folder) == {}


def test_a_child_stays_on_the_instance_of_its_parent(lab):
    autogpu = lab(a100(*BALANCED))
    asks = f'echo "$CUDA_VISIBLE_DEVICES"; {autogpu.python} -m autogpu pick --format uuid; exec cat >/dev/null'
    parent = autogpu.hold("--devices", "*1g.5gb", program=("sh", "-c", asks))
    assert parent.line() == parent.line()
    status, said = parent.end()
    assert (status, "reserved already" in said) == (0, True), said


@pytest.mark.tensorflow
def test_ranks_of_a_launcher_get_an_instance_each(host, lease_folder):
    start = host(a100("3g.20gb", "3g.20gb"))
    # Each has a parent of its own here, and so the second one shares what the first one has claimed.
    environ = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "AUTOGPU_WAIT": "0"}
    ranks = [start(**environ, OMPI_COMM_WORLD_RANK=n, OMPI_COMM_WORLD_LOCAL_RANK=n) for n in ("0", "1")]
    assert [rank.ready() for rank in ranks] == ["ready GPU:0"] * 2
    used = {rank.pid: places(start.server.calls(pid=rank.pid)) for rank in ranks}
    assert sorted(used.values()) == [["0:0"], ["0:1"]]
    # The first rank to come claims for all of them.
    assert all(set(used[pid]) <= set(place) for pid, place in claimed(lease_folder, start.server).items())
    assert set(claimed(lease_folder, start.server)) == set(used)


@pytest.mark.tensorflow
def test_a_limit_holds_on_an_instance(train):
    ran = train(a100(*BALANCED))(USE, AUTOGPU_DEVICES="*2g.10gb", AUTOGPU_LIMIT="50%", AUTOGPU_GROWTH="false")
    assert (ran.stdout, places(ran.calls)) == ("1\n", ["0:1"]), ran.stderr
    assert ran.said[0].startswith("autogpu: GPU 0:1 (NVIDIA A100-SXM4-40GB MIG 2g.10gb, ")
    arenas = [call.bytes for call in ran.calls if call.call == "allocate" and call.bytes > GIB]
    assert [size >> 20 for size in arenas] == [9984 // 2]


def test_a_job_waits_for_an_instance(lab):
    autogpu = lab(a100("3g.20gb", "1g.5gb"))
    first, got = held(autogpu, "--need", "10GiB")
    assert got == ["0:0"]
    waiter = autogpu.hold("--need", "10GiB", "--busy", "wait")
    assert "waiting" in waiter.line("stderr")
    # What is too small for it is free, and stays so for others.
    assert picked(autogpu, "--busy", "error") == ["0:1"]
    assert first.end()[0] == 0
    assert names(autogpu.server)[waiter.line()] == "0:0"
    assert waiter.end()[0] == 0


def test_two_jobs_that_fit_share_an_instance(lab, lease_folder):
    autogpu = lab(a100("2g.10gb"))
    both = [held(autogpu, "--limit", "3GiB") for _ in range(2)]
    assert [got for _, got in both] == [["0:0"]] * 2
    assert len(leases(lease_folder)) == 2
    assert picked(autogpu, "--need", "6GiB", "--busy", "error") == []
    for holder, _ in both:
        assert holder.end()[0] == 0


# ---- whole cards beside cards that are cut ----


@pytest.fixture(params=[pytest.param(BEFORE_R570, marks=pytest.mark.thorough), R570], ids=["before-R570", "R570"])
def driver(request):
    return request.param


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        pytest.param([WHOLE, a100("3g.20gb", "1g.5gb")], "0", id="whole-card-first-in-line"),
        pytest.param([a100("3g.20gb", "1g.5gb"), WHOLE], "1", id="whole-card-last-in-line"),
        pytest.param([BUSY_CARD, a100("3g.20gb", "1g.5gb"), BUSY_CARD], "1:0", id="a-free-instance-before-a-busy-card"),
        pytest.param([a100(), WHOLE, a100()], "1", id="beside-cards-without-instances"),
    ],
)
def test_on_a_mixed_server_one_job_gets_one_place(train, driver, cards, expected):
    ran = train(*cards, driver=driver)(USE)
    assert places(ran.calls) == [expected], ran.stderr


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param("0", "1", id="cuda-counts-whole-cards-first"),
        pytest.param("1", "0:0", id="and-then-instances"),
        pytest.param("{1}", "1", id="a-whole-card"),
        pytest.param("{0:1}", "0:1", id="an-instance"),
        pytest.param("{0}", "0:0", id="a-card-stands-for-its-instances"),
    ],
)
def test_a_list_that_was_given_means_what_it_means_to_cuda(train, driver, visible, expected):
    run = train(a100("3g.20gb", "2g.10gb"), WHOLE, driver=driver)
    value = uuid_of(run.server, visible[1:-1]) if visible.startswith("{") else visible
    given = run(USE, CUDA_VISIBLE_DEVICES=value)
    assert (given.stdout, places(given.calls)) == ("1\n", [expected]), given.stderr
    hard_coded = run(f"import os\nos.environ['CUDA_VISIBLE_DEVICES'] = {value!r}\n{USE}")
    assert places(hard_coded.calls) == [expected], hard_coded.stderr


@pytest.mark.tensorflow
@pytest.mark.parametrize("cards", [[CUT], [WHOLE, CUT], [CUT, WHOLE]], ids=["cut", "whole-and-cut", "cut-and-whole"])
def test_a_script_finds_as_many_gpus_as_without_autogpu(train, driver, cards):
    run = train(*cards, driver=driver)
    without = run(USE_THE_LAST, AUTOGPU="0")
    ran = run(USE_THE_LAST)
    assert ran.stdout == without.stdout, ran.stderr
    assert len(places(ran.calls)) == 1


USE_BOTH = USE + "for name in ('/GPU:0', '/GPU:1'):\n    with tf.device(name):\n        tf.random.uniform((256, 256))\n"


@pytest.mark.tensorflow
def test_several_gpus_are_whole_cards(train, driver):
    ran = train(a100(*BALANCED), WHOLE, a100(*BALANCED), WHOLE, driver=driver)(USE_BOTH, AUTOGPU_COUNT="2")
    assert (ran.stdout, places(ran.calls)) == ("2\n", ["1", "3"]), ran.stderr


@pytest.mark.tensorflow
def test_where_all_cards_are_cut_a_job_that_wants_two_gets_one_and_is_told(train, driver):
    ran = train(a100(*BALANCED), driver=driver)(USE, AUTOGPU_COUNT="2")
    assert (ran.stdout, places(ran.calls)) == ("1\n", ["0:0"]), ran.stderr
    assert "a process can have one MIG instance" in ran.said[0]


@pytest.mark.tensorflow
def test_a_job_that_wants_two_takes_a_busy_card_only_with_a_word_of_the_free_instance(train):
    run = train(BUSY_CARD, a100("3g.20gb"))
    ran = run(USE, AUTOGPU_COUNT="2")
    assert places(ran.calls) == ["0"]
    (said,) = ran.said
    assert "shared: pid 5004242" in said
    assert "GPU 1:0 is free, but several GPUs are whole cards" in said
    # Who does not share gets the instance instead.
    ran = run(USE, AUTOGPU_COUNT="2", AUTOGPU_BUSY="error")
    assert places(ran.calls) == ["1:0"]
    assert "a process can have one MIG instance" in ran.said[0]


# ---- containers ----


@pytest.mark.tensorflow
@pytest.mark.parametrize("denied", ["refuse", pytest.param("omit", marks=pytest.mark.thorough)])
def test_in_a_container_with_one_instance_it_is_that_one(train, commands, tmp_path, denied):
    files = tmp_path / "dev"
    for name in ("nvidia1", "nvidia-caps/gpu1/gi3/access"):
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).touch()
    run = train(a100(*BALANCED), a100(*BALANCED), device_files=str(files), denied=denied)
    ran = run(USE)
    assert (ran.stdout, places(ran.calls)) == ("1\n", ["1:1"]), ran.stderr
    shown = [gpu["uuid"] for gpu in commands(run.server).status()["gpus"]]
    assert shown == [uuid_of(run.server, "1"), uuid_of(run.server, "1:1")]


# ---- what the commands say ----


def test_status_shows_instances_under_their_card(lab):
    autogpu = lab(WHOLE, a100("3g.20gb", Instance("1g.5gb", processes={5004242: "3GiB"})))
    of = names(autogpu.server)
    holder, got = held(autogpu, "--devices", "*3g.20gb")
    shown = {of[gpu["uuid"]]: gpu for gpu in autogpu.status()["gpus"]}
    assert list(shown) == ["0", "1", "1:0", "1:1"]
    assert (got, [job["pid"] for job in shown["1:0"]["jobs"]]) == (["1:0"], [holder.process.pid])
    assert [shown[place]["jobs"] for place in ("0", "1", "1:1")] == [[], [], []]
    assert [shown[place]["state"] for place in ("0", "1:0", "1:1")] == ["free", "busy", "busy"]
    assert [process["pid"] for process in shown["1:1"]["unmanaged_processes"]] == [5004242]
    assert shown["1:1"]["memory_total_bytes"] == 4864 << 20
    assert holder.end()[0] == 0


def test_doctor_finds_nothing_wrong_with_instances(lab):
    autogpu = lab(WHOLE, a100(*BALANCED))
    findings = json.loads(autogpu("doctor", "--json").stdout)["findings"]
    failed = {each["check"] for each in findings if each["state"] == "failed"}
    assert failed.isdisjoint({"driver", "health", "cuda"}), findings


# ---- other frameworks ----


@pytest.mark.framework
@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_jobs_of_another_framework_get_an_instance_each(framework, machine_of):
    machine = machine_of(framework, a100("3g.20gb", "2g.10gb", "1g.5gb"))
    jobs = [machine.start(AT_ONCE[framework]) for _ in range(3)]
    assert [job.line() for job in jobs] == ["imported"] * 3
    for job in jobs:
        job.go_on()
    assert all(job.line().startswith("ready") for job in jobs)
    used = {job.pid: places(machine.server.calls(pid=job.pid)) for job in jobs}
    assert sorted(used.values()) == [["0:0"], ["0:1"], ["0:2"]]
    assert claimed(machine.leases, machine.server) == used


@pytest.mark.framework
@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_another_framework_gets_the_whole_card_of_a_mixed_server(framework, machine_of):
    machine = machine_of(framework, a100(*BALANCED), WHOLE)
    first, second = (machine.start(AT_ONCE[framework]) for _ in range(2))
    for job, expected in ((first, ["1"]), (second, ["0:0"])):
        assert job.line() == "imported"
        job.go_on()
        assert job.line().startswith("ready")
        assert places(machine.server.calls(pid=job.pid)) == expected


@pytest.mark.framework
@pytest.mark.xdist_group("together")
def test_the_memory_of_an_instance_runs_out(machine_of):
    shared = Instance("1g.5gb", processes={5004242: "2GiB"})
    fill = "import torch\nkept = [torch.empty(1 << 30, dtype=torch.uint8, device='cuda') for _ in range(9)]\n"
    first, second, _ = machine_of("torch", a100(shared)).run(fill, fresh=True, AUTOGPU_WAIT="0").said[-3:]
    assert first.startswith(
        "autogpu: out of memory on GPU 0:0 (4.8 GiB): this process may take 2.2 GiB there, because "
    )
    assert second == "autogpu: also there: pid 5004242, 2.0 GiB"
