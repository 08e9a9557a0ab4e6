"""What each script of ``tests/frameworks/tensorflow/scripts`` is granted without and with autogpu, and the test."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping

import pytest

from tests.gpusim import Server
from tests.support import driver_grants, environments
from tests.support.forkserver import Ended, Forks, Host
from tests.support.tensorflow_runner import CONTEXT, LAB
from tests.support.versions import Version

SCRIPTS = Path(__file__).resolve().parents[1] / "frameworks" / "tensorflow" / "scripts"

# GPUs 0 and 2 of the lab are at work for others. CUDA counts 1, 3, 0, 2, and autogpu 3, 1, 2, 0. Those that TensorFlow
# takes whole are small here: of the memory that an allocator takes, it keeps a list that has a thirtieth of its size.
GPUS = tuple(gpu if gpu.processes else dataclasses.replace(gpu, memory="6064MiB") for gpu in LAB)
MACHINES = {"four-gpus": GPUS, "one-gpu": GPUS[1:2], "no-gpu": ()}
NO_GPU = "no GPU"
# Where the script and the shell say nothing: TensorFlow's way and the policy's.
TAKES_ALL = "GPU 1 whole, contexts on 0, 2, 3"
IDLEST = "GPU 3 grows"
WHOLE_ONE, GROWS_ONE = "GPU 0 whole", "GPU 0 grows"
FAILS = "fails"


@dataclass(frozen=True, eq=False)
class Case:
    """A script, how it is started, and what it is granted.

    Attributes:
        four: On four GPUs, without and with autogpu.
        one: On one GPU, likewise.
        environ: Of the shell.
        machines: Where it is run.
        since: The first version that the script is for.
        until: The first one that it is not for.
    """

    script: str
    four: tuple[str, str]
    one: tuple[str, str]
    environ: Mapping[str, str] = field(default_factory=dict)
    machines: tuple[str, ...] = tuple(MACHINES)
    since: tuple[int, int] = (1, 15)
    until: tuple[int, int] = (3, 0)

    @property
    def name(self) -> str:
        """The script with what the shell says."""
        return "-".join([self.script, *(f"{name}={value}" for name, value in self.environ.items())])


NEITHER = (NO_GPU, NO_GPU)
UNSAID = (TAKES_ALL, IDLEST)
UNSAID_ONE = (WHOLE_ONE, GROWS_ONE)
EAGER = (2, 0)


def shell(value: str, four: tuple[str, str], **environ: str) -> Case:
    set_there = {"CUDA_VISIBLE_DEVICES": value, **environ}
    return Case("shell_only", four, NEITHER, set_there, machines=("four-gpus",))


CASES = (
    Case("shell_only", UNSAID, UNSAID_ONE),
    # Of CUDA's 1 and 2, physical 3 and 0, the first is the idle one; on a machine with one GPU the list names none.
    Case(
        "shell_only",
        ("GPU 3 whole, contexts on 0", IDLEST),
        NEITHER,
        {"CUDA_VISIBLE_DEVICES": "1,2"},
    ),
    shell("1,2", ("GPU 1 whole, contexts on 2", "GPU 1 grows"), CUDA_DEVICE_ORDER="PCI_BUS_ID"),
    shell("-1", NEITHER),
    shell("", NEITHER),
    shell("-1,0", NEITHER),
    Case("visible_before_import", ("GPU 2 whole", "GPU 2 grows"), NEITHER, since=EAGER),
    Case("visible_minus_one_before_import", NEITHER, NEITHER),
    Case("visible_minus_one_first_before_import", NEITHER, NEITHER, since=EAGER),
    Case("visible_after_import", ("GPU 1 whole", "GPU 1 grows"), UNSAID_ONE),
    Case("visible_two_after_import", ("GPU 1 whole, contexts on 2", "GPU 1 grows"), NEITHER, since=EAGER),
    Case("visible_empty_after_import", NEITHER, NEITHER),
    Case("visible_minus_one_after_import", NEITHER, NEITHER, since=EAGER),
    Case("visible_minus_one_first_after_import", NEITHER, NEITHER),
    Case("device_gpu_0", UNSAID, UNSAID_ONE),
    Case("device_gpu_0_eager", UNSAID, UNSAID_ONE, since=EAGER),
    # The third in CUDA's order; softly, the only one that it was given.
    Case("device_gpu_2_soft", ("GPU 0 whole, contexts on 1, 2, 3", IDLEST), UNSAID_ONE),
    Case("config_allow_growth", ("GPU 1 grows, contexts on 0, 2, 3", IDLEST), (GROWS_ONE, GROWS_ONE)),
    # Of 6064 MiB, in steps of 16: each is some MiB above one, since older versions ask for odd parts of what is given.
    Case(
        "config_fraction_0_3",
        ("GPU 1 1808 MiB, contexts on 0, 2, 3", "GPU 3 grows to 1808 MiB"),
        ("GPU 0 1808 MiB", "GPU 0 grows to 1808 MiB"),
    ),
    Case(
        "config_fraction_0_4",
        ("GPU 1 2416 MiB, contexts on 0, 2, 3", "GPU 3 grows to 2416 MiB"),
        ("GPU 0 2416 MiB", "GPU 0 grows to 2416 MiB"),
    ),
    Case(
        "config_fraction_0_6",
        ("GPU 1 3632 MiB, contexts on 0, 2, 3", "GPU 3 grows to 3632 MiB"),
        ("GPU 0 3632 MiB", "GPU 0 grows to 3632 MiB"),
    ),
    Case(
        "config_fraction_0_7",
        ("GPU 1 4240 MiB, contexts on 0, 2, 3", "GPU 3 grows to 4240 MiB"),
        ("GPU 0 4240 MiB", "GPU 0 grows to 4240 MiB"),
    ),
    Case(
        "config_gpu_options",
        ("GPU 1 2016 MiB, contexts on 0, 2, 3", "GPU 3 grows to 2016 MiB"),
        ("GPU 0 2016 MiB", "GPU 0 grows to 2016 MiB"),
    ),
    Case("config_soft_and_log", UNSAID, UNSAID_ONE),
    Case(
        "keras_set_session",
        ("GPU 1 grows, contexts on 0, 2, 3", IDLEST),
        (GROWS_ONE, GROWS_ONE),
        until=(2, 16),
    ),
    # Two different cards are named, and get two; that each position has its own is a policy's word.
    Case("multi_tower", ("GPU 0 whole, GPU 2 whole, contexts on 1, 3", "GPU 1 grows, GPU 3 grows"), (FAILS, FAILS)),
    Case(
        "multi_tower",
        ("GPU 0 whole, GPU 2 whole, contexts on 1, 3", "GPU 0 grows, GPU 2 grows, contexts on 1, 3"),
        (FAILS, FAILS),
        {"AUTOGPU_COUNT": "4"},
        machines=("four-gpus",),
    ),
    Case("graph_gpu_2", ("GPU 0 whole, contexts on 1, 2, 3", IDLEST), (FAILS, FAILS)),
    Case(
        "graph_gpu_0_and_1",
        ("GPU 1 whole, GPU 3 whole, contexts on 0, 2", "GPU 1 grows, GPU 3 grows"),
        (FAILS, FAILS),
    ),
    # The policy's word for the number of cards: both halves are on one.
    Case(
        "graph_gpu_0_and_1",
        ("GPU 1 whole, GPU 3 whole, contexts on 0, 2", IDLEST),
        (FAILS, FAILS),
        {"AUTOGPU_COUNT": "1"},
        machines=("four-gpus",),
    ),
    Case("graph_named_late", ("GPU 1 whole, GPU 3 whole, contexts on 0, 2", IDLEST), (FAILS, FAILS)),
    Case("copies_late", ("GPU 1 whole, GPU 3 whole, contexts on 0, 2", IDLEST), (FAILS, FAILS), since=EAGER),
    Case(
        "device_count_2",
        ("GPU 1 whole, GPU 3 whole, contexts on 0, 2", "GPU 1 grows, GPU 3 grows"),
        UNSAID_ONE,
    ),
    Case("eager_gpu_1_first", ("GPU 3 whole, contexts on 0, 1, 2", IDLEST), UNSAID_ONE, since=EAGER),
    Case(
        "mirrored_two_named",
        ("GPU 1 whole, GPU 3 whole, contexts on 0, 2", "GPU 1 grows, GPU 3 grows"),
        UNSAID_ONE,
        since=EAGER,
    ),
    Case(
        "counts_and_takes_all",
        ("GPU 0 whole, GPU 1 whole, GPU 2 whole, GPU 3 whole", "GPU 1 grows, GPU 3 grows"),
        UNSAID_ONE,
    ),
    Case("only_lists", ("contexts on 0, 1, 2, 3", NO_GPU), ("contexts on 0", NO_GPU)),
    Case("visible_third", ("GPU 0 whole", IDLEST), (FAILS, FAILS), since=EAGER),
    Case("session_visible_list_2", ("GPU 0 whole", IDLEST), (FAILS, FAILS)),
    # TensorFlow's own answer: older ones refuse the list, and 1.15 aborts.
    Case("session_visible_list_none", (FAILS, FAILS), (FAILS, FAILS), until=(2, 20)),
    Case("session_visible_list_none", NEITHER, NEITHER, since=(2, 20)),
    Case("session_visible_list_9", (FAILS, FAILS), (FAILS, FAILS)),
    Case(
        "placed_hard",
        ("GPU 1 whole, GPU 3 whole, contexts on 0, 2", IDLEST),
        (FAILS, FAILS),
        since=EAGER,
    ),
    # Its words are "the first two": CUDA's without autogpu, the idlest with it.
    Case("visible_list", ("GPU 1 whole, contexts on 3", "GPU 3 grows, contexts on 1"), UNSAID_ONE, since=EAGER),
    Case("visible_none", NEITHER, NEITHER, since=EAGER),
    Case("growth_for_all", ("GPU 1 grows, contexts on 0, 2, 3", IDLEST), (GROWS_ONE, GROWS_ONE), since=EAGER),
    Case("growth_for_the_first", (FAILS, IDLEST), (GROWS_ONE, GROWS_ONE), since=EAGER),
    Case(
        "limit_1024",
        ("GPU 1 1024 MiB, contexts on 0, 2, 3", "GPU 3 1024 MiB"),
        ("GPU 0 1024 MiB", "GPU 0 1024 MiB"),
        since=EAGER,
    ),
    Case(
        "limit_two_of_2048",
        ("GPU 1 2048 MiB + 2048 MiB", "GPU 3 2048 MiB + 2048 MiB"),
        ("GPU 0 2048 MiB + 2048 MiB", "GPU 0 2048 MiB + 2048 MiB"),
        since=EAGER,
    ),
    Case(
        "keras_multi_gpu_model",
        ("contexts on 0, 1, 2, 3", "contexts on 1, 3"),
        (FAILS, FAILS),
        until=(2, 4),
    ),
    Case(
        "lstm_towers",
        ("GPU 1 whole, GPU 3 whole, contexts on 0, 2", "GPU 1 grows, GPU 3 grows"),
        UNSAID_ONE,
        {"AUTOGPU_COUNT": "2"},
        since=EAGER,
    ),
    Case("local_server", UNSAID, UNSAID_ONE),
)


# What a process begins with, what a script says before the import, and what it says after it.
BOTH_WAYS = (
    "shell_only",
    "shell_only-CUDA_VISIBLE_DEVICES=1,2",
    "visible_minus_one_before_import",
    "device_gpu_0",
    "config_fraction_0_3",
    "visible_before_import",
    "visible_after_import",
    "limit_1024",
    "visible_list",
)


def run_both_ways(version: Version) -> list[Any]:
    """One parameter for each script of ``BOTH_WAYS`` that is for ``version``."""
    cases = {case.name: case for case in CASES if case.since <= version.number < case.until}
    return [pytest.param(cases[name], id=name) for name in BOTH_WAYS if name in cases]


def each_case(version: Version) -> list[Any]:
    """One parameter for each script on each machine, of those that are for ``version``."""
    return [
        pytest.param(case, machine, id=f"{case.name}-{machine}")
        for case in CASES
        if case.since <= version.number < case.until
        for machine in case.machines
    ]


class Laboratory:
    """The three machines, each without and with autogpu, for one version of TensorFlow."""

    def __init__(self, version: Version, folder: Path, forks: Forks) -> None:
        self._version = version
        self._python = environments.tensorflow_with_autogpu(version.tensorflow, version.python)
        self._folder = folder
        self._forks = forks
        self._hosts: dict[tuple[object, ...], Host] = {}
        self._servers: list[Server] = []

    def close(self) -> None:
        """End the servers."""
        for server in self._servers:
            server.__exit__(None, None, None)

    def complaint(self, case: Case, machine: str) -> str:
        """What is wrong; ``""`` if the script does as it should, without and with autogpu."""
        hosts = [self.host(machine, {"AUTOGPU": "0"}), self.host(machine, self._steering(case))]
        script = SCRIPTS / f"{case.script}.py"
        plain, ended = [host.forked(script, environ=case.environ) for host in hosts]
        expected = NEITHER
        if machine != "no-gpu":
            expected = case.four if machine == "four-gpus" else case.one
        saw = [self._granted(each, machine, wanted) for each, wanted in zip((plain, ended), expected)]
        complaints = []
        if ended.exit_status not in (plain.exit_status, 0):
            complaints.append(
                f"exit status {plain.exit_status} without autogpu and {ended.exit_status} with it: {ended.error}"
            )
        for wanted, got, which in zip(expected, saw, ("without", "with")):
            # On a machine without GPUs a script that insists on one fails either way.
            if got != wanted and not (machine == "no-gpu" and plain.exit_status):
                complaints.append(f"granted {which} autogpu: {got}; expected: {wanted}")
        if ended.leased is not None and saw[1] != FAILS:
            in_use = sorted({call.gpu for call in ended.calls if call.call == "context" and call.gpu is not None})
            leased = sorted(gpu for gpu, each in enumerate(hosts[1].server.gpus) if each.uuid in ended.leased)
            if leased != in_use:
                complaints.append(f"leased GPUs {leased}, has contexts on {in_use}")
        where = f"{case.name} · {machine} · {self._version.name}"
        lines = [f"{where}: {complaint}" for complaint in complaints]
        return "\n".join([*lines, *(plain.error, ended.error), *ended.said]) if lines else ""

    def run_both_ways(self, case: Case) -> list[tuple[object, ...]]:
        """What is to be seen of the script as a fork and as a process of its own, with autogpu on four GPUs."""
        host = self.host("four-gpus", self._steering(case))
        script = SCRIPTS / f"{case.script}.py"
        both = [run(script, environ=case.environ) for run in (host.forked, host.fresh)]
        return [
            (
                ended.exit_status,
                # Where it shows devices, each ends with a random number.
                re.sub(r"-?\d+\)", ")", ended.stdout),
                ended.said,
                # When it ends, a fork leaves it to the driver to free what it has.
                [(call.call, call.gpu, call.bytes) for call in ended.calls if call.call in ("context", "allocate")],
            )
            for ended in both
        ]

    def _granted(self, ended: Ended, machine: str, wanted: str) -> str:
        # How far a script came before it failed is of no interest.
        if ended.exit_status:
            return FAILS if wanted == FAILS else f"it failed: {ended.error}"
        return driver_grants.in_one_line(driver_grants.granted(ended.calls, MACHINES[machine], CONTEXT))

    def _steering(self, case: Case) -> Mapping[str, str]:
        return {name: value for name, value in case.environ.items() if name.startswith("AUTOGPU")}

    def host(self, machine: str, environ: Mapping[str, str]) -> Host:
        """A machine with a policy, made for the first script that wants it."""
        key = (machine, *environ.items())
        if key not in self._hosts:
            folder = self._folder / f"{len(self._hosts)}"
            server = None
            if MACHINES[machine]:
                (folder / "server").mkdir(parents=True)
                server = Server(MACHINES[machine], folder=folder / "server", context=CONTEXT).__enter__()
                self._servers.append(server)
            self._hosts[key] = Host(self._python, folder / "host", self._forks, server, environ)
        return self._hosts[key]
