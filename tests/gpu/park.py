"""Park the GPU memory of a job in the memory of the host, bring it back, and see if the job can compute on.

autogpu does not do this yet. Driver 570 and newer can do it for a process of the same user (CUDA driver API, group
CHECKPOINT). Prints one line of JSON::

    python -m tests.gpu.park /path/to/python torch 4     # a job of PyTorch that holds 4 GiB
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from typing import Any

from tests.gpu.jobs import reading

ROUNDS = 3
LOCK_TIMEOUT_MS = 10_000
# The exit status if the driver lacks the functions.
NOT_SUPPORTED = 3

# The job allocates memory and prints a sum over a part of it, once at its start and once for each line of input.
JOB = """
import sys
count = int(float(sys.argv[1]) * (1 << 28))
{takes}
print(total(), flush=True)
for line in sys.stdin:
    print(total(), flush=True)
"""
TAKES = {
    "torch": """
import torch
x = torch.arange(count, device="cuda", dtype=torch.float32) % 1009
def total(): return float(x[::4097].double().sum())
""",
    "jax": """
import jax.numpy as jnp
x = jnp.arange(count, dtype=jnp.float32) % 1009
def total(): return float(x[::4097].sum())
""",
}


class LockArguments(ctypes.Structure):
    """CUcheckpointLockArgs of cuda.h."""

    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7))


def used_mib() -> int:
    return sum(gpu.memory_used_bytes or 0 for gpu in reading().devices) >> 20


def park_once(cuda: Any, pid: int) -> dict[str, Any]:
    """Park the job and bring it back. Return the seconds, the MiB in use, and the status of each call."""
    before_mib, started_s = used_mib(), time.monotonic()
    parking = [
        cuda.cuCheckpointProcessLock(pid, ctypes.byref(LockArguments(LOCK_TIMEOUT_MS))),
        cuda.cuCheckpointProcessCheckpoint(pid, None),
    ]
    park_s = time.monotonic() - started_s
    parked_mib, started_s = used_mib(), time.monotonic()
    restoring = [cuda.cuCheckpointProcessRestore(pid, None), cuda.cuCheckpointProcessUnlock(pid, None)]
    restore_s = time.monotonic() - started_s
    mibs = [before_mib, parked_mib, used_mib()]
    return {"park_s": park_s, "restore_s": restore_s, "mib": mibs, "codes": parking + restoring}


def main(python: str, framework: str, gib: str) -> int:
    cuda = ctypes.CDLL("libcuda.so.1")
    if not hasattr(cuda, "cuCheckpointProcessLock"):
        print("the driver has no cuCheckpointProcessLock")
        return NOT_SUPPORTED
    cuda.cuInit(0)
    command = [python, "-W", "ignore", "-c", JOB.format(takes=TAKES[framework]), gib]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        try:
            first, rounds = job.stdout.readline(), []
            for _ in range(ROUNDS):
                rounds.append(park_once(cuda, job.pid))
                job.stdin.write("\n")
                job.stdin.flush()
                rounds[-1]["is_same"] = job.stdout.readline() == first != ""
        finally:
            job.kill()
    print(json.dumps(rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
