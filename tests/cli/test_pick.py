"""``autogpu pick``: its output and its reasons, and messages that ``wait`` and ``run --hold`` print as well."""

import re
import sys

import pytest

from autogpu.cli import main as frame
from tests.cli.conftest import autogpu, holders, running
from tests.gpusim import Gpu, Server

asked_in_each_way = pytest.mark.parametrize("command", ["pick", "wait --timeout 0", "run --hold -- true"])
NO_GPU = "export CUDA_VISIBLE_DEVICES=-1"
NOT_RESERVED = "picked GPU 2 (not reserved): the idlest of 3"

# Options, stdout ({0} is the list of GPUs) and a part of stderr, keyed by rule.
PICKS = {
    "for-eval": ("--count 2", "export CUDA_VISIBLE_DEVICES={0[2].uuid},{0[1].uuid}", "picked GPU 2 and GPU 1 ("),
    "uuid": ("--format uuid", "{0[2].uuid}", NOT_RESERVED),
    "index": ("--format index", "2", NOT_RESERVED),
    "docker": ("--format docker", '"device={0[2].uuid}"', NOT_RESERVED),
    "preferred": ("--prefer 1 --format index", "1", "picked GPU 1 ("),
    "preferred-in-this-order": ("--prefer 2 --prefer 1 --format index", "2", "picked GPU 2 ("),
    "list-given-twice": ("--exclude 0 --exclude 1 --format index", "2", ": the only one that select.exclude leaves"),
    "list-with-commas": ("--exclude 0,2 --format index", "1", ": the only one that select.exclude leaves"),
    "only-one-allowed": ("--devices 1 --format index", "1", ": the only one of select.devices"),
    "only-one-of-two": (
        "--devices 0-1 --exclude 0 --count 2 --format index",
        "1",
        "\nautogpu: select.count asks for 2 GPUs",
    ),
    "none-wanted": ("--count 0", NO_GPU, "picked no GPU: select.count is 0\n"),
    "none-wanted-as-an-index": ("--count 0 --format index", "-1", "picked no GPU: select.count is 0\n"),
    "rather-the-cpu": ("--devices 0 --busy cpu", NO_GPU, "no GPU is free; GPU 0: "),
    "rather-the-cpu-explained": ("--devices 0 --busy cpu --explain", NO_GPU, "\nautogpu:   GPU 0: choice 1: busy, "),
    "one-is-free": ("--busy cpu", "export CUDA_VISIBLE_DEVICES={0[2].uuid}", "picked GPU 2"),
}


@pytest.mark.parametrize(("options", "printed", "said"), PICKS.values(), ids=list(PICKS))
def test_pick_prints_one_line_and_explains_it_on_stderr(server, options, printed, said):
    done = autogpu(server, "pick", *options.split())
    assert (done.returncode, done.stdout) == (0, printed.format(server.gpus) + "\n")
    assert (done.stderr[:9], said in done.stderr) == ("autogpu: ", True), done.stderr


REFUSALS = {
    "the-policy-would-wait": ("--devices 0", {"AUTOGPU_BUSY": "wait"}, 75, "autogpu: no GPU is free; GPU 0: "),
    "it-would-wait-to-share": ("--devices 0", {}, 75, "; to start now: --wait 0"),
    "need-does-not-fit-now": ("--devices 0 --need 20GiB", {"AUTOGPU_BUSY": "cpu"}, 75, "20.0 GiB"),
    "need-never-fits": ("--devices 0 --need 900GiB", {"AUTOGPU_BUSY": "error"}, 1, "900"),
    "asked-to-wait": ("--busy wait", {}, 2, "--busy wait: pick does not wait; to wait for free GPUs: `autogpu wait`; "),
    "asked-wrongly": ("--count 1,2", {}, 2, "to choose which: --devices 1,2)"),
    "hidden": ("", {"CUDA_VISIBLE_DEVICES": "-1"}, 1, "hides every GPU"),
}


@pytest.mark.parametrize(("options", "environ", "status", "said"), REFUSALS.values(), ids=list(REFUSALS))
def test_failed_pick_prints_an_exit_command_for_eval(server, options, environ, status, said):
    done = autogpu(server, "pick", *options.split(), **environ)
    assert (done.returncode, done.stdout) == (status, f"(exit {status})\n")
    assert said in done.stderr


def test_pick_respects_variables_limits_and_the_inherited_list(server):
    def picked(*options, **environ):
        return autogpu(server, "pick", "--format", "index", *options, **environ).stdout

    assert picked(AUTOGPU_PREFER="0,1,2") == "1\n", "0 is a colleague's"
    assert picked("--prefer", "2", AUTOGPU_PREFER="1") == "2\n"
    assert picked(CUDA_VISIBLE_DEVICES=server.gpus[1].uuid) == "1\n"
    server.change(1, processes={5004243: "8GiB"})
    assert picked("--devices", "0,1", "--limit", "8GiB") == "1\n"
    assert picked("--devices", "0", "--limit", "8GiB") == ""
    wrong = autogpu(server, "pick", AUTOGPU_DEVICES="1 2").stderr
    assert 'AUTOGPU_DEVICES: select.devices can\'t contain "1 2" (write commas between them)' in wrong


def test_pick_avoids_claimed_gpus_and_explains_the_ranking(server, tmp_path, lease_folder):
    (tmp_path / "train.py").write_text("input()")
    held = running(server, "--hold", "--", sys.executable, str(tmp_path / "train.py"))
    try:
        assert held.stderr.readline().startswith(
            "autogpu: GPU 2 (NVIDIA TITAN RTX, 24.0 of 24.0 GiB free) for train.py: "
        )
        assert holders(lease_folder) == ["train.py"]
        done = autogpu(server, "pick", "--format", "index", "--explain")
    finally:
        held.communicate("\n", timeout=60)
    assert done.stdout == "1\n"
    assert "GPU 2: choice" in done.stderr
    assert "claimed by train.py" in done.stderr


@asked_in_each_way
def test_select_devices_entry_that_matches_no_gpu_causes_a_warning(server, command):
    said = (
        "autogpu: select.devices = 7 (AUTOGPU_DEVICES) matches none of the GPUs here; this host has GPUs 0 to 2, named "
    )
    for devices in ("7", "1,7"):
        assert said in autogpu(server, *command.split(), AUTOGPU_DEVICES=devices).stderr
    assert "matches" not in autogpu(server, *command.split(), AUTOGPU_DEVICES="1").stderr


@asked_in_each_way
def test_loss_of_every_gpu_is_an_error_with_a_reason_for_each_gpu(tmp_path, lease_folder, command):
    with Server([Gpu(nvml="GPU_IS_LOST")] * 2, folder=tmp_path) as lost:
        done = autogpu(lost, *command.split())
    assert done.returncode == 1
    assert re.match(r"autogpu: no GPU can be read \(GPU 0: .*; GPU 1: .*\)\n", done.stderr)
    assert "CUDA_VISIBLE_DEVICES" not in done.stderr


@pytest.mark.parametrize(
    ("gpus", "why", "remedy"),
    [
        pytest.param(
            [Gpu(name="NVIDIA A100"), Gpu(name="NVIDIA T4")],
            "",
            "list the GPUs by UUID, or set CUDA_DEVICE_ORDER=PCI_BUS_ID",
            id="two-models",
        ),
        pytest.param(
            [Gpu(), Gpu(nvml="GPU_IS_LOST"), Gpu()],
            " while GPU 1 can't be read",
            "list the GPUs by UUID",
            id="lost-gpu",
        ),
    ],
)
def test_number_that_may_mean_several_gpus_is_refused(tmp_path, lease_folder, gpus, why, remedy):
    with Server(gpus, folder=tmp_path) as server:
        done = autogpu(server, "pick", CUDA_VISIBLE_DEVICES="1")
    said = f"autogpu: can't tell which GPUs CUDA_VISIBLE_DEVICES=1 selects{why}\nautogpu: {remedy}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "(exit 1)\n", said)


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("pick", "if the program can use the CPU: --busy cpu"),
        ("wait", "waiting can't help; if this is a container, see `autogpu doctor`"),
        ("run --hold --busy error -- true", "to start the command without a GPU: --busy cpu"),
    ],
    ids=["pick", "wait", "run"],
)
def test_each_command_has_its_own_remedy_for_a_machine_without_a_driver(capsys, command, remedy):
    assert frame.run(command.split()) == 1
    assert capsys.readouterr().err == f"autogpu: this machine has no NVIDIA driver\nautogpu: {remedy}\n"


NO_DRIVER, IS_ZERO = "this machine has no NVIDIA driver\n", "picked no GPU: select.count is 0\n"


@pytest.mark.parametrize(
    ("options", "status", "printed", "said"),
    [
        ("", 1, "(exit 1)\n", NO_DRIVER),
        ("--count 0", 0, f"{NO_GPU}\n", IS_ZERO),
        ("--busy cpu", 0, f"{NO_GPU}\n", f"picked no GPU: {NO_DRIVER}"),
        ("--count 0 --format docker", 1, "", f"{IS_ZERO}autogpu: start the container without --gpus\n"),
    ],
)
def test_pick_without_a_driver_can_return_no_gpu_except_for_docker(capsys, options, status, printed, said):
    assert frame.run(["pick", *options.split()]) == status
    out, err = capsys.readouterr()
    assert (out, err.startswith(f"autogpu: {said}")) == (printed, True), err
