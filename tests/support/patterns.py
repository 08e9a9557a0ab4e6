"""A script as people write them, what it is granted without and with autogpu, and how it is judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Sequence

import pytest

from tests.support.forkserver import Forks
from tests.support.framework_machines import MACHINES, Machine, Ran

NO_GPU, FAILS = "no GPU", "fails"
NEITHER = (NO_GPU, NO_GPU)

# Scripts of either framework that do, as forks, exactly what they do as processes of their own.
BOTH_WAYS = ("device_if_available", "set_device_1", "visible_2_after_import", "first_gpu", "fraction_25_after_import")
BOTH_FAIL = (FAILS, FAILS)


@dataclass(frozen=True)
class Difference:
    """What a script prints otherwise than without autogpu, or does so on some machines.

    Attributes:
        prints: With autogpu, by machine.
        because: Why that is accepted.
    """

    prints: Mapping[str, str]
    because: str


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
        exit_status: Of its own choice.
        differs: Where it prints something else than without autogpu.
        note: Why what it is granted is as it is, where the script's text does not tell.
    """

    script: str
    four: tuple[str, str]
    one: tuple[str, str] | None
    none: tuple[str, str] | None = NEITHER
    environ: Mapping[str, str] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    fresh: bool = False
    exit_status: int = 0
    differs: Difference | None = None
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
    """One parameter for each script on each machine."""
    return [
        pytest.param(case, machine, id=f"{case.name}-{machine}")
        for case in cases
        for machine in MACHINES
        if case.granted(machine) is not None
    ]


class Laboratory:
    """The machines for the scripts of one folder; each is made for the first script that wants it."""

    def __init__(self, python: Path, scripts: Path, folder: Path, forks: Forks | None = None, **environ: str) -> None:
        self._python = python
        self._scripts = scripts
        self._folder = folder
        self._forks = forks
        self._environ = environ
        self._machines: dict[str, Machine] = {}

    def close(self) -> None:
        """End the servers."""
        for machine in self._machines.values():
            machine.__exit__(None, None, None)

    def complaint(self, case: Case, machine: str) -> str:
        """What is wrong; ``""`` if the script does as it should, without and with autogpu."""
        expected = case.granted(machine)
        assert expected is not None
        text = (self._scripts / f"{case.script}.py").read_text()
        host = self._machine(machine)
        plain = host.run(text, launcher=case.launcher, fresh=case.fresh, **{**case.environ, "AUTOGPU": "0"})
        ours = host.run(text, launcher=case.launcher, fresh=case.fresh, **case.environ)
        complaints = []
        if ours.exit_status not in (plain.exit_status, 0) and expected[1] != FAILS:
            complaints.append(f"exit status {plain.exit_status} without autogpu and {ours.exit_status} with it")
        for wanted, ran, which in zip(expected, (plain, ours), ("without", "with")):
            # How far a script came before it failed is of no interest.
            got = FAILS if ran.exit_status and wanted == FAILS else ran.granted
            if got != wanted:
                complaints.append(f"granted {which} autogpu: {got}; expected: {wanted}")
            if ran.exit_status not in (0, case.exit_status) and wanted != FAILS:
                complaints.append(f"it failed {which} autogpu")
        complaints += self._printed(case, machine, plain, ours)
        if plain.said:
            complaints.append(f"switched off it said {plain.said}")
        lines = [f"{case.name} · {machine}: {complaint}" for complaint in complaints]
        return "\n".join([*lines, *(plain.error, ours.error), *ours.said]) if lines else ""

    def run_both_ways(self, case: Case) -> list[tuple[object, ...]]:
        """What is to be seen of the script on four GPUs with autogpu, as a fork and as a process of its own."""
        text = (self._scripts / f"{case.script}.py").read_text()
        host = self._machine("four-gpus")
        both = [host.run(text, fresh=fresh, **case.environ) for fresh in (False, True)]
        asked = ("cuInit", "context", "allocate", "refused")
        return [
            (ran.exit_status, ran.stdout, ran.said, [(c.call, c.gpu, c.bytes) for c in ran.calls if c.call in asked])
            for ran in both
        ]

    def _printed(self, case: Case, machine: str, plain: Ran, ours: Ran) -> list[str]:
        wanted = case.differs.prints.get(machine) if case.differs else None
        if wanted is not None:
            if plain.stdout == ours.stdout:
                return [f"printed no difference: {ours.stdout!r}"]
            return [] if ours.stdout.strip() == wanted else [f"printed {ours.stdout!r}, expected {wanted!r}"]
        if plain.stdout == ours.stdout or FAILS in (case.granted(machine) or ()):
            return []
        return [f"printed {plain.stdout!r} without autogpu and {ours.stdout!r} with it"]

    def _machine(self, name: str) -> Machine:
        if name not in self._machines:
            self._machines[name] = Machine(
                self._python, self._folder / name, MACHINES[name], self._forks, **self._environ
            )
        return self._machines[name]
