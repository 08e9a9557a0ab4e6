"""Check autogpu on this machine's GPU within some minutes, the most valuable checks first, and print a table.

A check that fails or takes too long does not stop the others. ``AUTOGPU_TEST_PYTHON`` names a Python that has PyTorch,
JAX or both::

    python -m tests.gpu                # nine minutes at most
    python -m tests.gpu --minutes 3
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Sequence

from autogpu.devices import probe
from tests.gpu.conftest import PYTHON, ROOT
from tests.suites import lines_of_failures, read

# After a check's limit pytest has this time to end its jobs, and as much again to be killed. A check starts only if
# twice this time is left besides.
GRACE_S = 10.0

VERSIONS = """
import importlib.metadata as m, platform
print("Python", platform.python_version(), end="  ")
for name in ("torch", "jax"):
    try: print(name, m.version(name), end="  ")
    except m.PackageNotFoundError: print("no", name, end="  ")
"""


@dataclass(frozen=True)
class Check:
    """Tests that run together.

    Attributes:
        tests: pytest's arguments that choose them.
    """

    name: str
    limit_s: float
    tests: Sequence[str]


# These limits stop a check that hangs. All checks together take two or three minutes.
CHECKS = (
    Check("rules of CUDA_VISIBLE_DEVICES", 90, ["tests/gpu/test_real_driver.py"]),
    Check("putenv list", 90, ["tests/gpu/test_putenv_list.py"]),
    Check("PyTorch: claims and caps", 150, ["tests/gpu/test_frameworks.py", "-k", "torch"]),
    Check("JAX: claims and caps", 150, ["tests/gpu/test_frameworks.py", "-k", "jax"]),
    Check("jobs in the same second", 150, ["tests/gpu/test_same_second.py"]),
    Check("readings", 120, ["tests/gpu/test_readings.py"]),
    Check("parking with PyTorch", 120, ["tests/gpu/test_parking.py", "-k", "torch"]),
    Check("parking with JAX", 120, ["tests/gpu/test_parking.py", "-k", "jax"]),
)


@dataclass(frozen=True)
class Outcome:
    """How a check ended.

    Attributes:
        result: ``ok``, ``FAILED`` or ``skipped``.
        notes: What was measured, and why tests were skipped.
        failures: Messages, keyed by test.
    """

    name: str
    result: str
    seconds: float
    notes: Sequence[str]
    failures: dict[str, str]


def run(check: Check, limit_s: float, report: Path) -> Outcome:
    """Run a check for ``limit_s`` at most, and kill what it leaves behind."""
    command = [sys.executable, "-u", "-m", "pytest", "-v", "-rN", "--tb=short", "--no-header", "-p", "no:cacheprovider"]
    command += ["-m", "gpu", f"--junit-xml={report}", f"--basetemp={report.with_suffix('')}", *check.tests]
    started_s = time.monotonic()
    pytest = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        status = ended(pytest, limit_s)
        if status is None:
            # pytest then ends its jobs and writes its report.
            pytest.send_signal(signal.SIGINT)
            ended(pytest, GRACE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pytest.pid, signal.SIGKILL)
        if ended(pytest, GRACE_S) is None:
            print(f"pid {pytest.pid} does not end: the driver holds it", flush=True)
    seconds = time.monotonic() - started_s
    tests, _, failures = read(report)
    notes = [*([f"{tests} tests"] if tests else []), *notes_in(report)]
    if status is None:
        notes.insert(0, f"stopped after {limit_s:.0f} s")
        # A stop fails a check only if the check had its whole limit.
        is_failed = bool(failures) or limit_s == check.limit_s
    else:
        is_failed = status != 0
    result = "FAILED" if is_failed else "ok" if tests and status == 0 else "skipped"
    return Outcome(check.name, result, seconds, notes or [f"pytest's exit status is {status}"], failures)


def ended(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """Return the exit status; ``None`` if the process still runs after that time."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None


def notes_in(report: Path) -> Iterator[str]:
    """Yield the values that tests recorded, and each reason for which some were skipped."""
    if not report.exists():
        return
    cases = ElementTree.parse(report)
    measured = [each.get("value", "") for each in cases.iter("property") if each.get("name") == "measured"]
    yield from dict.fromkeys(measured)
    reasons = [each.get("message", "") for each in cases.iter("skipped")]
    yield from (f"{reasons.count(reason)} skipped: {reason}" for reason in dict.fromkeys(reasons))


def machine() -> str:
    """Return the driver's version, the GPUs' names, and the versions of Python and the frameworks."""
    inventory = probe.finish(probe.start(os.environ))
    gpus = [gpu.name for gpu in inventory.devices]
    named = ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))
    asked = subprocess.run([PYTHON, "-c", VERSIONS], capture_output=True, text=True, timeout=60, check=False)
    return (
        f"driver {inventory.driver_version or inventory.failure}  {named or 'no GPU'}\n"
        f"{asked.stdout.strip() or asked.stderr.strip()}"
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a row for each check, with its other notes below it, and the failures at the end."""
    lines = [f"{'check':<31}{'result':<9}{'seconds':>7}  measured"]
    for each in outcomes:
        first, *others = each.notes
        lines.append(f"{each.name:<31}{each.result:<9}{each.seconds:>7.0f}  {first}")
        lines += [f"{'':<49}{note}" for note in others]
    for each in outcomes:
        lines += lines_of_failures(each.failures)
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__.split("::")[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="for all checks together (default: 9)")
    until_s = time.monotonic() + 60 * parser.parse_args(arguments).minutes
    # SIGTERM, as a time limit sends it, stops a check as Ctrl-C does, and the table is still printed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    about = machine()
    print(about, flush=True)
    outcomes: list[Outcome] = []
    is_interrupted = False
    try:
        with tempfile.TemporaryDirectory(prefix="autogpu-gpu-") as folder:
            for place, check in enumerate(CHECKS):
                left_s = until_s - time.monotonic() - 2 * GRACE_S
                limit_s = min(check.limit_s, left_s)
                print(f"\n== {check.name}, {max(limit_s, 0):.0f} s at most", flush=True)
                late = Outcome(check.name, "skipped", 0, ["no time was left"], {})
                is_late = left_s < 2 * GRACE_S
                outcomes.append(late if is_late else run(check, limit_s, Path(folder, f"{place}.xml")))
                print(table(outcomes[-1:]).splitlines()[1], flush=True)
    except KeyboardInterrupt:
        outcomes += [Outcome(check.name, "skipped", 0, ["interrupted"], {}) for check in CHECKS[len(outcomes) :]]
        is_interrupted = True
    print(f"\n{about}\n{table(outcomes)}", flush=True)
    return int(is_interrupted or any(each.result == "FAILED" for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
