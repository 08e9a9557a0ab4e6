"""Instructions that autogpu's hooks add to every start of Python, compared with other packages' ``.pth`` files.

Two hooks are measured: the one that ``autogpu install`` writes into an environment, and a host's folder on PYTHONPATH.

    python benchmarks/startup.py                 every Python of this machine
    python benchmarks/startup.py --python 3.11   one

Each figure counts the instructions of a whole ``python -c pass``, in a virtual environment that holds only the measured
files. valgrind's callgrind counts them, with a fixed hash seed and after a start that compiles the files. Instruction
counts repeat to within 0.01 %; wall time does not.

The largest costs on 3.11:

* Four fifths are the price of *any* ``.pth`` line that imports a module. Python reads the file, compiles its line (both
  twice in a virtual environment, CPython issue 75723), looks for the module in each folder of ``sys.path`` and opens
  its ``.pyc``. Listing site-packages adds nothing: Python does that at every start to look for a sitecustomize.
* The hook's own code is a seventh. A class for the finder would add as much again, so the module itself is the
  finder. A reference to ``os`` would add four times as much, when the interpreter ends. The functions that only the
  import of a framework needs would double it, so they are in a second file.
* The finder inside the ``.pth`` line would cost more than all of this: that line is compiled at every start.
* Before Python executes the first line, any ``.pth`` makes it import ``_bootlocale`` on 3.8 and 3.9 (2 % of a bare
  start). On 3.13 any ``.pth`` that is not empty makes it import the codec ``utf_8_sig`` (3 %). A sitecustomize is
  cheaper on these versions, if no other sitecustomize hides it.
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

from autogpu.host import hook_folder  # noqa: E402  (needs the sys.path entry above)
from autogpu.host.pythons import find_pythons  # noqa: E402
from tests.support import environments, persons  # noqa: E402

# setuptools before 60, which older Pythons bundle, ships a .pth that only checks a variable.
PEERS = ("setuptools>=60", "coverage")
TIMEOUT_S = 600

# Goals, as ratios to a bare start. 3.11: at most the first number. Other versions: at most the second number above an
# idle .pth, and below setuptools.
GOAL_3_11 = 1.023
GOAL_ABOVE_IDLE = 0.03


class Bench:
    """A bare virtual environment whose site-packages is emptied and filled again for each figure."""

    def __init__(self, base: Path, parts: Path, folder: Path) -> None:
        self.parts = next((parts.parent.parent / "lib").glob("python3*")) / "site-packages"
        run([str(base), "-m", "venv", "--without-pip", str(folder)])
        self.base = base
        self.python = folder / "bin" / "python"
        self.site_packages = next((folder / "lib").glob("python3*")) / "site-packages"

    def figure(self, name: str, fill: Callable[[], object] | None = None, folder: Path | None = None) -> int | None:
        """Return the number of instructions of a start; ``None`` if ``fill`` has no files for this Python.

        Args:
            fill: Puts the measured files into site-packages; returns ``False`` if this Python has none.
            folder: Host's folder for PYTHONPATH. The start then runs as an ordinary user, since the folder does not
                serve root.
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
        for _ in range(2):  # the first start compiles
            done = run(by(command), surroundings)
            if done.stderr:
                raise RuntimeError(f"a start with {name} printed to stderr:\n{done.stderr}")
        counting = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command]
        return int(re.search(r"Collected : (\d+)", run(by(counting), surroundings).stderr).group(1))

    def install(self) -> None:
        run([str(self.python), "-m", "autogpu", "install"], {**os.environ, "PYTHONPATH": str(self.parts)})

    def copy(self, pth: str, package: str) -> bool:
        """Copy a ``.pth`` and its package from the environment of peers; return ``False`` if that has no such file."""
        if not (self.parts / pth).exists():
            return False
        shutil.copy(str(self.parts / pth), str(self.site_packages))
        shutil.copytree(
            str(self.parts / package), str(self.site_packages / package), ignore=shutil.ignore_patterns("__pycache__")
        )
        return True

    def table(self) -> dict[str, int | None]:
        """Return the instructions of a start for each column; ``None`` if this Python or user can't measure it."""
        fills = {
            "bare": None,
            # It contains a comment, since 3.13 skips an empty .pth.
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
        """Build the folder that ``autogpu host-setup --all-pythons`` builds, for this Python alone; return its link."""
        self.python.parents[2].chmod(0o755)  # open to every user, unlike a new temporary folder
        pythons, _ = find_pythons(Path("/"), [str(self.base)])
        python = next(python for python in pythons if Path(python.executable) == self.base.resolve())
        link = self.python.parents[2] / "host" / "autogpu"
        hook_folder.build(link, hook_folder.sources(), [python], (), lambda line: None)
        return link


def run(command: list, environ: dict | None = None) -> subprocess.CompletedProcess:
    if environ is None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done


def verdict(version: str, ratio: dict[str, float | None]) -> str:
    ours, idle, setuptools = ratio["autogpu"], ratio["idle .pth"], ratio["setuptools"]
    if version == "3.11":
        return f"goal {GOAL_3_11}: {'met' if ours <= GOAL_3_11 else 'MISSED'}"
    below = setuptools is None or ours < setuptools
    met = below and ours - idle <= GOAL_ABOVE_IDLE
    return f"goal idle + {GOAL_ABOVE_IDLE}, below setuptools: {'met' if met else 'MISSED'}"


def millions(count: int) -> str:
    return f"{count / 1e6:.3f} M"


def print_table(results: dict) -> None:
    print(f"{'':8}{'bare':>12}{'idle .pth':>12}{'autogpu':>22}{'folder':>12}{'setuptools':>12}{'coverage':>12}")
    for version, row in results.items():
        ratio = {name: count and count / row["bare"] for name, count in row.items()}
        cells = {name: f"{value:.4f}" if value else "none" for name, value in ratio.items()}
        ours = f"{cells['autogpu']} (+{millions(row['autogpu'] - row['bare'])})"
        print(
            f"{version:8}{millions(row['bare']):>12}{cells['idle .pth']:>12}{ours:>22}"
            f"{cells['folder']:>12}{cells['setuptools']:>12}{cells['coverage']:>12}  {verdict(version, ratio)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", metavar="X.Y", default=list(environments.SUPPORTED))
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("startup.py: valgrind is missing: apt-get install valgrind")
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


if __name__ == "__main__":
    main()
