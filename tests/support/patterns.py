"""A script as people write them, what it is granted without and with autogpu, and how it is judged."""

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

# Scripts of either framework that do, as forks, exactly what they do as processes of their own.
BOTH_WAYS = ("device_if_available", "set_device_1", "visible_2_after_import", "gpu_if_there_is_one")
BOTH_FAIL = (FAILS, FAILS)


def setting(**variables: str) -> str:
    """The lines of a script that set variables of the environment."""
    return f"import os\nos.environ.update({variables})\n"


@dataclass(frozen=True, eq=False)
class Case:
    """A script, how it is started, and what it is granted.

    Attributes:
        four: On four GPUs, without and with autogpu.
        one: On one GPU, likewise; ``None`` where that is not run, since the script wants two.
        none: Without a GPU and a driver, likewise; ``None`` where that is not run, since the script insists on a GPU.
        environ: Of the shell.
        launcher: Arguments of Python between its own name and the script's.
        fresh: Run as a process that imports the framework itself, which reads of the environment what the script sets.
        prints: With autogpu on four GPUs, where that is something else than without.
        note: Why what it is granted, or prints, is as it is, where the script's text does not tell.
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
        """Whether it stands for the others in a comparison of forks with fresh processes."""
        return self.script in BOTH_WAYS

    @property
    def name(self) -> str:
        """The script with what the shell says."""
        return "-".join([self.script, *(f"{name}={value}" for name, value in self.environ.items())])

    def granted(self, machine: str) -> tuple[str, str] | None:
        """What is expected there."""
        return {"four-gpus": self.four, "one-gpu": self.one, "no-gpu": self.none}[machine]


def each_case(cases: Sequence[Case]) -> list[Any]:
    """One parameter for each script on each machine: with four GPUs in every run, with fewer in one of four."""
    return [
        pytest.param(
            case, machine, id=f"{case.name}-{machine}", marks=pytest.mark.turns(4 if across else 1, down + 2 * across)
        )
        for down, case in enumerate(cases)
        for across, machine in enumerate(MACHINES)
        if case.granted(machine) is not None
    ]


class Laboratory:
    """The machines for scripts, by name their text; each is made for the first script that wants it."""

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
        # What the runs before took would be said by the next one.
        self._environ = {"XDG_STATE_HOME": os.devnull, **environ}
        self._machines: dict[str, Machine] = {}
        self._without: dict[tuple[object, ...], Ran] = {}

    def close(self) -> None:
        """End the servers."""
        for machine in self._machines.values():
            machine.__exit__(None, None, None)

    def complaint(self, case: Case, machine: str) -> str:
        """What is wrong; ``""`` if the script does as it should, without and with autogpu."""
        plain, ours = self._plain(case, machine), self._run(case, machine)
        expected = self.expected(case, machine, plain)
        complaints = self.wrong_beside(case, machine, plain, ours)
        fails_with_it_alone = expected[1] == FAILS != expected[0]
        if ours.exit_status not in (plain.exit_status, 0) and not fails_with_it_alone:
            complaints.append(f"exit status {plain.exit_status} without autogpu and {ours.exit_status} with it")
        if plain.said:
            complaints.append(f"switched off it said {plain.said}")
        for wanted, ran, which in zip(expected, (plain, ours), ("without", "with")):
            # How far a script came before it failed is of no interest.
            got = self.granted(ran, machine) if ran.exit_status == 0 else FAILS
            if got != wanted:
                complaints.append(f"granted {which} autogpu: {got}; expected: {wanted}")
        lines = [f"{case.name} · {machine}: {complaint}" for complaint in complaints]
        return "\n".join([*lines, *(plain.error, ours.error), *ours.said]) if lines else ""

    def expected(self, case: Case, machine: str, plain: Ran) -> tuple[str, str]:
        """What it is to be granted without and with autogpu."""
        return case.granted(machine) or NEITHER

    def granted(self, ran: Ran, machine: str) -> str:
        """What it was granted, in words."""
        return ran.granted

    def wrong_beside(self, case: Case, machine: str, plain: Ran, ours: Ran) -> list[str]:
        """What is wrong beside what it was granted: it prints something else than without autogpu."""
        if case.prints and machine == "four-gpus":
            if plain.stdout == ours.stdout:
                return [f"printed no difference: {ours.stdout!r}"]
            return [] if ours.stdout.strip() == case.prints else [f"printed {ours.stdout!r}, not {case.prints!r}"]
        if plain.stdout == ours.stdout or FAILS in (case.granted(machine) or ()):
            return []
        return [f"printed {plain.stdout!r} without autogpu and {ours.stdout!r} with it"]

    def run_both_ways(self, case: Case) -> list[tuple[object, ...]]:
        """What is to be seen of the script on four GPUs with autogpu, as a fork and as a process of its own."""
        return [
            (
                ran.exit_status,
                ran.stdout,
                ran.said,
                # When it ends, a fork leaves it to the driver to free what it has.
                [(c.call, c.gpu, c.bytes) for c in ran.calls if c.call in ("cuInit", "context", "allocate", "refused")],
            )
            for ran in (self._run(case, "four-gpus", fresh=fresh) for fresh in (False, True))
        ]

    def machine(self, name: str) -> Machine:
        """A machine, made for the first script that wants it."""
        if name not in self._machines:
            self._machines[name] = Machine(
                self._python, self._folder / name, self.GPUS[name], self._forks, self._device_nodes, **self._environ
            )
        return self._machines[name]

    def _plain(self, case: Case, machine: str) -> Ran:
        """Without autogpu, where no policy makes a difference."""
        shell = tuple((name, value) for name, value in case.environ.items() if not name.startswith("AUTOGPU"))
        key = (case.script, case.launcher, shell, machine)
        if key not in self._without:
            self._without[key] = self._run(case, machine, AUTOGPU="0")
        return self._without[key]

    def _run(self, case: Case, machine: str, fresh: bool = False, **environ: str) -> Ran:
        text, everything = self._scripts[case.script], {**case.environ, **environ}
        return self.machine(machine).run(text, launcher=case.launcher, fresh=fresh or case.fresh, **everything)
