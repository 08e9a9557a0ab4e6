"""The status as Prometheus metrics, read by Prometheus' own parser and compared with docs/monitoring.md."""

import re
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from autogpu import __version__
from autogpu.cli.main import run
from autogpu.devices.model import FailureCause, Inventory, Process, UnreadableDevice
from autogpu.frozen import replace
from autogpu.status.prometheus import METRICS, exposition
from tests.gpusim import Gpu, Server
from tests.support.environments import ROOT
from tests.support.host_states import HOUR_S, holder, host, waiter
from tests.support.values import gpu, inventory

PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"^```promql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# A metric of node_exporter, and the labels that Prometheus adds to every sample.
OF_OTHERS = {"node_textfile_mtime_seconds": ("file",)}
OF_EACH_TARGET = {"instance", "job"}

GIB = 1 << 30
TITAN = "NVIDIA TITAN RTX"


def parsed(text):
    """Return the labels and value of each sample, keyed by metric."""
    families = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in families, "each family comes once"
        assert family.type == "gauge"
        assert {sample.name for sample in family.samples} <= {family.name}
        families[family.name] = [(sample.labels, sample.value) for sample in family.samples]
    return families


def values(host_status, name, *labels):
    """Return the values of a metric, keyed by the values of ``labels`` with spaces between them."""
    samples = parsed(exposition(host_status))[f"autogpu_{name}"]
    found = {" ".join(each[label] for label in labels): value for each, value in samples}
    assert len(found) == len(samples)
    return found


DESKTOP = (Process(50, 64 << 20),)
MACHINE = inventory(
    gpu(0, used_gib=6, pids=[7, 99], busy=97, remapping_failed=True, graphics_processes=DESKTOP),
    gpu(1, total_gib=None, used_gib=None, busy=None, name="NVIDIA GB10"),
    gpu(2, used_gib=2, pids=[8]),
    unreadable=(UnreadableDevice(3, "lost"),),
    driver_version="550.54.15",
)
HOLDERS = [holder("a", (0, 24)), holder("b", (2, 12), script="eda.ipynb", pid=8, age_s=26 * HOUR_S)]
WAITERS = [waiter(1, "w.py"), waiter(2, "v.py", gib=6)]
LAB = host(MACHINE, HOLDERS, WAITERS)


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("info", "version driver_version", {f"{__version__} 550.54.15": 1}),
        ("driver_read_success", "", {"": 1}),
        ("leases_read_success", "", {"": 1}),
        ("gpu_health_problems", "gpu", {"0": 1, "1": 0, "2": 0}),
        ("gpu_read_success", "gpu name", {f"0 {TITAN}": 1, "1 NVIDIA GB10": 1, f"2 {TITAN}": 1, "3 ": 0}),
        ("gpu_memory_bytes", "gpu", {"0": 24 * GIB, "2": 24 * GIB}),
        ("gpu_memory_used_bytes", "gpu uuid", {f"0 {gpu(0).uuid}": 6 * GIB, f"2 {gpu(2).uuid}": 2 * GIB}),
        ("gpu_utilization_ratio", "gpu", {"0": 0.97, "2": 0}),
        ("claims", "gpu user", {"0 ann": 1, "2 ann": 1}),
        ("idle_claims", "gpu script", {"0 train.py": 0, "2 eda.ipynb": 1}),
        ("claim_bytes", "gpu script", {"0 train.py": 24 * GIB, "2 eda.ipynb": 12 * GIB}),
        ("claim_used_bytes", "gpu script", {"0 train.py": 3 * GIB, "2 eda.ipynb": 2 * GIB}),
        ("unmanaged_processes", "gpu user", {"0 bob": 1}),
        ("unmanaged_used_bytes", "gpu user", {"0 bob": 3 * GIB}),
        ("waiters", "", {"": 2}),
        ("longest_wait_seconds", "", {"": 90}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_metric_has_the_value_of_the_status(name, labels, expected):
    assert values(LAB, name, *labels.split()) == expected


def test_each_gpu_is_in_one_state():
    found = values(LAB, "gpu_state", "gpu", "state")
    assert {key for key, value in found.items() if value} == {"0 busy", "1 awaited", "2 idle_lease"}
    assert len(found) == 3 * 4


def test_jobs_with_the_same_labels_are_added_up():
    holders = [holder("a", (0, 6), group="x", pid=7), holder("b", (0, 4), pid=8), holder("c", (0, 2), script="c.py")]
    lab = host(inventory(gpu(0, used_gib=6, pids=[7, 8])), holders, [waiter(1, "w.py"), waiter(2, "w.py")])
    lab = replace(lab, queue=(replace(lab.queue[0], waited_s=120.04), lab.queue[1]))
    assert values(lab, "claims", "script") == {"train.py": 2, "c.py": 1}
    assert values(lab, "claim_bytes", "script") == {"train.py": 10 * GIB, "c.py": 2 * GIB}
    assert values(lab, "longest_wait_seconds") == {"": 120}


MISMATCH = "NVML reports: mismatch"


@pytest.mark.parametrize("cause", [FailureCause.DRIVER, FailureCause.NO_DRIVER])
def test_unreadable_driver_and_leases_are_metrics_with_value_0(cause):
    blind = host(Inventory(failure=MISMATCH, failure_cause=cause))
    blind = replace(blind, lease_folder_problem="belongs to uid 7 alone")
    for name in ("driver_read_success", "leases_read_success", "longest_wait_seconds"):
        assert values(blind, name) == {"": 0}


def test_every_metric_is_declared_even_without_samples():
    for machine in (inventory(), inventory(gpu(0)), Inventory(failure=MISMATCH, failure_cause=FailureCause.DRIVER)):
        assert list(parsed(exposition(host(machine)))) == [f"autogpu_{name}" for name in METRICS]


@pytest.mark.parametrize(
    ("script", "label"),
    [
        pytest.param('a"b', 'a"b', id="quote"),
        pytest.param("a\\nb", "a\\nb", id="backslash"),
        pytest.param("a\nb} 1\nautogpu_waiters 99", "a\\nb} 1\\nautogpu_waiters 99", id="newline"),
        pytest.param("\x1b[2J\u202e", "\\x1b[2J\\u202e", id="terminal"),
        pytest.param("训练.py", "训练.py", id="unicode"),
        pytest.param("x" * 5000, f"{'x' * 40}...{'x' * 21}", id="long-name-is-shortened"),
    ],
)
def test_label_has_the_escaped_and_shortened_name_of_the_script(script, label):
    lab = host(inventory(gpu(0)), [holder("a", (0, 24), script=script)])
    assert values(lab, "claims", "script") == {label: 1}
    exposition(lab).encode("utf-8")


def labels_of(name):
    """Return the label names of a metric; all of its samples must have the same ones."""
    (names,) = {tuple(labels) for labels, _ in parsed(exposition(LAB))[f"autogpu_{name}"]}
    return names


def test_monitoring_page_lists_each_metric_with_its_labels():
    rows = re.findall(r"^\| `(autogpu_\w+)` \| (.*?) ?\| (.*) \|$", PAGE, re.MULTILINE)
    listed = [(name, tuple(re.findall(r"`(\w+)`", labels)), about) for name, labels, about in rows]
    assert listed == [(f"autogpu_{name}", labels_of(name), about) for name, about in METRICS.items()]


@pytest.mark.parametrize("query", [line for block in QUERIES for line in block.splitlines()])
def test_query_of_the_monitoring_page_uses_only_listed_metrics(query):
    known = {**{f"autogpu_{name}": labels_of(name) for name in METRICS}, **OF_OTHERS}
    named = re.findall(r"\b(?:autogpu|node)_\w+", query)
    assert named
    for name in named:
        assert f"`{name}`" in PAGE
    by = [label for inside in re.findall(r"\bby \(([^)]*)\)", query) for label in inside.split(", ")]
    filters = re.findall(r"(\w+)=~?\"", query)
    for name in named:
        assert set(by + filters) <= {*known[name], *OF_EACH_TARGET}


def test_cron_line_of_the_monitoring_page_writes_the_metrics_file(tmp_path, lease_folder):
    (line,) = re.findall(r"^\* \* \* \* \* root (.*)$", PAGE, re.MULTILINE)
    folder = tmp_path / "collected"
    folder.mkdir()
    own = {"/opt/lab/bin/autogpu": f"{sys.executable} -m autogpu", "/var/lib/prometheus/node-exporter": str(folder)}
    for there, here in own.items():
        assert there in line
        line = line.replace(there, here)
    # cron starts a plain shell in the POSIX locale.
    environ = {"PYTHONPATH": str(ROOT), "LC_ALL": "POSIX"}
    with Server([Gpu(), Gpu(nvml="GPU_IS_LOST")], folder=tmp_path) as server:
        done = server.run(["/bin/sh", "-c", line], environ=environ, cwd="/")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [file.name for file in folder.iterdir()] == ["autogpu.prom"]
    found = parsed((folder / "autogpu.prom").read_text(encoding="utf-8"))
    assert [(labels["gpu"], value) for labels, value in found["autogpu_gpu_read_success"]] == [("0", 1), ("1", 0)]


def test_metrics_without_a_driver_are_printed_with_exit_status_0(capfd):
    assert run(["status", "--format", "prometheus"]) == 0
    said = capfd.readouterr()
    assert (parsed(said.out)["autogpu_driver_read_success"], said.err) == ([({}, 0)], "")


@pytest.mark.parametrize("option", ["--watch", "--json", "--mine", "--explain"])
def test_prometheus_format_can_not_be_combined_with_other_options(option, capfd):
    assert run(["status", "--format", "prometheus", option]) == 2
    said = capfd.readouterr()
    assert (said.out, said.err.count("--format prometheus can't be combined with --")) == ("", 1)
