"""Expected grants for ``SCRIPTS``, without and with autogpu, on each machine and version of TensorFlow."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.tensorflow.scripts import SCRIPTS
from tests.support import driver_grants, environments, patterns
from tests.support.forkserver import Forks
from tests.support.framework_machines import Ran
from tests.support.patterns import BOTH_FAIL, NEITHER
from tests.support.tensorflow_runner import CONTEXT, LAB
from tests.support.versions import Version

# Other users' processes run on GPUs 0 and 2. CUDA's order of the GPUs is 1, 3, 0, 2, and autogpu's is 3, 1, 2, 0. The
# idle GPUs are small here, because TensorFlow may allocate all of their memory: its allocator then keeps a list that
# needs a thirtieth of that size.
GPUS = tuple(gpu if gpu.processes else dataclasses.replace(gpu, memory="6064MiB") for gpu in LAB)
MACHINES = {"four-gpus": GPUS, "one-gpu": GPUS[1:2], "no-gpu": ()}


@dataclass(frozen=True, eq=False)
class Case(patterns.Case):
    """A script with its expected grants, and the TensorFlow versions on which it runs.

    Attributes:
        since: The first version on which the script runs.
        until: The first version on which it no longer runs.
    """

    since: tuple[int, int] = (1, 15)
    until: tuple[int, int] = (3, 0)


def shell(value: str, four: tuple[str, str], **environ: str) -> Case:
    """Return the case of a script that sets nothing, started on four GPUs by a shell that sets variables."""
    return on_four("shell_only", four, CUDA_VISIBLE_DEVICES=value, **environ)


def on_four(script: str, four: tuple[str, str], **environ: str) -> Case:
    return Case(script, four, None, None, environ)


EAGER = (2, 0)
# Grants without and with autogpu, if neither the script nor the shell chooses a GPU.
IDLEST = "GPU 3 grows"
UNSAID, UNSAID_ONE = ("GPU 1 whole, contexts on 0, 2, 3", IDLEST), ("GPU 0 whole", "GPU 0 grows")
# Grants for a script that names two GPUs. Without autogpu these are CUDA's first two. With autogpu these are the idlest
# two (TWO), or both names mean the idlest GPU (TWO_ON_ONE).
TWO = "GPU 1 whole, GPU 3 whole, contexts on 0, 2", "GPU 1 grows, GPU 3 grows"
TWO_ON_ONE = TWO[0], IDLEST
GPUS_0_AND_2 = "GPU 0 whole, GPU 2 whole, contexts on 1, 3"

CASES = (
    Case("shell_only", UNSAID, UNSAID_ONE),
    # CUDA's 1 and 2 are the physical GPUs 3 and 0, and only 3 is idle. On a machine with one GPU the list matches none.
    Case("shell_only", ("GPU 3 whole, contexts on 0", IDLEST), NEITHER, environ={"CUDA_VISIBLE_DEVICES": "1,2"}),
    shell("1,2", ("GPU 1 whole, contexts on 2", "GPU 1 grows"), CUDA_DEVICE_ORDER="PCI_BUS_ID"),
    shell("-1", NEITHER),
    shell("", NEITHER),
    shell("-1,0", NEITHER),
    Case("visible_before_import", ("GPU 2 whole", "GPU 2 grows"), NEITHER),
    Case("visible_minus_one_before_import", NEITHER, NEITHER),
    Case("visible_after_import", ("GPU 1 whole", "GPU 1 grows"), UNSAID_ONE),
    Case("visible_empty_after_import", NEITHER, NEITHER),
    Case("device_gpu_0", UNSAID, UNSAID_ONE),
    # The script names two GPUs and gets the two idlest. Only with AUTOGPU_COUNT=4 does each position have its own GPU.
    Case("multi_tower", (GPUS_0_AND_2, TWO[1]), BOTH_FAIL),
    on_four("multi_tower", (GPUS_0_AND_2, GPUS_0_AND_2.replace("whole", "grows")), AUTOGPU_COUNT="4", AUTOGPU_WAIT="0"),
    # Without autogpu, /gpu:2 is the third GPU in CUDA's order.
    Case("graph_gpu_2", ("GPU 0 whole, contexts on 1, 2, 3", IDLEST), BOTH_FAIL),
    Case("graph_gpu_0_and_1", TWO, BOTH_FAIL),
    # The policy gives one GPU, so both tensors are on it.
    on_four("graph_gpu_0_and_1", TWO_ON_ONE, AUTOGPU_COUNT="1"),
    Case("graph_named_late", TWO_ON_ONE, BOTH_FAIL),
    Case("copies_late", TWO_ON_ONE, BOTH_FAIL, since=EAGER),
    Case("device_count_2", TWO, UNSAID_ONE),
    Case("mirrored_two_named", TWO, UNSAID_ONE, since=EAGER),
    Case("counts_and_takes_all", ("GPU 0 whole, GPU 1 whole, GPU 2 whole, GPU 3 whole", TWO[1]), UNSAID_ONE),
    Case("session_visible_list_2", ("GPU 0 whole", IDLEST), BOTH_FAIL),
    # This is TensorFlow's own behaviour: versions before 2.20 refuse the list, and 1.15 aborts.
    Case("session_visible_list_none", BOTH_FAIL, BOTH_FAIL, until=(2, 20)),
    Case("session_visible_list_none", NEITHER, NEITHER, since=(2, 20)),
    # The script uses the first two GPUs: in CUDA's order without autogpu, in autogpu's order with it.
    Case("visible_list", ("GPU 1 whole, contexts on 3", "GPU 3 grows, contexts on 1"), UNSAID_ONE, since=EAGER),
    Case("keras_multi_gpu_model", ("contexts on 0, 1, 2, 3", "contexts on 1, 3"), BOTH_FAIL, until=(2, 4)),
)


# Scripts that run both as forks and as fresh processes. They cover variables set by the shell, settings made before the
# import, and settings made after it.
BOTH_WAYS = (
    *("shell_only", "shell_only-CUDA_VISIBLE_DEVICES=1,2", "visible_minus_one_before_import", "device_gpu_0"),
    *("visible_before_import", "visible_after_import", "visible_list"),
)


def of(version: Version) -> list[Case]:
    return [case for case in CASES if case.since <= version.number < case.until]


def run_both_ways(version: Version) -> list[Any]:
    cases = {case.name: case for case in of(version)}
    return [pytest.param(cases[name], id=name) for name in BOTH_WAYS if name in cases]


def each_case(version: Version) -> list[Any]:
    return patterns.each_case(of(version))


class Laboratory(patterns.Laboratory):
    """The three machines, for one version of TensorFlow."""

    GPUS = MACHINES

    def __init__(self, version: Version, folder: Path, forks: Forks) -> None:
        python = environments.tensorflow_with_autogpu(version.tensorflow, version.python)
        super().__init__(python, SCRIPTS, folder, forks, device_nodes=False, TF_CPP_MIN_LOG_LEVEL="3")

    def expected(self, case: patterns.Case, machine: str, plain: Ran) -> tuple[str, str]:
        """Return the expected grants: without a GPU, a script that fails without autogpu also fails with autogpu."""
        return BOTH_FAIL if machine == "no-gpu" and plain.exit_status else super().expected(case, machine, plain)

    def granted(self, ran: Ran, machine: str) -> str:
        """Return the grants in one line, such as ``GPU 3 grows``."""
        return driver_grants.in_one_line(driver_grants.granted(ran.calls, MACHINES[machine], CONTEXT))

    def wrong_beside(self, case: patterns.Case, machine: str, plain: Ran, ours: Ran) -> list[str]:
        """Complain if the lease and the CUDA contexts are on different GPUs. The output is not compared."""
        gpus = self.machine(machine).server.gpus
        leased = [index for index, gpu in enumerate(gpus) if gpu.uuid in (ours.leased or ())]
        is_right = ours.leased is None or ours.exit_status or leased == ours.contexts
        return [] if is_right else [f"leased GPUs {leased}, has contexts on {ours.contexts}"]
