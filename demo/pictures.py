"""``make pictures``: the pictures of the README and the documents, drawn from what the commands really print.

``status`` and ``explain`` are of the server of ``make lab`` as it is when one comes: its people start one after the
other, so that the scene is decided. The jobs are processes, which decide, claim and take memory as any job does. Put in
at the drawing are the names of the users, the pids, the ages of claims, the host and the hour, which would be those of
this machine; they are those of ``demo/lab/scene.py``.

``lab-day`` is the table of ``benchmarks/lab_day.py`` for its default server, in light colours and in dark ones.

``python -m demo.pictures status explain`` draws those two alone, for which no TensorFlow is needed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from autogpu.cli.screen import folded
from autogpu.cli.status_screen import View, lines
from autogpu.frozen import replace
from autogpu.status.model import HostStatus, JobStatus, WaiterStatus
from autogpu.status.remote import from_json
from demo.lab.scene import Part, scene_for
from demo.lab.stage import Orders
from demo.screen import show
from demo.svg import svg
from tests.gpusim import Server
from tests.gpusim.fleet import size_bytes
from tests.gpusim.fleets import FLEETS
from tests.support import environments

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
# Of a terminal as it begins; more would be too small to read on a page of 640 pixels.
COLUMNS = 80
FLEET = "rtx-4090"
# The hour is a local one: the same in each time zone.
HOST, HOUR_S = "lab", time.mktime((2026, 9, 21, 14, 13, 20, 0, 0, -1))


def main(names: list[str]) -> int:
    """Draw the pictures of these names; all, if there are none."""
    drawn: Mapping[str, object] = {
        "status": draw_status,
        "explain": draw_explain,
        "demo": draw_demo,
        "lab-day": draw_lab_day,
    }
    unknown = [name for name in names if name not in drawn]
    if unknown:
        print(f"no picture {unknown[0]!r}; there are {', '.join(drawn)}", file=sys.stderr)
        return 2
    FOLDER.mkdir(exist_ok=True)
    for name in names or drawn:
        path = FOLDER / f"{name}.svg"
        with tempfile.TemporaryDirectory() as folder:
            drawn[name](Path(folder), path)  # type: ignore[operator]
        print(f"wrote {path}")
    return 0


def draw_status(folder: Path, path: Path) -> None:
    """``autogpu status`` on a server with holders, an idle lease, an unmanaged process and a queue."""
    _save("autogpu status", list(lines(status_of_lab(folder), View(COLUMNS))), path)


def status_of_lab(folder: Path) -> HostStatus:
    """The server as the documents show it; ``folder`` is empty, and the server's."""
    with _lab(folder) as ask:
        return _as_told(from_json(json.loads(ask("status", "--json"))))


def draw_explain(folder: Path, path: Path) -> None:
    """``autogpu pick --explain`` on the same server."""
    with _lab(folder) as ask:
        pids = _pids(from_json(json.loads(ask("status", "--json"))))
        printed = ask("pick", "--explain")
    told = re.sub(r"\bpid (\d+)", lambda found: f"pid {pids[int(found[1])].pid}", printed)
    _save("autogpu pick --explain", [Text(line) for line in told.splitlines()], path)


def draw_demo(folder: Path, path: Path) -> None:
    """The end of ``make demo``; installs TensorFlow the first time."""
    from demo.__main__ import LAB, run

    python = environments.tensorflow()
    without = run(environments.environment(python.resolve(), on_top_of=python, with_autogpu=False))
    with_ = run(environments.tensorflow_with_autogpu())
    if any(with_.exit_statuses):
        raise SystemExit("a job of the demo failed")
    before = [sum(map(size_bytes, gpu.processes.values())) for gpu in LAB]
    with (folder / "screen").open("w") as screen:
        console = Console(record=True, width=122, file=screen, force_terminal=True)
        show(console, before, [index for index, gpu in enumerate(LAB) if gpu.processes], without, with_)
    printed = list(Text.from_ansi(console.export_text(styles=True)).split("\n"))
    # The table; README says in words what is below it.
    end = next(place for place, line in enumerate(printed) if line.plain.startswith("What autogpu printed"))
    _save("make demo", [line for line in printed[:end] if line.plain.strip()], path, columns=76)


def draw_lab_day(folder: Path, path: Path) -> None:
    """How long jobs take against how many runs die, each way; installs nvitop and GPUtil the first time."""
    from benchmarks import lab_day
    from benchmarks.lab import contenders, picture
    from benchmarks.lab.day import Setting

    (result,) = lab_day.measure([Setting()], tuple(contenders.LEGEND), lab_day.SEEDS)
    path.write_text(picture.svg(result, picture.LIGHT), encoding="utf-8")
    path.with_name(f"{path.stem}-dark.svg").write_text(picture.svg(result, picture.DARK), encoding="utf-8")


@contextmanager
def _lab(folder: Path) -> Iterator:
    """The server of ``make lab`` on which nothing changes, as a way to ask autogpu there."""
    leases = folder / "leases"
    leases.mkdir()
    leases.chmod(0o1777)
    environ = {"AUTOGPU_LEASE_DIR": str(leases), "TZ": "UTC"}
    with Server(FLEETS[FLEET].gpus, folder=folder) as server:
        command = [sys.executable, "-m", "demo.lab.stage", Orders(str(folder), FLEET, is_still=True).text()]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        stage = server.popen(command, environ=environ, cwd=ROOT, **pipes)
        if stage.stdout is None or stage.stdout.readline() != "ready\n":
            raise SystemExit("the server of the pictures did not start")

        def ask(*arguments: str) -> str:
            done = server.run(
                [sys.executable, "-m", "autogpu", *arguments],
                environ=environ,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            if done.returncode:
                raise SystemExit(f"autogpu {' '.join(arguments)} ended with {done.returncode}: {done.stdout}")
            return done.stdout

        yield ask
        stage.communicate(timeout=60)


def _part(script: str) -> Part:
    (found,) = [part for part in scene_for(len(FLEETS[FLEET].gpus)).parts if part.script == script]
    return found


def _pids(host: HostStatus) -> Mapping[int, Part]:
    """By pid on this machine, what stands for it in a picture."""
    jobs: list[JobStatus | WaiterStatus] = [job for gpu in host.gpus for job in gpu.jobs]
    unmanaged = [process for gpu in host.gpus for process in gpu.unmanaged_processes]
    return {
        **{each.pid: _part(each.script) for each in [*jobs, *host.queue] if each.pid is not None},
        **{process.pid: _part("python") for process in unmanaged},
    }


def _as_told(host: HostStatus) -> HostStatus:
    """``host`` with the picture's people, pids, ages and hour in place of those of this machine."""
    pids = _pids(host)

    def told(each: Any, age: str = "") -> Any:
        part = pids[each.pid]
        return replace(each, user=part.who, pid=part.pid, **({age: part.minutes * 60} if age else {}))

    gpus = [
        replace(
            gpu,
            jobs=tuple(told(job, "age_s") for job in gpu.jobs),
            unmanaged_processes=tuple(
                replace(told(process), program=pids[process.pid].script) for process in gpu.unmanaged_processes
            ),
        )
        for gpu in host.gpus
    ]
    queue = tuple(told(waiter, "waited_s") for waiter in host.queue)
    return replace(host, gpus=tuple(gpus), queue=queue, host=HOST, time_s=HOUR_S, has_hook=True)


def _save(command: str, printed: Sequence[Text], path: Path, columns: int = COLUMNS) -> None:
    prompt = Text.assemble(("$ ", "bold green"), (command, "bold"))
    pieces = [piece for line in (prompt, *printed) for piece in folded(line, columns)]
    path.write_text(svg(pieces, columns), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
