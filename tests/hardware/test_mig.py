"""Servers with cards in MIG mode: which instance or card a job gets.

A place is a card or an instance, written with the numbers of ``nvidia-smi``: ``0`` is card 0, ``0:1`` its instance 1.
"""

from __future__ import annotations

import pytest

from tests.gpusim import Gpu, Instance, Server
from tests.gpusim.fleets import A100
from tests.support.framework_jobs import AT_ONCE, FRAMEWORKS
from tests.support.live_jobs import leases

pytestmark = pytest.mark.timeout(600)

BEFORE_R570, R570 = "550.54.15", "570.133.20"
BALANCED = ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb")

# A user's script, which does not mention MIG.
USE = "import tensorflow as tf\ntf.random.uniform((256, 256))\nprint(len(tf.config.list_logical_devices('GPU')))\n"


def a100(*mig: str | Instance, **fields) -> Gpu:
    return Gpu(**{**vars(A100), "mig": mig, **fields})


WHOLE, CUT = A100, a100("3g.20gb", "2g.10gb")
BUSY = {"processes": {5004242: "15GiB"}}
BUSY_CARD = Gpu(**{**vars(A100), **BUSY, "utilization": 97})


def names(server: Server) -> dict[str, str]:
    """Return the place of each card and instance, keyed by UUID."""
    cards = {gpu.uuid: str(position) for position, gpu in enumerate(server.gpus)}
    return {**cards, **{each.uuid: f"{each.card}:{each.index}" for each in server.instances}}


def uuid_of(server: Server, place: str) -> str:
    return {value: key for key, value in names(server).items()}[place]


def places(calls) -> list[str]:
    """Return the places on which CUDA contexts were created."""
    made = [(call.gpu, call.instance) for call in calls if call.call == "context"]
    return sorted({str(gpu) if instance is None else f"{gpu}:{instance}" for gpu, instance in made})


def claimed(folder, server: Server) -> dict[int, list[str]]:
    """Return the places that each lease claims, keyed by pid."""
    of = names(server)
    return {lease["pid"]: sorted(of[uuid] for uuid in lease["gpus"]) for lease in leases(folder).values()}


def picked(autogpu, *options: str, **environ: str) -> list[str]:
    printed = autogpu("pick", "--format", "uuid", *options, **environ).stdout.strip()
    return [names(autogpu.server)[uuid] for uuid in printed.split(",") if uuid]


# ---- several jobs ----


@pytest.mark.tensorflow
def test_jobs_in_the_same_second_get_different_cards_or_instances(host, commands, lease_folder):
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


# ---- servers with whole cards and cards in MIG mode ----


@pytest.fixture(params=[pytest.param(BEFORE_R570, marks=pytest.mark.thorough), R570], ids=["before-R570", "R570"])
def driver(request):
    return request.param


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        pytest.param([WHOLE, a100("3g.20gb", "1g.5gb")], "0", id="whole-card-before-mig-card"),
        pytest.param([a100("3g.20gb", "1g.5gb"), WHOLE], "1", id="whole-card-after-mig-card"),
        pytest.param([BUSY_CARD, a100("3g.20gb", "1g.5gb"), BUSY_CARD], "1:0", id="free-instance-and-busy-cards"),
        pytest.param([a100(), WHOLE, a100()], "1", id="mig-cards-without-instances"),
    ],
)
def test_job_on_a_mixed_server_gets_one_card_or_instance(train, driver, cards, expected):
    ran = train(*cards, driver=driver)(USE)
    assert places(ran.calls) == [expected], ran.stderr


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param("0", "1", id="index-of-whole-card"),
        pytest.param("1", "0:0", id="index-of-instance-after-whole-cards"),
        pytest.param("{1}", "1", id="uuid-of-whole-card"),
        pytest.param("{0:1}", "0:1", id="uuid-of-instance"),
        pytest.param("{0}", "0:0", id="uuid-of-mig-card-means-its-instances"),
    ],
)
def test_cuda_visible_devices_has_the_same_meaning_as_for_cuda(train, driver, visible, expected):
    run = train(a100("3g.20gb", "2g.10gb"), WHOLE, driver=driver)
    value = uuid_of(run.server, visible[1:-1]) if visible.startswith("{") else visible
    given = run(USE, CUDA_VISIBLE_DEVICES=value)
    assert (given.stdout, places(given.calls)) == ("1\n", [expected]), given.stderr
    hard_coded = run(f"import os\nos.environ['CUDA_VISIBLE_DEVICES'] = {value!r}\n{USE}")
    assert places(hard_coded.calls) == [expected], hard_coded.stderr


# ---- containers ----


@pytest.mark.tensorflow
@pytest.mark.parametrize("denied", ["refuse", pytest.param("omit", marks=pytest.mark.thorough)])
def test_job_in_a_container_gets_the_instance_that_it_may_open(train, commands, tmp_path, denied):
    files = tmp_path / "dev"
    for name in ("nvidia1", "nvidia-caps/gpu1/gi3/access"):
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).touch()
    run = train(a100(*BALANCED), a100(*BALANCED), device_files=str(files), denied=denied)
    ran = run(USE)
    assert (ran.stdout, places(ran.calls)) == ("1\n", ["1:1"]), ran.stderr
    shown = [gpu["uuid"] for gpu in commands(run.server).status()["gpus"]]
    assert shown == [uuid_of(run.server, "1"), uuid_of(run.server, "1:1")]


# ---- other frameworks ----


@pytest.mark.framework
@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_pytorch_and_jax_jobs_get_an_instance_each(framework, machine_of):
    machine = machine_of(framework, a100("3g.20gb", "2g.10gb", "1g.5gb"))
    jobs = [machine.start(AT_ONCE[framework]) for _ in range(3)]
    assert [job.line() for job in jobs] == ["imported"] * 3
    for job in jobs:
        job.go_on()
    assert all(job.line().startswith("ready") for job in jobs)
    used = {job.pid: places(machine.server.calls(pid=job.pid)) for job in jobs}
    assert sorted(used.values()) == [["0:0"], ["0:1"], ["0:2"]]
    assert claimed(machine.leases, machine.server) == used
