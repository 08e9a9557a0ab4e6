"""``make pictures``: draw the pictures of the README and the documents from the real output of the commands.

``status`` and ``explain`` show the server of ``make lab`` right after its start, with one difference: the GPU that has
memory faults there is lost here. The jobs are real processes that claim GPUs and allocate memory. The users, the pids,
the host name and the time are made up.

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
from typing import Any, Callable, Iterator, Mapping, Sequence

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.table import Table
from rich.terminal_theme import MONOKAI
from rich.text import Text

from autogpu.cli.screen import folded
from autogpu.cli.status_screen import View, lines
from autogpu.frozen import replace
from autogpu.status.model import Answer, HostStatus
from autogpu.status.remote import from_json
from autogpu.status.web_page import web_page
from demo.lab.scene import scene_for
from demo.lab.stage import started_stage
from demo.pythons import pythons_on_top_of
from demo.story import memory_table
from tests.gpusim import Server
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
        return _as_told(ask)[0]


def draw_explain(folder: Path, path: Path) -> None:
    with _lab(folder) as ask:
        pids = _as_told(ask)[1]
        printed = ask("pick", "--explain")
    told = re.sub(r"\bpid (\d+)", lambda found: f"pid {pids[int(found[1])]}", printed)
    _save("$ autogpu pick --explain", [Text(line) for line in told.splitlines()], path)


def draw_demo(folder: Path, path: Path) -> None:
    """Draw the table of ``make demo``; installs TensorFlow the first time."""
    from demo.__main__ import BEFORE_BYTES, BUSY, KERAS, run

    without, with_ = (run([(python, KERAS)] * 2) for python in pythons_on_top_of(environments.tensorflow()))
    if any(with_.exit_statuses):
        raise SystemExit("a job of the demo failed")
    _save("$ make demo", [memory_table(BEFORE_BYTES, BUSY, without, with_)], path, columns=76)


def draw_lab_day(folder: Path, path: Path) -> None:
    """Draw two columns of the table of ``benchmarks/lab_day.py``; installs nvitop and GPUtil the first time."""
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
def _lab(folder: Path) -> Iterator[Callable[..., str]]:
    """Start the server of ``make lab`` without later changes, and yield a function that runs autogpu there."""
    environ = {"AUTOGPU_LEASE_DIR": f"{folder}/leases", "TZ": "UTC"}
    with Server(FLEETS[FLEET].gpus, folder=folder) as server:  # noqa: SIM117
        with started_stage(server.environ_of_child(environ), folder, FLEET, is_still=True):

            def ask(*arguments: str) -> str:
                command = [sys.executable, "-m", "autogpu", *arguments]
                output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
                return server.run(command, environ=environ, cwd=folder, check=True, **output).stdout

            yield ask


def _as_told(ask: Callable[..., str]) -> tuple[HostStatus, Mapping[int, int]]:
    """Return the status with made-up users, pids, host name and time, and the made-up pids, keyed by the real ones."""
    parts = {part.script: part for part in scene_for(len(FLEETS[FLEET].gpus))}
    pids = {}

    def told(fields: dict[str, Any]) -> dict[str, Any]:
        if "pid" not in fields:
            return fields
        part = parts[fields.get("script", "python")]  # only the process without autogpu has no script
        pids[fields["pid"]] = part.pid
        # Like every other user's jobs, these show nothing of what autogpu printed when they started.
        return {**fields, "user": part.who, "pid": part.pid, "program": "python", "printed": []}

    host = from_json(json.loads(ask("status", "--json"), object_hook=told))
    return replace(host, host=HOST, time_s=HOUR_S, has_hook=True), pids


def _save(title: str, printed: Sequence[RenderableType], path: Path, columns: int = COLUMNS) -> None:
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for each in printed:
        pieces = folded(each, columns) if isinstance(each, Text) else [each]
        console.print(*pieces, sep="\n")
    picture = console.export_svg(title=title, theme=MONOKAI, code_format=SVG, unique_id=path.stem)
    path.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
