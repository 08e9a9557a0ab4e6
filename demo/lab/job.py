"""One job on the server: a process that decides, claims and allocates as a script of its user would, and then stays.

It is forked by a process that has everything loaded: another user may not read this checkout.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Callable, Mapping, NoReturn

from autogpu import engines, policy
from autogpu.acquire import acquire
from autogpu.devices import probe
from autogpu.devices.model import Inventory
from autogpu.lease import find_folder
from autogpu.reporting.choice import why
from autogpu.selection.decision import Verdict
from autogpu.selection.members import request_for_new_process
from autogpu.selection.model import SelectionRequest
from autogpu.text import MIB
from demo.lab import people
from demo.lab.scene import Part

NOWHERE = Path("/nonexistent")


def start(part: Part, uid: int | None, last: Inventory, memory_bytes: int, report: int) -> int:
    """Fork the job and return its pid; it writes ``waiting`` and ``on UUID UUID ...`` into ``report``, a line each."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        people.become(uid)
        people.end_with_parent(parent, signal.SIGKILL)
        os.environ.update({"HOME": str(NOWHERE), "XDG_CONFIG_HOME": str(NOWHERE), **part.environ(memory_bytes)})
        _run(part, last, lambda line: os.write(report, f"{line}\n".encode()))
    except BaseException as error:
        os.write(report, f"failed {error!r}\n".encode())
    finally:
        os._exit(1)


def _run(part: Part, last: Inventory, report: Callable[[str], object]) -> NoReturn:
    if part.has_autogpu:
        _claim(part, last, report)
    else:
        # As people do who look at nvidia-smi once and write a number into their script.
        os.environ.update({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": last.devices[0].uuid})
    uuids = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    totals = {device.uuid: device.memory_total_bytes or 0 for device in last.devices}
    _allocate([round(part.share * totals[uuid]) for uuid in uuids])
    report("on " + " ".join(uuids))
    while True:
        signal.pause()


def _claim(part: Part, last: Inventory, report: Callable[[str], object]) -> None:
    def begun_before(pattern: str) -> None:
        written_s = time.time() - part.minutes * 60
        for file in find_folder(os.environ).path.glob(f"{pattern}.{os.getuid()}.{os.getpid()}.*"):
            os.utime(str(file), (written_s, written_s))

    def wait(*_: object) -> None:
        if not said:
            said.append("waiting")
            begun_before("wait")
            report("waiting")

    said: list[str] = []
    decided = acquire(request(os.environ, last), os.environ, part.script, lambda: read(last), wait)
    if decided.decision.verdict is not Verdict.TAKE:
        raise RuntimeError(why(decided.decision))
    kept.append(decided)
    begun_before("job")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuid for device in decided.decision.devices)


# A lease ends when its object does.
kept: list[object] = []


def request(environ: Mapping[str, str], last: Inventory) -> SelectionRequest:
    """What a script asks for that is started with these variables."""
    found = policy.resolve(environ, script=None, working_directory=NOWHERE, system_file=NOWHERE)
    granted = engines.granted_here(environ)
    return request_for_new_process(found, environ, read(last), granted, own_uid=os.getuid(), own_pid=os.getpid())


def read(last: Inventory) -> Inventory:
    """The GPUs as they are now; in this process, for another user may not start our interpreter."""
    return probe.finish(probe.start_in_process(os.environ, last))


def _allocate(sizes: list[int]) -> None:
    """Make a context on each GPU that is visible, and take so much of each; refused memory is left."""
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    for ordinal, size in enumerate(sizes):
        cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        cuda.cuCtxSetCurrent(context)
        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(max(size, MIB)))
