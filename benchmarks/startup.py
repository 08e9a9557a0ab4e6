"""What autogpu's hooks add to every start of Python, in instructions, beside what other packages' ``.pth`` files add.

Two are measured: the one that ``autogpu install`` writes into an environment, and a host's folder on PYTHONPATH.

    python benchmarks/startup.py                 every Python of this machine
    python benchmarks/startup.py --python 3.11   one

Each figure is a whole ``python -c pass``, start to end, in a virtual environment with nothing in it but the files in
question: counted by valgrind's callgrind, after the start that compiles, with a fixed hash seed. Instructions repeat
to within 0.01 %, and wall time does not.

What costs the most, on 3.11:

* Four fifths is the price of *any* ``.pth`` line that imports a module: the file is read, its line compiled (both
  twice in a virtual environment, CPython issue 75723), the module looked for in each folder of ``sys.path``, its
  ``.pyc`` opened. Listing site-packages is no part of it: the start does that anyway, looking for a sitecustomize.
* The hook's own code is the last seventh. A class for the finder would add as much again, hence a module that is the
  finder itself; a reference to ``os`` would add four times as much, at the interpreter's end; and the functions that
  only the import of a framework needs would double it, hence a second file.
* Writing the finder into the ``.pth`` line costs more than all of it, since that is compiled and never cached.
* Before the first line is looked at, any ``.pth`` imports ``_bootlocale`` on 3.8 and 3.9 (2 % of a bare start) and,
  unless it is empty, the codec ``utf_8_sig`` on 3.13 (3 %). A sitecustomize is cheaper there, where nothing hides it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from autogpu.host import hook_folder  # noqa: E402  (a script finds its own project by the line above)
from autogpu.host.pythons import find_pythons  # noqa: E402
from tests.support import environments, persons  # noqa: E402

# The setuptools that older Pythons bundle (before 60) ships a .pth that looks at a variable and stops there.
PEERS = ("setuptools>=60", "coverage")
TIMEOUT_S = 600

# The goals: on 3.11 a bare start times this; elsewhere no more above an idle .pth, and less than setuptools'.
GOAL_3_11 = 1.023
GOAL_ABOVE_IDLE = 0.03

# The same for a host's folder: 3.7 and 3.9 alone take 2.6 % for any PYTHONPATH.
GOAL_OF_FOLDER = {"3.11": 1.025, "3.7": 1.045, "3.9": 1.045}


class Bench:
    """A bare virtual environment whose site-packages is filled anew for each figure."""

    def __init__(self, base: Path, parts: Path, folder: Path) -> None:
        self.parts = next((parts.parent.parent / "lib").glob("python3*")) / "site-packages"
        run([str(base), "-m", "venv", "--without-pip", str(folder)])
        self.base = base
        self.python = folder / "bin" / "python"
        self.site_packages = next((folder / "lib").glob("python3*")) / "site-packages"

    def figure(self, name: str, fill: Callable[[], object] | None = None, folder: Path | None = None) -> int | None:
        """The instructions of a start with what ``fill`` put in; it answers ``False`` where there is nothing to put.

        Args:
            folder: On PYTHONPATH, for a person: a host's folder serves no root.
        """
        print(f"  {name}", file=sys.stderr, flush=True)
        shutil.rmtree(str(self.site_packages))
        self.site_packages.mkdir()
        if fill and fill() is False:
            return None
        surroundings = {"PATH": os.defpath, "HOME": "/", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
        if folder is not None:
            surroundings["PYTHONPATH"] = str(folder)
        by = list if folder is None else persons.as_person
        command = [str(self.python), "-c", "pass"]
        for _ in range(2):  # the first one compiles
            done = run(by(command), surroundings)
            if done.stderr:
                raise RuntimeError(f"a start with {name} complains:\n{done.stderr}")
        return count_instructions(command, surroundings, by)

    def install(self) -> None:
        """The real ``autogpu install``, by this environment's own Python."""
        run([str(self.python), "-m", "autogpu", "install"], {**os.environ, "PYTHONPATH": str(self.parts)})

    def copy(self, pth: str, package: str) -> bool:
        """Take a ``.pth`` and its package from the environment of peers; ``False`` if this version ships none."""
        if not (self.parts / pth).exists():
            return False
        shutil.copy(str(self.parts / pth), str(self.site_packages))
        shutil.copytree(
            str(self.parts / package), str(self.site_packages / package), ignore=shutil.ignore_patterns("__pycache__")
        )
        return True

    def table(self) -> dict[str, int | None]:
        """The figures that the goals are about; ``None`` where this Python has no such thing."""
        fills = {
            "bare": None,
            # A comment, since 3.13 passes over a .pth with nothing in it.
            "idle .pth": lambda: (self.site_packages / "idle.pth").write_text("# idle\n"),
            "autogpu": self.install,
            "setuptools": lambda: self.copy("distutils-precedence.pth", "_distutils_hack"),
            "coverage": lambda: self.copy("a1_coverage.pth", "coverage"),
        }
        found = {name: self.figure(name, fill) for name, fill in fills.items()}
        if persons.NO_PERSON:
            return {**found, "folder": None}
        return {**found, "folder": self.figure("a host's folder", None, self.build_folder())}

    def build_folder(self) -> Path:
        """What ``autogpu host-setup --all-pythons`` builds, for this Python alone."""
        self.python.parents[2].chmod(0o755)  # for every user, unlike a temporary folder
        pythons, _ = find_pythons(Path("/"), [str(self.base)])
        python = next(python for python in pythons if Path(python.executable) == self.base.resolve())
        link = self.python.parents[2] / "host" / "autogpu"
        hook_folder.build(link, hook_folder.sources(), [python], (), lambda line: None)
        return link


def count_instructions(command: list, environ: dict, by: Callable[[list], list] = list) -> int:
    done = run(by(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command]), environ)
    return int(re.search(r"Collected : (\d+)", done.stderr).group(1))


def run(command: list, environ: dict | None = None) -> subprocess.CompletedProcess:
    if environ is None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done


def verdict(version: str, ratio: dict[str, float | None]) -> str:
    """Whether the goal for this Python is met, in words."""
    ours, idle, setuptools = ratio["autogpu"], ratio["idle .pth"], ratio["setuptools"]
    if version == "3.11":
        return f"goal {GOAL_3_11}: {'met' if ours <= GOAL_3_11 else 'MISSED'}"
    below = setuptools is None or ours < setuptools
    met = below and ours - idle <= GOAL_ABOVE_IDLE
    return f"goal idle + {GOAL_ABOVE_IDLE}, below setuptools: {'met' if met else 'MISSED'}"


def verdict_of_folder(version: str, ratio: float | None) -> str:
    goal = GOAL_OF_FOLDER.get(version)
    return "" if goal is None or ratio is None else f", folder {goal}: {'met' if ratio <= goal else 'MISSED'}"


def millions(count: int) -> str:
    return f"{count / 1e6:.3f} M"


def print_table(results: dict) -> None:
    print(f"{'':8}{'bare':>12}{'idle .pth':>12}{'autogpu':>22}{'folder':>12}{'setuptools':>12}{'coverage':>12}")
    for version, row in results.items():
        ratio = {name: count and count / row["bare"] for name, count in row.items()}
        cells = {name: f"{value:.4f}" if value else "ships none" for name, value in ratio.items()}
        folder = f"{cells['folder']:>12}"
        ours = f"{cells['autogpu']} (+{millions(row['autogpu'] - row['bare'])})"
        print(
            f"{version:8}{millions(row['bare']):>12}{cells['idle .pth']:>12}{ours:>22}"
            f"{folder}{cells['setuptools']:>12}{cells['coverage']:>12}  {verdict(version, ratio)}"
            f"{verdict_of_folder(version, ratio['folder'])}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", metavar="X.Y", default=list(environments.SUPPORTED))
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("startup.py: valgrind is missing: apt-get install valgrind", file=sys.stderr)
        return 1
    results: dict[str, dict[str, int | None]] = {}
    for version in options.python:
        base = environments.interpreter(version)
        if base is None:
            print(f"no Python {version} on this machine", file=sys.stderr)
            continue
        print(f"Python {version}", file=sys.stderr)
        parts = environments.environment(base, PEERS)
        with tempfile.TemporaryDirectory(prefix="autogpu-startup-") as folder:
            results[version] = Bench(base, parts, Path(folder) / "env").table()
    print_table(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
