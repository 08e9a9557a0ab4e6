"""``make pictures``: the pictures of the README and the documents, drawn from what the commands really print.

The jobs are processes on a simulated server, which claim and take memory as any job does. Made up are the people, the
pids, the host and the hour, which would be those of this machine, and the hours that claims are old.

``python -m demo.pictures status explain`` draws those two alone, for which no TensorFlow is needed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from autogpu.cli.screen import folded
from demo.screen import show
from tests.gpusim import Gpu, Server
from tests.gpusim.__main__ import DEFAULT_FLEET
from tests.gpusim.fleet import read_fleet, size_bytes
from tests.support import environments

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
COLUMNS = 122

# The simulated server of `status`: every GPU works but one, whose notebook holds an idle lease.
SHARED = (
    Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11GiB", utilization=97),
    Gpu(name="NVIDIA TITAN RTX", memory="24GiB", utilization=88),
    Gpu(name="NVIDIA TITAN RTX", memory="24GiB", utilization_samples=(0,) * 64),
    Gpu(name="NVIDIA RTX A6000", memory="48GiB", utilization=64),
)


@dataclass(frozen=True)
class Job:
    """One process of the picture; without ``claims`` it makes no claim, with ``waits_for`` it stands in the queue."""

    who: str
    pid: int
    script: str
    gpu: int
    uses: str = "0"
    claims: str = ""
    waits_for: str = ""
    minutes: float = 0


JOBS = (
    Job("anna", 21877, "train.py", 0, uses="4.6GiB", claims="6GiB", minutes=42),
    Job("ben", 20518, "bert.py", 1, uses="20.9GiB", claims="24GiB", minutes=190),
    Job("chen", 8211, "ipykernel_launcher.py", 2, uses="1.4GiB", claims="24GiB", minutes=26 * 60),
    Job("dora", 23150, "", 3, uses="30GiB"),
    Job("emil", 24402, "sweep.py", 3, waits_for="40GiB", minutes=12),
)

# A process that takes memory on one GPU, claims it or waits for it, and stays until its input ends.
PROCESS = """
import ctypes, os, sys, time
script, used, claimed, wanted, age_s = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory, name = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.create_string_buffer(16)
cuda.cuInit(0)
from autogpu import lease
from autogpu.devices import cuda as driver
from autogpu.lease import leases, queue
now = time.time
folder, uuid = lease.find_folder(os.environ), driver.visible_uuids()[0]
if used:
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    cuda.cuCtxSetCurrent(context)
    assert not cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(used))
leases.unix_s = queue.unix_s = lambda: now() - age_s
if claimed:
    held = lease.acquire_lease(folder, lambda *_: {uuid: claimed}, script=script)
if not wanted:
    print("ready", flush=True)
    sys.stdin.read()
else:
    def stand_in_line(state):
        print("ready", flush=True)
    lease.wait_for_lease(folder, lambda *_: None, demand=lease.Demand(1, wanted, (uuid,)), script=script, timeout_s=600,
                   on_wait=stand_in_line)
"""

# `autogpu status` on a terminal, before its lines are folded: the pids and people of the picture are put in first,
# or where a line is folded would depend on those of this machine.
STATUS = """
import os, sys
from dataclasses import replace
from rich.console import Console
from autogpu.cli.status_screen import lines
from autogpu.cli.status_table import Frame
from autogpu.cli.policy_options import resolve_here
from autogpu.status.snapshot import read_status
console = Console(force_terminal=True, color_system="standard", highlight=False)
found = replace(read_status(os.environ, resolve_here(os.environ)), host="lab", time_s=1_790_000_000.0, has_hook=True)
for line in lines(found, Frame(int(sys.argv[1]), True)):
    console.print(line, soft_wrap=True)
"""


def main(names: list[str]) -> int:
    """Draw the pictures of these names; all, if there are none."""
    drawn: Mapping[str, object] = {"status": draw_status, "explain": draw_explain, "demo": draw_demo}
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
    environ = {"AUTOGPU_LEASE_DIR": str(_leases(folder)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with Server(SHARED, folder=folder) as server:
        pids = {}
        started = []
        for job in JOBS:
            sizes = [str(size_bytes(size or 0)) for size in (job.uses, job.claims, job.waits_for)]
            process = server.popen(
                [sys.executable, "-c", PROCESS, job.script, *sizes, str(job.minutes * 60)],
                environ={**environ, "CUDA_VISIBLE_DEVICES": str(job.gpu)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            if process.stdout is None or process.stdout.readline().strip() != "ready":
                raise SystemExit(f"the picture's process {job.script or 'of ' + job.who} did not start")
            pids[process.pid] = job
            started.append(process)
        done = server.run([sys.executable, "-c", STATUS, str(COLUMNS)], environ={**environ, "TZ": "UTC"}, cwd=folder)
        for process in started:
            process.kill()
    if done.returncode or done.stderr:
        raise SystemExit(f"autogpu status ended with {done.returncode}: {done.stderr}")
    lines = [_as_told(Text.from_ansi(line), pids) for line in done.stdout.splitlines()]
    _save("autogpu status", lines, path)


def draw_explain(folder: Path, path: Path) -> None:
    """``autogpu pick --explain`` on the machine of ``tests/gpusim/lab.toml``."""
    fleet = read_fleet(DEFAULT_FLEET)
    with Server(fleet.gpus, folder=folder) as server:
        done = server.run(
            [sys.executable, "-m", "autogpu", "pick", "--explain"],
            environ={"AUTOGPU_LEASE_DIR": str(_leases(folder))},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    if done.returncode:
        raise SystemExit(f"autogpu pick ended with {done.returncode}: {done.stdout}")
    _save("autogpu pick --explain", [Text(line) for line in done.stdout.splitlines()], path)


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
        console = Console(record=True, width=COLUMNS, file=screen, force_terminal=True)
        show(console, before, [index for index, gpu in enumerate(LAB) if gpu.processes], without, with_)
    lines = list(Text.from_ansi(console.export_text(styles=True)).split("\n"))
    # The table; the sentences below it stand in the README.
    end = next(place for place, line in enumerate(lines) if line.plain.startswith("What autogpu printed"))
    _save("make demo", [line for line in lines[:end] if line.plain.strip()], path, columns=76)


def _leases(folder: Path) -> Path:
    leases = folder / "leases"
    leases.mkdir()
    leases.chmod(0o1777)
    return leases


def _as_told(line: Text, pids: Mapping[int, Job]) -> Text:
    """``line`` with the picture's people and pids in place of those of this machine."""
    found = re.search(r"\(pid (\d+)", line.plain)
    job = pids.get(int(found.group(1))) if found else None
    if job is not None:
        # The owner's column, or the word after the place in the queue.
        line = _replaced(line, r"^ {8}\S+ +(?=\S)|(?<=^  \d\. )\S+ ", job)
    for hit in reversed(list(re.finditer(r"\bpid (\d+)\b", line.plain))):
        if int(hit.group(1)) in pids:
            line = _put(line, hit.start(), hit.end(), f"pid {pids[int(hit.group(1))].pid}")
    return line


def _replaced(line: Text, pattern: str, job: Job) -> Text:
    hit = re.search(pattern, line.plain)
    if hit is None:
        return line
    is_row = hit.group().startswith(" " * 8)
    return _put(line, hit.start(), hit.end(), f"{'':8}{job.who:10} " if is_row else f"{job.who} ")


def _put(line: Text, start: int, end: int, words: str) -> Text:
    style = line.get_style_at_offset(Console(), start)
    return Text.assemble(line[:start], (words, style), line[end:])


def _save(command: str, lines: list[Text], path: Path, columns: int = COLUMNS) -> None:
    with tempfile.TemporaryFile("w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        for line in lines:
            for piece in folded(line, columns):
                console.print(piece, soft_wrap=True)
        # A fixed id: the same screen is the same file.
        console.save_svg(str(path), title=command, theme=MONOKAI, unique_id=f"autogpu-{path.stem}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
