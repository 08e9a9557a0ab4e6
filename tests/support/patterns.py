"""Scripts as people write them, and the comparison of their grants with the expected ones, without and with autogpu."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Sequence

import pytest

from tests.gpusim import Gpu
from tests.support.forkserver import Forks
from tests.support.framework_machines import MACHINES, Machine, Ran

NO_GPU, FAILS = "no GPU", "fails"
NEITHER = (NO_GPU, NO_GPU)

# Scripts of PyTorch and JAX that are run as forks and as fresh processes. Both must do exactly the same.
BOTH_WAYS = ("device_if_available", "set_device_1", "visible_2_after_import", "gpu_if_there_is_one")
BOTH_FAIL = (FAILS, FAILS)


def setting(**variables: str) -> str:
    return f"import os\nos.environ.update({variables})\n"


@dataclass(frozen=True, eq=False)
class Case:
    """A script, its command line, and its expected grants.

    Attributes:
        four: Expected grants on four GPUs, without and with autogpu.
        one: The same on one GPU; ``None`` if it is not run there, because the script needs two.
        none: The same without a GPU and a driver; ``None`` if it is not run there, because the script requires a GPU.
        environ: Variables of the shell.
        launcher: Arguments of Python before the name of the script.
        fresh: True to run a fresh process, because the script sets variables that the framework reads at its import.
        prints: Expected output with autogpu on four GPUs, if it differs from the output without autogpu.
        note: Reason for the grants or the output, if the text of the script does not show it.
    """

    script: str
    four: tuple[str, str]
    one: tuple[str, str] | None
    none: tuple[str, str] | None = NEITHER
    environ: Mapping[str, str] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    fresh: bool = False
    prints: str = ""
    note: str = ""

    @property
    def is_run_both_ways(self) -> bool:
        return self.script in BOTH_WAYS

    @property
    def name(self) -> str:
        return "-".join([self.script, *(f"{name}={value}" for name, value in self.environ.items())])

    def granted(self, machine: str) -> tuple[str, str] | None:
        """Return the expected grants on ``machine``; ``None`` if the script is not run there."""
        return {"four-gpus": self.four, "one-gpu": self.one, "no-gpu": self.none}[machine]


def each_case(cases: Sequence[Case]) -> list[Any]:
    """Return one parameter for each script on each machine: with four GPUs in every run, with fewer in one of four."""
    return [
        pytest.param(
            case, machine, id=f"{case.name}-{machine}", marks=pytest.mark.turns(4 if across else 1, down + 2 * across)
        )
        for down, case in enumerate(cases)
        for across, machine in enumerate(MACHINES)
        if case.granted(machine) is not None
    ]


class Laboratory:
    """Machines for scripts (texts keyed by name). Each machine is created for the first script that needs it."""

    GPUS: Mapping[str, Sequence[Gpu]] = MACHINES

    def __init__(
        self,
        python: Path,
        scripts: Mapping[str, str],
        folder: Path,
        forks: Forks | None = None,
        device_nodes: bool = True,
        **environ: str,
    ) -> None:
        self._python = python
        self._scripts = scripts
        self._folder = folder
        self._forks = forks
        self._device_nodes = device_nodes
        # Without a state folder: otherwise autogpu would print the memory use of earlier runs.
        self._environ = {"XDG_STATE_HOME": os.devnull, **environ}
        self._machines: dict[str, Machine] = {}
        self._without: dict[tuple[object, ...], Ran] = {}

    def close(self) -> None:
        for machine in self._machines.values():
            machine.__exit__(None, None, None)

    def complaint(self, case: Case, machine: str) -> str:
        """Return a report of all faults; ``""`` if the script behaves as expected, without and with autogpu."""
        plain, ours = self._plain(case, machine), self._run(case, machine)
        expected = self.expected(case, machine, plain)
        complaints = self.wrong_beside(case, machine, plain, ours)
        fails_with_it_alone = expected[1] == FAILS != expected[0]
        if ours.exit_status not in (plain.exit_status, 0) and not fails_with_it_alone:
            complaints.append(f"exit status {plain.exit_status} without autogpu and {ours.exit_status} with it")
        if plain.said:
            complaints.append(f"switched off it said {plain.said}")
        for wanted, ran, which in zip(expected, (plain, ours), ("without", "with")):
            # If a script failed, its grants until then do not matter.
            got = self.granted(ran, machine) if ran.exit_status == 0 else FAILS
            if got != wanted:
                complaints.append(f"granted {which} autogpu: {got}; expected: {wanted}")
        lines = [f"{case.name} · {machine}: {complaint}" for complaint in complaints]
        return "\n".join([*lines, *(plain.error, ours.error), *ours.said]) if lines else ""

    def expected(self, case: Case, machine: str, plain: Ran) -> tuple[str, str]:
        return case.granted(machine) or NEITHER

    def granted(self, ran: Ran, machine: str) -> str:
        return ran.granted

    def wrong_beside(self, case: Case, machine: str, plain: Ran, ours: Ran) -> list[str]:
        """Return faults other than wrong grants, such as an output that differs from that without autogpu."""
        if case.prints and machine == "four-gpus":
            if plain.stdout == ours.stdout:
                return [f"printed no difference: {ours.stdout!r}"]
            return [] if ours.stdout.strip() == case.prints else [f"printed {ours.stdout!r}, not {case.prints!r}"]
        if plain.stdout == ours.stdout or FAILS in (case.granted(machine) or ()):
            return []
        return [f"printed {plain.stdout!r} without autogpu and {ours.stdout!r} with it"]

    def run_both_ways(self, case: Case) -> list[tuple[object, ...]]:
        """Return the behaviour of the script on four GPUs with autogpu: first as a fork, then as a fresh process."""
        return [
            (
                ran.exit_status,
                ran.stdout,
                ran.said,
                # Omit the calls that free memory: a fork ends without them, and the driver frees its memory.
                [(c.call, c.gpu, c.bytes) for c in ran.calls if c.call in ("cuInit", "context", "allocate", "refused")],
            )
            for ran in (self._run(case, "four-gpus", fresh=fresh) for fresh in (False, True))
        ]

    def machine(self, name: str) -> Machine:
        if name not in self._machines:
            self._machines[name] = Machine(
                self._python, self._folder / name, self.GPUS[name], self._forks, self._device_nodes, **self._environ
            )
        return self._machines[name]

    def _plain(self, case: Case, machine: str) -> Ran:
        """Return the result without autogpu. Cases that differ only in their policy share one run."""
        shell = tuple((name, value) for name, value in case.environ.items() if not name.startswith("AUTOGPU"))
        key = (case.script, case.launcher, shell, machine)
        if key not in self._without:
            self._without[key] = self._run(case, machine, AUTOGPU="0")
        return self._without[key]

    def _run(self, case: Case, machine: str, fresh: bool = False, **environ: str) -> Ran:
        text, everything = self._scripts[case.script], {**case.environ, **environ}
        return self.machine(machine).run(text, launcher=case.launcher, fresh=fresh or case.fresh, **everything)
