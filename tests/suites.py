"""Run the suites of ``make`` one after the other, the cheapest first, up to the first in which something fails.

The output ends with a table of the suites with their tests and seconds, and with the message of each failed test::

    python -m tests.suites                 # as in CI: tests that take turns run only when they are due
    python -m tests.suites --all           # all tests
    python -m tests.suites test-engines    # only the suites given
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

# Ordered by run time as measured when this was written. .ci/run prints a table of the current times.
SUITES = ("site", "package", "test-readme", "test-engines", "test-thorough", "test", "test-frameworks", "test-matrix")
# pytest, as `make` calls it, writes a JUnit report of each suite to this folder.
REPORTS = Path(".cache/reports")
LINES_OF_A_FAILURE = 12
CHARACTERS_OF_A_LINE = 1000
LAST_LINES = 30


@dataclass(frozen=True)
class Suite:
    """Result of one suite.

    Attributes:
        tests: Number of tests that ran; ``None`` if there is no report, because the target runs no tests.
        failures: Messages, keyed by test.
        last_lines: Last lines of the output.
    """

    name: str
    exit_status: int
    seconds: float
    tests: int | None
    skipped: int
    failures: dict[str, str]
    last_lines: tuple[str, ...]


def run(name: str, variables: Sequence[str]) -> Suite:
    """Run a target of ``make`` and print its output as it comes."""
    report = REPORTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    last_lines: deque[str] = deque(maxlen=LAST_LINES)
    started = time.monotonic()
    command = ["make", "--no-print-directory", name, *variables]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as make:
        assert make.stdout is not None
        try:
            for line in make.stdout:
                print(line, end="", flush=True)
                last_lines.append(line.rstrip("\n"))
            status = make.wait()
        except KeyboardInterrupt:
            make.terminate()
            status = make.wait() or -signal.SIGINT
    seconds = time.monotonic() - started
    return Suite(name, status, seconds, *read(report), tuple(last_lines))


def read(report: Path) -> tuple[int | None, int, dict[str, str]]:
    """Read a JUnit report: the number of tests that ran, the number skipped, and the failures' messages by test."""
    if not report.exists():
        return None, 0, {}
    cases = list(ElementTree.parse(report).iter("testcase"))
    failures = {
        _name(case): (failed.get("message") if case.get("classname") else failed.text) or ""
        for case in cases
        for failed in (*case.iter("failure"), *case.iter("error"))
    }
    skipped = sum(case.find("skipped") is not None for case in cases)
    return len(cases) - skipped, skipped, failures


def _name(case: ElementTree.Element) -> str:
    # The case of a file that can't be imported has no class. Its cause is in the text of the case, not in the message.
    file, name = case.get("classname"), case.get("name", "")
    return f"{file.replace('.', '/')}.py::{name}" if file else name


def summary(suites: Sequence[Suite]) -> str:
    lines = [f"{'suite':<20}{'tests':>7}{'skipped':>9}{'failed':>8}{'seconds':>9}"]
    for suite in suites:
        tests = "-" if suite.tests is None else suite.tests
        failed = len(suite.failures) or ("yes" if suite.exit_status else 0)
        lines.append(f"{suite.name:<20}{tests:>7}{suite.skipped:>9}{failed:>8}{suite.seconds:>9.0f}")
    lines.append(
        f"{'all':<20}{sum(suite.tests or 0 for suite in suites):>7}{'':>17}{sum(s.seconds for s in suites):>9.0f}"
    )
    for suite in suites:
        lines += lines_of_failures(suite.failures)
        if suite.exit_status and not suite.failures:
            lines += ["", f"FAILED make {suite.name}: exit status {suite.exit_status}; its last lines:"]
            lines += [f"    {line}" for line in suite.last_lines]
    return "\n".join(lines)


def lines_of_failures(failures: dict[str, str]) -> list[str]:
    """Return each failed test with the first lines of its message and the last one."""
    lines = []
    for test, message in failures.items():
        told = [line[:CHARACTERS_OF_A_LINE] for line in message.strip().splitlines()]
        lines += ["", f"FAILED {test}", *(f"    {line}" for line in told[:LINES_OF_A_FAILURE])]
        if len(told) > LINES_OF_A_FAILURE:
            lines += ["    ...", f"    {told[-1]}"]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__.split("\n\n")[0])
    parser.add_argument("--all", action="store_true", help="leave nothing out that takes turns")
    parser.add_argument("suites", nargs="*", default=SUITES, metavar="SUITE", help="a target of make")
    chosen = parser.parse_args(arguments)
    # CI's time limit sends SIGTERM. Handled as Ctrl-C, it lets this program print the results so far.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ended: list[Suite] = []
    for name in chosen.suites:
        print(f"== make {name}", flush=True)
        ended.append(run(name, ["TURN="] if chosen.all else []))
        if ended[-1].exit_status:
            break
    left = chosen.suites[len(ended) :]
    print(f"\n{summary(ended)}" + (f"\n\nnot run: {', '.join(left)}" if left else ""), flush=True)
    return 1 if ended[-1].exit_status else 0


if __name__ == "__main__":
    sys.exit(main())
