"""What autogpu's hook adds to every start of Python, in instructions, beside what other packages' ``.pth`` files add.

    python benchmarks/startup.py                        every Python of this machine
    python benchmarks/startup.py --python 3.11 --explain   one, and where its instructions go

Each figure is a whole ``python -c pass``, start to end, in a virtual environment with nothing in it but the files in
question: counted by valgrind's callgrind (or by ``perf stat`` where the processor's counters can be read), after the
start that compiles, with a fixed hash seed. Instructions repeat to within 0.01 %, where wall time does not.

What costs the most, on 3.11 (``--explain`` measures it anew, per version):

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
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support import environments  # noqa: E402  (a script finds its own project by the line above)

# The setuptools that older Pythons bundle (before 60) ships a .pth that looks at a variable and stops there.
PEERS = ("setuptools>=60", "coverage")
TIMEOUT_S = 600
PERF_RUNS = 25

# The goals: on 3.11 a bare start times this; elsewhere no more above an idle .pth, and less than setuptools'.
GOAL_3_11 = 1.023
GOAL_ABOVE_IDLE = 0.03


@dataclass(frozen=True)
class Figure:
    """One kind of start; ``instructions`` is ``None`` where this Python has no such thing."""

    name: str
    instructions: int | None


class Bench:
    """A bare virtual environment whose site-packages is filled anew for each figure."""

    def __init__(self, base: Path, parts: Path, folder: Path, count: Callable[[list, dict], int]) -> None:
        self.parts = next((parts.parent.parent / "lib").glob("python3*")) / "site-packages"
        run([str(base), "-m", "venv", "--without-pip", str(folder)])
        self.python = folder / "bin" / "python"
        self.site_packages = next((folder / "lib").glob("python3*")) / "site-packages"
        self.count = count

    def figure(self, name: str, fill: Callable[[], bool | None] | None = None, **environ: str) -> Figure:
        """Count one start with what ``fill`` put in; it answers ``False`` where there is nothing to put."""
        print(f"  {name}", file=sys.stderr, flush=True)
        shutil.rmtree(str(self.site_packages))
        self.site_packages.mkdir()
        if fill and fill() is False:
            return Figure(name, None)
        surroundings = {"PATH": os.defpath, "HOME": "/", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", **environ}
        command = [str(self.python), "-c", "pass"]
        for _ in range(2):  # the first one compiles
            done = run(command, surroundings)
            if done.stderr:
                raise RuntimeError(f"a start with {name} complains:\n{done.stderr}")
        return Figure(name, self.count(command, surroundings))

    def write(self, **files: str) -> None:
        """Put small files in, by names with ``_dot_`` for the dot."""
        for name, text in files.items():
            (self.site_packages / name.replace("_dot_", ".")).write_text(text)

    def install(self, *options: str) -> None:
        """The real ``autogpu install``, by this environment's own Python."""
        run([str(self.python), "-m", "autogpu", "install", *options], {**os.environ, "PYTHONPATH": str(self.parts)})

    def copy(self, pth: str, package: str) -> bool:
        """Take a ``.pth`` and its package from the environment of peers; ``False`` if this version ships none."""
        if not (self.parts / pth).exists():
            return False
        shutil.copy(str(self.parts / pth), str(self.site_packages))
        shutil.copytree(
            str(self.parts / package), str(self.site_packages / package), ignore=shutil.ignore_patterns("__pycache__")
        )
        return True

    def install_with_a_call(self) -> None:
        """The ``.pth`` line as one would write it first."""
        self.install()
        self.write(autogpu_dot_pth="import _autogpu_hook; _autogpu_hook.install()\n")

    def edit_hook(self, change: Callable[[str], str]) -> None:
        """Install, change the hook, and let Python compile it in its usual way."""
        self.install()
        hook = self.site_packages / "_autogpu_hook.py"
        text = change(hook.read_text())
        shutil.rmtree(str(self.site_packages / "__pycache__"))
        hook.write_text(text)

    def table(self) -> list[Figure]:
        """The figures that the goals are about."""
        return [
            self.figure("bare"),
            # A comment, since 3.13 passes over a .pth with nothing in it.
            self.figure("idle .pth", lambda: self.write(idle_dot_pth="# idle\n")),
            self.figure("autogpu", self.install),
            self.figure("setuptools", lambda: self.copy("distutils-precedence.pth", "_distutils_hack")),
            self.figure("coverage", lambda: self.copy("a1_coverage.pth", "coverage")),
        ]

    def steps(self) -> list[Figure]:
        """Starts that each do one thing more than the one before."""
        return [
            self.figure("nothing in site-packages"),
            self.figure("a .pth is read", lambda: self.write(idle_dot_pth="# idle\n")),
            self.figure("its import line is compiled", lambda: self.write(sys_dot_pth="# idle\nimport sys\n")),
            self.figure(
                "a module is found and loaded",
                lambda: self.write(empty_dot_pth="# idle\nimport _empty_module\n", _empty_module_dot_py=""),
            ),
            self.figure("the hook's own code", self.install),
        ]

    def alternatives(self) -> list[Figure]:
        """What other ways of doing the same would cost."""
        return [
            self.figure("--method sitecustomize", lambda: self.install("--method", "sitecustomize")),
            self.figure("install() called in the .pth line", self.install_with_a_call),
            self.figure("a class as finder", lambda: self.edit_hook(with_class)),
            self.figure("a reference to os", lambda: self.edit_hook(lambda text: text + "import os\n")),
            self.figure("no .pyc", lambda: self.edit_hook(lambda text: text), PYTHONDONTWRITEBYTECODE="1"),
            self.figure("the finder inside the .pth line", lambda: self.write(inline_dot_pth=INLINE)),
        ]


# The shortest finder that would do, for comparison only: it could not be audited.
INLINE = (
    'import sys; f = lambda n, p=None, t=None: n == "tensorflow" and __import__("_steps").find_spec(n, p, t) or None;'
    ' f.find_spec = f; "<lambda>" in [getattr(f, "__name__", "") for f in sys.meta_path] or'
    " sys.meta_path.insert(0, f)\n"
)


def with_class(hook: str) -> str:
    wrapped = "class Finder:\n    find_spec = staticmethod(find_spec)\n\n\n"
    start = hook.index("# On import, so that")
    return (hook[:start] + wrapped + hook[start:]).replace("meta_path.insert(0, this)", "meta_path.insert(0, Finder())")


def count_by_callgrind(command: list, environ: dict) -> int:
    done = run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command], environ)
    return int(re.search(r"Collected : (\d+)", done.stderr).group(1))


def count_by_perf(command: list, environ: dict) -> int:
    counts = []
    for _ in range(PERF_RUNS):
        done = run(["perf", "stat", "-x", ",", "-e", "instructions:u", *command], environ)
        counts.append(int(done.stderr.splitlines()[-1].split(",")[0]))
    # The least disturbed one: page faults and interrupts only ever add.
    return min(counts)


def counter() -> tuple[str, Callable[[list, dict], int]] | None:
    """The first way of counting that works here."""
    for name, count in (("valgrind", count_by_callgrind), ("perf", count_by_perf)):
        if shutil.which(name):
            try:
                count(["/bin/true"], dict(os.environ))
            except (RuntimeError, ValueError, IndexError, AttributeError):
                continue
            return name, count
    return None


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


def millions(count: int) -> str:
    return f"{count / 1e6:.3f} M"


def print_tables(results: dict, explain: bool) -> None:
    print(f"{'':8}{'bare':>12}{'idle .pth':>12}{'autogpu':>22}{'setuptools':>12}{'coverage':>12}")
    for version, result in results.items():
        row = {figure.name: figure.instructions for figure in result["table"]}
        ratio = {name: count and count / row["bare"] for name, count in row.items()}
        cells = {name: f"{value:.4f}" if value else "ships none" for name, value in ratio.items()}
        ours = f"{cells['autogpu']} (+{millions(row['autogpu'] - row['bare'])})"
        print(
            f"{version:8}{millions(row['bare']):>12}{cells['idle .pth']:>12}{ours:>22}"
            f"{cells['setuptools']:>12}{cells['coverage']:>12}  {verdict(version, ratio)}"
        )
    if not explain:
        return
    for version, result in results.items():
        steps, bare = result["steps"], result["steps"][0].instructions
        ours = steps[-1].instructions
        print(f"\nPython {version}: where the instructions above a bare start go")
        for before, step in zip(steps, steps[1:]):
            part = step.instructions - before.instructions
            print(f"  {step.name:36}{millions(part):>12}{100 * part / (ours - bare):>7.0f} %{part / bare:>10.4f}")
        print("and what it would be with")
        for other in result["alternatives"]:
            more = other.instructions - ours
            print(
                f"  {other.name:36}{millions(other.instructions - bare):>12}{more / ours:>+9.4f}"
                f"{other.instructions / bare:>10.4f}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", metavar="X.Y", default=list(environments.SUPPORTED))
    parser.add_argument("--explain", action="store_true", help="also where the instructions go, and alternatives")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    options = parser.parse_args()
    found = counter()
    if not found:
        print(
            "startup.py: neither valgrind nor a perf that can read this processor's counters is here\n"
            "startup.py: apt-get install valgrind",
            file=sys.stderr,
        )
        return 1
    name, count = found
    results: dict[str, dict[str, list[Figure]]] = {}
    for version in options.python:
        base = environments.interpreter(version)
        if base is None:
            print(f"no Python {version} on this machine", file=sys.stderr)
            continue
        print(f"Python {version}, by {name}", file=sys.stderr)
        parts = environments.environment(base, PEERS)
        with tempfile.TemporaryDirectory(prefix="autogpu-startup-") as folder:
            bench = Bench(base, parts, Path(folder) / "env", count)
            results[version] = {"table": bench.table()}
            if options.explain:
                results[version].update(steps=bench.steps(), alternatives=bench.alternatives())
    if options.json:
        values = {
            version: {part: {f.name: f.instructions for f in figures} for part, figures in result.items()}
            for version, result in results.items()
        }
        print(json.dumps({"version": 1, "counter": name, "python": values}, indent=2))
    else:
        print_tables(results, options.explain)
    return 0


if __name__ == "__main__":
    sys.exit(main())
