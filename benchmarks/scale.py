"""Time of claims and commands on a large host: 64 GPUs, 2,000 processes on them, and up to 1,000 live leases.

    python benchmarks/scale.py [--runs N] [--leases 0 10 100 300 1000]

Each row is for one number of leases, held by another process. Each figure is the median of N runs:

* **mutex**: how long a job holds the host's mutex while it chooses and claims;
* **status**: the command, as a whole process.
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
from autogpu.lease import Folder
from autogpu import policy
from autogpu.engines.model import NO_ENGINE
from autogpu.status.preview import request_for_new_process

inventory = probe.finish(probe.start(os.environ))
assert len(inventory.devices) == int(sys.argv[3])
resolved = policy.resolve(os.environ, script=None, working_directory=policy.working_directory())
request = request_for_new_process(resolved, os.environ, inventory, NO_ENGINE, own_uid=os.getuid())
held = []
before = Folder.locked

@contextlib.contextmanager
def timed(*arguments):
    with before(*arguments) as folder:
        begun = time.perf_counter()
        yield folder
        held.append(time.perf_counter() - begun)

Folder.locked = timed
for _ in range(int(sys.argv[2])):
    acquire(request, os.environ, "train.py", lambda: inventory, lambda *_: None).lease.release()
print(json.dumps(held))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--leases", type=int, nargs="+", default=[0, 10, 100, 300, 1000])
    options = parser.parse_args()
    each = PROCESSES // GPUS + 1
    gpus = [
        Gpu(processes={5_000_000 + number * each + place: "10MiB" for place in range(each)}) for number in range(GPUS)
    ]
    with tempfile.TemporaryDirectory() as place, Server(gpus, folder=Path(place)) as server:
        print(f"{'leases':>8}{'mutex':>12}{'status':>12}")
        for count in options.leases:
            with held(server, count, Path(place) / f"leases{count}") as environ:
                medians_ms = [1000 * statistics.median(each) for each in measured(server, environ, options.runs)]
            print(f"{count:8}" + "".join(f"{median_ms:9.1f} ms" for median_ms in medians_ms), flush=True)


@contextlib.contextmanager
def held(server: Server, count: int, folder: Path) -> Iterator[dict[str, str]]:
    """Let another process hold ``count`` leases in a new lease folder, and yield the environment that uses it."""
    # A job without a stated need would wait until the young jobs here have run for a minute.
    environ = {"AUTOGPU_LEASE_DIR": str(folder), "AUTOGPU_NEED": "1GiB"}
    uuids = ",".join(gpu.uuid for gpu in server.gpus)
    command = [sys.executable, "-c", HOLDER, str(ROOT), str(count), uuids]
    holder = server.popen(command, environ=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == "held\n"
    try:
        yield environ
    finally:
        holder.communicate(timeout=60)


def measured(server: Server, environ: dict[str, str], runs: int) -> tuple[list[float], list[float]]:
    """Return the times for which the mutex was held, and those of the command, in seconds."""
    done = server.run([sys.executable, "-c", CLAIM, str(ROOT), str(runs), str(GPUS)], environ=environ, timeout=600)
    assert done.returncode == 0, done.stderr
    mutex_s, status_s = json.loads(done.stdout), []
    for _ in range(runs):
        begun = time.perf_counter()
        done = server.run([sys.executable, "-m", "autogpu", "status"], environ=environ, timeout=600, cwd=str(ROOT))
        status_s.append(time.perf_counter() - begun)
        assert done.returncode == 0, done.stderr
    return mutex_s, status_s


if __name__ == "__main__":
    os.environ.pop("AUTOGPU", None)
    main()
