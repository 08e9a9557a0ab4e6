"""The GPUs that ``autogpu pick`` names, and why; and what every command that chooses says alike."""

from __future__ import annotations

import re
import sys

import pytest

from autogpu.cli import main as frame
from autogpu.cli.request import listing
from autogpu.policy import Policy
from tests.cli.lab import autogpu, holders, running, server
from tests.gpusim import Gpu, Server
from tests.support.values import cut, gpu, inventory

__all__ = ["server"]  # a fixture

asked_in_each_way = pytest.mark.parametrize(
    "command", [("pick",), ("wait", "--timeout", "0"), ("run", "--hold", "--", "true")], ids=" ".join
)


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (("--count", "2"), "export CUDA_VISIBLE_DEVICES={0[2].uuid},{0[1].uuid}"),
        (("--format", "uuid"), "{0[2].uuid}"),
        (("--format", "index"), "2"),
        (("--format", "docker"), '"device={0[2].uuid}"'),
    ],
    ids=["for-eval", "uuid", "index", "docker"],
)
def test_picked_gpus_are_one_line(server, options, printed):
    done = autogpu(server, "pick", *options)
    assert (done.returncode, done.stdout) == (0, printed.format(server.gpus) + "\n")
    gpus = "GPU 2 and GPU 1" if "--count" in options else "GPU 2"
    assert done.stderr.startswith(f"autogpu: {gpus} picked, not reserved: ")


@pytest.mark.parametrize(
    ("options", "environ", "taken"),
    [
        (("--prefer", "1"), {}, "1"),
        ((), {"AUTOGPU_PREFER": "0,1,2"}, "1"),  # 0 is a colleague's
        (("--prefer", "2", "--prefer", "1"), {"AUTOGPU_PREFER": "1"}, "2"),
    ],
)
def test_of_equally_idle_gpus_the_preferred_one_is_picked(server, options, environ, taken):
    done = autogpu(server, "pick", "--format", "index", *options, **environ)
    assert (done.returncode, done.stdout) == (0, f"{taken}\n")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--devices", "1"), "the only one of select.devices"),
        (("--exclude", "0,2"), "the only one that select.exclude leaves"),
        (
            ("--devices", "0-1", "--exclude", "0", "--count", "2"),
            "the only one of select.devices; select.count asks for 2",
        ),
    ],
)
def test_where_the_policy_narrows_it_is_said_of_what_it_is_the_only_one(server, options, why):
    assert f": {why}" in autogpu(server, "pick", *options).stderr


def test_a_list_without_commas_is_told_what_was_meant(server):
    done = autogpu(server, "pick", AUTOGPU_DEVICES="1 2")
    assert 'AUTOGPU_DEVICES: select.devices can\'t hold "1 2" (write commas between them)' in done.stderr
    assert "which ones: --devices 1,2)" in autogpu(server, "pick", "--count", "1,2").stderr


def test_beside_a_card_in_mig_mode_numbers_are_not_certain_and_uuids_are_written():
    policy, whole = Policy(identifier="index"), gpu(1)
    numbered = listing([whole], policy, inventory(gpu(0), whole))
    assert numbered == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
    # Before R570 CUDA counts whole cards first: number 1 would be the card in MIG mode.
    assert listing([whole], policy, inventory(*cut(0, 5), whole)) == {"CUDA_VISIBLE_DEVICES": whole.uuid}


def test_a_pick_regards_claims_and_says_why_not_the_others(server, tmp_path, lease_folder):
    (tmp_path / "train.py").write_text("input()")
    held = running(server, "--hold", "--", sys.executable, str(tmp_path / "train.py"))
    try:
        assert held.stderr.readline().startswith("autogpu: GPU 2 for train.py: ")
        assert holders(lease_folder) == ["train.py"]
        done = autogpu(server, "pick", "--format", "index", "--explain")
    finally:
        held.communicate("\n", timeout=60)
    assert done.stdout == "1\n"
    assert "GPU 2: place" in done.stderr
    assert "claimed by train.py" in done.stderr


@pytest.mark.parametrize(
    ("options", "environ", "status", "said"),
    [
        (("--devices", "0"), {"AUTOGPU_BUSY": "wait"}, 75, "no GPU"),
        (("--devices", "0"), {}, 75, "to start now: --wait 0"),
        (("--busy", "wait"), {}, 2, "--busy wait: pick holds nothing, and does not wait; `autogpu wait` returns when"),
        (("--count", "two"), {}, 2, "--count"),
        ((), {"CUDA_VISIBLE_DEVICES": "-1"}, 1, "hides every GPU"),
    ],
    ids=["the-policy-would-wait", "it-would-wait-to-share", "asked-to-wait", "asked-wrongly", "hidden"],
)
def test_a_pick_of_nothing_tells_eval_so(server, options, environ, status, said):
    done = autogpu(server, "pick", *options, **environ)
    assert (done.returncode, done.stdout) == (status, f"(exit {status})\n")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("options", "printed", "said"),
    [
        (("--count", "0"), "export CUDA_VISIBLE_DEVICES=-1\n", "no GPU: select.count is 0\n"),
        (("--count", "0", "--format", "index"), "-1\n", "no GPU: select.count is 0\n"),
        (("--devices", "0", "--busy", "cpu"), "export CUDA_VISIBLE_DEVICES=-1\n", "no GPU is free (GPU 0: "),
        (("--busy", "cpu"), "export CUDA_VISIBLE_DEVICES={0[2].uuid}\n", "GPU 2 picked"),
    ],
    ids=["none-wanted", "as-an-index", "rather-the-cpu", "one-is-free"],
)
def test_a_program_that_shall_do_without_a_gpu_is_shown_none(server, options, printed, said):
    done = autogpu(server, "pick", *options)
    assert (done.returncode, done.stdout) == (0, printed.format(server.gpus))
    assert done.stderr.startswith(f"autogpu: {said}")


def test_a_pick_of_the_cpu_says_why_not_the_gpus(server):
    told = autogpu(server, "pick", "--devices", "0", "--busy", "cpu", "--explain").stderr.splitlines()
    assert told[1].startswith("autogpu:   GPU 0: place 1: busy, ")


def test_docker_is_not_told_to_use_no_gpu(capsys):
    assert frame.run(["pick", "--count", "0", "--format", "docker"]) == 1
    said = "autogpu: no GPU: select.count is 0\nautogpu: start the container without --gpus\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("options", [("--count", "0"), ("--busy", "cpu")], ids=" ".join)
def test_without_a_driver_a_pick_of_no_gpu_is_one(capsys, options):
    assert frame.run(["pick", *options]) == 0
    assert capsys.readouterr().out == "export CUDA_VISIBLE_DEVICES=-1\n"


def test_a_list_that_is_given_twice_has_the_entries_of_both(server):
    twice = autogpu(server, "pick", "--exclude", "0", "--exclude", "1", "--format", "index")
    assert twice.stdout == autogpu(server, "pick", "--exclude", "0,1", "--format", "index").stdout == "2\n"


@asked_in_each_way
def test_a_list_that_names_no_gpu_here_is_spoken_of(server, command):
    said = "autogpu: select.devices = 7 (AUTOGPU_DEVICES) matches none of the GPUs here; there are the indices 0 to 2: "
    for devices in ("7", "1,7"):
        assert said in autogpu(server, *command, AUTOGPU_DEVICES=devices).stderr
    assert "matches" not in autogpu(server, *command, AUTOGPU_DEVICES="1").stderr


@asked_in_each_way
def test_where_every_gpu_is_lost_that_is_said(tmp_path, lease_folder, command):
    (tmp_path / "lost").mkdir()
    with Server([Gpu(nvml="GPU_IS_LOST")] * 2, folder=tmp_path / "lost") as lost:
        done = autogpu(lost, *command)
    assert done.returncode == 1
    assert re.match(r"autogpu: no GPU can be read \(GPU 0: .*; GPU 1: .*\)\n", done.stderr)
    assert "CUDA_VISIBLE_DEVICES" not in done.stderr


def test_a_pick_asks_for_what_a_limit_leaves_and_stays_inside_the_inherited_list(server):
    server.change(1, processes={5004243: "8GiB"})
    assert autogpu(server, "pick", "--devices", "0,1", "--limit", "8GiB", "--format", "index").stdout == "1\n"
    assert autogpu(server, "pick", "--devices", "0", "--limit", "8GiB").returncode == 75
    inherited = {"CUDA_VISIBLE_DEVICES": server.gpus[1].uuid}
    assert autogpu(server, "pick", "--format", "index", **inherited).stdout == "1\n"


def test_without_a_driver_a_pick_fails_in_words(capsys):
    assert frame.run(["pick"]) == 1
    said = capsys.readouterr()
    assert said.out == "(exit 1)\n"
    assert said.err.startswith("autogpu: no NVIDIA driver on this machine\n")
