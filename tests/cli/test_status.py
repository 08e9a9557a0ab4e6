"""``autogpu status``: its screen, ``--watch``, and its JSON."""

import json
import re
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import jsonschema
import pytest

from autogpu.cli import status_screen as screens
from autogpu.cli.status_screen import View, ordered
from autogpu.devices.model import ComputeMode, FailureCause, Inventory, Process, UnreadableDevice
from autogpu.frozen import replace
from autogpu.lease import Processes
from autogpu.status.model import Answer, LeaseFolder, UnreadableLease
from autogpu.status.prometheus import exposition
from autogpu.status.remote import from_json
from autogpu.text import GIB
from tests.cli.conftest import OnTerminal
from tests.gpusim import Gpu, Server
from tests.support.host_states import HOUR_S, NOW_S, holder, host, waiter
from tests.support.values import cut, gpu, inventory

SCHEMA = (Path(__file__).resolve().parents[2] / "docs" / "status.schema.json").read_text()

# Larger than any pid of Linux, so that the owner is unknown.
UNKNOWN_PID = (1 << 22) + 1

# A script that creates a context on the first GPU, claims that GPU, and keeps both until its stdin is closed.
HOLD = """
import ctypes, os, sys
from autogpu import lease
from autogpu.devices import cuda as driver
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
uuid = driver.visible_uuids()[0]
wanted = lease.Lease(lease.find_folder(os.environ), sys.argv[1])
held = lease.acquire_lease(wanted, lambda *_: {uuid: 6 << 30})
print("ready", flush=True)
sys.stdin.read()
"""


def screen(view, width=100, **wanted):
    """Return the lines of the screen without the first line, which describes the host and has its own tests."""
    return [line.plain for line in screens.lines(view, View(width, **wanted))][1:]


def fitted(view, height, width=80):
    return [line.plain for line in screens.fitted([Answer("", view)], View(width), height)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Return a server, its variables, and a job that holds GPU 0. No test changes them."""
    folder, leases = tmp_path_factory.mktemp("server"), tmp_path_factory.mktemp("leases")
    leases.chmod(0o1777)
    environ = {"AUTOGPU_LEASE_DIR": str(leases), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with Server([Gpu(), Gpu(processes={UNKNOWN_PID: "2GiB"}, utilization=40)], folder=folder) as server:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        job = server.popen([sys.executable, "-c", HOLD, "/home/me/train.py"], environ=environ, **pipes)
        try:
            assert job.stdout.readline() == "ready\n"
            yield server, environ, job
        finally:
            job.communicate(timeout=60)


def ask(lab, *options):
    server, environ, _ = lab
    return server.run([sys.executable, "-m", "autogpu", "status", *options], environ=environ)


def test_screen_shows_the_claim_and_the_memory_of_a_real_job(lab):
    done = ask(lab)
    assert (done.returncode, done.stderr) == (0, "")
    head, heading, *lines = done.stdout.splitlines()
    assert re.fullmatch(r".+, \w+ \d\d \w+ \d\d:\d\d, driver 580\.95\.05, 0 of 2 GPUs free", head)
    assert heading.split() == ["name", "memory,", "GiB", "claimed", "utilization", "state"]
    assert re.search(r"GPU 0 .* [#█][=▒]+[.░]+ +0\.\d of 24\.0 +6\.0 .* 0 %  busy$", lines[0])
    who = rf"^ +\S+ +train\.py \(pid {lab[2].pid}\) uses 0\.\d of 6\.0 GiB, for \d+ s, idle$"
    assert re.search(who, lines[1])
    assert re.search(rf"unknown +pid {UNKNOWN_PID}, uses 2\.0 GiB, no claim$", lines[3])
    assert "With `autogpu run`, a script would get GPU" in done.stdout


@pytest.mark.slow
def test_web_page_of_this_host_shows_a_real_job(lab):
    done = ask(lab, "--format", "html")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("<!DOCTYPE html>\n")
    assert re.search(rf"</b> train\.py \(pid {lab[2].pid}\) uses 0\.\d of 6\.0 GiB, for \d+ s, ", done.stdout)
    read = datetime.strptime(re.search('<time datetime="(.*?)"', done.stdout)[1], "%Y-%m-%dT%H:%M:%S%z")
    assert time.time() - 60 < read.timestamp() <= time.time()


def closed(part):
    """Return a part of a schema, changed to reject unknown fields if it describes an object."""
    return {"additionalProperties": False, **part} if part.get("type") == "object" else part


@pytest.mark.slow
def test_json_is_as_documented_and_every_field_is_in_the_schema(lab):
    told = json.loads(ask(lab, "--json").stdout)
    jsonschema.validate(told, json.loads(SCHEMA, object_hook=closed))
    assert [gpu["state"] for gpu in told["gpus"]] == ["busy", "busy"]
    assert [job["pid"] for job in told["gpus"][0]["jobs"]] == [lab[2].pid]
    assert told["gpus"][0]["jobs"][0]["claim_bytes"] == 6 << 30
    age = r"for \d+ s"
    shown = [re.sub(age, "for 1 s", line) for line in screen(from_json(told), 120)]
    assert shown == [re.sub(age, "for 1 s", line) for line in ask(lab).stdout.splitlines()[1:]]
    of_one_user = json.loads(ask(lab, "--mine", "--json").stdout)
    jsonschema.validate(of_one_user, json.loads(SCHEMA))
    assert [gpu["index"] for gpu in of_one_user["gpus"]] == [0]


def idle(job_age_s):
    return host(inventory(gpu(0, used_gib=1, pids=[7])), [holder("a", (0, 24), age_s=job_age_s)])


def queued(**wanted):
    return host(inventory(*map(gpu, range(6))), [], [waiter(1, "w.py", **wanted)])


def shared():
    processes = (Process(4391, int(4.9 * GIB)), Process(4392, GIB // 8))
    machine = inventory(gpu(0, used_gib=5, busy=40, compute_processes=processes, active_pids=[4391]))
    return host(machine, [holder("a", (0, 6), pid=4391, age_s=2520), holder("b", (0, 0), pid=4392, age_s=2520)])


def claimed():
    machine = inventory(gpu(0, used_gib=6, pids=[7]), gpu(1, used_gib=2, compute_processes=(Process(9, 2 * GIB),)))
    return host(machine, [holder("a", (0, 12)), holder("b", (0, 6), pid=8)])


NO_DRIVER, DRIVER, _, PYNVML = FailureCause


def unread(cause, said):
    return host(Inventory(failure=f"NVML reports: {said}", failure_cause=cause))


LOST = inventory(gpu(0), unreadable=(UnreadableDevice(1, "GPU is lost"),))
UNKNOWN = inventory(gpu(0, total_gib=None, used_gib=None, busy=None, name="NVIDIA GB10"))
FOLDER = LeaseFolder("/run/autogpu", "host", "root", 0)
UNREADABLE = tuple(UnreadableLease(f"job.7.7.{number}", user, "no") for number, user in enumerate(("mal", "")))
FOUR = inventory(*map(gpu, range(4)))


@pytest.mark.parametrize(
    ("view", "line"),
    [
        pytest.param(idle(26 * HOUR_S), r"GPU 0 .*  idle lease", id="idle-lease"),
        pytest.param(idle(26 * HOUR_S), r".* uses 1.0 of 24.0 GiB, for 26 h, idle", id="idle-job"),
        pytest.param(queued(), r"  1. bob w.py \(pid 88\): 1 whole GPU, for 90 s", id="queue"),
        pytest.param(queued(joins=True), r"  1. .*: 1 GPU, whole or shared, for 90 s", id="queue-to-share"),
        pytest.param(
            queued(gib=6, silent_s=9), r"  1. .* with 6.0 GiB, for 90 s, unresponsive: passed over", id="silent"
        ),
        pytest.param(queued(gpus=(0, 1, 2, 3, 4, 5)), r".*: 1 whole GPU, for 90 s", id="queue-for-any"),
        pytest.param(queued(gpus=(2,)), r".*: 1 whole GPU, only GPU 2, for 90 s", id="queue-for-one"),
        pytest.param(queued(gpus=(5, 0, 3)), r".*, only GPU 0, GPU 3 and GPU 5, for 90 s", id="queue-for-several"),
        pytest.param(queued(gpus=(9,)), r".*, only GPUs that are not shown here, for 90 s", id="queue-for-none-here"),
        pytest.param(queued(), r"A script started here would get .*", id="preview"),
        pytest.param(shared(), r" +ann +train.py \(pid 4391\) uses 4.9 of 6.0 GiB, for 42 min, active", id="one-of-2"),
        pytest.param(shared(), r" +ann .*\(pid 4392\) best effort, uses 0.1 GiB, for 42 min, idle", id="best-effort"),
        pytest.param(claimed(), r"GPU 0 .* ████▒▒▒▒▒▒▒▒░░░░  6.0 of 24.0     18.0 .*", id="claimed-beyond-used"),
        pytest.param(claimed(), r"GPU 1 .* █░░░░░░░░░░░░░░░  2.0 of 24.0        - .*", id="not-claimed"),
        pytest.param(unread(NO_DRIVER, "no library"), "No NVIDIA driver on this host.", id="no-driver"),
        pytest.param(unread(DRIVER, "bad"), "NVML reports: bad; if `nvidia-smi` fails too, .*", id="broken-driver"),
        pytest.param(unread(PYNVML, "none"), "NVML reports: none; `pip install nvidia-ml-py`", id="no-pynvml"),
        pytest.param(
            replace(host(FOUR), lease_folder=FOLDER, unreadable_leases=UNREADABLE),
            r"GPUs may be claimed although they look free, because files in /run/autogpu can't be read: "
            r"job.7.7.0 of mal \(no\) and 1 more; ask the owner or root to remove them",
            id="unreadable-files",
        ),
        pytest.param(host(LOST), "GPU 1  not readable: GPU is lost", id="lost"),
        pytest.param(host(UNKNOWN), r"GPU 0  GB10 .*\?\?\?\?.*  \? %.*", id="missing-readings"),
        pytest.param(
            host(FOUR, AUTOGPU_DEVICES="7"),
            r"select.devices = 7 .* this host has GPUs 0 to 3, named .*",
            id="no-such-gpu",
        ),
    ],
)
def test_screen_shows_the_expected_line(view, line):
    assert [each for each in screen(view) if re.fullmatch(line, each)], "\n".join(screen(view))


@pytest.mark.parametrize(
    ("slurm", "expected"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0"}, "1 free of 2 GPUs granted by Slurm"),
        ({}, "3 of 4 GPUs free"),
    ],
    ids=["slurm-job", "own-cuda-visible-devices"],
)
def test_only_gpus_granted_by_slurm_are_counted(slurm, expected):
    machine = inventory(gpu(0, used_gib=9, pids=[7], busy=90), gpu(1), gpu(2), gpu(3))
    view = host(machine, SLURM_STEP_GPUS="0,1", CUDA_VISIBLE_DEVICES="0,1", **slurm)
    assert expected in fitted(view, height=40)[0].split(", ")


def test_preview_for_a_python_without_the_hook_requires_autogpu_run():
    lines = screen(host(inventory(gpu(0)), hook=None))
    at = lines.index(screens.no_hook(View(100)))
    assert lines[at + 1].startswith("With `autogpu run`, a script would get GPU 0: ")
    assert not any(line.startswith("A script started here would get") for line in lines)


def test_preview_mentions_the_hook_of_the_host(tmp_path):
    (tmp_path / "autogpu-private").mkdir()
    status = host(inventory(gpu(0)), hook=str(tmp_path / "sitecustomize.py"))
    assert any(
        line.startswith("With the host's autogpu, a script started here would get GPU 0") for line in screen(status)
    )
    assert status.to_json()["has_hosts_hook"] is True


@pytest.mark.parametrize("variable", ["AUTOGPU", "AUTOGPU_ENABLED"])
def test_missing_hook_is_not_reported_if_autogpu_is_switched_off(variable):
    off = host(inventory(gpu(0)), hook=None, **{variable: "0"})
    # Another version on another host may word its reason differently.
    off = replace(off, preview=replace(off.preview, why="off"))
    assert screens.no_hook(View(100)) not in screen(off)


@pytest.mark.slow
def test_preview_depends_on_whether_python_loads_the_hook(lab):
    server, environ, _ = lab
    commands = (["status"], ["run", "--", sys.executable, "-m", "autogpu", "status"])
    shown = [server.run([sys.executable, "-m", "autogpu", *command], environ=environ).stdout for command in commands]
    assert ["A script started here would get GPU" in text for text in shown] == [False, True]


def test_sixteen_gpus_with_two_hundred_processes_stay_readable():
    lines = screen(crowded(16, 0, 13), width=80)
    assert len(lines) < 16 * 4 + 14
    assert sum("and 12 more processes not managed by autogpu, 12.0 GiB" in line for line in lines) == 16
    assert max(len(line) for line in lines if line.startswith("GPU")) <= 80


LONG = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        pytest.param("NVIDIA GeForce RTX 2080 Ti", 60, "RTX 2080 Ti", id="without-the-maker"),
        pytest.param("NVIDIA A100-SXM4-80GB", 60, "A100-SXM4-80GB", id="with-the-size"),
        pytest.param(LONG, 120, "RTX PRO 6000 Blackwell Server Edition", id="whole"),
        pytest.param(LONG, 80, "RTX PRO 6000 Blackwell S…", id="cut"),
        pytest.param(LONG, 60, "RTX PRO 6000 Bl…", id="narrow"),
    ],
)
def test_gpu_name_is_cut_so_that_each_gpu_fits_into_one_line(name, width, shown):
    machine = inventory(gpu(0, name=name, used_gib=1, pids=[7]))
    row = screen(host(machine, [holder("a", (0, 24), age_s=26 * HOUR_S)]), width)[1]
    assert re.match(f"GPU 0 +{re.escape(shown)} ", row), row
    assert (row.endswith("idle lease"), len(row) <= width) == (True, True)


def test_colours_are_readable_on_light_and_dark_backgrounds():
    lost = UnreadableDevice(2, "lost")
    machine = inventory(gpu(0, used_gib=1, pids=[7]), gpu(1, used_gib=9, pids=[8]), unreadable=(lost,))
    view = host(machine, [holder("a", (0, 24), age_s=26 * HOUR_S)], [waiter(1, "w.py")])
    lines = list(screens.lines(view, View(100)))
    styles = [str(style) for line in lines for style in (line.style, *(span.style for span in line.spans))]
    assert set(" ".join(styles).split()) <= {"bold", "reverse", "red", "green", "cyan", "magenta"}
    assert styles.count("bold reverse") == 2, "the GPU's state and its holder stand out, also without colours"


def test_watch_drops_details_before_it_cuts_lines():
    high, middle, low, least = (fitted(crowded(16, 0, 13), height) for height in (200, 40, 24, 10))
    assert sum("and 12 more processes" in line for line in high) == 16
    for lines in (middle, low):
        assert sum(line.startswith("GPU ") for line in lines) == 16
        assert any(line.startswith("A script started here would get ") for line in lines)
    assert len(least) == 9
    assert least[-1].endswith("more lines; `autogpu status` prints all")


def test_watch_folds_long_lines():
    jobs = [holder(name, (0, 8), script="long" * 9, age_s=26 * HOUR_S) for name in "ab"]
    lines = fitted(host(inventory(gpu(0, used_gib=1, pids=[7])), jobs), 24)
    assert max(map(len, lines)) <= 80
    assert lines[4] == "        GiB, for 26 h, idle"


def crowded(gpus, jobs, processes):
    """Return a host on which each GPU has ``jobs`` jobs, and ``processes`` processes without a claim."""
    others = tuple(Process(5000 + number, GIB) for number in range(processes))
    machine = inventory(*[gpu(index, used_gib=2, compute_processes=others) for index in range(gpus)])
    holders = [holder(f"{index}-{job}", (index, 2), uid=1000 + job) for index in range(gpus) for job in range(jobs)]
    return host(machine, holders, pids=Processes({}))


@pytest.mark.parametrize(
    ("view", "width", "owners"),
    [
        pytest.param(crowded(16, 1, 0), 80, " ann", id="job"),
        pytest.param(crowded(16, 4, 0), 80, "busy ann, bob, uid …", id="four-jobs"),
        pytest.param(crowded(16, 4, 0), 56, "busy ann, bob…", id="narrow"),
        pytest.param(crowded(16, 0, 2), 80, "busy bob", id="process"),
    ],
)
def test_watch_shows_owners_beside_each_gpu_if_job_lines_do_not_fit(view, width, owners):
    rows = [line for line in fitted(view, 20, width) if line.startswith("GPU ")]
    assert len(rows) == 16
    assert all(row.endswith(owners) for row in rows)
    assert max(map(len, rows)) <= width


@pytest.mark.parametrize(
    ("order", "labels"),
    [("number", "0 1 1:0 1:1 2 3"), ("memory", "1 1:0 1:1 3 0 2"), ("utilization", "3 0 2 1 1:0 1:1")],
)
def test_busiest_gpus_are_first_and_instances_stay_below_their_card(order, labels):
    card, first, second = cut(1, 20, 20)
    parts = (card, first, replace(second, memory_used_bytes=19 * GIB))
    view = host(inventory(gpu(0, used_gib=3, busy=40), *parts, gpu(2, busy=40), gpu(3, used_gib=4, busy=90)))
    assert [each.label for each in ordered(view.gpus, order)] == labels.split()


def test_ranking_is_shown_only_with_explain():
    view = host(inventory(gpu(0), gpu(1)))
    assert not any("first choice" in line or "choice 2" in line for line in screen(view))
    assert sum("first choice" in line or "choice 2" in line for line in screen(view, is_explained=True)) == 2


@pytest.mark.parametrize(
    ("owner_uid", "holder_uid", "is_explained", "is_told"),
    [(1000, None, False, False), (1000, 1000, False, False), (1000, 1001, False, True), (1000, None, True, True)],
    ids=["no-job", "own-job", "job-of-another-user", "explain"],
)
def test_fallback_folder_is_shown_with_explain_or_jobs_of_other_users(owner_uid, holder_uid, is_explained, is_told):
    jobs = [] if holder_uid is None else [holder("a", (0, 24), uid=holder_uid)]
    folder = LeaseFolder("/var/tmp/autogpu.v1", "fallback", "ann", owner_uid)
    view = replace(host(inventory(gpu(0)), jobs), lease_folder=folder)
    told = [line for line in screen(view, is_explained=is_explained) if line.startswith("Claims are in ")]
    assert len(told) == is_told


def test_option_user_hides_other_jobs_but_counts_their_claims():
    machine = inventory(gpu(0), gpu(1), gpu(2))
    jobs = [holder("a", (0, 6)), holder("b", (0, 6), uid=1001, pid=8), holder("c", (1, 24))]
    queue = [replace(waiter(1, "first.py"), uid=1000), waiter(2, "second.py")]
    lines = screen(host(machine, jobs, queue), user="bob")
    assert [line[:6] for line in lines if line.startswith("GPU")] == ["GPU 0 "]
    assert " 12.0 " in lines[1]
    assert [line.split()[0] for line in lines if "train.py" in line] == ["bob"]
    assert [line for line in lines if ".py (pid 88)" in line] == ["  2. bob second.py (pid 88): 1 whole GPU, for 90 s"]
    assert not any("script started here" in line for line in lines)
    lost = replace(machine, unreadable=(UnreadableDevice(3, "GPU is lost"),))
    assert screen(host(lost, jobs, queue), user="bob") == lines, "nobody knows whose it was"
    assert host(lost, jobs, queue).of_user("bob").unreadable == ()
    assert screen(host(machine, jobs, queue), user="eve") == ["eve has no GPU and no place in the queue."]


def test_first_line_has_host_time_and_counts_of_free_and_awaited_gpus():
    machine = inventory(gpu(0), gpu(1), gpu(2, used_gib=9, pids=[7]), gpu(3))
    view = host(machine, [holder("a", (2, 24))], [waiter(1, "w.py", gpus=(1, 2)), waiter(2, "v.py", gib=30)])
    head = next(screens.lines(view, View(100))).plain
    when = time.strftime("%a %d %b %H:%M", time.localtime(NOW_S))
    assert head == f"lab, {when}, 2 of 4 GPUs free, 1 awaited, 2 jobs waiting"
    rows = [line for line in screen(view) if line.startswith("GPU ")]
    assert [row.rsplit(" ", 1)[1] for row in rows] == ["free", "awaited", "busy", "free"]
    assert "awaited" not in [gpu.state for gpu in host(machine, [], [waiter(1, "w.py", silent_s=60)]).gpus], (
        "passed over"
    )
    one = host(inventory(gpu(0), gpu(1)), [holder("a", (1, 24))], [waiter(1, "w.py")])
    assert next(screens.lines(one, View(100))).plain.endswith(", 1 job waiting")


LISTS = {
    "exclude": ({"AUTOGPU_EXCLUDE": "0"}, "2 of 3 GPUs free, 1 excluded", ["excluded", "free", "busy", "free"]),
    "exclude-a-busy-gpu": (
        {"AUTOGPU_EXCLUDE": "2"},
        "3 of 3 GPUs free, 1 excluded",
        ["free", "free", "excluded", "free"],
    ),
    "devices": ({"AUTOGPU_DEVICES": "2-3"}, "1 of 2 GPUs free, 2 excluded", ["excluded", "excluded", "busy", "free"]),
    "devices-nothing": ({"AUTOGPU_DEVICES": "9"}, "no usable GPU, 4 excluded", ["excluded"] * 4),
    "cuda-visible-devices-wins": (
        {"AUTOGPU_EXCLUDE": "0", "CUDA_VISIBLE_DEVICES": "0,1"},
        "3 of 4 GPUs free",
        ["free", "free", "busy", "free"],
    ),
    "count-zero": (
        {"AUTOGPU_EXCLUDE": "0", "AUTOGPU_COUNT": "0"},
        "2 of 3 GPUs free, 1 excluded",
        ["excluded", "free", "busy", "free"],
    ),
    "switched-off": ({"AUTOGPU_EXCLUDE": "0", "AUTOGPU": "0"}, "3 of 4 GPUs free", ["free", "free", "busy", "free"]),
}


@pytest.mark.parametrize(("environ", "head", "states"), LISTS.values(), ids=list(LISTS))
def test_excluded_gpu_is_not_counted_as_free(environ, head, states):
    view = host(inventory(gpu(0), gpu(1), gpu(2, used_gib=9, pids=[7]), gpu(3)), [holder("a", (2, 24))], **environ)
    assert [each.state for each in view.gpus] == states
    assert next(screens.lines(view, View(100))).plain.endswith(f", {head}")
    lines = screen(view)
    rows = [line for line in lines if re.match("GPU [0-9] ", line)]
    assert [row.rsplit(" ", 1)[1] for row in rows] == states
    assert any("train.py (pid 7)" in line for line in lines), "who is on an excluded GPU is shown as well"
    metrics = exposition(view)
    free = re.findall(r'autogpu_gpu_state{gpu="(.)".*state="free"} 1', metrics)
    assert free == [str(index) for index, state in enumerate(states) if state == "free"]


def test_control_characters_in_names_never_reach_the_terminal():
    evil = "\x1b[2J[red]x[/red]\u202e" + "A" * 10_000
    machine = inventory(gpu(0, name=evil, used_gib=1, pids=[7]), unreadable=(UnreadableDevice(1, evil),))
    text = "\n".join(screen(host(machine, [holder("a", (0, 1), script=evil)], [waiter(1, evil)])))
    assert ("\x1b" in text, "\u202e" in text) == (False, False)
    assert "[red]x[/red]" in text, "markup is text"
    assert max(map(len, text.splitlines())) < 1200


@pytest.mark.parametrize(
    ("machine", "free", "state"),
    [
        (inventory(gpu(0), gpu(1, compute_mode=ComputeMode.PROHIBITED)), "1 of 1 GPU free", "prohibited"),
        (inventory(gpu(0), gpu(1, is_small=True)), "1 of 1 GPU free", "too small"),
        (inventory(*cut(0), *cut(1)), "no usable GPU", "MIG, no instance"),
        (inventory(gpu(0), *(cut(index)[0] for index in range(1, 5))), "1 of 1 GPU free", "MIG, no instance"),
    ],
    ids=["prohibited", "small-card-beside-a-larger-one", "mig-alone", "mig-beside-others"],
)
def test_gpu_that_no_job_can_use_is_not_free(machine, free, state):
    head, *lines = [line.plain for line in screens.lines(host(machine), View(120))]
    assert head.endswith(f", {free}")
    assert [line for line in lines if line.startswith("GPU ")][-1].endswith(f"  {state}")


@pytest.mark.parametrize(("width", "height"), [(80, 23), (60, 23), (60, 11)])
def test_watch_help_fits_the_terminal_and_keeps_its_columns(width, height):
    lines = [line.plain for line in screens.help_lines(width, height)]
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert {line[12:13] for line in lines} <= {"", " "}
    assert len(lines) == 12 or width < 80


@pytest.mark.slow
@pytest.mark.parametrize("end", ["ctrl-c", "q"])
def test_watch_redraws_obeys_keys_and_restores_the_terminal(lab, end):
    server, environ, _ = lab
    environ = {**environ, "TERM": "xterm-256color", "COLUMNS": "60", "LINES": "24"}
    screen = OnTerminal(server.popen, "status", "-w", "--interval", "0.5", is_whole=True, environ=environ)
    screen.until_shown("train.py", times=2)
    screen.until_shown("q: quit, s: sort (number), h: help")
    screen.type("h")
    screen.until_shown("held for half an hour or more", times=2)
    screen.type("hs")
    screen.until_shown("sort (memory)", times=2)
    if end == "q":
        screen.type("q")
    else:
        screen.process.send_signal(signal.SIGINT)
    assert screen.process.wait(timeout=60) == 0
    assert screen.echoes(), "as before"
    screen.end()
    assert "\x1b[?1049h" in screen.shown
    assert screen.shown.rindex("\x1b[?1049l") > screen.shown.rindex("train.py"), "the screen is as it was before"
    assert "Traceback" not in screen.shown
