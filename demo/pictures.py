"""``make pictures``: draw the pictures of the README and the documents from the real output of the commands.

``status`` and ``explain`` show the server of ``make lab`` right after its start, with one difference: the GPU that has
memory faults there is lost here. The jobs are real processes that claim GPUs and allocate memory. The users, the pids,
the host name and the time are made up.

``web-page`` is the page of ``autogpu status --format html`` for the same server, drawn by Chromium.

``lab-day`` is the table of ``benchmarks/lab_day.py`` for its default server.

``python -m demo.pictures status explain`` draws only these two, which need no TensorFlow.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.table import Table
from rich.terminal_theme import MONOKAI
from rich.text import Text

from autogpu.cli.screen import folded
from autogpu.cli.status_screen import View, lines
from autogpu.frozen import replace
from autogpu.status.model import Answer, HostStatus, JobStatus, WaiterStatus
from autogpu.status.remote import from_json
from autogpu.status.web_page import web_page
from demo.lab.scene import Part, scene_for
from demo.lab.stage import started_stage
from demo.story import memory_table
from tests.gpusim import Server
from tests.gpusim.fleet import size_bytes
from tests.gpusim.fleets import FLEETS
from tests.support import environments
from tests.support.browser import browse

ROOT = Path(__file__).resolve().parent.parent
# rich's template of a terminal, without the @font-face rules that make a browser fetch a font.
SVG = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
FOLDER = ROOT / "docs" / "pictures"
# The usual width of a new terminal. Wider text would be too small to read on a page of 640 pixels.
COLUMNS = 80
WEB_PAGE_SIZE = (1000, 700)
FLEET = "rtx-4090"
# HOUR_S is made from local time, so that the pictures show the same time of day in every time zone.
HOST, HOUR_S = "lab", time.mktime((2026, 9, 21, 14, 13, 20, 0, 0, -1))


def main(names: list[str]) -> int:
    drawn = {
        "status": draw_status,
        "web-page": draw_web_page,
        "explain": draw_explain,
        "demo": draw_demo,
        "lab-day": draw_lab_day,
    }
    for name in names or drawn:
        path = FOLDER / (f"{name}.png" if drawn[name] is draw_web_page else f"{name}.svg")
        with tempfile.TemporaryDirectory() as folder:
            drawn[name](Path(folder), path)
        print(f"wrote {path}")
    return 0


def draw_status(folder: Path, path: Path) -> None:
    _save("$ autogpu status", list(lines(status_of_lab(folder), View(COLUMNS))), path)


def draw_web_page(folder: Path, path: Path) -> None:
    """Draw the page of ``autogpu status --format html``; needs Chromium."""
    page = web_page([Answer("", status_of_lab(folder))], HOUR_S)
    # Drop the page's script, which would compare the made-up time with the current time.
    (folder / "page.html").write_text(re.sub("<script>.*</script>", "", page, flags=re.DOTALL), encoding="utf-8")
    (folder / "browser").mkdir()
    size = f"--window-size={WEB_PAGE_SIZE[0]},{WEB_PAGE_SIZE[1]}"
    browse((folder / "page.html").as_uri(), folder / "browser", size, f"--screenshot={path}")


def status_of_lab(folder: Path) -> HostStatus:
    """Return the status of the server that the documents show; the server runs in ``folder``, which must be empty."""
    with _lab(folder) as ask:
        return _as_told(from_json(json.loads(ask("status", "--json"))))


def draw_explain(folder: Path, path: Path) -> None:
    with _lab(folder) as ask:
        parts = _parts(from_json(json.loads(ask("status", "--json"))))
        printed = ask("pick", "--explain")
    told = re.sub(r"\bpid (\d+)", lambda found: f"pid {parts[int(found[1])].pid}", printed)
    _save("$ autogpu pick --explain", [Text(line) for line in told.splitlines()], path)


def draw_demo(folder: Path, path: Path) -> None:
    """Draw the table of ``make demo``; installs TensorFlow the first time."""
    from demo.__main__ import KERAS, LAB, run

    python = environments.tensorflow()
    plain = environments.environment(python.resolve(), on_top_of=python, with_autogpu=False)
    without, with_ = (run([(each, KERAS)] * 2) for each in (plain, environments.tensorflow_with_autogpu()))
    if any(with_.exit_statuses):
        raise SystemExit("a job of the demo failed")
    before = [sum(map(size_bytes, gpu.processes.values())) for gpu in LAB]
    busy = [index for index, gpu in enumerate(LAB) if gpu.processes]
    _save("$ make demo", [memory_table(before, busy, without, with_)], path, columns=76)


def draw_lab_day(folder: Path, path: Path) -> None:
    """Draw the mean time and the number of dead runs of each contender; installs nvitop and GPUtil the first time."""
    from benchmarks import lab_day
    from benchmarks.lab.contenders import DEFAULT
    from benchmarks.lab.day import Setting

    (result,) = lab_day.measure([Setting()], lab_day.SEEDS)
    rows = {name: (row["mean_h"], row["failed"] + row["victims"]) for name, row in result["contenders"].items()}
    most_hours = max(hours for hours, _ in rows.values())
    most_died = max(died for _, died in rows.values())
    table = Table(box=None)
    for heading in ("", "mean time", "", "runs that died", ""):
        table.add_column(heading, no_wrap=True)
    for name, (hours, died) in rows.items():
        hours_bar = Bar(most_hours, 0, hours, width=18, color="cyan")
        died_bar = Bar(most_died, 0, died, width=18, color="red")
        style = "bold" if name == DEFAULT else ""
        table.add_row(name, hours_bar, f"{hours:.2f} h", died_bar, f"{died:.0f}", style=style)
    _save("A day in the lab", [table], path)


@contextmanager
def _lab(folder: Path) -> Iterator:
    """Start the server of ``make lab`` without later changes, and yield a function that runs autogpu there."""
    leases = folder / "leases"
    leases.mkdir()
    leases.chmod(0o1777)
    environ = {"AUTOGPU_LEASE_DIR": str(leases), "TZ": "UTC"}
    with Server(FLEETS[FLEET].gpus, folder=folder) as server:  # noqa: SIM117
        with started_stage(server.environ_of_child(environ), folder, FLEET, is_still=True):

            def ask(*arguments: str) -> str:
                command = [sys.executable, "-m", "autogpu", *arguments]
                output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
                return server.run(command, environ=environ, cwd=folder, check=True, **output).stdout

            yield ask


def _parts(host: HostStatus) -> Mapping[int, Part]:
    """Return the processes of the scene, keyed by their pids on this machine."""
    by_script = {part.script: part for part in scene_for(len(FLEETS[FLEET].gpus))}
    jobs: list[JobStatus | WaiterStatus] = [job for gpu in host.gpus for job in gpu.jobs]
    jobs += host.queue
    unmanaged = [process for gpu in host.gpus for process in gpu.unmanaged_processes]
    parts = {each.pid: by_script[each.script] for each in jobs if each.pid is not None}
    return {**parts, **{process.pid: by_script["python"] for process in unmanaged}}


def _as_told(host: HostStatus) -> HostStatus:
    """Return ``host`` with the made-up users, pids, host name and time instead of this machine's.

    Like every other user's jobs, these show nothing of what autogpu printed when they started.
    """
    parts = _parts(host)

    def told(each: Any, **fields: Any) -> Any:
        part = parts[each.pid]
        return replace(each, user=part.who, pid=part.pid, **fields)

    gpus = []
    for gpu in host.gpus:
        jobs = tuple(told(job, printed=()) for job in gpu.jobs)
        unmanaged = tuple(told(process, program="python") for process in gpu.unmanaged_processes)
        gpus.append(replace(gpu, jobs=jobs, unmanaged_processes=unmanaged))
    queue = tuple(told(waiter) for waiter in host.queue)
    return replace(host, gpus=tuple(gpus), queue=queue, host=HOST, time_s=HOUR_S, has_hook=True)


def _save(title: str, printed: Sequence[RenderableType], path: Path, columns: int = COLUMNS) -> None:
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for each in printed:
        pieces = folded(each, columns) if isinstance(each, Text) else [each]
        console.print(*pieces, sep="\n")
    picture = console.export_svg(title=title, theme=MONOKAI, code_format=SVG, unique_id=path.stem)
    path.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
