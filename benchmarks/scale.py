"""Time of claims and commands on a large host: 64 GPUs, 2,000 processes on them, and up to 1,000 live leases.

    python benchmarks/scale.py [--runs N] [--leases 0 10 100 300 1000]

Each column is for one number of leases, held by another process. The first column, without leases, is the floor. Each
cell is the median of N runs, in ms:

* **mutex**: how long a job holds the host's mutex while it chooses and claims;
* **acquire**: the whole acquisition, from the first reading of the leases until the job has its lease;
* **look**: one look of a waiting job, which reads the lease folder again;
* **pick**, **status**: the commands, as whole processes.

The last column compares growth from the middle to the last number of leases: the growth of the time above the floor,
divided by the growth of the number. 1.0 is linear.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Iterator

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.gpusim import Gpu, Server  # noqa: E402

GPUS, PROCESSES = 64, 2000

HOLDER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from autogpu.lease import Lease, acquire_lease, find_folder
folder, uuids = find_folder(os.environ), sys.argv[3].split(",")
held = [
    acquire_lease(Lease(folder, f"job{number}.py"), lambda *_: {uuids[number % len(uuids)]: 1 << 30})
    for number in range(int(sys.argv[2]))
]
print("held", flush=True)
sys.stdin.read()
"""

CLAIM = """
import contextlib, json, os, sys, time
sys.path.insert(0, sys.argv[1])
from autogpu.acquire import acquire
from autogpu.devices import probe
from autogpu.lease import Folder, find_folder
from autogpu.lease.snapshot import FolderReader
from autogpu import policy
from autogpu.engines.model import NO_ENGINE
from autogpu.status.preview import request_for_new_process

inventory = probe.finish(probe.start(os.environ))
assert len(inventory.devices) == int(sys.argv[3])
need = {**os.environ, "AUTOGPU_NEED": "1GiB"}
resolved = policy.resolve(need, script=None, working_directory=policy.working_directory())
request = request_for_new_process(resolved, os.environ, inventory, NO_ENGINE, own_uid=os.getuid())
times = {"mutex": [], "acquire": [], "look": []}
before = Folder.locked

@contextlib.contextmanager
def timed(*arguments):
    with before(*arguments) as held:
        begun = time.perf_counter()
        yield held
        times["mutex"].append(time.perf_counter() - begun)

Folder.locked = timed
folder = find_folder(os.environ)
for _ in range(int(sys.argv[2])):
    begun = time.perf_counter()
    acquired = acquire(request, os.environ, "train.py", lambda: inventory, lambda *_: None)
    times["acquire"].append(time.perf_counter() - begun)
    acquired.lease.release()
reader = FolderReader()
with folder.open() as descriptor:
    reader.read(descriptor)
    for _ in range(int(sys.argv[2])):
        begun = time.perf_counter()
        reader.read(descriptor)
        times["look"].append(time.perf_counter() - begun)
print(json.dumps(times))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--leases", type=int, nargs="+", default=[0, 10, 100, 300, 1000])
    options = parser.parse_args()
    found = {}
    each = PROCESSES // GPUS + 1
    gpus = [
        Gpu(processes={5_000_000 + number * each + place: "10MiB" for place in range(each)}) for number in range(GPUS)
    ]
    with tempfile.TemporaryDirectory() as place, Server(gpus, folder=Path(place)) as server:
        for count in options.leases:
            print(f"{count} leases", file=sys.stderr)
            with held(server, count, Path(place) / f"leases{count}") as environ:
                found[count] = measured(server, environ, options.runs)
    show(found)


@contextlib.contextmanager
def held(server: Server, count: int, folder: Path) -> Iterator[dict[str, str]]:
    """Make a lease folder in which another process holds ``count`` leases, and yield the environment that uses it."""
    folder.mkdir()
    folder.chmod(0o1777)
    environ = {"AUTOGPU_LEASE_DIR": str(folder)}
    uuids = ",".join(gpu.uuid for gpu in server.gpus)
    command = [sys.executable, "-c", HOLDER, str(ROOT), str(count), uuids]
    holder = server.popen(command, environ=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == "held\n"
    try:
        yield environ
    finally:
        holder.communicate(timeout=60)


def measured(server: Server, environ: dict[str, str], runs: int) -> dict[str, float]:
    """Return the median of each row in ms."""
    done = server.run([sys.executable, "-c", CLAIM, str(ROOT), str(runs), str(GPUS)], environ=environ, timeout=600)
    assert done.returncode == 0, done.stderr
    times = json.loads(done.stdout)
    # State a need, as in CLAIM: a job without one would wait until the young jobs here have run for a minute.
    environ = {**environ, "AUTOGPU_NEED": "1GiB"}
    for verb in ("pick", "status"):
        times[verb] = []
        for _ in range(runs):
            begun = time.perf_counter()
            done = server.run([sys.executable, "-m", "autogpu", verb], environ=environ, timeout=600, cwd=str(ROOT))
            times[verb].append(time.perf_counter() - begun)
            assert done.returncode == 0, done.stderr
    return {name: 1000 * statistics.median(each) for name, each in times.items()}


def show(found: dict[int, dict[str, float]]) -> None:
    counts = list(found)
    print(f"{'ms, leases:':12}" + "".join(f"{count:>10}" for count in counts) + f"{'growth':>10}")
    for name in found[counts[0]]:
        row = [found[count][name] for count in counts]
        first, last = counts[len(counts) // 2], counts[-1]
        floor = row[0]
        spent = [max(found[count][name] - floor, 0.001) for count in (first, last)]
        growth = (spent[1] / spent[0]) / (last / first) if len(counts) > 2 else float("nan")
        print(f"{name:12}" + "".join(f"{value:>10.1f}" for value in row) + f"{growth:>10.2f}")


if __name__ == "__main__":
    os.environ.pop("AUTOGPU", None)
    main()
